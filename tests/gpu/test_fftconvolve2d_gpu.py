"""Two-dimensional convolution on a GPU against SciPy in float64."""

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels.tolerance import fft_bound, relative_error

cupy = pytest.importorskip("cupy")


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape)).astype(dtype) if dtype.startswith("c") else values.astype(dtype)


def check(rng, batch, filters, shape, taps, mode, dtype):
    x, h = random(rng, (*batch, *shape), dtype), random(rng, (*filters, *taps), dtype)
    wide = np.complex128 if dtype.startswith("c") else np.float64
    a, b = x.astype(wide), np.broadcast_to(h.astype(wide), (*batch, *taps))
    if mode == "circular":
        want = np.fft.ifft2(np.fft.fft2(a) * np.fft.fft2(b, shape))
        want = want if wide is np.complex128 else want.real
    else:
        want = signal.fftconvolve(a, b, mode, axes=(-2, -1))
    out = cupy.full(want.shape, np.nan, dtype)
    devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), mode, axes=(-2, -1), out=out)
    compute = {"float16": "float32", "complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    storage = fft_bound("float16", 2) if dtype == "float16" else 0
    assert relative_error(out.get(), want) < fft_bound(compute, 2 * want.shape[-1] * want.shape[-2], 2) + storage


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("shape", "taps"), [((1, 1), (1, 1)), ((33, 47), (5, 4)), ((100, 513), (63, 63))])
def test_modes_and_dtypes(mode, dtype, shape, taps, rng):
    check(rng, (3,), (), shape, taps, mode, dtype)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
@pytest.mark.parametrize(
    ("shape", "taps", "segments"),
    [((1024, 1024), (63, 63), (2, 2)), ((1101, 1027), (9, 64), (2, 1)), ((2101, 40), (9, 5), (4, 1)),
     ((33, 1100), (3, 20), (1, 2))],
)  # fmt: skip
def test_axes_in_segments(mode, dtype, shape, taps, segments, rng):
    plan = devkernels.make_fftconvolve2d(shape, taps, dtype, mode)
    if mode == "same":
        assert tuple(axis.segments for axis in plan.plans) == segments
    check(rng, (3,), (), shape, taps, mode, dtype)


@pytest.mark.parametrize("mode", ["full", "same", "valid", "causal"])
@pytest.mark.parametrize(
    ("batch", "filters", "shape", "taps", "dtype"),
    [((), (), (1031, 1101), (9, 63), "float32"), ((1,), (), (4099, 257), (31, 5), "float32"),
     ((2,), (2,), (1500, 701), (64, 3), "float64"), ((1, 1), (), (2048, 2048), (63, 63), "float16")],
)  # fmt: skip
def test_one_large_image_goes_as_two_halves(mode, batch, filters, shape, taps, dtype, rng):
    plan = devkernels.make_fftconvolve2d(shape, taps, dtype, mode)
    assert plan._in_halves is not None
    x, h = random(rng, (*batch, *shape), dtype), random(rng, (*filters, *taps), dtype)
    want = signal.fftconvolve(
        x.astype(float), np.broadcast_to(h.astype(float), (*batch, *taps)), "full" if mode == "causal" else mode,
        axes=(-2, -1),
    )[..., : plan.out_shape[0], : plan.out_shape[1]]  # fmt: skip
    images, taps_ = cupy.asarray(x), cupy.asarray(h)
    storage = fft_bound("float16", 2) if dtype == "float16" else 0
    for _ in range(2):  # the second call takes the quick way
        out = cupy.full(want.shape, np.nan, dtype)
        devkernels.fftconvolve(images, taps_, mode, axes=(-2, -1), out=out)
        limit = fft_bound("float64" if dtype == "float64" else "float32", 2 * want.shape[-1] * want.shape[-2], 2)
        assert relative_error(out.get(), want) < limit + storage
    images[..., 3, 4] = np.inf
    assert bool(cupy.isnan(devkernels.fftconvolve(images, taps_, mode, axes=(-2, -1))).all())


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_segments_on_a_circle_and_with_several_filters(dtype, rng):
    check(rng, (2, 3), (3,), (1009, 997), (31, 63), "circular", dtype)
    x, h = random(rng, (5, 1100, 900), dtype), random(rng, (9, 9), dtype)
    x[[0, 3], 17, 899] = np.nan
    got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), "same", axes=(-2, -1)).get()
    spoilt = np.isnan(got).reshape(5, -1)
    assert not spoilt[[1, 2, 4]].any()
    assert spoilt[[0, 3]].any(axis=1).all()
    if dtype == "float32":
        assert spoilt[[0, 3]].all()


@pytest.mark.parametrize("shape", [(8, 8), (64, 128), (1024, 1024), (96, 768), (2048, 32)])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
def test_circular(shape, dtype, rng):
    check(rng, (2,), (), shape, shape, "circular", dtype)


@pytest.mark.parametrize(("batch", "filters"), [((), ()), ((5,), ()), ((3, 4), (4,)), ((2, 3), (2, 3)), ((1,), (1,))])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_batches_and_filters(batch, filters, dtype, rng):
    check(rng, batch, filters, (40, 50), (7, 6), "same", dtype)
    check(rng, batch, filters, (3, 5), (7, 6), "valid" if dtype == "float32" else "full", dtype)


