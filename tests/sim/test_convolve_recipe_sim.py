"""A convolution's second call with arrays like those of the first goes straight to its launches."""

import numpy as np
import pytest
from scipy import signal

from devkernels import make_fftconvolve
from devkernels.errors import ArgumentError
from devkernels.kernels import arrays, convolve_plan, convolve_recipe
from devkernels.kernels.convolver import FFTConvolve
from devkernels.kernels.fftconvolve import fftconvolve
from devkernels.kernels.fftconvolve2d import make_fftconvolve2d
from devkernels.tolerance import fft_bound, relative_error


@pytest.fixture
def device_arrays(monkeypatch):
    """NumPy arrays that pass for arrays on a GPU: the launches of the simulator take them as they are."""

    def known(array):
        contiguous, start = array.flags.c_contiguous, array.ctypes.data
        mark = arrays.Fingerprint("cupy", array.dtype, array.shape, 0, contiguous, start % 16)
        return arrays.Known(mark, start, start + array.nbytes)

    monkeypatch.setattr(arrays, "known", known)
    monkeypatch.setattr(convolve_recipe, "_address", lambda array: array.ctypes.data)


def forbid_checks(monkeypatch):
    def describe(*_, **__):
        raise AssertionError("an array was looked at again")

    monkeypatch.setattr(arrays, "describe", describe)


@pytest.mark.parametrize("given", ["filter", "spectra"])
@pytest.mark.parametrize(("length", "taps", "mode"), [(16, 16, "causal"), (40, 5, "same")])
def test_second_call_checks_nothing_and_reads_new_data(given, length, taps, mode, rng, device_arrays, monkeypatch):
    plan = make_fftconvolve(length, taps, "float32", mode, method="overlap" if mode == "same" else None)
    x, h = (rng.standard_normal((3, n)).astype("float32") for n in (length, taps))
    spectra = plan.prepare(h)
    operands = {"h": h} if given == "filter" else {"spectra": spectra}
    out = np.full_like(x, np.nan)
    plan(x, **operands, out=out)
    x[:] = rng.standard_normal(x.shape)
    out[:] = np.nan
    with monkeypatch.context() as patch:
        forbid_checks(patch)
        patch.setattr(arrays, "empty", lambda like, shape, dtype: np.full(shape, np.nan, dtype))
        assert plan(x, **operands, out=out) is out
    full = np.stack([np.convolve(a.astype(float), b) for a, b in zip(x, h, strict=True)])
    want = full[:, :length] if mode == "causal" else full[:, (taps - 1) // 2 :][:, :length]
    assert relative_error(out, want) < fft_bound("float32", 2 * plan.fft.size, 2)


def test_arrays_unlike_those_before_are_checked(rng, device_arrays):
    plan = make_fftconvolve(16, 16, "float32", "causal")
    x, h = rng.standard_normal((2, 4, 16)).astype("float32")
    spectra = plan.prepare(h)
    plan(x, spectra=spectra, out=np.empty_like(x))
    memory = np.empty(200, "float32")
    first, second = memory[:64].reshape(4, 16), memory[32:96].reshape(4, 16)
    first[:] = x
    plan(first, spectra=spectra, out=memory[100:164].reshape(4, 16))
    with pytest.raises(ArgumentError, match="overlaps"):
        plan(first, spectra=spectra, out=second)
    with pytest.raises(ArgumentError, match="not contiguous"):
        plan(x, spectra=spectra, out=np.empty((4, 32), "float32")[:, ::2])
    with pytest.raises(ArgumentError, match="last axis must be 16"):
        plan(x[:, :8], spectra=spectra)


@pytest.mark.parametrize("given", ["filter", "spectra"])
@pytest.mark.parametrize("mode", ["circular", "same"])
def test_second_call_with_images_checks_nothing(given, mode, rng, device_arrays, monkeypatch):
    plan = make_fftconvolve2d((6, 4), (3, 2), "float32", mode)
    x, h = rng.standard_normal((5, 6, 4)).astype("float32"), rng.standard_normal((3, 2)).astype("float32")
    operands, out = {"h": h} if given == "filter" else {"spectra": plan.prepare(h)}, np.full_like(x, np.nan)
    plan(x, **operands, out=out)
    x[:] = rng.standard_normal(x.shape)
    if given == "filter":
        h[:] = rng.standard_normal(h.shape)
    out[:] = np.nan
    with monkeypatch.context() as patch:
        forbid_checks(patch)
        patch.setattr(arrays, "temporary", lambda kept, like, shape, dtype: np.zeros(shape, dtype))
        assert plan(x, **operands, out=out) is out
    if mode == "same":
        want = signal.fftconvolve(x.astype(float), h[None], "same", axes=(1, 2))
    else:
        want = np.fft.ifft2(np.fft.fft2(x) * np.fft.fft2(h, x.shape[1:])).real
    assert relative_error(out, want) < fft_bound("float32", 64, 2)


def test_second_call_with_a_long_filter_checks_nothing(rng, device_arrays, monkeypatch):
    monkeypatch.setattr(convolve_plan, "_four_step_sizes", lambda precision: [32])
    monkeypatch.setattr(convolve_plan, "factors", lambda points, precision: (8, points // 8))
    common = dict(length=20, taps=13, start=0, window=32, precision="float32")
    plan = FFTConvolve(convolve_plan.four_step(common, "complex64", False), "complex64", "full")
    x, h = (rng.standard_normal((2, n)).view("complex128").astype("complex64") for n in (40, 26))
    spectra, out = plan.prepare(h), np.full((2, 32), np.nan, "complex64")
    plan(x, spectra=spectra, out=out)
    x[:] = x[::-1].copy()
    out[:] = np.nan
    with monkeypatch.context() as patch:
        forbid_checks(patch)
        patch.setattr(arrays, "empty", lambda like, shape, dtype: np.full(shape, np.nan, dtype))
        assert plan(x, spectra=spectra, out=out) is out
    want = np.stack([np.convolve(a.astype(complex), b) for a, b in zip(x, h, strict=True)])
    assert relative_error(out, want) < fft_bound("complex64", 64, 2)


@pytest.mark.parametrize(("axes", "shape", "taps"), [(-1, (3, 16), (3, 5)), ((-2, -1), (2, 5, 4), (2, 2))])
def test_public_function_remembers_plans(axes, shape, taps, rng, device_arrays, monkeypatch):
    x, h = rng.standard_normal(shape).astype("float32"), rng.standard_normal(taps).astype("float32")
    out, axis = np.full_like(x, np.nan), axes
    fftconvolve(x, h, "same", axis, out=out)
    x[:], out[:] = rng.standard_normal(shape), np.nan
    with monkeypatch.context() as patch:
        forbid_checks(patch)
        patch.setattr(arrays, "temporary", lambda kept, like, shape, dtype: np.zeros(shape, dtype))
        assert fftconvolve(x, h, "same", axis, out=out) is out
    filters = h if h.ndim == x.ndim else h[None]
    want = signal.fftconvolve(x.astype(float), filters, "same", axes=axes)
    assert relative_error(out, want) < fft_bound("float32", 64, 2)
    full = fftconvolve(x, h, "full", axis)  # another mode is another plan
    assert full.shape == signal.fftconvolve(x, filters, "full", axes=axes).shape
