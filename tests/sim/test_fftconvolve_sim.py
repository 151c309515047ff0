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


@pytest.mark.parametrize(
    ("rows", "length", "taps", "mode", "dtype", "method"),
    [
        (3, 8, 8, "causal", "float32", "linear"),
        (3, 7, 5, "causal", "float64", "linear"),  # masked: zeros around the row are left alone
        (2, 13, 9, "full", "float32", "linear"),  # tail
        (3, 8, 5, "circular", "float32", "circular"),  # pairs
        (2, 8, 5, "circular", "complex64", "circular"),
        (2, 150, 3, "same", "float32", "overlap"),
        (2, 97, 9, "circular", "complex64", "overlap"),
    ],
)
def test_prologue_and_epilogue(rows, length, taps, mode, dtype, method, rng):
    def gate(value, row, position):
        return value * (row + 1) + position

    def shift(value, row, position):
        return 2 * value + position + 100 * row

    x, h = random(rng, (rows, length), dtype), random(rng, (taps,), dtype)
    plan = make_fftconvolve(length, taps, dtype, mode, prologue=gate, epilogue=shift)
    assert plan.plan.method == method
    numbers = np.arange(rows)[:, None]
    want = 2 * reference(x * (numbers + 1) + np.arange(length), h, mode)
    want += np.arange(want.shape[-1]) + 100 * numbers
    assert relative_error(plan(x, h), want) < bound(dtype, 2 * plan.fft.size)


@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")  # the simulator's, of infinity times zero
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("dtype", "rows", "spoilt"),
    [("complex64", 3, [1]), ("float32", 4, [0, 3]), ("float32", 3, [2]), ("float32", 1, [0])],
)
def test_what_is_not_finite_stays_in_its_row(dtype, rows, spoilt, bad, rng):
    x, h = random(rng, (rows, 8), dtype), random(rng, (8,), dtype)
    x[spoilt, 3] = bad
    got = fftconvolve(x, h, "circular")
    assert not np.isfinite(got[spoilt]).any()
    rest = [row for row in range(rows) if row not in spoilt]
    if rest:
        assert relative_error(got[rest], reference(x[rest], h, "circular")) < bound(dtype, 8)


@pytest.mark.parametrize(
    ("x", "h", "options", "error"),
    [
        (np.zeros((2, 8), "f4"), np.zeros(8, "longdouble"), {}, ArgumentTypeError),
        (np.zeros((2, 8), "f4"), np.zeros(8, "S4"), {}, ArgumentTypeError),
        (np.zeros((2, 8), "f4"), np.zeros((3, 8), "f4"), {}, ArgumentError),
        (np.zeros((2, 8), "f4"), np.zeros(8, "f4"), {"mode": "sideways"}, SpecError),
        (np.zeros((2, 8), "f4"), np.zeros(8, "f4"), {"axes": 2}, SpecError),
        (np.zeros((2, 0), "f4"), np.zeros(8, "f4"), {"out": np.zeros((2, 7), "f4")}, ArgumentError),
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
