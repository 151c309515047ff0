"""Loads and stores of a device FFT's rows in NumPy, for Numba's CUDA simulator.

In: a `DeviceFFT`, a global array, and the thread data of one simulated thread. Out: elements in the places where a GPU
has them; what lies outside the array is read as zero and not written.
"""

from __future__ import annotations

import numpy as np

from devkernels.device.sides import row_type, side_kind
from devkernels.device.simulated import check_thread_data, columns, complex_dtype, get, put
from devkernels.errors import ArgumentTypeError


def check_rows(fft, x, side: str, name: str) -> None:
    """Raise ArgumentTypeError unless `x` can be one side of this transform."""
    wanted, axes = row_type(fft, side)
    if np.dtype(x.dtype) != wanted or len(x.shape) != axes:
        shape = "(rows, length)" if axes == 2 else "(rows, length, 2)"
        raise ArgumentTypeError(
            f"{name} has dtype {x.dtype} and {len(x.shape)} axes; this {side} needs {wanted} of shape {shape}.",
            spec=fft.spec,
        )


def _element(x, r: int, k: int, kind: str) -> complex:
    """Element k of row r of a global array, zero outside of it."""
    if not (0 <= r < x.shape[0]):
        return 0.0
    if kind == "complex":
        if k >= x.shape[1]:
            return 0.0
        return complex(x[r, k, 0], x[r, k, 1]) if len(x.shape) == 3 else x[r, k]
    if kind == "real":
        return x[r, k] if k < x.shape[1] else 0.0
    pair = [float(x[r, j]) if j < x.shape[1] else 0.0 for j in (2 * k, 2 * k + 1)]
    return complex(*pair)


def load(fft, x, r, thread_data) -> None:
    """See DeviceFFT.load."""
    check_rows(fft, x, "input", "x")
    check_thread_data(fft, thread_data)
    kind = side_kind(fft, "input")
    for slot, k in columns(fft, "input"):
        values = [_element(x, int(r) + b, k, kind) for b in range(fft.implicit_type_batching)]
        put(fft, thread_data, "input", slot, np.array(values, dtype=complex_dtype(fft)))


def store(fft, thread_data, y, r) -> None:
    """See DeviceFFT.store."""
    check_rows(fft, y, "output", "y")
    check_thread_data(fft, thread_data)
    kind = side_kind(fft, "output")
    for slot, k in columns(fft, "output"):
        for b, value in enumerate(get(fft, thread_data, "output", slot)):
            rr = int(r) + b
            if not (0 <= rr < y.shape[0]):
                continue
            if kind == "pair":
                for j, part in ((2 * k, value.real), (2 * k + 1, value.imag)):
                    if j < y.shape[1]:
                        y[rr, j] = part
            elif k < y.shape[1]:
                if kind == "real":
                    y[rr, k] = value.real
                elif len(y.shape) == 3:
                    y[rr, k, 0], y[rr, k, 1] = value.real, value.imag
                else:
                    y[rr, k] = value
