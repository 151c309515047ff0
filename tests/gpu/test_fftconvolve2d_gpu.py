"""Two-dimensional convolution on a GPU against SciPy in float64."""

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels.tolerance import fft_bound, relative_error

cupy = pytest.importorskip("cupy")


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape)).astype(dtype) if dtype.startswith("c") else values.astype(dtype)


def check(rng, batch, filters, shape, taps, mode, dtype):
    x, h = random(rng, (*batch, *shape), dtype), random(rng, (*filters, *taps), dtype)
    wide = np.complex128 if dtype.startswith("c") else np.float64
    a, b = x.astype(wide), np.broadcast_to(h.astype(wide), (*batch, *taps))
    if mode == "circular":
        want = np.fft.ifft2(np.fft.fft2(a) * np.fft.fft2(b, shape))
        want = want if wide is np.complex128 else want.real
    else:
        want = signal.fftconvolve(a, b, mode, axes=(-2, -1))
    out = cupy.full(want.shape, np.nan, dtype)
    devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), mode, axes=(-2, -1), out=out)
    compute = {"float16": "float32", "complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    storage = fft_bound("float16", 2) if dtype == "float16" else 0
    assert relative_error(out.get(), want) < fft_bound(compute, 2 * want.shape[-1] * want.shape[-2], 2) + storage


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("shape", "taps"), [((1, 1), (1, 1)), ((33, 47), (5, 4)), ((100, 513), (63, 63))])
def test_modes_and_dtypes(mode, dtype, shape, taps, rng):
    check(rng, (3,), (), shape, taps, mode, dtype)


@pytest.mark.parametrize("shape", [(8, 8), (64, 128), (1024, 1024), (96, 768), (2048, 32)])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
def test_circular(shape, dtype, rng):
    check(rng, (2,), (), shape, shape, "circular", dtype)


@pytest.mark.parametrize(("batch", "filters"), [((), ()), ((5,), ()), ((3, 4), (4,)), ((2, 3), (2, 3)), ((1,), (1,))])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_batches_and_filters(batch, filters, dtype, rng):
    check(rng, batch, filters, (40, 50), (7, 6), "same", dtype)
    check(rng, batch, filters, (3, 5), (7, 6), "valid" if dtype == "float32" else "full", dtype)
