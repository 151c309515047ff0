"""Tiles with a rim: the mean of each pixel's 3 x 3 neighbourhood, and the picture turned, in one kernel.

Usage: python examples/tile_blur.py

A thread block loads a tile of the picture with one more row and column on each side, by `load_tile`: what lies outside
the picture is zero, and no index is ever tested by hand. It writes the means to a second tile in column order, so that
`store_tile` writes whole rows of the turned picture. Runs on a GPU, and in Numba's simulator without one.
"""

import sys

import numpy as np

import devkernels
from devkernels import cuda
from devkernels.target import home

SIDE = 16  # pixels of a tile
NINTH = np.float32(1 / 9)


def make_blur():
    """Return the kernel ``blur(picture, turned)`` and its threads; a block is a tile.

    Lines of both tiles are padded, so that neither rows nor columns of 16 bytes meet in a bank of shared memory.
    """
    rim = devkernels.tile_layout((SIDE + 2, SIDE + 2), np.float32, leading_dimension="padded")
    means = devkernels.tile_layout((SIDE, SIDE), np.float32, order="col_major", leading_dimension="padded")
    rim_size, means_size, side, threads, ninth = rim.size, means.size, SIDE, 64, NINTH
    load, store = devkernels.load_tile, devkernels.store_tile

    @devkernels.kernel(launch_bounds=threads)
    def blur(picture, turned):
        front = cuda.shared.array(rim_size, np.float32)
        back = cuda.shared.array(means_size, np.float32)
        row, column = cuda.blockIdx.y * side, cuda.blockIdx.x * side
        load(rim, picture, row - 1, column - 1, front)
        cuda.syncthreads()
        for pixel in range(cuda.threadIdx.x, side * side, threads):
            i, j = pixel // side, pixel % side
            total = np.float32(0)
            for down in range(3):
                for right in range(3):
                    total += front[rim.index(i + down, j + right)]
            back[means.index(i, j)] = total * ninth
        cuda.syncthreads()
        store(means, back, turned.T, row, column)

    return blur, threads


def reference(picture):
    """The same in float64 NumPy."""
    rim = np.pad(picture.astype(np.float64), 1)
    rows, columns = picture.shape
    return (sum(rim[i : i + rows, j : j + columns] for i in range(3) for j in range(3)) / 9).T


def main():
    rows, columns = (1080, 1920) if home().kind == "gpu" else (40, 55)
    picture = np.random.default_rng(7).random((rows, columns), dtype=np.float32)
    blur, threads = make_blur()
    turned = np.full((columns, rows), np.nan, np.float32)
    given, out = picture, turned
    if home().kind == "gpu":
        import cupy

        given, out = cupy.asarray(picture), cupy.asarray(turned)
    blur[(-(-columns // SIDE), -(-rows // SIDE)), threads](given, out)
    turned = out if home().kind == "sim" else out.get()
    error = np.abs(turned - reference(picture)).max()
    print(f"{rows} x {columns} pixels, {home().kind}: error against NumPy {error:.1e}")
    return 0 if error < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
