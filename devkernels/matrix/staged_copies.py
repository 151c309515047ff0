"""Asynchronous copies from global to shared memory as Numba intrinsics: slices of a matrix, and whole small matrices.

In: constants of a tiling. Out: intrinsics. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import i32, signed
from devkernels.matrix.memory_sizes import WIDEST
from devkernels.matrix.ptx import _instruction

commit_copies = _instruction("cp.async.commit_group;", "~{memory}", types.void)


@functools.cache
def make_wait(groups: int) -> Callable:
    """Return ``wait()``: until at most so many of this thread's newest groups of copies are on their way."""
    return _instruction(f"cp.async.wait_group {groups};", "~{memory}", types.void)


@functools.cache
def make_copy(lines: int, length: int, pitch: int, item: int, piece: int, threads: int, along: bool) -> Callable:
    """Return ``copy(to, base, line_step, item_step, first, last, start, stop, thread)``: a tile to shared memory.

    `lines` lines of `length` elements of `item` bytes, in pieces of `piece` bytes, `pitch` bytes apart in shared
    memory; in global memory, element e of line l lies at base + l * line_step + e * item_step. With `along`, lines are
    rows or columns of the result, from number `first`; what is beyond `last` is read as the last, and the elements are
    those of the inner dimension, start ... stop, beyond which zeros are written. Without, it is the other way about:
    lines are those of the inner dimension, zero from `stop` on, and elements beyond `last` are zero as well.
    """
    each = piece // item
    pieces = length // each
    total = lines * pieces
    text = f"cp.async.{'cg' if piece == WIDEST else 'ca'}.shared.global [$0], [$1], {piece}, $2;"

    @intrinsic
    def copy(typingctx, to, base, line_step, item_step, first, last, start, stop, thread):
        def codegen(context, builder, signature, arguments):
            to_ = context.cast(builder, arguments[0], signature.args[0], types.uint32)
            base_ = arguments[1]
            line_step_, item_step_ = (signed(context, builder, v, t)
                                      for v, t in zip(arguments[2:4], signature.args[2:4], strict=True))  # fmt: skip
            first_, last_, start_, stop_, thread_ = (
                context.cast(builder, v, t, types.int32)
                for v, t in zip(arguments[4:9], signature.args[4:9], strict=True)
            )
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32), ir.IntType(64), ir.IntType(32)])

            def least(a, b):
                return builder.select(builder.icmp_signed("<", a, b), a, b)

            def bytes_before(value, end):
                """Bytes of a piece that begins at `value` and lie before `end`."""
                count = builder.sub(end, value)
                count = builder.select(builder.icmp_signed("<", count, i32(0)), i32(0), least(count, i32(each)))
                return builder.mul(count, i32(item))

            def one(number):
                line = builder.udiv(number, i32(pieces))
                position = builder.mul(builder.sub(number, builder.mul(line, i32(pieces))), i32(each))
                if along:
                    element = builder.add(start_, position)
                    size = bytes_before(element, stop_)
                    own = least(builder.add(first_, line), last_)
                else:
                    element = builder.add(first_, position)
                    own = builder.add(start_, line)
                    size = bytes_before(element, builder.add(last_, i32(1)))
                    size = builder.select(builder.icmp_signed("<", own, stop_), size, i32(0))
                own, element = (builder.sext(v, ir.IntType(64)) for v in (own, element))
                place = builder.add(base_, builder.add(builder.mul(own, line_step_), builder.mul(element, item_step_)))
                # Nothing is read if the size is zero, and the address is then one that can be.
                place = builder.select(builder.icmp_signed(">", size, i32(0)), place, base_)
                sink = builder.add(to_, builder.add(builder.mul(line, i32(pitch)), builder.mul(position, i32(item))))
                builder.asm(kind, text, "r,l,r,~{memory}", [sink, place, size], side_effect=True)

            for step in range(-(-total // threads)):
                number = builder.add(thread_, i32(step * threads))
                if (step + 1) * threads <= total:
                    one(number)
                else:
                    with builder.if_then(builder.icmp_signed("<", number, i32(total))):
                        one(number)
            return context.get_dummy_value()

        return types.void(to, types.uint64, line_step, item_step, first, last, start, stop, thread), codegen

    return copy


@functools.cache
def make_copy_products(count: int, lines: int, pieces: int, pitch: int, product_bytes: int, threads: int) -> Callable:
    """Return ``copy(to, base, product_step, line_step, first, last, thread)``: `count` matrices to shared memory.

    Matrix p, number first + p, has `lines` lines of `pieces` times 16 bytes; numbers from `last` on are left out.
    """
    total = count * lines * pieces
    text = f"cp.async.cg.shared.global [$0], [$1], {WIDEST};"

    @intrinsic
    def copy(typingctx, to, base, product_step, line_step, first, last, thread):
        def codegen(context, builder, signature, arguments):
            to_ = context.cast(builder, arguments[0], signature.args[0], types.uint32)
            product_step_, line_step_ = (signed(context, builder, v, t)
                                         for v, t in zip(arguments[2:4], signature.args[2:4], strict=True))  # fmt: skip
            first_, last_, thread_ = (context.cast(builder, v, t, types.int32)
                                      for v, t in zip(arguments[4:7], signature.args[4:7], strict=True))  # fmt: skip
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32), ir.IntType(64)])

            def parts(number, each: int):
                outer = builder.udiv(number, i32(each))
                return outer, builder.sub(number, builder.mul(outer, i32(each)))

            for step in range(-(-total // threads)):
                number = builder.add(thread_, i32(step * threads))
                product, rest = parts(number, lines * pieces)
                line, piece = parts(rest, pieces)
                own = builder.add(first_, product)
                inside = builder.icmp_signed("<", own, last_)
                if (step + 1) * threads > total:
                    inside = builder.and_(inside, builder.icmp_signed("<", number, i32(total)))
                with builder.if_then(inside):
                    far = builder.mul(builder.sext(own, ir.IntType(64)), product_step_)
                    near = builder.mul(builder.zext(line, ir.IntType(64)), line_step_)
                    inner = builder.zext(builder.shl(piece, i32(4)), ir.IntType(64))
                    source = builder.add(builder.add(arguments[1], far), builder.add(near, inner))
                    offset = builder.add(builder.mul(product, i32(product_bytes)), builder.mul(line, i32(pitch)))
                    sink = builder.add(to_, builder.add(offset, builder.shl(piece, i32(4))))
                    builder.asm(kind, text, "r,l,~{memory}", [sink, source], side_effect=True)
            return context.get_dummy_value()

        return types.void(to, types.uint64, product_step, line_step, first, last, thread), codegen

    return copy
