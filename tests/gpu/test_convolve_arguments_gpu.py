"""What convolutions take beside ready operands, on a GPU against SciPy: dtypes, axes, views, streams, libraries."""

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels.tolerance import relative_error
from tests.convolution_cases import bound, random

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize("library", ["numpy", "cupy", "torch"])
@pytest.mark.parametrize(
    ("first", "second"), [("float32", "complex64"), ("int32", "float32"), ("uint8", "uint8"), ("float16", "float64")]
)
def test_dtypes_meet(first, second, library, rng):
    x, h = (rng.integers(0, 100, n).astype(kind) for n, kind in ((500, first), (31, second)))
    a, b, back = x, h, lambda y: y
    if library == "cupy":
        a, b, back = cupy.asarray(x), cupy.asarray(h), cupy.asnumpy
    elif library == "torch":
        torch = pytest.importorskip("torch")
        a, b, back = torch.from_numpy(x).cuda(), torch.from_numpy(h).cuda(), lambda y: y.cpu().numpy()
    wide = x.astype("float64") if first == "float16" else x
    want = signal.fftconvolve(wide, h, "same")
    got = back(devkernels.fftconvolve(a, b, "same"))
    assert got.dtype == want.dtype
    assert relative_error(got, want) < bound("complex64", 1024)
    want, got = signal.correlate(x, h, "full", method="fft"), back(devkernels.correlate(a, b, "full"))
    assert got.dtype == want.dtype
    if first == second == "uint8":
        assert np.array_equal(got, want)
    else:
        assert relative_error(got, want) < bound("complex64", 1024)


@pytest.mark.parametrize("axes", [0, 1, (0, 1), (2, 0), (1, 2)])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve"])
def test_axes_anywhere(name, mode, axes, rng):
    shape = [1, 1, 1]
    for axis in np.atleast_1d(axes):
        shape[axis] = 7
    x, h = random(rng, (40, 50, 60), "float32"), random(rng, tuple(shape), "float32")
    want = getattr(signal, name)(x.astype("float64"), h.astype("float64"), mode, axes=axes)
    rows, taps = cupy.asarray(x), cupy.asarray(h)
    out = cupy.full(want.shape, np.nan, "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    assert getattr(devkernels, name)(rows, taps, mode, axes, out=out, stream=stream) is out
    stream.synchronize()
    assert relative_error(out.get(), want) < bound("float32", 1 << 14)
    got = getattr(devkernels, name)(rows, taps.reshape([n for n in shape if n > 1]), mode, axes)
    assert bool((got == out).all())


def test_views_of_images(rng):
    x, h = random(rng, (6, 80, 90), "complex64"), random(rng, (7, 9), "complex64")
    want = signal.fftconvolve(x[::2, ::-1, 5:].astype("complex128"), h.T[None].astype("complex128"), "same", (1, 2))
    got = devkernels.fftconvolve(cupy.asarray(x)[::2, ::-1, 5:], cupy.asarray(h).T, "same", (-2, -1))
    assert relative_error(got.get(), want) < bound("complex64", 1 << 14)


@pytest.mark.parametrize(("name", "axes"), [("out", -1), ("out", (-2, -1))])
def test_out_that_is_not_contiguous_is_refused(name, axes):
    x, h = cupy.ones((8, 16), "float32"), cupy.ones((3,) if axes == -1 else (3, 3), "float32")
    wide = cupy.full((8, 32), cupy.nan, "float32")
    with pytest.raises(devkernels.DevkernelsError, match="not contiguous"):
        devkernels.fftconvolve(x, h, "same", axes, out=wide[:, ::2])
    assert bool(cupy.isnan(wide).all())


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("mode", "shape", "taps"), [("same", (50, 70), (5, 7)), ("circular", (64, 64), (64, 64))])
def test_functions_on_the_samples_of_images(mode, shape, taps, dtype, rng):
    def gate(value, image, row, column):
        return value * (image + 1) if (row + column) % 2 else -value

    def residual(value, image, row, column):
        return value * (1 + row) + column + image

    x, h = random(rng, (5, *shape), dtype), random(rng, taps, dtype)
    image, row, column = np.ogrid[:5, : shape[0], : shape[1]]
    gated = (x * np.where((row + column) % 2, image + 1, -1)).astype("complex128")
    if mode == "circular":
        want = np.fft.ifft2(np.fft.fft2(gated) * np.fft.fft2(h.astype("complex128"), shape))
    else:
        want = signal.fftconvolve(gated, h[None].astype("complex128"), mode, (1, 2))
    want = want * (1 + row) + column + image
    plan = devkernels.make_fftconvolve2d(shape, taps, dtype, mode, prologue=gate, epilogue=residual)
    out = cupy.full(x.shape, np.nan, dtype)
    plan(cupy.asarray(x), cupy.asarray(h), out=out)
    assert relative_error(out.get(), want if dtype == "complex64" else want.real) < bound(dtype, 1 << 14)
    assert "three kernels" in plan.describe()


