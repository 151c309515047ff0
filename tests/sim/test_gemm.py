"""Products of matrices in the simulator: dtypes, orders, tails, epilogues, batches, exactly where integers allow it."""

import itertools
import math

import numpy as np
import pytest

import devkernels
from devkernels import tolerance
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.kernels import gemm_aligned
from tests.matmul_cases import integers, poison


@pytest.fixture
def generator():
    seed = np.random.SeedSequence().entropy
    print("seed", seed)
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("dtype", "wide", "result"),
    [("float16", "f4", "float16"), ("float32", "f4", "float32"), ("float64", "f8", "float64"),
     ("complex64", "c8", "complex64"), ("complex128", "c16", "complex128"), ("int8", "i4", "int32"),
     ("uint8", "i4", "int32"), ("int32", "i8", "int64"), (("float16", "float32"), "f4", "float16")],
)  # fmt: skip
def test_dtypes(generator, dtype, wide, result):
    first, second = dtype if isinstance(dtype, tuple) else (dtype, dtype)
    a, b = integers(generator, (9, 11), first), integers(generator, (11, 10), second)
    c = integers(generator, (9, 10), result)
    product = devkernels.make_gemm(dtype)
    got = product(a, b)
    assert got.dtype == result
    np.testing.assert_array_equal(got, a.astype(wide) @ b.astype(wide))
    np.testing.assert_array_equal(product(a, b, c, alpha=2, beta=3), 2 * (a.astype(wide) @ b.astype(wide)) + 3 * c)


def test_integers_added_up_for_floats(generator):
    """int8 with scales and functions after it: sums are exact, as long as float32 holds them."""
    a, b = integers(generator, (9, 11), "i1"), integers(generator, (11, 10), "i1")
    scale = np.full(10, 0.5, "f4")
    product = devkernels.make_gemm("int8", accumulate="float32", epilogue=("column_scale", "relu"))
    got = product(a, b, extra=(scale,))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.maximum(0.5 * (a.astype("f4") @ b.astype("f4")), 0))
    half = devkernels.make_gemm("int8", accumulate="float32", out_dtype="float16")(a, b, alpha=0.25)
    np.testing.assert_array_equal(half, (0.25 * (a.astype("f4") @ b.astype("f4"))).astype("f2"))


@pytest.mark.parametrize("orders", list(itertools.product("CF", repeat=3)))
def test_orders(generator, orders):
    a, b = integers(generator, (9, 5), "f4", orders[0]), integers(generator, (5, 17), "f4", orders[1])
    out = np.array(poison((9, 17), "f4"), order=orders[2])
    assert devkernels.gemm(a, b, out=out) is out
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 8, 4), (7, 9, 1), (17, 1, 3), (1, 16, 13)])
def test_tails_and_gaps(generator, shape):
    """Results inside a larger array, whose margin stays as it is; sources with gaps in both axes."""
    m, n, k = shape
    a = integers(generator, (2 * m, 3 * k), "f4")[::2, ::3]
    b = integers(generator, (2 * k, n), "f4")[::2]
    large = poison((m + 2, n + 2), "f4")
    devkernels.gemm(a, b, out=large[1:-1, 1:-1])
    np.testing.assert_array_equal(large[1:-1, 1:-1], a @ b)
    assert np.isnan(large).sum() == large.size - m * n


def test_beta_zero_does_not_read_c(generator):
    a, b = integers(generator, (3, 4), "f4"), integers(generator, (4, 5), "f4")
    np.testing.assert_array_equal(devkernels.gemm(a, b, poison((3, 5), "f4")), a @ b)
    np.testing.assert_array_equal(
        devkernels.gemm(a, b, np.ones((3, 5), "f4"), alpha=0, beta=2), np.full((3, 5), 2, "f4")
    )


def test_result_over_c(generator):
    a, b, c = (integers(generator, (4, 4), "f4") for _ in range(3))
    want = a @ b + c
    assert devkernels.gemm(a, b, c, beta=1, out=c) is c
    np.testing.assert_array_equal(c, want)


def test_batches(generator):
    a, b = integers(generator, (3, 5, 4), "f4"), integers(generator, (3, 4, 6), "f4")
    np.testing.assert_array_equal(devkernels.gemm(a, b), a @ b)
    np.testing.assert_array_equal(devkernels.gemm(a, b[1]), a @ b[1])
    np.testing.assert_array_equal(devkernels.gemm(a[2], b), a[2] @ b)
    residual = integers(generator, (3, 5, 6), "f4")
    got = devkernels.gemm(a, b, epilogue="residual", extra=(residual,))
    np.testing.assert_array_equal(got, a @ b + residual)
    got = devkernels.gemm(a, b, epilogue="residual", extra=(residual[0],))
    np.testing.assert_array_equal(got, a @ b + residual[0])


