"""Convolutions in Numba's simulator: each kernel once, small, against NumPy in float64."""

import dataclasses

import numpy as np
import pytest

import devkernels
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError, UnsupportedSizeError
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolve_batch import broadcast
from devkernels.kernels.convolver import FFTConvolve
from devkernels.kernels.fftconvolve import fftconvolve, make_fftconvolve
from devkernels.tolerance import fft_bound, relative_error

pytestmark = pytest.mark.sim


def reference(x, h, mode):
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    batch = np.broadcast_shapes(x.shape[:-1], h.shape[:-1])
    n, k = x.shape[-1], h.shape[-1]
    rows = np.broadcast_to(x, (*batch, n)).reshape(-1, n).astype(wide)
    filters = np.broadcast_to(h, (*batch, k)).reshape(-1, k).astype(wide)
    out = []
    for row, taps in zip(rows, filters, strict=True):
        full = np.convolve(row, taps)
        if mode == "full":
            out.append(full)
        elif mode == "causal":
            out.append(full[:n])
        elif mode == "circular":
            wrapped = full[:n].copy()
            wrapped[: k - 1] += full[n:]
            out.append(wrapped)
        else:
            out.append(np.convolve(row, taps, "valid") if mode == "valid" else full[(k - 1) // 2 :][:n])
    return np.array(out).reshape(*batch, -1)


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def bound(dtype, n):
    storage = fft_bound("float16", 2) if dtype == "float16" else 0
    return fft_bound("float32" if dtype == "float16" else dtype, n, 2) + storage


@pytest.mark.parametrize(
    ("x_shape", "h_shape", "mode", "dtype", "method"),
    [
        ((3, 8), (8,), "circular", "complex64", "circular"),
        ((3, 16), (5,), "circular", "float32", "circular"),  # an odd number of rows, two at a time
        ((2, 3, 8), (3, 8), "circular", "complex128", "circular"),
        ((2, 3, 8), (3, 8), "causal", "float32", "linear"),
        ((2, 3, 8), (2, 1, 8), "causal", "float64", "linear"),
        ((3, 8), (2, 1, 8), "causal", "float32", "linear"),  # rows used again by other filters
        ((2, 13), (9,), "full", "float32", "linear"),
        ((13,), (9,), "same", "float16", "linear"),
        ((5,), (16,), "valid", "float64", "linear"),
        ((2, 7), (3,), "full", "complex64", "overlap"),
        ((2, 150), (3,), "same", "float32", "overlap"),
        ((2, 97), (9,), "circular", "complex64", "overlap"),
        ((1, 97), (97,), "circular", "float32", "overlap"),
    ],
)
def test_each_kernel(x_shape, h_shape, mode, dtype, method, rng):
    x, h = random(rng, x_shape, dtype), random(rng, h_shape, dtype)
    plan = make_fftconvolve(x_shape[-1], h_shape[-1], dtype, mode)
    assert plan.plan.method == method, plan
    want = reference(x, h, mode)
    out = np.full(want.shape, np.nan, dtype=dtype)
    before = x.copy(), h.copy()
    assert plan(x, h, out=out) is out
    assert relative_error(out, want) < bound(dtype, plan.fft.size), plan
    assert (x == before[0]).all()
    assert (h == before[1]).all()


@pytest.mark.parametrize(
    ("length", "taps", "mode", "dtype"),
    [(50, 40, "full", "float32"), (33, 33, "circular", "complex64"), (20, 45, "same", "float64")],
)
def test_filters_in_several_passes(length, taps, mode, dtype, rng, monkeypatch):
    # As with filters longer than any transform, which would take the simulator hours.
    plan = FFTConvolve(
        dataclasses.replace(convolve_plan.plan_rows(mode, length, taps, dtype, "overlap"), size=32, part_limit=16,
                            method="overlap", wraps=mode == "circular"), dtype, mode,
    )  # fmt: skip
    assert plan.plan.parts > 1
    x, h = random(rng, (2, length), dtype), random(rng, (taps,), dtype)
    want = reference(x, h, mode)
    out = np.full(want.shape, np.nan, dtype=dtype)
    plan(x, h, out=out)
    assert relative_error(out, want) < bound(dtype, 64)


def test_filters_are_transformed_once_and_used_again(rng):
    x, h = random(rng, (4, 8), "float32"), random(rng, (8,), "float32")
    plan = make_fftconvolve(8, 8, "float32", "causal")
    spectra = plan.prepare(h)
    for _ in range(2):
        assert relative_error(plan(x, spectra=spectra), reference(x, h, "causal")) < bound("float32", 8)


def test_prologue_and_epilogue(rng):
    def gate(value, row, position):
        return value * (row + 1)

    def shift(value, row, position):
        return value + position

    x, h = random(rng, (3, 8), "float32"), random(rng, (8,), "float32")
    plan = make_fftconvolve(8, 8, "float32", "causal", prologue=gate, epilogue=shift)
    want = reference(x * np.arange(1, 4)[:, None], h, "causal") + np.arange(8)
    assert relative_error(plan(x, h), want) < bound("float32", 8)


def test_nan_stays_in_its_row(rng):
    x, h = random(rng, (3, 8), "complex64"), random(rng, (8,), "complex64")
    x[1, 3] = np.nan
    got = fftconvolve(x, h, "circular")
    assert np.isnan(got[1]).all()
    assert relative_error(got[[0, 2]], reference(x[[0, 2]], h, "circular")) < bound("complex64", 8)


@pytest.mark.parametrize(
    ("batch", "filters", "shape", "taps", "mode", "dtype"),
    [
        ((3,), (), (8, 16), (8, 16), "circular", "float32"),  # an odd number of images, two at a time
        ((2,), (), (5, 7), (3, 4), "full", "complex64"),
        ((2, 2), (2,), (6, 9), (3, 2), "same", "float64"),
        ((), (), (6, 6), (4, 3), "valid", "float32"),
    ],
)
def test_images(batch, filters, shape, taps, mode, dtype, rng):
    x, h = random(rng, (*batch, *shape), dtype), random(rng, (*filters, *taps), dtype)
    full = tuple(n + k - 1 for n, k in zip(shape, taps, strict=True))
    want = np.fft.ifft2(np.fft.fft2(x, full) * np.fft.fft2(h, full))
    if mode == "circular":
        want = np.fft.ifft2(np.fft.fft2(x) * np.fft.fft2(h))
    elif mode != "full":
        for axis, (n, k) in enumerate(zip(shape, taps, strict=True)):
            start, count = ((k - 1) // 2, n) if mode == "same" else (k - 1, n - k + 1)
            want = np.take(want, range(start, start + count), axis - 2)
    want = want if np.dtype(dtype).kind == "c" else want.real
    out = np.full(want.shape, np.nan, dtype)
    fftconvolve(x, h, mode, axes=(-2, -1), out=out)
    assert relative_error(out, want) < bound(dtype, 256)


@pytest.mark.parametrize(
    ("x", "h", "options", "error"),
    [
        (np.zeros((2, 8), "f4"), np.zeros(8, "f8"), {}, ArgumentTypeError),
        (np.zeros((2, 8), "i4"), np.zeros(8, "i4"), {}, SpecError),
        (np.zeros((2, 8), "f4"), np.zeros((3, 8), "f4"), {}, ArgumentError),
        (np.zeros((2, 8), "f4"), np.zeros(8, "f4"), {"mode": "sideways"}, SpecError),
        (np.zeros((2, 8), "f4"), np.zeros(8, "f4"), {"axes": 0}, SpecError),
        (np.zeros((2, 0), "f4"), np.zeros(8, "f4"), {}, ArgumentError),
        (np.zeros((2, 8), "f4"), np.zeros(9, "f4"), {"mode": "circular"}, SpecError),
        (np.zeros(8, "f4"), np.zeros(8, "f4"), {"out": np.zeros(8, "f4")}, ArgumentError),
        (np.zeros(8, "f4"), np.broadcast_to(np.float32(0), (2**31,)), {}, UnsupportedSizeError),
    ],
)
def test_wrong_calls_are_refused(x, h, options, error):
    with pytest.raises(error):
        fftconvolve(x, h, **options)


@pytest.mark.parametrize(
    ("x_batch", "h_batch", "layout"),
    [((4,), (), "one"), ((2, 3), (3,), "channels"), ((2, 3), (2, 3), "channels"), ((2, 3), (2, 1), "any"),
     ((2, 3, 4), (3, 1), "any"), ((), (5,), "channels"), ((1,), (2, 3), "channels")],
)  # fmt: skip
def test_rows_of_a_broadcast(x_batch, h_batch, layout):
    rule, expand_x, expand_h = broadcast(x_batch, h_batch)
    assert not expand_x
    assert not expand_h
    assert rule.layout == layout
    x_number = np.broadcast_to(np.arange(int(np.prod(x_batch))).reshape(x_batch), rule.shape).reshape(-1)
    h_number = np.broadcast_to(np.arange(int(np.prod(h_batch))).reshape(h_batch), rule.shape).reshape(-1)
    seen = []
    for group in range(rule.groups):
        for member in range(rule.members):
            row = (member // rule.inner * rule.groups + group) * rule.inner + member % rule.inner
            assert h_number[row] == group
            assert x_number[row] == row // rule.x_inner % rule.x_rows
            seen.append(row)
    assert sorted(seen) == list(range(rule.rows))


def test_package_offers_them():
    assert devkernels.fftconvolve is fftconvolve
