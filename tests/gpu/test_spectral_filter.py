"""The spectral filter on a GPU: sizes, dtypes, libraries, streams."""

import numpy as np
import pytest

from devkernels import make_spectral_filter, reference, spectral_filter
from devkernels.errors import ArgumentError, DeviceMismatchError, ResourceError
from devkernels.tolerance import fft_bound, relative_error
from tests.filter_cases import FILTER_DTYPE, bins, random

cupy = pytest.importorskip("cupy")


def poisoned(shape, dtype):
    return cupy.full(shape, np.nan, dtype=dtype)


@pytest.mark.parametrize("dtype", FILTER_DTYPE)
@pytest.mark.parametrize("size", [5, 64, 100, 1000, 1024, 4096])
@pytest.mark.parametrize("per_row", [False, True])
def test_against_numpy(dtype, size, per_row, rng):
    x, H = (
        random(rng, (3, 11, size), dtype),
        random(rng, ((3, 11) if per_row else ()) + (bins(size, dtype),), FILTER_DTYPE[dtype]),
    )
    there, h, out = cupy.asarray(x), cupy.asarray(H), poisoned(x.shape, dtype)
    y = make_spectral_filter(size, dtype)(there, h, out=out)
    assert y is out
    assert bool((there == cupy.asarray(x)).all())
    assert relative_error(y.get(), reference.spectral_filter(x, H)) < fft_bound(dtype, size, 2)


