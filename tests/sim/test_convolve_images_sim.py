"""Convolutions over two axes in Numba's simulator: each kernel and each rule once, small, against NumPy in float64."""

import numpy as np
import pytest

from devkernels.errors import ArgumentError, UnsupportedSizeError
from devkernels.kernels import convolve_grad2d, convolve_tiles, convolve_views, fftconvolve2d
from devkernels.kernels.convolve_plan import window
from devkernels.kernels.fftconvolve import correlate, fftconvolve
from devkernels.kernels.fftconvolve2d import make_fftconvolve2d
from devkernels.tolerance import fft_bound, relative_error
from tests.convolution_cases import bound, random

pytestmark = pytest.mark.sim


def reference(x, h, mode):
    """By transforms in double precision, long enough for every sample."""
    shape, taps = x.shape[-2:], h.shape[-2:]
    full = shape if mode == "circular" else tuple(n + k - 1 for n, k in zip(shape, taps, strict=True))
    want = np.fft.ifft2(np.fft.fft2(x, full) * np.fft.fft2(h, full))
    if mode != "circular":
        for axis, (n, k) in enumerate(zip(shape, taps, strict=True)):
            start, count = window(mode, n, k)
            want = np.take(want, range(start, start + count), axis - 2)
    return want if np.iscomplexobj(x) else want.real


@pytest.mark.parametrize(
    ("batch", "filters", "shape", "taps", "mode", "dtype"),
    [
        ((3,), (), (8, 16), (8, 16), "circular", "float32"),  # an odd number of images, two at a time
        ((2,), (), (5, 7), (3, 4), "full", "complex64"),
        ((2, 2), (2,), (6, 9), (3, 2), "same", "float64"),
        ((), (), (6, 6), (4, 3), "valid", "float32"),
        ((2,), (), (11, 13), (3, 4), "circular", "float32"),  # lengths without a transform: one of two, both
        ((), (), (8, 37), (5, 37), "circular", "complex64"),
        ((2, 2), (2, 1), (4, 5), (2, 2), "full", "float32"),  # filters that do not adjoin are repeated
        ((1,), (3,), (4, 5), (2, 2), "full", "float32"),
        ((2, 2), (1, 1), (4, 5), (2, 2), "same", "float32"),
        ((2,), (), (3, 4), (7, 9), "same", "float32"),  # filters larger than images
    ],
)
def test_images(batch, filters, shape, taps, mode, dtype, rng):
    x, h = random(rng, (*batch, *shape), dtype), random(rng, (*filters, *taps), dtype)
    want = reference(x, h, mode)
    out = np.full(want.shape, np.nan, dtype)
    fftconvolve(x, h, mode, axes=(-2, -1), out=out)
    assert relative_error(out, want) < bound(dtype, 1024)


@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")  # the simulator's, of infinity times zero
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_what_is_not_finite_stays_in_its_image(bad, rng):
    x, h = random(rng, (4, 8, 8), "float32"), random(rng, (3, 3), "float32")
    x[1, 5, 2] = x[3, 0, 0] = x[3, 7, 1] = bad
    got = fftconvolve(x, h, "same", axes=(-2, -1))
    assert np.isnan(got[[1, 3]]).all()
    assert relative_error(got[[0, 2]], reference(x[[0, 2]], h, "same")) < bound("float32", 256)


@pytest.mark.parametrize(("dtype", "mode", "width"), [("float32", "full", 7), ("complex64", "circular", 11)])
def test_prologue_and_epilogue(dtype, mode, width, rng):
    def gate(value, image, row, column):
        return value * (image + 1) + row - column

    def shift(value, image, row, column):
        return 2 * value + image + 10 * row + 100 * column

    x, h = random(rng, (3, 6, width), dtype), random(rng, (2, 3), dtype)
    plan = make_fftconvolve2d((6, width), (2, 3), dtype, mode, prologue=gate, epilogue=shift)
    number, row, column = np.ogrid[:3, :6, :width]
    want = 2 * reference(x * (number + 1) + row - column, h, mode)
    number, row, column = np.ogrid[:3, : want.shape[1], : want.shape[2]]
    want += number + 10 * row + 100 * column
    assert relative_error(plan(x, h), want) < fft_bound(dtype, 256, 2)


