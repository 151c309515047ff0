"""Two products in one kernel, the matrix between them in shared memory: ``d = second(first(a @ b) @ c)``.

In: a `ChainTiling` and two epilogues' device functions. Out: a kernel as a Python function, for 16-bit floats on tensor
cores from sm_80 on. A block takes 128 rows: it makes all columns of the first product, 128 at a time, in slices of 32
that lie as the first operand of the second product must, and then all columns of the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.lazy import cuda
from devkernels.matrix.tensor import A_BYTES, B_PITCH, DEPTH, ROW_STEPS, SHARED_BYTES, TILE, make_load_a, make_load_b


@dataclass(frozen=True)
class ChainTiling:
    """`columns` of the matrix in between; for a, b and c whether rows are contiguous, and eight of them one access."""

    dtype: str
    out_dtype: str
    columns: int
    along_rows: tuple[bool, bool, bool]
    wide: tuple[bool, bool, bool]
    d_wide: bool = False

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: slices of the matrix in between, whole tiles of them, and one step of operands."""
        return shared_bytes(self.columns)


def shared_bytes(columns: int) -> int:
    """Bytes of shared memory of a block for so many columns in between."""
    return -(-columns // TILE) * (TILE // DEPTH) * A_BYTES + SHARED_BYTES


def make_kernel(t: ChainTiling, first: Callable, second: Callable) -> Callable:
    """Return ``chain(a, b, c, d, alpha, first_extra, second_extra)`` on arrays with three axes: batch, rows, columns.

    The grid has tiles of rows along x and batches along y; alpha scales the first product.
    """
    from devkernels.matrix import ends, ptx, tensor_calls

    kind = {"float16": "f16", "bfloat16": "bf16"}[t.dtype]
    product, clear = tensor_calls.make_warp_tile(kind, 64, B_PITCH), tensor_calls.make_clear(64)
    scale, keep = tensor_calls.make_scale(64), ends.make_keep(t.dtype, 64)
    end = ends.make_end(t.out_dtype, ROW_STEPS, tuple(range(8)), False, t.d_wide)
    load_a = make_load_a(t.along_rows[0], t.wide[0])
    load_b, load_c = (make_load_b(t.along_rows[i], t.wide[i]) for i in (1, 2))
    shared_address, u32, one, nothing = ptx.shared_address, np.uint32, np.float32(1), np.float32(0)
    tile, depth, a_bytes, columns, operands = TILE, DEPTH, A_BYTES, t.columns, shared_bytes(t.columns) - SHARED_BYTES

    def chain(a, b, c, d, alpha, first_extra, second_extra):
        memory = cuda.shared.array(0, np.complex128)  # 16 bytes each, and aligned so
        between = shared_address(memory)
        left = between + u32(operands)
        right = left + u32(a_bytes)
        sums = cuda.local.array(64, np.float32)
        row0, batch = np.int32(cuda.blockIdx.x) * tile, np.int32(cuda.blockIdx.y)
        lane, warp = np.int32(cuda.threadIdx.x) & 31, np.int32(cuda.threadIdx.x) >> 5
        own_row, own_column = (warp & 1) << 6, (warp >> 1) << 5
        row, column = row0 + own_row + (lane >> 2), own_column + ((lane & 3) << 3)
        last_row = np.int32(d.shape[1]) - 1
        for column0 in range(0, columns, tile):
            clear(sums)
            for k0 in range(0, np.int32(a.shape[2]), depth):
                load_a(a, left, batch, row0, k0)
                load_b(b, right, batch, k0, column0)
                cuda.syncthreads()
                product(sums, left + u32(own_row << 6), right, own_column, lane)
                cuda.syncthreads()
            scale(sums, alpha)
            slot = (column0 + own_column) // depth
            place = between + u32(slot * a_bytes + ((own_row + (lane >> 2)) << 6) + ((lane & 3) << 4))
            keep(first, sums, place, batch, row, column0 + column, last_row, columns - 1, first_extra)
        for column0 in range(0, np.int32(d.shape[2]), tile):
            clear(sums)
            for k0 in range(0, columns, depth):
                load_c(c, right, batch, k0, column0)
                cuda.syncthreads()  # also: what was kept is there
                product(sums, between + u32((k0 // depth) * a_bytes + (own_row << 6)), right, own_column, lane)
                cuda.syncthreads()
            end(second, sums, one, nothing, batch, row, column0 + column, d, d, second_extra)

    return chain
