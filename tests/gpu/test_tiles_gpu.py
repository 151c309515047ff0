"""load_tile, store_tile and load_tile_async on a GPU: every layout, order and edge, in dtypes of 1 to 16 bytes."""

import numpy as np
import pytest

import devkernels
from tests.tile_cases import LAYOUTS, check_copies

cupy = pytest.importorskip("cupy")
DTYPES = ("f4", "f2", "c16", "i1", "f8", "c8", "f2")
PLACES = [(7, 3), (16, 64), (37, 70), (130, 129)]


def misaligned(x, order="C"):
    """The same values, one element away from a multiple of 16 bytes."""
    room = cupy.zeros((x.shape[0], x.shape[1] + 1) if order == "C" else (x.shape[0] + 1, x.shape[1]), x.dtype, order)
    view = room[:, 1:] if order == "C" else room[1:]
    view[...] = cupy.asarray(x)
    return view


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_copies(number, asynchronous, rng):
    keywords, dtype = LAYOUTS[number], DTYPES[number]
    other = {"order": ("row_major", "col_major")[number % 2], "leading_dimension": "padded"}
    for place, orders in ((cupy.array, "CC"), (cupy.array, "FC"), (misaligned, "CF")):
        check_copies(keywords, other, dtype, orders, asynchronous, place, cupy.asnumpy, rng, PLACES)


def test_every_layout_with_every_width(rng):
    for keywords in LAYOUTS[:4]:
        for dtype in ("i1", "f2", "c16"):
            if keywords.get("swizzle") and keywords["shape"][1] * np.dtype(dtype).itemsize % 32:
                continue
            check_copies(keywords, {"order": "row_major"}, dtype, "CC", True, cupy.array, cupy.asnumpy, rng, PLACES)


def test_tiles_of_a_product(rng):
    """Asynchronous loads into the layouts of a DeviceMatmul, two stages of them, and its result stored as a tile."""
    from devkernels import cuda

    mm = devkernels.matmul(size=(32, 32, 16), precision=np.float32, leading_dimension="suggested",
                           alignment=(16, 16, 16), block_size=64)  # fmt: skip
    (m, n, k), kind, a_tile, b_tile, c_tile = mm.size, mm.a_value_type, mm.a_tile, mm.b_tile, mm.c_tile
    a_size, b_size, c_size = a_tile.size, b_tile.size, c_tile.size
    a_room, b_room = 2 * a_size, 2 * b_size
    load, wait, store = devkernels.load_tile_async, devkernels.wait_tiles, devkernels.store_tile

    @devkernels.kernel
    def product(x, y, z):
        a = cuda.shared.array(a_room, kind)
        b = cuda.shared.array(b_room, kind)
        c = cuda.shared.array(c_size, kind)
        row, column, stage = cuda.blockIdx.x * m, cuda.blockIdx.y * n, 0
        load(a_tile, x, row, 0, a[:a_size])
        load(b_tile, y, 0, column, b[:b_size])
        for k0 in range(0, x.shape[1], k):
            other = 1 - stage
            load(a_tile, x, row, k0 + k, a[other * a_size : (other + 1) * a_size])
            load(b_tile, y, k0 + k, column, b[other * b_size : (other + 1) * b_size])
            wait(2)
            cuda.syncthreads()
            mm(1, a[stage * a_size : (stage + 1) * a_size], b[stage * b_size : (stage + 1) * b_size],
               1 if k0 > 0 else 0, c)  # fmt: skip
            cuda.syncthreads()
            stage = other
        store(c_tile, c, z, row, column)

    for m_, n_, k_ in ((64, 64, 64), (33, 65, 50), (1, 1, 1)):
        x, y = (cupy.asarray(rng.integers(-3, 4, s), "f4") for s in ((m_, k_), (k_, n_)))
        z = cupy.full((m_, n_), cupy.nan, "f4")
        product[(-(-m_ // 32), -(-n_ // 32)), mm.block_dim](x, y, z)
        assert bool(cupy.array_equal(z, x @ y)), (m_, n_, k_)
