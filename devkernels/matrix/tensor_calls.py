"""Inner steps of devkernels/matrix/tensor.py as Numba intrinsics: elements to shared memory, a warp's products, ends.

In: constants. Out: intrinsics. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.elements import _stored_type, _to_float
from devkernels.matrix.ptx import i32, i64
from devkernels.matrix.small_calls import _place, _slot, _store_words
from devkernels.matrix.tile import ITEM, pack

_SHARED, _GLOBAL = 3, 1


def _signed(context, builder, value, have):
    return context.cast(builder, value, have, types.int64)


def _shared_vector(builder, place, count: int):
    return builder.inttoptr(place, ir.PointerType(ir.VectorType(ir.IntType(32), count), _SHARED))


@functools.cache
def make_put_element() -> Callable:
    """Return ``put(to, x, batch, row, column, inside)``: one 16-bit element to shared address `to`, or zero."""

    @intrinsic
    def put(typingctx, to, x, batch, row, column, inside):
        def codegen(context, builder, signature, arguments):
            array = context.make_array(signature.args[1])(context, builder, arguments[1])
            target = builder.inttoptr(context.cast(builder, arguments[0], signature.args[0], types.uint32),
                                      ir.PointerType(ir.IntType(16), _SHARED))  # fmt: skip
            place = builder.ptrtoint(array.data, ir.IntType(64))
            for axis in range(3):
                index = _signed(context, builder, arguments[2 + axis], signature.args[2 + axis])
                place = builder.add(place, builder.mul(index, builder.extract_value(array.strides, axis)))
            with builder.if_else(arguments[5]) as (then, otherwise):
                with then:
                    value = builder.load(builder.inttoptr(place, ir.PointerType(ir.IntType(16), _GLOBAL)))
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
            vector = ir.VectorType(ir.IntType(32), 4)
            target = _shared_vector(builder, context.cast(builder, arguments[0], signature.args[0], types.uint32), 4)
            with builder.if_else(arguments[2]) as (then, otherwise):
                with then:
                    source = builder.inttoptr(arguments[1], ir.PointerType(vector, _GLOBAL))
                    builder.store(builder.load(source, align=16), target, align=16)
                with otherwise:
                    builder.store(ir.Constant(vector, [0] * 4), target, align=16)
            return context.get_dummy_value()

        return types.void(to, types.uint64, types.boolean), codegen

    return put


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
            target = _place(context, builder, signature.args[0], arguments[0])
            a_, b_, first, own = (context.cast(builder, v, t, types.uint32)
                           for v, t in zip(arguments[1:], signature.args[1:], strict=True))  # fmt: skip
            g, q = builder.lshr(own, i32(2)), builder.and_(own, i32(3))
            inside = builder.add(builder.shl(first, i32(1)), builder.shl(g, i32(3)))
            inside = builder.xor(inside, builder.shl(q, i32(5)))
            place_b = builder.add(builder.add(b_, builder.mul(q, i32(8 * b_pitch))), inside)
            lines = []
            for j in range(8):
                value = builder.load(_shared_vector(builder, builder.add(place_b, i32(j * b_pitch)), 2), align=8)
                lines.append([builder.extract_element(value, i32(i)) for i in range(2)])

            def column(j, t):
                selector = "0x5410" if t % 2 == 0 else "0x7632"
                return builder.asm(pick, f"prmt.b32 $0, $1, $2, {selector};", "=r,r,r",
                                   [lines[j][t // 2], lines[j + 1][t // 2]], side_effect=False)  # fmt: skip

            right = {(s, t): (column(4 * s, t), column(4 * s + 2, t)) for s in range(2) for t in range(4)}
            place_a = builder.add(a_, builder.add(builder.shl(g, i32(6)), builder.shl(q, i32(4))))
            for block in range(rows // 16):
                left = []
                for half in range(2):
                    where = builder.add(place_a, i32((16 * block + 8 * half) * 64))
                    value = builder.load(_shared_vector(builder, where, 4), align=16)
                    left.append([builder.extract_element(value, i32(i)) for i in range(4)])
                for t in range(4):
                    slots = [_slot(builder, target, (2 * block + i // 2) * 8 + (i % 2) * 4 + t) for i in range(4)]
                    acc = [builder.load(slot) for slot in slots]
                    for s in range(2):
                        given = [left[0][2 * s], left[1][2 * s], left[0][2 * s + 1], left[1][2 * s + 1], *right[s, t]]
                        out = builder.asm(shape, text, constraints, [*acc, *given], side_effect=True)
                        acc = [builder.extract_value(out, i) for i in range(4)]
                    for slot, value in zip(slots, acc, strict=True):
                        builder.store(value, slot)
            return context.get_dummy_value()

        return types.void(sums, a, b, column, lane), codegen

    return product


@functools.cache
def make_clear(count: int) -> Callable:
    """Return ``clear(sums)``."""

    @intrinsic
    def clear(typingctx, sums):
        def codegen(context, builder, signature, arguments):
            target = _place(context, builder, signature.args[0], arguments[0])
            for i in range(count):
                builder.store(ir.Constant(ir.FloatType(), 0.0), _slot(builder, target, i))
            return context.get_dummy_value()

        return types.void(sums), codegen

    return clear


@functools.cache
def make_scale(count: int) -> Callable:
    """Return ``scale(sums, factor)``."""

    @intrinsic
    def scale(typingctx, sums, factor):
        def codegen(context, builder, signature, arguments):
            target = _place(context, builder, signature.args[0], arguments[0])
            by = context.cast(builder, arguments[1], signature.args[1], types.float32)
            for i in range(count):
                slot = _slot(builder, target, i)
                builder.store(builder.fmul(builder.load(slot), by), slot)
            return context.get_dummy_value()

        return types.void(sums, factor), codegen

    return scale


@functools.cache
def make_end(dtype: str, rows: int, has_c: bool, wide: bool) -> Callable:
    """Return ``end(function, sums, alpha, beta, batch, row, column, c, d, extra)``: finish a thread's sums, masked.

    sums[8 i + j] is element (row + 8 i, column + j); the function that of `steps.element_function`, called inside only.
    `wide`: the columns are a multiple of eight, and eight elements of a row of d are one aligned access, or two.
    """

    @intrinsic
    def end(typingctx, function, sums, alpha, beta, batch, row, column, c, d, extra):
        kinds = (types.float32, types.int32, types.int32, types.int32, extra)
        inner = function.get_call_type(typingctx, kinds, {})

        def codegen(context, builder, signature, arguments):
            target = _place(context, builder, signature.args[1], arguments[1])
            alpha_, beta_ = (context.cast(builder, v, t, types.float32)
                             for v, t in zip(arguments[2:4], signature.args[2:4], strict=True))  # fmt: skip
            batch_, row_, column_ = (_signed(context, builder, v, t)
                                     for v, t in zip(arguments[4:7], signature.args[4:7], strict=True))  # fmt: skip
            arrays = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (7, 8)]
            c_dtype = "bfloat16" if "bfloat16" in str(signature.args[7].dtype) else str(signature.args[7].dtype)
            last = [builder.extract_value(arrays[1].shape, i) for i in (1, 2)]

            def place(array, r, k):
                where = builder.ptrtoint(array.data, ir.IntType(64))
                for axis, index in enumerate((batch_, r, k)):
                    where = builder.add(where, builder.mul(index, builder.extract_value(array.strides, axis)))
                return where

            run, stored = context.get_function(function, inner), _stored_type(dtype)

            def element(i, j, r, k):
                value = builder.fmul(builder.load(_slot(builder, target, 8 * i + j)), alpha_)
                if has_c:
                    source = builder.inttoptr(place(arrays[0], r, k), ir.PointerType(_stored_type(c_dtype), _GLOBAL))
                    value = builder.fma(beta_, _to_float(builder, builder.load(source), c_dtype), value)
                narrow = [builder.trunc(v, ir.IntType(32)) for v in (batch_, r, k)]
                given = [context.cast(builder, v, have, want) for v, have, want in
                         zip([value, *narrow, arguments[9]], kinds, inner.args, strict=True)]  # fmt: skip
                return context.cast(builder, run(builder, given), inner.return_type, types.float32)

            for i in range(rows // 8):
                r = builder.add(row_, i64(8 * i))
                inside_row = builder.icmp_signed("<", r, last[0])
                columns = [builder.add(column_, i64(j)) for j in range(8)]
                if wide:
                    with builder.if_then(builder.and_(inside_row, builder.icmp_signed("<", column_, last[1]))):
                        values = [element(i, j, r, k) for j, k in enumerate(columns)]
                        _store_words(builder, place(arrays[1], r, column_), 0, pack(builder, values, dtype))
                    continue
                for j, k in enumerate(columns):
                    with builder.if_then(builder.and_(inside_row, builder.icmp_signed("<", k, last[1]))):
                        value = element(i, j, r, k)
                        if dtype != "float32":
                            value = builder.trunc(pack(builder, [value] * (4 // ITEM[dtype]), dtype)[0], stored)
                        where = place(arrays[1], r, k)
                        builder.store(value, builder.inttoptr(where, ir.PointerType(stored, _GLOBAL)))
            return context.get_dummy_value()

        return types.void(function, sums, alpha, beta, batch, row, column, c, d, extra), codegen

    return end


@functools.cache
def make_keep(dtype: str, rows: int) -> Callable:
    """Return ``keep(function, sums, to, batch, row, column, last_row, last_column, extra)``: an end in shared memory.

    A thread's 8 x (rows // 8) sums, as in `make_end`, become 16-bit elements at ``to + 512 i``. The function is called
    inside only: beyond the last row with the last one, beyond the last column not at all; such elements are zero, so
    that a product with them adds nothing.
    """

    @intrinsic
    def keep(typingctx, function, sums, to, batch, row, column, last_row, last_column, extra):
        kinds = (types.float32, types.int32, types.int32, types.int32, extra)
        inner = function.get_call_type(typingctx, kinds, {})

        def codegen(context, builder, signature, arguments):
            target = _place(context, builder, signature.args[1], arguments[1])
            base = context.cast(builder, arguments[2], signature.args[2], types.uint32)
            batch_, row_, column_, last_row_, last_column_ = (
                context.cast(builder, v, t, types.int32)
                for v, t in zip(arguments[3:8], signature.args[3:8], strict=True)
            )
            run, zero = context.get_function(function, inner), ir.Constant(ir.FloatType(), 0.0)

            def least(a, b):
                return builder.select(builder.icmp_signed("<", a, b), a, b)

            for i in range(rows // 8):
                own_row, results = least(builder.add(row_, i32(8 * i)), last_row_), []
                for j in range(8):
                    own_column = builder.add(column_, i32(j))
                    inside = builder.icmp_signed("<=", own_column, last_column_)
                    value = builder.load(_slot(builder, target, 8 * i + j))
                    given = [value, batch_, own_row, least(own_column, last_column_), arguments[8]]
                    given = [context.cast(builder, v, have, want)
                             for v, have, want in zip(given, kinds, inner.args, strict=True)]  # fmt: skip
                    result = context.cast(builder, run(builder, given), inner.return_type, types.float32)
                    results.append(builder.select(inside, result, zero))
                words, vector = pack(builder, results, dtype), ir.VectorType(ir.IntType(32), 4)
                value = ir.Constant(vector, ir.Undefined)
                for k, word in enumerate(words):
                    value = builder.insert_element(value, word, i32(k))
                builder.store(value, _shared_vector(builder, builder.add(base, i32(512 * i)), 4), align=16)
            return context.get_dummy_value()

        return types.void(function, sums, to, batch, row, column, last_row, last_column, extra), codegen

    return keep
