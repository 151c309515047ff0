"""What tune=True does for images and long filters, with a clock of the test's own: candidates, check, choice, cache."""

import dataclasses

import numpy as np
import pytest
from scipy import signal

import devkernels
from devkernels import cache
from devkernels.engine.choose import Choice
from devkernels.errors import TargetError
from devkernels.kernels import convolve_plan, convolve_plan2d, convolve_tune, convolver2d, fftconvolve, fftconvolve2d
from devkernels.tolerance import fft_bound, relative_error
from tests.convolution_cases import random

pytestmark = pytest.mark.sim


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Times that fall from launch to launch, and how many there were."""
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    cache.forget()
    fftconvolve2d._planned.cache_clear()
    fftconvolve._planned.cache_clear()
    ticks = []

    def milliseconds(run, rounds):
        ticks.append(100.0 - len(ticks))
        return ticks[-1]

    monkeypatch.setattr(convolve_tune, "_device", lambda: (np, milliseconds))
    monkeypatch.setattr(convolve_tune, "_BYTES", 1)
    monkeypatch.setattr(convolve_tune, "_TURNS", 1)
    yield ticks
    cache.forget()
    fftconvolve2d._planned.cache_clear()
    fftconvolve._planned.cache_clear()


def again(monkeypatch):
    """As in another process: nothing is remembered, and a second measurement would fail."""
    monkeypatch.setattr(convolve_tune, "_fastest", None)
    cache.forget()
    fftconvolve2d._planned.cache_clear()
    fftconvolve._planned.cache_clear()


def test_images_are_measured_once_and_kept(clock, rng, monkeypatch, capsys):
    candidates = convolve_tune.image_candidates

    def few(variants, dtype):
        found = candidates(variants, dtype)
        assert found[0].plans == tuple(variant[0] for variant in variants)
        assert len(set(found)) == len(found) > 3
        assert found[0].columns is None
        assert any(images.columns for images in found)
        return found[:2] + [images for images in found if images.columns][:1]

    monkeypatch.setattr(convolve_tune, "image_candidates", few)
    plan = devkernels.make_fftconvolve2d((12, 10), (3, 3), "float32", "same", tune=True)
    assert len(clock) == 3 + 3  # and the best once more
    assert "images of 12 x 10 with 3 x 3, float32: 100%" in capsys.readouterr().err
    again(monkeypatch)
    kept = devkernels.make_fftconvolve2d((12, 10), (3, 3), "float32", "same", tune=True)
    assert kept is not plan
    assert (kept.plans, kept.columns) == (plan.plans, plan.columns)
    assert kept.describe() == plan.describe()
    x, h = random(rng, (3, 12, 10), "float32"), random(rng, (3, 3), "float32")
    want = signal.fftconvolve(x.astype(float), h[None], "same", axes=(1, 2))
    assert relative_error(kept(x, h), want) < fft_bound("float32", 1024, 2)


def test_long_filters_are_measured_once_and_kept(clock, rng, monkeypatch, capsys):
    monkeypatch.setattr(convolve_plan, "_four_step_sizes", lambda precision: [32])
    row_plan = convolve_plan.plan_rows("causal", 40, 21, "float32", "four-step")
    monkeypatch.setattr(convolve_plan, "plan_rows", lambda *_: row_plan)
    candidates = convolve_tune.long_candidates(row_plan)
    assert candidates[0] == convolve_tune.Long(row_plan.columns)
    assert len({c.columns for c in candidates}) > 1
    chosen = [candidates[0], candidates[1], candidates[-1]]
    monkeypatch.setattr(convolve_tune, "long_candidates", lambda plan: chosen)
    plan = devkernels.make_fftconvolve(40, 21, "float32", "causal", tune=True)
    assert len(clock) == 3 + 3
    assert "four-step transforms of 32 points, float32: 100%" in capsys.readouterr().err
    again(monkeypatch)
    kept = devkernels.make_fftconvolve(40, 21, "float32", "causal", tune=True)
    assert kept is not plan
    assert kept.plan == plan.plan
    assert kept.describe() == plan.describe()
    x, h = random(rng, (2, 40), "float32"), random(rng, (21,), "float32")
    want = [np.convolve(row.astype(float), h)[:40] for row in x]
    assert relative_error(kept(x, h), want) < fft_bound("float32", 128, 2)


def test_a_candidate_with_wrong_results_is_left_out_with_a_warning(clock, monkeypatch):
    right = convolve_plan2d.axis_plans((8, 8), (3, 3), "float32", "same")
    wrong = (dataclasses.replace(right[0], start=0), right[1])
    monkeypatch.setattr(
        convolve_tune, "image_candidates", lambda *_: [convolve_tune.Images(right), convolve_tune.Images(wrong)]
    )
    with pytest.warns(RuntimeWarning, match="wrong results.*left out"):
        plan = devkernels.make_fftconvolve2d((8, 8), (3, 3), "float32", "same", tune=True)
    assert plan.plans == right


def test_candidates_of_the_public_sizes_fit_a_block():
    for shape, taps, dtype in (((1024, 1024), (63, 63), "float32"), ((320, 240), (9, 9), "complex128")):
        variants = [
            convolve_plan2d.axis_variants(n, k, dtype, "same", k == n) for n, k in zip(shape, taps, strict=True)
        ]
        found = convolve_tune.image_candidates(variants, dtype)
        assert len(found) <= 24
        for images in found:
            choice, down = images.columns, images.plans[0]
            assert choice is None or isinstance(choice, Choice)
            plan = convolver2d.FFTConvolve2D(images.plans, dtype, "same", columns=choice)
            assert np.array_equal(plan._filter_columns.spectrum_index, plan.columns.spectrum_index)
            if choice is not None:
                assert down.size // choice.elements * down.segments * choice.rows <= 1024
    assert len({images.plans for images in found}) > 1


@pytest.mark.parametrize("make", [
    lambda: devkernels.make_fftconvolve2d((6, 6), (3, 3), "float32", tune=True),
    lambda: devkernels.make_fftconvolve(1 << 17, 1 << 17, "float32", tune=True),
])  # fmt: skip
def test_without_a_gpu_tuning_is_refused_in_words(make, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    cache.forget()
    with pytest.raises(TargetError, match="tune=True measures plans on a GPU"):
        make()
