"""The loops behind `f.load` and `f.store`: one row between global memory and registers, as plain Numba functions.

In: a `DeviceFFT`. Out: device functions that Numba inlines into the kernel. Each side of a transform is one of three
kinds: complex values, reals (normal mode), or pairs of reals (folded mode); float16 moves two rows at once. A row's
mask and its batch tail are one unsigned limit, so an element costs one comparison.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, types

from devkernels.device import _intrinsics

_REAL = {"float16": types.uint16, "float32": types.float32, "float64": types.float64}
_COMPLEX = {"float32": types.complex64, "float64": types.complex128}
u64, u32 = (
    np.uint64,
    np.uint32,
)  # offsets; 32 bits where a value stays inside a row, because a comparison then costs one


def _inline(function):
    return cuda.jit(device=True, forceinline=True)(function)


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


def _first(fft):
    """Return a function that gives the first position of a thread in its row."""
    if fft.spec.is_block:
        return _inline(lambda: u32(cuda.threadIdx.x))
    return _inline(lambda: u32(0))


def _limit(elements: int):
    """Number of elements of ``x[row]`` that take part: none outside the array, else at most `elements`."""
    most = u32(elements)

    @_inline
    def limit(x, row):
        length = u64(x.shape[1])
        if u64(row) >= u64(x.shape[0]):
            return u32(0)
        return u32(length) if length < u64(most) else most

    return limit


@_intrinsics.intrinsic
def _element_pointer(typingctx, array, row, column):
    """Pointer to ``array[row, column]`` by both strides, for views whose last axis is not known to be contiguous."""
    from numba.core import cgutils

    def codegen(context, builder, signature, arguments):
        array_type = signature.args[0]
        struct = context.make_array(array_type)(context, builder, arguments[0])
        strides = cgutils.unpack_tuple(builder, struct.strides, array_type.ndim)
        base = builder.bitcast(struct.data, cgutils.voidptr_t)
        for position, stride in zip((1, 2), strides, strict=False):
            index = context.cast(builder, arguments[position], signature.args[position], types.uint64)
            base = builder.gep(base, [builder.mul(index, stride)])
        return builder.bitcast(base, struct.data.type)

    return types.CPointer(array.dtype)(array, row, column), codegen


def _geometry(fft, side: str) -> tuple[int, int, int]:
    """(slots of a thread, distance between them, elements of a row) on one side."""
    length = fft.input_length if side == "input" else fft.output_length
    return -(-length // fft.stride), fft.stride, length


def _kind(fft, side: str) -> str:
    real = (fft.spec.fft_type, side) in (("r2c", "input"), ("c2r", "output"))
    if not real:
        return "complex"
    return "real" if fft.spec.real_mode == "normal" else "pair"


def make_load(fft, strided: bool):
    """Return ``load(x, row, thread_data)`` for the input side of `fft`."""
    kind = _kind(fft, "input")
    if fft.spec.precision == "float16":
        return _load_halves(fft, kind)
    return {"complex": _load_complex, "real": _load_real, "pair": _load_pairs}[kind](fft, strided)


def make_store(fft, strided: bool):
    """Return ``store(thread_data, y, row)`` for the output side of `fft`."""
    kind = _kind(fft, "output")
    if fft.spec.precision == "float16":
        return _store_halves(fft, kind)
    return {"complex": _store_complex, "real": _store_real, "pair": _store_pairs}[kind](fft, strided)


# -- complex values ---------------------------------------------------------------------------------------------


def _load_complex(fft, strided):
    slots, stride, length = _geometry(fft, "input")
    value = _COMPLEX[fft.spec.precision]
    read = _intrinsics.make_load(_REAL[fft.spec.precision], 2, value)
    first, limit, zero = _first(fft), _limit(length), (np.complex64 if value == types.complex64 else np.complex128)(0)
    row_pointer, element_pointer = _intrinsics.row_pointer, _element_pointer

    def load(x, row, thread_data):
        end, start, base = limit(x, row), first(), row_pointer(x, row)
        for i in range(slots):
            k = u32(start + u32(i * stride))
            if k < end:
                thread_data[u64(i)] = read(base, k)
            else:
                thread_data[u64(i)] = zero

    def load_strided(x, row, thread_data):
        end, start = limit(x, row), first()
        for i in range(slots):
            k = u32(start + u32(i * stride))
            if k < end:
                thread_data[u64(i)] = read(element_pointer(x, row, k), u64(0))
            else:
                thread_data[u64(i)] = zero

    return _inline(load_strided if strided else load)


def _store_complex(fft, strided):
    slots, stride, length = _geometry(fft, "output")
    write = _intrinsics.make_store(_REAL[fft.spec.precision], 2, _COMPLEX[fft.spec.precision])
    first, limit = _first(fft), _limit(length)
    row_pointer, element_pointer = _intrinsics.row_pointer, _element_pointer

    def store(thread_data, y, row):
        end, start, base = limit(y, row), first(), row_pointer(y, row)
        for i in range(slots):
            k = u32(start + u32(i * stride))
            if k < end:
                write(base, k, thread_data[u64(i)])

    def store_strided(thread_data, y, row):
        end, start = limit(y, row), first()
        for i in range(slots):
            k = u32(start + u32(i * stride))
            if k < end:
                write(element_pointer(y, row, k), u64(0), thread_data[u64(i)])

    return _inline(store_strided if strided else store)


# -- reals, one per slot: thread_data seen as an array of reals -------------------------------------------------


def _load_real(fft, strided):
    slots, stride, length = _geometry(fft, "input")
    real = _REAL[fft.spec.precision]
    read, put = _intrinsics.make_load(real, 1, real), _intrinsics.make_store(real, 1, real)
    first, limit, zero = _first(fft), _limit(length), getattr(np, fft.spec.precision)(0)
    data_pointer, element_pointer, row_pointer = _intrinsics.data_pointer, _element_pointer, _intrinsics.row_pointer

    def load(x, row, thread_data):
        end, start, base, own = limit(x, row), first(), row_pointer(x, row), data_pointer(thread_data)
        for i in range(slots):
            k = u32(start + u32(i * stride))
            put(own, u64(i), read(base, k) if k < end else zero)

    def load_strided(x, row, thread_data):
        end, start, own = limit(x, row), first(), data_pointer(thread_data)
        for i in range(slots):
            k = u32(start + u32(i * stride))
            put(own, u64(i), read(element_pointer(x, row, k), u64(0)) if k < end else zero)

    return _inline(load_strided if strided else load)


def _store_real(fft, strided):
    slots, stride, length = _geometry(fft, "output")
    real = _REAL[fft.spec.precision]
    get, write = _intrinsics.make_load(real, 1, real), _intrinsics.make_store(real, 1, real)
    first, limit = _first(fft), _limit(length)
    data_pointer, element_pointer, row_pointer = _intrinsics.data_pointer, _element_pointer, _intrinsics.row_pointer

    def store(thread_data, y, row):
        end, start, base, own = limit(y, row), first(), row_pointer(y, row), data_pointer(thread_data)
        for i in range(slots):
            k = u32(start + u32(i * stride))
            if k < end:
                write(base, k, get(own, u64(i)))

    def store_strided(thread_data, y, row):
        end, start, own = limit(y, row), first(), data_pointer(thread_data)
        for i in range(slots):
            k = u32(start + u32(i * stride))
            if k < end:
                write(element_pointer(y, row, k), u64(0), get(own, u64(i)))

    return _inline(store_strided if strided else store)


# -- pairs of reals (folded mode): 8- or 16-byte accesses where the row starts on such an address ---------------------


def _load_pairs(fft, strided):
    slots, stride, _ = _geometry(fft, "input")
    real, value = _REAL[fft.spec.precision], _COMPLEX[fft.spec.precision]
    read_pair, read = _intrinsics.make_load(real, 2, value), _intrinsics.make_load(real, 1, real)
    first, limit, zero = _first(fft), _limit(fft.size), getattr(np, fft.spec.precision)(0)
    row_pointer, element_pointer, misaligned = _intrinsics.row_pointer, _element_pointer, _intrinsics.misaligned
    pair_bytes = 2 * real.bitwidth // 8

    def load(x, row, thread_data):
        end, start, base = limit(x, row), first(), row_pointer(x, row)
        narrow = misaligned(base, pair_bytes)
        for i in range(slots):
            k = u32(u32(2) * u32(start + u32(i * stride)))
            a, b = zero, zero
            if u32(k + u32(1)) < end:
                if narrow:
                    a, b = read(base, k), read(base, u32(k + u32(1)))
                else:
                    pair = read_pair(base, u32(k >> u32(1)))
                    a, b = pair.real, pair.imag
            elif k < end:
                a = read(base, k)
            thread_data[u64(i)] = complex(a, b)

    def load_strided(x, row, thread_data):
        end, start = limit(x, row), first()
        for i in range(slots):
            k = u32(u32(2) * u32(start + u32(i * stride)))
            a, b = zero, zero
            if k < end:
                a = read(element_pointer(x, row, k), u64(0))
            if u32(k + u32(1)) < end:
                b = read(element_pointer(x, row, u32(k + u32(1))), u64(0))
            thread_data[u64(i)] = complex(a, b)

    return _inline(load_strided if strided else load)


def _store_pairs(fft, strided):
    slots, stride, _ = _geometry(fft, "output")
    real, value = _REAL[fft.spec.precision], _COMPLEX[fft.spec.precision]
    write_pair, write = _intrinsics.make_store(real, 2, value), _intrinsics.make_store(real, 1, real)
    first, limit = _first(fft), _limit(fft.size)
    row_pointer, element_pointer, misaligned = _intrinsics.row_pointer, _element_pointer, _intrinsics.misaligned
    pair_bytes = 2 * real.bitwidth // 8

    def store(thread_data, y, row):
        end, start, base = limit(y, row), first(), row_pointer(y, row)
        narrow = misaligned(base, pair_bytes)
        for i in range(slots):
            k = u32(u32(2) * u32(start + u32(i * stride)))
            pair = thread_data[u64(i)]
            if u32(k + u32(1)) < end and not narrow:
                write_pair(base, u32(k >> u32(1)), pair)
            else:
                if k < end:
                    write(base, k, pair.real)
                if u32(k + u32(1)) < end:
                    write(base, u32(k + u32(1)), pair.imag)

    def store_strided(thread_data, y, row):
        end, start = limit(y, row), first()
        for i in range(slots):
            k = u32(u32(2) * u32(start + u32(i * stride)))
            pair = thread_data[u64(i)]
            if k < end:
                write(element_pointer(y, row, k), u64(0), pair.real)
            if u32(k + u32(1)) < end:
                write(element_pointer(y, row, u32(k + u32(1))), u64(0), pair.imag)

    return _inline(store_strided if strided else store)


# -- float16: rows r and r + 1 side by side ---------------------------------------------------------------------
#
# A value of two rows is re, re, im, im (16 bits each, the lower row first); a real sample of two rows is 32 bits.


def _half_access(kind: str):
    """Return (read, write) of one element of one row: re in the low 16 bits, im (or the odd sample) above it."""
    if kind == "complex":  # (rows, length, 2): an element is one aligned 32-bit word
        word = types.uint32
        read = _intrinsics.make_load(word, 1, word)
        return read, _intrinsics.make_store(word, 1, word)
    half = types.uint16  # samples of a real row lie anywhere, so each moves alone
    get, put = _intrinsics.make_load(half, 1, half), _intrinsics.make_store(half, 1, half)
    return get, put


def _load_halves(fft, kind):
    slots, stride, length = _geometry(fft, "input")
    pair = kind == "pair"
    read, _ = _half_access(kind)
    put32 = _intrinsics.make_store(types.uint32, 1, types.uint32)
    put64 = _intrinsics.make_store(types.uint64, 1, types.uint64)
    first, limit = _first(fft), _limit(fft.size if pair else length)
    row_pointer, data_pointer = _intrinsics.row_pointer, _intrinsics.data_pointer

    @_inline
    def element(base, k, end):
        return u64(read(base, k)) if k < end else u64(0)

    def load_real(x, row, thread_data):
        start, own = first(), data_pointer(thread_data)
        end0, end1 = limit(x, row), limit(x, u64(row) + u64(1))
        base0, base1 = row_pointer(x, row), row_pointer(x, u64(row) + u64(1))
        for i in range(slots):
            k = u32(start + u32(i * stride))
            put32(own, u64(i), u32(element(base0, k, end0) | (element(base1, k, end1) << u64(16))))

    def load_complex(x, row, thread_data):
        start, own = first(), data_pointer(thread_data)
        end0, end1 = limit(x, row), limit(x, u64(row) + u64(1))
        base0, base1 = row_pointer(x, row), row_pointer(x, u64(row) + u64(1))
        for i in range(slots):
            k = u32(start + u32(i * stride))
            if pair:
                k = u32(u32(2) * k)
                odd = u32(k + u32(1))
                a = element(base0, k, end0) | (element(base0, odd, end0) << u64(16))
                b = element(base1, k, end1) | (element(base1, odd, end1) << u64(16))
            else:
                a, b = element(base0, k, end0), element(base1, k, end1)
            low = (a & u64(0xFFFF)) | ((b & u64(0xFFFF)) << u64(16))
            put64(own, u64(i), low | (((a >> u64(16)) | ((b >> u64(16)) << u64(16))) << u64(32)))

    return _inline(load_real if kind == "real" else load_complex)


def _store_halves(fft, kind):
    slots, stride, length = _geometry(fft, "output")
    pair = kind == "pair"
    _, write = _half_access(kind)
    narrow = np.uint32 if kind == "complex" else np.uint16
    mask = u64(0xFFFFFFFF if kind == "complex" else 0xFFFF)
    get32 = _intrinsics.make_load(types.uint32, 1, types.uint32)
    get64 = _intrinsics.make_load(types.uint64, 1, types.uint64)
    first, limit = _first(fft), _limit(fft.size if pair else length)
    row_pointer, data_pointer = _intrinsics.row_pointer, _intrinsics.data_pointer

    @_inline
    def element(base, k, end, bits):
        if k < end:
            write(base, k, narrow(bits & mask))

    def store_real(thread_data, y, row):
        start, own = first(), data_pointer(thread_data)
        end0, end1 = limit(y, row), limit(y, u64(row) + u64(1))
        base0, base1 = row_pointer(y, row), row_pointer(y, u64(row) + u64(1))
        for i in range(slots):
            k = u32(start + u32(i * stride))
            word = u64(get32(own, u64(i)))
            element(base0, k, end0, word)
            element(base1, k, end1, word >> u64(16))

    def store_complex(thread_data, y, row):
        start, own = first(), data_pointer(thread_data)
        end0, end1 = limit(y, row), limit(y, u64(row) + u64(1))
        base0, base1 = row_pointer(y, row), row_pointer(y, u64(row) + u64(1))
        for i in range(slots):
            k = u32(start + u32(i * stride))
            word = get64(own, u64(i))
            if pair:
                k = u32(u32(2) * k)
                odd = u32(k + u32(1))
                element(base0, k, end0, word)
                element(base1, k, end1, word >> u64(16))
                element(base0, odd, end0, word >> u64(32))
                element(base1, odd, end1, word >> u64(48))
            else:
                re, im = word & u64(0xFFFFFFFF), word >> u64(32)
                element(base0, k, end0, (re & u64(0xFFFF)) | ((im & u64(0xFFFF)) << u64(16)))
                element(base1, k, end1, (re >> u64(16)) | ((im >> u64(16)) << u64(16)))

    return _inline(store_real if kind == "real" else store_complex)


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
