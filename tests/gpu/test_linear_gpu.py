"""devkernels.linear on a GPU, with CuPy and torch: every epilog against float64, layouts, batches, edges."""

import itertools

import numpy as np
import pytest

from devkernels.linear import (
    Epilog,
    FusedMatmul,
    fused_matmul,
)
from devkernels.tolerance import product_bound, relative_error, unit_roundoff
from tests.gpu.linear_device import (
    KINDS,
    SHAPES,
    bound,
    dtype_of,
    gpu,
    make,
    needs_nvmath,
    options,
    own_cache,
    own_error,
)
from tests.unit.linear_support import forward_reference, gelu_slope

pytestmark = needs_nvmath
__all__ = ["gpu", "own_cache"]  # fixtures


@pytest.mark.parametrize(
    ("kind", "activation"), [*itertools.product(KINDS[:-1], [None, "relu", "gelu"]), ("complex64", None)]
)
@pytest.mark.parametrize("axis", [None, "n", "m1"])
def test_forward(gpu, rng, kind, activation, axis):
    for (m, n, k), aux in itertools.product(SHAPES, [False, True] if activation else [False]):
        a, b = make(gpu, rng, (m, k), kind), make(gpu, rng, (n, k), kind)
        bias = None if axis is None else make(gpu, rng, {"n": (n,), "m1": (m, 1)}[axis], kind)
        want, z, parts = forward_reference(gpu.get(a), gpu.get(b).T, activation=activation,
                                    bias=0.0 if bias is None else gpu.get(bias))  # fmt: skip
        out = gpu.nan((m, n), dtype_of(kind))
        got = fused_matmul(a, b.T, bias=bias, activation=activation, aux=aux, out=out, **options(kind))
        mask = got[1] if aux else None
        limit = 2 * bound(kind, k) * np.linalg.norm(parts)
        own = np.linalg.norm(own_error(z, kind)) if activation == "gelu" else 0.0
        assert np.linalg.norm(gpu.get(out) - want) <= limit + own
        if mask is None:
            continue
        told = gpu.get(mask.unpack())
        if activation == "relu":
            sure = abs(z) > 4 * bound(kind, k) * parts
            assert ((told == (z > 0)) | ~sure).all()
            assert ((told == (gpu.get(out) > 0)) | ~sure).all()
        else:
            assert np.linalg.norm(told - z) <= limit


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("epilog", ["DRELU", "DRELU_BGRAD", "DGELU", "DGELU_BGRAD"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_backward(gpu, rng, kind, epilog, batch):
    activation = "relu" if "RELU" in epilog else "gelu"
    for m, n, k in SHAPES:
        x, w = make(gpu, rng, (*batch, m, k), kind), make(gpu, rng, (*batch, k, n), kind)
        _, mask = fused_matmul(x, w, activation=activation, aux=True, **options(kind))
        kept = gpu.get(mask.unpack())
        slope = kept.astype(float) if activation == "relu" else gelu_slope(kept)
        g, v = make(gpu, rng, (*batch, m, k), kind), make(gpu, rng, (*batch, k, n), kind)
        product = gpu.get(g) @ gpu.get(v)
        mm = FusedMatmul(g, v, epilog=epilog, epilog_inputs={f"{activation}_aux": mask}, allow_unfused=True,
                         **options(kind)).plan()  # fmt: skip
        got = mm.execute()
        got, extra = got if "BGRAD" in epilog else (got, {})
        limit = 3 * bound(kind, k)
        own = abs(product) * own_error(kept, kind, derivative=True) if activation == "gelu" else np.zeros_like(product)
        assert np.linalg.norm(gpu.get(got) - product * slope) <= limit * np.linalg.norm(product) + np.linalg.norm(own)
        if extra:
            sums = gpu.get(extra[epilog.lower()])
            want = (product * slope).sum(-2)
            assert sums.shape == want.shape
            size = np.linalg.norm(abs(product).sum(-2))
            assert np.linalg.norm(sums - want) <= limit * size + np.linalg.norm(own.sum(-2))


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize(("t_a", "t_b"), [(x, y) for x in (False, True) for y in (False, True)])
def test_gradients_of_the_operands(gpu, rng, kind, t_a, t_b):
    for m, n, k in [(30, 20, 65), (128, 64, 256), (5, 3, 1)]:
        a = gpu.turn(make(gpu, rng, (k, m), kind)) if t_a else make(gpu, rng, (m, k), kind)
        b = gpu.turn(make(gpu, rng, (n, k), kind)) if t_b else make(gpu, rng, (k, n), kind)
        for epilog, axis, source in (("BGRADA", 1, a), ("BGRADB", 0, b)):
            mm = FusedMatmul(a, b, epilog=epilog, allow_unfused=True, **options(kind)).plan()
            out, extra = mm.execute()
            assert relative_error(gpu.get(out), gpu.get(a) @ gpu.get(b)) <= 2 * bound(kind, k)
            want, size = gpu.get(source).sum(axis), np.linalg.norm(abs(gpu.get(source)).sum(axis))
            assert np.linalg.norm(gpu.get(extra[epilog.lower()]) - want) <= 2 * bound(kind, k) * size


@pytest.mark.parametrize(("t_a", "t_b"), [(x, y) for x in (False, True) for y in (False, True)])
@pytest.mark.parametrize("lead", [((), ()), ((4,), (4,)), ((2, 3), ()), ((), (2, 3))])
def test_views_batches_and_parts(gpu, rng, t_a, t_b, lead):
    m, n, k = 24, 40, 16
    a = make(gpu, rng, (*lead[0], k, m) if t_a else (*lead[0], m, k), "float16")
    b = make(gpu, rng, (*lead[1], n, k) if t_b else (*lead[1], k, n), "float16")
    a, b = gpu.turn(a) if t_a else a, gpu.turn(b) if t_b else b
    bias = make(gpu, rng, (n,), "float16")
    want, _, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="relu")
    whole = gpu.nan((*want.shape[:-1], n + 8), "float16")
    fused_matmul(a, b, bias=bias, activation="relu", out=whole[..., :n])
    got = gpu.get(whole)
    assert np.linalg.norm(got[..., :n] - want) <= 2 * bound("float16", k) * np.linalg.norm(parts)
    assert np.isnan(got[..., n:]).all()
    one_off = fused_matmul(a[..., 1:, :], b[..., 1:], bias=bias[1:])  # pointers that are aligned to 2 bytes only
    want, _z, parts = forward_reference(gpu.get(a)[..., 1:, :], gpu.get(b)[..., 1:], bias=gpu.get(bias)[1:])
    assert np.linalg.norm(gpu.get(one_off) - want) <= 2 * bound("float16", k) * np.linalg.norm(parts)


@pytest.mark.parametrize("beta", [None, 0.5])
@pytest.mark.parametrize("axis", [None, "n", "m1"])
def test_c_alpha_beta(gpu, rng, beta, axis):
    m, n, k = 24, 40, 16
    a, b, c = (make(gpu, rng, s, "float32") for s in ((m, k), (k, n), (m, n)))
    bias = None if axis is None else make(gpu, rng, {"n": (n,), "m1": (m, 1)}[axis], "float32")
    weights = {"alpha": -1.5, "beta": 1.0 if beta is None else beta}
    host_bias = 0.0 if bias is None else gpu.get(bias)
    want, _, parts = forward_reference(gpu.get(a), gpu.get(b), c=gpu.get(c), bias=host_bias, **weights)
    got = fused_matmul(a, b, c=c, alpha=-1.5, beta=beta, bias=bias, compute_type="32f")
    assert np.linalg.norm(gpu.get(got) - want) / np.linalg.norm(parts) <= 3 * bound("float32", k)
    assert fused_matmul(a, b, c=c, alpha=-1.5, beta=beta, bias=bias, out=c, compute_type="32f") is c
    assert np.linalg.norm(gpu.get(c) - want) / np.linalg.norm(parts) <= 3 * bound("float32", k)


def test_the_published_examples(gpu, rng):
    m, n, k = 1024, 512, 2048
    a, b, bias = (make(gpu, rng, s, "float16") for s in ((m, k), (k, n), (m, 1)))
    mm = FusedMatmul(a, b, allow_unfused=True)
    mm.plan(epilog="RELU_BIAS", epilog_inputs={"bias": bias}, options={"compute_type": "COMPUTE_32F_FAST_16F"})
    want, _, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="relu")
    assert np.linalg.norm(gpu.get(mm.execute()) - want) <= 2 * bound("float16", k) * np.linalg.norm(parts)
    mm.free()
    a, b, bias = (make(gpu, rng, s, "float32") for s in ((m, k), (k, n), (1, n)))
    mm = FusedMatmul(a, b, options={"compute_type": "COMPUTE_32F_FAST_16F"})
    mm.plan(epilog="RELU_BIAS", epilog_inputs={"bias": bias})
    want, _z, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="relu")
    limit = 2 * (product_bound("float32", "float32", k) + 2 * unit_roundoff("float16"))
    assert np.linalg.norm(gpu.get(mm.execute()) - want) <= limit * np.linalg.norm(parts)
    mm.free()


