"""FusedLinear and FusedMLP against float64 and against finite differences, on NumPy and through descriptors."""

import numpy as np
import pytest

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.linear import FusedLinear, FusedMLP
from devkernels.tolerance import relative_error
from tests.unit.linear_bounds import check_mlp
from tests.unit.linear_support import enter_world, forward_reference, gelu_slope


@pytest.fixture(params=["numpy", "lt"], autouse=True)
def world(request, monkeypatch, tmp_path):
    return enter_world(monkeypatch, tmp_path, request.param)


def adopt(layer):
    """Let a layer made for NumPy work in the world of this test."""
    from devkernels.linear.arrays import arrays_of

    for one in layer.layers if isinstance(layer, FusedMLP) else [layer]:
        one.arrays = arrays_of(one.weight)
        one.device = one.arrays.describe(one.weight).device
    return layer


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("lead", "n", "k"), [((6,), 30, 7), ((1,), 1, 1), ((2, 3), 5, 1), ((4,), 1, 9)])
def test_gradients(rng, activation, bias, lead, n, k):
    layer = adopt(FusedLinear(k, n, activation=activation, bias=bias, dtype="float64", seed=1))
    x, dy = rng.standard_normal((*lead, k)), rng.standard_normal((*lead, n))
    want, z, _parts = forward_reference(x, layer.weight.T, bias=layer.bias if bias else 0.0, activation=activation)
    y = layer.forward(x)
    assert y.shape == want.shape
    assert np.allclose(y, want, rtol=1e-12, atol=1e-12)
    slope = {None: 1.0, "relu": (z > 0) * 1.0, "gelu": gelu_slope(z)}[activation]
    dz = (dy * slope).reshape(-1, n)
    got = layer.backward(dy)
    assert np.allclose(got.input, (dz @ layer.weight).reshape(x.shape), rtol=1e-12, atol=1e-12)
    assert np.allclose(got.weight, dz.T @ x.reshape(-1, k), rtol=1e-12, atol=1e-12)
    if bias:
        assert np.allclose(got.bias, dz.sum(0), rtol=1e-12, atol=1e-12)
    else:
        assert got.bias is None


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mlp_element_by_element(rng, activation, dtype):
    for sizes in ([16, 64, 30, 8], [1, 30, 1, 5], [8, 1, 3]):
        mlp = adopt(FusedMLP(sizes, activation=activation, dtype=dtype, seed=int(rng.integers(2**31))))
        for lead in ((1,), (17,), (2, 9)):
            x, dy = rng.standard_normal((*lead, sizes[0])), rng.standard_normal((*lead, sizes[-1]))
            check_mlp(mlp, activation, dtype, x.astype(dtype), dy.astype(dtype), lambda a: a.astype(float))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_mlp_against_finite_differences(rng, activation):
    mlp = adopt(FusedMLP([5, 11, 30, 3], activation=activation, dtype="float64", seed=3))
    x, weigh = rng.standard_normal((7, 5)), rng.standard_normal((7, 3))
    loss = lambda: float((mlp.forward(x, training=False) * weigh).sum())  # noqa: E731
    mlp.forward(x)
    dx, gradients = mlp.backward(weigh)
    step = 1e-6
    pairs = [(x, dx)]
    for layer, (weight, bias) in zip(mlp, gradients, strict=True):
        pairs += [(layer.weight, weight), (layer.bias, bias)]
    for array, gradient in pairs:
        assert gradient.shape == array.shape
        for _ in range(4):
            at = tuple(int(rng.integers(s)) for s in array.shape)
            old = array[at]
            array[at] = old + step
            high = loss()
            array[at] = old - step
            low = loss()
            array[at] = old
            assert abs((high - low) / (2 * step) - gradient[at]) <= 1e-6 * max(1.0, abs(gradient[at]))


