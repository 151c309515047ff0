"""The bounds on cuBLASLt's GELU, against its arithmetic written out in NumPy: never exceeded, and nearly reached."""

import numpy as np
import pytest

from devkernels.tolerance import gelu_error, tanh_error
from tests.unit.linear_support import gelu, gelu_slope

X = np.concatenate([np.linspace(-12, 12, 48001), np.geomspace(1e-8, 1, 2000), -np.geomspace(1e-8, 1, 2000)])


def model(x, dtype, tanh, *, derivative):
    """GELU as cuBLASLt computes it: constants of eight and ten digits, each step rounded to `dtype`."""
    s, c, three = (dtype(value) for value in (0.79788456, 0.044715, 0.1070322243))
    one, half = dtype(1), dtype(0.5)
    t = tanh(s * x * (one + c * x * x))
    if not derivative:
        return half * x * (one + t)
    return half * x * ((one - t * t) * (s + three * x * x)) + half * (one + t)


def skewed(relative):
    """Tanh of float32 that is off by as much as 2^-11, its rounding included, times `relative`."""

    def tanh(v):
        t = np.tanh(v.astype(np.float64))
        return np.clip(t * (1 + relative * (2.0**-11 - 2.0**-24)), -1, 1).astype(np.float32)

    return tanh


@pytest.mark.parametrize("derivative", [False, True])
def test_float64(derivative):
    want = (gelu_slope if derivative else gelu)(X)
    off = abs(model(X, np.float64, np.tanh, derivative=derivative) - want)
    bound = gelu_error(X, "float64", derivative=derivative)
    assert (off <= bound).all()
    assert bound.max() <= 1.01 * off.max()  # the digits of the constant are most of it
    assert off.max() == pytest.approx(3.079e-10 if derivative else 2.559e-10, rel=1e-3)  # what an H200 shows


@pytest.mark.parametrize("derivative", [False, True])
@pytest.mark.parametrize("shape", ["up", "down", "waves", "exact"])
def test_float32(rng, derivative, shape):
    x = X.astype(np.float32)
    relative = {"up": 1.0, "down": -1.0, "exact": 0.0, "waves": np.sin(100 * X)}[shape]
    reference = gelu_slope if derivative else gelu
    off = abs(model(x, np.float32, skewed(relative), derivative=derivative).astype(float) - reference(x.astype(float)))
    assert (off <= gelu_error(x, "float32", derivative=derivative)).all()
    if shape == "down":
        assert gelu_error(x, "float32", derivative=derivative).max() <= 1.1 * off.max()
    if shape == "exact":
        bound = gelu_error(x, "float32", derivative=derivative, tanh=lambda v: 2.0**-24 * abs(np.tanh(v)))
        assert (off <= bound).all()
        assert bound[abs(x) < 3].max() <= 20 * off[abs(x) < 3].max()


def test_a_table_of_tanh_serves_as_well_as_a_formula():
    steps = np.arange(0, 16, 1 / 16)
    table = tanh_error("float32")(steps + 1 / 16)
    from_table = gelu_error(X, "float32", tanh=lambda v: table[np.minimum((abs(v) * 16).astype(int), 255)])
    formula = gelu_error(X, "float32")
    assert (from_table >= formula * 0.999).all()
    assert (from_table <= formula * 1.5)[abs(X) > 0.2].all()
