"""Inner steps of devkernels/matrix/tensor.py as Numba intrinsics: elements to shared memory, a warp's products.

In: constants. Out: intrinsics. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import (
    GLOBAL,
    SHARED,
    i32,
    i64,
    load_words,
    place_of,
    pointer,
    registers,
    signed,
    slot,
    store_words,
)


@functools.cache
def make_put_element() -> Callable:
    """Return ``put(to, x, batch, row, column, inside)``: one 16-bit element to shared address `to`, or zero."""

    @intrinsic
    def put(typingctx, to, x, batch, row, column, inside):
        def codegen(context, builder, signature, arguments):
            array = context.make_array(signature.args[1])(context, builder, arguments[1])
            half = ir.IntType(16)
            to_ = context.cast(builder, arguments[0], signature.args[0], types.uint32)
            target = pointer(builder, to_, half, SHARED)
            indices = (signed(context, builder, v, t)
                       for v, t in zip(arguments[2:5], signature.args[2:5], strict=True))  # fmt: skip
            place = place_of(builder, array, tuple(indices))
            with builder.if_else(arguments[5]) as (then, otherwise):
                with then:
                    value = builder.load(pointer(builder, place, half, GLOBAL))
                    builder.store(value, target)
                with otherwise:
                    builder.store(ir.Constant(ir.IntType(16), 0), target)
            return context.get_dummy_value()

        return types.void(to, x, batch, row, column, types.boolean), codegen

    return put


@functools.cache
def make_put_eight() -> Callable:
    """Return ``put(to, place, inside)``: 16 bytes from global address `place` to shared address `to`, or zeros."""

    @intrinsic
    def put(typingctx, to, place, inside):
        def codegen(context, builder, signature, arguments):
            to_ = context.cast(builder, arguments[0], signature.args[0], types.uint32)
            with builder.if_else(arguments[2]) as (then, otherwise):
                with then:
                    store_words(builder, to_, 0, load_words(builder, arguments[1], 0, 4), SHARED)
                with otherwise:
                    store_words(builder, to_, 0, [i32(0)] * 4, SHARED)
            return context.get_dummy_value()

        return types.void(to, types.uint64, types.boolean), codegen

    return put


@functools.cache
def make_gather(item: int) -> Callable:
    """Return ``gather(to, place, step, left)``: 16 bytes at global address `to` from elements of `item` bytes.

    They lie `step` bytes apart from address `place` on; only the first `left` are read, the others are zero.
    """

    @intrinsic
    def gather(typingctx, to, place, step, left):
        def codegen(context, builder, signature, arguments):
            step_, left_ = (signed(context, builder, v, t)
                            for v, t in zip(arguments[2:], signature.args[2:], strict=True))  # fmt: skip
            size = min(item, 4)  # bytes of a load
            kind, word, each = ir.IntType(8 * size), ir.IntType(32), 4 // size
            words = []
            for e in range(16 // size):
                number, inner = divmod(e * size, item)
                inside = builder.icmp_signed(">", left_, i64(number))
                # the first element can always be read
                offset = builder.select(inside, builder.mul(step_, i64(number)), i64(0))
                place = builder.add(builder.add(arguments[1], offset), i64(inner))
                value = builder.select(inside, builder.load(pointer(builder, place, kind)), ir.Constant(kind, 0))
                value = value if size == 4 else builder.zext(value, word)
                if e % each:
                    words[-1] = builder.or_(words[-1], builder.shl(value, i32(8 * size * (e % each))))
                else:
                    words.append(value)
            store_words(builder, arguments[0], 0, words)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, step, left), codegen

    return gather


@functools.cache
def make_warp_tile(kind: str, rows: int, b_pitch: int) -> Callable:
    """Return ``product(sums, a, b, column, lane)``: sums += a warp's 64 x 32, from shared addresses a and b.

    Rows of a are 64 bytes apart; b has 32 rows `b_pitch` bytes apart, in which 8-byte piece c of row r lies at place
    c ^ 4 * (r // 8), so that a half warp meets no bank twice; `b` is the address of row 0, `column` the warp's first.
    Which k and which column stand where is as in small_calls.make_warp_product.
    """
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{$0, $1, $2, $3}}, {{$8, $9, $10, $11}}, "
        "{$12, $13}, {$4, $5, $6, $7};"
    )
    constraints = "=f,=f,=f,=f,0,1,2,3,r,r,r,r,r,r"

    @intrinsic
    def product(typingctx, sums, a, b, column, lane):
        def codegen(context, builder, signature, arguments):
            floats, words = [ir.FloatType()] * 4, [ir.IntType(32)] * 6
            shape = ir.FunctionType(ir.LiteralStructType(floats), floats + words)
            pick = ir.FunctionType(ir.IntType(32), [ir.IntType(32)] * 2)
            target = registers(context, builder, signature.args[0], arguments[0])
            a_, b_, first, own = (context.cast(builder, v, t, types.uint32)
                           for v, t in zip(arguments[1:], signature.args[1:], strict=True))  # fmt: skip
            g, q = builder.lshr(own, i32(2)), builder.and_(own, i32(3))
            inside = builder.add(builder.shl(first, i32(1)), builder.shl(g, i32(3)))
            inside = builder.xor(inside, builder.shl(q, i32(5)))
            place_b = builder.add(builder.add(b_, builder.mul(q, i32(8 * b_pitch))), inside)
            lines = [load_words(builder, place_b, j * b_pitch, 2, SHARED) for j in range(8)]

            def column(j, t):
                selector = "0x5410" if t % 2 == 0 else "0x7632"
                return builder.asm(pick, f"prmt.b32 $0, $1, $2, {selector};", "=r,r,r",
                                   [lines[j][t // 2], lines[j + 1][t // 2]], side_effect=False)  # fmt: skip

            right = {(s, t): (column(4 * s, t), column(4 * s + 2, t)) for s in range(2) for t in range(4)}
            place_a = builder.add(a_, builder.add(builder.shl(g, i32(6)), builder.shl(q, i32(4))))
            for block in range(rows // 16):
                left = [load_words(builder, place_a, (16 * block + 8 * half) * 64, 4, SHARED) for half in range(2)]
                for t in range(4):
                    slots = [slot(builder, target, (2 * block + i // 2) * 8 + (i % 2) * 4 + t) for i in range(4)]
                    acc = [builder.load(slot) for slot in slots]
                    for s in range(2):
                        given = [left[0][2 * s], left[1][2 * s], left[0][2 * s + 1], left[1][2 * s + 1], *right[s, t]]
                        out = builder.asm(shape, text, constraints, [*acc, *given], side_effect=True)
                        acc = [builder.extract_value(out, i) for i in range(4)]
                    for where, value in zip(slots, acc, strict=True):
                        builder.store(value, where)
            return context.get_dummy_value()

        return types.void(sums, a, b, column, lane), codegen

    return product


@functools.cache
def make_clear(count: int) -> Callable:
    """Return ``clear(sums)``."""

    @intrinsic
    def clear(typingctx, sums):
        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[0], arguments[0])
            for i in range(count):
                where = slot(builder, target, i)
                builder.store(ir.Constant(where.type.pointee, 0.0), where)
            return context.get_dummy_value()

        return types.void(sums), codegen

    return clear


@functools.cache
def make_scale(count: int) -> Callable:
    """Return ``scale(sums, factor)``."""

    @intrinsic
    def scale(typingctx, sums, factor):
        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[0], arguments[0])
            by = context.cast(builder, arguments[1], signature.args[1], types.float32)
            for i in range(count):
                where = slot(builder, target, i)
                builder.store(builder.fmul(builder.load(where), by), where)
            return context.get_dummy_value()

        return types.void(sums, factor), codegen

    return scale
