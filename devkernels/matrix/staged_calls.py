"""Inner steps of devkernels/matrix/staged.py as Numba intrinsics: asynchronous copies, and a slice's multiplications.

In: constants of a tiling. Out: intrinsics. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import (
    SHARED,
    i32,
    load_words,
    registers,
    signed,
    slot,
    whole,
)
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


# -- numbers of a slice ------------------------------------------------------------------------------------------------


def _numbers(builder, words: list, parts: str) -> list:
    """Real numbers (float32 or float64) in words of shared memory."""
    if parts == "float32":
        return [builder.bitcast(word, ir.FloatType()) for word in words]
    return [whole(builder, *words[i : i + 2]) for i in range(0, len(words), 2)]


def _negative(builder, value):
    return builder.fsub(ir.Constant(value.type, -0.0), value)


class _Side:
    """One operand of a slice in shared memory: reads what a thread needs of it, 16 bytes at a time.

    `lines` vectors (along) or elements (across) of `count` numbers, `spread` apart.
    """

    def __init__(self, builder, place, dtype: str, along: bool, pitch: int, offsets: tuple[int, ...]):
        self.builder, self.place, self.along, self.pitch, self.offsets = builder, place, along, pitch, offsets
        self.parts = "float64" if dtype in ("float64", "complex128") else "float32"
        self.width = 2 if dtype.startswith("complex") else 1
        self.item = (8 if self.parts == "float64" else 4) * self.width
        self.each = WIDEST // self.item  # elements of one access

    def _access(self, offset: int) -> list[list]:
        numbers = _numbers(self.builder, load_words(self.builder, self.place, offset, 4, SHARED), self.parts)
        return [numbers[i : i + self.width] for i in range(0, len(numbers), self.width)]

    def unit(self, number: int) -> list[list[list]]:
        """Elements [k][i] for the `each` values of k of unit `number`, i as in `offsets`; a list of parts each."""
        if self.along:
            vectors = [self._access(line * self.pitch + WIDEST * number) for line in self.offsets]
            return [[vector[k] for vector in vectors] for k in range(self.each)]
        found = []
        for k in range(self.each):
            row = []
            for first in self.offsets[:: self.each]:
                row += self._access((number * self.each + k) * self.pitch + first * self.item)
            found.append(row)
        return found


@functools.cache
def make_multiply(dtype: str, a_along: bool, b_along: bool, a_pitch: int, b_pitch: int, rows: tuple[int, ...],
                  columns: tuple[int, ...], depth: int) -> Callable:  # fmt: skip
    """Return ``multiply(sums, a, b)``: sums[i, j] += a[rows[i], k] b[k, columns[j]] over a slice, by fused operations.

    `a` and `b` are the shared addresses of this thread's first element. With `along`, the inner dimension is
    contiguous; without, rows and columns come in groups that one access reads. Complex products are added up part by
    part, four operations each.
    """
    is_complex = dtype.startswith("complex")
    width = 2 if is_complex else 1

    @intrinsic
    def multiply(typingctx, sums, a, b):
        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[0], arguments[0])
            a_, b_ = (context.cast(builder, v, t, types.uint32)
                      for v, t in zip(arguments[1:], signature.args[1:], strict=True))  # fmt: skip
            left = _Side(builder, a_, dtype, a_along, a_pitch, rows)
            right = _Side(builder, b_, dtype, b_along, b_pitch, columns)
            count = len(rows) * len(columns) * width
            values = [builder.load(slot(builder, target, i)) for i in range(count)]
            for unit in range(depth // left.each):
                for x, y in zip(left.unit(unit), right.unit(unit), strict=True):
                    for i, p in enumerate(x):
                        for j, q in enumerate(y):
                            at = (i * len(columns) + j) * width
                            values[at] = builder.fma(p[0], q[0], values[at])
                            if is_complex:
                                values[at + 1] = builder.fma(p[0], q[1], values[at + 1])
                    if is_complex:
                        for i, p in enumerate(x):
                            minus = _negative(builder, p[1])
                            for j, q in enumerate(y):
                                at = (i * len(columns) + j) * width
                                values[at] = builder.fma(minus, q[1], values[at])
                                values[at + 1] = builder.fma(p[1], q[0], values[at + 1])
            for i, value in enumerate(values):
                builder.store(value, slot(builder, target, i))
            return context.get_dummy_value()

        return types.void(sums, a, b), codegen

    return multiply


@functools.cache
def make_double_multiply(dtype: str, a_along: bool, b_along: bool, a_pitch: int, b_pitch: int, rows: tuple[int, ...],
                         columns: tuple[int, ...], depth: int, tall: bool) -> Callable:  # fmt: skip
    """Return ``multiply(sums, a, b)`` as `make_multiply`, by the tensor cores in double precision (a warp together).

    rows[i] is the row of a's block i of 8 that lane 4 g + q holds for g = 0, columns[j] the column of b's block j; `a`
    and `b` are the addresses of this lane's element (g, q). The sums of block (i, j) are elements (g, 2 q + e) of it, e
    = 0, 1, as sums[2 (blocks of b) i + 2 j + e], parts of complex numbers one after another. (PTX ISA, mma.m8n8k4, or
    with `tall` m16n8k4 and m16n8k8, with .f64. Which k stands where is free, as long as a and b agree: of a unit, lane
    q takes those that one access reads; and which row, so that a tall product takes two blocks.)
    """
    is_complex = dtype == "complex128"
    width = 2 if is_complex else 1
    blocks, steps = (2, 1 if is_complex else 2) if tall else (1, 1)  # of rows and of k, in one product
    count = 2 * blocks

    def names(first: int, number: int) -> str:
        return "{" + ", ".join(f"${first + i}" for i in range(number)) + "}"

    text = (
        f"mma.sync.aligned.m{8 * blocks}n8k{4 * steps}.row.col.f64.f64.f64.f64 {names(0, count)}, "
        f"{names(2 * count, blocks * steps)}, {names(2 * count + blocks * steps, steps)}, {names(count, count)};"
    )
    constraints = ",".join(["=d"] * count + [str(i) for i in range(count)] + ["d"] * (blocks * steps + steps))

    @intrinsic
    def multiply(typingctx, sums, a, b):
        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[0], arguments[0])
            a_, b_ = (context.cast(builder, v, t, types.uint32)
                      for v, t in zip(arguments[1:], signature.args[1:], strict=True))  # fmt: skip
            left = _Side(builder, a_, dtype, a_along, a_pitch, rows)
            right = _Side(builder, b_, dtype, b_along, b_pitch, columns)
            double = ir.DoubleType()
            given = [double] * (count + blocks * steps + steps)
            shape = ir.FunctionType(ir.LiteralStructType([double] * count), given)

            def mma(i: int, j: int, part: int, p: list, q: list):
                at = [((i + block) * len(columns) + j) * 2 + e for block in range(blocks) for e in range(2)]
                slots = [slot(builder, target, width * place + part) for place in at]
                found = builder.asm(shape, text, constraints, [*map(builder.load, slots), *p, *q], side_effect=True)
                for e, where in enumerate(slots):
                    builder.store(builder.extract_value(found, e), where)

            for unit in range(depth // (4 * left.each)):
                # The four lanes of a group read four accesses side by side.
                x, y = left.unit(4 * unit), right.unit(4 * unit)
                for k in range(0, left.each, steps):
                    for i in range(0, len(rows), blocks):
                        p = [x[k + step][i + block] for step in range(steps) for block in range(blocks)]
                        real = [one[0] for one in p]
                        for j in range(len(columns)):
                            q = [y[k + step][j] for step in range(steps)]
                            mma(i, j, 0, real, [one[0] for one in q])
                            if is_complex:
                                mma(i, j, 1, real, [one[1] for one in q])
                        if not is_complex:
                            continue
                        imaginary = [one[1] for one in p]
                        minus = [_negative(builder, one) for one in imaginary]
                        for j in range(len(columns)):
                            q = [y[k + step][j] for step in range(steps)]
                            mma(i, j, 0, minus, [one[1] for one in q])
                            mma(i, j, 1, imaginary, [one[0] for one in q])
            return context.get_dummy_value()

        return types.void(sums, a, b), codegen

    return multiply
