"""devkernels.matmul in the simulator: every form, order, dtype and edge, exactly."""

import itertools

import numpy as np
import pytest

import devkernels
from devkernels import cuda
from devkernels.errors import ArgumentError, ArgumentTypeError
from tests.matmul_cases import ORDERS, accumulator_kernel, integers, poison, shared_kernel

KINDS = [
    (np.float16, "real"), (np.float32, "real"), (np.float64, "real"), (np.float32, "complex"),
    (np.float64, "complex"), ((np.float16, np.float16, np.float32), "real"), ((np.int8, np.int8, np.int32), "real"),
    ((np.uint8, np.uint8, np.uint32), "real"), ((np.float32, np.float32, np.float64), "real"),
]  # fmt: skip


@pytest.fixture
def generator():
    seed = np.random.SeedSequence().entropy
    print("seed", seed)
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("precision", "data_type"), KINDS)
def test_shared_form(generator, precision, data_type):
    mm = devkernels.matmul(size=(5, 6, 7), precision=precision, data_type=data_type, block_size=32)
    a, b = integers(generator, (5, 7), mm.a_value_type), integers(generator, (7, 6), mm.b_value_type)
    c, out = integers(generator, (5, 6), mm.c_value_type), poison((5, 6), mm.c_value_type)
    kernel = shared_kernel(mm)
    kernel[1, mm.block_dim](a, b, c, out, 2, 3)
    wide = mm.c_value_type
    want = 2 * (a.astype(wide) @ b.astype(wide)) + 3 * c
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("arrangement", list(itertools.product(ORDERS, repeat=3)))
def test_every_order(generator, arrangement):
    """Orders in shared memory, with padded leading dimensions; sources and results in the other order."""
    mm = devkernels.matmul(size=(4, 6, 8), precision=np.float32, arrangement=arrangement, block_size=32,
                           leading_dimension=(9, 9, 7))  # fmt: skip
    other = ["F" if order == "row_major" else "C" for order in arrangement]
    a, b = integers(generator, (4, 8), "f4", other[0]), integers(generator, (8, 6), "f4", other[1])
    c, out = integers(generator, (4, 6), "f4", other[2]), np.asfortranarray(poison((4, 6), "f4"))
    kernel = shared_kernel(mm)
    kernel[1, mm.block_dim](a, b, c, out, 1, -1)
    np.testing.assert_array_equal(out, a @ b - c)


@pytest.mark.parametrize(
    "modes", list(itertools.product(("non_transposed", "transposed", "conj_transposed"), repeat=2))
)
def test_transpose_modes(generator, modes):
    mm = devkernels.matmul(
        size=(3, 4, 5), precision=np.float64, data_type="complex", transpose_mode=modes, block_size=32
    )
    a, b = integers(generator, (3, 5), "c16"), integers(generator, (5, 4), "c16")
    out, kernel = poison((3, 4), "c16"), shared_kernel(mm)
    # load_a loads op(a) as it is to be multiplied, save for the conjugation, which the product does.
    kernel[1, mm.block_dim](a, b, out.copy(), out, 1, 0)
    left = a.conj() if modes[0] == "conj_transposed" else a
    right = b.conj() if modes[1] == "conj_transposed" else b
    np.testing.assert_array_equal(out, left @ right)


def test_beta_zero_does_not_read_c(generator):
    mm = devkernels.matmul(size=(4, 4, 4), precision=np.float32, block_size=32)
    a, b = integers(generator, (4, 4), "f4"), integers(generator, (4, 4), "f4")
    out, kernel = poison((4, 4), "f4"), shared_kernel(mm)
    kernel[1, mm.block_dim](a, b, poison((4, 4), "f4"), out, 1, 0)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("shape", [(8, 8, 8), (9, 7, 5), (1, 1, 1), (13, 11, 17)])
def test_accumulator_form_with_tails(generator, shape):
    m, n, k = shape
    mm = devkernels.matmul(size=(8, 4, 6), precision=(np.float16, np.float16, np.float32), block_dim=(8, 4))
    a, b = integers(generator, (m, k), "f2"), integers(generator, (k, n), "f2")
    c, out = integers(generator, (m, n), "f4"), poison((m + 1, n + 1), "f4")
    kernel = accumulator_kernel(mm)
    kernel[(-(-m // 8), -(-n // 4)), mm.block_dim](a, b, c, out[:m, :n])
    np.testing.assert_array_equal(out[:m, :n], c + a.astype("f4") @ b.astype("f4"))
    assert np.isnan(out[m]).all()
    assert np.isnan(out[:, n]).all()


def test_every_element_has_one_holder():
    mm = devkernels.matmul(size=(5, 7, 3), precision=np.float32, block_size=32)
    share = mm.accumulator_size

    @devkernels.kernel
    def count(seen):
        for i in range(share):
            if mm.holds(i):
                row, column = mm.position(i)
                cuda.atomic.add(seen, (row, column), 1)

    seen = np.zeros((5, 7), np.int32)
    count[1, mm.block_dim](seen)
    np.testing.assert_array_equal(seen, 1)


def test_leading_dimensions_known_in_the_kernel(generator):
    mm = devkernels.matmul(size=(4, 4, 4), precision=np.float32, block_size=32)

    @devkernels.kernel
    def product(x, out, ld):
        a = cuda.shared.array(32, np.float32)
        b = cuda.shared.array(32, np.float32)
        c = cuda.shared.array(32, np.float32)
        i = cuda.threadIdx.x
        if i < 4:
            for j in range(4):
                a[i * ld + j] = x[i, j]
                b[i * ld + j] = x[j, i]
        cuda.syncthreads()
        mm(1, a, ld, b, ld, 0, c, ld)
        cuda.syncthreads()
        if i < 4:
            for j in range(4):
                out[i, j] = c[i * ld + j]

    x, out = integers(generator, (4, 4), "f4"), poison((4, 4), "f4")
    product[1, 32](x, out, 7)
    np.testing.assert_array_equal(out, x @ x.T)


def test_wrong_arrays_are_named(generator):
    mm = devkernels.matmul(size=(4, 4, 4), precision=np.float32, block_size=32)
    kernel, small = shared_kernel(mm), integers(generator, (4, 4), "f4")
    with pytest.raises(ArgumentTypeError, match="dtype float64"):
        kernel[1, mm.block_dim](small.astype("f8"), small, small, small.copy(), 1, 0)

    @devkernels.kernel
    def short(x):
        a = cuda.shared.array(8, np.float32)
        mm(1, a, a, 0, a)

    with pytest.raises(ArgumentError, match="needs 16"):
        short[1, 1](small)


def test_suggested_layout_is_the_librarys_affair(generator):
    """The kernel's text is the same; here a and b lie as they always do. The other forms refuse it."""
    mm = devkernels.matmul(size=(8, 8, 4), precision=np.float32, block_size=32, layout="suggested")
    assert mm.layout == "suggested"
    a, b, c = (integers(generator, s, "f4") for s in ((11, 9), (9, 13), (11, 13)))
    out = poison((11, 13), "f4")
    accumulator_kernel(mm)[(2, 2), mm.block_dim](a, b, c, out)
    np.testing.assert_array_equal(out, c + a @ b)
    with pytest.raises(ArgumentError, match=r"go with mm\(a, b, accumulator\) only"):
        shared_kernel(mm)[1, mm.block_dim](a[:8, :4], b[:4, :8], c[:8, :8], out[:8, :8], 1, 0)
