"""Products of matrices on a GPU: both main loops, exactly with small integers, and in float64 with random data."""

import itertools
import math

import numpy as np
import pytest

import devkernels
from devkernels import tolerance
from devkernels.errors import ArgumentError
from devkernels.kernels import gemm_warpgroup
from tests.matmul_cases import integers, poison

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

LENGTHS = [1, 2, 7, 8, 9, 31, 32, 63, 64, 65, 127, 128, 129, 130]
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="warpgroup products are sm_90's"
)


def padded(x):
    """The same values in a buffer whose rows lie on multiples of 16 bytes, as tensor copies need them."""
    item = x.dtype.itemsize
    width = -(-x.shape[-1] * item // 16) * 16 // item
    large = cupy.zeros((*x.shape[:-1], width), x.dtype)
    large[..., : x.shape[-1]] = x
    return large[..., : x.shape[-1]]


def turned(x):
    """The same values in column order, columns on multiples of 16 bytes."""
    return padded(cupy.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)


@hopper
@pytest.mark.parametrize("tile", [(128, 128), (64, 128), (64, 64)])
@pytest.mark.parametrize("orders", list(itertools.product((padded, turned), repeat=2)))
def test_every_edge_of_a_tile(orders, tile, rng, monkeypatch):
    """float16 in, float32 out, whole numbers: exact, whatever the order of summation."""
    monkeypatch.setattr(gemm_warpgroup, "TILES", {tile: 1.0})
    product = devkernels.make_gemm("float16", out_dtype="float32")
    shapes = [tuple(rng.choice(LENGTHS, 3)) for _ in range(60)] + [(1, 1, 1), (4, 4, 4), (130, 130, 1), (257, 383, 641)]
    for m, n, k in (tuple(map(int, shape)) for shape in shapes):
        a, b = (cupy.asarray(integers(rng, s, "f2")) for s in ((m, k), (k, n)))
        left, right = orders[0](a), orders[1](b)
        assert "warpgroup:" in product.describe(left, right)
        out = cupy.asarray(poison((m + 1, n + 1), "f4"))
        product(left, right, out=out[:m, :n])
        want = a.astype("f4") @ b.astype("f4")
        assert bool(cupy.array_equal(out[:m, :n], want)), (m, n, k)
        assert bool(cupy.isnan(out[m]).all()), (m, n, k)
        assert bool(cupy.isnan(out[:, n]).all()), (m, n, k)


@pytest.mark.parametrize("orders", list(itertools.product("CF", repeat=2)))
def test_tensor_cores_at_any_alignment(orders, rng):
    """Dense float16 matrices of any length, in any order: mostly misaligned for tensor copies."""
    product = devkernels.make_gemm("float16", out_dtype="float32")
    shapes = [tuple(map(int, rng.choice(LENGTHS, 3))) for _ in range(30)] + [(257, 129, 33), (131, 264, 96), (5, 3, 1)]
    for m, n, k in shapes:
        a, b = (cupy.asarray(integers(rng, s, "f2"), order=o) for s, o in zip(((m, k), (k, n)), orders, strict=True))
        out = cupy.asarray(poison((m + 1, n + 1), "f4"))
        product(a, b, out=out[:m, :n])
        assert bool(cupy.array_equal(out[:m, :n], a.astype("f4") @ b.astype("f4"))), (m, n, k)
        assert bool(cupy.isnan(out[m]).all()), (m, n, k)
        assert bool(cupy.isnan(out[:, n]).all()), (m, n, k)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [("uint8", "i4"), ("int16", "i8"), ("int32", "i8"), (("float16", "float32"), "f4"),
     (("float32", "complex64"), "c8"), (("int8", "uint8"), "i4")],
)  # fmt: skip
def test_portable_edges_and_mixed_dtypes(dtype, wide, rng):
    product = devkernels.make_gemm(dtype)
    assert ("\nportable:" in product.describe()) is (wide[0] == "i")
    assert ("is copied as" in product.describe()) is (wide[0] != "i")
    kinds = dtype if isinstance(dtype, tuple) else (dtype, dtype)
    for m, n, k in [*(tuple(map(int, rng.choice(LENGTHS, 3))) for _ in range(15)), (1, 1, 1), (131, 67, 257)]:
        a, b = (cupy.asarray(integers(rng, s, d)) for s, d in zip(((m, k), (k, n)), kinds, strict=True))
        got = product(a, b)
        assert bool(cupy.array_equal(got, (a.astype(wide) @ b.astype(wide)).astype(got.dtype))), (m, n, k)


