"""Convolution on a GPU: modes, dtypes, lengths, broadcasting, libraries, streams, against SciPy in float64."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels.engine import choose
from devkernels.engine.block_fft import block_fft
from devkernels.tolerance import fft_bound, relative_error
from tests.convolution_cases import bound, error, random, reference

cupy = pytest.importorskip("cupy")


def check(rng, x_shape, h_shape, dtype, mode, function=None):
    x, h = random(rng, x_shape, dtype), random(rng, h_shape, dtype)
    want = reference(x, h, mode)
    out = cupy.full(want.shape, np.nan, dtype=dtype)
    plan = devkernels.make_fftconvolve(x_shape[-1], h_shape[-1], dtype, mode)
    plan(cupy.asarray(x), cupy.asarray(h), out=out)
    found = error(out.get(), want, x, h, mode)
    assert found < bound(dtype, 2 * plan.plan.size), (plan, found)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 729, 768, 1000,
                                  1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384])  # fmt: skip
@pytest.mark.parametrize("dtype", ["complex64", "float32"])
def test_circular_lengths(size, dtype, rng):
    check(rng, (37, size), (size,), dtype, "circular")


@pytest.mark.parametrize("size", sorted(size for size, words in choose.UNEVEN if words == 8))
@pytest.mark.parametrize(
    ("mode", "dtype"), [("circular", "complex64"), ("circular", "float32"), ("causal", "float32"), ("full", "float16")]
)
def test_stages_of_different_numbers_of_threads(size, mode, dtype, rng):
    """Lengths with plans of their own: many blocks, rows that do not fill the last one, what is not finite."""
    check(rng, (37, 3, size), (3, size), dtype, mode)
    check(rng, (601, size), (size,), dtype, mode)
    check(rng, (1, size - 1), (size - 3,), dtype, mode)
    if mode == "circular":
        x, h = random(rng, (9, size), dtype), random(rng, (size,), dtype)
        want = reference(x, h, mode)
        x[4, 1] = np.nan
        got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), mode).get()
        assert np.isnan(got[4]).all()
        others = [0, 1, 2, 3, 5, 6, 7, 8]
        assert error(got[others], want[others], np.nan_to_num(x), h, mode) < bound(dtype, 2 * size)


@pytest.mark.parametrize("length", [512, 16384])
@pytest.mark.parametrize("start", [0, 1])
def test_blocks_with_many_rows_and_rows_beside_sixteen_bytes(length, start, rng):
    """Rows of 16384 are fetched ahead by one block for each multiprocessor; rows of 512 move 16 bytes at a time."""
    rows = 700
    x, h = random(rng, (rows, length), "complex64"), random(rng, (length,), "complex64")
    area, into = (cupy.full(rows * length + 1, np.nan, "complex64") for _ in range(2))
    there, out = (array[start : start + rows * length].reshape(rows, length) for array in (area, into))
    assert there.data.ptr % 16 == 8 * start
    there[...] = cupy.asarray(x)
    plan, want = devkernels.make_fftconvolve(length, length, "complex64", "circular"), reference(x, h, "circular")
    for target in (out, there, out):  # the last call takes the quick way; in place is allowed where rows are whole
        there[...] = cupy.asarray(x)
        plan(there, cupy.asarray(h), out=target)
        assert error(target.get(), want, x, h, "circular") < bound("complex64", 2 * length)


@pytest.mark.parametrize("size", [8, 64, 100, 256, 512, 768, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_circular_double(size, dtype, rng):
    check(rng, (37, size), (size,), dtype, "circular")


@pytest.mark.parametrize("mode", ["full", "same", "valid", "circular", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("length", "taps"),
    [(1, 1), (2, 1), (97, 97), (449, 31), (1000, 1000), (1001, 64), (16384, 449), (30011, 511), (300000, 97)],
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("mode", "dtype", "length", "taps"),
    [("causal", "float32", 1000, 1000), ("circular", "complex64", 256, 256), ("same", "float32", 5000, 63)]
    # real rows on a circle go two at a time, through warps' barriers, blocks', several rows in a block, or none
    + [("circular", dtype, n, n) for n in (8, 64, 256, 768, 1000, 2048, 4096) for dtype in ("float32", "float64")]
    + [("circular", "float16", 256, 256), ("circular", "float32", 16384, 9)],
)
def test_what_is_not_finite_stays_in_its_row(bad, mode, dtype, length, taps, rng):
    x, h = random(rng, (70, length), dtype), random(rng, (taps,), dtype)
    spoilt = [1, 4, 5, 64, 69]
    x[spoilt, rng.integers(length, size=len(spoilt))] = bad
    got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), mode).get()
    rest = [row for row in range(len(x)) if row not in spoilt]
    want = reference(x[rest], h, mode)
    assert error(got[rest], want, x[rest], h, mode) < bound(dtype, 2 * max(length, 4096))
    assert all((~np.isfinite(got[row])).any() for row in spoilt)
    if mode != "same":
        assert not np.isfinite(got[spoilt]).any()


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16"])
@pytest.mark.parametrize(
    ("length", "taps", "mode"),
    [(1000, 1000, "causal"), (700, 300, "full"), (512, 100, "circular"), (997, 31, "circular"), (30011, 511, "same")],
)
def test_prologue_and_epilogue(length, taps, mode, dtype, rng):
    def gate(value, row, position):
        return value * (row + 1) if position % 2 else -value

    def scale(value, row, position):
        return value * (2 if position % 3 else 1)

    x, h = random(rng, (5, length), dtype), random(rng, (taps,), dtype)
    x, h = x / x.dtype.type(8), h / h.dtype.type(8)
    plan = devkernels.make_fftconvolve(length, taps, dtype, mode, prologue=gate, epilogue=scale)
    factors = np.where(np.arange(length) % 2, np.arange(1, 6)[:, None], -1)
    gated = x * factors.astype(x.real.dtype)
    want = reference(gated, h, mode)
    want = want * np.where(np.arange(want.shape[-1]) % 3, 2, 1)
    got = plan(cupy.asarray(x), cupy.asarray(h)).get()
    assert error(got, want, gated, h, mode) < bound(dtype, 2 * plan.plan.size)


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


@pytest.mark.parametrize(("rows", "length"), [(64, 1 << 20), (1, 1 << 26)])
def test_memory_beyond_input_and_output_is_small(rows, length, rng):
    pool = cupy.get_default_memory_pool()
    x = cupy.asarray(random(rng, (1 << 20,), "float32"))
    x = cupy.broadcast_to(cupy.resize(x, length), (rows, length)).copy()
    h = random(rng, (511,), "float32")
    taps, out = cupy.asarray(h), cupy.full_like(x, np.nan)
    pool.free_all_blocks()
    before = pool.total_bytes()
    devkernels.oaconvolve(x, taps, "same", out=out)
    assert pool.total_bytes() - before < x.nbytes / 100
    assert not bool(cupy.isnan(out).any())
    for start in (0, length // 2 - 5000, length - 10000):  # windows of the row, with their neighbours
        low, high = max(0, start - 255), min(length, start + 10000 + 255)
        part = x[-1, low:high].get()
        want = reference(part, h, "same")[start - low : start - low + 10000]
        assert relative_error(out[-1, start : start + 10000].get(), want) < bound("float32", 16384)


@pytest.mark.parametrize("given", ["filter", "spectra"])
def test_a_graph_keeps_its_memory(given, rng):
    x, h = random(rng, (64, 1024), "float32"), random(rng, (1024,), "float32")
    plan = devkernels.make_fftconvolve(1024, 1024, "float32", "causal")
    rows, taps = cupy.asarray(x), cupy.asarray(h)
    operands = {"h": taps} if given == "filter" else {"spectra": plan.prepare(taps)}
    out = cupy.full(x.shape, np.nan, "float32")
    plan(rows, **operands, out=out)
    out.fill(np.nan)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        plan(rows, **operands, out=out)
        graph = stream.end_capture()
        others = [cupy.full(1 << size, 7, "float32") for size in range(8, 20)]  # none may be the graph's memory
        graph.launch()
        stream.synchronize()
    assert all(bool((other == 7).all()) for other in others)
    assert relative_error(out.get(), reference(x, h, "causal")) < bound("float32", 2048)


def test_a_given_stream_is_followed(rng):
    x, h = random(rng, (8, 3, 4096), "float32"), random(rng, (3, 4096), "float32")
    want = reference(x, h, "causal")
    stream = cupy.cuda.Stream(non_blocking=True)
    rows, taps = cupy.zeros(x.shape, "float32"), cupy.asarray(h)
    source = cupy.asarray(x)
    busy = cupy.ones(1 << 26, "float32")
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(20):
            busy *= 1.0001
        rows[...] = source
    got = devkernels.fftconvolve(rows, taps, "causal", stream=stream)  # behind the copy
    stream.synchronize()
    assert relative_error(got.get(), want) < bound("float32", 8192)


def test_tuning_measures_once_and_is_kept(rng, monkeypatch, tmp_path):
    from devkernels import cache
    from devkernels.engine import choose, tune

    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        tune, "candidates", lambda size, word, uneven: [
            choose.Choice((4, 16), (4, 16), 8) if uneven else choose.choose(size, word), choose.Choice((16, 4), 16, 16)]
    )  # fmt: skip
    cache.forget()
    found = [block_fft(64, tune=True, uneven=uneven) for uneven in (False, True)]
    monkeypatch.setattr(tune, "measure", None)  # a second measurement would fail
    cache.forget()
    assert [block_fft(64, tune=True, uneven=uneven).plan for uneven in (False, True)] == [f.plan for f in found]


def test_tuning_leaves_out_what_is_wrong(monkeypatch, tmp_path):
    """And says so: a plan whose results are wrong is a bug, but not the caller's."""
    from devkernels import cache
    from devkernels.engine import choose, tune

    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    cache.forget()
    right, wrong = choose.choose(64, 8), choose.Choice((4, 4, 4), 4, 8)
    monkeypatch.setattr(tune, "candidates", lambda size, word, uneven: [wrong, right])
    launch = tune._launch

    def half_wrong(cupy, choice, *rest):
        run = launch(cupy, choice, *rest)
        if choice == wrong:
            raise tune._WrongResult("The plan gives wrong results.")
        return run

    monkeypatch.setattr(tune, "_launch", half_wrong)
    with pytest.warns(RuntimeWarning, match="wrong results.*left out"):
        assert tune.measure(64, np.dtype("complex64")) == right


WARM = """
import sys
import cupy, numpy
import devkernels
x = cupy.asarray(numpy.arange(3 * 20000, dtype="float32").reshape(3, 20000) % 7)
h = cupy.asarray(numpy.arange(16000, dtype="float32") % 5)
y = devkernels.fftconvolve(x[:, :512], h[:512], "causal"), devkernels.fftconvolve(x, h, "full")
y += (devkernels.oaconvolve(x, h[:7], "same"),)
y += (devkernels.fftconvolve(x.reshape(3, 200, 100), h[:49].reshape(7, 7), "same", axes=(-2, -1)),)
print([float(abs(a).sum()) for a in y], [m for m in ("numba", "llvmlite", "nvmath") if m in sys.modules])
"""


def test_a_warm_process_imports_no_compiler(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "DEVKERNELS_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", WARM], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert "numba" in said[0]
    assert said[1].strip().endswith("[]")
    assert said[0].partition("]")[0] == said[1].partition("]")[0]
