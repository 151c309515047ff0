"""Device products on a GPU: forms, dtypes, orders, tails, exactly with small integers, and random data in float64."""

import numpy as np
import pytest

import devkernels
from devkernels import tolerance
from tests.matmul_cases import accumulator_kernel, integers, poison, shared_kernel

cupy = pytest.importorskip("cupy")

MIXED = (np.float16, np.float16, np.float32)
CASES = [
    ((16, 16, 16), np.float16, "real", None),
    ((32, 24, 16), np.float32, "real", ("col_major", "row_major", "row_major")),
    ((17, 5, 3), np.float64, "real", None), ((32, 32, 32), MIXED, "real", ("row_major", "col_major", "row_major")),
    ((16, 16, 32), (np.int8, np.int8, np.int32), "real", ("row_major", "col_major", "row_major")),
    ((8, 12, 10), np.float32, "complex", None), ((16, 8, 8), np.float64, "complex", ("col_major",) * 3),
]  # fmt: skip


@pytest.mark.parametrize(("size", "precision", "data_type", "arrangement"), CASES)
def test_shared_form(size, precision, data_type, arrangement, rng):
    mm = devkernels.matmul(size=size, precision=precision, data_type=data_type, arrangement=arrangement,
                           leading_dimension="suggested")  # fmt: skip
    m, n, k = size
    a, b = integers(rng, (m, k), mm.a_value_type), integers(rng, (k, n), mm.b_value_type)
    c, wide = integers(rng, (m, n), mm.c_value_type), mm.c_value_type
    kernel = shared_kernel(mm)
    there, out = [cupy.asarray(x) for x in (a, b, c)], cupy.asarray(poison((m, n), wide))
    kernel[1, mm.block_dim](*there, out, 2, 3)
    np.testing.assert_array_equal(out.get(), 2 * (a.astype(wide) @ b.astype(wide)) + 3 * c)
    nothing = cupy.asarray(poison((m, n), wide))
    kernel[1, mm.block_dim](*there[:2], nothing, out, 1, 0)
    np.testing.assert_array_equal(out.get(), a.astype(wide) @ b.astype(wide))


@pytest.mark.parametrize("precision", [MIXED, np.float32, np.float64, (np.int8, np.int8, np.int32)])
def test_accumulator_form_with_tails(precision, rng):
    """Tiles inside the arrays are loaded 16 bytes at a time, those at the edges element by element."""
    mm = devkernels.matmul(size=(32, 16, 16), precision=precision, arrangement=("row_major", "row_major", "row_major"),
                           alignment=(16, 16, 16))  # fmt: skip
    kernel = accumulator_kernel(mm)
    for m, n, k in ((64, 32, 48), (67, 33, 50), (1, 1, 1), (96, 48, 17)):
        a, b = integers(rng, (m, k), mm.a_value_type), integers(rng, (k, n), mm.b_value_type)
        c, wide = integers(rng, (m, n), mm.c_value_type), mm.c_value_type
        out = cupy.asarray(poison((m, n), wide))
        kernel[(-(-m // 32), -(-n // 16)), mm.block_dim](*map(cupy.asarray, (a, b, c)), out)
        np.testing.assert_array_equal(out.get(), c + a.astype(wide) @ b.astype(wide))


@pytest.mark.parametrize("orders", [("row_major", "col_major"), ("col_major", "row_major")])
@pytest.mark.parametrize("precision", [MIXED, np.float32])
def test_suggested_layouts(precision, orders, rng):
    """Swizzled: whole tiles copied by the library, edges and sources in the other order element by element."""
    mm = devkernels.matmul(size=(64, 32, 32), precision=precision, arrangement=(*orders, "row_major"),
                           alignment=(16, 16, 16), layout="suggested")  # fmt: skip
    kernel = accumulator_kernel(mm)
    for m, n, k in ((128, 64, 96), (67, 33, 50), (1, 1, 1)):
        a, b = integers(rng, (m, k), mm.a_value_type), integers(rng, (k, n), mm.b_value_type)
        c, wide = integers(rng, (m, n), mm.c_value_type), mm.c_value_type
        for order_a, order_b in (("C", "F"), ("F", "C")):
            out = cupy.asarray(poison((m, n), wide))
            there = cupy.asarray(a, order=order_a), cupy.asarray(b, order=order_b), cupy.asarray(c)
            kernel[(-(-m // 64), -(-n // 32)), mm.block_dim](*there, out)
            np.testing.assert_array_equal(out.get(), c + a.astype(wide) @ b.astype(wide))


def test_random_data(rng):
    mm = devkernels.matmul(size=(64, 64, 32), precision=np.float32)
    kernel, size = accumulator_kernel(mm), 192
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    zero, out = cupy.zeros((size, size), np.float32), cupy.full((size, size), np.nan, np.float32)
    kernel[(3, 3), mm.block_dim](cupy.asarray(a), cupy.asarray(b), zero, out)
    error = tolerance.relative_error(out.get(), a.astype(np.float64) @ b.astype(np.float64))
    assert error < tolerance.product_bound("float32", "float32", size)
