"""Error bounds for transforms and products: they know the precision and grow with the work, never by hand.

Used by tests, examples and the bench. All bounds are for ``norm(got - want) / norm(want)`` against a float64
reference.
"""

from __future__ import annotations

import math

import numpy as np

_EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def unit_roundoff(precision: object) -> float:
    """Largest relative error of one rounding in `precision` (float16, float32, float64, or their complex kin)."""
    name = str(precision) if str(precision) in _EPSILON else np.dtype(precision).name
    name = {"complex64": "float32", "complex128": "float64"}.get(name, name)
    return _EPSILON[name]


def fft_bound(precision: object, size: int, transforms: int = 1) -> float:
    """Bound on the relative L2 error of `transforms` FFTs of `size` points one after another.

    The root-mean-square error of a mixed-radix FFT grows like eps * sqrt(log2 N), its worst case like
    eps * log2 N (Higham, Accuracy and Stability of Numerical Algorithms, section 24.1). The worst-case form is
    used, plus two roundings for input and output; the factor 2 covers the larger constants of odd radices.
    """
    return unit_roundoff(precision) * (2.0 + 2.0 * transforms * math.log2(max(size, 2)))


def product_bound(accumulate: object, store: object, length: int) -> float:
    """Bound on the relative L2 error of inner products of `length` terms, accumulated and stored so."""
    return unit_roundoff(accumulate) * (4.0 + 2.0 * math.sqrt(max(length, 1))) + 2.0 * unit_roundoff(store)


def gelu_bound(accumulate: object, *, derivative: bool = False) -> float:
    """Bound on the absolute error of cuBLASLt's GELU, or of its derivative, beside the error of its input.

    cuBLASLt writes the constant sqrt(2 / pi) with eight digits and computes the tanh of float32 with the GPU's fast
    exponential. Measured on an H200 with cuBLASLt 13.1 for inputs from -4 to 4: 4.9e-6 (float32) and 2.6e-10
    (float64), of the derivative 1.6e-5 and 3.1e-10. The bounds are the next powers of two.
    """
    if unit_roundoff(accumulate) < 2.0**-24:
        return 2.0**-31
    return 2.0**-15 if derivative else 2.0**-17


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """``norm(got - want) / norm(want)`` in float64; NaN anywhere in `got` gives NaN, which passes no bound."""
    wide = np.complex128 if np.iscomplexobj(want) or np.iscomplexobj(got) else np.float64
    got, want = np.asarray(got, dtype=wide), np.asarray(want, dtype=wide)
    scale = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / (scale if scale > 0 else 1.0)
