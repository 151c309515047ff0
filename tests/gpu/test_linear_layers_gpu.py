"""devkernels.linear on a GPU: what cuBLASLt's GELU is made of, and layers element by element."""

import functools

import numpy as np
import pytest

from devkernels.linear import (
    FusedLinear,
    FusedMatmul,
    FusedMLP,
    fused_matmul,
)
from devkernels.tolerance import gelu_error, unit_roundoff
from tests.gpu.linear_device import (
    exact_tanh,
    gpu,
    needs_cupy,
    needs_nvmath,
    own_cache,
    own_error,
)
from tests.unit.linear_bounds import check_mlp

pytestmark = needs_nvmath
__all__ = ["gpu", "own_cache"]  # fixtures


@needs_cupy
def test_the_tanh_instruction_keeps_its_promise():
    from tests.gpu import tanh_instruction

    table, relative = tanh_instruction.measured()
    assert 2.0**-24 < relative <= 2.0**-11
    assert table.max() <= 2.0**-11
    assert (table > 0).any()


@needs_cupy
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gelu_is_made_of_the_tanh_instruction(dtype):
    """Every kernel that is offered computes what the model does, but for the order of a few roundings."""
    import cupy

    from tests.gpu import tanh_instruction

    if dtype == "float16":
        x = np.arange(65536, dtype=np.uint16).view(np.float16)
        x = x[np.isfinite(x) & (abs(x) < 64)]
    else:
        x = np.linspace(-10, 10, 40960, dtype=dtype)
    x = x[: len(x) // 1024 * 1024]
    a, b = np.zeros((len(x), 64), dtype), np.zeros((64, 128), dtype)
    a[:, 0], b[0] = x, 1
    want, want_slope = tanh_instruction.model(x.astype("f4"))
    u, store = 2.0**-24, unit_roundoff(dtype)
    # Seven roundings move v by 7 u |v| at most, and one piece of the instruction's table meets the next with a step,
    # so the model is given the same freedom by asking it at v's neighbours: a few units in the last place of x.
    near = [tanh_instruction.model((x * (1 + step * u)).astype("f4")) for step in range(-8, 9, 2)]
    low, high = (f([n[0] for n in near], axis=0) for f in (np.min, np.max))
    low_slope, high_slope = (f([n[1] for n in near], axis=0) for f in (np.min, np.max))
    a, b = cupy.asarray(a), cupy.asarray(b)
    options = {"compute_type": "32f"} if dtype == "float32" else {}
    _, aux = fused_matmul(a, b, activation="gelu", aux=True, **options)
    ones = cupy.zeros_like(a)
    ones[:, 0] = 1
    for left, epilog, inputs, bounds in (
        (a, "GELU", {}, (want, low, high)),
        (ones, "DGELU", {"gelu_aux": aux}, (want_slope, low_slope, high_slope)),
    ):
        with FusedMatmul(left, b, epilog=epilog, epilog_inputs=inputs, **options) as mm:
            lt = mm.plan()._prepared.plan.lt
            for one in lt.candidates(8):
                lt.use(one["algo"].tobytes(), int(one["workspace_size"]))
                mm._bind()
                got = cupy.asnumpy(mm.execute()[:, 0]).astype(float)
                middle, least, most = bounds
                slack = 16 * u * np.maximum(abs(x.astype(float)), 1) * np.maximum(abs(middle), 1)
                slack = slack + store * abs(middle) + (2.0**-25 if dtype == "float16" else 0.0)
                assert (got >= least - slack).all()
                assert (got <= most + slack).all()


@needs_cupy
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mlp_element_by_element(rng, activation, dtype):
    import cupy

    for sizes in ([16, 64, 30, 8], [256, 512, 264, 8], [1, 30, 1, 5], [8, 1, 3]):
        mlp = FusedMLP(sizes, activation=activation, dtype=dtype, package_name="cupy", seed=int(rng.integers(2**31)))
        for lead in ((1,), (17,), (2, 65)):
            x, dy = rng.standard_normal((*lead, sizes[0])), rng.standard_normal((*lead, sizes[-1]))
            x, dy = cupy.asarray(x.astype(dtype)), cupy.asarray(dy.astype(dtype))
            own = functools.partial(own_error, kind=dtype)
            host = lambda a: cupy.asnumpy(a).astype(float)  # noqa: E731
            check_mlp(mlp, activation, dtype, x, dy, host, own, product_rounded=True)


@needs_cupy
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_single_layer_backward(rng, activation):
    import cupy

    ours = FusedLinear(48, 30, activation=activation, dtype="float32", package_name="cupy", compute_type="32f")
    host = FusedLinear(48, 30, activation=activation, dtype="float64")
    host.weight, host.bias = (cupy.asnumpy(p).astype(float) for p in (ours.weight, ours.bias))
    for turn in range(4):  # from the second time on, and again after a new weight, the short way is taken
        if turn == 2:
            host.weight = host.weight * -2
            ours.weight = cupy.asarray(host.weight.astype("f4"))
        x, dy = rng.standard_normal((2, 9, 48)).astype("f4"), rng.standard_normal((2, 9, 30)).astype("f4")
        wide, flat = x.reshape(-1, 48).astype(float), abs(dy.reshape(-1, 30).astype(float))
        z = wide @ host.weight.T + host.bias
        own = own_error(z, "float32") if activation == "gelu" else np.zeros_like(z)
        y, want = ours.forward(cupy.asarray(x)), host.forward(x.astype(float))
        assert np.linalg.norm(cupy.asnumpy(y) - want) <= 1e-5 * np.linalg.norm(want) + np.linalg.norm(own)
        # The derivative is this package's own, in which tanh is exact to the last places.
        own = flat * (gelu_error(z, "float32", derivative=True, tanh=exact_tanh) if activation == "gelu" else 0.0)
        spread = (own @ abs(host.weight), own.T @ abs(wide), own.sum(0))
        gradients = ours.backward(cupy.asarray(dy)), host.backward(dy.astype(float))
        for one, other, off in zip(*gradients, spread, strict=True):
            assert one.shape == other.shape
            assert np.linalg.norm(cupy.asnumpy(one) - other) <= 1e-5 * np.linalg.norm(other) + np.linalg.norm(off)
    (call,) = ours._calls.values()
    assert call.backward is not None
