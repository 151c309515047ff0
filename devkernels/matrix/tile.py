"""Finishing a tile from its accumulators: through shared memory to whole rows, the epilogue, wide stores.

In: accumulators in the registers of a warpgroup product (64 x n: a warp holds 16 rows). Out: intrinsics that move 64
columns at a time so that a thread holds 8 consecutive columns of 4 rows. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import (
    ITEM,
    SHARED,
    i32,
    load_words,
    load_words_once,
    pack,
    pointer,
    store_words,
    unpack,
    vector_of,
)
from devkernels.matrix.memory_sizes import Spread
from devkernels.matrix.ptx import _float_pointer

SLAB = 64  # columns that pass through shared memory at a time
SLAB_BYTES = 16 * SLAB * 4  # of one warp


def _values_base_lane(context, builder, signature, arguments):
    """Arguments of an intrinsic ``(values, base, lane)``: a pointer to float32, and two unsigned numbers."""
    base, lane = (context.cast(builder, v, t, types.uint32) for v, t in
                  zip(arguments[1:], signature.args[1:], strict=True))  # fmt: skip
    return _float_pointer(context, builder, signature.args[0], arguments[0]), base, lane


def _lane_address(builder, context, base, lane):
    """Byte address of this lane's first pair in the slab; see `put`."""
    row, quad = builder.lshr(lane, i32(2)), builder.and_(lane, i32(3))
    group = builder.add(builder.shl(builder.and_(row, i32(3)), i32(1)), builder.lshr(quad, i32(1)))
    inside = builder.add(builder.shl(row, i32(8)), builder.shl(group, i32(4)))
    return builder.add(inside, builder.shl(builder.and_(quad, i32(1)), i32(3)))


@functools.cache
def make_put(slab: int) -> Callable:
    """Return ``put(acc, base, lane)``: write 64 columns of a warp's accumulators to its slab at `base`.

    Element (row, column) lies in row `row` of 256 bytes, 16-byte group g = column // 4 at place
    g ^ 2 * (row % 4) ^ g // 8: neither the pairs that a product leaves in a thread nor the reads of `get` then meet
    in a bank.
    """

    @intrinsic
    def put(typingctx, acc, base, lane):
        def codegen(context, builder, signature, arguments):
            floats, base_, lane_ = _values_base_lane(context, builder, signature, arguments)
            own = _lane_address(builder, context, base_, lane_)
            for j in range(8):
                place = builder.add(base_, builder.xor(own, i32((2 * j + (j >> 2)) * 16)))
                for half in range(2):
                    first = 4 * (8 * slab + j) + 2 * half
                    places = (builder.gep(floats, [i32(first + e)], inbounds=True) for e in range(2))
                    pair = vector_of(builder, [builder.load(place) for place in places])
                    where = builder.add(place, i32(half * 8 * 256))
                    builder.store(pair, pointer(builder, where, pair.type, SHARED), align=8)
            return context.get_dummy_value()

        return types.void(acc, base, lane), codegen

    return put


@functools.cache
def make_get_singles() -> Callable:
    """Return ``get(values, base, lane)``: columns lane and lane + 32 of all 16 rows of a slab."""

    @intrinsic
    def get(typingctx, values, base, lane):
        def codegen(context, builder, signature, arguments):
            floats, base_, lane_ = _values_base_lane(context, builder, signature, arguments)
            group, inside = builder.lshr(lane_, i32(2)), builder.shl(builder.and_(lane_, i32(3)), i32(2))
            for row in range(16):
                for half in range(2):
                    own = builder.xor(group, i32((2 * (row & 3)) ^ (9 * half)))
                    where = builder.add(
                        builder.add(base_, i32(256 * row)), builder.add(builder.shl(own, i32(4)), inside)
                    )
                    value = builder.load(pointer(builder, where, ir.FloatType(), SHARED))
                    builder.store(value, builder.gep(floats, [i32(2 * row + half)], inbounds=True))
            return context.get_dummy_value()

        return types.void(values, base, lane), codegen

    return get


@functools.cache
def make_get() -> Callable:
    """Return ``get(values, base, lane)``: 8 columns (8 * (lane % 8) ...) of rows lane // 8 + 0, 4, 8, 12 of a slab."""

    @intrinsic
    def get(typingctx, values, base, lane):
        def codegen(context, builder, signature, arguments):
            floats, base_, lane_ = _values_base_lane(context, builder, signature, arguments)
            row, part = builder.lshr(lane_, i32(3)), builder.and_(lane_, i32(7))
            group = builder.xor(
                builder.xor(builder.shl(part, i32(1)), builder.shl(row, i32(1))), builder.lshr(part, i32(2))
            )
            vector = ir.VectorType(ir.FloatType(), 4)
            for step in range(4):
                line = builder.add(base_, builder.add(builder.shl(row, i32(8)), i32(step * 4 * 256)))
                for half in range(2):
                    own = builder.xor(group, i32(half)) if half else group
                    where = builder.add(line, builder.shl(own, i32(4)))
                    found = builder.load(pointer(builder, where, vector, SHARED), align=16)
                    for e in range(4):
                        place = builder.gep(floats, [i32(8 * step + 4 * half + e)], inbounds=True)
                        builder.store(builder.extract_element(found, i32(e)), place)
            return context.get_dummy_value()

        return types.void(values, base, lane), codegen

    return get


