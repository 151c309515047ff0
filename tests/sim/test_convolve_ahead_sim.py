"""Rows that are fetched ahead: few blocks with several rows each, against float64, in the simulator."""

import numpy as np
import pytest

from devkernels.engine import ahead, choose
from devkernels.engine.block_fft import block_fft
from devkernels.kernels import convolve_ahead, convolve_plan, convolve_rows
from devkernels.kernels.convolver import FFTConvolve
from devkernels.tolerance import fft_bound, relative_error

pytestmark = pytest.mark.sim

PLANS = {
    (96, 8): choose.Choice((12, 8), 24, 1, None, True, ahead=True),
    (128, 8): choose.Choice((4, 4, 8), 16, 1, None, pairs=True, ahead=True),
    (32, 8): choose.Choice((4, 8), 8, 1, None, pairs=True, neighbours=True, ahead=True),
    (64, 8): choose.Choice((4, 2, 8), 8, 2, None, pairs=True, neighbours=True),
    (32, 16): choose.Choice((4, 8), 8, 1, None, ahead=True),
}


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    """Lengths for which the table says that rows are fetched ahead."""
    for key, choice in PLANS.items():
        monkeypatch.setitem(choose.TUNED[choose.DEFAULT], key, choice)


def numbers(rng, shape, dtype):
    real = np.float32 if dtype == "complex64" else np.float64
    return rng.standard_normal((*shape, 2)).astype(real).view(dtype)[..., 0]


def gate(value, row, place):
    return value * (1 + row)


def shift(value, row, place):
    return value + place


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(
    ("length", "dtype"), [(96, "complex64"), (128, "complex64"), (32, "complex64"), (32, "complex128")]
)
def test_rows_of_few_blocks(length, dtype, rows, rng, monkeypatch):
    used = []
    made = convolve_ahead.circular_ahead_kernel
    monkeypatch.setattr(convolve_ahead, "circular_ahead_kernel", lambda *a: used.append(a) or made(*a))
    plan = FFTConvolve(convolve_plan.plan_rows("circular", length, length, dtype), dtype, "circular", gate, shift)
    x, h = numbers(rng, (rows, length), dtype), numbers(rng, (length,), dtype)
    got = plan(x, h)
    assert used, plan.describe()
    scaled = x.astype(np.complex128) * (1 + np.arange(rows))[:, None]
    want = np.fft.ifft(np.fft.fft(scaled) * np.fft.fft(h.astype(np.complex128))) + np.arange(length)
    assert relative_error(got, want) <= fft_bound(dtype, length, 2)


def test_neighbours(rng):
    """Slots are pairs of neighbours; where an array lies beside multiples of 16 bytes they move one by one."""
    plan = FFTConvolve(convolve_plan.plan_rows("circular", 64, 64, "complex64"), "complex64", "circular", gate, shift)
    assert plan.fft.plan.neighbours
    assert plan.fft.offsets[:4] == (0, 1, 16, 17)
    rows, h = numbers(rng, (5, 64), "complex64"), numbers(rng, (64,), "complex64")
    apart = np.empty(2 * 5 * 64 + 4, dtype=np.float32)
    for start in (2, 4) if apart.ctypes.data % 16 == 0 else (4, 2):
        x = apart[start:][: 2 * 5 * 64].view(np.complex64).reshape(5, 64)
        x[...] = rows
        out = np.full_like(rows, np.nan)
        plan(x, h, out=out)
        scaled = rows.astype(np.complex128) * (1 + np.arange(5))[:, None]
        want = np.fft.ifft(np.fft.fft(scaled) * np.fft.fft(h.astype(np.complex128))) + np.arange(64)
        assert relative_error(out, want) <= fft_bound("complex64", 64, 2)
    assert {aligned for _, aligned in plan._passes} == {False, True}


def test_other_kernels_hold_no_neighbours():
    for mode, dtype in (("circular", "float32"), ("causal", "float32")):
        plan = FFTConvolve(convolve_plan.plan_rows(mode, 64, 64, dtype), dtype, mode)
        assert not plan.fft.plan.neighbours
    assert not block_fft(64).plan.neighbours


def test_a_spectrum_in_the_order_of_neighbours():
    fft = block_fft(64, neighbours=True)
    ordered = fft.order_filter(np.arange(64))
    for thread in range(fft.stride):
        found = [ordered[2 * thread + offset] for offset in fft.offsets]
        assert found == fft.spectrum_index[thread].tolist()


def test_only_rows_with_one_filter_are_fetched():
    fft = block_fft(96)
    assert fft.ahead
    assert ahead.suits(fft)
    kinds = [("complex64", "one", False), ("complex64", "channels", False), ("complex64", "one", True)]
    kinds.append(("float32", "one", False))
    assert [convolve_ahead.suits(fft, convolve_rows.Rows(*kind)) for kind in kinds] == [True, False, False, False]
    assert not ahead.suits(block_fft(96, radices=(12, 8), ffts_per_block=4))


def test_areas_of_shared_memory_do_not_meet():
    fft = block_fft(128)
    where = ahead.areas(fft)
    assert where.exchange >= where.half == 64
    assert where.barriers[0] >= where.exchange + max(fft.plan.row_words, where.half)
    assert where.words == where.barriers[1] + 1
    assert where.exchange % 2 == 0  # 16 bytes
    assert convolve_ahead.shared_bytes(fft) == 8 * where.words
