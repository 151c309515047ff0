"""The main loop for float32, float64 and complex numbers: slices of a and b are copied ahead into shared memory.

In: a `StagedTiling` and the epilogue's device function. Out: a kernel as a Python function, for sm_80 and newer. Fused
operations in registers multiply float32 and complex64, the tensor cores in double precision float64 and complex128.
Both operands lie in shared memory as in global memory, so that any order and stride is copied without being turned: 16
bytes at a time where addresses allow it, else element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.device.inline import device_function
from devkernels.lazy import cuda
from devkernels.matrix.memory_sizes import ITEM_BYTES, WIDEST

DTYPES = ("float32", "float64", "complex64", "complex128")
_WARPS = 8  # of a block, where the tensor cores multiply


@dataclass(frozen=True)
class Operand:
    """How a or b lies.

    `along`: its inner dimension is contiguous, or nearly; `unit`: an axis is contiguous indeed; `wide`: 16 bytes at a
    time.
    """

    along: bool
    unit: bool = True
    wide: bool = True


@dataclass(frozen=True)
class StagedTiling:
    """How the work is cut, and how the operands lie."""

    dtype: str
    a: Operand
    b: Operand
    out_dtype: str
    has_c: bool = False
    d_wide: bool = False
    small: bool = False  # tiles with half the rows and columns, for results with few of them
    stages: int = 4
    shape: tuple[int, int] = (16, 8)  # threads down and across a block's tile, for fused operations
    share: tuple[int, int] | None = None  # rows and columns of a thread's sums; None: what `small` says
    blocks: int | None = None  # on a multiprocessor, that registers are kept free for
    tall: bool = False  # products of 16 rows in double precision, which sm_90 has
    split: bool = False  # float32 by the tensor cores, in three products of tf32

    @property
    def item(self) -> int:
        """Bytes of an element of a and b."""
        return ITEM_BYTES[self.dtype]

    @property
    def each(self) -> int:
        """Elements of one access."""
        return WIDEST // self.item

    @property
    def line(self) -> int:
        """Bytes of the inner dimension in a slice."""
        return 128 if self.on_tensor_cores else 64

    @property
    def depth(self) -> int:
        """Elements of the inner dimension in a slice."""
        return self.line // self.item

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * _WARPS if self.on_tensor_cores else self.shape[0] * self.shape[1]

    @property
    def on_tensor_cores(self) -> bool:
        """Whether the tensor cores multiply."""
        return self.split or self.dtype in ("float64", "complex128")

    @property
    def warp_tile(self) -> tuple[int, int]:
        """Rows and columns of a warp's sums, where the tensor cores multiply; a block has 2 x 4 warps."""
        large = (32, 32) if self.dtype.startswith("complex") else (64, 32)
        if not self.small:
            return large
        return large[0] // 2, max(large[1] // 2, 8 * self.each)  # at least one access for each lane of a group

    @property
    def shares(self) -> tuple[int, int]:
        """Rows and columns of a thread's sums, for fused operations."""
        if self.share is not None:
            return self.share
        large = {"float32": (8, 8), "complex64": (4, 8)}[self.dtype]
        return (4, 4) if self.small else large

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a block's tile."""
        if self.on_tensor_cores:
            return 2 * self.warp_tile[0], 4 * self.warp_tile[1]
        return self.shape[0] * self.shares[0], self.shape[1] * self.shares[1]

    def pitch(self, which: int) -> int:
        """Bytes between lines of a (0) or b (1) in shared memory, such that reads meet no bank twice."""
        if (self.a, self.b)[which].along:
            return self.line + (64 if self.on_tensor_cores else WIDEST)
        dense = self.tile[which] * self.item
        if not self.on_tensor_cores:
            return dense
        # The lanes of a group read lines `each` apart, which should then be 32 bytes apart in the banks.
        return dense + max(2 * WIDEST // self.each, WIDEST)

    def lines(self, which: int) -> tuple[int, int]:
        """Lines of a slice of a (0) or b (1), and elements of a line."""
        shape = self.tile[which], self.depth
        return shape if (self.a, self.b)[which].along else shape[::-1]

    def matrix_bytes(self, which: int) -> int:
        """Bytes of a slice of a (0) or b (1)."""
        return self.pitch(which) * self.lines(which)[0]

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * (self.matrix_bytes(0) + self.matrix_bytes(1))

    def places(self, which: int) -> tuple[int, ...]:
        """Rows of a (0) or columns of b (1) that a thread reads, from its first one."""
        along = (self.a, self.b)[which].along
        if self.on_tensor_cores:
            blocks = self.warp_tile[which] // 8
            if along:
                return tuple(8 * i for i in range(blocks))
            return tuple(8 * self.each * (i // self.each) + i % self.each for i in range(blocks))
        share, each, apart = self.shares[which], self.each, self.shape[which]
        if along:
            return tuple(apart * i for i in range(share))
        return tuple(apart * each * (i // each) + i % each for i in range(share))

    @property
    def run(self) -> int:
        """Columns of the result that a thread holds side by side."""
        if self.on_tensor_cores:
            return 2 if self.b.along else 2 * self.each
        return 1 if self.b.along else self.each

    @property
    def launch_bounds(self) -> tuple[int, int]:
        """Threads of a block, and blocks on a multiprocessor that registers are kept free for."""
        if self.blocks is not None:
            return self.threads, self.blocks
        if self.on_tensor_cores:
            return self.threads, 2 if self.small else 1
        # Steps of both operands are read four at a time if both are along, which takes more registers.
        crowded = self.dtype == "float32" and self.a.along and self.b.along
        return self.threads, 5 if self.small else 2 if crowded else 3

    def result_columns(self) -> tuple[int, ...]:
        """Columns of the result that a thread holds, from its first one."""
        if not self.on_tensor_cores:
            return self.places(1)
        step = 1 if self.b.along else self.each  # so many blocks of b interleave
        return tuple(first + step * e for first in self.places(1) for e in range(2))


def make_kernel(t: StagedTiling, epilogue: Callable) -> Callable:
    """Return ``gemm(a, b, c, d, alpha, beta, extra)`` on arrays with three axes: batch, rows, columns.

    The grid has tiles of columns, batch after batch, along x and tiles of rows along y.
    """
    from devkernels.matrix import ends, ptx, staged_calls, staged_copies, staged_tensor, tensor_calls

    copies = []
    for which, operand in enumerate((t.a, t.b)):
        lines, length = t.lines(which)
        piece = WIDEST if operand.wide else t.item
        copies.append(staged_copies.make_copy(lines, length, t.pitch(which), t.item, piece, t.threads, operand.along))
    copy_a, copy_b = copies
    form = t.dtype, t.a.along, t.b.along, t.pitch(0), t.pitch(1), t.places(0), t.places(1), t.depth
    slices = (
        staged_tensor.make_tensor_slices(*form, t.tall or t.split)
        if t.on_tensor_cores
        else staged_calls.make_slices(*form)
    )
    start, most, rest = slices.start, slices.most, slices.rest
    first_a_count, first_b_count, last_a_count, last_b_count = slices.lengths
    columns = t.result_columns()
    end = ends.make_end(t.out_dtype, t.places(0), columns, t.has_c, t.d_wide)
    in_warps = t.on_tensor_cores
    number = np.dtype("f8" if t.dtype in ("float64", "complex128") else "f4")
    count = len(t.places(0)) * len(columns) * (2 if t.dtype.startswith("complex") else 1)
    clear = tensor_calls.make_clear(count)
    commit = staged_copies.commit_copies
    wait_first, wait_next = staged_copies.make_wait(t.stages - 2), staged_copies.make_wait(t.stages - 3)
    address, shared_address, u32, u64 = ptx.address, ptx.shared_address, np.uint32, np.uint64
    (tile_rows, tile_columns), depth = t.tile, t.depth
    a_bytes, stage_bytes, ahead = t.matrix_bytes(0), t.matrix_bytes(0) + t.matrix_bytes(1), t.stages - 1
    item, a_unit, b_unit, a_along, b_along = t.item, t.a.unit, t.b.unit, t.a.along, t.b.along
    a_pitch, b_pitch, each = t.pitch(0), t.pitch(1), t.each
    warp_rows, warp_columns = t.warp_tile if in_warps else (0, 0)
    warps_across = t.shape[1] // 8

    def first_of(along, pitch, place, k):
        """Bytes to a thread's first element: of line or element `place`, from element k of the inner dimension on."""
        return place * pitch + k * item if along else k * pitch + place * item

    first_of = cuda.jit(device=True, forceinline=True)(first_of)

    # Where products leave few registers, copies are a block of their own, which the assembler does not mix with them,
    # and nothing that depends on the thread's number is kept in registers for them.
    together = not t.split
    crowded = t.split and not (t.a.along and t.b.along)
    thread_again = ptx.thread_anew if crowded else device_function(lambda: cuda.threadIdx.x)

    def gemm(a, b, c, d, alpha, beta, extra):
        memory = cuda.shared.array(0, np.complex128)  # 16 bytes each, and aligned so
        base = shared_address(memory)
        sums = cuda.local.array(count, number)
        clear(sums)
        across = (np.int32(d.shape[2]) + tile_columns - 1) // tile_columns
        batch = np.int32(cuda.blockIdx.x) // across
        row0, column0 = (
            np.int32(cuda.blockIdx.y) * tile_rows,
            (np.int32(cuda.blockIdx.x) - batch * across) * tile_columns,
        )
        thread = np.int32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        if in_warps:
            g, q = lane >> 2, lane & 3
            row, column = (warp & 1) * warp_rows, (warp >> 1) * warp_columns
            from_row, from_column = row + (g if a_along else each * g), column + (g if b_along else each * g)
            from_k = each * q
            row = from_row
            column += (2 if b_along else 2 * each) * q
        else:
            warp_down = warp // warps_across
            down, right = (lane >> 3) + (warp_down << 2), (lane & 7) + ((warp - warp_down * warps_across) << 3)
            from_row, from_column = down if a_along else each * down, right if b_along else each * right
            from_k, row, column = 0, from_row, from_column
        a_first = base + u32(first_of(a_along, a_pitch, from_row, from_k))
        b_first = base + u32(a_bytes + first_of(b_along, b_pitch, from_column, from_k))
        a_base = address(a) + u64(batch * a.strides[0])
        b_base = address(b) + u64(batch * b.strides[0])
        a_line, a_step = (a.strides[1], a.strides[2]) if a_along else (a.strides[2], a.strides[1])
        b_line, b_step = (b.strides[2], b.strides[1]) if b_along else (b.strides[1], b.strides[2])
        a_step, b_step = item if a_unit else a_step, item if b_unit else b_step
        inner = np.int32(a.shape[2])
        last_row, last_column = np.int32(a.shape[1]) - 1, np.int32(b.shape[2]) - 1
        for stage in range(ahead):
            to = base + u32(stage * stage_bytes)
            copy_a(to, a_base, a_line, a_step, row0, last_row, stage * depth, inner, thread)
            copy_b(to + u32(a_bytes), b_base, b_line, b_step, column0, last_column, stage * depth, inner, thread)
            commit()
        wait_first()
        cuda.syncthreads()
        first_a, first_b = cuda.local.array(first_a_count, number), cuda.local.array(first_b_count, number)
        last_a, last_b = cuda.local.array(last_a_count, number), cuda.local.array(last_b_count, number)
        start(first_a, first_b, a_first, b_first)
        here, next_, there = u32(0), u32(stage_bytes), u32(ahead * stage_bytes)
        for k0 in range(0, inner, depth):
            most(sums, first_a, first_b, last_a, last_b, a_first + here, b_first + here)
            wait_next()
            cuda.syncthreads()
            # Read behind the barrier: after the last slice, what is of no use. Copied: into the slice before this one.
            rest(sums, first_a, first_b, last_a, last_b, a_first + next_, b_first + next_, a_first + here)
            k1 = np.int32(k0) + ahead * depth
            to = base + there
            if together:
                copy_a(to, a_base, a_line, a_step, row0, last_row, k1, inner, thread)
                copy_b(to + u32(a_bytes), b_base, b_line, b_step, column0, last_column, k1, inner, thread)
            elif k1 < inner:
                own = np.int32(thread_again())
                copy_a(to, a_base, a_line, a_step, row0, last_row, k1, inner, own)
                copy_b(to + u32(a_bytes), b_base, b_line, b_step, column0, last_column, k1, inner, own)
            commit()
            here, there = next_, here
            next_ = next_ + u32(stage_bytes) if next_ < u32(ahead * stage_bytes) else u32(0)
        end(epilogue, sums, alpha, beta, batch, row0 + row, column0 + column, c, d, extra)

    return gemm
