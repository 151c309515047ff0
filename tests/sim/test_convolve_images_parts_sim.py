"""Images in parts: only so many at a time as the work area may hold."""

import numpy as np
import pytest
from scipy import signal

from devkernels.kernels import convolve_plan2d, convolver2d, fftconvolve2d
from devkernels.tolerance import fft_bound, relative_error
from tests.convolution_cases import random


@pytest.mark.parametrize(
    ("images", "filters", "dtype", "parts"),
    [((7,), (), "float32", 4), ((3,), (), "complex64", 3), ((3, 2), (2,), "float32", 2)],
)  # fmt: skip
def test_parts_are_as_good_as_the_whole(images, filters, dtype, parts, rng):
    x, h = rng.standard_normal((*images, 5, 4)).astype(dtype), rng.standard_normal((*filters, 3, 2)).astype(dtype)
    plan = convolver2d.FFTConvolve2D(
        fftconvolve2d.make_fftconvolve2d((5, 4), (3, 2), dtype, "same").plans, dtype, "same"
    )
    plan.work_limit = 1
    plates, some, _ = plan._pages(int(np.prod(images)), int(np.prod(filters)))
    assert (plates, some) == (parts, 1)
    out = np.full_like(x, np.nan)
    plan(x, h, out=out)
    want = signal.fftconvolve(x.astype(complex), np.broadcast_to(h, (*images, 3, 2)), "same", axes=(-2, -1))
    assert relative_error(out, want) < fft_bound(dtype, 64, 2)
    assert plan.work_bytes(100) == plan.work_bytes(2)


@pytest.mark.parametrize(
    ("shape", "taps", "mode", "dtype", "segments"),
    [
        ((24, 24), (3, 4), "same", "float32", (2, 2)),
        ((40, 28), (4, 4), "valid", "complex64", (3, 2)),
        ((11, 40), (5, 3), "full", "float32", (1, 3)),
        ((37, 13), (4, 2), "circular", "float32", (3, 1)),  # and a length without a transform
    ],
)
def test_axes_go_in_segments(shape, taps, mode, dtype, segments, rng, monkeypatch):
    monkeypatch.setattr(convolve_plan2d, "SEGMENT", 16)
    plans = convolve_plan2d.axis_plans(shape, taps, dtype, mode)
    assert tuple(plan.segments for plan in plans) == segments
    plan = convolver2d.FFTConvolve2D(plans, dtype, mode)
    x, h = random(rng, (3, *shape), dtype), random(rng, taps, dtype)
    out = np.full((3, *plan.out_shape), np.nan, dtype)
    plan(x, h, out=out)
    if mode == "circular":
        want = np.fft.ifft2(np.fft.fft2(x) * np.fft.fft2(h, shape))
    else:
        want = signal.fftconvolve(x.astype(complex), h[None], mode, axes=(-2, -1))
    assert relative_error(out, want) < fft_bound(dtype, 256, 2)
    assert "segments" in plan.describe()


@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")  # the simulator's, of infinity times zero
def test_segments_keep_what_is_not_finite_and_number_samples_for_functions(rng, monkeypatch):
    monkeypatch.setattr(convolve_plan2d, "SEGMENT", 16)

    def gate(value, image, row, column):
        return value * (image + 1) + row - column

    def shift(value, image, row, column):
        return 2 * value + image + 10 * row + 100 * column

    plans = convolve_plan2d.axis_plans((24, 24), (3, 4), "float32", "same")
    plan = convolver2d.FFTConvolve2D(plans, "float32", "same", gate, shift)
    x, h = random(rng, (3, 24, 24), "float32"), random(rng, (3, 4), "float32")
    image, row, column = np.ogrid[:3, :24, :24]
    want = 2 * signal.fftconvolve(x * (image + 1.0) + row - column, h[None], "same", axes=(-2, -1))
    want += image + 10 * row + 100 * column
    assert relative_error(plan(x, h), want) < fft_bound("float32", 1024, 2)
    x[1, 23, 5] = np.nan
    got = plan(x, h)
    assert np.isnan(got[1]).all()
    assert relative_error(got[[0, 2]], want[[0, 2]]) < fft_bound("float32", 1024, 2)


@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")  # the simulator's, of infinity times zero
@pytest.mark.parametrize(
    ("batch", "filters", "shape", "taps", "mode"),
    [
        ((), (), (21, 9), (3, 2), "same"),
        ((1,), (), (20, 6), (4, 3), "full"),
        ((2,), (2,), (23, 7), (4, 2), "valid"),
        ((), (), (40, 20), (4, 3), "causal"),  # and columns of each half in segments
    ],
)
def test_one_real_image_goes_as_two_halves(batch, filters, shape, taps, mode, rng, monkeypatch):
    monkeypatch.setattr(convolver2d, "_HALVED", 1)
    monkeypatch.setattr(convolve_plan2d, "SEGMENT", 16)
    plans = convolve_plan2d.axis_plans(shape, taps, "float32", mode)

    def gate(value, image, row, column):
        return value * (image + 1) + row - column

    def shift(value, image, row, column):
        return 2 * value + image + 10 * row + 100 * column

    for prologue, epilogue in ((None, None), (gate, shift)):
        plan = convolver2d.FFTConvolve2D(plans, "float32", mode, prologue, epilogue)
        assert plan._in_halves is not None
        x, h = random(rng, (*batch, *shape), "float32"), random(rng, (*filters, *taps), "float32")
        image = np.arange(max(1, int(np.prod(batch)))).reshape((*batch, 1, 1))
        row, column = np.ogrid[: shape[0], : shape[1]]
        a = x.astype(float) if prologue is None else x * (image + 1.0) + row - column
        b = np.broadcast_to(h, (*batch, *taps)).astype(float)
        want = signal.fftconvolve(a, b, "full" if mode == "causal" else mode, axes=(-2, -1))
        want = want[..., : plan.out_shape[0], : plan.out_shape[1]]
        if epilogue is not None:
            row, column = np.ogrid[: want.shape[-2], : want.shape[-1]]
            want = 2 * want + image + 10 * row + 100 * column
        out = np.full(want.shape, np.nan, "float32")
        assert plan(x, h, out=out) is out
        assert relative_error(out, want) < fft_bound("float32", 1024, 2)
    x[..., 0, 3] = np.inf
    assert np.isnan(plan(x, h)).all()
