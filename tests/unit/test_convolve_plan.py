"""Decisions of convolution plans: windows as SciPy's, transforms that hold what they must."""

import numpy as np
import pytest

from devkernels.errors import SpecError, UnsupportedSizeError
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolve_plan import COMPUTE, MODES, plan_rows, window

LENGTHS = [1, 2, 5, 97, 449, 1000, 4096, 16384, 300000]


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("taps", range(1, 9))
def test_windows_are_those_of_scipy(length, taps):
    x, h = np.arange(1.0, length + 1), np.arange(1.0, taps + 1) ** 2
    full = np.convolve(x, h)
    for mode in ("full", "same", "valid"):
        start, samples = window(mode, length, taps)
        if mode == "same":  # scipy centres on the first operand, numpy on the longer one
            low = (len(full) - length) // 2
            want = full[low : low + length]
        else:
            want = np.convolve(x, h, mode)
        np.testing.assert_array_equal(full[start : start + samples], want)
    assert window("causal", length, taps) == window("circular", length, taps) == (0, length)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", list(COMPUTE))
def test_transforms_hold_what_they_must(mode, dtype):
    for length in LENGTHS:
        for taps in LENGTHS:
            if mode == "circular" and taps > length:
                with pytest.raises(SpecError):
                    plan_rows(mode, length, taps, dtype)
                continue
            plan = plan_rows(mode, length, taps, dtype)
            assert plan.window > 0
            assert plan.size <= convolve_plan.choose.largest(convolve_plan.word_bytes(plan.precision))
            if plan.method == "circular":
                assert plan.size == length
            elif plan.method == "linear":  # sample n and n + 2 size of the full convolution must not meet
                assert plan.size >= max(length, taps)
                assert not dtype.startswith("complex")
                assert plan.tail == (plan.start + plan.window > plan.size)
            else:
                assert plan.hop >= 1
                assert plan.part <= plan.size
                assert plan.parts * plan.part >= taps


def test_long_filters_take_several_passes_and_short_ones_do_not():
    assert plan_rows("full", 300000, 300000, "float32").parts == 37
    assert plan_rows("same", 1 << 20, 511, "float32").parts == 1
    assert plan_rows("causal", 16384, 16384, "float32").method == "linear"


def test_rows_beyond_32_bit_positions_are_refused():
    with pytest.raises(UnsupportedSizeError, match="too long"):
        plan_rows("full", 1 << 31, 3, "float32")
