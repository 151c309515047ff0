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

    `split`: of float32, as three products of tf32: a number is the sum of one with its upper bits and one with what
    they leave, each with ten bits after the point, and the product of the two remainders is left out. Otherwise of
    float64. (PTX ISA, mma.m8n8k4, m16n8k4 and m16n8k8 with .f64, m16n8k8 with .tf32; their fragments are alike.)
    """

    split: bool
    blocks: int
    steps: int

    def operand(self, builder, number) -> tuple:
        """What stands for a number: itself, or its upper bits and the rest, as bits."""
        if not self.split:
            return (number,)
        word = ir.IntType(32)
        upper = builder.and_(builder.bitcast(number, word), i32(0xFFFFE000))
        rest = builder.fsub(number, builder.bitcast(upper, ir.FloatType()))
        return upper, builder.bitcast(rest, word)

    def negative(self, builder, operand: tuple) -> tuple:
        """The same of the negative number."""
        if self.split:
            return tuple(builder.xor(part, i32(0x80000000)) for part in operand)
        return (negative(builder, operand[0]),)

    def add(self, builder, slots: list, a: list[tuple], b: list[tuple]) -> None:
        """Add a product to the sums in `slots`."""
        number, given = (ir.FloatType(), ir.IntType(32)) if self.split else (ir.DoubleType(), ir.DoubleType())
        count, operands = len(slots), [*a, *b]
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
        sums = [builder.load(where) for where in slots]
        for left, right in ((1, 0), (0, 1), (0, 0)) if self.split else ((0, 0),):
            parts = [*(one[left] for one in a), *(one[right] for one in b)]
            found = builder.asm(shape, text, ",".join(constraints), [*sums, *parts], side_effect=True)
            sums = [builder.extract_value(found, i) for i in range(count)]
        for where, value in zip(slots, sums, strict=True):
            builder.store(value, where)


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
        def add(i: int, j: int, part: int, p: list, q: list):
            at = [((i + block) * len(columns) + j) * 2 + e for block in range(product.blocks) for e in range(2)]
            product.add(builder, [slot(builder, sums, width * place + part) for place in at], p, q)

        def operands(steps: list) -> list:
            return [[[product.operand(builder, v) for v in element] for element in step] for step in steps]

        x, y = operands(x), operands(y)
        for k in range(0, each, product.steps):
            for i in range(0, len(rows), product.blocks):
                p = [x[k + step][i + block] for step in range(product.steps) for block in range(product.blocks)]
                real = [one[0] for one in p]
                for j in range(len(columns)):
                    q = [y[k + step][j] for step in range(product.steps)]
                    add(i, j, 0, real, [one[0] for one in q])
                    if width == 2:
                        add(i, j, 1, real, [one[1] for one in q])
                if width == 1:
                    continue
                imaginary = [one[1] for one in p]
                minus = [product.negative(builder, one) for one in imaginary]
                for j in range(len(columns)):
                    q = [y[k + step][j] for step in range(product.steps)]
                    add(i, j, 0, minus, [one[1] for one in q])
                    add(i, j, 1, imaginary, [one[0] for one in q])

    return slices_of(left, right, (each, each), depth // 4, each, compute)
