"""One tile of a pipelined product by warpgroups: copies run ahead in a ring of stages, all threads multiply.

In: a `PipelineSpec` whose engine is the warpgroups. Out: the device function that ``TilePipeline.execute`` calls. (The
scheme is that of the plain multistage mainloops of CUTLASS for sm_90; PTX ISA, sections on wgmma, mbarrier and
cp.async.bulk.tensor.) Imported only where a kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device import tiles
from devkernels.device.inline import device_function
from devkernels.device.tile_layout import TileLayout
from devkernels.lazy import cuda
from devkernels.matrix import fragments, ptx
from devkernels.matrix.warpgroup import descriptor
from devkernels.pipeline_spec import KINDS, LINE, TENSOR, PipelineSpec

COPIED = {"float16": "float16", "bfloat16": "int16", "int8": "int8"}  # as what the threads copy elements
_GROUP_BYTES = 64 * LINE  # 64 lines: the rows of one product, or 64 columns of a turned operand


class _Products:
    """Constants of a spec, and the products of a stage."""

    def __init__(self, spec: PipelineSpec):
        m, n, k = spec.mm.size
        self.kind, self.threads = KINDS[spec.mm.precision], spec.mm.threads
        self.groups = self.threads // 128
        self.parts = m // (64 * self.groups)  # products of a warpgroup, one below the other
        self.count = m * n // self.threads
        self.depth, self.inner, self.slices = spec.depth, k, k * spec.mm.item_bytes[0] // LINE
        self.slice_depth = k // self.slices
        self.a_slice, self.b_slice = m * LINE, n * LINE
        self.stage = self.slices * (self.a_slice + self.b_slice)
        self.barriers = self.depth * self.stage
        turned = spec.copies == TENSOR and spec.a_turned, spec.copies == TENSOR and spec.b_turned
        (a_bits, self.a_step), (b_bits, self.b_step) = map(descriptor, turned)
        self.bits, self.turned, self.columns = (a_bits, b_bits), turned, n

    def make(self) -> Callable:
        """Return ``multiply(sums, stage, group, add)``: all products of a stage, for a warpgroup."""
        run = device_function(lambda sums, stage, group, add: None)
        for s in range(self.slices):
            for p in range(self.parts):
                run = _then(run, self._one(s, p))
        return run

    def _one(self, s: int, p: int) -> Callable:
        first, u32, u64 = p * (self.columns // 2), np.uint32, np.uint64
        product = ptx.make_product(self.kind, self.columns, LINE // 32, self.a_step, self.b_step, *self.turned, first)
        a_at = u32(s * self.a_slice + p * _GROUP_BYTES)
        b_at = u32(self.slices * self.a_slice + s * self.b_slice)
        rows, (a_bits, b_bits), four, always = u32(self.parts * _GROUP_BYTES), map(u64, self.bits), u32(4), s > 0
        one = u32(1)

        def multiply(sums, stage, group, add):
            a_place = a_bits | u64((stage + a_at + group * rows) >> four)
            b_place = b_bits | u64((stage + b_at) >> four)
            product(sums, a_place, b_place, one if always else add)

        return device_function(multiply)


def _then(first: Callable, second: Callable) -> Callable:
    def both(sums, stage, group, add):
        first(sums, stage, group, add)
        second(sums, stage, group, add)

    return device_function(both)


def make_execute(spec: PipelineSpec, matrix: Callable, tile: Callable) -> Callable:
    """Return ``execute(storage, buffer, row, column, accumulator)``.

    ``matrix(storage, which)`` makes the array of a (0) or b (1), and ``tile(address, which)`` one of a slice in shared
    memory, where the threads copy.
    """
    return _with_tensor_copies(spec) if spec.copies == TENSOR else _with_threads(spec, matrix, tile)


def _with_tensor_copies(spec: PipelineSpec) -> Callable:
    t, u32, u64 = _Products(spec), np.uint32, np.uint64
    multiply, transfer, settle = t.make(), fragments.make_transfer(t.count), ptx.make_settle(t.count)
    DEPTH, STAGE, BARRIERS, count, INNER = u32(t.depth), u32(t.stage), u32(t.barriers), t.count, u32(t.inner)
    zero, one, eight, groups = u32(0), u32(1), u32(8), u32(t.groups)
    m, n, _ = map(u32, spec.mm.size)
    copy_a = _copier(0, t, t.turned[0], spec.mm.size[0], t.a_slice)
    copy_b = _copier(t.slices * t.a_slice, t, t.turned[1], spec.mm.size[1], t.b_slice)
    barrier_init, barrier_expect, barrier_arrive = ptx.barrier_init, ptx.barrier_expect, ptx.barrier_arrive
    barrier_wait, barrier_end, fence_barrier_init = ptx.barrier_wait, ptx.barrier_end, ptx.fence_barrier_init
    fence_async, fence_map, product_fence, commit = (
        ptx.fence_async,
        ptx.fence_map,
        ptx.product_fence,
        ptx.product_commit,
    )
    wait_one, wait_all, divide, same = ptx.product_wait_one, ptx.product_wait_all, ptx.divide, ptx.same_in_warp
    load_word = fragments.make_load_word()

    def fill(storage, base, step, stage, row, column):
        ready = base + BARRIERS + stage * eight
        barrier_expect(ready, STAGE)
        copy_a(storage, base + stage * STAGE, ready, step * INNER, row)
        copy_b(storage + u64(128), base + stage * STAGE, ready, step * INNER, column)

    fill = device_function(fill)

    def execute(storage, buffer, row, column, accumulator):
        sums = cuda.local.array(count, np.float32)
        transfer(sums, accumulator)
        base = (buffer + u32(1023)) & u32(0xFFFFFC00)
        full = base + BARRIERS
        empty = full + DEPTH * eight
        thread = u32(cuda.threadIdx.x)
        group = same(thread >> u32(7))
        leader = (thread & u32(127)) == zero
        steps = divide(u32(load_word(storage, 40)) + INNER - one, INNER)
        row0, column0 = u32(row) * m, u32(column) * n
        fence_async()  # what was written to the buffer before
        if thread == zero:
            for s in range(DEPTH):
                barrier_init(full + u32(s) * eight, one)
                barrier_init(empty + u32(s) * eight, groups)
            fence_barrier_init()
            fence_map(storage)
            fence_map(storage + u64(128))
        cuda.syncthreads()
        if thread == zero:
            for s in range(DEPTH):
                if u32(s) < steps:
                    fill(storage, base, u32(s), u32(s), row0, column0)
        cuda.syncwarp()
        stage, phase, last, last_phase = zero, zero, zero, zero
        for step in range(steps):
            barrier_wait(full + stage * eight, phase)
            product_fence()
            multiply(sums, base + stage * STAGE, group, one)
            commit()
            wait_one()
            if step > 0:
                if leader:
                    barrier_arrive(empty + last * eight)
                again = u32(step) - one + DEPTH
                if thread == zero and again < steps:
                    barrier_wait(empty + last * eight, last_phase)
                    fill(storage, base, again, last, row0, column0)
                cuda.syncwarp()
            last, last_phase = stage, phase
            stage += one
            if stage == DEPTH:
                stage = zero
                phase ^= one
        wait_all()
        settle(sums)
        transfer(accumulator, sums)
        cuda.syncthreads()
        if thread == zero:
            for s in range(DEPTH):
                barrier_end(full + u32(s) * eight)
                barrier_end(empty + u32(s) * eight)
        cuda.syncthreads()

    return device_function(execute)


def _copier(at: int, t: _Products, turned: bool, length: int, slice_bytes: int) -> Callable:
    """Return ``copy(map, stage, ready, k, first)``: all boxes of an operand's part of a stage."""
    run = device_function(lambda tensor_map, stage, ready, k, first: None)
    for s in range(t.slices):
        for piece in range(length // 64 if turned else 1):
            run = _then_copy(run, at + s * slice_bytes + piece * _GROUP_BYTES, s * t.slice_depth, piece * 64, turned)
    return run


def _then_copy(earlier: Callable, at: int, k_at: int, first_at: int, turned: bool) -> Callable:
    copy_tile, at, k_at, first_at, zero = ptx.copy_tile, *map(np.uint32, (at, k_at, first_at, 0))

    def copy(tensor_map, stage, ready, k, first):
        earlier(tensor_map, stage, ready, k, first)
        if turned:
            copy_tile(stage + at, tensor_map, ready, first + first_at, k + k_at, zero)
        else:
            copy_tile(stage + at, tensor_map, ready, k + k_at, first + first_at, zero)

    return device_function(copy)


def _with_threads(spec: PipelineSpec, matrix: Callable, tile: Callable) -> Callable:
    """The same where the threads copy: what tensor copies cannot read. A slice lies as a swizzled tile."""
    t, u32 = _Products(spec), np.uint32
    m, n, _ = spec.mm.size
    dtype, depth, block = COPIED[spec.mm.precision[0]], t.slice_depth, tuple(spec.mm.block_dim)
    load_a = tiles.make_load_async(TileLayout(m, depth, dtype, "row_major", depth, LINE, block), None)
    load_b = tiles.make_load_async(TileLayout(depth, n, dtype, "col_major", depth, LINE, block), None)
    fill = device_function(lambda x, y, stage, row, column, k: None)
    for s in range(t.slices):
        places = s * t.a_slice, t.slices * t.a_slice + s * t.b_slice
        fill = _then_fill(fill, load_a, load_b, tile, places, s * depth)
    multiply, transfer, settle = t.make(), fragments.make_transfer(t.count), ptx.make_settle(t.count)
    wait = tiles.make_wait(2 * t.slices * (t.depth - 2))
    DEPTH, STAGE, AHEAD, INNER, count = u32(t.depth), u32(t.stage), u32(t.depth - 1), t.inner, t.count
    zero, one, rows, columns = u32(0), u32(1), m, n
    fence_async, product_fence, commit, wait_all = (
        ptx.fence_async,
        ptx.product_fence,
        ptx.product_commit,
        ptx.product_wait_all,
    )
    same = ptx.same_in_warp

    def execute(storage, buffer, row, column, accumulator):
        sums = cuda.local.array(count, np.float32)
        transfer(sums, accumulator)
        x, y = matrix(storage, 0), matrix(storage, 1)
        base = (buffer + u32(1023)) & u32(0xFFFFFC00)
        group = same(u32(cuda.threadIdx.x) >> u32(7))
        row0, column0 = np.int64(row) * rows, np.int64(column) * columns
        cuda.syncthreads()
        for s in range(AHEAD):
            fill(x, y, base + u32(s) * STAGE, row0, column0, np.int64(s) * INNER)
        stage, free = zero, AHEAD
        for k0 in range(0, x.shape[1], INNER):
            wait()
            fence_async()
            cuda.syncthreads()
            product_fence()
            multiply(sums, base + stage * STAGE, group, one)
            commit()
            fill(x, y, base + free * STAGE, row0, column0, k0 + np.int64(AHEAD) * INNER)
            wait_all()
            free = stage
            stage += one
            if stage == DEPTH:
                stage = zero
        settle(sums)
        transfer(accumulator, sums)
        drain()
        cuda.syncthreads()

    drain = tiles.make_wait(0)
    return device_function(execute)


def _then_fill(
    earlier: Callable, load_a: Callable, load_b: Callable, tile: Callable, places: tuple, k_at: int
) -> Callable:
    a_at, b_at = map(np.uint32, places)

    def fill(x, y, stage, row, column, k):
        earlier(x, y, stage, row, column, k)
        load_a(x, row, k + k_at, tile(stage + a_at, 0))
        load_b(y, k + k_at, column, tile(stage + b_at, 1))

    return device_function(fill)
