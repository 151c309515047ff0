"""Inner steps of devkernels/matrix/staged.py as Numba intrinsics: asynchronous copies, and a slice's multiplications.

In: constants of a tiling. Out: intrinsics. Imported only where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

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
from devkernels.matrix.memory_sizes import ITEM_BYTES, WIDEST
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


@dataclass(frozen=True)
class _Side:
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
class _Kept:
    """Some steps of one operand that stay in a local array while the threads of a block wait for each other."""

    side: _Side
    steps: int

    @property
    def length(self) -> int:
        """Numbers in the array."""
        return self.steps * len(self.side.offsets) * self.side.width

    def put(self, builder, target, steps: list) -> None:
        for i, value in enumerate(value for step in steps for element in step for value in element):
            builder.store(value, slot(builder, target, i))

    def get(self, builder, target) -> list:
        values = [builder.load(slot(builder, target, i)) for i in range(self.length)]
        width, count = self.side.width, len(self.side.offsets)
        elements = [values[i : i + width] for i in range(0, len(values), width)]
        return [elements[i : i + count] for i in range(0, len(elements), count)]


@dataclass(frozen=True)
class Slices:
    """How a slice is multiplied: three intrinsics, and lengths of the local arrays that they take.

    ``start(first_a, first_b, a, b)`` reads the first steps of a slice at shared addresses a and b;
    ``most(sums, first_a, first_b, last_a, last_b, a, b)`` does all steps but the last ones, which it reads;
    ``rest(sums, first_a, first_b, last_a, last_b, a, b)`` reads the first steps of the next slice, at a and b, and does
    the last ones. Between the two, the next slice is waited for; what is needed on either side is in registers by then.
    """

    start: Callable
    most: Callable
    rest: Callable
    lengths: tuple[int, int, int, int]


def _slices(left: _Side, right: _Side, groups: tuple[int, int], steps: int, last: int, compute: Callable) -> Slices:
    """Intrinsics of `steps` steps, of which `last` are the last ones; ``compute(builder, sums, x, y)`` does steps.

    The operands are read `groups` steps at a time.
    """
    sides = left, right
    first_kept = [_Kept(side, group) for side, group in zip(sides, groups, strict=True)]
    last_kept = [_Kept(side, last) for side in sides]

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
    def rest(typingctx, sums, first_a, first_b, last_a, last_b, a, b):
        def codegen(context, builder, signature, arguments):
            targets = [registers(context, builder, signature.args[i], arguments[i]) for i in range(5)]
            places = [context.cast(builder, arguments[i], signature.args[i], types.uint32) for i in (5, 6)]
            given = [last_kept[which].get(builder, targets[3 + which]) for which in range(2)]
            for which in range(2):
                values = sides[which].group(builder, places[which], 0, groups[which])
                first_kept[which].put(builder, targets[1 + which], values)
            compute(builder, targets[0], *given)
            return context.get_dummy_value()

        return types.void(sums, first_a, first_b, last_a, last_b, a, b), codegen

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
                minus = _negative(builder, p[1])
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
    left, right = _Side(dtype, a_along, a_pitch, rows), _Side(dtype, b_along, b_pitch, columns)
    groups = tuple(side.each if side.along else 1 for side in (left, right))
    return _slices(left, right, groups, depth, 1, _fused(len(columns), left.width))


@functools.cache
def make_multiply(dtype: str, a_along: bool, b_along: bool, a_pitch: int, b_pitch: int, rows: tuple[int, ...],
                  columns: tuple[int, ...], depth: int) -> Callable:  # fmt: skip
    """Return ``multiply(sums, a, b)``: all steps of `make_slices` at once."""
    left, right = _Side(dtype, a_along, a_pitch, rows), _Side(dtype, b_along, b_pitch, columns)
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


@dataclass(frozen=True)
class _TensorProduct:
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
        return (_negative(builder, operand[0]),)

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
    left, right = _Side(dtype, a_along, a_pitch, rows, 4), _Side(dtype, b_along, b_pitch, columns, 4)
    width, each = left.width, left.each
    product = _TensorProduct(left.parts == "float32", 2, min(2, each)) if tall else _TensorProduct(False, 1, 1)

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

    return _slices(left, right, (each, each), depth // 4, each, compute)
