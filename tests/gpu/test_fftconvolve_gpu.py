"""Convolution on a GPU: modes, dtypes, lengths, broadcasting, libraries, streams, against SciPy in float64."""

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels.engine.block_fft import block_fft
from devkernels.tolerance import fft_bound, relative_error

cupy = pytest.importorskip("cupy")

COMPUTE = {"float16": "float32", "complex64": "float32", "complex128": "float64"}


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def reference(x, h, mode):
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    x, h = x.astype(wide), h.astype(wide)
    batch = np.broadcast_shapes(x.shape[:-1], h.shape[:-1])
    x = np.broadcast_to(x, (*batch, x.shape[-1]))
    h = np.broadcast_to(h, (*batch, h.shape[-1]))
    n = x.shape[-1]
    if mode in ("full", "same", "valid"):
        return signal.fftconvolve(x, h, mode, axes=-1)
    full = signal.fftconvolve(x, h, "full", axes=-1)
    if mode == "causal":
        return full[..., :n]
    wrapped = full[..., :n].copy()
    wrapped[..., : full.shape[-1] - n] += full[..., n:]
    return wrapped


def bound(dtype, points):
    storage = fft_bound("float16", 2) if dtype == "float16" else 0
    return fft_bound(COMPUTE.get(dtype, dtype), points, 2) + storage


def check(rng, x_shape, h_shape, dtype, mode, function=None):
    x, h = random(rng, x_shape, dtype), random(rng, h_shape, dtype)
    want = reference(x, h, mode)
    out = cupy.full(want.shape, np.nan, dtype=dtype)
    plan = devkernels.make_fftconvolve(x_shape[-1], h_shape[-1], dtype, mode)
    plan(cupy.asarray(x), cupy.asarray(h), out=out)
    error = relative_error(out.get(), want)
    assert error < bound(dtype, 2 * plan.fft.size), (plan, error)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 729, 768, 1000,
                                  1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384])  # fmt: skip
@pytest.mark.parametrize("dtype", ["complex64", "float32"])
def test_circular_lengths(size, dtype, rng):
    check(rng, (37, size), (size,), dtype, "circular")