def test_torch_differentiates_through_axes_and_dtypes(rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(random(rng, (9, 3), "float64")).cuda().requires_grad_()
    h = torch.from_numpy(random(rng, (4,), "float64")).cuda().requires_grad_()
    z = torch.from_numpy(random(rng, (4,), "complex128")).cuda().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, h: devkernels.fftconvolve(x, h, "full", axes=0), (x, h))
    assert torch.autograd.gradcheck(lambda x, z: devkernels.fftconvolve(x, z.conj(), "same", axes=0), (x, z))


def gate(value, row, position, extra):
    return value * extra[row * 500 + position]


def residual(value, row, position, extra):
    return value + extra[row * 500 + position]


@pytest.mark.parametrize("library", ["numpy", "cupy", "torch"])
@pytest.mark.parametrize(
    ("mode", "method", "dtype"),
    [("same", None, "float32"), ("same", "overlap", "complex64"), ("circular", None, "float32"),
     ("circular", None, "complex128"), ("causal", "four-step", "float32"), ("same", "four-step", "complex64"),
     ("causal", None, "float16")],
)  # fmt: skip
def test_functions_that_read_an_array(mode, method, dtype, library, rng):
    from devkernels.kernels import convolve_plan
    from devkernels.kernels.convolver import FFTConvolve
    from tests.convolution_cases import reference

    x, h, v = random(rng, (7, 500), dtype), random(rng, 300, dtype), random(rng, (7, 500), dtype)
    x, h, v = (a / a.dtype.type(8) for a in (x, h, v))
    plan = FFTConvolve(convolve_plan.plan_rows(mode, 500, 300, dtype, method), dtype, mode, gate, residual)
    want = reference(x * v, h, mode) + v
    if library == "numpy":
        there, back = lambda a: a, lambda a: a
    elif library == "cupy":
        there, back = cupy.asarray, cupy.asnumpy
    else:
        torch = pytest.importorskip("torch")
        there, back = lambda a: torch.from_numpy(a).cuda(), lambda a: a.cpu().numpy()
    rows, taps, extra = there(x), there(h), there(v)
    for _ in range(2):  # the second call goes straight to the launches
        assert relative_error(back(plan(rows, taps, extra=extra)), want) < bound(dtype, 1 << 14)
    spectra = plan.prepare(taps)
    assert relative_error(back(plan(rows, spectra=spectra, extra=extra)), want) < bound(dtype, 1 << 14)
    plan = FFTConvolve(plan.plan, dtype, mode, None, residual)
    want = reference(x, h, mode) + v
    plan(rows, taps, out=extra, extra=extra)  # a residual in place (v itself, of NumPy's)
    assert relative_error(back(extra), want) < bound(dtype, 1 << 14)


def test_images_with_functions_that_read_an_array(rng):
    def weigh(value, image, row, column, extra):
        return value * extra[(image * 50 + row) * 70 + column]

    x, h, v = random(rng, (5, 50, 70), "float32"), random(rng, (5, 7), "float32"), random(rng, (5, 50, 70), "float32")
    want = signal.fftconvolve((x * v).astype("float64"), h[None].astype("float64"), "same", (1, 2)) * v
    plan = devkernels.make_fftconvolve2d((50, 70), (5, 7), "float32", "same", prologue=weigh, epilogue=weigh)
    spectra = plan.prepare(cupy.asarray(h))
    for _ in range(2):
        got = plan(cupy.asarray(x), spectra=spectra, extra=cupy.asarray(v))
        assert relative_error(got.get(), want) < bound("float32", 1 << 14)
