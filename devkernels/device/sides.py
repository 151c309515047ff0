"""The two sides of a transform: what one element of the input or the output is, in a slot and in a global array.

In: a `DeviceFFT` and ``"input"`` or ``"output"``. Out: words and dtypes, the same for the simulator and compiled loops.
"""

from __future__ import annotations

import numpy as np


def side_kind(fft, side: str) -> str:
    """``complex``, ``real`` (normal mode) or ``pair`` (folded mode): what one slot of this side holds."""
    if (fft.spec.fft_type, side) not in (("r2c", "input"), ("c2r", "output")):
        return "complex"
    return "real" if fft.spec.real_mode == "normal" else "pair"


def row_length(fft, side: str) -> int:
    """Elements of one row on this side."""
    return fft.input_length if side == "input" else fft.output_length


def row_type(fft, side: str) -> tuple[np.dtype, int]:
    """Dtype and number of axes of the global array on this side."""
    is_complex = side_kind(fft, side) == "complex"
    if fft.spec.precision == "float16":
        return np.dtype(np.float16), 3 if is_complex else 2
    names = {"float32": ("float32", "complex64"), "float64": ("float64", "complex128")}
    return np.dtype(names[fft.spec.precision][is_complex]), 2
