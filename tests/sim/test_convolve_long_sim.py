"""Convolutions with long filters in the simulator: four-step transforms of a few points, against NumPy in float64."""

import numpy as np
import pytest

from devkernels.kernels import convolve_long, convolve_plan
from devkernels.kernels.convolver import FFTConvolve
from devkernels.tolerance import fft_bound, relative_error
from tests.convolution_cases import bound, random, reference

pytestmark = pytest.mark.sim


@pytest.fixture
def small(monkeypatch):
    """``small(mode, length, taps, dtype, points, columns)``: a four-step convolution of so few points."""

    def make(mode, length, taps, dtype, points, columns, **functions):
        monkeypatch.setattr(convolve_plan, "_four_step_sizes", lambda precision: [points])
        monkeypatch.setattr(
            convolve_plan, "factors", lambda n, precision: None if n % columns else (columns, n // columns)
        )
        start, samples = convolve_plan.window(mode, length, taps)
        common = dict(length=length, taps=taps, start=start, window=samples,
                      precision=convolve_plan.COMPUTE[dtype])  # fmt: skip
        return FFTConvolve(convolve_plan.four_step(common, dtype, mode == "circular"), dtype, mode, **functions)

    return make


@pytest.mark.parametrize(
    ("x_shape", "h_shape", "mode", "dtype", "points", "columns", "segments"),
    [
        ((2, 32), (32,), "causal", "float32", 32, 8, 1),
        ((2, 3, 30), (3, 29), "full", "float64", 32, 4, 1),  # a filter for each channel
        ((2, 3, 20), (2, 1, 13), "same", "float32", 24, 6, 1),  # a filter for each first index
        ((50,), (13,), "same", "float16", 32, 8, 1),  # longer rows than points: two halves
        ((11,), (50,), "valid", "float32", 32, 8, 1),  # longer filters than points
        ((3, 1, 20), (2, 13), "full", "complex64", 32, 8, 1),  # rows used again by other filters
        ((2, 32), (32,), "circular", "complex128", 32, 8, 1),  # the transform is the row
        ((2, 37), (37,), "circular", "float32", 48, 8, 1),  # rows that begin with their own end
        ((2, 37), (30,), "circular", "complex64", 72, 8, 1),
        ((2, 150), (40,), "full", "float32", 32, 4, 8),  # segments
        ((2, 70), (20,), "same", "complex64", 32, 4, 6),
        ((2, 97), (20,), "circular", "float64", 32, 8, 3),
    ],
)
def test_four_steps(x_shape, h_shape, mode, dtype, points, columns, segments, small, rng):
    x, h = random(rng, x_shape, dtype), random(rng, h_shape, dtype)
    plan = small(mode, x_shape[-1], h_shape[-1], dtype, points, columns)
    assert plan.plan.method == "four-step"
    assert plan.plan.segments == segments
    want = reference(x, h, mode)
    out = np.full(want.shape, np.nan, dtype=dtype)
    before = x.copy(), h.copy()
    assert plan(x, h, out=out) is out
    assert relative_error(out, want) < bound(dtype, 2 * points), plan
    assert (x == before[0]).all()
    assert (h == before[1]).all()


def test_rows_that_do_not_fit_the_work_area_take_turns(small, rng, monkeypatch):
    plan = small("causal", 30, 30, "float32", 32, 8)
    monkeypatch.setattr(convolve_long, "WORK_BYTES", 2 * 32 * 8)
    x, h = random(rng, (5, 30), "float32"), random(rng, (5, 30), "float32")
    assert plan._long.work_bytes(5) == 2 * 32 * 8
    assert relative_error(plan(x, h), reference(x, h, "causal")) < bound("float32", 64)


@pytest.mark.parametrize(("dtype", "mode"), [("float32", "same"), ("complex64", "full"), ("float64", "circular")])
def test_prologue_and_epilogue(dtype, mode, small, rng):
    def gate(value, row, position):
        return value * (row + 1) + position

    def shift(value, row, position):
        return value * 2 + position + 10 * row

    length = 40 if dtype == "float32" else 20
    plan = small(mode, length, 7, dtype, 32, 8, prologue=gate, epilogue=shift)
    x, h = random(rng, (3, length), dtype), random(rng, (7,), dtype)
    rows = np.arange(3)[:, None]
    want = 2 * reference(x * (rows + 1) + np.arange(length), h, mode)
    want += np.arange(want.shape[-1]) + 10 * rows
    assert relative_error(plan(x, h), want) < fft_bound(dtype, 64, 2)


def test_nan_stays_in_its_row(small, rng):
    x, h = random(rng, (3, 40), "float32"), random(rng, (9,), "float32")
    x[1, 3] = np.inf
    got = small("same", 40, 9, "float32", 32, 8)(x, h)
    assert np.isnan(got[1]).all()
    assert relative_error(got[[0, 2]], reference(x[[0, 2]], h, "same")) < bound("float32", 64)


@pytest.mark.parametrize(("mode", "length", "taps"), [("same", 20, 13), ("full", 70, 20)])
def test_functions_that_read_an_array(mode, length, taps, small, rng):
    def gate(value, row, position, extra):
        return value * extra[row * length + position]

    def divide(value, row, position, extra):
        return value / (2 + extra[position])

    plan = small(mode, length, taps, "float32", 32, 8, prologue=gate, epilogue=divide)
    x, h = random(rng, (2, length), "float32"), random(rng, taps, "float32")
    extra = rng.uniform(1, 2, 2 * length + taps).astype("float32")
    want = reference(x * extra[: 2 * length].reshape(2, -1), h, mode)
    want = want / (2 + extra[: want.shape[-1]])
    assert relative_error(plan(x, h, extra=extra), want) < bound("float32", 64)
