"""Convolution with filters that no block transform holds on a GPU: four-step transforms against NumPy in float64."""

import numpy as np
import pytest

import devkernels
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolver import FFTConvolve
from devkernels.tolerance import relative_error
from tests.convolution_cases import bound, random, reference

cupy = pytest.importorskip("cupy")


def check(plan, x, h, dtype, mode, out=None):
    """Errors are measured against the full convolution's samples: those of a narrow window may be small by chance."""
    want = reference(x, h, mode)
    out = cupy.full(want.shape, np.nan, dtype)
    plan(cupy.asarray(x), cupy.asarray(h), out=out)
    room = plan.plan.size * 2
    assert relative_error(out.get(), want) < bound(dtype, room), plan


@pytest.mark.parametrize(
    ("length", "taps", "mode", "dtype"),
    [
        (1 << 22, 1 << 22, "full", "float32"),
        (1 << 22, 1 << 22, "causal", "float32"),
        (1 << 22, 1 << 22, "circular", "complex64"),
        (1 << 22, 1 << 22, "full", "complex64"),
        (1 << 21, 1 << 21, "same", "complex128"),
        (1 << 22, 1 << 22, "causal", "float64"),
        (1 << 20, 1 << 20, "causal", "float16"),
        (1 << 20, 1 << 19, "same", "float32"),
        (300000, 300000, "full", "float32"),
        (300000, 300000, "circular", "float32"),
        (300000, 300000, "circular", "complex64"),
        (1000003, 30011, "valid", "float64"),
        (30011, 1000003, "same", "float32"),
        (1 << 24, 70001, "same", "float32"),
        (5000011, 5000011, "circular", "float32"),
    ],
)
def test_lengths(length, taps, mode, dtype, rng):
    plan = devkernels.make_fftconvolve(length, taps, dtype, mode)
    assert plan.plan.method == "four-step"
    check(plan, random(rng, (length,), dtype), random(rng, (taps,), dtype), dtype, mode)


@pytest.mark.parametrize("power", range(15, 22))
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
def test_powers_of_two_and_those_between(power, dtype, rng):
    for length in (1 << power, (3 << power) // 2 - 1):
        plan = devkernels.make_fftconvolve(length, length, dtype, "causal")
        assert plan.plan.method == "four-step"
        check(plan, random(rng, (2, length), dtype), random(rng, (length,), dtype), dtype, "causal")


@pytest.mark.parametrize(
    ("x_batch", "h_batch"), [((5,), ()), ((3, 4), (4,)), ((3, 4), (3, 1)), ((3, 1), (4,)), ((2, 3), (2, 3)), ((), (5,))]
)
@pytest.mark.parametrize(("mode", "dtype"), [("full", "float32"), ("circular", "complex64")])
@pytest.mark.parametrize("across", [False, True])  # as where spectra are larger than the cache
def test_broadcasting(x_batch, h_batch, mode, dtype, across, rng, monkeypatch):
    monkeypatch.setattr("devkernels.kernels.convolve_long.WORK_BYTES", 3 << 19)  # three rows at a time, or two
    monkeypatch.setattr("devkernels.kernels.convolve_long._SPECTRA_IN_L2", 0 if across else 1 << 40)
    plan = FFTConvolve(convolve_plan.plan_rows(mode, 40000, 40000, dtype, "four-step"), dtype, mode)
    check(plan, random(rng, (*x_batch, 40000), dtype), random(rng, (*h_batch, 40000), dtype), dtype, mode)


def test_what_is_not_finite_stays_in_its_row(rng):
    x, h = random(rng, (4, 50000), "float32"), random(rng, (50000,), "float32")
    x[1, 40000], x[2, 3] = np.nan, np.inf
    got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), "same").get()
    assert not np.isfinite(got[1:3]).any()
    assert relative_error(got[[0, 3]], reference(x[[0, 3]], h, "same")) < bound("float32", 1 << 17)


def test_prologue_and_epilogue(rng):
    def gate(value, row, position):
        return value * (row + 1)

    def residual(value, row, position):
        return value + position

    length = 40000
    plan = devkernels.make_fftconvolve(length, length, "float32", "causal", prologue=gate, epilogue=residual)
    x, h = random(rng, (3, length), "float32"), random(rng, (length,), "float32")
    want = reference(x * np.arange(1, 4)[:, None], h, "causal") + np.arange(length)
    got = plan(cupy.asarray(x), cupy.asarray(h)).get()
    assert relative_error(got - np.arange(length), want - np.arange(length)) < 1e-4  # the ramp takes digits
    assert relative_error(got, want) < bound("float32", 2 * length)


