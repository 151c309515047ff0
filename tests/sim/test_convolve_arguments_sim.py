"""What convolutions take beside ready operands, against scipy.signal: lists, dtypes, axes, empty arrays, numbers."""

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from tests.convolution_cases import bound, random

KINDS = ["float16", "float32", "float64", "complex64", "int8", "uint16", "int64", "bool"]


def values(rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else 9, shape).astype(dtype)
    return random(rng, shape, dtype.name)


def close(got, want, dtype="float32"):
    scale = np.linalg.norm(want)
    return np.linalg.norm(np.asarray(got, np.complex128) - want) <= bound(dtype, 64) * scale


@pytest.mark.parametrize("second", ["float16", "float64", "complex64", "int8", "bool"])
@pytest.mark.parametrize("first", KINDS)
def test_dtypes_meet_as_in_scipy(first, second, rng):
    x, h = values(rng, 7, first), values(rng, 3, second)
    half = "float16" in (first, second)
    want = signal.fftconvolve(x.astype("float32") if first == "float16" else x, h)
    got = devkernels.fftconvolve(x, h)
    assert close(got, want, "float16" if half else "float32")
    assert half or got.dtype == want.dtype
    want, got = signal.correlate(x, h, method="fft"), devkernels.correlate(x, h)
    assert got.dtype == want.dtype
    if want.dtype == bool:  # SciPy's takes what a transform leaves of zero for True
        want = signal.correlate(x, h, method="direct")
    assert np.array_equal(got, want) if want.dtype.kind in "iub" else close(got, want, "float16" if half else "float32")


@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve", "correlate"])
def test_lists_and_numbers(name, rng):
    ours, theirs = getattr(devkernels, name), getattr(signal, name)
    for x, h in (([1, 2, 3], [0, 1, 0.5]), ((1.0, 2j), [3, 4]), (np.arange(9.0)[::-2], np.arange(8.0)[::3])):
        assert np.allclose(ours(x, h), theirs(x, h), atol=1e-5)
    for x, h in ((3, 4), (np.float64(3), 2.5), (np.array(3 + 1j), np.array(2j))):
        assert ours(x, h) == theirs(x, h)
    big = random(rng, 9, "float32").astype(">f4")
    assert close(ours(big, big), theirs(big, big))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("taps", [1, 7])
@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve", "correlate"])
def test_either_operand_may_be_longer(name, length, taps, mode, rng):
    x, h = random(rng, length, "complex64"), random(rng, taps, "complex64")
    got, want = getattr(devkernels, name)(x, h, mode), getattr(signal, name)(x, h, mode)
    assert got.shape == want.shape
    full = signal.fftconvolve(x, h)
    assert np.linalg.norm(got - want) <= bound("complex64", 64) * np.linalg.norm(full)


@pytest.mark.parametrize(
    ("name", "mode", "axes"),
    [("fftconvolve", "full", axes) for axes in (0, 1, 2, (0,), (0, 1), (2, 0), np.int64(1), np.array([0, 2]))]
    + [("fftconvolve", "valid", axes) for axes in (-2, [1], (-1, -2))]
    + [("oaconvolve", "same", axes) for axes in (1, (0, 1))],
)
def test_axes_anywhere(name, mode, axes, rng):
    shape = [1, 1, 1]
    for axis in np.atleast_1d(axes):
        shape[axis] = 2
    x, h = random(rng, (3, 4, 5), "float32"), random(rng, tuple(shape), "float32")
    want = getattr(signal, name)(x, h, mode, axes=axes)
    got = getattr(devkernels, name)(x, h, mode, axes)
    assert got.shape == want.shape
    assert close(got, want)
    out = np.full(want.shape, np.nan, "float32")
    assert getattr(devkernels, name)(x, h, mode, axes, out=out) is out
    assert np.array_equal(out, got)
    own = h.reshape([n for n in h.shape if n > 1])  # a filter with the convolved axes only
    assert np.array_equal(getattr(devkernels, name)(x, own, mode, axes), got)


def test_correlation_along_an_axis(rng):
    x, h = random(rng, (6, 3), "complex64"), random(rng, (2, 3), "complex64")
    want = np.stack([signal.correlate(x[:, i], h[:, i]) for i in range(3)], 1)
    assert close(devkernels.correlate(x, h, axes=0), want)


@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve"])
def test_nothing_to_convolve(name):
    ours = getattr(devkernels, name)
    for x, h in (([], [1, 2]), (np.ones(3, "float32"), np.ones(0, "float32"))):
        assert ours(x, h).shape == getattr(signal, name)(x, h).shape == (0,)
    assert ours(np.ones((2, 0), "float32"), np.ones(3, "float32")).shape == (2, 0)
    assert ours(np.ones((0, 5), "float32"), np.ones(3, "float32")).shape == (0, 7)
    assert ours(np.ones((0, 5)), np.ones((3, 1)), "full", axes=0).shape == (0, 5)


WRONG = [
    (lambda x: devkernels.fftconvolve(x, x, "bogus"), SpecError, "full, same, valid"),
    (lambda x: devkernels.fftconvolve(x, x, axes=2), SpecError, "in1 has 2"),
    (lambda x: devkernels.fftconvolve(x, x, axes=(0, 0)), SpecError, "different"),
    (lambda x: devkernels.fftconvolve(x, x, axes=()), SpecError, "one axis"),
    (lambda x: devkernels.fftconvolve(x[None], x[None], axes=(0, 1, 2)), SpecError, "or two"),
    (lambda x: devkernels.fftconvolve(x, x, axes=1.5), SpecError, "whole number"),
    (lambda x: devkernels.fftconvolve(x, x, axes="a"), SpecError, "whole number"),
    (lambda x: devkernels.fftconvolve(x[None], x[0], axes=(0, 2)), SpecError, "in2 has shape"),
    (lambda x: devkernels.fftconvolve(x, np.array(2.0)), ArgumentError, "at least one axis"),
    (lambda x: devkernels.fftconvolve(x, 2.0), ArgumentError, "at least one axis"),
    (lambda x: devkernels.fftconvolve(x.astype("longdouble"), x), ArgumentTypeError, "convert it"),
    (lambda x: devkernels.fftconvolve(x, np.array(["a"])), ArgumentTypeError, "convert it"),
    (lambda x: devkernels.fftconvolve([[1, 2], [3]], x), ArgumentTypeError, "nested list"),
    (lambda x: devkernels.fftconvolve("abc", x), ArgumentTypeError, "NumPy, CuPy or torch"),
    (lambda x: devkernels.fftconvolve(None, x), ArgumentTypeError, "NumPy, CuPy or torch"),
    (lambda x: devkernels.fftconvolve(x, x[:, :0], out=x), ArgumentError, "nothing for out"),
    (lambda x: devkernels.fftconvolve(x, x[:2, :1], "valid", (0, 1), out=x), ArgumentError, "out has shape"),
    (lambda x: devkernels.fftconvolve(x, x.T.copy(), "valid", (0, 1)), SpecError, "at least as large"),
    (lambda x: devkernels.make_fftconvolve2d((5, 1), (1, 4), "float32", "valid"), SpecError, "at least as large"),
    (lambda x: devkernels.correlate(x, x, axes=0, out=np.empty((1, 1))), ArgumentError, "out has shape"),
]


@pytest.mark.parametrize(("call", "kind", "words"), WRONG)
def test_what_does_not_fit_is_said_in_words(call, kind, words):
    x = np.ones((3, 4), "float32")
    with pytest.raises(kind, match=words):
        call(x)
    assert (x == 1).all()
