"""Plans whose stages take different numbers of threads: against float64, in the simulator."""

import numpy as np
import pytest

from devkernels.engine import choose, tune
from devkernels.engine.block_fft import block_fft
from devkernels.engine.plan_search import make_plan
from devkernels.errors import SpecError
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolver import FFTConvolve
from devkernels.kernels.spectral_filter import make_spectral_filter
from devkernels.tolerance import fft_bound, relative_error

pytestmark = pytest.mark.sim

PLANS = {
    (20, 8): choose.Choice((4, 5), (4, 5), 3),  # the block's 15 threads are those of the first stage
    (24, 8): choose.Choice((6, 4), (6, 4), 2),  # ... of the last
    (48, 8): choose.Choice((3, 4, 4), (6, 8, 8), 2, None, True, pairs=True),
    (24, 16): choose.Choice((4, 6), (4, 6), 1),
}


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    """Lengths for which the table says so."""
    for key, choice in PLANS.items():
        monkeypatch.setitem(choose.UNEVEN, key, choice)


def numbers(rng, shape, dtype):
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    real = np.float32 if dtype == "complex64" else np.float64
    return rng.standard_normal((*shape, 2)).astype(real).view(dtype)[..., 0]


def gate(value, row, place):
    return value * (1 + row)


def shift(value, row, place):
    return value + place


def convolver(mode, length, dtype, *functions):
    plan = FFTConvolve(convolve_plan.plan_rows(mode, length, length, dtype), dtype, mode, *functions)
    assert plan.fft.uneven
    return plan


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(
    ("length", "dtype"),
    [(20, "complex64"), (24, "complex64"), (48, "complex64"), (24, "complex128"), (20, "float32"), (48, "float32")],
)
def test_circular(length, dtype, rows, rng):
    plan = convolver("circular", length, dtype, gate, shift)
    x, h = numbers(rng, (rows, length), dtype), numbers(rng, (length,), dtype)
    out = np.full_like(x, np.nan)
    plan(x, h, out=out)
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    scaled = x.astype(wide) * (1 + np.arange(rows))[:, None]
    want = np.fft.ifft(np.fft.fft(scaled) * np.fft.fft(h.astype(wide))) + np.arange(length)
    assert relative_error(out, want if dtype.startswith("complex") else want.real) <= fft_bound(
        plan.fft.dtype, length, 2
    )


@pytest.mark.parametrize(("length", "mode"), [(24, "causal"), (48, "full"), (21, "same")])
def test_linear_with_a_filter_for_each_channel(length, mode, rng):
    plan = convolver(mode, length, "float32")
    x, h = numbers(rng, (3, 2, length), "float32"), numbers(rng, (2, length), "float32")
    got = plan(x, h)
    full = np.array([[np.convolve(a, b) for a, b in zip(two, h.astype(np.float64), strict=True)] for two in x])
    start, window = convolve_plan.window(mode, length, length)
    assert relative_error(got, full[..., start : start + window]) <= fft_bound("float32", 2 * length, 2)


@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")  # the simulator's, of infinity times zero
def test_what_is_not_finite_stays_in_its_row(rng):
    plan = convolver("circular", 20, "float32")
    x, h = numbers(rng, (5, 20), "float32"), numbers(rng, (20,), "float32")
    x[1, 7], x[4, 0] = np.nan, np.inf
    got = plan(x, h)
    assert np.isnan(got[[1, 4]]).all()
    want = np.fft.ifft(np.fft.fft(x[[0, 2, 3]].astype(np.float64)) * np.fft.fft(h.astype(np.float64))).real
    assert relative_error(got[[0, 2, 3]], want) <= fft_bound("float32", 20, 2)


@pytest.mark.parametrize(("size", "dtype"), [(20, "complex64"), (48, "float32")])
def test_spectral_filter(size, dtype, rng):
    real = dtype.startswith("float")
    x = numbers(rng, (5, size), dtype)
    h = numbers(rng, (size // 2 + 1 if real else size,), "complex64")
    if real:
        h[[0, -1]] = h[[0, -1]].real
    got = make_spectral_filter(size, dtype)(x, h)
    there, back = (np.fft.rfft, np.fft.irfft) if real else (np.fft.fft, np.fft.ifft)
    want = back(there(x.astype(np.float64 if real else np.complex128)) * h)
    assert relative_error(got, want) <= fft_bound(dtype, size, 2)


def test_only_kernels_that_ask_get_them():
    fft = block_fft(24)
    assert not fft.uneven
    assert (
        block_fft(24, uneven=True).plan.describe().startswith("24 = 6 * 4; threads of so many elements in each stage")
    )


def test_order_of_spectra(rng):
    fft = block_fft(48, uneven=True)
    spectrum = numbers(rng, (48,), "complex64")
    ordered = fft.order_filter(spectrum)
    threads, share = fft.spectrum_index.shape
    assert (threads, share) == (6, 8)
    assert all(
        ordered[thread + slot * threads] == spectrum[fft.spectrum_index[thread, slot]]
        for thread in range(threads)
        for slot in range(share)
    )


@pytest.mark.parametrize(
    ("radices", "shares", "columns"), [((4, 6), (4, 5), False), ((4, 6), (4,), False), ((4, 6), (4, 6), True)]
)
def test_shares_that_do_not_fit_are_refused(radices, shares, columns):
    with pytest.raises(SpecError):
        make_plan(radices, shares, columns=columns)


@pytest.mark.parametrize("size", [24, 60])
def test_the_kernel_by_which_plans_are_measured(size, rng):
    """Every uneven candidate, through the kernel of `tune`: a filter of ones gives back the rows."""
    dtype = np.dtype("complex64")
    x = numbers(rng, (7, size), "complex64")
    tried = [choice for choice in tune.candidates(size, 8, uneven=True) if isinstance(choice.elements, tuple)]
    assert len(tried) > 2
    for choice in tried:
        fft = tune.planned(choice, dtype)
        y = np.full_like(x, np.nan)
        ones = np.full(size, 1 / size, dtype)
        tune.round_trip_kernel(fft)[fft.launch(rows=7)](x.reshape(-1), ones, y.reshape(-1), 7)
        assert relative_error(y, x) < fft_bound("float32", size, 2), choice
