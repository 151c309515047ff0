"""Machine code of the spectral filter on the engine: as wide and as short as the convolution's, and no spills."""

import numpy as np
import pytest
from numba import types

import devkernels
from devkernels.kernels import spectral_engine
from tests.sass import Sass

C64, F32 = types.complex64, types.float32


def rows_of(dtype, ndim=2):
    return types.Array(dtype, ndim, "C")


def compiled(dtype, size, points=None, op=None):
    plan = spectral_engine.engine_filter(size, points or size, dtype, op)
    stored = {"complex64": rows_of(C64), "float32": rows_of(F32), "complex32": rows_of(types.float16, 3)}[dtype]
    signature = types.void(stored, stored) if op else types.void(stored, C64[::1], stored)
    image = spectral_engine.rows_kernel(plan).compile(signature, "sm_90")
    sass = Sass(image)
    assert sass.spills == image.local_bytes == 0
    exchanges, elements = len(plan.fft.plan.exchanges), plan.fft.elements_per_thread
    assert sass.numbers("LDS") == sass.numbers("STS") == 2 * elements * exchanges
    return plan.fft, sass


@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_complex_rows(size):
    fft, sass = compiled("complex64", size)
    assert sass.count("STG.E") == fft.elements_per_thread
    assert sum(sass.counts[f"LDG.E{kind}.64"] for kind in ("", ".NA", ".EL")) >= 2 * fft.elements_per_thread
    assert sass.counts["LDG.E"] == 0
    arithmetic = sass.count("FFMA", "FADD", "FMUL")
    assert arithmetic <= (fft.plan.operations() + 4.5) * fft.elements_per_thread


@pytest.mark.parametrize(("size", "points"), [(500, 512), (1000, 1024), (2000, 2048), (4000, 4096)])
@pytest.mark.parametrize("dtype", ["complex64", "float32"])
def test_rows_shorter_than_their_transform(size, points, dtype):
    """Only slots at the end of a row ask where they are; `compiled` says that nothing is spilled."""
    fft, sass = compiled(dtype, size, points)
    last = sum(offset + fft.stride > size > offset for offset in fft.offsets)
    assert last == 1
    moves = sum(offset < size for offset in fft.offsets)
    assert sass.count("STG.E") == moves * (1 if dtype == "complex64" else 2)


def test_half_precision_moves_whole_numbers():
    fft, sass = compiled("complex32", 200, 256)
    assert sass.counts["STG.E"] == sum(offset < 200 for offset in fft.offsets)  # two float16 each


@pytest.mark.parametrize("size", [256, 4096])
def test_pairs_of_real_rows(size):
    fft, sass = compiled("float32", size)
    rows = ".NA" if fft.streamed else ""
    assert sass.counts[f"STG.E{rows}"] == sass.counts[f"LDG.E{rows}"] == 2 * fft.elements_per_thread


def test_device_function_is_compiled_into_each_slot():
    def op(X, k):
        return X * np.float32(k)

    fft, sass = compiled("complex64", 256, op=op)
    assert sass.counts["LDG.E.64"] <= fft.elements_per_thread + 4  # rows, and odd twiddles
    assert sass.counts["STG.E.64"] == fft.elements_per_thread


@pytest.mark.parametrize("h", [C64, F32])
@pytest.mark.parametrize("real_rows", [False, True])
def test_filters_are_put_in_order(h, real_rows):
    plan = spectral_engine.engine_filter(256, 256, "complex64", None)
    image = spectral_engine.order_kernel(plan.fft, real_rows).compile(types.void(rows_of(h), C64[::1]), "sm_90")
    assert image.local_bytes == 0


@pytest.mark.parametrize(("dtype", "kernels"), [("complex64", 3), ("float32", 3), ("complex32", 3)])
def test_images_of_a_length_that_only_the_engine_has(dtype, kernels):
    sources = devkernels.make_spectral_filter(768, dtype).image_sources()
    assert len(sources) == kernels
    for kernel, signature, notes in sources.values():
        assert devkernels.compile(kernel, signature, "sm_90", notes=notes).local_bytes == 0
