"""Running error bounds for a chain of layers: element by element, from the arithmetic alone, nothing measured.

in: a `FusedMLP` that has run forward, and how to bring its arrays to the host as float64.  out: assertions.

The input of ReLU may come out on the other side of zero than in float64, and the gradient of that element then differs
by all of itself. So the reference is not a second forward pass: each layer is followed in float64 from the input that
it was really given, the mask must be right wherever the sign is beyond doubt, and the gradients are those of the mask
that was really kept. Bounds are carried along (Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1
and 3.3): a sum of k products is off by (k + 2) u times the sum of their magnitudes in any order; u is doubled, since
tensor cores cut off where others round.
"""

from __future__ import annotations

import numpy as np

from devkernels.tolerance import gelu_error, unit_roundoff
from tests.unit.linear_support import gelu, gelu_slope

# Half the distance of the numbers around zero: what rounding to the dtype costs at least.
_SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150, "float64": 0.0}
GELU_LIPSCHITZ = 1.13  # largest slope of GELU


class Bounds:
    """Roundings of one dtype with its accumulate precision."""

    def __init__(self, dtype: str):
        self.accumulate = "float64" if dtype == "float64" else "float32"
        self.u, self.small = unit_roundoff(dtype), _SMALLEST[dtype]

    def sum_of(self, terms: int) -> float:
        return 2.0 * (terms + 2) * unit_roundoff(self.accumulate)

    def numpy_gelu(self, z, derivative=False):
        """With a tanh that is exact to two units in the last place."""
        exact = lambda v: 4.0 * unit_roundoff(self.accumulate) * abs(np.tanh(v))  # noqa: E731
        return gelu_error(z, self.accumulate, derivative=derivative, tanh=exact)

    def stored(self, value, times: int = 1):
        """Of rounding `value` to the dtype, `times` times."""
        return times * (1.01 * self.u * abs(value) + self.small)


def expect(what: str, got, want, error) -> None:
    """Assert that all elements of `got` are within `error` of `want`; NaN never is."""
    good = abs(got - want) <= error * 1.001
    if not good.all():
        off = np.where(good, 0.0, abs(got - want) / np.maximum(error, 1e-300))
        at = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape)
        raise AssertionError(
            f"{what}: {(~good).sum()} of {good.size} elements of {got.shape} are off, worst at {at}: got {got[at]!r}, "
            f"want {want[at]!r} within {np.broadcast_to(error, got.shape)[at]!r}"
        )


def check_mlp(mlp, activation: str, dtype: str, x, dy, host, own_error=None, product_rounded: bool = False) -> None:
    """Run a `FusedMLP` forward and backward; x and dy are its arrays, ``host(array)`` makes float64 of them.

    ``own_error(z, derivative=...)`` bounds the error of GELU beside that of its input; NumPy's, if not given.
    With `product_rounded`, the product may be rounded to the dtype before the bias is added: some kernels of cuBLASLt
    do that (a single row of 64 times 64 x 30 on an H200, where all results are multiples of the product's last place).
    """
    bounds = Bounds(dtype)
    own_error = own_error or bounds.numpy_gelu
    y = mlp.forward(x)
    kept = list(mlp._last)
    layers = list(mlp)
    inputs = [host(one.x) for one in kept]
    weights = [(host(layer.weight), host(layer.bias)) for layer in layers]
    masks = [None if one.mask is None else host(one.mask.unpack()) for one in kept]
    results = [*inputs[1:], host(y).reshape(len(inputs[0]), -1)]
    for index, (h, (w, b), got) in enumerate(zip(inputs, weights, results, strict=True)):
        where = f"{len(h)} tokens, layer {index} ({w.shape[1]} to {w.shape[0]}):"
        z = h @ w.T + b
        error = bounds.sum_of(h.shape[1]) * (abs(h) @ abs(w).T + abs(b))
        if product_rounded:
            error = error + bounds.stored(h @ w.T)
        if index == len(layers) - 1:
            want = z
        elif activation == "relu":
            want = np.maximum(z, 0)
            assert ((masks[index] == (z > 0)) | (abs(z) <= error)).all(), where
        else:
            want = gelu(z)
            expect(f"{where} input of GELU", masks[index], z, error + bounds.stored(z))
            error = GELU_LIPSCHITZ * error + own_error(z)
        expect(f"{where} result", got, want, error + bounds.stored(abs(want) + error))
    dx, gradients = mlp.backward(dy)
    dz = host(dy).reshape(len(inputs[0]), -1)
    error = np.zeros_like(dz)
    for index in range(len(layers) - 1, -1, -1):
        h, (w, b) = inputs[index], weights[index]
        where = f"{len(h)} tokens, layer {index} ({w.shape[1]} to {w.shape[0]}):"
        largest = abs(dz) + error
        dw, db = (host(one) for one in gradients[index])
        over_tokens = bounds.sum_of(len(h))
        want, spread = dz.T @ h, error.T @ abs(h) + over_tokens * (largest.T @ abs(h))
        expect(f"{where} weight gradient", dw, want, spread + bounds.stored(abs(want) + spread))
        want, spread = dz.sum(0), error.sum(0) + over_tokens * largest.sum(0)
        expect(f"{where} bias gradient", db, want, spread + bounds.stored(abs(want) + spread))
        v, spread = dz @ w, error @ abs(w) + bounds.sum_of(w.shape[0]) * (largest @ abs(w))
        if index:
            slope, off = masks[index - 1].astype(float), 0.0
            if activation == "gelu":
                slope, off = gelu_slope(slope), own_error(slope, derivative=True)
            spread = spread * (abs(slope) + off) + abs(v) * off
            v = v * slope
        # Twice: where there is no fused kernel, the product is rounded before the slope multiplies it.
        dz, error = v, spread + bounds.stored(abs(v) + spread, 2)
    expect(f"{where} input gradient", host(dx).reshape(dz.shape), dz, error)