def test_nvmath_enumerators_are_understood(gpu, rng):
    from nvmath.linalg.advanced import MatmulEpilog

    assert {e.name: int(e) for e in MatmulEpilog} == {e.name: int(e) for e in Epilog}
    a, b = make(gpu, rng, (8, 16), "float16"), make(gpu, rng, (16, 8), "float16")
    mm = FusedMatmul(a, b).plan(epilog=MatmulEpilog.RELU)
    assert mm.fused
    assert gpu.get(mm.execute()).min() >= 0


def test_relu_of_zero_minus_zero_and_nan(gpu):
    """The corner cases of the mask and of ReLU are what the NumPy meaning says."""
    a = gpu.put(np.array([[0.0], [-0.0], [1.0], [-1.0], [np.inf], [-np.inf], [np.nan]], "float32"))
    b = gpu.put(np.ones((1, 8), "float32"))
    out, mask = fused_matmul(a, b, activation="relu", aux=True)
    host, host_mask = fused_matmul(gpu.get(a).astype("f4"), np.ones((1, 8), "f4"), activation="relu", aux=True)
    assert np.array_equal(gpu.get(out), host, equal_nan=True)
    assert np.array_equal(gpu.get(mask.unpack()), host_mask.unpack())
    assert np.array_equal(gpu.get(mask.raw())[:, :1], host_mask.raw()[:, :1])
