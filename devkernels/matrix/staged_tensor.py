"""The steps of a slice that lies in shared memory, as Numba intrinsics, by the tensor cores.

In: constants of a tiling. Out: `Slices`. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import i32, registers, slot
from devkernels.matrix.staged_calls import Kept, Side, Slices, negative, slices_of


@dataclass(frozen=True)
class TensorProduct:
    """One product of the tensor cores: the number of blocks of eight rows, and of steps of the inner dimension.

    `split`: of float32, as three products of tf32: a number is nearly the sum of two with ten bits after the point, it
    rounded and what that leaves, and the product of the two remainders is left out. Otherwise of float64. (PTX ISA,
    mma.m8n8k4, m16n8k4 and m16n8k8 with .f64, m16n8k8 with .tf32; their fragments are alike.)
    """

    split: bool
    blocks: int
    steps: int

    def operand(self, builder, number) -> tuple:
        """What stands for a number: itself, or the two that it is nearly the sum of, as bits."""
        if not self.split:
            return (number,)
        kind = ir.FunctionType(ir.IntType(32), [ir.FloatType()])

        def rounded(value):
            return builder.asm(kind, "cvt.rna.tf32.f32 $0, $1;", "=r,f", [value], side_effect=False)

        first = rounded(number)
        return first, rounded(builder.fsub(number, builder.bitcast(first, ir.FloatType())))

    def negative(self, builder, operand: tuple) -> tuple:
        """The same of the negative number."""
        if self.split:
            return tuple(builder.xor(part, i32(0x80000000)) for part in operand)
        return (negative(builder, operand[0]),)

    def add(self, builder, sums: list, a: list[tuple], b: list[tuple]) -> list:
        """`sums` and a product."""
        number, given = (ir.FloatType(), ir.IntType(32)) if self.split else (ir.DoubleType(), ir.DoubleType())
        count, operands = len(sums), [*a, *b]
        shape = ir.FunctionType(ir.LiteralStructType([number] * count), [number] * count + [given] * len(operands))
        letters = ("f", "r") if self.split else ("d", "d")
        constraints = [f"={letters[0]}"] * count + [str(i) for i in range(count)] + [letters[1]] * len(operands)
        dtypes = "f32.tf32.tf32.f32" if self.split else "f64.f64.f64.f64"

        def names(first: int, length: int) -> str:
            return "{" + ", ".join(f"${first + i}" for i in range(length)) + "}"

        text = (
            f"mma.sync.aligned.m{8 * self.blocks}n8k{4 * self.steps}.row.col.{dtypes} {names(0, count)}, "
            f"{names(2 * count, len(a))}, {names(2 * count + len(a), len(b))}, {names(count, count)};"
        )
        for left, right in ((1, 0), (0, 1), (0, 0)) if self.split else ((0, 0),):
            parts = [*(one[left] for one in a), *(one[right] for one in b)]
            found = builder.asm(shape, text, ",".join(constraints), [*sums, *parts], side_effect=True)
            sums = [builder.extract_value(found, i) for i in range(count)]
        return sums


@functools.cache
def make_tensor_slices(dtype: str, a_along: bool, b_along: bool, a_pitch: int, b_pitch: int, rows: tuple[int, ...],
                       columns: tuple[int, ...], depth: int, tall: bool) -> Slices:  # fmt: skip
    """Steps of a slice by the tensor cores, a warp together: float64 as such, float32 as three products of tf32.

    rows[i] is the row of a's block i of 8 that lane 4 g + q holds for g = 0, columns[j] the column of b's block j;
    addresses are those of this lane's element (g, q). The sums of block (i, j) are elements (g, 2 q + e) of it, e = 0,
    1, as sums[2 (blocks of b) i + 2 j + e], parts of complex numbers one after another. `tall`: products of 16 rows,
    which all but the oldest tensor cores have. Which k stands where is free, as long as a and b agree: the four lanes
    of a group read four accesses side by side; and which row, so that a tall product takes two blocks.
    """
    left, right = Side(dtype, a_along, a_pitch, rows, 4), Side(dtype, b_along, b_pitch, columns, 4)
    width, each = left.width, left.each
    product = TensorProduct(left.parts == "float32", 2, min(2, each)) if tall else TensorProduct(False, 1, 1)

    def operands(builder, steps: list) -> list:
        return [[[product.operand(builder, v) for v in element] for element in step] for step in steps]

    def multiply(builder, sums, x, y, first: int):
        """Multiply blocks of rows from number `first` on, [k][block] of parts, by all columns, [k][j] of operands."""

        def slots(i: int, j: int, part: int) -> list:
            at = [((i + block) * len(columns) + j) * 2 + e for block in range(product.blocks) for e in range(2)]
            return [slot(builder, sums, width * place + part) for place in at]

        zero = ir.Constant(ir.FloatType(), 0.0)
        for i in range(0, len(x[0]), product.blocks):
            own = operands(builder, [step[i : i + product.blocks] for step in x])
            for part in range(width):
                # Tensor cores cut off what they add up in float32; so they start anew, and the rest is added up here.
                found = [
                    [zero] * 2 * product.blocks
                    if product.split
                    else [builder.load(where) for where in slots(first + i, j, part)]
                    for j in range(len(columns))
                ]
                for k in range(0, each, product.steps):
                    p = [own[k + step][block] for step in range(product.steps) for block in range(product.blocks)]
                    q = [[y[k + step][j] for step in range(product.steps)] for j in range(len(columns))]
                    pairs = [([one[0] for one in p], part)]
                    if width == 2:
                        other = [one[1] for one in p]
                        pairs.append(
                            ([product.negative(builder, one) for one in other], 1) if part == 0 else (other, 0)
                        )
                    for left_parts, which in pairs:
                        for j in range(len(columns)):
                            found[j] = product.add(builder, found[j], left_parts, [one[which] for one in q[j]])
                for j in range(len(columns)):
                    for where, value in zip(slots(first + i, j, part), found[j], strict=True):
                        builder.store(builder.fadd(builder.load(where), value) if product.split else value, where)

    if not product.split:

        def compute(builder, sums, x, y):
            multiply(builder, sums, x, operands(builder, y), 0)

        return slices_of(left, right, (each, each), depth // 4, each, compute)
    at_once = product.blocks if a_along else each
    parts = [replace(left, offsets=rows[i : i + at_once]) for i in range(0, len(rows), at_once)]
    return _in_parts(parts, right, depth // 4 // each, operands, multiply)


def _in_parts(parts: list[Side], right: Side, groups: int, operands: Callable, multiply: Callable) -> Slices:
    """As `slices_of`, where numbers take twice the registers: a is read some rows at a time, ahead of the products."""
    each, kept_b = right.each, Kept(right, right.each)
    kept_a = Kept(parts[0], each)

    def places(context, builder, signature, arguments, first: int) -> list:
        return [
            context.cast(builder, v, t, types.uint32)
            for v, t in zip(arguments[first:], signature.args[first:], strict=True)
        ]

    def unit(builder, sums, x, y, number: int):
        # The assembler would read everything as early as it can, and spill; it moves no reads across this.
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.asm(kind, "bar.warp.sync -1;", "~{memory}", [], side_effect=True)
        multiply(builder, sums, x, y, number * len(parts[0].offsets))

    @intrinsic
    def start(typingctx, first_a, first_b, a, b):
        def codegen(context, builder, signature, arguments):
            a_, b_ = places(context, builder, signature, arguments, 2)
            targets = [registers(context, builder, signature.args[i], arguments[i]) for i in range(2)]
            kept_a.put(builder, targets[0], parts[0].group(builder, a_, 0, each))
            kept_b.put(builder, targets[1], right.group(builder, b_, 0, each))
            return context.get_dummy_value()

        return types.void(first_a, first_b, a, b), codegen

    @intrinsic
    def most(typingctx, sums, first_a, first_b, last_a, last_b, a, b):
        def codegen(context, builder, signature, arguments):
            a_, b_ = places(context, builder, signature, arguments, 5)
            targets = [registers(context, builder, signature.args[i], arguments[i]) for i in range(5)]
            x, raw = kept_a.get(builder, targets[1]), kept_b.get(builder, targets[2])
            for group in range(groups - 1):
                y = operands(builder, raw)
                for number in range(len(parts)):
                    last = number + 1 == len(parts)
                    if last:
                        raw = right.group(builder, b_, group + 1, each)
                    ahead = parts[0 if last else number + 1].group(builder, a_, group + last, each)
                    unit(builder, targets[0], x, y, number)
                    x = ahead
            kept_a.put(builder, targets[3], x)
            kept_b.put(builder, targets[4], raw)
            return context.get_dummy_value()

        return types.void(sums, first_a, first_b, last_a, last_b, a, b), codegen

    @intrinsic
    def rest(typingctx, sums, first_a, first_b, last_a, last_b, a, b, own):
        def codegen(context, builder, signature, arguments):
            a_, b_, own_ = places(context, builder, signature, arguments, 5)
            targets = [registers(context, builder, signature.args[i], arguments[i]) for i in range(5)]
            x, y = kept_a.get(builder, targets[3]), operands(builder, kept_b.get(builder, targets[4]))
            for number in range(len(parts)):
                if number + 1 < len(parts):
                    ahead = parts[number + 1].group(builder, own_, groups - 1, each)
                else:
                    kept_b.put(builder, targets[2], right.group(builder, b_, 0, each))
                    ahead = parts[0].group(builder, a_, 0, each)
                unit(builder, targets[0], x, y, number)
                x = ahead
            kept_a.put(builder, targets[1], x)
            return context.get_dummy_value()

        return types.void(sums, first_a, first_b, last_a, last_b, a, b, own), codegen

    return Slices(start, most, rest, (kept_a.length, kept_b.length) * 2)
