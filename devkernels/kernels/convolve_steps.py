"""What kernels of convolution share: the user's functions on samples, and two real rows in a complex one kept apart.

in: a `BlockFFT`. out: device functions over a thread's local array; `finish` makes a kernel of a function.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine.block_fft import BlockFFT
from devkernels.launch.jit import kernel
from devkernels.lazy import cuda
from devkernels.target import simulating


def each_sample(fft: BlockFFT, function: Callable | None, part: str, pitch: int = 1, wraps: bool = False) -> Callable:
    """Device function ``f(data, row, position, length)``: samples through the user's ``f(value, row, position)``.

    Slot e holds, in the given part of its complex number, sample ``position + offsets[e] * pitch`` of a row; those
    outside of the row are left alone, or with `wraps` those before it are the last ones.
    """
    if function is None:

        def nothing(data, row, position, length):
            return None

        return device_function(nothing)
    function, elements, step = device_function(function), fft.elements_per_thread, fft.stride * pitch
    scalar = fft.dtype.type
    real = np.float32 if fft.dtype == np.complex64 else np.float64

    def apply(data, row, position, length):
        for e in range(elements):
            place = position + e * step
            if wraps and place < 0:
                place += length
            if place >= 0 and place < length:
                if part == "both":
                    data[e] = scalar(function(data[e], row, place))
                elif part == "real":
                    data[e] = complex(real(function(data[e].real, row, place)), data[e].imag)
                else:
                    data[e] = complex(data[e].real, real(function(data[e].imag, row, place)))

    return device_function(apply)


def vote(fft: BlockFFT) -> Callable:
    """Device function ``f(flag)``: whether any thread that meets this one at the transform's barriers has the flag."""
    barriers = {exchange.barrier for exchange in fft.plan.exchanges}
    if not barriers:

        def any_of_them(flag):
            return flag
    elif "block" in barriers or fft.stride * fft.ffts_per_block % 32 or simulating():

        def any_of_them(flag):
            return cuda.syncthreads_or(np.int32(flag)) != 0
    else:

        def any_of_them(flag):
            return cuda.any_sync(0xFFFFFFFF, flag)

    return device_function(any_of_them)


def apart(fft: BlockFFT) -> Callable:
    """Device function ``f(data)`` that keeps the two rows of a complex one apart.

    What is not finite in a row is taken for zero, lest it spoil the other; the result says for which row of this thread
    that was so: bit 0 the real parts, bit 1 the imaginary ones.
    """
    any_of_them, elements, per_block = vote(fft), fft.elements_per_thread, fft.ffts_per_block
    zero = np.float32(0) if fft.dtype == np.complex64 else np.float64(0)

    def separate(data):
        first, second = zero, zero
        for e in range(elements):  # zero, unless one of the values is not finite
            first += data[e].real * zero
            second += data[e].imag * zero
        found = (1 if first != 0 else 0) | (2 if second != 0 else 0)
        mark = 0
        if any_of_them(found != 0):
            for row in range(per_block):
                mine = cuda.threadIdx.y == row
                bad_first, bad_second = any_of_them(mine and found & 1 != 0), any_of_them(mine and found & 2 != 0)
                if mine:
                    mark = (1 if bad_first else 0) | (2 if bad_second else 0)
            for e in range(elements):
                re, im = data[e].real, data[e].imag
                data[e] = complex(re if re - re == 0 else zero, im if im - im == 0 else zero)
        return mark

    return device_function(separate)


def spoiler(fft: BlockFFT) -> Callable:
    """Device function ``f(data, mark)``: NaN in the real parts (bit 0), or the imaginary ones (bit 1)."""
    elements = fft.elements_per_thread
    nan = np.float32(np.nan) if fft.dtype == np.complex64 else np.float64(np.nan)

    def spoil(data, mark):
        for e in range(elements):
            data[e] = complex(nan if mark & 1 else data[e].real, nan if mark & 2 else data[e].imag)

    return device_function(spoil)


def finish(fft: BlockFFT, function: Callable):
    """The kernel of a function that runs in the transform's blocks."""
    return kernel(function, **fft.kernel_options)
