"""The spectral filter in the simulator: every dtype, filter shape and refusal."""

import numpy as np
import pytest

import devkernels
from devkernels import make_spectral_filter, reference, spectral_filter
from devkernels.errors import ArgumentError, ArgumentTypeError, DevkernelsError, SpecError, UnsupportedSizeError
from devkernels.tolerance import fft_bound, relative_error
from tests.filter_cases import FILTER_DTYPE, bins, random


@pytest.mark.parametrize("dtype", FILTER_DTYPE)
@pytest.mark.parametrize("size", [15, 16])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("real_filter", [False, True])
def test_against_numpy(dtype, size, per_row, real_filter, rng, empty):
    x = random(rng, (3, 3, size), dtype)
    kind = FILTER_DTYPE[dtype]
    kind = {"complex64": "float32", "complex128": "float64"}[kind] if real_filter else kind
    H = random(rng, ((3, 3) if per_row else ()) + (bins(size, dtype),), kind)
    kept, out = (x.copy(), H.copy()), empty(x.shape, dtype)
    y = make_spectral_filter(size, dtype, ffts_per_block=4)(x, H, out=out)
    assert y is out
    assert np.array_equal(x, kept[0])
    assert np.array_equal(H, kept[1])
    assert relative_error(y, reference.spectral_filter(x, H)) < fft_bound(dtype, size, 2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
def test_device_function(dtype, rng):
    def op(X, k):
        return X * X.conjugate() / (1 + k)

    n = 16
    x = random(rng, (5, n), dtype) / 4
    transform, back = (np.fft.rfft, np.fft.irfft) if dtype.startswith("float") else (np.fft.fft, np.fft.ifft)
    X = transform(x.astype(np.float64 if dtype.startswith("float") else np.complex128))
    want = back(X * X.conj() / (1 + np.arange(X.shape[-1])), n)
    y = spectral_filter(x, op)
    # Squaring doubles the relative error of the spectrum.
    assert relative_error(y, want) < fft_bound(dtype, n, 3)


def test_half_precision_complex_rows(rng):
    n = 12
    x = random(rng, (3, n, 2), "float16")
    H = random(rng, n, "complex64")
    y = make_spectral_filter(n, "complex32")(x, H)
    wide = x[..., 0].astype(np.float64) + 1j * x[..., 1].astype(np.float64)
    got = y[..., 0].astype(np.float64) + 1j * y[..., 1].astype(np.float64)
    assert y.dtype == np.float16
    assert relative_error(got, reference.spectral_filter(wide, H)) < fft_bound("float16", n, 2)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_padding_option_for_lengths_without_a_transform(dtype, rng):
    n = 97
    with pytest.raises(UnsupportedSizeError, match="fft_size=100"):
        make_spectral_filter(n, dtype)
    x, H = random(rng, (2, n), dtype), random(rng, bins(100, dtype), "complex64")
    y = spectral_filter(x, H, fft_size=100)
    assert y.shape == x.shape
    assert relative_error(y, reference.spectral_filter(x, H, 100)) < fft_bound(dtype, 100, 2)


def test_identity_and_one_axis(rng):
    x = random(rng, 16, "float32")
    y = spectral_filter(x, np.ones(9, np.float32))
    assert y.shape == (16,)
    assert relative_error(y, x) < fft_bound("float32", 16, 2)


def test_in_place_is_the_callers_choice(rng):
    x, H = random(rng, (4, 16), "complex64"), random(rng, 16, "complex64")
    want = reference.spectral_filter(x, H)
    assert spectral_filter(x, H, out=x) is x
    assert relative_error(x, want) < fft_bound("complex64", 16, 2)


def test_strided_rows_are_read_where_they_lie(rng, empty):
    wide, H = random(rng, (6, 40), "complex64"), random(rng, 16, "complex64")
    out = empty((6, 30), "complex64")
    spectral_filter(wide[:, 8:24], H, out=out[:, 3:19])
    assert relative_error(out[:, 3:19], reference.spectral_filter(wide[:, 8:24], H)) < fft_bound("complex64", 16, 2)
    assert np.isnan(out[:, :3]).all()
    assert np.isnan(out[:, 19:]).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # a GPU says nothing of NaN either
def test_bad_rows_stay_alone(rng):
    x, H = random(rng, (5, 16), "float32"), random(rng, 9, "complex64")
    x[2, 3], x[4, 0] = np.nan, np.inf
    y = spectral_filter(x, H)
    good = [0, 1, 3]
    assert relative_error(y[good], reference.spectral_filter(x[good], H)) < fft_bound("float32", 16, 2)
    assert np.isnan(y[[2, 4]]).all()


def test_refusals_name_argument_and_remedy(rng, empty):
    x, H = random(rng, (4, 16), "complex64"), random(rng, 16, "complex64")
    plan = make_spectral_filter(16, "complex64")
    read_only = empty((4, 16), "complex64")
    read_only.flags.writeable = False
    shared = empty(100, "complex64")
    cases = [
        (lambda out: plan(x.astype("complex128"), H, out=out), ArgumentTypeError, "x has dtype complex128"),
        (lambda out: plan(x.tolist(), H, out=out), ArgumentTypeError, "x is a list"),
        (lambda out: plan(x[:, :8], H, out=out), ArgumentError, "last axis must be 16"),
        (lambda out: plan(random(rng, (4, 32), "complex64")[:, ::2], H, out=out), ArgumentError, "ascontiguousarray"),
        (lambda out: plan(x[:0], H, out=out), ArgumentError, "no rows"),
        (lambda out: plan(x, H[:-1], out=out), ArgumentError, r"H has shape \(15,\)"),
        (lambda out: plan(x, np.stack([H, H]), out=out), ArgumentError, "one per row"),
        (lambda out: plan(x, H.astype("complex128"), out=out), ArgumentTypeError, "H has dtype complex128"),
        (lambda out: plan(x, out=out), ArgumentTypeError, "H is missing"),
        (lambda out: plan(x, H, out=out[:3]), ArgumentError, "out has shape"),
        (lambda out: plan(x, H, out=read_only), ArgumentError, "read-only"),
        (lambda out: plan(shared[:64].reshape(4, 16), H, out=shared[8:72].reshape(4, 16)), ArgumentError, "overlaps x"),
        (lambda out: plan(x, out[1], out=out), ArgumentError, "overlaps H"),
        (lambda out: spectral_filter(x.real.astype(np.int32), H, out=out), ArgumentTypeError, "int32"),
        (lambda out: spectral_filter(np.float32(3), H, out=out), ArgumentTypeError, "numpy.float32"),
        (lambda out: make_spectral_filter(0, "complex64"), SpecError, "size=0"),
        (lambda out: make_spectral_filter(16, "int32"), SpecError, "int32"),
        (lambda out: make_spectral_filter(16, "float32", fft_size=8), SpecError, "fft_size=8"),
        (lambda out: make_spectral_filter(16, "float32", op=3), SpecError, "op=3"),
        (
            lambda out: make_spectral_filter(16, "float32", op=lambda X, k: X)(np.ascontiguousarray(x.real), H),
            ArgumentTypeError,
            "without H",
        ),
        (lambda out: make_spectral_filter(1 << 20, "float32"), UnsupportedSizeError, "largest"),
    ]
    for call, error, words in cases:
        out = empty((4, 16), "complex64")
        with pytest.raises(error, match=words) as caught:
            call(out)
        assert isinstance(caught.value, DevkernelsError)
        assert np.isnan(out).all(), words


def test_plans_are_kept():
    from devkernels.kernels.spectral_filter import _planned

    before = _planned.cache_info().hits
    x, H = np.ones((1, 8), "c8"), np.arange(8, dtype="c8")
    spectral_filter(x, H)
    spectral_filter(x, H)
    assert _planned.cache_info().hits > before
    assert "size 8" in repr(devkernels.make_spectral_filter(8, "complex64"))


def test_only_calls_known_in_full_skip_the_checks(monkeypatch):
    """A recipe is looked up by what the checks depend on; an array that is not known must not pass for none at all."""
    from devkernels.kernels import arrays

    plan = make_spectral_filter(8, "complex64", op=lambda X, k: X)
    known, gaps, unknown, apart, astride, response = (object() for _ in range(6))
    mark = arrays.Fingerprint("cupy", "complex64", (1, 8), 0, True, 0)
    seen = {
        known: arrays.Known(mark, 4096, 4160),
        gaps: arrays.Known(mark._replace(contiguous=False), 4096, 4160),
        apart: arrays.Known(mark, 4160, 4224),
        astride: arrays.Known(mark, 4112, 4176),
        response: arrays.Known(mark._replace(shape=(8,)), 8192, 8256),
    }
    monkeypatch.setattr(arrays, "known", seen.get)
    keys = [
        plan._recipe_key(known, H, out) for H, out in ((None, None), (None, known), (response, None), (response, apart))
    ]
    assert None not in keys
    assert len(set(keys)) == 4
    assert plan._recipe_key(known, None, apart) == keys[1]  # in place or not, the same kernel and checks
    for x, H, out in (
        (unknown, None, None),
        (known, unknown, None),
        (gaps, None, None),
        (known, gaps, None),
        (known, None, unknown),
        (known, None, gaps),
        (known, None, astride),
        (known, apart, apart),
        (known, astride, apart),
    ):
        assert plan._recipe_key(x, H, out) is None
