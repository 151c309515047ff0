"""The main loop for sm_90: tensor copies, warpgroup products, two groups of warps that take turns, blocks that persist.

In: a `Tiling` and a device function that finishes 64 columns of a tile. Out: a kernel as a Python function.

A block has three warpgroups. One thread of the first fills a ring of stages with 64-wide slices of a and b. Each of the
other two works on a tile of its own, of 64 or 128 rows and columns: while one multiplies, the other finishes its tile,
so that the tensor cores never wait for an epilogue. The two take turns at the ring; a turn is over when its last slice
has arrived. (The scheme is that of CUTLASS's "pingpong" kernels; PTX ISA, sections on wgmma, mbarrier and
cp.async.bulk.tensor.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.lazy import cuda
from devkernels.matrix.memory_sizes import EIGHTS, Spread

LINE = 128  # bytes of the inner dimension in a stage: the width of the swizzle
THREADS = 384
ITEM = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1}  # bytes of an element, by its name in PTX
SLAB_BYTES = 16 * 64 * 4  # of one warp; see devkernels/matrix/tile.py
PAD_WORDS = 6  # before the tensor maps, see `make_kernel`
MAP_WORDS = PAD_WORDS + 2 * 16


@dataclass(frozen=True)
class Tiling:
    """How the work is cut, and how the operands lie."""

    kind: str = "f16"  # one of `ITEM`; only 16-bit ones can be turned
    stages: int = 6
    a_turned: bool = False  # rows of a are contiguous: a in column order
    b_turned: bool = True  # columns of b are contiguous: b in row order
    a_batched: bool = False  # each batch has an a of its own
    b_batched: bool = False
    band: int = 16  # rows of tiles that are worked on together, for the L2 cache
    to_float: bool = False  # sums of int8 become float32 before they are finished
    rows: int = 128  # of a tile: 64 or 128
    columns: int = 128

    @staticmethod
    def stages_for(steps: tuple, has_c: bool) -> int:
        """As many as fit; fewer where an end reads whole matrices, which then find more room in the L1 cache."""
        return 4 if has_c or any(step.axes == "matrix" for step in steps) else 6

    @property
    def depth(self) -> int:
        """Elements of the inner dimension in a stage."""
        return LINE // ITEM[self.kind]

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: a slice of a, and one of b."""
        return (self.rows + self.columns) * LINE

    @property
    def slab_offset(self) -> int:
        """Where in shared memory the slabs of the eight working warps begin."""
        return self.stages * self.stage_bytes

    @property
    def barrier_offset(self) -> int:
        """Where the barriers lie: full and empty of each stage, and the two turns."""
        return self.slab_offset + 8 * SLAB_BYTES

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; the stages begin at a multiple of 1024."""
        return self.barrier_offset + 16 * self.stages + 16 + 1024


def descriptor(turned: bool) -> tuple[int, int]:
    """Constant bits of a matrix descriptor with the 128-byte swizzle, and its step for 16 elements, in 16 bytes.

    PTX ISA, "Matrix descriptor": the leading offset is the distance of 64-element columns of a turned matrix (and
    unused otherwise), the stride offset that of groups of 8 lines.
    """
    leading = 64 * LINE // 16 if turned else 1
    return (leading << 16) | (8 * 128 // 16 << 32) | (1 << 62), (16 * 128 // 16 if turned else 2)


def make_kernel(tiling: Tiling, prepare: Callable, finish: Callable, spread: Spread = EIGHTS) -> Callable:
    """Return ``gemm(maps, rows, columns, steps, batches, alpha, beta, c, d, extra)``.

    ``finish(values, batch, row, column, rows, columns, alpha, beta, c, d, extra)`` is called by every working thread
    with 32 values of a @ b, spread over rows and columns as `spread` says. `maps` are the words of two tensor maps
    after six words that put them on multiples of 64 bytes of the parameter space, which begins 16 bytes after one.
    """
    from devkernels.matrix import ptx, tile

    t, u32, u64 = tiling, np.uint32, np.uint64
    STAGES, STAGE, MATRIX, BAND = u32(t.stages), u32(t.stage_bytes), u32(t.rows * LINE), u32(t.band)
    SLABS, SLAB, BARRIERS = u32(t.slab_offset), u32(SLAB_BYTES), u32(t.barrier_offset)
    A_TURNED, B_TURNED, A_BATCHED, B_BATCHED = t.a_turned, t.b_turned, t.a_batched, t.b_batched
    (a_bits, a_step), (b_bits, b_step) = descriptor(t.a_turned), descriptor(t.b_turned)
    A_BITS, B_BITS, HALF = u64(a_bits), u64(b_bits), u64(64 * 128 // 16)
    zero, one, two, three, four, eight, sixteen = map(u32, (0, 1, 2, 3, 4, 8, 16))
    tile_rows, tile_columns, box_bytes, depth = u32(t.rows), u32(t.columns), u32(64 * LINE), u32(t.depth)
    TALL, WIDE = t.rows == 128, t.columns == 128
    product = ptx.make_product(t.kind, t.columns, LINE // 32, a_step, b_step, t.a_turned, t.b_turned)
    integers, TO_FLOAT = ptx.make_integers(t.columns // 2, False), t.to_float
    settle = ptx.make_settle(t.columns // 2)
    put0, put1 = tile.make_put(0), tile.make_put(1 if t.columns == 128 else 0)
    EIGHT = spread == EIGHTS
    get = tile.make_get() if EIGHT else tile.make_get_singles()
    map_a, map_b, COUNT = PAD_WORDS, PAD_WORDS + 16, t.columns // 2
    barrier_init, barrier_expect, barrier_arrive = ptx.barrier_init, ptx.barrier_expect, ptx.barrier_arrive
    barrier_wait, fence_barrier_init, copy_tile = ptx.barrier_wait, ptx.fence_barrier_init, ptx.copy_tile
    prefetch_map, parameter_address, shared_address = ptx.prefetch_map, ptx.parameter_address, ptx.shared_address
    same_in_warp, divide, product_fence = ptx.same_in_warp, ptx.divide, ptx.product_fence
    product_commit, wait_one, wait_all = ptx.product_commit, ptx.product_wait_one, ptx.product_wait_all
    registers_fewer, registers_more = ptx.registers_fewer, ptx.registers_more

    @cuda.jit(device=True, forceinline=True)
    def locate(number, tiles_m, tiles_n):
        """(batch, row, column of a tile) of piece of work `number`: down bands of rows, for the L2 cache."""
        each = tiles_m * tiles_n
        batch = divide(number, each)
        rest = number - batch * each
        band = divide(rest, BAND * tiles_n)
        rest -= band * (BAND * tiles_n)
        first = band * BAND
        high = min(tiles_m - first, BAND)
        column = divide(rest, high)
        return batch, first + rest - column * high, column

    @cuda.jit(device=True, forceinline=True)
    def finish_half(acc, slab, lane, batch, row, column, rows, columns, alpha, beta, c, d, extra):
        """Finish the 16 rows of a warp, 64 columns at a time."""
        values = cuda.local.array(32, np.float32)
        cuda.syncwarp()
        put0(acc, slab, lane)
        cuda.syncwarp()
        get(values, slab, lane)
        finish(values, batch, row, column, rows, columns, alpha, beta, c, d, extra)
        if WIDE:
            cuda.syncwarp()
            put1(acc, slab, lane)
            cuda.syncwarp()
            get(values, slab, lane)
            finish(values, batch, row, column + u32(64), rows, columns, alpha, beta, c, d, extra)

    def gemm(maps, rows, columns, steps, batches, alpha, beta, c, d, extra):
        a_map, b_map = parameter_address(map_a), parameter_address(map_b)
        memory = cuda.shared.array(0, np.uint8)
        base = (shared_address(memory) + u32(1023)) & u32(0xFFFFFC00)
        full = base + BARRIERS
        empty = full + STAGES * eight
        turns = empty + STAGES * eight
        thread = u32(cuda.threadIdx.x)
        group = same_in_warp(thread >> u32(7))
        tiles_m = divide(u32(rows) + tile_rows - one, tile_rows)
        tiles_n = divide(u32(columns) + tile_columns - one, tile_columns)
        work, slices = tiles_m * tiles_n * u32(batches), u32(steps)
        number, stride = u32(cuda.blockIdx.x), u32(cuda.gridDim.x)
        if thread == zero:
            for s in range(STAGES):
                barrier_init(full + u32(s) * eight, 1)
                barrier_init(empty + u32(s) * eight, 1)
            barrier_init(turns, 1)
            barrier_init(turns + eight, 1)
            fence_barrier_init()
        cuda.syncthreads()
        if group == zero:
            registers_fewer()
            if thread == zero:
                prefetch_map(a_map)
                prefetch_map(b_map)
                stage, phase = zero, zero
                while number < work:
                    batch, row, column = locate(number, tiles_m, tiles_n)
                    m0, n0 = row * tile_rows, column * tile_columns
                    a_batch, b_batch = batch if A_BATCHED else zero, batch if B_BATCHED else zero
                    for step in range(slices):
                        k0 = u32(step) * depth
                        barrier_wait(empty + stage * eight, phase ^ one)
                        own, ready = base + stage * STAGE, full + stage * eight
                        barrier_expect(ready, STAGE)
                        if A_TURNED:
                            copy_tile(own, a_map, ready, m0, k0, a_batch)
                            if TALL:
                                copy_tile(own + box_bytes, a_map, ready, m0 + u32(64), k0, a_batch)
                        else:
                            copy_tile(own, a_map, ready, k0, m0, a_batch)
                        own += MATRIX
                        if B_TURNED:
                            copy_tile(own, b_map, ready, n0, k0, b_batch)
                            if WIDE:
                                copy_tile(own + box_bytes, b_map, ready, n0 + u32(64), k0, b_batch)
                        else:
                            copy_tile(own, b_map, ready, k0, n0, b_batch)
                        stage += one
                        if stage == STAGES:
                            stage = zero
                            phase ^= one
                    number += stride
        else:
            registers_more()
            upper = cuda.local.array(COUNT, np.float32)
            lower = cuda.local.array(COUNT, np.float32)
            which = group - one
            lane, warp = thread & u32(31), same_in_warp((thread >> u32(5)) & three)
            slab = base + SLABS + (which * four + warp) * SLAB
            mine = thread & u32(127)
            leader = mine == zero
            my_turn, other_turn = turns + which * eight, turns + (one - which) * eight
            # The first group's first tile needs no turn: as if it had been given one before the first.
            turn = which ^ one
            number += which * stride
            slot = which * slices
            while number < work:
                batch, row, column = locate(number, tiles_m, tiles_n)
                lap = divide(slot, STAGES)
                stage, phase = slot - lap * STAGES, lap & one
                if TALL or mine < tile_rows:
                    prepare(batch, row * tile_rows + mine, column * tile_columns, rows, columns, c, extra)
                barrier_wait(my_turn, turn)
                turn ^= one
                for step in range(slices):
                    barrier_wait(full + stage * eight, phase)
                    own = base + stage * STAGE
                    a_place = A_BITS | u64(own >> four)
                    b_place = B_BITS | u64((own + MATRIX) >> four)
                    product_fence()
                    product(upper, a_place, b_place, u32(step))
                    if TALL:
                        product(lower, a_place + HALF, b_place, u32(step))
                    product_commit()
                    wait_one()
                    if step > 0 and leader:
                        barrier_arrive(empty + (stage - one if stage > zero else STAGES - one) * eight)
                    stage += one
                    if stage == STAGES:
                        stage = zero
                        phase ^= one
                if leader:
                    barrier_arrive(other_turn)
                wait_all()
                settle(upper)
                if TO_FLOAT:
                    integers(upper, one)
                if TALL:
                    settle(lower)
                    if TO_FLOAT:
                        integers(lower, one)
                if leader:
                    barrier_arrive(empty + (stage - one if stage > zero else STAGES - one) * eight)
                row0 = row * tile_rows + warp * sixteen + (lane >> three if EIGHT else zero)
                column0 = column * tile_columns + ((lane & u32(7)) * eight if EIGHT else lane)
                finish_half(upper, slab, lane, batch, row0, column0, rows, columns, alpha, beta, c, d, extra)
                if TALL:
                    below = row0 + u32(64)
                    finish_half(lower, slab, lane, batch, below, column0, rows, columns, alpha, beta, c, d, extra)
                slot += two * slices
                number += two * stride

    return gemm
