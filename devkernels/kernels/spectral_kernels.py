"""Device side of the spectral filter: the kernels, and the transform that they are built on.

In: a forward `DeviceFFT` and what happens to the spectrum (an array H, or a device function). Out: a kernel that
loads a row, transforms it, multiplies, transforms back and stores, with everything between on chip.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device.fft import DeviceFFT, fft
from devkernels.device.inline import device_function
from devkernels.fft_sizes import is_power_of_two
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch.jit import kernel
from devkernels.lazy import cuda


def forward_fft(
    size: int, precision: str, real: bool, sm: object, ffts_per_block: object, elements_per_thread: object
) -> DeviceFFT:
    """Return the forward transform of real or complex rows."""
    folded = real and size >= 4 and is_power_of_two(size)  # N reals as N/2 complex values; powers of two only
    what = dict(fft_type="c2c", direction="forward")
    if real:
        options = {"complex_layout": "natural", "real_mode": "folded" if folded else "normal"}
        what = dict(fft_type="r2c", real_fft_options=options)
    what.update(size=size, precision=precision, sm=sm, ffts_per_block=ffts_per_block)
    found = fft(**what, elements_per_thread=elements_per_thread)
    if elements_per_thread is None and found.stride == 1 and size >= 32:
        # By default one thread does a whole small row: neighbours then read far apart, and the values of a long row
        # do not fit the registers. Eight complex values a thread is what the library takes for larger rows.
        values = [v for v in found.elements_per_thread_values if v <= (16 if folded else 8)]
        if values:
            found = fft(**what, elements_per_thread=values[-1])
    return found


# -- the middle of the kernel: multiply the spectrum, scaled so that the pair of transforms is the identity ------
#
# One filter for all rows has one row, so the row of h is at most its last; rows past the end of the batch read any
# row and are not stored.


def _multiply_by_array(forward: DeviceFFT) -> Callable:
    """Device function ``f(thread_data, h, row)`` for values that are complex numbers."""
    slots, bins = -(-forward.output_length // forward.stride), forward.output_length
    scale = forward.precision(1 / forward.scale)

    def apply(thread_data, h, row):
        own = min(row, h.shape[0] - 1)
        for i in range(slots):
            k = forward.index(i)
            if k < bins:
                thread_data[i] = thread_data[i] * (h[own, k] * scale)

    return device_function(apply)


def _multiply_by_row(forward: DeviceFFT, inverse: DeviceFFT) -> Callable:
    """As `_multiply_by_array` for a complex h of the data's precision: read by the inverse's own wide loads."""
    slots, storage, value_type = -(-forward.output_length // forward.stride), forward.storage_size, forward.value_type
    scale = forward.precision(1 / forward.scale)

    def apply(thread_data, h, row):
        factors = cuda.local.array(storage, value_type)
        inverse.load(h, min(row, h.shape[0] - 1), factors)
        for i in range(slots):
            thread_data[i] = thread_data[i] * factors[i] * scale

    return device_function(apply)


def _multiply_halves(forward: DeviceFFT) -> Callable:
    """As `_multiply_by_array` for float16: one value holds rows r and r + 1, arithmetic is in float32."""
    slots, bins = -(-forward.output_length // forward.stride), forward.output_length
    scale = np.float32(1 / forward.scale)

    def apply(thread_data, h, row):
        last = h.shape[0] - 1
        own, other = min(row, last), min(row + 1, last)
        for i in range(slots):
            k = forward.index(i)
            if k < bins:
                first, second = forward.unpack(thread_data[i])
                thread_data[i] = forward.pack(first * (h[own, k] * scale), second * (h[other, k] * scale))

    return device_function(apply)


def _apply_function(forward: DeviceFFT, op: Callable) -> Callable:
    """Device function ``f(thread_data)`` that puts every value of the spectrum through the user's ``op(X, k)``."""
    slots, bins = -(-forward.output_length // forward.stride), forward.output_length
    op = device_function(op)
    if forward.spec.precision == "float16":
        scale = np.float32(1 / forward.scale)

        def apply(thread_data):
            for i in range(slots):
                k = forward.index(i)
                if k < bins:
                    first, second = forward.unpack(thread_data[i])
                    thread_data[i] = forward.pack(op(first, k) * scale, op(second, k) * scale)
    else:
        scale = forward.precision(1 / forward.scale)

        def apply(thread_data):
            for i in range(slots):
                k = forward.index(i)
                if k < bins:
                    thread_data[i] = op(thread_data[i], k) * scale

    return device_function(apply)


# -- kernels ---------------------------------------------------------------------------------------------------------


@lazy_kernel
def array_kernel(forward: DeviceFFT, wide: bool):
    """Return ``kernel(x, h, y)``; `wide` if h is complex and of the data's precision, so that it loads as x does."""
    inverse = forward.inverse()
    storage, value_type = forward.storage_size, forward.value_type
    if forward.spec.precision == "float16":
        apply = _multiply_halves(forward)
    else:
        apply = _multiply_by_row(forward, inverse) if wide else _multiply_by_array(forward)

    def spectral_filter(x, h, y):
        thread_data = cuda.local.array(storage, value_type)
        shared_mem = cuda.shared.array(0, value_type)
        row = forward.row()
        forward.load(x, row, thread_data)
        forward(thread_data, shared_mem)
        apply(thread_data, h, row)
        inverse(thread_data, shared_mem)
        inverse.store(thread_data, y, row)

    return kernel(spectral_filter, launch_bounds=_launch_bounds(forward))


@lazy_kernel
def function_kernel(forward: DeviceFFT, op: Callable):
    """Return ``kernel(x, y)`` with the user's ``op(X, k)`` compiled in."""
    inverse = forward.inverse()
    storage, value_type = forward.storage_size, forward.value_type
    apply = _apply_function(forward, op)

    def spectral_filter(x, y):
        thread_data = cuda.local.array(storage, value_type)
        shared_mem = cuda.shared.array(0, value_type)
        row = forward.row()
        forward.load(x, row, thread_data)
        forward(thread_data, shared_mem)
        apply(thread_data)
        inverse(thread_data, shared_mem)
        inverse.store(thread_data, y, row)

    return kernel(spectral_filter, launch_bounds=_launch_bounds(forward))


def _launch_bounds(forward: DeviceFFT) -> int | None:
    """Threads of a block, where that limits the registers; up to 256 threads can have all, and a bound costs spills."""
    x, y, z = forward.block_dim
    return x * y * z if x * y * z > 256 else None