def test_weights_replaced_between_calls(rng):
    layer = adopt(FusedLinear(4, 6, activation="relu"))
    x = rng.standard_normal((3, 4), dtype="float32")
    layer.forward(x)
    layer.weight, layer.bias = rng.standard_normal((6, 4), dtype="float32"), rng.standard_normal(6, dtype="float32")
    want, *_ = forward_reference(x, layer.weight.T, bias=layer.bias, activation="relu")
    assert relative_error(layer.forward(x), want) < 1e-6
    layer.weight *= 2
    want, _, _parts = forward_reference(x, layer.weight.T, bias=layer.bias, activation="relu")
    assert relative_error(layer.forward(x), want) < 1e-6


def test_forward_and_backward_belong_together(rng):
    layer = adopt(FusedLinear(4, 6, activation="relu"))
    x = rng.standard_normal((3, 4), dtype="float32")
    with pytest.raises(ArgumentError, match="forward"):
        layer.backward(x)
    y, first = layer.forward_saving(x)
    _, second = layer.forward_saving(-x)
    one, two = layer.backward(y, first), layer.backward(y, second)
    assert not np.array_equal(one.weight, two.weight)
    with pytest.raises(ArgumentError, match="used"):
        layer.backward(y, first)
    other = adopt(FusedLinear(4, 6, activation="relu"))
    _, saved = layer.forward_saving(x)
    with pytest.raises(ArgumentError, match="saved"):
        other.backward(y, saved)
    with pytest.raises(ArgumentError, match="dy has shape"):
        layer.backward(y[:2], saved)
    assert layer.backward(y, saved).input.shape == (3, 4)
    layer.forward(x)
    layer.free()
    with pytest.raises(ArgumentError):
        layer.backward(y)


def test_wrong_arguments(rng):
    for wrong in (
        dict(in_features=0),
        dict(out_features=2.5),
        dict(activation="selu"),
        dict(package_name="torch"),
        dict(dtype="int8"),
        dict(dtype="float12"),
    ):
        with pytest.raises(SpecError):
            FusedLinear(**{"in_features": 3, "out_features": 4, **wrong})
    layer = adopt(FusedLinear(4, 6))
    with pytest.raises(ArgumentError, match="last axis"):
        layer.forward(np.ones((3, 5), "f4"))
    with pytest.raises(ArgumentTypeError):
        layer.forward([[1.0] * 4])
    with pytest.raises(SpecError):
        FusedMLP([4])


def aligned(values):
    """The same values at an address divisible by 256, as GPU allocators give them."""
    raw = np.empty(values.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_repeated_calls_take_the_short_way_and_mean_the_same(rng, world, activation, monkeypatch):
    layer = adopt(FusedLinear(8, 16, activation=activation, seed=1))
    layer.weight, layer.bias = aligned(layer.weight), aligned(layer.bias)
    slow = []
    monkeypatch.setattr(layer, "_learn", lambda *a, f=layer._learn: (slow.append(a), f(*a))[1])
    for turn in range(4):
        if turn == 2:
            layer.weight = aligned(rng.standard_normal((16, 8), dtype="float32"))
        layer.weight *= 1.5
        x, dy = (aligned(rng.standard_normal((2, 3, n), dtype="float32")) for n in (8, 16))
        want, z, _ = forward_reference(x, layer.weight.T, bias=layer.bias, activation=activation)
        assert relative_error(layer.forward(x), want) < 1e-5
        got = layer.backward(dy)
        slope = {None: 1.0, "relu": (z > 0) * 1.0, "gelu": gelu_slope(z)}[activation]
        dz = (dy * slope).reshape(6, 16)
        assert relative_error(got.input, (dz @ layer.weight).reshape(2, 3, 8)) < 1e-5
        assert relative_error(got.weight, dz.T @ x.reshape(6, 8)) < 1e-5
        out = aligned(np.full((2, 3, 16), np.nan, "float32"))
        assert layer.forward(x, out=out, training=False) is out
        assert relative_error(out, want) < 1e-5
        for wrong in (out[:1], out.astype("float64"), out.reshape(6, 16)):
            with pytest.raises(ArgumentError):
                layer.forward(x, out=wrong, training=False)
    assert len(slow) == (4 if world is not None else 8)  # first use and new weight; on NumPy there is no short way
