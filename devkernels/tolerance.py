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


_GELU_SCALE, _GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715
# cuBLASLt writes sqrt(2 / pi) with eight digits and, in the derivative, three times its product with 0.044715 with ten.
_SCALE_OFF, _CUBIC_OFF = 0.79788456 - _GELU_SCALE, 0.1070322243 - 3 * _GELU_CUBIC * _GELU_SCALE
_SECOND_ORDER = 1.0 + 2.0**-8  # of errors of up to 2^-11


def tanh_error(accumulate: object):
    """What the manufacturer promises of the tanh inside cuBLASLt's GELU: a function from v to its absolute error.

    float64: two units in the last place (CUDA C++ Programming Guide, mathematical functions). Below that, GELU uses the
    instruction ``tanh.approx.f32``, whose relative error is at most 2^-11 (PTX ISA); what it is on one kind of GPU can
    be found by trying all inputs, as the GPU tests do.
    """
    relative = 4.0 * unit_roundoff("float64") if unit_roundoff(accumulate) < 2.0**-24 else 2.0**-11
    return lambda v: relative * np.abs(np.tanh(v))


def gelu_error(x, accumulate: object, *, derivative: bool = False, tanh=None) -> np.ndarray:
    """Bound on the absolute error of cuBLASLt's GELU at `x`, or of its derivative, for each element.

    ``gelu(x) = x / 2 * (1 + t)`` with ``t = tanh(v)`` and ``v = s x (1 + c x^2)``, in the precision `accumulate`. First
    order in what is wrong with s, with each rounding (seven in v, constants included), and with tanh itself.

    Parameters
    ----------
    x : array
        Inputs of GELU.
    accumulate : {"float32", "float64"}
        Precision that it is computed in.
    derivative : bool
        Of ``(1 + t) / 2 + x / 2 * (1 - t^2) * w`` with ``w = s (1 + 3 c x^2)`` instead.
    tanh : callable, optional
        From v to the absolute error of tanh; what is documented, if not given (see `tanh_error`).

    Notes
    -----
    The error of `x` itself, and the rounding of the result to its dtype, come on top.
    """
    x = np.asarray(x, np.float64)
    u = unit_roundoff(accumulate)
    inner = x * (1.0 + _GELU_CUBIC * x * x)
    v = _GELU_SCALE * inner
    t = np.tanh(v)
    flat = 1.0 / np.cosh(np.minimum(np.abs(v), 300.0)) ** 2  # 1 - t^2, without the cancellation
    off = flat * 7.0 * u * np.abs(v) + (tanh or tanh_error(accumulate))(v)  # of t, but for the digits of s
    if not derivative:
        digits = 0.5 * x * flat * inner * _SCALE_OFF
        return _SECOND_ORDER * (np.abs(digits) + 0.5 * np.abs(x) * (off + 3.0 * u * (1.0 + t)))
    w = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * x * x)
    by_t, half = 0.5 - x * t * w, 0.5 * np.abs(x)
    digits = by_t * flat * inner * _SCALE_OFF + 0.5 * x * flat * (_SCALE_OFF + _CUBIC_OFF * x * x)
    rounding = half * flat * 7.0 * u * w + half * w * 2.0 * u * t * t + 2.0 * u * (1.0 + t)
    return _SECOND_ORDER * (np.abs(digits) + np.abs(by_t) * off + rounding)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """``norm(got - want) / norm(want)`` in float64; NaN anywhere in `got` gives NaN, which passes no bound."""
    wide = np.complex128 if np.iscomplexobj(want) or np.iscomplexobj(got) else np.float64
    got, want = np.asarray(got, dtype=wide), np.asarray(want, dtype=wide)
    scale = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / (scale if scale > 0 else 1.0)
