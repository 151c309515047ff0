"""The main loop for many small products of float32, float64 and complex numbers: several in a block's shared memory.

In: a `PackedTiling` and the epilogue's device function. Out: a kernel as a Python function, for sm_80 and newer. Both
operands are copied 16 bytes at a time, as they lie; a thread then has 4 x 4 sums of one product. Sizes are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.lazy import cuda
from devkernels.matrix.memory_sizes import ITEM_BYTES, WIDEST
from devkernels.matrix.small import MOST

SHARE = 4  # rows and columns of a thread's sums
LEAST = 12  # sides from which on this is faster than a row for each thread
_THREADS = 128  # of a block, if its products fit them


@dataclass(frozen=True)
class PackedTiling:
    """Sizes, dtypes and orders. `along`: the inner dimension of a, or b, is contiguous."""

    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    a_along: bool
    b_along: bool
    has_c: bool = False
    d_wide: bool = False

    @property
    def each(self) -> int:
        """Elements of one access."""
        return WIDEST // ITEM_BYTES[self.dtype]

    @property
    def threads_each(self) -> int:
        """Threads of one product."""
        return (self.m // SHARE) * (self.n // SHARE)

    @property
    def count(self) -> int:
        """Products of a block."""
        return max(1, _THREADS // self.threads_each)

    @property
    def threads(self) -> int:
        """Threads of a block, whole warps."""
        return -(-self.count * self.threads_each // 32) * 32

    def lines(self, which: int) -> tuple[int, int]:
        """Lines of a (0) or b (1), and elements of a line."""
        outer = (self.m, self.n)[which]
        return (outer, self.k) if (self.a_along, self.b_along)[which] else (self.k, outer)

    def pitch(self, which: int) -> int:
        """Bytes between lines in shared memory."""
        bytes_ = self.lines(which)[1] * ITEM_BYTES[self.dtype]
        return bytes_ + WIDEST if (self.a_along, self.b_along)[which] else bytes_

    def product_bytes(self, which: int) -> int:
        """Bytes of one a (0) or b (1) in shared memory; two products of a warp should meet in no bank."""
        dense = self.lines(which)[0] * self.pitch(which)
        return dense + 64 if self.threads_each < 32 else dense

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.count * (self.product_bytes(0) + self.product_bytes(1))

    def places(self, which: int) -> tuple[int, ...]:
        """Rows of a (0) or columns of b (1) that a thread reads, from its first one."""
        apart = (self.m, self.n)[which] // SHARE
        if (self.a_along, self.b_along)[which]:
            return tuple(apart * i for i in range(SHARE))
        return tuple(apart * self.each * (i // self.each) + i % self.each for i in range(SHARE))

    @property
    def run(self) -> int:
        """Columns of the result that a thread holds side by side."""
        return 1 if self.b_along else self.each


def suits(m: int, n: int, k: int, dtype: str, out_dtype: str) -> bool:
    """Whether this main loop takes products of these sizes and dtypes."""
    if dtype not in ("float32", "float64", "complex64", "complex128"):
        return False
    stored = ("float32", "float16", "bfloat16", "int8") if dtype == "float32" else (dtype,)
    sides = m % SHARE == n % SHARE == 0 and min(m, n) >= LEAST and max(m, n, k) <= MOST
    return out_dtype in stored and sides and k % (WIDEST // ITEM_BYTES[dtype]) == 0


def make_kernel(t: PackedTiling, epilogue: Callable) -> Callable:
    """Return ``gemm(a, b, c, d, alpha, beta, extra)`` on arrays with three axes: batch, rows, columns.

    The grid has a block for each `count` products.
    """
    from devkernels.matrix import ends, ptx, staged_calls, staged_copies, tensor_calls

    copies = []
    for which in range(2):
        lines, length = t.lines(which)
        pieces = length // t.each
        copies.append(
            staged_copies.make_copy_products(t.count, lines, pieces, t.pitch(which), t.product_bytes(which), t.threads)
        )
    copy_a, copy_b = copies
    multiply = staged_calls.make_multiply(
        t.dtype, t.a_along, t.b_along, t.pitch(0), t.pitch(1), t.places(0), t.places(1), t.k
    )
    end = ends.make_end(t.out_dtype, t.places(0), t.places(1), t.has_c, t.d_wide)
    parts = 2 if t.dtype.startswith("complex") else 1
    sums_count, number = SHARE * SHARE * parts, np.dtype("f8" if t.dtype in ("float64", "complex128") else "f4")
    clear = tensor_calls.make_clear(sums_count)
    commit, wait = staged_copies.commit_copies, staged_copies.make_wait(0)
    address, shared_address, u32 = ptx.address, ptx.shared_address, np.uint32
    count, each, threads_each, across = t.count, t.each, t.threads_each, t.n // SHARE
    item, a_along, b_along, a_pitch, b_pitch = ITEM_BYTES[t.dtype], t.a_along, t.b_along, t.pitch(0), t.pitch(1)
    a_bytes, b_bytes = t.product_bytes(0), t.product_bytes(1)
    b_from = count * a_bytes

    def gemm(a, b, c, d, alpha, beta, extra):
        memory = cuda.shared.array(0, np.complex128)  # 16 bytes each, and aligned so
        base = shared_address(memory)
        thread = np.int32(cuda.threadIdx.x)
        first, batches = np.int32(cuda.blockIdx.x) * count, np.int32(d.shape[0])
        copy_a(base, address(a), a.strides[0], a.strides[1] if a_along else a.strides[2], first, batches, thread)
        copy_b(
            base + u32(b_from), address(b), b.strides[0], b.strides[2] if b_along else b.strides[1], first, batches,
            thread,
        )  # fmt: skip
        commit()
        wait()
        cuda.syncthreads()
        own = thread // threads_each
        place = thread - own * threads_each
        down = place // across
        right = place - down * across
        if own < count and first + own < batches:
            sums = cuda.local.array(sums_count, number)
            clear(sums)
            row, column = down if a_along else each * down, right if b_along else each * right
            from_a = own * a_bytes + (row * a_pitch if a_along else row * item)
            from_b = b_from + own * b_bytes + (column * b_pitch if b_along else column * item)
            multiply(sums, base + u32(from_a), base + u32(from_b))
            end(epilogue, sums, alpha, beta, first + own, row, column, c, d, extra)

    return gemm