@pytest.mark.parametrize("shape", [(97, 64), (64, 101), (449, 331)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_lengths_without_a_transform_on_a_circle(shape, dtype, rng):
    check(rng, (3,), (), shape, shape, "circular", dtype)
    check(rng, (3,), (), shape, (5, 7), "circular", dtype)


@pytest.mark.parametrize(("batch", "filters"), [((2, 3), (2, 1)), ((2, 3), (1, 1)), ((2, 1), (3,)), ((), (4,))])
def test_broadcasting(batch, filters, rng):
    x, h = random(rng, (*batch, 20, 30), "float32"), random(rng, (*filters, 5, 4), "float32")
    want = signal.fftconvolve(
        *(np.broadcast_to(a, (*np.broadcast_shapes(batch, filters), *a.shape[-2:])).astype(float) for a in (x, h)),
        "full", axes=(-2, -1),
    )  # fmt: skip
    got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), "full", axes=(-2, -1)).get()
    assert relative_error(got, want) < fft_bound("float32", 2048, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("mode", "size", "dtype"), [("same", 200, "float32"), ("circular", 256, "float64")])
def test_what_is_not_finite_stays_in_its_image(bad, mode, size, dtype, rng):
    x, h = random(rng, (7, size, size), dtype), random(rng, (9, 9), dtype)
    spoilt = [0, 3, 6]
    x[spoilt, rng.integers(size, size=3), rng.integers(size, size=3)] = bad
    got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), mode, axes=(-2, -1)).get()
    rest = [1, 2, 4, 5]
    clean = devkernels.fftconvolve(cupy.asarray(x[rest]), cupy.asarray(h), mode, axes=(-2, -1)).get()
    assert np.isnan(got[spoilt]).all()
    assert relative_error(got[rest], clean) < fft_bound(dtype, size * size, 2)
    if mode == "same":
        want = np.stack([signal.fftconvolve(image.astype(float), h.astype(float), "same") for image in x[rest]])
        assert relative_error(clean, want) < fft_bound(dtype, 4 * size * size, 2)


def test_a_graph_keeps_its_work_area(rng):
    x, h = random(rng, (6, 100, 100), "float32"), random(rng, (5, 5), "float32")
    plan = devkernels.make_fftconvolve2d((100, 100), (5, 5), "float32", "same")
    images, spectra = cupy.asarray(x), plan.prepare(cupy.asarray(h))
    out = cupy.full(x.shape, np.nan, "float32")
    plan(images, spectra=spectra, out=out)
    want = out.get()
    out.fill(np.nan)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        plan(images, spectra=spectra, out=out)
        graph = stream.end_capture()
        others = [cupy.full(1 << size, 7, "float32") for size in range(8, 22)]  # none may be the graph's memory
        graph.launch()
        stream.synchronize()
    assert all(bool((other == 7).all()) for other in others)
    assert np.array_equal(out.get(), want)


@pytest.mark.parametrize(
    ("shape", "taps", "mode", "dtype"),
    [((17000, 301), (63, 5), "same", "float32"), ((100, 40003), (7, 31), "full", "complex64"),
     ((9000, 9000), (9, 9), "circular", "float64")],
)  # fmt: skip
def test_images_larger_than_a_transform_go_in_tiles(shape, taps, mode, dtype, rng):
    x, h = random(rng, shape, dtype), random(rng, taps, dtype)
    got = devkernels.fftconvolve(cupy.asarray(x), cupy.asarray(h), mode, axes=(-2, -1)).get()
    wide = np.complex128 if dtype.startswith("c") else np.float64
    if mode == "circular":
        a = np.pad(x, [(taps[0] - 1, 0), (taps[1] - 1, 0)], mode="wrap")
        want = signal.oaconvolve(a.astype(wide), h.astype(wide), "valid")
    else:
        want = signal.oaconvolve(x.astype(wide), h.astype(wide), mode)
    assert relative_error(got, want) < fft_bound("float64" if dtype == "float64" else "float32", 1 << 26, 2)


def test_gradients_through_tiles(rng, monkeypatch):
    torch = pytest.importorskip("torch")
    from devkernels.kernels import convolve_tiles

    monkeypatch.setattr(convolve_tiles, "_USUAL", 64)
    x = torch.from_numpy(random(rng, (2, 90, 100), "float64")).cuda().requires_grad_()
    h = torch.from_numpy(random(rng, (5, 3), "float64")).cuda().requires_grad_()
    tiled = convolve_tiles.convolve(x, h, "same", None)
    whole = devkernels.fftconvolve(x, h, "same", axes=(-2, -1))
    weights = torch.randn_like(whole)
    assert torch.allclose(tiled, whole, atol=1e-11)
    got, want = (torch.autograd.grad((y * weights).sum(), (x, h)) for y in (tiled, whole))
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(got, want, strict=True))


def test_tuning_is_kept(rng, monkeypatch, tmp_path):
    from devkernels import cache
    from devkernels.kernels import convolve_tune, fftconvolve2d

    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    candidates = convolve_tune.image_candidates
    monkeypatch.setattr(convolve_tune, "image_candidates", lambda *given: candidates(*given)[:2])
    cache.forget()
    fftconvolve2d._planned.cache_clear()
    found = devkernels.make_fftconvolve2d((90, 100), (9, 9), "float32", "same", tune=True)
    monkeypatch.setattr(convolve_tune, "_fastest", None)  # a second measurement would fail
    cache.forget()
    fftconvolve2d._planned.cache_clear()
    kept = devkernels.make_fftconvolve2d((90, 100), (9, 9), "float32", "same", tune=True)
    assert kept.plans == found.plans
    x, h = random(rng, (3, 90, 100), "float32"), random(rng, (9, 9), "float32")
    want = signal.fftconvolve(x.astype(float), h[None].astype(float), "same", axes=(1, 2))
    assert relative_error(kept(cupy.asarray(x), cupy.asarray(h)).get(), want) < fft_bound("float32", 1 << 14, 2)