REFERENCE = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "int8": lambda x: np.clip(np.rint(x), -128, 127),
}


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ready_functions(generator, name, dtype):
    a, b = generator.standard_normal((8, 6)).astype(dtype), generator.standard_normal((6, 8)).astype(dtype)
    scale = 200.0 if name == "int8" else 3.0
    got = devkernels.gemm(a, b, alpha=scale, epilogue=name, out=poison((8, 8), dtype))
    want = REFERENCE[name](scale * (a.astype("f8") @ b.astype("f8")))
    bound = tolerance.product_bound(dtype, dtype, 6)
    if name == "int8":  # a rounded number may fall on either side
        assert np.abs(got - want).max() <= 1
    else:
        assert tolerance.relative_error(got, want) < bound


def test_ready_operands(generator):
    a, b = integers(generator, (6, 4), "f4"), integers(generator, (4, 7), "f4")
    column, row, matrix = integers(generator, 7, "f4"), integers(generator, 6, "f4"), integers(generator, (6, 7), "f4")
    product = a @ b
    for name, operand, want in (
        ("bias", column, product + column), ("column_scale", column, product * column),
        ("row_bias", row, product + row[:, None]), ("row_scale", row, product * row[:, None]),
        ("residual", matrix, product + matrix), ("multiply", matrix, product * matrix),
    ):  # fmt: skip
        np.testing.assert_array_equal(devkernels.gemm(a, b, epilogue=name, extra=(operand,)), want)


def test_chain(generator):
    a, b = integers(generator, (6, 4), "f4"), integers(generator, (4, 7), "f4")
    bias, matrix = integers(generator, 7, "f4"), integers(generator, (6, 7), "f4")

    def odd(acc, row, column):
        return acc + row - 2 * column

    got = devkernels.gemm(a, b, epilogue=["bias", "relu", odd, "residual"], extra=(bias, matrix))
    rows, columns = np.indices((6, 7))
    np.testing.assert_array_equal(got, np.maximum(a @ b + bias, 0) + rows - 2 * columns + matrix)
    quantised = devkernels.make_gemm("float32", epilogue=("row_scale", "int8"))(a, b, extra=(np.full(6, 100, "f4"),))
    assert quantised.dtype == np.int8
    np.testing.assert_array_equal(quantised, np.clip(100 * (a @ b), -128, 127))


def test_function_of_ones_own(generator):
    a, b, mask = integers(generator, (6, 4), "f4"), integers(generator, (4, 7), "f4"), np.arange(42).reshape(6, 7) % 3

    def masked(acc, row, column, mask, low):
        return acc if mask[row, column] else low

    got = devkernels.gemm(a, b, epilogue=masked, extra=(mask, -5.0))
    np.testing.assert_array_equal(got, np.where(mask, a @ b, -5))


def test_device_function_as_epilogue(generator):
    a, b = integers(generator, (6, 4), "f4"), integers(generator, (4, 7), "f4")
    twice = devkernels.device_function(lambda acc, row, column: 2 * acc + row)
    np.testing.assert_array_equal(
        devkernels.gemm(a, b, epilogue=twice), 2 * (a @ b) + np.arange(6, dtype="f4")[:, None]
    )


def test_prologues(generator):
    a, b = integers(generator, (6, 4), "f4"), integers(generator, (4, 7), "f4")
    product = devkernels.make_gemm(
        "float32", prologue_a=lambda x, row, column: x * (row + 1), prologue_b=lambda x, row, column: x + column
    )
    want = (a * np.arange(1, 7, dtype="f4")[:, None]) @ (b + np.arange(7, dtype="f4"))
    np.testing.assert_array_equal(product(a, b), want)