def test_torch_and_numpy(rng):
    torch = pytest.importorskip("torch")
    x, h = random(rng, (2, 50000), "float32"), random(rng, (50000,), "float32")
    want = reference(x, h, "causal")
    assert relative_error(devkernels.fftconvolve(x, h, "causal"), want) < bound("float32", 1 << 17)
    got = devkernels.fftconvolve(torch.from_numpy(x).cuda(), torch.from_numpy(h).cuda(), "causal")
    assert relative_error(got.cpu().numpy(), want) < bound("float32", 1 << 17)


def test_a_graph_keeps_its_work_area(rng):
    x, h = random(rng, (2, 50000), "complex64"), random(rng, (50000,), "complex64")
    plan = devkernels.make_fftconvolve(50000, 50000, "complex64", "full")
    rows, spectra = cupy.asarray(x), plan.prepare(cupy.asarray(h))
    want = reference(x, h, "full")
    out = cupy.full(want.shape, np.nan, "complex64")
    plan(rows, spectra=spectra, out=out)
    stream = cupy.cuda.Stream(non_blocking=True)
    out.fill(np.nan)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        plan(rows, spectra=spectra, out=out)
        graph = stream.end_capture()
    with stream:  # whoever allocates now must not be given the graph's work area
        others = [cupy.full(1 << size, 7, "float32") for size in range(10, 24)]
        graph.launch()
        stream.synchronize()
    assert all(bool((other == 7).all()) for other in others)
    assert relative_error(out.get(), want) < bound("complex64", 1 << 17)


def test_work_area_is_as_documented():
    pool = cupy.get_default_memory_pool()
    plan = devkernels.make_fftconvolve(1 << 20, 1 << 20, "float32", "causal")
    x = cupy.ones((64, 1 << 20), "float32")
    spectra, out = plan.prepare(x[0]), cupy.empty_like(x)
    plan(x, spectra=spectra, out=out)
    pool.free_all_blocks()
    before = pool.total_bytes()
    plan(x, spectra=spectra, out=out)
    assert pool.total_bytes() - before <= plan.work_bytes(64) + (1 << 20)
    assert plan.work_bytes(64) <= 256 << 20


@pytest.mark.parametrize("work", ["long rows", "images", "rows"])
def test_graphs_of_torch(work, rng):
    torch = pytest.importorskip("torch")
    shape, taps, options = {
        "long rows": ((2, 50000), (50000,), {"mode": "causal"}),
        "images": ((5, 64, 48), (5, 5), {"mode": "same", "axes": (-2, -1)}),
        "rows": ((7, 512), (512,), {"mode": "circular"}),
    }[work]
    x, h = (torch.from_numpy(random(rng, size, "float32")).cuda() for size in (shape, taps))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        want = devkernels.fftconvolve(x, h, **options).clone()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = devkernels.fftconvolve(x, h, **options)
    others = [torch.full((1 << size,), 7.0, device="cuda") for size in range(10, 22)]
    for _ in range(2):
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, want)
    assert all(bool((other == 7).all()) for other in others)


def test_tuning_is_kept(rng, monkeypatch, tmp_path):
    from devkernels import cache
    from devkernels.kernels import convolve_tune, fftconvolve

    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    candidates = convolve_tune.long_candidates
    monkeypatch.setattr(convolve_tune, "long_candidates", lambda plan: candidates(plan)[:3])
    cache.forget()
    fftconvolve._planned.cache_clear()
    found = devkernels.make_fftconvolve(50000, 50000, "float32", "causal", tune=True)
    monkeypatch.setattr(convolve_tune, "_fastest", None)  # a second measurement would fail
    cache.forget()
    fftconvolve._planned.cache_clear()
    kept = devkernels.make_fftconvolve(50000, 50000, "float32", "causal", tune=True)
    assert kept.plan == found.plan
    check(kept, random(rng, (2, 50000), "float32"), random(rng, (50000,), "float32"), "float32", "causal")
