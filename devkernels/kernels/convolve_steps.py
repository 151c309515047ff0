"""What kernels of convolution share: a row's way through its filter, the user's functions, two real rows kept apart.

in: a `BlockFFT`. out: device functions over a thread's local array; `finish` makes a kernel of a function.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import uneven
from devkernels.engine.block_fft import BlockFFT
from devkernels.errors import SpecError
from devkernels.launch.jit import kernel
from devkernels.lazy import cuda
from devkernels.target import simulating


def line_of(fft: BlockFFT, spectra: bool = False) -> Callable:
    """Device function ``f() -> (first, line)``: a thread's first element in its transform, the transform's number.

    In uneven plans those of a spectrum are others than those of the row.
    """
    per_block, width = fft.ffts_per_block, fft.plan.width
    if fft.uneven:
        return uneven.line_of(fft.plan, len(fft.plan.radices) if spectra else 1)

    def of_rows():
        return np.int64(cuda.threadIdx.x) * width, np.int64(cuda.blockIdx.x) * per_block + np.int64(cuda.threadIdx.y)

    def of_one_row():
        return np.int64(cuda.threadIdx.x) * width, np.int64(cuda.blockIdx.x)

    def of_columns():
        return np.int64(cuda.threadIdx.y), np.int64(cuda.blockIdx.x) * per_block + np.int64(cuda.threadIdx.x)

    if fft.plan.columns:
        return device_function(of_columns)
    return device_function(of_rows if per_block > 1 else of_one_row)


def spectrum_of(fft: BlockFFT, points: int) -> Callable:
    """Device function ``f(data, shared)``: a filter's spectrum, over the points of its transform both ways."""
    forward, elements = fft.forward, fft.elements_per_thread
    scale = np.float32(1 / points) if fft.dtype == np.complex64 else np.float64(1 / points)

    def transform(data, shared):
        forward(data, shared)
        for e in range(elements):
            data[e] = data[e] * scale

    return device_function(transform)


def convolved(fft: BlockFFT, load_filter: Callable | None = None, pairs: bool = False) -> Callable:
    """Device function ``f(data, factors, shared, spectra, base)``: a thread's share of a row, convolved with a filter.

    The filter's spectrum is read where the row's is known already, so that it takes registers as late as can be. With
    `pairs` each complex row is two real ones, which are kept apart.
    """
    forward, filter_inverse = fft.forward, fft.filter_inverse
    load_filter = load_filter or fft.load_filter

    def convolve(data, factors, shared, spectra, base):
        forward(data, shared)
        load_filter(factors, spectra, base)
        filter_inverse(data, factors, shared)

    if not pairs:
        return device_function(convolve)
    separate, convolve, spoil = apart(fft), device_function(convolve), spoiler(fft)

    def convolve_two(data, factors, shared, spectra, base):
        mark = separate(data)
        convolve(data, factors, shared, spectra, base)
        if mark:
            spoil(data, mark)

    return device_function(convolve_two)


def takes_extra(function: Callable | None, indices: int, name: str) -> bool:
    """Whether a user's function of (value, *indices) takes an array besides.

    Raises
    ------
    SpecError
        It takes another number of arguments.
    """
    if function is None:
        return False
    plain = getattr(function, "py_func", None) or getattr(function, "fn", None) or function
    code = getattr(plain, "__code__", None)
    most = 0 if code is None or code.co_flags & inspect.CO_VARARGS else code.co_argcount
    least = most - len(getattr(plain, "__defaults__", None) or ())
    for count, extra in ((indices + 1, False), (indices + 2, True)):
        if least <= count <= most:
            return extra
    places = "row, position" if indices == 2 else "image, row, column"
    raise SpecError(f"{name} must be a Python function of (value, {places}) or (value, {places}, extra).")


def extra_type(dtype: str, wanted: bool) -> str:
    """Type of kernels' last argument ahead of time: an array of the samples' dtype, or a number that nobody reads."""
    return f"{dtype}[::1]" if wanted else "int64"


def signature(arrays: tuple[str, ...], integers: int, last: str = "") -> str:
    """Signature of a kernel of flat arrays of these dtypes, and integers."""
    return f"void({', '.join([f'{name}[::1]' for name in arrays] + ['int64'] * integers + [last] * bool(last))})"