@pytest.mark.parametrize("size", [8192, 16384])
def test_large_blocks_opt_in_to_shared_memory(size, rng):
    x, H = random(rng, (9, size), "complex64"), random(rng, size, "complex64")
    y = spectral_filter(cupy.asarray(x), cupy.asarray(H))
    assert relative_error(y.get(), reference.spectral_filter(x, H)) < fft_bound("complex64", size, 2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
def test_device_function(dtype, rng):
    def op(X, k):
        return X * X.conjugate() / (1 + k)

    n = 128
    x = random(rng, (50, n), dtype) / 16
    transform, back = (np.fft.rfft, np.fft.irfft) if dtype.startswith("float") else (np.fft.fft, np.fft.ifft)
    X = transform(x.astype(np.float64 if dtype.startswith("float") else np.complex128))
    want = back(X * X.conj() / (1 + np.arange(X.shape[-1])), n)
    assert relative_error(spectral_filter(cupy.asarray(x), op).get(), want) < fft_bound(dtype, n, 3)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_real_filter_and_padding(dtype, rng):
    n = 97
    x, H = random(rng, (40, n), dtype), random(rng, bins(100, dtype), "float32")
    y = spectral_filter(cupy.asarray(x), cupy.asarray(H), fft_size=100)
    assert relative_error(y.get(), reference.spectral_filter(x, H, 100)) < fft_bound(dtype, 100, 2)


def test_strided_rows(rng):
    wide, H = random(rng, (60, 200), "complex64"), random(rng, 64, "complex64")
    out = poisoned((60, 100), "complex64")
    spectral_filter(cupy.asarray(wide)[:, 8:72], cupy.asarray(H), out=out[:, 3:67])
    assert relative_error(out[:, 3:67].get(), reference.spectral_filter(wide[:, 8:72], H)) < fft_bound(
        "complex64", 64, 2
    )
    assert bool(cupy.isnan(out[:, :3]).all())
    assert bool(cupy.isnan(out[:, 67:]).all())


def test_numpy_in_numpy_out(rng):
    x, H = random(rng, (20, 256), "float32"), random(rng, 129, "complex64")
    kept = x.copy()
    y = spectral_filter(x, H)
    assert isinstance(y, np.ndarray)
    assert np.array_equal(x, kept)
    assert relative_error(y, reference.spectral_filter(x, H)) < fft_bound("float32", 256, 2)


def test_torch_in_torch_out_on_its_stream(rng):
    torch = pytest.importorskip("torch")
    x, H = random(rng, (200, 512), "float32"), random(rng, 257, "complex64")
    there, h = torch.from_numpy(x).cuda(), torch.from_numpy(H).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = spectral_filter(there * 1.0, h)
    side.synchronize()
    assert isinstance(y, torch.Tensor)
    assert y.device == there.device
    assert relative_error(y.cpu().numpy(), reference.spectral_filter(x, H)) < fft_bound("float32", 512, 2)


def test_given_stream_orders_the_work(rng):
    x, H = random(rng, (4000, 512), "complex64"), random(rng, 512, "complex64")
    there, h = cupy.asarray(x), cupy.asarray(H)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        slow = cupy.zeros_like(there)
        for _ in range(20):
            slow += there  # the filter must wait for this
        y = spectral_filter(slow, h)
    out = poisoned(x.shape, "complex64")
    spectral_filter(slow, h, out=out, stream=stream)
    stream.synchronize()
    want = reference.spectral_filter(20 * x, H)
    bound = fft_bound("complex64", 512, 2) + 20 * 2.0**-24
    assert relative_error(y.get(), want) < bound
    assert relative_error(out.get(), want) < bound


@pytest.mark.parametrize(("dtype", "n"), [("complex64", 1024), ("complex64", 96), ("complex128", 512)])
def test_device_function_gets_natural_frequencies(dtype, n, rng):
    def op(X, k):
        return X * (k + 1j)

    x = random(rng, (77, n), dtype)
    want = np.fft.ifft(np.fft.fft(x.astype(np.complex128)) * (np.arange(n) + 1j))
    assert relative_error(spectral_filter(cupy.asarray(x), op).get(), want) < fft_bound(dtype, n, 2)


@pytest.mark.parametrize("n", [96, 1000, 1024, 4096])
def test_half_precision_complex_rows(n, rng):
    x, H = random(rng, (33, n, 2), "float16"), random(rng, n, "complex64")
    y = make_spectral_filter(n, "complex32")(cupy.asarray(x), cupy.asarray(H)).get().astype(np.float64)
    wide = x[..., 0].astype(np.float64) + 1j * x[..., 1].astype(np.float64)
    assert relative_error(y[..., 0] + 1j * y[..., 1], reference.spectral_filter(wide, H)) < fft_bound("float16", n, 2)


@pytest.mark.parametrize("n", [64, 1024, 4096])
def test_bad_rows_do_not_spoil_their_partners_even_in_place(n, rng):
    x, H = random(rng, (33, n), "float32"), random(rng, n // 2 + 1, "complex64")
    x[10, 3], x[32, 0], x[21, n - 1] = np.nan, np.inf, -np.inf
    there = cupy.asarray(x)
    assert spectral_filter(there, cupy.asarray(H), out=there) is there
    good = np.setdiff1d(np.arange(33), [10, 21, 32])
    got = there.get()
    assert relative_error(got[good], reference.spectral_filter(x[good], H)) < fft_bound("float32", n, 2)
    assert not np.isfinite(got[[10, 21, 32]]).any()


def test_nan_and_inf_stay_in_their_row(rng):
    x, H = random(rng, (64, 128), "float32"), random(rng, 65, "complex64")
    x[10, 3], x[40, 0] = np.nan, np.inf
    y = spectral_filter(cupy.asarray(x), cupy.asarray(H)).get()
    good = np.setdiff1d(np.arange(64), [10, 40])
    assert relative_error(y[good], reference.spectral_filter(x[good], H)) < fft_bound("float32", 128, 2)
    assert not np.isfinite(y[[10, 40]]).all(axis=1).any()


def test_refusals_leave_out_untouched(rng):
    x, H = cupy.asarray(random(rng, (4, 64), "complex64")), cupy.asarray(random(rng, 64, "complex64"))
    plan = make_spectral_filter(64, "complex64")
    for call, error, words in (
        (lambda out: plan(x, H.get(), out=out), DeviceMismatchError, "numpy"),
        (lambda out: plan(x[:, ::-1], H, out=out), ArgumentError, "contiguous"),
        (lambda out: plan(x, H[1:], out=out), ArgumentError, "63"),
    ):
        out = poisoned((4, 64), "complex64")
        with pytest.raises(error, match=words):
            call(out)
        assert bool(cupy.isnan(out).all())
    with pytest.raises(ResourceError, match="ffts_per_block <="):
        make_spectral_filter(4096, "complex64", ffts_per_block=64)


@pytest.mark.parametrize("batch", [(40,), (4, 10), ()])
def test_repeated_calls_take_new_data_and_check_again(batch, rng):
    plan, n = make_spectral_filter(64, "complex64"), 64
    H = random(rng, n, "complex64")
    for _ in range(3):
        x = random(rng, (*batch, n), "complex64")
        want, bound = reference.spectral_filter(x, H), fft_bound("complex64", n, 2)
        assert relative_error(plan(cupy.asarray(x), cupy.asarray(H)).get(), want) < bound
        there, y = cupy.asarray(x), cupy.full(x.shape, cupy.nan, x.dtype)
        assert plan(there, cupy.asarray(H), out=y) is y
        assert relative_error(y.get(), want) < bound
        assert plan(there, cupy.asarray(H), out=there) is there
        assert relative_error(there.get(), want) < bound
    memory = cupy.full(x.size + 16, cupy.nan, x.dtype)
    beside = memory[16:].reshape(x.shape)
    with pytest.raises(ArgumentError, match="overlaps x"):
        plan(memory[: x.size].reshape(x.shape), cupy.asarray(H), out=beside)
    assert cupy.isnan(memory).all()
    with pytest.raises(ArgumentError, match="contiguous"):
        plan(cupy.asarray(random(rng, (*batch, 2 * n), "complex64"))[..., ::2], cupy.asarray(H))
    with pytest.raises(ArgumentError, match="H has shape"):
        plan(cupy.asarray(x), cupy.asarray(H)[:-1])


def test_gradients_are_refused_in_words():
    torch = pytest.importorskip("torch")
    x, h = torch.ones(4, 64, device="cuda", requires_grad=True), torch.ones(33, device="cuda")
    with pytest.raises(ArgumentError, match="detach"):
        spectral_filter(x, h)
    with torch.no_grad():
        assert torch.allclose(spectral_filter(x, h), x, atol=1e-6)
