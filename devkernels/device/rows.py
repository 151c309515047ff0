"""The loops behind `f.load` and `f.store`: one row between global memory and registers, as plain Numba functions.

In: a `DeviceFFT`. Out: device functions that Numba inlines into the kernel. Each side of a transform is one of three
kinds: complex values, reals (normal mode), or pairs of reals (folded mode). float16: see rows_half.py. A row's
mask and its batch tail are one unsigned count of elements left, so an element costs one comparison.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, types

from devkernels.device import _intrinsics
from devkernels.device.inline import device_function
from devkernels.device.sides import row_length, side_kind

_REAL = {"float16": types.uint16, "float32": types.float32, "float64": types.float64}
_COMPLEX = {"float32": types.complex64, "float64": types.complex128}
u64, u32 = (
    np.uint64,
    np.uint32,
)  # offsets; 32 bits where a value stays inside a row, because a comparison then costs one


# -- where this thread's elements lie ---------------------------------------------------------------------------


def make_index(fft):
    """Return the body of ``f.index(i)``."""
    if not fft.spec.is_block:
        return lambda f, i: i
    stride = fft.stride
    return lambda f, i: cuda.threadIdx.x + i * stride


def make_row(fft):
    """Return the body of ``f.row()``."""
    per_block, batch = fft.ffts_per_block, fft.implicit_type_batching
    return lambda f: cuda.blockIdx.x * per_block + cuda.threadIdx.y * batch


def first_position(fft):
    """Return a function that gives the first position of a thread in its row."""
    if fft.spec.is_block:
        return device_function(lambda: u64(cuda.threadIdx.x))
    return device_function(lambda: u64(0))


def elements_left(elements: int):
    """Return ``left(x, row, start)``: how many elements of ``x[row]`` take part from `start` on.

    None outside the array; at most `elements` in all. Each element is then masked by one comparison with a constant.
    """
    most = u32(elements)

    @device_function
    def left(x, row, start):
        length = u64(x.shape[1])
        end = u32(length) if length < u64(most) else most
        if u64(row) >= u64(x.shape[0]) or u32(start) >= end:
            return u32(0)
        return u32(end - u32(start))

    return left


def walk(element_bytes: int, strided: bool):
    """Return ``(begin, at)``: the address of this thread's first element, and of the one `offset` elements on.

    `begin` is computed once and before any condition, so that what stays inside one is an access at a constant
    distance, which the hardware predicates. Arrays whose last axis may have gaps take the distance from their stride.
    """
    size = u64(element_bytes)
    data_pointer, advance, settled = _intrinsics.data_pointer, _intrinsics.advance, _intrinsics.settled
    if strided:

        @device_function
        def begin(x, row, start):
            step = u64(x.strides[1])
            return advance(data_pointer(x), settled(u64(row) * u64(x.strides[0]) + start * step)), step
    else:

        @device_function
        def begin(x, row, start):
            return advance(data_pointer(x), settled(u64(row) * u64(x.strides[0]) + start * size)), size

    @device_function
    def at(pointer, step, offset):
        return advance(pointer, u64(offset) * step)

    @device_function
    def at_constant(pointer, step, offset):
        return advance(pointer, u64(offset) * size)

    return begin, at if strided else at_constant


def geometry(fft, side: str) -> tuple[int, int, int]:
    """(slots of a thread, distance between them, elements of a row) on one side."""
    elements = row_length(fft, side)
    return -(-elements // fft.stride), fft.stride, elements


def make_load(fft, strided: bool):
    """Return ``load(x, row, thread_data)`` for the input side of `fft`."""
    moved = side_kind(fft, "input")
    return {"complex": _load_complex, "real": _load_real, "pair": _load_pairs}[moved](fft, strided)


def make_store(fft, strided: bool):
    """Return ``store(thread_data, y, row)`` for the output side of `fft`."""
    moved = side_kind(fft, "output")
    return {"complex": _store_complex, "real": _store_real, "pair": _store_pairs}[moved](fft, strided)


# -- complex values ---------------------------------------------------------------------------------------------


def _load_complex(fft, strided):
    slots, stride, length = geometry(fft, "input")
    value, number = _COMPLEX[fft.spec.precision], {"float32": np.complex64, "float64": np.complex128}
    read = _intrinsics.make_load(_REAL[fft.spec.precision], 2, value)
    first, left, zero = first_position(fft), elements_left(length), number[fft.spec.precision](0)
    begin, at = walk(value.bitwidth // 8, strided)

    def load(x, row, thread_data):
        start = first()
        rest = left(x, row, start)
        pointer, step = begin(x, row, start)
        for i in range(slots):
            if u32(i * stride) < rest:
                thread_data[u64(i)] = read(at(pointer, step, i * stride), u64(0))
            else:
                thread_data[u64(i)] = zero

    return device_function(load)


def _store_complex(fft, strided):
    slots, stride, length = geometry(fft, "output")
    value = _COMPLEX[fft.spec.precision]
    write = _intrinsics.make_store(_REAL[fft.spec.precision], 2, value)
    first, left = first_position(fft), elements_left(length)
    begin, at = walk(value.bitwidth // 8, strided)

    def store(thread_data, y, row):
        start = first()
        rest = left(y, row, start)
        pointer, step = begin(y, row, start)
        for i in range(slots):
            if u32(i * stride) < rest:
                write(at(pointer, step, i * stride), u64(0), thread_data[u64(i)])

    return device_function(store)


# -- reals, one per slot: thread_data seen as an array of reals -------------------------------------------------


def _load_real(fft, strided):
    slots, stride, length = geometry(fft, "input")
    real = _REAL[fft.spec.precision]
    read, put = _intrinsics.make_load(real, 1, real), _intrinsics.make_store(real, 1, real)
    first, left, zero = first_position(fft), elements_left(length), getattr(np, fft.spec.precision)(0)
    data_pointer = _intrinsics.data_pointer
    begin, at = walk(real.bitwidth // 8, strided)

    def load(x, row, thread_data):
        start, own = first(), data_pointer(thread_data)
        rest = left(x, row, start)
        pointer, step = begin(x, row, start)
        for i in range(slots):
            put(own, u64(i), read(at(pointer, step, i * stride), u64(0)) if u32(i * stride) < rest else zero)

    return device_function(load)


def _store_real(fft, strided):
    slots, stride, length = geometry(fft, "output")
    real = _REAL[fft.spec.precision]
    get, write = _intrinsics.make_load(real, 1, real), _intrinsics.make_store(real, 1, real)
    first, left = first_position(fft), elements_left(length)
    data_pointer = _intrinsics.data_pointer
    begin, at = walk(real.bitwidth // 8, strided)

    def store(thread_data, y, row):
        start, own = first(), data_pointer(thread_data)
        rest = left(y, row, start)
        pointer, step = begin(y, row, start)
        for i in range(slots):
            if u32(i * stride) < rest:
                write(at(pointer, step, i * stride), u64(0), get(own, u64(i)))

    return device_function(store)


# -- pairs of reals (folded mode): wide accesses where a row without gaps starts on such an address --------------


def _load_pairs(fft, strided):
    slots, stride, _ = geometry(fft, "input")
    real, value = _REAL[fft.spec.precision], _COMPLEX[fft.spec.precision]
    read_pair, read = _intrinsics.make_load(real, 2, value), _intrinsics.make_load(real, 1, real)
    first, left, zero = first_position(fft), elements_left(fft.size), getattr(np, fft.spec.precision)(0)
    begin, at = walk(real.bitwidth // 8, strided)
    misaligned, pair_bytes = _intrinsics.misaligned, value.bitwidth // 8

    def load(x, row, thread_data):
        start = u64(2) * first()
        rest = left(x, row, start)
        pointer, step = begin(x, row, start)
        narrow = strided or misaligned(pointer, pair_bytes)
        for i in range(slots):
            a, b = zero, zero
            if u32(2 * i * stride + 1) < rest and not narrow:
                pair = read_pair(at(pointer, step, 2 * i * stride), u64(0))
                a, b = pair.real, pair.imag
            else:
                if u32(2 * i * stride) < rest:
                    a = read(at(pointer, step, 2 * i * stride), u64(0))
                if u32(2 * i * stride + 1) < rest:
                    b = read(at(pointer, step, 2 * i * stride + 1), u64(0))
            thread_data[u64(i)] = complex(a, b)

    return device_function(load)


def _store_pairs(fft, strided):
    slots, stride, _ = geometry(fft, "output")
    real, value = _REAL[fft.spec.precision], _COMPLEX[fft.spec.precision]
    write_pair, write = _intrinsics.make_store(real, 2, value), _intrinsics.make_store(real, 1, real)
    first, left = first_position(fft), elements_left(fft.size)
    begin, at = walk(real.bitwidth // 8, strided)
    misaligned, pair_bytes = _intrinsics.misaligned, value.bitwidth // 8

    def store(thread_data, y, row):
        start = u64(2) * first()
        rest = left(y, row, start)
        pointer, step = begin(y, row, start)
        narrow = strided or misaligned(pointer, pair_bytes)
        for i in range(slots):
            pair = thread_data[u64(i)]
            if u32(2 * i * stride + 1) < rest and not narrow:
                write_pair(at(pointer, step, 2 * i * stride), u64(0), pair)
            else:
                if u32(2 * i * stride) < rest:
                    write(at(pointer, step, 2 * i * stride), u64(0), pair.real)
                if u32(2 * i * stride + 1) < rest:
                    write(at(pointer, step, 2 * i * stride + 1), u64(0), pair.imag)

    return device_function(store)
