"""Products of small matrices in registers, as Numba intrinsics: one matrix in a warp, or one row of one in a thread.

In: sizes and dtypes, constants all. Out: intrinsics; nothing goes through shared memory. Imported only where code is
compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import (
    i32,
    i64,
    load_words,
    pack,
    pointer,
    registers,
    slot,
    store_one,
    store_words,
    stored_type,
    to_float,
    unpack,
)
from devkernels.matrix.memory_sizes import ITEM_BYTES


@functools.cache
def make_warp_product(kind: str, m: int, n: int, k: int) -> Callable:
    """Return ``product(sums, a, b, lane)``: a matrix product of a warp's own, m x n x k, rows without gaps.

    kind is f16 or bf16, k 16, 32 or 64, n the same, m a multiple of 16; a and b are addresses (uint64). Lane 4 g + q
    then holds in sums[2 w i + e], w = n // 8, element (row, 2 w q + e) of rows g, g + 8, g + 16 ... (i = 0, 1, 2 ...).

    The products of the tensor cores leave open which k stands in which place, as long as a and b agree, and which
    column is which, as long as the result is read so. Both are chosen such that a thread's elements of a, b and the
    result lie together: k = 4 s q ... 4 s q + 4 s - 1 (s = k // 16), and column w g + t in tile t. (PTX ISA,
    mma.m16n8k16.)
    """
    tiles, steps = n // 8, k // 16
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{$0, $1, $2, $3}}, {{$8, $9, $10, $11}}, "
        "{$12, $13}, {$4, $5, $6, $7};"
    )
    constraints = "=f,=f,=f,=f,0,1,2,3,r,r,r,r,r,r"

    @intrinsic
    def product(typingctx, sums, a, b, lane):
        def codegen(context, builder, signature, arguments):
            floats, words = [ir.FloatType()] * 4, [ir.IntType(32)] * 6
            shape = ir.FunctionType(ir.LiteralStructType(floats), floats + words)
            pick = ir.FunctionType(ir.IntType(32), [ir.IntType(32)] * 2)
            target = registers(context, builder, signature.args[0], arguments[0])
            own = context.cast(builder, arguments[3], signature.args[3], types.uint64)
            g, q = builder.lshr(own, i64(2)), builder.and_(own, i64(3))
            place_b = builder.add(arguments[2], builder.add(builder.mul(q, i64(4 * steps * n * 2)),
                                                            builder.mul(g, i64(tiles * 2))))  # fmt: skip
            rows = [load_words(builder, place_b, j * n * 2, tiles // 2) for j in range(4 * steps)]

            def column(j, t):
                """Elements (j, t) and (j + 1, t) of this thread's part of b in one word."""
                selector = "0x5410" if t % 2 == 0 else "0x7632"
                return builder.asm(pick, f"prmt.b32 $0, $1, $2, {selector};", "=r,r,r",
                                   [rows[j][t // 2], rows[j + 1][t // 2]], side_effect=False)  # fmt: skip

            right = {(s, t): (column(4 * s, t), column(4 * s + 2, t)) for s in range(steps) for t in range(tiles)}
            place_a = builder.add(arguments[1], builder.add(builder.mul(g, i64(k * 2)), builder.mul(q, i64(8 * steps))))
            for block in range(m // 16):
                left = [load_words(builder, place_a, (16 * block + 8 * half) * k * 2, 2 * steps) for half in range(2)]
                for t in range(tiles):
                    acc = [ir.Constant(ir.FloatType(), 0.0)] * 4
                    for s in range(steps):
                        given = [left[0][2 * s], left[1][2 * s], left[0][2 * s + 1], left[1][2 * s + 1], *right[s, t]]
                        out = builder.asm(shape, text, constraints, [*acc, *given], side_effect=True)
                        acc = [builder.extract_value(out, i) for i in range(4)]
                    for i in range(4):
                        index = (2 * block + i // 2) * 2 * tiles + (i % 2) * tiles + t
                        builder.store(acc[i], slot(builder, target, index))
            return context.get_dummy_value()

        return types.void(sums, types.uint64, types.uint64, lane), codegen

    return product


@functools.cache
def make_row_step(a_dtype: str, b_dtype: str, n: int, depth: int, wide: bool) -> Callable:
    """Return ``step(sums, a, b)``: sums[j] += a[i] * b[i * n + j] for i < depth, j < n; a and b are addresses.

    `wide`: both lie on multiples of 16 bytes and are read so. Numbers are float32, or float64 if a and b are.
    """

    @intrinsic
    def step(typingctx, sums, a, b):
        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[0], arguments[0])
            left = _elements(builder, arguments[1], 0, depth, a_dtype, wide)
            values = [builder.load(slot(builder, target, j)) for j in range(n)]
            item = ITEM_BYTES[b_dtype]
            for i in range(depth):
                right = _elements(builder, arguments[2], i * n * item, n, b_dtype, wide)
                values = [builder.fma(left[i], right[j], values[j]) for j in range(n)]
            for j in range(n):
                builder.store(values[j], slot(builder, target, j))
            return context.get_dummy_value()

        return types.void(sums, types.uint64, types.uint64), codegen

    return step


def _elements(builder, place, offset: int, count: int, dtype: str, wide: bool) -> list:
    """`count` numbers from an address, as float32, or float64 as they are."""
    if wide:
        return unpack(builder, load_words(builder, place, offset, count * ITEM_BYTES[dtype] // 4), dtype)
    found, kind = [], stored_type(dtype)
    for i in range(count):
        where = builder.add(place, i64(offset + i * ITEM_BYTES[dtype]))
        value = builder.load(pointer(builder, where, kind))
        found.append(value if dtype == "float64" else to_float(builder, value, dtype))
    return found


@functools.cache
def make_finish_row(dtype: str, count: int, first: int, wide: bool) -> Callable:
    """Return ``finish(function, sums, alpha, batch, row, column, extra, d)``: end of sums[first : first + count].

    They are elements (row, column ...) of a matrix of the batch; `d` is the address of the first. The function is
    that of `steps.element_function`. `wide`: the address is a multiple of all their bytes, or of 16.
    """

    @intrinsic
    def finish(typingctx, function, sums, alpha, batch, row, column, extra, d):
        number = sums.dtype
        kinds = (number, types.int32, types.int32, types.int32, extra)
        inner = function.get_call_type(typingctx, kinds, {})

        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[1], arguments[1])
            factor = context.cast(builder, arguments[2], signature.args[2], number)
            batch_, row_, column_ = (
                context.cast(builder, v, t, types.int32)
                for v, t in zip(arguments[3:6], signature.args[3:6], strict=True)
            )
            run, results = context.get_function(function, inner), []
            for j in range(count):
                value = builder.fmul(builder.load(slot(builder, target, first + j)), factor)
                given = [value, batch_, row_, builder.add(column_, i32(j)), arguments[6]]
                given = [context.cast(builder, v, have, want)
                         for v, have, want in zip(given, kinds, inner.args, strict=True)]  # fmt: skip
                results.append(context.cast(builder, run(builder, given), inner.return_type, number))
            if wide:
                store_words(builder, arguments[7], 0, pack(builder, results, dtype))
                return context.get_dummy_value()
            for j, value in enumerate(results):
                store_one(builder, builder.add(arguments[7], i64(j * ITEM_BYTES[dtype])), value, dtype)
            return context.get_dummy_value()

        return types.void(function, sums, alpha, batch, row, column, extra, types.uint64), codegen

    return finish
