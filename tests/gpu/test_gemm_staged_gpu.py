"""Products of float32, float64 and complex numbers on a GPU: every order, gap and edge of a tile, exactly."""

import itertools

import numpy as np
import pytest

import devkernels
from devkernels import tolerance
from devkernels.errors import ArgumentTypeError
from devkernels.matrix import staged
from tests.matmul_cases import integers, poison

cupy = pytest.importorskip("cupy")

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 113, 127, 128, 129, 130]
DTYPES = list(staged.DTYPES)
KINDS = [*((dtype, 0) for dtype in DTYPES), ("float32", 3), ("complex64", 3)]  # with products of tf32 for each
EXPECTED = {"float32": "f8", "float64": "f8", "complex64": "c16", "complex128": "c16"}


def rows(x):
    """In C order, lines without gaps: 16 bytes at a time only where their length allows it."""
    return cupy.ascontiguousarray(x)


def columns(x):
    return cupy.asfortranarray(x)


def padded(x):
    """Lines on multiples of 16 bytes."""
    large = cupy.full((x.shape[0], -(-x.shape[1] // 4) * 4), cupy.nan, x.dtype)
    large[:, : x.shape[1]] = x
    return large[:, : x.shape[1]]


def gaps(x):
    """Neither axis contiguous."""
    large = cupy.full((2 * x.shape[0], 3 * x.shape[1]), cupy.nan, x.dtype)
    large[::2, ::3] = x
    return large[::2, ::3]


def flipped(x):
    return cupy.ascontiguousarray(x[::-1])[::-1]


def wanted(a, b):
    kind = EXPECTED[a.dtype.name]
    return (a.astype(kind) @ b.astype(kind)).astype(a.dtype)


LAYOUTS = [*itertools.product((rows, columns), repeat=2), (padded, padded), (gaps, rows), (columns, gaps), (gaps, gaps)]


SPLIT_LAYOUTS = [(rows, rows), (columns, columns), (gaps, rows)]


@pytest.mark.parametrize(
    ("dtype", "tf32", "layouts"),
    [*((dtype, 0, layouts) for dtype in DTYPES for layouts in LAYOUTS),
     *((dtype, 3, layouts) for dtype in ("float32", "complex64") for layouts in SPLIT_LAYOUTS)],
)  # fmt: skip
def test_every_edge_of_a_tile(dtype, tf32, layouts, rng):
    product = devkernels.make_gemm(dtype, tf32=tf32)
    shapes = [tuple(map(int, rng.choice(LENGTHS, 3))) for _ in range(12)]
    for m, n, k in [*shapes, (1, 1, 1), (4, 4, 4), (130, 130, 1), (257, 131, 67), (64, 128, 32)]:
        a, b = (cupy.asarray(integers(rng, s, dtype)) for s in ((m, k), (k, n)))
        left, right = layouts[0](a), layouts[1](b)
        if k > 1:
            assert "\nstaged:" in product.describe(left, right)
        out = cupy.asarray(poison((m + 1, n + 1), dtype))
        product(left, right, out=out[:m, :n])
        assert bool(cupy.array_equal(out[:m, :n], wanted(a, b))), (m, n, k)
        assert bool(cupy.isnan(out[m]).all()), (m, n, k)
        assert bool(cupy.isnan(out[:, n]).all()), (m, n, k)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(("dtype", "tf32"), KINDS)
def test_large_tiles(dtype, tf32, order, rng):
    """So many tiles that large ones are taken; aligned in C order, and the rest of the last tiles."""
    product = devkernels.make_gemm(dtype, tf32=tf32)
    for m, n, k in ((1536, 2048, 40), (1411, 1903, 33)):
        a, b = (cupy.asarray(integers(rng, s, dtype), order=order) for s in ((m, k), (k, n)))
        assert bool(cupy.array_equal(product(a, b), wanted(a, b))), (m, n, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_misaligned_operands_are_copied(dtype, rng):
    """In both orders, with gaps, in a batch; complex128 only lies askew if it has gaps."""
    m, n, k = 259, 333, 401
    product = devkernels.make_gemm(dtype)
    a, b = (cupy.asarray(integers(rng, s, dtype)) for s in ((m, k), (k, n)))
    for left, right in ((rows, rows), (columns, columns), (gaps, rows), (flipped, gaps)):
        x, y = left(a), right(b)
        if dtype != "complex128" or gaps in (left, right):
            assert "copied to aligned memory first" in product.describe(x, y)
        assert bool(cupy.array_equal(product(x, y), wanted(a, b)))
    batch = cupy.stack([a, 2 * a])
    assert bool(cupy.array_equal(product(batch, b), cupy.stack([wanted(a, b), wanted(2 * a, b)])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_number_stays_where_it_is(dtype, rng):
    """NaN beyond the edges of views is never read into a sum; NaN inside reaches its row or column only."""
    m, n, k = 70, 75, 21
    a, b = (cupy.asarray(integers(rng, s, dtype)) for s in ((m, k), (k, n)))
    around = cupy.full((m + 9, k + 9), cupy.nan, dtype)
    around[4 : 4 + m, 4 : 4 + k] = a
    assert bool(cupy.array_equal(devkernels.gemm(around[4 : 4 + m, 4 : 4 + k], b), wanted(a, b)))
    a[7, 3] = cupy.nan
    found = cupy.isnan(devkernels.gemm(a, b))
    assert bool(found[7].all())
    assert int(found.sum()) == n


@pytest.mark.parametrize("dtype", DTYPES)
def test_flipped_and_batched(dtype, rng):
    a, b = (cupy.asarray(integers(rng, s, dtype)) for s in ((3, 66, 35), (3, 35, 130)))
    kind = EXPECTED[dtype]
    want = (a.astype(kind) @ b.astype(kind)).astype(dtype)
    product = devkernels.make_gemm(dtype)
    assert bool(cupy.array_equal(product(a, b), want))
    assert bool(cupy.array_equal(product(a, b[1]), (a.astype(kind) @ b[1].astype(kind)).astype(dtype)))
    assert bool(cupy.array_equal(product(a[2], b), (a[2].astype(kind) @ b.astype(kind)).astype(dtype)))
    assert bool(cupy.array_equal(product(a[::2], b[::2]), want[::2]))
    assert bool(cupy.array_equal(product(flipped(a[0]), b[0]), want[0]))
    assert bool(cupy.array_equal(product(a[0], b[0][:, ::-1]), want[0][:, ::-1]))
    out = cupy.full((3, 130, 66), cupy.nan, dtype).swapaxes(1, 2)
    product(a, b, out=out)
    assert bool(cupy.array_equal(out, want))


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_beta_and_steps(dtype, rng):
    m, n, k = 150, 72, 40
    a, b, c = (cupy.asarray(integers(rng, s, dtype)) for s in ((m, k), (k, n), (m, n)))
    bias, scale = cupy.asarray(integers(rng, n, dtype)), cupy.asarray(integers(rng, m, dtype))
    product = devkernels.make_gemm(dtype)
    factors = (2, -3) if dtype.startswith("float") else (2 - 1j, 1j)
    alpha, beta = factors
    wide = EXPECTED[dtype]
    whole = a.astype(wide) @ b.astype(wide)
    got = product(a, b, c, alpha=alpha, beta=beta)
    assert bool(cupy.array_equal(got, (alpha * whole + beta * c.astype(wide)).astype(dtype)))
    nothing = cupy.full((m, n), cupy.nan, dtype)
    assert bool(cupy.array_equal(product(a, b, nothing, alpha=2), (2 * whole).astype(dtype)))
    assert bool(cupy.array_equal(product(a, b, c, alpha=0, beta=1), c))
    over = c.copy()
    assert product(a, b, over, beta=1, out=over) is over
    assert bool(cupy.array_equal(over, (whole + c.astype(wide)).astype(dtype)))
    other = cupy.asarray(integers(rng, (m, n), "i4"))  # c of another dtype
    assert bool(cupy.array_equal(product(a, b, other, beta=1), (whole + other).astype(dtype)))
    steps = devkernels.make_gemm(dtype, epilogue=("bias", "row_scale"))
    assert bool(cupy.array_equal(steps(a, b, extra=(bias, scale)), ((whole + bias) * scale[:, None]).astype(dtype)))


@pytest.mark.parametrize("out_dtype", ["float16", "int8"])
@pytest.mark.parametrize("order", "CF")
def test_results_of_other_dtypes(out_dtype, order, rng):
    for m, n in ((131, 72), (64, 67)):
        a, b = cupy.asarray(integers(rng, (m, 33), "f4")), cupy.asarray(integers(rng, (33, n), "f4"), order=order)
        got = devkernels.make_gemm("float32", out_dtype=out_dtype)(a, b)
        want = a @ b
        assert bool(
            cupy.array_equal(got, want.clip(-128, 127).astype("i1") if out_dtype == "int8" else want.astype("f2"))
        )


def test_a_complex_c_is_refused_beside_real_sums():
    a = cupy.ones((8, 8), "f4")
    with pytest.raises(ArgumentTypeError, match="c has dtype complex64"):
        devkernels.gemm(a, a, a.astype("c8"), beta=1)


@pytest.mark.parametrize("shape", [(1500, 1024, 700), (513, 129, 4097)])
@pytest.mark.parametrize(("dtype", "tf32"), KINDS)
def test_random_data(dtype, tf32, shape, rng):
    """Three products of tf32 keep the bound of float32."""
    m, n, k = shape
    real = np.dtype(dtype).type(0).real.dtype.name
    a, b = (rng.standard_normal((*s, 2)).astype(real) for s in ((m, k), (k, n)))
    a, b = (x.view(f"c{2 * x.itemsize}")[..., 0] if dtype.startswith("c") else x[..., 0].copy() for x in (a, b))
    got = devkernels.make_gemm(dtype, tf32=tf32)(cupy.asarray(a), cupy.asarray(b)).get()
    want = a.astype(EXPECTED[dtype]) @ b.astype(EXPECTED[dtype])
    assert got.dtype == dtype
    assert tolerance.relative_error(got, want) < tolerance.product_bound(real, real, k)
