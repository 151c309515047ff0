"""Kernels that move tiles, shared by the tests of all homes."""

import numpy as np

import devkernels
from devkernels import cuda

LAYOUTS = [
    dict(shape=(16, 32), order="row_major"),
    dict(shape=(16, 32), order="col_major", leading_dimension="padded"),
    dict(shape=(13, 5), order="row_major", leading_dimension=9),
    dict(shape=(16, 64), order="row_major", swizzle=True),
    dict(shape=(64, 8), order="col_major", swizzle=True, block_dim=64),
    dict(shape=(8, 64), order="row_major", swizzle=64, block_dim=(16, 2, 2)),
    dict(shape=(32, 16), order="col_major", swizzle=32),
]


def copying_kernel(source, sink, asynchronous):
    """y = x by tiles: loaded in one layout, moved element by element to another, stored from there."""
    (rows, columns), load = source.shape, devkernels.load_tile_async if asynchronous else devkernels.load_tile
    size, other, dtype = source.size, sink.size, source.dtype
    store, wait = devkernels.store_tile, devkernels.wait_tiles

    @devkernels.kernel
    def copy(x, y, shift):
        first = cuda.shared.array(size, dtype)
        second = cuda.shared.array(other, dtype)
        row, column = cuda.blockIdx.y * rows - shift, cuda.blockIdx.x * columns - shift
        load(source, x, row, column, first)
        wait(0)
        cuda.syncthreads()
        thread = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
        threads = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
        for e in range(thread, rows * columns, threads):
            i, j = e // columns, e % columns
            second[sink.index(i, j)] = first[source.index(i, j)]
        cuda.syncthreads()
        store(sink, second, y, row, column)

    return copy


def check_copies(keywords, other, dtype, orders, asynchronous, there, back, rng, shapes=None):
    """Copies matrices of many shapes; what `copying_kernel` leaves outside must stay as it was."""
    source, sink = (devkernels.tile_layout(dtype=dtype, **k) for k in (keywords, {**other, "shape": keywords["shape"]}))
    kernel, (rows, columns) = copying_kernel(source, sink, asynchronous), source.shape
    block = source.block_dim or sink.block_dim or (32, 1, 1)
    for m, n in shapes or [(2 * rows, 2 * columns), (rows + 3, columns + 1), (1, 1), (3, 2 * columns + 5)]:
        for shift in (0, 2):
            x = np.asarray(rng.integers(1, 100, (m, n)), dtype)
            if x.dtype.kind == "c":
                x = x + x.dtype.type(1j) * np.asarray(rng.integers(1, 100, (m, n)), x.real.dtype)
            y = np.full((m + 1, n + 1), 7, dtype)
            given, out = there(x, order=orders[0]), there(y, order=orders[1])
            grid = -(-(n + shift) // columns), -(-(m + shift) // rows)
            kernel[grid, block](given, out[:m, :n], shift)
            got = back(out)
            np.testing.assert_array_equal(got[:m, :n], x, err_msg=f"{source} {sink} {m, n, shift}")
            assert (got[m:] == 7).all()
            assert (got[:, n:] == 7).all()