@pytest.mark.parametrize("orders", list(itertools.product("CF", repeat=2)))
@pytest.mark.parametrize(
    ("dtype", "accumulate", "path"),
    [("float16", None, "warpgroup"), ("float32", None, "staged"), ("complex64", None, "staged"),
     ("int8", "float32", "staged"), ("int16", None, "portable")],
)  # fmt: skip
def test_prologues(dtype, accumulate, path, orders, rng):
    """Every element knows its place; fast main loops on copies, also of batches; b also untouched."""
    both = devkernels.make_gemm(dtype, accumulate=accumulate, prologue_a=lambda x, row, column: x + row % 2,
                                prologue_b=lambda x, row, column: x - column % 3)  # fmt: skip
    alone = devkernels.make_gemm(dtype, accumulate=accumulate, prologue_a=lambda x, row, column: x * (column % 2))
    for batch, m, n, k in ((), 131, 136, 72), ((), 5, 3, 1), ((3,), 70, 40, 33), ((20,), 16, 16, 16):
        a, b = (cupy.asarray(integers(rng, (*batch, *s), dtype), order=o)
                for s, o in zip(((m, k), (k, n)), orders, strict=True))  # fmt: skip
        wide = {"f": "f8", "c": "c16", "i": "i8"}[a.dtype.kind]
        rows, columns, inner = cupy.arange(m) % 2, cupy.arange(n) % 3, cupy.arange(k) % 2
        left, right = a.astype(wide) + rows[:, None], b.astype(wide) - columns
        for _ in range(2):  # the second call takes the quick way, in the plan's memory
            got = both(a, b)
            assert bool(cupy.array_equal(got, (left @ right).astype(got.dtype))), (m, n, k)
        if batch != (20,):
            assert f"\n{path}:" in both.describe(a, b)
            assert ("is copied through its prologue" in both.describe(a, b)) is (path != "portable")
        got = alone(a, b)
        assert bool(cupy.array_equal(got, ((a.astype(wide) * inner) @ b.astype(wide)).astype(got.dtype)))


