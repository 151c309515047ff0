"""The engine's machine code: no spills, no narrow loads of complex data, no block barrier where a warp's will do."""

import dataclasses
import re
import shutil
import subprocess
from collections import Counter

import numpy as np
import pytest
from cuda import pathfinder
from numba import types

import devkernels
from devkernels.engine import choose
from devkernels.engine.block_fft import block_fft
from devkernels.kernels import convolve_ahead, convolve_rows

INTEGER = types.int64


def instructions(image, tmp_path):
    """Count of each instruction of a kernel, with its modifiers."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(image.cubin)
    tool = shutil.which("nvdisasm") or pathfinder.find_nvidia_binary_utility("nvdisasm")
    assert tool, "the test extra installs nvdisasm"
    text = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)", text, re.MULTILINE)
    return Counter(found)


def total(counts, prefix):
    return sum(n for name, n in counts.items() if name.startswith(prefix))


def through_shared(counts, prefix):
    """Numbers of 8 bytes that a thread moves, with no access narrower than that."""
    assert counts[f"{prefix}.64"] + counts[f"{prefix}.128"] == total(counts, prefix)
    return counts[f"{prefix}.64"] + 2 * counts[f"{prefix}.128"]


def pair_sides(plan):
    return sum(sum(exchange.pairs) for exchange in plan.exchanges)


def circular(size, precision="float32", **knobs):
    fft = block_fft(size, precision, **knobs)
    number = types.complex64 if precision == "float32" else types.complex128
    kernel = convolve_rows.circular_kernel(fft, convolve_rows.Rows(str(number), "one", False))
    image = kernel.compile(types.void(*[number[::1]] * 3, *[INTEGER] * 6), "sm_90")
    return fft, image


@pytest.mark.parametrize("size", [64, 256, 512, 768, 1024, 2048, 4096, 8192, 16384])
def test_complex64_kernels(size, tmp_path):
    fft, image = circular(size)
    counts = instructions(image, tmp_path)
    assert image.local_bytes == 0, counts
    if fft.max_registers:  # plans with fat threads were measured with what the limit allows
        assert 0.85 * fft.max_registers < image.registers <= fft.max_registers
    assert total(counts, "LDL") == total(counts, "STL") == 0
    elements, exchanges = fft.elements_per_thread, len(fft.plan.exchanges)
    assert through_shared(counts, "LDS") == through_shared(counts, "STS") == 2 * elements * exchanges
    assert counts["LDS.128"] + counts["STS.128"] == elements * pair_sides(fft.plan)
    rows, filters, stored = "LDG.E.64", "LDG.E.64", "STG.E.64"
    if fft.streamed:
        rows, filters, stored = "LDG.E.NA.64", "LDG.E.EL.64", "STG.E.NA.64"
        assert counts[rows] == counts[filters] == elements
    assert counts[rows] >= elements * (1 if fft.streamed else 2)  # and filter; twiddles come in 16 bytes at a time
    assert counts[stored] == total(counts, "STG") == elements
    assert counts["LDG.E"] == 0
    blocks = [e.barrier for e in fft.plan.exchanges].count("block")
    assert total(counts, "BAR") == 2 * blocks
    assert blocks == (1 if fft.plan.threads > 32 else 0)
    arithmetic = sum(total(counts, name) for name in ("FFMA", "FADD", "FMUL"))
    assert arithmetic <= (fft.plan.operations() + 4.5) * elements  # and a multiplication by the filter
    assert sum(counts.values()) - counts["NOP"] <= arithmetic + (4 * exchanges + 4) * elements + 150


def test_few_elements_per_thread_under_a_low_limit(tmp_path):
    """Rows of 1000: three stages of ten elements in 56 registers, in the plain and in the causal kernel."""
    causal = block_fft(1000, frequency_offset=-0.25, real_input=True)
    kernel = convolve_rows.linear_kernel(causal, convolve_rows.Rows("float32", "channels", False), True, False)
    signature = types.void(types.float32[::1], types.complex64[::1], types.float32[::1], *[INTEGER] * 9)
    for fft, image in (circular(1000), (causal, kernel.compile(signature, "sm_90"))):
        counts = instructions(image, tmp_path)
        assert image.registers <= fft.max_registers == 56
        assert image.local_bytes == total(counts, "LDL") == total(counts, "STL") == 0
        assert through_shared(counts, "LDS") == through_shared(counts, "STS") == 4 * fft.elements_per_thread


def test_streamed_rows_pass_the_first_cache_by(tmp_path):
    fft = dataclasses.replace(block_fft(64), streamed=True)
    kernel = convolve_rows.circular_kernel(fft, convolve_rows.Rows("complex64", "one", False))
    image = kernel.compile(types.void(*[types.complex64[::1]] * 3, *[INTEGER] * 6), "sm_90")
    counts = instructions(image, tmp_path)
    assert counts["LDG.E.NA.64"] == counts["LDG.E.EL.64"] == counts["STG.E.NA.64"] == fft.elements_per_thread


def test_neighbours_move_in_pairs_all_the_way(tmp_path):
    """And one by one between memory and registers where arrays are not aligned to 16 bytes."""
    fft = block_fft(512, neighbours=True)
    rows, half = convolve_rows.Rows("complex64", "one", False), fft.elements_per_thread // 2
    signature = types.void(*[types.complex64[::1]] * 3, *[INTEGER] * 6)
    for aligned in (True, False):
        image = convolve_rows.circular_kernel(fft, rows, aligned).compile(signature, "sm_90")
        counts = instructions(image, tmp_path)
        assert image.local_bytes == total(counts, "LDL") == total(counts, "STL") == 0
        assert counts["LDS.128"] == total(counts, "LDS") == counts["STS.128"] == total(counts, "STS") == 2 * half
        assert total(counts, "STG") == (counts["STG.E.128"] if aligned else counts["STG.E.64"])
        assert total(counts, "STG") == (half if aligned else 2 * half)
        assert counts["LDG.E.128"] == (2 * half if aligned else half)  # rows, and the filter


@pytest.mark.parametrize("size", sorted(size for size, words in choose.UNEVEN if words == 8))
@pytest.mark.parametrize("causal", [False, True])
def test_stages_of_different_numbers_of_threads(size, causal, tmp_path):
    fft = block_fft(size, uneven=True, frequency_offset=-0.25 if causal else 0.0, real_input=causal)
    assert fft.uneven
    if causal:
        kernel = convolve_rows.linear_kernel(fft, convolve_rows.Rows("float32", "channels", False), True, False)
        arrays = [types.float32[::1], types.complex64[::1], types.float32[::1]]
    else:
        kernel = convolve_rows.circular_kernel(fft, convolve_rows.Rows("complex64", "one", False))
        arrays = [types.complex64[::1]] * 3
    image = kernel.compile(types.void(*arrays, *[INTEGER] * (9 if causal else 6)), "sm_90")
    counts = instructions(image, tmp_path)
    assert image.local_bytes == total(counts, "LDL") == total(counts, "STL") == 0
    plan = fft.plan
    shares = [plan.share(stage) for stage in range(1, len(plan.radices) + 1)]
    moved = shares[0] + 2 * sum(shares[1:-1]) + shares[-1]  # of the exchanges, once each way
    assert through_shared(counts, "LDS") == through_shared(counts, "STS") == moved
    assert total(counts, "STG") == shares[0]
    scopes = [e.barrier for e in plan.exchanges] + [e.reuse_barrier for e in plan.exchanges if e.reuse_barrier]
    assert total(counts, "BAR") == 2 * scopes.count("block")


def test_rows_fetched_ahead(tmp_path):
    fft = block_fft(16384, neighbours=True)
    kernel = convolve_ahead.circular_ahead_kernel(fft, convolve_rows.Rows("complex64", "one", False))
    image = kernel.compile(types.void(*[types.complex64[::1]] * 3, *[INTEGER] * 6), "sm_90")
    counts = instructions(image, tmp_path)
    assert image.local_bytes == total(counts, "LDL") == total(counts, "STL") == 0
    assert total(counts, "UBLKCP") == 4  # two halves before the loop, two in it
    assert counts["STG.E.NA.128"] == total(counts, "STG") == counts["LDG.E.EL.128"] == fft.elements_per_thread // 2
    assert total(counts, "LDG.E.NA") == 0  # no row is loaded by the threads
    blocks = [e.barrier for e in fft.plan.exchanges].count("block")
    assert total(counts, "BAR") == 2 * blocks + 3
    assert convolve_ahead.shared_bytes(fft) <= 227 << 10


def test_complex128_kernel(tmp_path):
    fft, image = circular(512, "float64")
    counts = instructions(image, tmp_path)
    assert image.local_bytes == 0
    assert counts["LDS.128"] == counts["STS.128"] == 2 * fft.elements_per_thread * len(fft.plan.exchanges)
    assert counts["STG.E.128"] == fft.elements_per_thread


@pytest.mark.parametrize("size", [256, 1024, 4096])
def test_real_causal_kernel(size, tmp_path):
    fft = block_fft(size, frequency_offset=-0.25, real_input=True)
    kernel = convolve_rows.linear_kernel(fft, convolve_rows.Rows("float32", "channels", False), True, False)
    real, number = types.float32[::1], types.complex64[::1]
    counts = instructions(kernel.compile(types.void(real, number, real, *[INTEGER] * 9), "sm_90"), tmp_path)
    assert total(counts, "LDL") == total(counts, "STL") == 0
    rows = ".NA" if fft.streamed else ""
    assert counts[f"STG.E{rows}"] == counts[f"LDG.E{rows}"] == fft.elements_per_thread
    assert through_shared(counts, "LDS") == 2 * fft.elements_per_thread * len(fft.plan.exchanges)


@pytest.mark.parametrize(
    ("length", "taps", "mode", "dtype", "kernels"),
    [(96, 96, "causal", "float32", 3), (100, 7, "circular", "complex64", 3), (50, 3, "same", "float16", 3),
     (20000, 17000, "full", "float32", 5)],
)  # fmt: skip
def test_image_sources_compile(length, taps, mode, dtype, kernels):
    sources = devkernels.make_fftconvolve(length, taps, dtype, mode).image_sources()
    assert len(sources) == kernels
    for kernel, signature, notes in sources.values():
        assert devkernels.compile(kernel, signature, "sm_90", notes=notes).local_bytes == 0


def test_plan_without_twiddle_tables_has_one_stage():
    fft, _ = circular(16)
    assert fft.plan.radices == (16,)
    assert np.array_equal(fft.spectrum_index, np.arange(16)[None])
