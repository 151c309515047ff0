"""Moves of tiles compiled without a GPU: which accesses they are made of."""

import numpy as np
import pytest

import devkernels
from devkernels import cuda
from devkernels.errors import CompileError
from tests.sass import Sass
from tests.tile_cases import copying_kernel

_DENSE, _STRIDED = "float32[:,::1]", "float32[:,:]"


@pytest.mark.parametrize(
    ("order", "options", "asynchronous", "kind", "wide", "copies"),
    [("row_major", dict(swizzle=True), False, _DENSE, True, False),
     ("row_major", dict(leading_dimension="padded"), True, _STRIDED, False, True),
     ("col_major", {}, False, _DENSE, False, False)],
)  # fmt: skip
def test_accesses(order, options, asynchronous, kind, wide, copies):
    """16 bytes at a time along the rows, asynchronous where asked, single elements where the tile is transposed."""
    source = devkernels.tile_layout((16, 32), np.float32, order=order, **options)
    sink = devkernels.tile_layout((16, 32), np.float32, block_dim=64)
    image = devkernels.compile(copying_kernel(source, sink, asynchronous), f"void({kind}, {kind}, int64)", "sm_90")
    sass = Sass(image)
    assert (sass.count("LDG.E.128") > 0) is wide
    assert (sass.count("LDGSTS.E.BYPASS") > 0) is copies
    assert sass.count("STG.E.128") > 0
    assert image.shared_bytes >= source.bytes + sink.bytes


def test_refused_while_compiling():
    layout, load, wait = devkernels.tile_layout((8, 8), np.float32), devkernels.load_tile, devkernels.wait_tiles

    @devkernels.kernel
    def typed(x):
        load(layout, x, 0, 0, cuda.shared.array(64, np.float32))

    @devkernels.kernel
    def waiting(x, n):
        wait(n)

    with pytest.raises(CompileError, match=r"2-D array of float32, not .*float64"):
        devkernels.compile(typed, "void(float64[:,::1])", "sm_90")
    with pytest.raises(CompileError, match="constant number of groups"):
        devkernels.compile(waiting, "void(float64[:,::1], int64)", "sm_90")
