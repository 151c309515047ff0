"""float16 rows between global memory and registers: rows r and r + 1 move side by side.

In and out as in devkernels/device/rows.py. A value of two rows is re, re, im, im (16 bits each, the lower row first);
a real sample of two rows is 32 bits. In memory a complex element of (rows, length, 2) is one aligned 32-bit word;
samples of a real row move alone.
"""

from __future__ import annotations

import numpy as np
from numba import types

from devkernels.device import _intrinsics
from devkernels.device.inline import device_function
from devkernels.device.rows import elements_left, first_position, geometry, u32, u64, walk
from devkernels.device.sides import side_kind


def _half_word(kind: str):
    return types.uint32 if kind == "complex" else types.uint16


def make_load(fft, strided: bool):
    """Return ``load(x, row, thread_data)`` of rows `row` and `row` + 1."""
    slots, stride, length = geometry(fft, "input")
    kind = side_kind(fft, "input")
    pair, parts = kind == "pair", 2 if kind == "pair" else 1
    word = _half_word(kind)
    read = _intrinsics.make_load(word, 1, word)
    put32 = _intrinsics.make_store(types.uint32, 1, types.uint32)
    put64 = _intrinsics.make_store(types.uint64, 1, types.uint64)
    first, left, data_pointer = (
        first_position(fft),
        elements_left(fft.size if pair else length),
        _intrinsics.data_pointer,
    )
    begin, at = walk(word.bitwidth // 8, strided)

    @device_function
    def element(pointer, step, offset, rest):
        return u64(read(at(pointer, step, offset), u64(0))) if u32(offset) < rest else u64(0)

    def load_real(x, row, thread_data):
        start, own, other = first(), data_pointer(thread_data), u64(row) + u64(1)
        rest0, rest1 = left(x, row, start), left(x, other, start)
        (p0, step), (p1, _) = begin(x, row, start), begin(x, other, start)
        for i in range(slots):
            bits = element(p0, step, i * stride, rest0) | (element(p1, step, i * stride, rest1) << u64(16))
            put32(own, u64(i), u32(bits))

    def load_complex(x, row, thread_data):
        start, own, other = u64(parts) * first(), data_pointer(thread_data), u64(row) + u64(1)
        rest0, rest1 = left(x, row, start), left(x, other, start)
        (p0, step), (p1, _) = begin(x, row, start), begin(x, other, start)
        for i in range(slots):
            k = parts * i * stride
            a, b = element(p0, step, k, rest0), element(p1, step, k, rest1)
            if pair:
                a |= element(p0, step, k + 1, rest0) << u64(16)
                b |= element(p1, step, k + 1, rest1) << u64(16)
            low = (a & u64(0xFFFF)) | ((b & u64(0xFFFF)) << u64(16))
            put64(own, u64(i), low | (((a >> u64(16)) | ((b >> u64(16)) << u64(16))) << u64(32)))

    return device_function(load_real if kind == "real" else load_complex)


def make_store(fft, strided: bool):
    """Return ``store(thread_data, y, row)`` of rows `row` and `row` + 1."""
    slots, stride, length = geometry(fft, "output")
    kind = side_kind(fft, "output")
    pair, parts = kind == "pair", 2 if kind == "pair" else 1
    word = _half_word(kind)
    write = _intrinsics.make_store(word, 1, word)
    narrow, mask = (np.uint32, u64(0xFFFFFFFF)) if kind == "complex" else (np.uint16, u64(0xFFFF))
    get32 = _intrinsics.make_load(types.uint32, 1, types.uint32)
    get64 = _intrinsics.make_load(types.uint64, 1, types.uint64)
    first, left, data_pointer = (
        first_position(fft),
        elements_left(fft.size if pair else length),
        _intrinsics.data_pointer,
    )
    begin, at = walk(word.bitwidth // 8, strided)

    @device_function
    def element(pointer, step, offset, rest, bits):
        if u32(offset) < rest:
            write(at(pointer, step, offset), u64(0), narrow(bits & mask))

    def store_real(thread_data, y, row):
        start, own, other = first(), data_pointer(thread_data), u64(row) + u64(1)
        rest0, rest1 = left(y, row, start), left(y, other, start)
        (p0, step), (p1, _) = begin(y, row, start), begin(y, other, start)
        for i in range(slots):
            bits = u64(get32(own, u64(i)))
            element(p0, step, i * stride, rest0, bits)
            element(p1, step, i * stride, rest1, bits >> u64(16))

    def store_complex(thread_data, y, row):
        start, own, other = u64(parts) * first(), data_pointer(thread_data), u64(row) + u64(1)
        rest0, rest1 = left(y, row, start), left(y, other, start)
        (p0, step), (p1, _) = begin(y, row, start), begin(y, other, start)
        for i in range(slots):
            k, bits = parts * i * stride, get64(own, u64(i))
            if pair:
                element(p0, step, k, rest0, bits)
                element(p1, step, k, rest1, bits >> u64(16))
                element(p0, step, k + 1, rest0, bits >> u64(32))
                element(p1, step, k + 1, rest1, bits >> u64(48))
            else:
                re, im = bits & u64(0xFFFFFFFF), bits >> u64(32)
                element(p0, step, k, rest0, (re & u64(0xFFFF)) | ((im & u64(0xFFFF)) << u64(16)))
                element(p1, step, k, rest1, (re >> u64(16)) | ((im >> u64(16)) << u64(16)))

    return device_function(store_real if kind == "real" else store_complex)


def make_pack():
    """Return the body of ``f.pack(first, second)``."""
    to_half = _intrinsics.make_float_to_half()
    f32 = np.float32

    def pack(f, first, second):
        low = to_half(f32(first.real)) | (to_half(f32(second.real)) << u64(16))
        return low | (to_half(f32(first.imag)) << u64(32)) | (to_half(f32(second.imag)) << u64(48))

    return pack


def make_unpack():
    """Return the body of ``f.unpack(value)``."""
    to_float = _intrinsics.make_half_to_float()

    def unpack(f, value):
        first = complex(to_float(value), to_float(value >> u64(32)))
        second = complex(to_float(value >> u64(16)), to_float(value >> u64(48)))
        return first, second

    return unpack
