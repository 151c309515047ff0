"""Decisions of convolution plans: windows as SciPy's, transforms that hold what they must."""

import numpy as np
import pytest

from devkernels.engine import choose
from devkernels.errors import SpecError, UnsupportedSizeError
from devkernels.kernels import convolve_long, convolve_plan
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
            if plan.method == "four-step":
                check_four_step(plan, dtype, mode == "circular")
                continue
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


def check_four_step(plan, dtype, circular):
    """Every sample is written once, from where no other sample has wrapped to."""
    room = plan.size * (1 if dtype.startswith("complex") else 2)
    assert plan.parts == 1
    assert plan.taps <= room
    assert plan.size % plan.columns == 0
    assert plan.columns <= 2048
    assert (plan.segments - 1) * plan.hop < plan.window <= plan.segments * plan.hop
    assert plan.lead + plan.hop <= room
    if circular and plan.begin == 0 and plan.lead == 0 and plan.length == room:
        return
    # A transform's samples `lead ...` are those of the linear convolution of the samples `begin ... begin + room`.
    assert plan.lead + plan.begin == plan.start
    if plan.lead < plan.taps - 1:  # samples before the segment would be missing, were there any
        assert plan.begin == 0
        assert plan.segments == 1
        assert plan.length <= room
        assert plan.length + plan.taps - 1 - room <= plan.lead  # what wraps around ends before


def test_long_filters_take_few_transforms_and_short_ones_one_kernel():
    plan = plan_rows("full", 300000, 300000, "float32")
    assert (plan.method, plan.parts, plan.segments) == ("four-step", 1, 1)
    assert plan_rows("full", 1 << 26, 1 << 26, "float32").parts > 1  # beyond the longest four-step transform
    assert plan_rows("same", 1 << 22, 20000, "float32").method == "four-step"
    assert plan_rows("same", 1 << 20, 511, "float32").parts == 1
    assert plan_rows("causal", 16384, 16384, "float32").method == "linear"


def test_rows_beyond_32_bit_positions_are_refused():
    with pytest.raises(UnsupportedSizeError, match="too long"):
        plan_rows("full", 1 << 31, 3, "float32")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
@pytest.mark.parametrize("power", [15, 16, 18, 20, 22, 24])
def test_columns_of_four_step_transforms_fit_a_block(dtype, power):
    columns, rows = convolve_plan.factors(1 << power, COMPUTE[dtype])
    assert columns * rows == 1 << power
    assert rows >= columns  # columns have the smaller share of a multiprocessor's registers for each point
    for line in convolve_long.lines(columns, dtype):
        fft = convolve_long.columns_fft(columns, COMPUTE[dtype], line, convolve_long.LIGHT.get(columns))
        assert fft.plan.size == columns
        assert fft.shared_memory_size <= choose.MAX_SHARED
        assert fft.block_dim.x * fft.block_dim.y <= 1024
        assert 64 <= fft.ffts_per_block * fft.plan.word_bytes <= line  # whole sectors at least


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
def test_columns_go_back_from_where_they_came(dtype):
    for points in (24576, 65536, 196608, 393216):
        plan = convolve_plan.four_step(
            dict(length=points, taps=points, start=0, window=points, precision=COMPUTE[dtype]), dtype, True
        )
        ways = convolve_long.FourStep(plan, dtype)
        there, back = ways.columns.spectrum_index, ways.columns_back.spectrum_index
        np.testing.assert_array_equal(there, back)
        np.testing.assert_array_equal(there, ways.columns_filter.spectrum_index)
        np.testing.assert_array_equal(there, there[:, :1] + np.array(ways.columns.frequency_offsets))
