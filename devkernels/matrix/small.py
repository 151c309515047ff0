"""Main loops for many small products: one matrix in a warp (tensor cores), or one row of one in a thread.

In: a `SmallTiling` and the epilogue's device function. Out: a kernel as a Python function. All sizes are constants,
so that nothing is masked and all sums stay in registers; matrices are dense, in row order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.lazy import cuda

MOST = 64  # the longest side
THREADS = 128


@dataclass(frozen=True)
class SmallTiling:
    """Sizes and dtypes. `a_batched`, `b_batched`: each product has an a, a b of its own."""

    m: int
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    accumulate: str
    a_batched: bool = True
    b_batched: bool = True

    @property
    def in_warps(self) -> bool:
        """Whether the tensor cores take these sizes and dtypes."""
        halves = self.a_dtype == self.b_dtype and self.a_dtype in ("float16", "bfloat16")
        fits = self.m % 16 == 0 and self.n in (16, 32, 64) and self.k in (16, 32, 64) and self.m <= MOST
        return halves and fits and self.accumulate == "float32" and self.out_dtype != "float64"

    @property
    def threads_each(self) -> int:
        """Threads of one product."""
        return 32 if self.in_warps else self.m

    def blocks(self, batch: int) -> int:
        """Blocks for a batch."""
        return -(-batch * self.threads_each // THREADS)


_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1}


def suits(m: int, n: int, k: int, a_dtype: str, b_dtype: str, out_dtype: str, accumulate: str) -> bool:
    """Whether there is a main loop here for these sizes and dtypes."""
    wide = {"float64"} if accumulate == "float64" else {"float16", "bfloat16", "float32"}
    known = {a_dtype, b_dtype} <= wide and accumulate in ("float32", "float64")
    return known and max(m, n, k) <= MOST and out_dtype in (*wide, *(() if accumulate == "float64" else ("int8",)))


def make_kernel(t: SmallTiling, epilogue: Callable) -> Callable:
    """Return ``gemm(a, b, d, batches, alpha, extra)``; a, b and d are arrays with three axes, dense in row order."""
    return _warp_kernel(t, epilogue) if t.in_warps else _row_kernel(t, epilogue)


def _steps(t: SmallTiling) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Bytes from one product's a, b and d to the next one's."""
    a = t.m * t.k * _BYTES[t.a_dtype] * t.a_batched
    b = t.k * t.n * _BYTES[t.b_dtype] * t.b_batched
    return np.uint64(a), np.uint64(b), np.uint64(t.m * t.n * _BYTES[t.out_dtype])


def _warp_kernel(t: SmallTiling, epilogue: Callable) -> Callable:
    from devkernels.matrix import ptx, small_calls

    kind = {"float16": "f16", "bfloat16": "bf16"}[t.a_dtype]
    product = small_calls.make_warp_product(kind, t.m, t.n, t.k)
    width, halves, count = t.n // 4, t.m // 8, t.m * t.n // 32
    ends = tuple(small_calls.make_finish_row(t.out_dtype, width, i * width, True) for i in range(halves))
    end0, end1 = ends[:2]
    rest = ends[2:]
    end2, end3 = rest[:2] if halves > 2 else ends[:2]
    end4, end5 = rest[2:4] if halves > 4 else ends[:2]
    end6, end7 = rest[4:6] if halves > 6 else ends[:2]
    a_step, b_step, d_step = _steps(t)
    row_bytes, item, address = np.uint64(t.n * _BYTES[t.out_dtype]), np.uint64(_BYTES[t.out_dtype]), ptx.address
    eight_rows, u64 = np.uint64(8 * t.n * _BYTES[t.out_dtype]), np.uint64

    def gemm(a, b, d, batches, alpha, extra):
        number = cuda.blockIdx.x * 4 + (cuda.threadIdx.x >> 5)
        lane = cuda.threadIdx.x & 31
        if number < batches:
            sums = cuda.local.array(count, np.float32)
            product(sums, address(a) + u64(number) * a_step, address(b) + u64(number) * b_step, lane)
            row, column = lane >> 2, (lane & 3) * width
            place = address(d) + u64(number) * d_step + u64(row) * row_bytes + u64(column) * item
            end0(epilogue, sums, alpha, number, row, column, extra, place)
            end1(epilogue, sums, alpha, number, row + 8, column, extra, place + eight_rows)
            if halves > 2:
                end2(epilogue, sums, alpha, number, row + 16, column, extra, place + u64(2) * eight_rows)
                end3(epilogue, sums, alpha, number, row + 24, column, extra, place + u64(3) * eight_rows)
            if halves > 4:
                end4(epilogue, sums, alpha, number, row + 32, column, extra, place + u64(4) * eight_rows)
                end5(epilogue, sums, alpha, number, row + 40, column, extra, place + u64(5) * eight_rows)
            if halves > 6:
                end6(epilogue, sums, alpha, number, row + 48, column, extra, place + u64(6) * eight_rows)
                end7(epilogue, sums, alpha, number, row + 56, column, extra, place + u64(7) * eight_rows)

    return gemm


def _row_kernel(t: SmallTiling, epilogue: Callable) -> Callable:
    from devkernels.matrix import ptx, small_calls

    a_item, b_item, d_item = _BYTES[t.a_dtype], _BYTES[t.b_dtype], _BYTES[t.out_dtype]
    lanes = 16 // a_item
    wide = (t.k * a_item) % 16 == 0 and (t.n * b_item) % 16 == 0
    depth = lanes if wide else 1
    step = small_calls.make_row_step(t.a_dtype, t.b_dtype, t.n, depth, wide)
    end = small_calls.make_finish_row(t.out_dtype, t.n, 0, (t.n * d_item) % 16 == 0)
    a_step, b_step, d_step = _steps(t)
    a_row, d_row, address, u64 = np.uint64(t.k * a_item), np.uint64(t.n * d_item), ptx.address, np.uint64
    a_move, b_move = np.uint64(depth * a_item), np.uint64(depth * t.n * b_item)
    m, n, rounds, kind, threads = t.m, t.n, t.k // depth, np.dtype(t.accumulate), THREADS
    zero = kind.type(0)

    def gemm(a, b, d, batches, alpha, extra):
        thread = cuda.blockIdx.x * threads + cuda.threadIdx.x
        number = thread // m
        row = thread - number * m
        if number < batches:
            sums = cuda.local.array(n, kind)
            for j in range(n):
                sums[j] = zero
            left = address(a) + u64(number) * a_step + u64(row) * a_row
            right = address(b) + u64(number) * b_step
            for _ in range(rounds):
                step(sums, left, right)
                left += a_move
                right += b_move
            place = address(d) + u64(number) * d_step + u64(row) * d_row
            end(epilogue, sums, alpha, number, row, 0, extra, place)

    return gemm
