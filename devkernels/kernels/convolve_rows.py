"""Kernels of convolution along rows: forward transform, product with the filter, inverse, all on chip.

in: a `BlockFFT` and what the rows are (complex, real, in half precision; broadcast how). out: `devkernels.kernel`
objects over flat arrays.

A launch is a grid (chunks, groups): a group is one filter, a chunk `ffts_per_block` transforms that use it. Member m
of group g is output row ``(m // inner * groups + g) * inner + m % inner``: one filter for all rows is inner = rows,
groups = 1; one per channel of (batch, channels, length) is inner = 1, groups = channels; both cost no division.
The last argument, `extra`, is an array for the caller's functions, or a number that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import emit, uneven
from devkernels.engine.block_fft import BlockFFT
from devkernels.kernels.convolve_steps import convolved, each_sample, finish, line_of, spectrum_of
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.lazy import cuda


@dataclass(frozen=True)
class Rows:
    """What a kernel is specialised for."""

    dtype: str  # of x and of the result in memory
    layout: str  # "one" filter, "channels" (inner == 1), or "any"
    repeats: bool  # x has fewer rows than the output
    prologue: Callable | None = None
    epilogue: Callable | None = None

    @property
    def real(self) -> bool:
        """Whether samples are real."""
        return not self.dtype.startswith("complex")


def _row_functions(rows: Rows):
    """Device functions: output row of (group, member), and x's row of an output row."""
    if rows.layout == "one":

        def out_row(group, member, groups, inner):
            return member
    elif rows.layout == "channels":

        def out_row(group, member, groups, inner):
            return member * groups + group
    else:

        def out_row(group, member, groups, inner):
            return (member // inner * groups + group) * inner + member % inner

    if rows.repeats:

        def x_row(row, x_inner, x_rows):
            return row // x_inner % x_rows
    else:

        def x_row(row, x_inner, x_rows):
            return row

    return device_function(out_row), device_function(x_row)


def moves(fft: BlockFFT, rows: Rows, part: str, masked: bool, keep: bool = False, adds: bool = False, pairs=False):
    """Load and store of rows, or of one part of them."""
    move = emit.Move(fft.offsets, fft.dtype.name, rows.dtype, part, masked, keep, adds, fft.rows_cache, pairs)
    load, store = emit.gather(move), emit.scatter(move)
    if fft.uneven:
        load = uneven.by_those_that_load(fft.plan, load, masked)  # stores are of rows that there are
    return load, store


@lazy_kernel
def filter_kernel(fft: BlockFFT, dtype: str):
    """Kernel ``f(h, spectra, count, length, pitch, skip)``: the spectra of filters, in the engine's order, over size.

    Filter r has `length` samples from ``h[r * pitch + skip]``.
    """
    real = not dtype.startswith("complex")
    load = emit.gather(emit.Move(fft.offsets, fft.dtype.name, dtype, "real" if real else "both", masked=True))
    elements, dtype_, size, store = fft.elements_per_thread, fft.dtype, fft.size, fft.store_spectrum
    transform, here, zero = spectrum_of(fft, size), line_of(fft), dtype_.type(0)
    there = line_of(fft, spectra=True)

    def transform_filters(h, spectra, count, length, pitch, skip):
        data = cuda.local.array(elements, dtype_)
        shared = cuda.shared.array(0, dtype_)
        thread, row = here()
        for e in range(elements):
            data[e] = zero
        load(data, h, min(row, count - 1) * pitch + skip + thread, thread, length)
        transform(data, shared)
        thread, row = there()
        if row < count:
            store(data, spectra, row * size + thread)

    return finish(fft, transform_filters)


@lazy_kernel
def circular_kernel(fft: BlockFFT, rows: Rows, aligned: bool = True):
    """Kernel of circular convolution of complex rows whose length is the transform's.

    A transform with neighbours moves them 16 bytes at a time, if arrays are aligned so.
    """
    load, store = moves(fft, rows, "both", masked=False, pairs=aligned and fft.plan.neighbours)
    out_row, x_row = _row_functions(rows)
    before, after = (each_sample(fft, function, "both") for function in (rows.prologue, rows.epilogue))
    convolve, here = convolved(fft), line_of(fft)
    elements, dtype, size = fft.elements_per_thread, fft.dtype, fft.size

    def convolve_circular(x, spectra, out, members, groups, inner, x_inner, x_rows, extra):
        data = cuda.local.array(elements, dtype)
        factors = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        thread, member = here()
        group = np.int64(cuda.blockIdx.y)
        row = out_row(group, min(member, members - 1), groups, inner)
        load(data, x, x_row(row, x_inner, x_rows) * size + thread)
        before(data, row, thread, size, extra)
        convolve(data, factors, shared, spectra, group * size + thread)
        if member < members:
            after(data, row, thread, size, extra)
            store(data, out, row * size + thread)

    return finish(fft, convolve_circular)


@lazy_kernel
def circular_pair_kernel(fft: BlockFFT, rows: Rows):
    """Kernel of circular convolution of real rows, two of them as one complex row."""
    load_first, store_first = moves(fft, rows, "real", masked=False)
    load_second, store_second = moves(fft, rows, "imag", masked=False)
    out_row, x_row = _row_functions(rows)
    before, before_second = (each_sample(fft, rows.prologue, part) for part in ("real", "imag"))
    after, after_second = (each_sample(fft, rows.epilogue, part) for part in ("real", "imag"))
    convolve, here = convolved(fft, pairs=True), line_of(fft)
    elements, dtype, size = fft.elements_per_thread, fft.dtype, fft.size

    def convolve_circular_pairs(x, spectra, out, members, groups, inner, x_inner, x_rows, extra):
        data = cuda.local.array(elements, dtype)
        factors = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        thread, member = here()
        group, member = np.int64(cuda.blockIdx.y), 2 * member
        first = out_row(group, min(member, members - 1), groups, inner)
        second = out_row(group, min(member + 1, members - 1), groups, inner)
        load_first(data, x, x_row(first, x_inner, x_rows) * size + thread)
        load_second(data, x, x_row(second, x_inner, x_rows) * size + thread)
        before(data, first, thread, size, extra)
        before_second(data, second, thread, size, extra)
        convolve(data, factors, shared, spectra, group * size + thread)
        if member < members:
            after(data, first, thread, size, extra)
            store_first(data, out, first * size + thread)
        if member + 1 < members:
            after_second(data, second, thread, size, extra)
            store_second(data, out, second * size + thread)

    return finish(fft, convolve_circular_pairs)


@lazy_kernel
def linear_kernel(fft: BlockFFT, rows: Rows, whole: bool, tail: bool):
    """Kernel of linear convolution of real rows not longer than the transform, by right-angle weights.

    The window of `window` samples from sample `start` of the full convolution is written. With `whole`, rows have the
    transform's length and the window is its first half: nothing is masked. With `tail` the window reaches into the
    second half.
    """
    load, store = moves(fft, rows, "real", masked=not whole)
    _, store_tail = moves(fft, rows, "imag", masked=True)
    out_row, x_row = _row_functions(rows)
    before = each_sample(fft, rows.prologue, "real")
    after, after_tail = (each_sample(fft, rows.epilogue, part) for part in ("real", "imag"))
    convolve, here = convolved(fft), line_of(fft)
    elements, dtype, size = fft.elements_per_thread, fft.dtype, fft.size

    def convolve_linear(x, spectra, out, members, groups, inner, x_inner, x_rows, length, start, window, extra):
        data = cuda.local.array(elements, dtype)
        factors = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        thread, member = here()
        group = np.int64(cuda.blockIdx.y)
        row = out_row(group, min(member, members - 1), groups, inner)
        base = x_row(row, x_inner, x_rows) * length + thread
        if whole:
            load(data, x, base)
        else:
            load(data, x, base, thread, length)
        before(data, row, thread, length, extra)
        convolve(data, factors, shared, spectra, group * size + thread)
        if member < members:
            if whole:
                after(data, row, thread, size, extra)
                store(data, out, row * size + thread)
            else:
                first = thread - start
                after(data, row, first, window, extra)
                store(data, out, row * window + first, first, window)
                if tail:
                    after_tail(data, row, first + size, window, extra)
                    store_tail(data, out, row * window + first + size, first + size, window)

    return finish(fft, convolve_linear)


@lazy_kernel
def overlap_kernel(fft: BlockFFT, rows: Rows, wraps: bool, adds: bool = False):
    """Kernel of overlap-save: segments of rows of any length, with a filter shorter than the transform.

    Output sample m of a row is sample ``start + m`` of its full convolution (or, with `wraps`, of the circular one).
    A segment gives ``hop = size - taps + 1`` samples; real rows go two segments at a time. The grid is
    (chunks of segments, rows). With `adds` the samples are added to what `out` holds.
    """
    part = "real" if rows.real else "both"
    inside, _ = moves(fft, rows, part, masked=False)
    load, store = moves(fft, rows, part, masked=True, adds=adds)
    wrap, _ = moves(fft, rows, part, masked=True, keep=True)
    real = rows.real
    second = "imag" if real else "both"
    inside_second, _ = moves(fft, rows, second, masked=False)
    load_second, store_second = moves(fft, rows, second, masked=True, adds=adds)
    wrap_second, _ = moves(fft, rows, second, masked=True, keep=True)
    convolve, here = convolved(fft), line_of(fft)
    elements, dtype, size = fft.elements_per_thread, fft.dtype, fft.size
    step = 2 if real else 1
    one, repeats = rows.layout == "one", rows.repeats

    before = each_sample(fft, rows.prologue, part, 1, wraps)
    before_second = each_sample(fft, rows.prologue, second, 1, wraps)
    after, after_second = (each_sample(fft, rows.epilogue, which) for which in (part, second))
    fetch = _fetch(inside, load, wrap, size, wraps)
    fetch_second = _fetch(inside_second, load_second, wrap_second, size, wraps)

    def convolve_overlapping(x, spectra, out, rows, inner, groups, x_inner, x_rows, length, taps, start, window, extra):
        data = cuda.local.array(elements, dtype)
        factors = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        thread, pair = here()
        row = np.int64(cuda.blockIdx.z) * np.int64(cuda.gridDim.y) + np.int64(cuda.blockIdx.y)
        live = row < rows
        row = min(row, rows - 1)
        group = np.int64(0)
        if not one:
            group = row // inner % groups
        source = row
        if repeats:
            source = row // x_inner % x_rows
        hop = size - taps + 1
        done = step * pair * hop
        begin = start + done - (taps - 1)
        fetch(data, x, source * length, begin, length, thread)
        before(data, row, begin + thread, length, extra)
        if real:
            fetch_second(data, x, source * length, begin + hop, length, thread)
            before_second(data, row, begin + hop + thread, length, extra)
        convolve(data, factors, shared, spectra, group * size + thread)
        first = thread - (taps - 1)
        if live:
            base, limit = row * window + done + first, max(0, min(hop, window - done))
            left = max(0, min(hop, window - done - hop))
            after(data, row, done + first, min(window, done + limit), extra)
            store(data, out, base, first, limit)
            if real:
                after_second(data, row, done + hop + first, min(window, done + hop + left), extra)
                store_second(data, out, base + hop, first, left)

    return finish(fft, convolve_overlapping)


def _fetch(whole: Callable, some: Callable, around: Callable, size: int, wraps: bool) -> Callable:
    """Device function that reads the segment at `position` of a row; it may lie before the row or pass its end."""

    def fetch(data, x, base, position, length, thread):
        if position >= 0 and position + size <= length:
            whole(data, x, base + position + thread)
        else:
            some(data, x, base + position + thread, position + thread, length)
            if wraps and position < 0:
                around(data, x, base + position + length + thread, position + length + thread, length)

    return device_function(fetch)
