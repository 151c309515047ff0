"""The main loop for 16-bit floats where warpgroup products do not go: tensor cores from sm_80 on, any alignment.

In: a `TensorTiling` and the epilogue's device function. Out: a kernel as a Python function. A block works on 128 x 128
elements of the result in steps of 32 of the inner dimension; eight warps hold 64 x 32 sums each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.lazy import cuda

TILE, DEPTH, THREADS = 128, 32, 256
A_BYTES, B_PITCH = TILE * DEPTH * 2, TILE * 2
SHARED_BYTES = 2 * A_BYTES
ROW_STEPS = tuple(range(0, 64, 8))  # rows of a thread, from its first one


@dataclass(frozen=True)
class TensorTiling:
    """How the operands lie; `a_wide` and its kin: eight elements of a row are one aligned access."""

    kind: str  # f16 or bf16
    out_dtype: str
    a_along_rows: bool
    b_along_rows: bool
    a_wide: bool
    b_wide: bool
    has_c: bool
    d_wide: bool = False


def make_load_a(a_rows: bool, a_wide: bool) -> Callable:
    """Device function ``load(x, to, batch, row0, k0)``: 128 x 32 elements to shared memory, (i, k) at 64 i + 2 k."""
    from devkernels.matrix import ptx, tensor_calls

    put, put8, address = tensor_calls.make_put_element(), tensor_calls.make_put_eight(), ptx.address
    u32, u64, two, threads = np.uint32, np.uint64, np.uint64(2), THREADS
    count, eighths = TILE * DEPTH, TILE * DEPTH // 8

    @cuda.jit(device=True, forceinline=True)
    def load_a(x, to, batch, row0, k0):
        rows, inner = np.int32(x.shape[1]), np.int32(x.shape[2])
        if a_wide:
            base = address(x) + u64(batch * x.strides[0])
            for e in range(np.int32(cuda.threadIdx.x), eighths, threads):
                i, k = e >> 2, (e & 3) << 3
                place = base + u64((row0 + i) * x.strides[1]) + u64(k0 + k) * two
                put8(to + u32(e << 4), place, row0 + i < rows and k0 + k < inner)
        else:
            for e in range(np.int32(cuda.threadIdx.x), count, threads):
                if a_rows:
                    i, k = e >> 5, e & 31
                else:
                    i, k = e & 127, e >> 7
                put(to + u32((i << 6) + (k << 1)), x, batch, row0 + i, k0 + k, row0 + i < rows and k0 + k < inner)

    return load_a


def make_load_b(b_rows: bool, b_wide: bool) -> Callable:
    """Device function ``load(x, to, batch, k0, column0)``: 32 x 128 elements; see tensor_calls.make_warp_tile."""
    from devkernels.matrix import ptx, tensor_calls

    put, put8, address = tensor_calls.make_put_element(), tensor_calls.make_put_eight(), ptx.address
    u32, u64, two, threads = np.uint32, np.uint64, np.uint64(2), THREADS
    count, eighths = TILE * DEPTH, TILE * DEPTH // 8
    pitch = B_PITCH

    @cuda.jit(device=True, forceinline=True)
    def load_b(x, to, batch, k0, column0):
        inner, columns = np.int32(x.shape[1]), np.int32(x.shape[2])
        if b_wide:
            base = address(x) + u64(batch * x.strides[0])
            for e in range(np.int32(cuda.threadIdx.x), eighths, threads):
                k, j = e >> 4, (e & 15) << 3
                place = base + u64((k0 + k) * x.strides[1]) + u64(column0 + j) * two
                put8(
                    to + u32(k * pitch + ((j << 1) ^ ((k >> 3) << 5))), place, k0 + k < inner and column0 + j < columns
                )
        else:
            for e in range(np.int32(cuda.threadIdx.x), count, threads):
                if b_rows:
                    k, j = e >> 7, e & 127
                else:
                    k, j = e & 31, e >> 5
                inside = k0 + k < inner and column0 + j < columns
                put(to + u32(k * pitch + ((j << 1) ^ ((k >> 3) << 5))), x, batch, k0 + k, column0 + j, inside)

    return load_b


def make_kernel(t: TensorTiling, epilogue: Callable) -> Callable:
    """Return ``gemm(a, b, c, d, alpha, beta, extra)`` on arrays with three axes: batch, rows, columns.

    The grid has tiles of columns, batch after batch, along x and tiles of rows along y.
    """
    from devkernels.matrix import ends, ptx, tensor_calls

    product, clear = tensor_calls.make_warp_tile(t.kind, 64, B_PITCH), tensor_calls.make_clear(64)
    end = ends.make_end(t.out_dtype, ROW_STEPS, tuple(range(8)), t.has_c, t.d_wide)
    load_a, load_b = make_load_a(t.a_along_rows, t.a_wide), make_load_b(t.b_along_rows, t.b_wide)
    shared_address, u32 = ptx.shared_address, np.uint32
    tile, depth, a_bytes, words = TILE, DEPTH, A_BYTES, SHARED_BYTES // 16

    def gemm(a, b, c, d, alpha, beta, extra):
        memory = cuda.shared.array(words, np.complex128)  # 16 bytes each, and aligned so
        left = shared_address(memory)
        right = left + u32(a_bytes)
        sums = cuda.local.array(64, np.float32)
        clear(sums)
        across = (np.int32(d.shape[2]) + tile - 1) // tile
        batch = np.int32(cuda.blockIdx.x) // across
        row0, column0 = np.int32(cuda.blockIdx.y) * tile, (np.int32(cuda.blockIdx.x) - batch * across) * tile
        lane, warp = np.int32(cuda.threadIdx.x) & 31, np.int32(cuda.threadIdx.x) >> 5
        own_row, own_column = (warp & 1) << 6, (warp >> 1) << 5
        for k0 in range(0, np.int32(a.shape[2]), depth):
            load_a(a, left, batch, row0, k0)
            load_b(b, right, batch, k0, column0)
            cuda.syncthreads()
            product(sums, left + u32(own_row << 6), right, own_column, lane)
            cuda.syncthreads()
        row, column = row0 + own_row + (lane >> 2), column0 + own_column + ((lane & 3) << 3)
        end(epilogue, sums, alpha, beta, batch, row, column, c, d, extra)

    return gemm
