"""The main loop for every dtype, order and architecture: tiles in shared memory, a square of sums in each thread.

In: a `PortableTiling` and the device functions of prologues and epilogue. Out: a kernel as a Python function, the
same on a GPU and in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.device.inline import device_function
from devkernels.lazy import cuda
from devkernels.target import simulating

SIDE = 4  # each thread holds SIDE x SIDE sums


@dataclass(frozen=True)
class PortableTiling:
    """How the work is cut; a tile has tile x tile elements and goes through the inner dimension in steps of `depth`."""

    accumulate: str
    a_along_rows: bool  # elements of a row of a lie together (row order)
    b_along_rows: bool
    has_c: bool
    tile: int = 64
    depth: int = 16

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile // SIDE) ** 2


def default_tile() -> tuple[int, int]:
    """Tile and depth: small in the simulator, where every thread is one of Python's."""
    return (8, 4) if simulating() else (64, 16)


def make_kernel(tiling: PortableTiling, convert: Callable, store: Callable, prologue_a: Callable | None,
                prologue_b: Callable | None, epilogue: Callable) -> Callable:  # fmt: skip
    """Return ``gemm(a, b, c, d, alpha, beta, extra)`` on arrays with three axes: batch, rows, columns.

    The grid has tiles of columns, batch after batch, along x and tiles of rows along y. ``convert(x)`` makes a number
    of the accumulator's type of an element, ``store(x)`` one of the result's; prologues are ``f(x, row, column)``.
    """
    tile, depth, threads = tiling.tile, tiling.depth, tiling.threads
    side, wide, has_c, count = tile // SIDE, tile + 1, tiling.has_c, tile * depth
    a_rows, b_rows, own = tiling.a_along_rows, tiling.b_along_rows, SIDE
    kind = np.dtype(tiling.accumulate)
    a_elements = b_elements = depth * wide
    zero = kind.type(0)
    parts, number, add, total = _sums(kind)
    nothing = number.type(0)
    first = device_function(prologue_a) if prologue_a is not None else None
    second = device_function(prologue_b) if prologue_b is not None else None
    read_a = _reader(convert, first, zero)
    read_b = _reader(convert, second, zero)

    def gemm(a, b, c, d, alpha, beta, extra):
        left = cuda.shared.array(a_elements, kind)  # element (row, k) at k * wide + row
        right = cuda.shared.array(b_elements, kind)  # element (k, column) at k * wide + column
        sums = cuda.local.array((parts, own, own), number)  # real parts, then imaginary ones
        thread = cuda.threadIdx.x
        across_tiles = (d.shape[2] + tile - 1) // tile
        batch = cuda.blockIdx.x // across_tiles
        row0, column0 = cuda.blockIdx.y * tile, (cuda.blockIdx.x - batch * across_tiles) * tile
        down, across = thread // side, thread % side
        for p in range(parts):
            for i in range(own):
                for j in range(own):
                    sums[p, i, j] = nothing
        inner = a.shape[2]
        for k0 in range(0, inner, depth):
            for e in range(thread, count, threads):
                if a_rows:
                    i, k = e // depth, e % depth
                else:
                    i, k = e % tile, e // tile
                left[k * wide + i] = read_a(a, batch, row0 + i, k0 + k)
                if b_rows:
                    j, k = e % tile, e // tile
                else:
                    j, k = e // depth, e % depth
                right[k * wide + j] = read_b(b, batch, k0 + k, column0 + j)
            cuda.syncthreads()
            for k in range(depth):
                for i in range(own):
                    value = left[k * wide + down + i * side]
                    for j in range(own):
                        add(sums, i, j, value, right[k * wide + across + j * side])
            cuda.syncthreads()
        for i in range(own):
            row = row0 + down + i * side
            for j in range(own):
                column = column0 + across + j * side
                if row < d.shape[1] and column < d.shape[2]:
                    value = alpha * total(sums, i, j)
                    if has_c:
                        value += beta * convert(c[batch, row, column])
                    d[batch, row, column] = store(epilogue(value, batch, row, column, extra))

    return gemm


def _sums(kind: np.dtype) -> tuple[int, np.dtype, Callable, Callable]:
    """Parts of a sum, their dtype, and device functions that add a product and give the whole sum.

    Complex products are added part by part: four fused multiply-adds, where a product and an addition are six
    operations.
    """
    if kind.kind != "c":

        def add(sums, i, j, a, b):
            sums[0, i, j] += a * b

        return 1, kind, device_function(add), device_function(lambda sums, i, j: sums[0, i, j])

    def add_parts(sums, i, j, a, b):
        sums[0, i, j] += a.real * b.real
        sums[0, i, j] -= a.imag * b.imag
        sums[1, i, j] += a.real * b.imag
        sums[1, i, j] += a.imag * b.real

    number, whole = np.dtype({"complex64": "f4", "complex128": "f8"}[kind.name]), kind.type
    total = device_function(lambda sums, i, j: whole(complex(sums[0, i, j], sums[1, i, j])))
    return 2, number, device_function(add_parts), total


def _reader(convert: Callable, prologue: Callable | None, zero: object) -> Callable:
    """Device function that reads one element, through a prologue; zero outside the matrix."""
    if prologue is None:

        def read(x, batch, row, column):
            if row < x.shape[1] and column < x.shape[2]:
                return convert(x[batch, row, column])
            return zero
    else:

        def read(x, batch, row, column):
            if row < x.shape[1] and column < x.shape[2]:
                return convert(prologue(x[batch, row, column], row, column))
            return zero

    return device_function(read)
