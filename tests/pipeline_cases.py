"""A kernel around a pipelined product, shared by the tests of all homes."""

import numpy as np

import devkernels
from devkernels import cuda

BYTE = np.dtype("u1")  # the simulator wants instances
HALF = (np.float16, np.float16, np.float32)


def pipelined_kernel(mm):
    """y = x + a @ b by tiles; grid of (rows, columns) of tiles, twice as many threads of work in a block as tiles.

    Each block does its tile twice, the second time from zero, so that a buffer is used again.
    """
    share, dtype, (m, n, _) = mm.accumulator_size, mm.c_value_type, mm.size

    @devkernels.kernel(launch_bounds=mm.block_size)
    def product(pipeline, x, y, z):
        smem = cuda.shared.array(0, BYTE)
        sums = cuda.local.array(share, dtype)
        i, j = cuda.blockIdx.x, cuda.blockIdx.y
        tile = pipeline.get_tile(smem, i, j)
        mm.load_accumulator(x, i * m, j * n, sums)
        tile.execute(sums)
        mm.store_accumulator(sums, y, i * m, j * n)
        mm.clear(sums)
        pipeline.get_tile(smem, i, j).execute(sums)
        for e in range(share):
            if mm.holds(e):
                row, column = mm.position(e)
                if i * m + row < z.shape[0] and j * n + column < z.shape[1]:
                    z[i * m + row, j * n + column] = 2 * sums[e]

    return product


def check(mm, a, b, x, depth, there, back):
    """Run `pipelined_kernel` and compare exactly; a and b are as the home has them."""
    (m, n, _), dtype = mm.size, mm.c_value_type
    pipeline = mm.suggest_device_pipeline(depth, a, b)
    rows, columns = x.shape
    y, z = (there(np.full((rows + 1, columns + 1), 77, dtype)) for _ in range(2))
    grid = -(-rows // m), -(-columns // n)
    kernel = pipelined_kernel(mm)
    kernel[grid, mm.block_dim, 0, pipeline.buffer_size](pipeline, there(x), y[:rows, :columns], z[:rows, :columns])
    product = back(a).astype(dtype) @ back(b).astype(dtype)
    for got, want in ((back(y), x + product), (back(z), 2 * product)):
        np.testing.assert_array_equal(got[:rows, :columns], want, err_msg=repr(pipeline))
        assert (got[rows] == 77).all()
        assert (got[:, columns] == 77).all()
    return pipeline