@pytest.mark.parametrize("size", [8, 64, 100, 256, 512, 768, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_circular_double(size, dtype, rng):
    check(rng, (37, size), (size,), dtype, "circular")


@pytest.mark.parametrize("mode", ["full", "same", "valid", "circular", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("length", "taps"), [(1, 1), (2, 1), (97, 97), (449, 31), (1000, 1000), (1001, 64), (30011, 511)]
)
def test_modes_and_dtypes(mode, dtype, length, taps, rng):
    check(rng, (3, length), (taps,), dtype, mode)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(
    ("length", "taps"), [(5, 64), (64, 65), (300, 4001), (1, 7), (300000, 2), (300000, 5000), (40000, 30001)]
)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_long_filters_and_long_rows(mode, dtype, length, taps, rng):
    check(rng, (2, length), (taps,), dtype, mode)


@pytest.mark.parametrize("length", [256, 512, 1024, 2048, 4096, 8192, 16384])
def test_causal_with_a_filter_per_channel(length, rng):
    check(rng, (5, 6, length), (6, length), "float32", "causal")


@pytest.mark.parametrize(
    ("x_batch", "h_batch"),
    [((), ()), ((4,), ()), ((4, 3), (3,)), ((4, 3), (4, 1)), ((4, 1), (3,)), ((3,), (4, 3)), ((2, 1, 3), (1, 5, 1)),
     ((2, 3), (2, 3)), ((1, 3), (2, 1))],
)  # fmt: skip
@pytest.mark.parametrize(("mode", "length", "taps"), [("causal", 64, 64), ("circular", 64, 9), ("same", 700, 9)])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_broadcasting(x_batch, h_batch, mode, length, taps, dtype, rng):
    check(rng, (*x_batch, length), (*h_batch, taps), dtype, mode)


def test_hundred_thousand_rows(rng):
    check(rng, (100003, 24), (24,), "float32", "causal")


def test_many_filters(rng):
    check(rng, (3000, 64), (3000, 64), "complex64", "circular")


@pytest.mark.parametrize("offset", [0.0, -0.25, 0.4])
@pytest.mark.parametrize(
    ("size", "precision"), [(64, "float32"), (96, "float32"), (1024, "float64"), (4096, "float32")]
)
def test_block_fft_in_a_kernel_of_ones_own(size, precision, offset, rng):
    from numba import cuda

    f = block_fft(size, precision, frequency_offset=offset)
    elements, dtype, load, store, forward = f.elements_per_thread, f.dtype, f.load, f.store, f.forward
    inverse, per_block = f.inverse, f.ffts_per_block

    @devkernels.kernel
    def spectrum(x, back, out):
        data = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        row = cuda.blockIdx.x * per_block + cuda.threadIdx.y
        base = row * size + cuda.threadIdx.x
        load(data, x, base)
        forward(data, shared)
        store(data, out, base)
        inverse(data, shared)
        store(data, back, base)

    rows = 2 * f.ffts_per_block
    x = random(rng, (rows, size), dtype.name)
    out, back = cupy.full((rows, size), np.nan, dtype), cupy.full((rows, size), np.nan, dtype)
    spectrum[f.launch(rows=rows)](cupy.asarray(x).reshape(-1), back.reshape(-1), out.reshape(-1))
    turned = x.astype(np.complex128) * np.exp(-2j * np.pi * offset * np.arange(size) / size)
    assert relative_error(out.get(), f.order_filter(np.fft.fft(turned))) < fft_bound(precision, size)
    assert relative_error(back.get() / size, x) < fft_bound(precision, size, 2)


def test_nan_and_infinity_stay_in_their_row(rng):
    x, h = random(rng, (6, 1000), "float32"), random(rng, (1000,), "float32")
    x[1, 500], x[4, 3] = np.nan, np.inf
    got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), "causal").get()
    rest = [0, 2, 3, 5]
    assert relative_error(got[rest], reference(x[rest], h, "causal")) < bound("float32", 2048)
    assert not np.isfinite(got[1]).any()
    assert not np.isfinite(got[4]).any()


def test_arrays_that_are_not_contiguous_are_copied(rng):
    x, h = random(rng, (64, 12), "float32"), random(rng, (12,), "float32")
    got = devkernels.fftconvolve(cupy.asarray(x)[::2, ::-1], cupy.asarray(h)[::-1], "full").get()
    assert relative_error(got, reference(x[::2, ::-1], h[::-1], "full")) < bound("float32", 64)


def test_numpy_and_torch(rng):
    torch = pytest.importorskip("torch")
    x, h = random(rng, (4, 3, 512), "float32"), random(rng, (3, 512), "float32")
    want = reference(x, h, "causal")
    got = devkernels.fftconvolve(x, h, "causal")
    assert isinstance(got, np.ndarray)
    assert relative_error(got, want) < bound("float32", 1024)
    got = devkernels.fftconvolve(torch.from_numpy(x).cuda(), torch.from_numpy(h).cuda(), "causal")
    assert got.is_cuda
    assert relative_error(got.cpu().numpy(), want) < bound("float32", 1024)


def test_streams_and_graphs(rng):
    x, h = random(rng, (64, 1024), "complex64"), random(rng, (1024,), "complex64")
    plan = devkernels.make_fftconvolve(1024, 1024, "complex64", "circular")
    rows, spectra = cupy.asarray(x), plan.prepare(cupy.asarray(h))
    out = cupy.full(x.shape, np.nan, "complex64")
    plan(rows, spectra=spectra, out=out)
    cupy.cuda.Device().synchronize()
    out.fill(np.nan)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        plan(rows, spectra=spectra, out=out)
        graph = stream.end_capture()
    cupy.cuda.Device().synchronize()
    assert np.isnan(out.get()).all()  # captured, not run
    graph.launch(stream)
    stream.synchronize()
    assert relative_error(out.get(), reference(x, h, "circular")) < bound("complex64", 1024)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_oaconvolve_and_correlate(mode, dtype, rng):
    x, h = random(rng, (3, 5000), dtype), random(rng, (77,), dtype)
    got = devkernels.oaconvolve(cupy.asarray(x), cupy.asarray(h), mode).get()
    assert relative_error(got, reference(x, h, mode)) < bound(dtype, 4096)
    got = devkernels.correlate(cupy.asarray(x), cupy.asarray(h), mode).get()
    wide = np.complex128 if dtype == "complex64" else np.float64
    want = np.array([signal.correlate(row.astype(wide), h.astype(wide), mode) for row in x])
    assert relative_error(got, want) < bound(dtype, 4096)


def test_memory_beyond_input_and_output_is_small():
    pool = cupy.get_default_memory_pool()
    x = cupy.ones((4, 1 << 24), cupy.float32)
    h = cupy.ones((511,), cupy.float32)
    plan = devkernels.make_fftconvolve(1 << 24, 511, "float32", "same")
    out = cupy.empty_like(x)
    before = pool.used_bytes()
    spectra = plan.prepare(h)
    plan(x, spectra=spectra, out=out)
    assert pool.used_bytes() - before < x.nbytes / 100


def test_tuning_measures_once_and_is_kept(rng, monkeypatch, tmp_path):
    from devkernels import cache
    from devkernels.engine import choose, tune

    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        tune, "candidates", lambda size, word: [choose.choose(size, word), choose.Choice((16, 4), 16, 16)]
    )
    cache.forget()
    found = block_fft(64, tune=True)
    monkeypatch.setattr(tune, "measure", None)  # a second measurement would fail
    cache.forget()
    assert block_fft(64, tune=True).plan == found.plan