def test_copied_operands_share_memory_in_turn(rng):
    """Of calls on several streams, while graphs are captured, bound, and after more shapes than are remembered."""
    product = devkernels.make_gemm("float16", out_dtype="float32", prologue_a=lambda x, row, column: x + 1)
    b = cupy.asarray(integers(rng, (40, 48), "f2"))
    wide, streams = b.astype("f4"), [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    outs, lefts = [], []
    cupy.cuda.runtime.deviceSynchronize()
    for i in range(12):
        a = cupy.asarray(integers(rng, (300 + 8 * (i % 11), 40), "f2"))
        out = cupy.full((a.shape[0], 48), cupy.nan, "f4")
        cupy.cuda.runtime.deviceSynchronize()
        with streams[i % 3]:
            for _ in range(3):
                product(a, b, out=out)
        product(a, b, out=out, stream=streams[(i + 1) % 3])
        outs.append(out)
        lefts.append(a)
    cupy.cuda.runtime.deviceSynchronize()
    for a, out in zip(lefts, outs, strict=True):
        assert bool(cupy.array_equal(out, (a.astype("f4") + 1) @ wide))
    a, out, stream = lefts[0], outs[0], streams[0]
    run = product.bind(a, b, out=out)
    for wanted in (2, 3):
        a[...] = wanted
        out.fill(cupy.nan)
        run()
        assert bool(cupy.array_equal(out, (a.astype("f4") + 1) @ wide))
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        product(a, b, out=out)
        run()
        graph = stream.end_capture()
        for wanted in (4, 5):
            a[...] = wanted
            out.fill(cupy.nan)
            graph.launch(stream)
            stream.synchronize()
            assert bool(cupy.array_equal(out, (a.astype("f4") + 1) @ wide))


def test_prologues_of_very_many_products(rng):
    """More batches than a grid has along any axis but the first; short lines, and long ones."""
    product = devkernels.make_gemm("float16", out_dtype="float32", prologue_a=lambda x, row, column: x + row)
    for batch, m, k in ((66000, 3, 8), (66000, 1, 264)):
        a, b = cupy.asarray(integers(rng, (batch, m, k), "f2")), cupy.asarray(integers(rng, (k, 8), "f2"))
        want = (a.astype("f4") + cupy.arange(m, dtype="f4")[:, None]) @ b.astype("f4")
        assert bool(cupy.array_equal(product(a, b), want))


@hopper
def test_copies_of_copies(rng):
    """b through its prologue, and then to the only order that such products read; a and b alike in shape."""
    product = devkernels.make_gemm("float32", tf32=1, prologue_b=lambda x, row, column: x + row % 2)
    a, b = (cupy.asarray(integers(rng, (288, 288), "f4")) for _ in range(2))
    want = a @ (b + cupy.arange(288, dtype="f4")[:, None] % 2)
    assert "warpgroup: b is copied through its prologue" in product.describe(a, b)
    out = cupy.empty_like(want)
    run = product.bind(a, b, out=out)
    for call in (lambda: product(a, b, out=out), lambda: product(a, b, out=out), run):
        out.fill(cupy.nan)
        call()
        assert bool(cupy.array_equal(out, want))


@pytest.mark.parametrize("orders", list(itertools.product("CF", repeat=3)))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_orders(dtype, orders, rng):
    m, n, k = 200, 136, 72
    a, b = (cupy.asarray(integers(rng, s, dtype), order=o) for s, o in zip(((m, k), (k, n)), orders, strict=False))
    out = cupy.asarray(poison((m, n), dtype), order=orders[2])
    devkernels.gemm(a, b, out=out)
    assert bool(cupy.array_equal(out, (a.astype("f4") @ b.astype("f4")).astype(dtype)))


@pytest.mark.parametrize(("n", "layout"), [(136, padded), (131, padded), (131, cupy.asarray)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_alpha_and_beta(dtype, n, layout, rng):
    m, k = 150, 40
    product = devkernels.make_gemm(dtype)
    a, b, c = (cupy.asarray(integers(rng, s, dtype)) for s in ((m, k), (k, n), (m, n)))
    b = layout(b)
    wide = a.astype("f4") @ b.astype("f4")
    nothing = cupy.full((m, n), cupy.nan, dtype)
    assert bool(cupy.array_equal(product(a, b, nothing, alpha=2), (2 * wide).astype(dtype)))
    assert bool(cupy.array_equal(product(a, b, c, alpha=0.5, beta=-2), (0.5 * wide - 2 * c.astype("f4")).astype(dtype)))
    assert bool(cupy.array_equal(product(a, b, c, alpha=0, beta=1), c))
    over = c.copy()
    assert product(a, b, over, beta=1, out=over) is over
    assert bool(cupy.array_equal(over, (wide + c.astype("f4")).astype(dtype)))


def silu(x):
    return x / (1 + np.exp(-x))


REFERENCE = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": silu,
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ready_functions(name, dtype, rng):
    m, n, k = 130, 136, 64
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    result = "float32" if dtype == "float16" else dtype
    got = devkernels.make_gemm(dtype, out_dtype=result, epilogue=name)(cupy.asarray(a), cupy.asarray(b), alpha=0.5)
    want = REFERENCE[name](0.5 * (a.astype("f8") @ b.astype("f8")))
    bound = tolerance.product_bound(result, result, k)
    assert tolerance.relative_error(got.get(), want) < bound


@pytest.mark.parametrize(
    ("n", "layout", "path"), [(136, padded, "warpgroup"), (131, padded, "warpgroup"), (131, cupy.asarray, "tensor")]
)
def test_ready_operands(n, layout, path, rng):
    m, k = 130, 64
    a, b = (layout(cupy.asarray(integers(rng, s, "f2"))) for s in ((m, k), (k, n)))
    column, row, matrix = (cupy.asarray(integers(rng, s, "f2")) for s in (n, m, (m, n)))
    product = a.astype("f4") @ b.astype("f4")
    for name, operand, want in (
        ("bias", column, product + column), ("column_scale", column, product * column),
        ("row_bias", row, product + row[:, None]), ("row_scale", row, product * row[:, None]),
        ("residual", matrix, product + matrix), ("multiply", matrix, product * matrix),
    ):  # fmt: skip
        plan = devkernels.make_gemm("float16", out_dtype="float32", epilogue=name)
        if torch.cuda.get_device_capability()[0] == 9:
            assert f"\n{path}:" in plan.describe(a, b)
        assert bool(cupy.array_equal(plan(a, b, extra=(operand,)), want)), name
        strided = cupy.zeros((*operand.shape[:-1], 2 * operand.shape[-1]), "f2")[..., ::2]
        strided[...] = operand
        assert bool(cupy.array_equal(plan(a, b, extra=(strided.astype("f4"),)), want)), name


def test_chain_with_residual(rng):
    m, n, k = 300, 264, 128
    a, b, bias, residual = (rng.standard_normal(s).astype("f2") for s in ((m, k), (k, n), n, (m, n)))
    plan = devkernels.make_gemm("float16", epilogue=("bias", "silu", "residual"))
    got = plan(*map(cupy.asarray, (a, b)), alpha=0.25, extra=tuple(map(cupy.asarray, (bias, residual))))
    want = silu(0.25 * (a.astype("f8") @ b.astype("f8")) + bias) + residual
    assert tolerance.relative_error(got.get(), want) < tolerance.product_bound("float32", "float16", k)


def test_quantised(rng):
    m, n, k = 200, 256, 96
    a, b = (cupy.asarray(integers(rng, s, "f2")) for s in ((m, k), (k, n)))
    scale = cupy.asarray(rng.choice([0.25, 0.5, 1, 4], n).astype("f4"))
    got = devkernels.make_gemm("float16", epilogue=("column_scale", "int8"))(a, b, extra=(scale,))
    want = cupy.clip(cupy.rint((a.astype("f4") @ b.astype("f4")) * scale), -128, 127)
    assert got.dtype == np.int8
    assert bool(cupy.array_equal(got, want.astype("i1")))


@pytest.mark.parametrize(("n", "layout"), [(136, padded), (131, padded), (131, cupy.asarray)])
def test_function_of_ones_own(n, layout, rng):
    m, k = 150, 64
    a, b, mask = (cupy.asarray(integers(rng, s, d)) for s, d in (((m, k), "f2"), ((k, n), "f2"), ((m, n), "i4")))
    b = layout(b)

    def masked(acc, row, column, mask, low):
        return acc + row - column if mask[row, column] > 0 else low

    plan = devkernels.make_gemm("float16", out_dtype="float32", epilogue=masked)
    rows, columns = cupy.indices((m, n))
    want = cupy.where(mask > 0, a.astype("f4") @ b.astype("f4") + rows - columns, -5)
    assert bool(cupy.array_equal(plan(a, b, extra=(mask, -5.0)), want.astype("f4")))


def test_batches(rng):
    a, b = (cupy.asarray(integers(rng, s, "f2")) for s in ((5, 70, 64), (5, 64, 136)))
    plan = devkernels.make_gemm("float16", out_dtype="float32")
    wide = a.astype("f4"), b.astype("f4")
    assert bool(cupy.array_equal(plan(a, b), wide[0] @ wide[1]))
    assert bool(cupy.array_equal(plan(a, b[1]), wide[0] @ wide[1][1]))
    assert bool(cupy.array_equal(plan(a[3], b), wide[0][3] @ wide[1]))
    assert bool(cupy.array_equal(plan(a[::2], b[::2]), wide[0][::2] @ wide[1][::2]))
    for x, y in ((turned(a), b), (a, turned(b))):
        assert bool(cupy.array_equal(plan(x, y[1]), wide[0] @ wide[1][1]))
        assert bool(cupy.array_equal(plan(x[3], y), wide[0][3] @ wide[1]))


SMALL = [
    (8, 8, 8, "float32"), (16, 16, 16, "float32"), (5, 7, 3, "float32"), (16, 16, 16, "float16"),
    (32, 32, 32, "float16"), (64, 64, 64, "float16"), (48, 16, 64, "float16"), (9, 8, 24, "float16"),
    (12, 20, 8, "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k", "dtype"), SMALL)
def test_many_small_products(m, n, k, dtype, rng):
    """A warp each, or a row a thread; with an epilogue, one b for all, and a number that fills no block."""
    a, b, residual = (cupy.asarray(integers(rng, (133, *s), dtype)) for s in ((m, k), (k, n), (m, n)))
    wide = "f8" if dtype == "float64" else "f4"
    want = (a.astype(wide) @ b.astype(wide)).astype(dtype)
    plan = devkernels.make_gemm(dtype)
    assert "\nsmall:" in plan.describe(a, b)
    large = cupy.full((140, m, n), cupy.nan, dtype)
    plan(a, b, out=large[:133])
    assert bool(cupy.array_equal(large[:133], want))
    assert bool(cupy.isnan(large[133:]).all())
    if m == 16:
        assert bool(cupy.array_equal(plan(a, b[7]), (a.astype(wide) @ b[7].astype(wide)).astype(dtype)))
        assert bool(cupy.array_equal(plan(a[9], b), (a[9].astype(wide) @ b.astype(wide)).astype(dtype)))
    ends = devkernels.make_gemm(dtype, epilogue=("relu", "residual"))
    wanted = cupy.maximum(2 * (a.astype(wide) @ b.astype(wide)), 0) + residual
    assert bool(cupy.array_equal(ends(a, b, alpha=2, extra=(residual,)), wanted.astype(dtype)))


@pytest.mark.parametrize("size", [(16, 16, 16), (12, 20, 8), (32, 64, 4), (64, 64, 64), (16, 24, 36)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_small_products_in_shared_memory(dtype, size, rng):
    """In every order, with c, with gaps, one matrix for all, and a number that fills no block."""
    m, n, k = size
    wide = "c16" if dtype.startswith("c") else "f8"
    a, b, c = (cupy.asarray(integers(rng, (37, *s), dtype)) for s in ((m, k), (k, n), (m, n)))
    want = (a.astype(wide) @ b.astype(wide)).astype(dtype)
    plan = devkernels.make_gemm(dtype)
    turned_a, turned_b = (cupy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (a, b))
    for left, right in ((a, b), (a, turned_b), (turned_a, b), (turned_a, turned_b)):
        assert "\nsmall: 37 products" in plan.describe(left, right)
        assert "in the shared memory of a block" in plan.describe(left, right)
        large = cupy.full((40, m, n), cupy.nan, dtype)
        plan(left, right, out=large[:37])
        assert bool(cupy.array_equal(large[:37], want))
        assert bool(cupy.isnan(large[37:]).all())
    assert bool(cupy.array_equal(plan(a, b, c, alpha=2, beta=3), 2 * want + 3 * c))
    assert bool(cupy.array_equal(plan(a[::2], b[::2]), want[::2]))
    assert bool(cupy.array_equal(plan(a, b[5]), (a.astype(wide) @ b[5].astype(wide)).astype(dtype)))
    out = cupy.full((37, n, m), cupy.nan, dtype).swapaxes(1, 2)
    plan(a, b, out=out)
    assert bool(cupy.array_equal(out, want))


def test_small_products_with_c_or_gaps(rng):
    a, b = (cupy.asarray(integers(rng, s, "f4")) for s in ((40, 8, 8), (40, 8, 8)))
    plan = devkernels.make_gemm("float32")
    assert bool(cupy.array_equal(plan(a, b, a, beta=1), a @ b + a))
    assert bool(cupy.array_equal(plan(a[::2], b[::2]), (a @ b)[::2]))
    assert bool(cupy.array_equal(plan(a.swapaxes(1, 2), b), a.swapaxes(1, 2) @ b))


@pytest.mark.parametrize(
    ("m", "k", "n", "p"),
    [(256, 64, 256, 128), (130, 33, 70, 65), (1, 1, 1, 1), (300, 200, 640, 264), (100, 40, 800, 24)],
)
def test_chain_of_two_products(m, k, n, p, rng):
    """Whole numbers that are exact in float16 in between; 800 columns do not fit and take two kernels."""
    a, b, c = (cupy.asarray(integers(rng, s, "f2")) for s in ((m, k), (k, n), (n, p)))
    chain = devkernels.make_gemm_chain("float16", first="relu", second="row_bias", out_dtype="float32")
    assert (
        "one kernel" if n <= 640 or torch.cuda.get_device_capability()[0] != 9 else "two kernels"
    ) in chain.describe(n)
    bias = cupy.asarray(integers(rng, m, "f4"))
    between = cupy.maximum(a.astype("f4") @ b.astype("f4"), 0)
    want = between.astype("f8") @ c.astype("f8") + bias[:, None]
    got = chain(a, b, c, then=(bias,))
    assert got.shape == (m, p)
    assert bool(cupy.array_equal(got, want.astype("f4")))


@hopper
@pytest.mark.parametrize("orders", list(itertools.product((padded, turned), repeat=3)))
def test_chain_by_warpgroups(orders, rng):
    """Every order, edges of all kinds, an epilogue that reads an array on either side, 16-bit results."""
    chain = devkernels.make_gemm_chain("float16", first=("bias", "relu"), second="residual")
    for m, k, n, p in ((128, 64, 128, 128), (130, 72, 200, 136), (1, 8, 8, 1), (257, 40, 130, 67), (70, 200, 512, 300)):
        a, b, c = (cupy.asarray(rng.integers(-1, 2, s), "f2") for s in ((m, k), (k, n), (n, p)))
        bias, residual = cupy.asarray(integers(rng, n, "f2")), cupy.asarray(integers(rng, (m, p), "f2"))
        left, right, last = (order(x) for order, x in zip(orders, (a, b, c), strict=True))
        out = cupy.asarray(poison((m + 1, p + 1), "f2"))
        chain(left, right, last, alpha=2, extra=(bias,), then=(residual,), out=out[:m, :p])
        between = cupy.maximum(2 * (a.astype("f4") @ b.astype("f4")) + bias, 0)
        want = (between.astype("f8") @ c.astype("f8") + residual).astype("f2")
        assert bool(cupy.array_equal(out[:m, :p], want)), (m, k, n, p)
        assert bool(cupy.isnan(out[m]).all())
        assert bool(cupy.isnan(out[:, p]).all())
    assert "warpgroup products" in chain.describe(512)
    for factor in (2, 2, 1):  # again, from host memory, and with other contents
        a *= 1 if factor == 2 else 0
        left = orders[0](a)
        for x, y, z in ((left, right, last), (a.get(), b.get(), c.get())):
            two = [v if z is last else v.get() for v in (bias, residual)]
            got = chain(x, y, z, alpha=factor, extra=(two[0],), then=(two[1],))
            between = cupy.maximum(factor * (a.astype("f4") @ b.astype("f4")) + bias, 0)
            want = (between.astype("f8") @ c.astype("f8") + residual).astype("f2")
            assert bool(cupy.array_equal(cupy.asarray(got), want)), factor
            out = cupy.full((m, p), cupy.nan, "f2")
            for _ in range(2 if z is last else 0):
                out.fill(cupy.nan)
                chain(x, y, z, alpha=factor, extra=(two[0],), then=(two[1],), out=out)
                assert bool(cupy.array_equal(out, want)), factor


@hopper
def test_batches_of_chains_by_warpgroups(rng):
    chain = devkernels.make_gemm_chain("float16", out_dtype="float32")
    a, b, c = (cupy.asarray(rng.integers(-2, 3, s), "f2") for s in ((5, 150, 64), (5, 64, 96), (5, 96, 64)))
    want = (a.astype("f4") @ b.astype("f4")) @ c.astype("f4")
    assert bool(cupy.array_equal(chain(a, b, c), want))
    assert bool(cupy.array_equal(chain(a, b[2], c[1]), (a.astype("f4") @ b[2].astype("f4")) @ c[1].astype("f4")))
    random = [cupy.asarray(rng.standard_normal(s), "f2") for s in ((2, 300, 64), (2, 64, 512), (2, 512, 64))]
    got = chain(*random).get()
    x, y, z = (v.get().astype("f8") for v in random)
    want = (x @ y).astype("f2").astype("f8") @ z
    assert tolerance.relative_error(got, want) < 2.0**-10


@hopper
@pytest.mark.parametrize("batch", [(), (128,)])
def test_chain_of_many_wide_rows(batch, rng):
    """Two kernels are faster there, and are taken."""
    m = 128 if batch else 16384
    a, b, c = (cupy.asarray(rng.integers(-1, 2, s), "f2") for s in ((*batch, m, 64), (64, 512), (512, 512)))
    chain = devkernels.make_gemm_chain("float16", first="relu", out_dtype="float32")
    assert "faster by themselves" in chain.describe(512, 512, 16384)
    assert "one kernel" in chain.describe(512, 512, 8192)
    out = cupy.full((*batch, m, 512), cupy.nan, "f4")
    chain(a, b, c, out=out)
    assert bool(cupy.array_equal(out, cupy.maximum(a.astype("f4") @ b.astype("f4"), 0) @ c.astype("f4")))


def test_chain_of_batches(rng):
    """Scores times values: a batch of both, and one c for all."""
    a, b, c = (cupy.asarray(integers(rng, s, "f2")) for s in ((3, 150, 32), (3, 32, 96), (3, 96, 64)))
    chain = devkernels.make_gemm_chain("float16", out_dtype="float32")
    want = (a.astype("f4") @ b.astype("f4")) @ c.astype("f4")
    assert bool(cupy.array_equal(chain(a, b, c), want))
    assert bool(cupy.array_equal(chain(a, b, c[1]), (a.astype("f4") @ b.astype("f4")) @ c[1].astype("f4")))
    out = cupy.full((3, 150, 66), cupy.nan, "f4")
    chain(a, b, c, out=out[..., 1:65])
    assert bool(cupy.array_equal(out[..., 1:65], want))
    assert bool(cupy.isnan(out[..., 0]).all())
    assert bool(cupy.isnan(out[..., 65]).all())


def test_misaligned_views_take_another_path(rng):
    plan = devkernels.make_gemm("float16", out_dtype="float32")
    large, b = cupy.asarray(integers(rng, (100, 81), "f2")), cupy.asarray(integers(rng, (80, 64), "f2"))
    a = large[:, 1:]
    assert "tensor:" in plan.describe(a, b)
    assert bool(cupy.array_equal(plan(a, b), a.astype("f4") @ b.astype("f4")))


@hopper
@pytest.mark.parametrize("orders", list(itertools.product("CF", repeat=2)))
def test_large_misaligned_operands_are_copied(orders, rng):
    plan = devkernels.make_gemm("float16", out_dtype="float32", epilogue="bias")
    m, n, k = 389, 277, 1031
    a, b = (cupy.asarray(integers(rng, s, "f2"), order=o) for s, o in zip(((m, k), (k, n)), orders, strict=True))
    bias = cupy.asarray(integers(rng, n, "f4"))
    want = a.astype("f4") @ b.astype("f4") + bias
    for _ in range(2):
        assert bool(cupy.array_equal(plan(a, b, extra=(bias,)), want))
    gaps = cupy.zeros((2 * m, 3 * k), "f2")[::2, ::3]
    gaps[...] = a
    for left, right in ((a, b), (gaps, b), (padded(a), b)):
        assert "copied to aligned memory" in plan.describe(left, right)
        out = cupy.full((m + 1, n + 1), cupy.nan, "f4")
        plan(left, right, extra=(bias,), out=out[:m, :n])
        assert bool(cupy.array_equal(out[:m, :n], want))
        assert bool(cupy.isnan(out[m]).all())
        assert bool(cupy.isnan(out[:, n]).all())
    batch = cupy.stack([a, -a, 2 * a])
    assert bool(cupy.array_equal(plan(batch, b, extra=(bias,)), cupy.stack([want, 2 * bias - want, 2 * want - bias])))


def test_views_that_run_backwards_or_stand_still(rng):
    plan = devkernels.make_gemm("float16", out_dtype="float32")
    for m in (64, 320):
        a, b = (cupy.asarray(integers(rng, s, "f2")) for s in ((m, 512), (512, 320)))
        want = a.astype("f4") @ b.astype("f4")
        assert bool(cupy.array_equal(plan(a[::-1], b), want[::-1]))
        assert bool(cupy.array_equal(plan(a, b[:, ::-1]), want[:, ::-1]))
        assert bool(cupy.array_equal(plan(cupy.broadcast_to(a[0], a.shape), b), cupy.broadcast_to(want[0], want.shape)))
        batch = cupy.stack([a, 2 * a])
        assert bool(cupy.array_equal(plan(batch[::-1], b), cupy.stack([2 * want, want])))


@hopper
def test_copied_operands_in_a_graph(rng):
    plan = devkernels.make_gemm("float16")
    a, b = (torch.as_tensor(integers(rng, s, "f2")).cuda() for s in ((301, 513), (513, 299)))
    plan(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = plan(a, b)
    a.copy_(torch.as_tensor(integers(rng, (301, 513), "f2")))
    torch.zeros(1 << 22, device="cuda")
    graph.replay()
    assert torch.equal(out, (a.float() @ b.float()).half())


@hopper
def test_int8_on_tensor_cores(rng):
    """Exact in int32 and, for an epilogue, in float32; edges, batches, orders that are copied."""
    plan = devkernels.make_gemm("int8")
    scaled = devkernels.make_gemm("int8", accumulate="float32", epilogue=("column_scale", "bias"))
    for m, n, k in [(130, 136, 144), (1, 8, 16), (257, 131, 64), (128, 128, 4096), (300, 512, 400), (64, 63, 1008)]:
        a, b = (cupy.asarray(rng.integers(-128, 128, s), "i1") for s in ((m, k), (n, k)))
        scale, bias = cupy.asarray(rng.choice([0.25, 0.5, 1, 2], n), "f4"), cupy.asarray(integers(rng, n, "f4"))
        want = a.astype("i4") @ b.astype("i4").T
        assert "warpgroup: int8" in plan.describe(a, b.T)
        out = cupy.full((m + 1, n + 1), 77, "i4")
        plan(a, b.T, out=out[:m, :n])
        assert bool(cupy.array_equal(out[:m, :n], want)), (m, n, k)
        assert bool((out[m] == 77).all())
        assert bool((out[:, n] == 77).all())
        assert bool(cupy.array_equal(plan(a, b.T, alpha=-3), -3 * want))
        if k <= 1024:
            assert bool(cupy.array_equal(scaled(a, b.T, extra=(scale, bias)), want.astype("f4") * scale + bias))
    rows = cupy.ascontiguousarray(b.T)
    assert bool(cupy.array_equal(plan(a, rows), want))
    batch = cupy.stack([a, a[::-1]])
    assert bool(cupy.array_equal(plan(batch, b.T), cupy.stack([want, want[::-1]])))
    m, n, k = 333, 415, 517  # neither order nor alignment
    a, b = (cupy.asarray(rng.integers(-128, 128, s), "i1") for s in ((m, k), (k, n)))
    assert "a and b copied" in plan.describe(a, b)
    assert bool(cupy.array_equal(plan(a, b), a.astype("i4") @ b.astype("i4")))
    c = cupy.asarray(integers(rng, (m, n), "i4"))
    assert bool(cupy.array_equal(plan(a, b, c, beta=2), a.astype("i4") @ b.astype("i4") + 2 * c))


@hopper
def test_tf32(rng):
    """Small whole numbers are exact in tf32; random ones as good as ten bits let them be, and no better."""
    plan = devkernels.make_gemm("float32", tf32=True, epilogue="relu")
    for m, n, k in ((130, 136, 132), (64, 61, 36), (300, 300, 300)):
        a, b = cupy.asarray(integers(rng, (m, k), "f4")), cupy.asarray(integers(rng, (n, k), "f4"))
        assert "warpgroup: float32 as tf32" in plan.describe(a, b.T)
        want = cupy.maximum(a @ b.T, 0)
        assert bool(cupy.array_equal(plan(a, b.T), want)), (m, n, k)
        if m == 300:
            assert "b copied" in plan.describe(a, cupy.ascontiguousarray(b.T))
            assert bool(cupy.array_equal(plan(a, cupy.ascontiguousarray(b.T)), want))
    a, b = (rng.standard_normal((512, 1024)).astype("f4") for _ in range(2))
    plan = devkernels.make_gemm("float32", tf32=True)
    got = plan(cupy.asarray(a), cupy.asarray(b).T).get()
    error = tolerance.relative_error(got, a.astype("f8") @ b.astype("f8").T)
    assert 1e-5 < error < 2.0**-9  # each factor loses less than 2**-10 of itself


def test_torch_and_bfloat16(rng):
    a, b = (torch.as_tensor(integers(rng, s, "f4")).cuda().bfloat16() for s in ((200, 64), (64, 136)))
    got = devkernels.gemm(a, b)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (a.float() @ b.float()).bfloat16())
    weight = b.t().contiguous()
    assert torch.equal(devkernels.gemm(a, weight.t()), got)
    assert torch.equal(devkernels.gemm(a[:, 1:], b[1:]), (a[:, 1:].float() @ b[1:].float()).bfloat16())


def test_numpy_arrays_are_copied_there_and_back(rng):
    a, b = integers(rng, (20, 30), "f4"), integers(rng, (30, 10), "f4")
    np.testing.assert_array_equal(devkernels.gemm(a, b, epilogue="relu"), np.maximum(a @ b, 0))


def test_streams_graphs_and_new_contents(rng):
    a, b = (torch.as_tensor(integers(rng, s, "f2")).cuda() for s in ((256, 128), (128, 256)))
    out = torch.full((256, 256), math.nan, device="cuda", dtype=torch.float16)
    plan = devkernels.make_gemm("float16")
    plan(a, b, out=out)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        plan(a, b, out=out)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(a, b, out=out)
    a.copy_(torch.as_tensor(integers(rng, (256, 128), "f2")))
    out.fill_(math.nan)
    graph.replay()
    assert torch.equal(out, (a.float() @ b.float()).half())
    b.mul_(2)
    assert torch.equal(plan(a, b), (a.float() @ b.float()).half())


@pytest.mark.parametrize("shape", [(2048, 1024, 1536), (4099, 129, 513)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_random_data(dtype, shape, rng):
    m, n, k = shape
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    got = devkernels.gemm(cupy.asarray(a), cupy.asarray(b)).get()
    want = (cupy.asarray(a, "f8") @ cupy.asarray(b, "f8")).get()
    assert tolerance.relative_error(got, want) < tolerance.product_bound("float32", dtype, k)


def test_refused_before_a_launch(rng):
    a, out = cupy.ones((16, 16), "f2"), cupy.full((16, 17), 7, "f2")
    with pytest.raises(ArgumentError, match="out has shape"):
        devkernels.gemm(a, a, out=out)
    assert bool((out == 7).all())
