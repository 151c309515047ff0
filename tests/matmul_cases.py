"""Kernels around a DeviceMatmul that tests of all homes share, with exact data: small integers in any dtype."""

import numpy as np

import devkernels
from devkernels import cuda

ORDERS = ("row_major", "col_major")


def shared_kernel(mm):
    """c = alpha op(a) op(b) + beta c for one tile, all in shared memory."""
    spec = mm.spec
    sizes, kinds = (mm.a_size, mm.b_size, mm.c_size), (mm.a_value_type, mm.b_value_type, mm.c_value_type)
    (a_size, b_size, c_size), (a_type, b_type, c_type) = sizes, kinds
    assert spec.shapes[2] == tuple(mm.c_dim)

    @devkernels.kernel
    def product(x, y, z, out, alpha, beta):
        a = cuda.shared.array(a_size, a_type)
        b = cuda.shared.array(b_size, b_type)
        c = cuda.shared.array(c_size, c_type)
        mm.load_a(x, 0, 0, a)
        mm.load_b(y, 0, 0, b)
        mm.load_c(z, 0, 0, c)
        cuda.syncthreads()
        mm(alpha, a, b, beta, c)
        cuda.syncthreads()
        mm.store_c(c, out, 0, 0)

    return product


def accumulator_kernel(mm):
    """out = z + x @ y by tiles, the sum in registers; grid of (rows, columns) of tiles."""
    m, n, k = mm.size
    a_size, b_size, a_type, b_type = mm.a_size, mm.b_size, mm.a_value_type, mm.b_value_type
    share, c_type = mm.accumulator_size, mm.c_value_type

    @devkernels.kernel
    def product(x, y, z, out):
        a = cuda.shared.array(a_size, a_type)
        b = cuda.shared.array(b_size, b_type)
        accumulator = cuda.local.array(share, c_type)
        row, column = cuda.blockIdx.x * m, cuda.blockIdx.y * n
        mm.load_accumulator(z, row, column, accumulator)
        for k0 in range(0, x.shape[1], k):
            mm.load_a(x, row, k0, a)
            mm.load_b(y, k0, column, b)
            cuda.syncthreads()
            mm(a, b, accumulator)
            cuda.syncthreads()
        mm.store_accumulator(accumulator, out, row, column)

    return product


def integers(generator, shape, dtype, order="C"):
    """Small whole numbers, so that any order of summation gives the same result; complex ones in both parts."""
    dtype = np.dtype(dtype)
    low = 0 if dtype.kind == "u" else -3
    values = generator.integers(low, 4, shape).astype(dtype)
    if dtype.kind == "c":
        values = values + 1j * generator.integers(low, 4, shape)
    return np.array(values, dtype=dtype, order=order)


def poison(shape, dtype):
    """An array whose every element is wrong."""
    dtype = np.dtype(dtype)
    return np.full(shape, 77 if dtype.kind in "iu" else np.nan, dtype)
