"""The steps of a slice that lies in shared memory, as Numba intrinsics, by fused operations of each thread.

In: constants of a tiling. Out: `Slices`, and for products of one slice a single intrinsic. Imported only where code is
compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import SHARED, load_words, registers, slot, whole
from devkernels.matrix.memory_sizes import ITEM_BYTES, WIDEST


def _numbers(builder, words: list, parts: str) -> list:
    """Real numbers (float32 or float64) in words of shared memory."""
    if parts == "float32":
        return [builder.bitcast(word, ir.FloatType()) for word in words]
    return [whole(builder, *words[i : i + 2]) for i in range(0, len(words), 2)]


def negative(builder, value):
    """The negative of a number; -0.0 of 0.0."""
    return builder.fsub(ir.Constant(value.type, -0.0), value)


@dataclass(frozen=True)
class Side:
    """One operand of a slice in shared memory: reads what a thread needs of it, 16 bytes at a time.

    Step k of the slice multiplies elements k of `offsets` lines (along), or those that lie at `offsets` in line k
    (across). A lane of `lanes` side by side takes every so many accesses.
    """

    dtype: str
    along: bool
    pitch: int
    offsets: tuple[int, ...]
    lanes: int = 1

    @property
    def parts(self) -> str:
        """Dtype of the real numbers that elements are made of."""
        return "float64" if self.dtype in ("float64", "complex128") else "float32"

    @property
    def width(self) -> int:
        """Real numbers of an element."""
        return 2 if self.dtype.startswith("complex") else 1

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def each(self) -> int:
        """Elements of one access."""
        return WIDEST // self.item

    def _access(self, builder, place, offset: int) -> list[list]:
        numbers = _numbers(builder, load_words(builder, place, offset, 4, SHARED), self.parts)
        return [numbers[i : i + self.width] for i in range(0, len(numbers), self.width)]

    def group(self, builder, place, number: int, steps: int) -> list[list[list]]:
        """Elements [k][i] of `steps` steps from step ``number * steps`` on, i as in `offsets`; a list of parts each."""
        if self.along:
            first = WIDEST * (number * steps // self.each) * self.lanes
            vectors = [self._access(builder, place, line * self.pitch + first) for line in self.offsets]
            return [[vector[k] for vector in vectors] for k in range(self.each)]
        found = []
        for k in range(steps):
            line = (number * steps + k) // self.each * self.each * self.lanes + (number * steps + k) % self.each
            row = []
            for first in self.offsets[:: self.each]:
                row += self._access(builder, place, line * self.pitch + first * self.item)
            found.append(row)
        return found


@dataclass(frozen=True)
class Kept:
    """Some steps of one operand that stay in a local array while the threads of a block wait for each other."""

    side: Side
    steps: int

    @property
    def length(self) -> int:
        """Numbers in the array."""
        return self.steps * len(self.side.offsets) * self.side.width

    def put(self, builder, target, steps: list) -> None:
        """Store elements [k][i], lists of parts."""
        for i, value in enumerate(value for step in steps for element in step for value in element):
            builder.store(value, slot(builder, target, i))

    def get(self, builder, target) -> list:
        """The elements that `put` stored."""
        values = [builder.load(slot(builder, target, i)) for i in range(self.length)]
        width, count = self.side.width, len(self.side.offsets)
        elements = [values[i : i + width] for i in range(0, len(values), width)]
        return [elements[i : i + count] for i in range(0, len(elements), count)]


@dataclass(frozen=True)
class Slices:
    """How a slice is multiplied: three intrinsics, and lengths of the local arrays that they take.

    ``start(first_a, first_b, a, b)`` reads the first steps of a slice at shared addresses a and b;
    ``most(sums, first_a, first_b, last_a, last_b, a, b)`` does all steps but the last ones, which it reads;
    ``rest(sums, first_a, first_b, last_a, last_b, a, b, own)`` reads the first steps of the next slice, at a and b, and
    does the last ones; `own` is where a lies in this slice. Between the two, the next slice is waited for; what is
    needed on either side is in registers by then, or may still be read from this slice.
    """

    start: Callable
    most: Callable
    rest: Callable
    lengths: tuple[int, int, int, int]


def slices_of(left: Side, right: Side, groups: tuple[int, int], steps: int, last: int, compute: Callable) -> Slices:
    """Intrinsics of `steps` steps, of which `last` are the last ones; ``compute(builder, sums, x, y)`` does steps.

    The operands are read `groups` steps at a time.
    """
    sides = left, right
    first_kept = [Kept(side, group) for side, group in zip(sides, groups, strict=True)]
    last_kept = [Kept(side, last) for side in sides]

    @intrinsic
    def start(typingctx, first_a, first_b, a, b):
        def codegen(context, builder, signature, arguments):
            targets = [registers(context, builder, signature.args[i], arguments[i]) for i in range(2)]
            places = [context.cast(builder, arguments[i], signature.args[i], types.uint32) for i in (2, 3)]
            for side, group, kept, target, place in zip(sides, groups, first_kept, targets, places, strict=True):
                kept.put(builder, target, side.group(builder, place, 0, group))
            return context.get_dummy_value()

        return types.void(first_a, first_b, a, b), codegen

    @intrinsic
    def most(typingctx, sums, first_a, first_b, last_a, last_b, a, b):
        def codegen(context, builder, signature, arguments):
            targets = [registers(context, builder, signature.args[i], arguments[i]) for i in range(5)]
            places = [context.cast(builder, arguments[i], signature.args[i], types.uint32) for i in (5, 6)]
            read = [[], []]
            for which in range(2):
                read[which] = first_kept[which].get(builder, targets[1 + which])
            done = 0
            while done < steps:
                for which in range(2):
                    while len(read[which]) <= done:
                        number = len(read[which]) // groups[which]
                        read[which] += sides[which].group(builder, places[which], number, groups[which])
                if done == steps - last:
                    for which in range(2):
                        last_kept[which].put(builder, targets[3 + which], read[which][done : done + last])
                    break
                compute(builder, targets[0], read[0][done : done + last], read[1][done : done + last])
                done += last
            return context.get_dummy_value()

        return types.void(sums, first_a, first_b, last_a, last_b, a, b), codegen

    @intrinsic
    def rest(typingctx, sums, first_a, first_b, last_a, last_b, a, b, own):
        def codegen(context, builder, signature, arguments):
            targets = [registers(context, builder, signature.args[i], arguments[i]) for i in range(5)]
            places = [context.cast(builder, arguments[i], signature.args[i], types.uint32) for i in (5, 6)]
            given = [last_kept[which].get(builder, targets[3 + which]) for which in range(2)]
            for which in range(2):
                values = sides[which].group(builder, places[which], 0, groups[which])
                first_kept[which].put(builder, targets[1 + which], values)
            compute(builder, targets[0], *given)
            return context.get_dummy_value()

        return types.void(sums, first_a, first_b, last_a, last_b, a, b, own), codegen

    return Slices(start, most, rest, tuple(kept.length for kept in (*first_kept, *last_kept)))


def _fused(columns: int, width: int) -> Callable:
    """Fused operations for some steps: sums[i, j] += a[i] b[j], complex ones part by part, four operations each."""

    def compute(builder, sums, x, y):
        def add(at: int, p, q):
            where = slot(builder, sums, at)
            builder.store(builder.fma(p, q, builder.load(where)), where)

        for left, right in zip(x, y, strict=True):
            for i, p in enumerate(left):
                for j, q in enumerate(right):
                    add((i * columns + j) * width, p[0], q[0])
                    if width == 2:
                        add((i * columns + j) * width + 1, p[0], q[1])
            if width == 1:
                continue
            for i, p in enumerate(left):
                minus = negative(builder, p[1])
                for j, q in enumerate(right):
                    add((i * columns + j) * width, minus, q[1])
                    add((i * columns + j) * width + 1, p[1], q[0])

    return compute


@functools.cache
def make_slices(dtype: str, a_along: bool, b_along: bool, a_pitch: int, b_pitch: int, rows: tuple[int, ...],
                columns: tuple[int, ...], depth: int) -> Slices:  # fmt: skip
    """Steps of a slice by fused operations: sums[i, j] += a[rows[i], k] b[k, columns[j]].

    Addresses are those of this thread's first element. With `along`, the inner dimension is contiguous; without, rows
    and columns come in groups that one access reads.
    """
    left, right = Side(dtype, a_along, a_pitch, rows), Side(dtype, b_along, b_pitch, columns)
    groups = tuple(side.each if side.along else 1 for side in (left, right))
    return slices_of(left, right, groups, depth, 1, _fused(len(columns), left.width))


@functools.cache
def make_multiply(dtype: str, a_along: bool, b_along: bool, a_pitch: int, b_pitch: int, rows: tuple[int, ...],
                  columns: tuple[int, ...], depth: int) -> Callable:  # fmt: skip
    """Return ``multiply(sums, a, b)``: all steps of `make_slices` at once."""
    left, right = Side(dtype, a_along, a_pitch, rows), Side(dtype, b_along, b_pitch, columns)
    compute = _fused(len(columns), left.width)

    @intrinsic
    def multiply(typingctx, sums, a, b):
        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[0], arguments[0])
            a_, b_ = (context.cast(builder, v, t, types.uint32)
                      for v, t in zip(arguments[1:], signature.args[1:], strict=True))  # fmt: skip
            for unit in range(depth // left.each):
                x, y = left.group(builder, a_, unit, left.each), right.group(builder, b_, unit, left.each)
                compute(builder, target, x, y)
            return context.get_dummy_value()

        return types.void(sums, a, b), codegen

    return multiply
