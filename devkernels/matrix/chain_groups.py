"""Two products in one kernel by warpgroups (sm_90), the matrix between them in shared memory.

In: a `GroupChain` and two epilogues' device functions. Out: a kernel as a Python function. A block takes 128 rows, each
of its two warpgroups 64 of them. Tensor copies fill one ring of stages with all that the block reads, first of a and b,
then of c; the matrix in between lies as the first operand of the second product must, 64 columns of all rows together.
(PTX ISA, sections on wgmma, mbarrier and cp.async.bulk.tensor.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.lazy import cuda
from devkernels.matrix.warpgroup import LINE, PAD_WORDS, descriptor

ROWS = COLUMNS = 128
THREADS = 256
DEPTH = 64  # elements of the inner dimension in a stage
_SLICE = ROWS * LINE  # bytes of 64 columns in between, and of an operand in a stage
_STAGE = 2 * _SLICE
_MOST, _SLACK = 5, 1024
MAP_WORDS = PAD_WORDS + 3 * 16


@dataclass(frozen=True)
class GroupChain:
    """`columns` of the matrix in between; of a, b and c whether they are turned, and have a batch of their own."""

    dtype: str
    out_dtype: str
    columns: int
    turned: tuple[bool, bool, bool]
    batched: tuple[bool, bool, bool]
    stages: int
    d_wide: bool = False

    @property
    def chunks(self) -> int:
        """Tiles of the first product that a block makes."""
        return -(-self.columns // COLUMNS)

    @property
    def between_bytes(self) -> int:
        """Bytes of the matrix in between."""
        return 2 * self.chunks * _SLICE

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return _SLACK + self.between_bytes + self.stages * (_STAGE + 16)


def stages_for(columns: int, room: int) -> int:
    """Stages that fit beside so many columns in between; fewer than two are too few."""
    left = room - _SLACK - 2 * -(-columns // COLUMNS) * _SLICE
    return min(_MOST, left // (_STAGE + 16))


def make_kernel(t: GroupChain, first: Callable, second: Callable) -> Callable:
    """Return ``chain(maps, rows, columns, steps, alpha, d, first_extra, second_extra)``.

    `maps` are the words of three tensor maps after those that put them on multiples of 64 bytes of the parameter space;
    `columns` those of d, which has three axes, and `steps` slices of the first product. The grid has tiles of rows
    along x and batches along y.
    """
    from devkernels.matrix import ends, ptx, tensor_calls

    kind = {"float16": "f16", "bfloat16": "bf16"}[t.dtype]
    (a_bits, a_step), (b_bits, b_step), (c_bits, c_step) = map(descriptor, t.turned)
    plain_bits, plain_step = descriptor(False)
    multiply_first = ptx.make_product(kind, COLUMNS, LINE // 32, a_step, b_step, t.turned[0], t.turned[1])
    multiply_second = ptx.make_product(kind, COLUMNS, LINE // 32, plain_step, c_step, False, t.turned[2])
    settle, scale, order = ptx.make_settle(64), tensor_calls.make_scale(64), _make_order()
    keep = _make_keep(t.dtype)
    held = tuple(8 * j + e for j in range(COLUMNS // 8) for e in range(2))
    end = ends.make_end(t.out_dtype, (0, 8), held, False, t.d_wide)
    fill_a, fill_b, fill_c = (_filler(t.turned[i]) for i in range(3))
    u32, u64 = np.uint32, np.uint64
    A_BITS, B_BITS, C_BITS, PLAIN = map(u64, (a_bits, b_bits, c_bits, plain_bits))
    zero, one, two, three, four, eight, sixteen = map(u32, (0, 1, 2, 3, 4, 8, 16))
    STAGES, STAGE, SLICE, HALF = u32(t.stages), u32(_STAGE), u32(_SLICE), u32(_SLICE // 2)
    BETWEEN, CHUNKS, SLICES = u32(t.between_bytes), t.chunks, -(-t.columns // DEPTH)
    A_BATCHED, B_BATCHED, C_BATCHED = t.batched
    barrier_init, barrier_expect, barrier_arrive = ptx.barrier_init, ptx.barrier_expect, ptx.barrier_arrive
    barrier_wait, fence_barrier_init, fence_async = ptx.barrier_wait, ptx.fence_barrier_init, ptx.fence_async
    product_fence, commit, wait_all = ptx.product_fence, ptx.product_commit, ptx.product_wait_all
    parameter_address, shared_address, prefetch_map = ptx.parameter_address, ptx.shared_address, ptx.prefetch_map
    same, divide, last_between = ptx.same_in_warp, ptx.divide, t.columns - 1
    a_word, b_word, c_word, tile, depth = PAD_WORDS, PAD_WORDS + 16, PAD_WORDS + 32, u32(ROWS), u32(DEPTH)
    whole, nothing = np.float32(1), np.float32(0)

    @cuda.jit(device=True, forceinline=True)
    def fill(number, stage, ring, full, a_map, b_map, c_map, row0, batch, steps):
        """Start the copies of stage number `number` of all that the block reads."""
        place, ready = ring + stage * STAGE, full + stage * eight
        a_batch, b_batch = batch if A_BATCHED else zero, batch if B_BATCHED else zero
        firsts = u32(CHUNKS) * steps
        if number < firsts:
            chunk = divide(number, steps)
            k = (number - chunk * steps) * depth
            barrier_expect(ready, STAGE)
            fill_a(a_map, place, ready, k, row0, a_batch)
            fill_b(b_map, place + SLICE, ready, k, chunk * tile, b_batch)
        else:
            rest = number - firsts
            chunk = divide(rest, u32(SLICES))
            k = (rest - chunk * u32(SLICES)) * depth
            barrier_expect(ready, SLICE)
            fill_c(c_map, place + SLICE, ready, k, chunk * tile, batch if C_BATCHED else zero)

    def chain(maps, rows, columns, steps, alpha, d, first_extra, second_extra):
        a_map, b_map, c_map = parameter_address(a_word), parameter_address(b_word), parameter_address(c_word)
        memory = cuda.shared.array(0, np.uint8)
        between = (shared_address(memory) + u32(1023)) & u32(0xFFFFFC00)
        ring = between + BETWEEN
        full = ring + STAGES * STAGE
        empty = full + STAGES * eight
        thread = u32(cuda.threadIdx.x)
        group, lane, warp = same(thread >> u32(7)), thread & u32(31), (thread >> u32(5)) & three
        leader = (thread & u32(127)) == zero
        row0, batch, slices = u32(cuda.blockIdx.x) * tile, u32(cuda.blockIdx.y), u32(steps)
        across = divide(u32(columns) + tile - one, tile)
        total = u32(CHUNKS) * slices + across * u32(SLICES)
        own = group * u32(64) + warp * sixteen + (lane >> two)
        if thread == zero:
            for s in range(STAGES):
                barrier_init(full + u32(s) * eight, one)
                barrier_init(empty + u32(s) * eight, two)
            fence_barrier_init()
            prefetch_map(a_map)
            prefetch_map(b_map)
            prefetch_map(c_map)
        cuda.syncthreads()
        if thread == zero:
            for s in range(STAGES):
                if u32(s) < total:
                    fill(u32(s), u32(s), ring, full, a_map, b_map, c_map, row0, batch, slices)
        cuda.syncwarp()
        sums = cuda.local.array(64, np.float32)
        ordered = cuda.local.array(64, np.float32)
        number, stage, phase, last, last_phase = zero, zero, zero, zero, zero
        for chunk in range(CHUNKS):
            for step in range(slices):
                barrier_wait(full + stage * eight, phase)
                place = ring + stage * STAGE
                product_fence()
                multiply_first(sums, A_BITS | u64((place + group * HALF) >> four),
                               B_BITS | u64((place + SLICE) >> four), u32(step))  # fmt: skip
                commit()
                wait_all()
                if leader:
                    barrier_arrive(empty + stage * eight)
                if thread == zero and number > zero and number - one + STAGES < total:
                    barrier_wait(empty + last * eight, last_phase)
                    fill(number - one + STAGES, last, ring, full, a_map, b_map, c_map, row0, batch, slices)
                cuda.syncwarp()
                number += one
                last, last_phase = stage, phase
                stage += one
                if stage == STAGES:
                    stage = zero
                    phase ^= one
            settle(sums)
            scale(sums, alpha)
            to = between + u32(chunk) * (two * SLICE) + own * u32(LINE) + (lane & three) * four
            keep(first, sums, to, batch, row0 + own, u32(chunk) * tile + (lane & three) * two, u32(rows) - one,
                 last_between, lane >> two, first_extra)  # fmt: skip
        fence_async()
        cuda.syncthreads()
        for chunk in range(across):
            for step in range(SLICES):
                barrier_wait(full + stage * eight, phase)
                place = ring + stage * STAGE
                product_fence()
                multiply_second(sums, PLAIN | u64((between + u32(step) * SLICE + group * HALF) >> four),
                                C_BITS | u64((place + SLICE) >> four), u32(step))  # fmt: skip
                commit()
                wait_all()
                if leader:
                    barrier_arrive(empty + stage * eight)
                if thread == zero and number - one + STAGES < total:
                    barrier_wait(empty + last * eight, last_phase)
                    fill(number - one + STAGES, last, ring, full, a_map, b_map, c_map, row0, batch, slices)
                cuda.syncwarp()
                number += one
                last, last_phase = stage, phase
                stage += one
                if stage == STAGES:
                    stage = zero
                    phase ^= one
            settle(sums)
            order(ordered, sums)
            column = np.int32(u32(chunk) * tile + (lane & three) * two)
            end(second, ordered, whole, nothing, np.int32(batch), np.int32(row0 + own), column, d, d, second_extra)

    return chain


def _filler(turned: bool) -> Callable:
    """Return ``fill(map, place, ready, k, first, batch)``: one operand's part of a stage."""
    from devkernels.device.inline import device_function
    from devkernels.matrix.ptx import copy_tile

    half, side = np.uint32(_SLICE // 2), np.uint32(64)

    def fill(tensor_map, place, ready, k, first, batch):
        if turned:
            copy_tile(place, tensor_map, ready, first, k, batch)
            copy_tile(place + half, tensor_map, ready, first + side, k, batch)
        else:
            copy_tile(place, tensor_map, ready, k, first, batch)

    return device_function(fill)


@functools.cache
def _make_order() -> Callable:
    """Return ``order(to, sums)``: a product's 64 sums of a thread, row after row."""
    from numba.core import types
    from numba.cuda.extending import intrinsic

    from devkernels.matrix.memory import registers, slot

    @intrinsic
    def order(typingctx, to, sums):
        def codegen(context, builder, signature, arguments):
            sink, source = (registers(context, builder, signature.args[i], arguments[i]) for i in range(2))
            for j in range(COLUMNS // 8):
                for half in range(2):
                    for e in range(2):
                        value = builder.load(slot(builder, source, 4 * j + 2 * half + e))
                        builder.store(value, slot(builder, sink, COLUMNS // 4 * half + 2 * j + e))
            return context.get_dummy_value()

        return types.void(to, sums), codegen

    return order


@functools.cache
def _make_keep(dtype: str) -> Callable:
    """Return ``keep(function, sums, to, batch, row, column, last_row, last_column, line, extra)``.

    An end in shared memory: a product's sums of a thread, in `column` and the next of each eight and in `row` and
    eight below it, become 16-bit
    elements, swizzled: piece j of line r at place j ^ (r % 8), and `line` is r % 8. The function is called inside only:
    beyond the last row with the last one, beyond the last column not at all, where elements are zero.
    """
    from llvmlite import ir
    from numba.core import types
    from numba.cuda.extending import intrinsic

    from devkernels.matrix.ends import _call
    from devkernels.matrix.memory import SHARED, i32, pack, registers, slot, store_words

    @intrinsic
    def keep(typingctx, function, sums, to, batch, row, column, last_row, last_column, line, extra):
        kinds = (types.float32, types.int32, types.int32, types.int32, extra)
        inner = function.get_call_type(typingctx, kinds, {})

        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[1], arguments[1])
            to_, batch_, row_, column_, last_row_, last_column_, line_ = (
                context.cast(builder, v, t, types.int32)
                for v, t in zip(arguments[2:9], signature.args[2:9], strict=True)
            )
            zero, turn = ir.Constant(ir.FloatType(), 0.0), builder.shl(line_, i32(4))

            def least(a, b):
                return builder.select(builder.icmp_signed("<", a, b), a, b)

            for half in range(2):
                own_row = least(builder.add(row_, i32(8 * half)), last_row_)
                for j in range(COLUMNS // 8):
                    pair = []
                    for e in range(2):
                        own_column = builder.add(column_, i32(8 * j + e))
                        inside = builder.icmp_signed("<=", own_column, last_column_)
                        value = builder.load(slot(builder, target, 4 * j + 2 * half + e))
                        given = [value, batch_, own_row, least(own_column, last_column_), arguments[9]]
                        result = _call(context, builder, function, inner, given, kinds)
                        result = context.cast(builder, result, inner.return_type, types.float32)
                        pair.append(builder.select(inside, result, zero))
                    place = builder.add(to_, i32(j // 8 * _SLICE + half * 8 * LINE))
                    place = builder.add(place, builder.xor(turn, i32(j % 8 << 4)))
                    store_words(builder, place, 0, pack(builder, pair, dtype), SHARED)
            return context.get_dummy_value()

        return types.void(function, sums, to, batch, row, column, last_row, last_column, line, extra), codegen

    return keep