@pytest.mark.parametrize(
    ("x_shape", "h_shape", "mode", "dtype"),
    [
        ((2, 4, 5), (2, 3), "full", "float64"),
        ((2, 3, 4, 4), (3, 1, 2), "same", "complex128"),
        ((2, 1, 4, 5), (2, 5, 3), "same", "float64"),  # larger filters, images used again
        ((2, 5, 4), (2, 2), "valid", "float32"),
        ((3, 4), (5, 6), "valid", "float64"),
        ((2, 4, 8), (3, 5), "circular", "float64"),
    ],
)
def test_gradients(x_shape, h_shape, mode, dtype, rng):
    x, h = random(rng, x_shape, dtype), random(rng, h_shape, dtype)
    plan = make_fftconvolve2d(x_shape[-2:], h_shape[-2:], dtype, mode)
    batch = np.broadcast_shapes(x_shape[:-2], h_shape[:-2])
    gradient = random(rng, (*batch, *plan.out_shape), dtype)
    rows, filters = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (x, h))
    of_x, of_h = np.zeros(rows.shape, complex), np.zeros(filters.shape, complex)
    starts = [window(mode, n, k)[0] for n, k in zip(x_shape[-2:], h_shape[-2:], strict=True)]
    for m in np.ndindex(plan.out_shape):
        for j in np.ndindex(h_shape[-2:]):
            n = [s + a - b for s, a, b in zip(starts, m, j, strict=True)]
            if mode == "circular":
                n = [a % size for a, size in zip(n, plan.shape, strict=True)]
            if all(0 <= a < size for a, size in zip(n, plan.shape, strict=True)):
                of_x[..., n[0], n[1]] += gradient[..., m[0], m[1]] * filters[..., j[0], j[1]].conj()
                of_h[..., j[0], j[1]] += gradient[..., m[0], m[1]] * rows[..., n[0], n[1]].conj()
    got_x = convolve_grad2d.input_gradient(plan, gradient, h, x_shape[:-2])
    got_h = convolve_grad2d.filter_gradient(plan, gradient, x, h_shape[:-2])
    limit = fft_bound(dtype, 256, 2)
    assert relative_error(got_x, convolve_views.sum_to(of_x, x_shape[:-2], 2)) < limit
    assert relative_error(got_h, convolve_views.sum_to(of_h, h_shape[:-2], 2)) < limit


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_correlation_turns_both_axes(dtype, rng):
    x, h = random(rng, (2, 5, 6), dtype), random(rng, (3, 2), dtype)
    want = reference(x, h[::-1, ::-1].conj(), "same")
    assert relative_error(correlate(x, h, "same", axes=(-2, -1)), want) < bound(dtype, 256)


def test_spectra_are_used_again_and_checked(rng):
    x, h = random(rng, (2, 4, 4), "float32"), random(rng, (2, 1, 3, 3), "float32")
    plan = make_fftconvolve2d((4, 4), (3, 3), "float32", "same")
    spectra = plan.prepare(h[0])
    for _ in range(2):
        assert relative_error(plan(x, spectra=spectra), reference(x, h[0], "same")) < bound("float32", 64)
    with pytest.raises(ArgumentError, match="pass h"):
        plan(x, spectra=plan.prepare(h))


@pytest.mark.parametrize(
    ("x_shape", "h_shape", "mode"), [((2, 1, 20, 9), (3, 3, 4), "full"), ((19, 18), (5, 5), "circular")]
)
def test_images_larger_than_a_transform_go_in_tiles(x_shape, h_shape, mode, rng, monkeypatch):
    monkeypatch.setattr(convolve_tiles.choose, "largest", lambda words: 16)
    monkeypatch.setattr(convolve_tiles, "_USUAL", 16)
    fftconvolve2d._planned.cache_clear()
    x, h = random(rng, x_shape, "float32"), random(rng, h_shape, "float32")
    want = reference(x, h, mode)
    out = np.full(want.shape, np.nan, "float32")
    assert fftconvolve(x, h, mode, axes=(-2, -1), out=out) is out
    assert relative_error(out, want) < bound("float32", 1024)
    with pytest.raises(UnsupportedSizeError, match="tiles"):
        fftconvolve(x, np.ones((15, 15), "float32"), "full", axes=(-2, -1))
