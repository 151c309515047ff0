"""Prologues and epilogues that read an array of the caller's: gates, scales, residuals."""

import dataclasses

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels.errors import ArgumentError, SpecError
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolver import FFTConvolve
from devkernels.tolerance import relative_error
from tests.convolution_cases import bound, random, reference

LENGTH, TAPS = 12, 5


def gate(value, row, position, extra):
    return value * extra[row * LENGTH + position]


def residual(value, row, position, extra):
    return value + extra[row * LENGTH + position]


@pytest.mark.parametrize(
    ("mode", "dtype", "method"),
    [("same", "float32", None), ("circular", "float32", None), ("circular", "complex64", None),
     ("causal", "float16", "overlap")],
)  # fmt: skip
def test_gates_and_residuals_along_rows(mode, dtype, method, rng):
    x, h, v = random(rng, (3, LENGTH), dtype), random(rng, TAPS, dtype), random(rng, (3, LENGTH), dtype)
    x, v = x / x.dtype.type(4), v / v.dtype.type(4)
    rows = convolve_plan.plan_rows(mode, LENGTH, TAPS, dtype, method)
    if method is not None:  # several segments
        rows = dataclasses.replace(rows, size=8)
    want = reference(x * v, h, mode) + v
    plan, out = FFTConvolve(rows, dtype, mode, gate, residual), np.full(want.shape, np.nan, dtype)
    plan(x, h, out=out, extra=v)
    assert relative_error(out, want) < bound(dtype, 256)


def test_one_number_for_each_channel_and_a_result_in_place(rng):
    def skip(value, row, position, extra):
        return value * extra[row % 2]

    x, h, scale = random(rng, (3, 2, 8), "float32"), random(rng, (2, 8), "float32"), np.array([2, -3])
    plan = devkernels.make_fftconvolve(8, 8, "float32", "causal", epilogue=skip)
    assert relative_error(plan(x, h, extra=scale), reference(x, h, "causal") * scale[:, None]) < bound("float32", 16)

    def add(value, row, position, extra):
        return value + extra[row * 8 + position]

    y = random(rng, x.shape, "float32")
    want = reference(x, h, "causal") + y
    plan = devkernels.make_fftconvolve(8, 8, "float32", "causal", epilogue=add)
    plan(x, h, out=y, extra=y)
    assert relative_error(y, want) < bound("float32", 16)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_images(dtype, rng):
    def weigh(value, image, row, column, extra):
        return value * extra[(image * 5 + row) * 4 + column]

    x, h, v = random(rng, (3, 5, 4), dtype), random(rng, (2, 3), dtype), random(rng, (3, 5, 4), "float32")
    want = signal.fftconvolve((x * v).astype("complex128"), h[None].astype("complex128"), "same", (1, 2)) * v
    plan = devkernels.make_fftconvolve2d((5, 4), (2, 3), dtype, "same", prologue=weigh, epilogue=weigh)
    got = plan(x, h, extra=v)
    assert relative_error(got, want if dtype == "complex64" else want.real) < bound(dtype, 256)


def test_what_does_not_fit_is_said_in_words(rng):
    x, h = random(rng, (3, LENGTH), "float32"), random(rng, TAPS, "float32")
    plan = devkernels.make_fftconvolve(LENGTH, TAPS, "float32", "same", prologue=gate)
    with pytest.raises(ArgumentError, match="pass extra="):
        plan(x, h)
    with pytest.raises(ArgumentError, match="there is none"):
        devkernels.make_fftconvolve(LENGTH, TAPS, "float32", "same")(x, h, extra=x)
    for wrong in (lambda value: value, lambda value, row, position, extra, more: value, print):
        with pytest.raises(SpecError, match="value, row, position"):
            devkernels.make_fftconvolve(LENGTH, TAPS, "float32", "same", epilogue=wrong)
    with pytest.raises(SpecError, match="value, image, row, column"):
        devkernels.make_fftconvolve2d((5, 4), (2, 3), "float32", prologue=lambda value, row, position: value)
    by_default = devkernels.make_fftconvolve(
        LENGTH, TAPS, "float32", "same", epilogue=lambda value, row, position, factor=2: factor * value
    )
    assert relative_error(by_default(x, h), 2 * reference(x, h, "same")) < bound("float32", 64)
    with pytest.raises(ArgumentError, match="extra is a"):
        plan(x, h, extra=[1.0])
