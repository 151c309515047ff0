"""load_tile, store_tile and their kin in the simulator: every layout, order and edge; what is refused."""

import itertools

import numpy as np
import pytest

import devkernels
from devkernels import cuda
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from tests.tile_cases import LAYOUTS, check_copies

SMALL = [
    dict(shape=(4, 8), order="row_major"), dict(shape=(4, 8), order="col_major", leading_dimension="padded"),
    dict(shape=(3, 5), order="row_major", leading_dimension=9), dict(shape=(4, 16), order="row_major", swizzle=True),
    dict(shape=(8, 2), order="col_major", swizzle=32),
]  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("number", "orders"), list(enumerate(itertools.product("CF", repeat=2))))
def test_copies(number, orders, asynchronous, rng):
    for keywords, other, dtype in zip(SMALL, SMALL[1:] + SMALL[:1], ("f4", "c16", "f8", "c8", "f4"), strict=True):
        plain = {k: v for k, v in other.items() if k in ("order",)}
        shapes = [(5, 9)] if number else [(4, 8), (1, 1)]
        check_copies(keywords, plain, dtype, orders, asynchronous, np.array, np.asarray, rng, shapes)


@pytest.mark.parametrize("keywords", LAYOUTS)
@pytest.mark.parametrize("dtype", ["i1", "f2", "f4", "c8", "c16"])
def test_places_are_all_different_and_inside(keywords, dtype):
    try:
        layout = devkernels.tile_layout(dtype=dtype, **keywords)
    except SpecError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert keywords["swizzle"]
        assert "multiple of" in message
        return
    places = {layout.index(i, j) for i in range(layout.rows) for j in range(layout.columns)}
    assert len(places) == layout.rows * layout.columns
    assert 0 <= min(places) <= max(places) < layout.size
    assert layout.bytes == layout.size * np.dtype(dtype).itemsize


def test_what_swizzles_and_padding_are_for():
    """16 bytes of eight lines, one below the other, lie in eight different places of 128 bytes: all 32 banks."""
    for keywords in (dict(swizzle=True), dict(leading_dimension="padded")):
        layout = devkernels.tile_layout((8, 64), np.float16, **keywords)
        for piece in range(8):
            places = {layout.index(i, 8 * piece) * 2 % 128 for i in range(8)}
            assert len(places) == 8
    assert devkernels.tile_layout((8, 64), np.float16).index(3, 8) * 2 % 128 == 16  # and all in one without


def test_a_layout_is_a_value():
    one, two = (devkernels.tile_layout((8, 4), np.float32, leading_dimension="padded") for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != devkernels.tile_layout((8, 4), np.float32, order="col_major")
    assert (one.shape, one.leading_dimension, one.size, one.dtype) == ((8, 4), 4, 32, np.float32)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [(dict(shape=5), "two numbers"), (dict(shape=(0, 3)), "shape=0"), (dict(dtype="no"), "not a dtype"),
     (dict(dtype="U3"), "not supported"), (dict(order="rows"), "order="),
     (dict(leading_dimension=3), "leading_dimension"), (dict(leading_dimension="wide"), "leading_dimension"),
     (dict(swizzle=48), "swizzle=48"),
     (dict(shape=(4, 5), swizzle=True), "multiple of 32 bytes"), (dict(block_dim=0), "block_dim=0")],
)  # fmt: skip
def test_invalid_layouts(keywords, message):
    with pytest.raises(SpecError, match=message):
        devkernels.tile_layout(**{"shape": (4, 8), "dtype": "f4", **keywords})


def test_refused_in_kernels():
    layout = devkernels.tile_layout((4, 8), np.float32)
    load, wait = devkernels.load_tile, devkernels.wait_tiles

    @devkernels.kernel
    def short(x):
        load(layout, x, 0, 0, cuda.shared.array(31, np.float32))

    @devkernels.kernel
    def typed(x):
        load(layout, x, 0, 0, cuda.shared.array(32, np.float64))

    @devkernels.kernel
    def waiting(x):
        wait(64)

    x = np.zeros((4, 8), np.float32)
    with pytest.raises(ArgumentError, match="31 elements"):
        short[1, 1](x)
    with pytest.raises(ArgumentTypeError, match="tile has dtype float64"):
        typed[1, 1](x)
    with pytest.raises(ArgumentTypeError, match="matrix has dtype float64"):
        short[1, 1](x.astype("f8"))
    with pytest.raises(ArgumentError, match=r"wait_tiles\(64\)"):
        waiting[1, 1](x)


def test_tiles_of_a_product(rng):
    """The layouts of a DeviceMatmul's operands serve load_tile, and are what load_a and load_b fill."""
    mm = devkernels.matmul(size=(4, 6, 8), precision=np.float32, arrangement=("col_major", "row_major", "row_major"),
                           block_size=32, leading_dimension=(5, 7, 6))  # fmt: skip
    (a_size, b_size, c_size), kind = (mm.a_tile.size, mm.b_tile.size, mm.c_tile.size), mm.a_value_type
    assert (a_size, b_size, c_size) == (mm.a_size, mm.b_size, mm.c_size)
    a_tile, b_tile, c_tile, load, store = mm.a_tile, mm.b_tile, mm.c_tile, devkernels.load_tile, devkernels.store_tile

    @devkernels.kernel
    def product(x, y, z):
        a = cuda.shared.array(a_size, kind)
        b = cuda.shared.array(b_size, kind)
        c = cuda.shared.array(c_size, kind)
        load(a_tile, x, 0, 0, a)
        load(b_tile, y, 0, 0, b)
        cuda.syncthreads()
        mm(1, a, b, 0, c)
        cuda.syncthreads()
        store(c_tile, c, z, 0, 0)

    x, y = (np.asarray(rng.integers(-3, 4, s), "f4") for s in ((4, 7), (7, 6)))
    z = np.full((4, 6), np.nan, "f4")
    product[1, 32](x, y, z)
    np.testing.assert_array_equal(z, x @ y)
