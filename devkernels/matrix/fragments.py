"""Sums of warpgroup products in local arrays: copies of them, and where in a tile they belong; words of a pipeline.

In: local arrays and addresses in kernels. Out: intrinsics. Imported only where a kernel is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import i32, slot


@functools.cache
def make_transfer(count: int) -> Callable:
    """Return ``transfer(to, source)``: `count` numbers of 32 bits between local arrays, all indices constants."""

    @intrinsic
    def transfer(typingctx, to, source):
        def codegen(context, builder, signature, arguments):
            word = ir.IntType(32)
            places = []
            for kind, value in zip(signature.args, arguments, strict=True):
                data = context.make_array(kind)(context, builder, value).data
                places.append(builder.bitcast(data, ir.PointerType(word, data.type.addrspace)))
            for i in range(count):
                builder.store(builder.load(slot(builder, places[1], i)), slot(builder, places[0], i))
            return context.get_dummy_value()

        return types.void(to, source), codegen

    return transfer


def place_of_sum(builder, thread, index, columns: int, shared_rows: int):
    """(row, column) of sum number `index` of a thread; each group of 64 rows has columns // 2 sums a thread.

    PTX ISA, "Register fragments for wgmma": warp w of a group has rows 16 w ..., a lane rows lane // 4 and 8 below it,
    and two columns of each eight.
    """
    lane, warp = builder.and_(thread, i32(31)), builder.and_(builder.lshr(thread, i32(5)), i32(3))
    part = builder.udiv(index, i32(columns // 2))
    inside = builder.sub(index, builder.mul(part, i32(columns // 2)))
    row = builder.add(builder.shl(warp, i32(4)), builder.lshr(lane, i32(2)))
    row = builder.add(row, builder.shl(builder.and_(builder.lshr(inside, i32(1)), i32(1)), i32(3)))
    row = builder.add(row, builder.shl(part, i32(6)))
    row = builder.add(row, builder.mul(builder.lshr(thread, i32(7)), i32(shared_rows)))
    column = builder.add(
        builder.shl(builder.lshr(inside, i32(2)), i32(3)), builder.shl(builder.and_(lane, i32(3)), i32(1))
    )
    return row, builder.add(column, builder.and_(inside, i32(1)))


@functools.cache
def make_load_word() -> Callable:
    """Return ``load_word(storage, number)``: a word of 64 bits (number a literal) of a pipeline's storage."""

    @intrinsic
    def load_word(typingctx, storage, number):
        if not isinstance(number, types.IntegerLiteral):
            return None
        offset = 8 * number.literal_value

        def codegen(context, builder, signature, arguments):
            place = builder.add(arguments[0], ir.Constant(ir.IntType(64), offset))
            return builder.load(builder.inttoptr(place, ir.PointerType(ir.IntType(64), 1)))

        return types.int64(types.uint64, number), codegen

    return load_word