# -- eight values at a time between float32 registers and memory -------------------------------------------------------


@functools.cache
def make_store8(dtype: str) -> Callable:
    """Return ``store(values, first, address)``: values[first : first + 8] (first a literal) to aligned memory."""

    @intrinsic
    def store(typingctx, values, first, place):
        if not isinstance(first, types.IntegerLiteral):
            return None
        offset = first.literal_value

        def codegen(context, builder, signature, arguments):
            floats = _float_pointer(context, builder, signature.args[0], arguments[0])
            numbers = [builder.load(builder.gep(floats, [i32(offset + i)], inbounds=True)) for i in range(8)]
            store_words(builder, arguments[2], 0, pack(builder, numbers, dtype))
            return context.get_dummy_value()

        return types.void(values, first, types.uint64), codegen

    return store


@functools.cache
def make_load8(dtype: str, once: bool = False) -> Callable:
    """Return ``load(values, first, address)``, the counterpart of `make_store8`; `once`: not kept in the L1 cache."""
    read = load_words_once if once else load_words

    @intrinsic
    def load(typingctx, values, first, place):
        if not isinstance(first, types.IntegerLiteral):
            return None
        offset = first.literal_value

        def codegen(context, builder, signature, arguments):
            floats = _float_pointer(context, builder, signature.args[0], arguments[0])
            found = unpack(builder, read(builder, arguments[2], 0, 8 * ITEM[dtype] // 4), dtype)
            for i, number in enumerate(found):
                builder.store(number, builder.gep(floats, [i32(offset + i)], inbounds=True))
            return context.get_dummy_value()

        return types.void(values, first, types.uint64), codegen

    return load


@functools.cache
def make_repeat8(count: int) -> Callable:
    """Return ``repeat(values)``: values[8 k + e] = values[e]."""

    @intrinsic
    def repeat(typingctx, values):
        def codegen(context, builder, signature, arguments):
            floats = _float_pointer(context, builder, signature.args[0], arguments[0])
            places = [builder.gep(floats, [i32(i)], inbounds=True) for i in range(count)]
            first = [builder.load(place) for place in places[:8]]
            for i in range(8, count):
                builder.store(first[i % 8], places[i])
            return context.get_dummy_value()

        return types.void(values), codegen

    return repeat


@functools.cache
def make_map_all(spread: Spread, positions: bool) -> Callable:
    """Return ``map_all(function, values, row, column, last_row, last_column, extra)``: a function on all values.

    The function is ``f(value)``, or with `positions` ``f(value, row, column, *extra)``.

    Places beyond the last row and column are given as the last, so that the function never sees an index outside. All
    calls are written out: an index into registers must be constant.
    """

    @intrinsic
    def map_all(typingctx, function, values, row, column, last_row, last_column, extra):
        kinds = (types.float32, types.int32, types.int32, *extra.types) if positions else (types.float32,)
        inner = function.get_call_type(typingctx, kinds, {})

        def codegen(context, builder, signature, arguments):
            floats = _float_pointer(context, builder, signature.args[1], arguments[1])
            row_, column_, last_row_, last_column_ = (
                context.cast(builder, v, t, types.int32)
                for v, t in zip(arguments[2:6], signature.args[2:6], strict=True)
            )

            def within(value, last):
                return builder.select(builder.icmp_signed("<", value, last), value, last)

            run = context.get_function(function, inner)
            parts = [builder.extract_value(arguments[6], i) for i in range(len(extra.types))]
            for k in range(spread.rows):
                own_row = within(builder.add(row_, i32(spread.row_step * k)), last_row_)
                for e in range(spread.columns):
                    own_column = within(builder.add(column_, i32(spread.column_step * e)), last_column_)
                    place = builder.gep(floats, [i32(spread.columns * k + e)], inbounds=True)
                    given = [builder.load(place), own_row, own_column, *parts][: len(kinds)]
                    given = [context.cast(builder, v, have, want)
                             for v, have, want in zip(given, kinds, inner.args, strict=True)]  # fmt: skip
                    result = run(builder, given)
                    builder.store(context.cast(builder, result, inner.return_type, types.float32), place)
            return context.get_dummy_value()

        return types.void(function, values, row, column, last_row, last_column, extra), codegen

    return map_all
