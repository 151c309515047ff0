"""The steps of a slice that lies in shared memory, as Numba intrinsics, by the tensor cores.

In: constants of a tiling. Out: `Slices`. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from llvmlite import ir

from devkernels.matrix.memory import i32, slot
from devkernels.matrix.staged_calls import Side, Slices, negative, slices_of


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

    def compute(builder, sums, x, y):
        def operands(steps: list) -> list:
            return [[[product.operand(builder, v) for v in element] for element in step] for step in steps]

        def slots(i: int, j: int, part: int) -> list:
            at = [((i + block) * len(columns) + j) * 2 + e for block in range(product.blocks) for e in range(2)]
            return [slot(builder, sums, width * place + part) for place in at]

        y = operands(y)
        zero = ir.Constant(ir.FloatType(), 0.0)
        for i in range(0, len(rows), product.blocks):
            own = operands([step[i : i + product.blocks] for step in x])
            for part in range(width):
                # Tensor cores cut off what they add up in float32; so they start anew, and the rest is added up here.
                found = [[zero] * 2 * product.blocks if product.split else
                         [builder.load(where) for where in slots(i, j, part)] for j in range(len(columns))]  # fmt: skip
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
                    for where, value in zip(slots(i, j, part), found[j], strict=True):
                        builder.store(builder.fadd(builder.load(where), value) if product.split else value, where)

    return slices_of(left, right, (each, each), depth // 4, each, compute)