def each_sample(
    fft: BlockFFT, function: Callable | None, part: str, pitch: int = 1, wraps: bool = False, image: bool = False
) -> Callable:
    """Device function ``f(data, where, position, length, extra)``: samples through the user's function.

    That is ``f(value, row, position)``, or with the array `extra` as a fourth argument. Slot e holds, in the given part
    of its complex number, sample ``position + offsets[e] * pitch`` of row `where`. Those outside of the row are left
    alone, or with `wraps` those before it are the last ones. With `image`, `where` is (image, row) and the user's
    function takes ``(value, image, row, column)``, or `extra` besides.
    """
    if function is None:

        def nothing(data, where, position, length, extra):
            return None

        return device_function(nothing)
    more = takes_extra(function, 3 if image else 2, "function")
    function, elements, step = device_function(function), len(fft.offsets), fft.stride * pitch
    width = fft.plan.width
    scalar = fft.dtype.type
    real = np.float32 if fft.dtype == np.complex64 else np.float64

    def of_row(value, where, place, extra):
        return function(value, where, place)

    def of_row_and_extra(value, where, place, extra):
        return function(value, where, place, extra)

    def of_image(value, where, place, extra):
        return function(value, where[0], where[1], place)

    def of_image_and_extra(value, where, place, extra):
        return function(value, where[0], where[1], place, extra)

    ways = (of_image, of_image_and_extra) if image else (of_row, of_row_and_extra)
    call = device_function(ways[more])

    def apply(data, where, position, length, extra):
        for e in range(elements):
            place = position + (e // width * width * step + e % width * pitch)
            if wraps and place < 0:
                place += length
            if place >= 0 and place < length:
                if part == "both":
                    data[e] = scalar(call(data[e], where, place, extra))
                elif part == "real":
                    data[e] = complex(real(call(data[e].real, where, place, extra)), data[e].imag)
                else:
                    data[e] = complex(data[e].real, real(call(data[e].imag, where, place, extra)))

    return uneven.samples_of_those_that_load(fft.plan, device_function(apply))


def not_finite(fft: BlockFFT) -> Callable:
    """Device function ``f(data)``: bit 0 if a real part of a thread's data is not finite, bit 1 if an imaginary one."""
    elements = len(fft.offsets)
    zero = np.float32(0) if fft.dtype == np.complex64 else np.float64(0)

    def bits(data):
        first, second = zero, zero
        for e in range(elements):  # zero, unless one of the values is not finite
            first += data[e].real * zero
            second += data[e].imag * zero
        return (1 if first != 0 else 0) | (2 if second != 0 else 0)

    return device_function(bits)


def finite_only(fft: BlockFFT) -> Callable:
    """Device function ``f(data)``: zeros in the place of what is not finite."""
    elements = fft.elements_per_thread
    zero = np.float32(0) if fft.dtype == np.complex64 else np.float64(0)

    def clear(data):
        for e in range(elements):
            re, im = data[e].real, data[e].imag
            data[e] = complex(re if re - re == 0 else zero, im if im - im == 0 else zero)

    return device_function(clear)


def vote(fft: BlockFFT) -> Callable:
    """Device function ``f(flag)``: whether any thread that meets this one at the transform's barriers has the flag."""
    barriers = {exchange.barrier for exchange in fft.plan.exchanges}
    if not barriers:

        def any_of_them(flag):
            return flag
    elif "block" in barriers or math.prod(fft.block_dim) % 32 or simulating():

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
    any_of_them, per_block, found_in, clear = vote(fft), fft.ffts_per_block, not_finite(fft), finite_only(fft)
    row_of = uneven.row_of(fft.plan)

    def found_by_those_that_load(data):
        return found_here(data) if row_of() < per_block else 0

    if fft.uneven:
        found_here, found_in = found_in, device_function(found_by_those_that_load)

    def separate(data):
        here = row_of()
        found = found_in(data)
        mark = 0
        if any_of_them(found != 0):
            for row in range(per_block):
                mine = here == row
                bad_first, bad_second = any_of_them(mine and found & 1 != 0), any_of_them(mine and found & 2 != 0)
                if mine:
                    mark = (1 if bad_first else 0) | (2 if bad_second else 0)
            clear(data)
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
