"""The spectral filter on the engine's transforms, in the simulator: orders of several stages, pairs of real rows."""

import numpy as np
import pytest

import devkernels
from devkernels import make_spectral_filter, reference
from devkernels.engine import spectrum
from devkernels.engine.block_fft import block_fft
from devkernels.errors import UnsupportedSizeError
from devkernels.kernels import arrays
from devkernels.tolerance import fft_bound, relative_error
from tests.filter_cases import FILTER_DTYPE, bins, random

KNOBS = [  # one stage, two, three; with several butterflies per thread
    (16, (16,), 16), (24, (6, 4), 12), (32, (8, 4), 8), (48, (4, 12), 12), (64, (8, 8), 16), (72, (12, 6), 12),
    (120, (10, 3, 4), 60), (128, (8, 4, 4), 8), (192, (12, 4, 4), 12), (768, (12, 8, 8), 24),
]  # fmt: skip


@pytest.mark.parametrize(("size", "radices", "elements"), KNOBS)
def test_frequencies_on_the_device_are_the_index_map(size, radices, elements):
    f = block_fft(size, radices=radices, elements_per_thread=elements)
    index = f.spectrum_index
    assert np.array_equal(index - index[:, :1], np.broadcast_to(f.frequency_offsets, index.shape))
    assert [int(f.frequency(thread)) for thread in range(f.stride)] == index[:, 0].tolist()
    at = spectrum.frequency_at(f.plan)
    assert [int(at(place)) for place in range(size)] == f.order_filter(np.arange(size)).tolist()


@pytest.mark.parametrize("dtype", FILTER_DTYPE)
@pytest.mark.parametrize("real_filter", [False, True])
@pytest.mark.parametrize(("size", "points"), [(32, None), (21, 48)])
def test_arrays(dtype, real_filter, size, points, rng):
    kind = FILTER_DTYPE[dtype]
    kind = {"complex64": "float32", "complex128": "float64"}[kind] if real_filter else kind
    x, H = random(rng, (5, size), dtype), random(rng, bins(points or size, dtype), kind)
    plan = make_spectral_filter(size, dtype, fft_size=points)
    assert plan.engine is not None
    assert plan.engine.fft.size == (points or size)
    y = np.full_like(x, np.nan)
    assert plan(x, H, out=y) is y
    assert relative_error(y, reference.spectral_filter(x, H, points)) < fft_bound(dtype, points or size, 2)


@pytest.mark.parametrize(("dtype", "size"), [("complex128", 48), ("complex64", 96)])
def test_device_function_gets_natural_frequencies(dtype, size, rng):
    def op(X, k):
        return X * (k + 1j)

    x = random(rng, (3, size), dtype)
    want = np.fft.ifft(np.fft.fft(x.astype(np.complex128)) * (np.arange(size) + 1j))
    y = make_spectral_filter(size, dtype, op=op)(x)
    assert relative_error(y, want) < fft_bound(dtype, size, 2)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # a GPU says nothing of NaN either
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_a_bad_row_does_not_spoil_its_partner_even_in_place(rows, rng):
    x, H = random(rng, (rows, 32), "float32"), random(rng, 17, "complex64")
    x[rows - 1, 7] = np.nan
    want = reference.spectral_filter(x[:-1], H) if rows > 1 else None
    plan = make_spectral_filter(32, "float32")
    assert plan.engine.pairs
    assert plan(x, H, out=x) is x
    assert np.isnan(x[-1]).all()
    if rows > 1:
        assert relative_error(x[:-1], want) < fft_bound("float32", 32, 2)


def test_one_row_of_filters_for_each_row_goes_the_other_way(rng, monkeypatch):
    plan = make_spectral_filter(16, "complex64")
    x, H = random(rng, (3, 16), "complex64"), random(rng, (3, 16), "complex64")
    monkeypatch.setattr(type(plan.engine), "launches", lambda *_: pytest.fail("one filter was expected"))
    assert relative_error(plan(x, H), reference.spectral_filter(x, H)) < fft_bound("complex64", 16, 2)
    assert make_spectral_filter(16, "complex64", ffts_per_block=4).engine is None
    assert make_spectral_filter(16, "float32", op=lambda X, k: X).engine is None


def test_lengths_that_only_the_engine_has(rng):
    with pytest.raises(UnsupportedSizeError):
        devkernels.fft(fft_type="c2c", size=768, precision="float32", direction="forward", sm="sm_90")
    plan = make_spectral_filter(768, "complex64")
    x, H = random(rng, (2, 768), "complex64"), random(rng, 768, "complex64")
    assert relative_error(plan(x, H), reference.spectral_filter(x, H)) < fft_bound("complex64", 768, 2)
    with pytest.raises(UnsupportedSizeError, match="one H for all rows"):
        plan(x, np.stack([H, H]))
    assert "engine" in repr(plan)
    names = list(plan.image_sources())
    assert names == ["spectral_filter_768_complex64_rows", "spectral_filter_768_complex64_order_complex64",
                     "spectral_filter_768_complex64_order_float32"]  # fmt: skip
    with pytest.raises(UnsupportedSizeError, match="fft_size="):
        make_spectral_filter(768, "float32", op=lambda X, k: X)


def test_a_given_stream_is_made_current(rng, monkeypatch):
    given = []

    def on_stream(like, stream):
        import contextlib

        given.append(stream)
        return contextlib.nullcontext()

    monkeypatch.setattr(arrays, "on_stream", on_stream)
    x, H = random(rng, (3, 16), "complex64"), random(rng, 16, "complex64")
    y = make_spectral_filter(16, "complex64")(x, H, stream=7)
    assert given == [7]
    assert relative_error(y, reference.spectral_filter(x, H)) < fft_bound("complex64", 16, 2)