def test_prologues_of_16_bit_floats_are_rounded():
    a, b = np.full((1, 1), 2048, "f2"), np.ones((1, 1), "f2")
    product = devkernels.make_gemm("float16", out_dtype="float32", prologue_a=lambda x, row, column: np.float32(x) + 1)
    assert product(a, b)[0, 0] == 2048


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("short", [True, False])
def test_copies_through_prologues(by_rows, short, generator):
    """The kernel that a GPU runs for it, with fewer blocks than batches and lines: each takes several."""
    x = integers(generator, (3, 5, 7), "f4")
    y = np.full_like(x, np.nan)
    function = gemm_aligned.make_converting(lambda x, row, column: x + 10 * row + column, by_rows, short)
    devkernels.kernel(function)[(1, 2, 2), gemm_aligned.THREADS](x, y)
    np.testing.assert_array_equal(y, x + 10 * np.arange(5, dtype="f4")[:, None] + np.arange(7, dtype="f4"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_chain_of_two_products(generator, dtype):
    a, b, c = (integers(generator, s, dtype) for s in ((9, 5), (5, 7), (7, 6)))
    bias, other = integers(generator, 7, dtype), integers(generator, 6, dtype)
    chain = devkernels.make_gemm_chain(dtype, first="bias", second="bias")
    want = ((2 * (a @ b) + bias) @ c + other).astype(dtype)
    np.testing.assert_array_equal(chain(a, b, c, alpha=2, extra=(bias,), then=(other,)), want)
    assert "two kernels: the simulator" in chain.describe(7)
    batch = devkernels.make_gemm_chain(dtype)(np.stack([a, 2 * a]), b, c)
    np.testing.assert_array_equal(batch, np.stack([a @ b @ c, 2 * a @ b @ c]).astype(dtype))
    with pytest.raises(ArgumentError, match="7 columns and c has 6 rows"):
        chain(a, b, c[:6], extra=(bias,), then=(other,))


def test_describe():
    text = devkernels.make_gemm("float16", epilogue=("bias", "silu")).describe()
    assert "portable" in text
    assert "simulator" in text
    assert "bias, silu" in text


ONES = np.ones((4, 4), "f4")


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "words"),
    [
        ((ONES, np.ones((3, 4), "f4")), {}, ArgumentError, "4 columns and b has 3 rows"),
        ((ONES, np.ones((4, 4))), {}, ArgumentTypeError, "b has dtype float64"),
        ((np.ones(4, "f4"), ONES), {}, ArgumentError, "a matrix, or a batch"),
        ((np.ones((0, 4), "f4"), ONES), {}, ArgumentError, "nothing to multiply"),
        ((np.ones((2, 4, 4), "f4"), np.ones((3, 4, 4), "f4")), {}, ArgumentError, "batches"),
        ((ONES, ONES, np.ones((4, 5), "f4")), dict(beta=1), ArgumentError, "c has shape"),
        ((ONES, ONES), dict(out=np.ones((4, 5), "f4")), ArgumentError, "out has shape"),
        ((ONES, ONES), dict(out=np.ones((4, 4))), ArgumentTypeError, "out has dtype float64"),
        ((ONES, ONES), dict(out=ONES), ArgumentError, "out overlaps a"),
        ((ONES, ONES), dict(extra=(ONES,)), ArgumentError, "extra has 1 items"),
        ((ONES, ONES), dict(alpha="2"), ArgumentTypeError, "alpha='2'"),
        (([1.0], ONES), {}, ArgumentTypeError, "NumPy, CuPy or torch"),
    ],
)
def test_refused_in_words(arguments, options, kind, words):
    product = devkernels.make_gemm("float32")
    with pytest.raises(kind, match=words):
        product(*arguments, **options)


@pytest.mark.parametrize(
    ("dtype", "options", "words"),
    [
        ("float8", {}, "dtype='float8'"), (("float32",) * 3, {}, "one dtype, or two"),
        ("float32", dict(epilogue="softmax"), "epilogue='softmax'"), ("float32", dict(epilogue=3), "epilogue=3"),
        ("float32", dict(accumulate="float16"), "accumulate='float16'"),
        ("complex64", dict(epilogue="silu"), "real floating point"),
        ("complex64", dict(out_dtype="float32"), "cannot hold complex64"),
        ("complex64", dict(accumulate="float32"), "cannot hold products"),
        ("float32", dict(prologue_a=1), "prologue_a=1"),
        ("float64", dict(tf32=1), "tf32=1 is a way of multiplying float32, not float64"),
        ("int16", dict(accumulate="float32"), "cannot hold products"),
        ("complex64", dict(tf32=1), "tf32=1 is a way of multiplying float32, not complex64"),
        ("float32", dict(tf32=2), "tf32=2 is not understood"),
    ],
)  # fmt: skip
def test_plans_refused_in_words(dtype, options, words):
    with pytest.raises(SpecError, match=words):
        devkernels.make_gemm(dtype, **options)


def test_wrong_epilogue_of_a_single_call():
    with pytest.raises(SpecError, match=r"epilogue=\{\}"):
        devkernels.gemm(ONES, ONES, epilogue={})


def test_wrong_operand_is_named():
    with pytest.raises(ArgumentError, match=r"extra\[0\], the operand of 'bias', has shape \(5,\)"):
        devkernels.gemm(ONES, ONES, epilogue="bias", extra=(np.ones(5, "f4"),))
