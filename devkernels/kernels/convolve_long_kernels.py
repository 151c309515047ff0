"""Kernels of convolution with filters that no block transform holds: a transform of n1 n2 points in two steps.

in: two `BlockFFT`, along columns (n1 points) and along rows (n2). out: `devkernels.kernel` objects over flat arrays.

Sample n = i n2 + c of a row is element (i, c) of an n1 x n2 page. Columns are transformed first, several neighbouring
ones in a block so that memory is read in whole lines, and turned; then, in one kernel, each row of the page is
transformed, multiplied with the filter and transformed back; then the columns are turned back and transformed back. The
turns are the twiddle factors between the two steps, ``exp(-2 pi i c (k + offset) / n1 n2)`` for frequency k of the
column, split into a factor of each of a thread's elements and one of the thread, for each column. (Bailey, FFTs in
external or hierarchical memory, 1989.) The column kernels have time for them, where the one along rows issues as many
instructions as it can. Page rows stay in the order in which the column transform leaves them.

Real rows travel as complex ones of half their length, without a split afterwards: with frequencies k - 1/4,
``z[n] = x[n] + i x[n + N]`` is transformed modulo z**N = i, so that products are convolutions of 2 N real samples
modulo z**(2 N) = -1. A *plate* is one such transform: a row, or one of its `segments` (overlap-save).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import emit
from devkernels.engine.block_fft import BlockFFT
from devkernels.kernels.convolve_steps import convolved, each_sample, finish, line_of, spectrum_of
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.lazy import cuda

_u = np.uint32  # divisions of 64-bit numbers cost a hundred instructions


def _halves(dtype: str, halves: bool) -> tuple[str, ...]:
    """Parts of a complex number that take samples: all, the real one, or the first and second half of the samples."""
    if dtype.startswith("complex"):
        return ("both",)
    return ("real", "imag") if halves else ("real",)


def _reader(fft: BlockFFT, pitch: int, dtype: str, part: str, wraps: bool, prologue: Callable | None) -> Callable:
    """Device function ``f(data, x, row, base, position, length, extra)``: one part of a thread's share of a segment."""
    offsets = tuple(offset * pitch for offset in fft.offsets)
    load = emit.gather(emit.Move(offsets, fft.dtype.name, dtype, part, masked=True))
    again = emit.gather(emit.Move(offsets, fft.dtype.name, dtype, part, masked=True, keep=True))
    before = each_sample(fft, prologue, part, pitch, wraps)

    def read(data, x, row, base, position, length, extra):
        load(data, x, base + position, position, length)
        if wraps:
            again(data, x, base + position + length, position + length, length)
        before(data, row, position, length, extra)

    return device_function(read)


def _turn(fft: BlockFFT, pitch: int, back: bool = False) -> Callable:
    """Device function ``f(data, element_turns, thread_turns, column, thread)``: turn a thread's elements, or back."""
    elements, number = fft.elements_per_thread, fft.dtype
    by_element = emit.gather(emit.Move(tuple(e * pitch for e in range(elements)), fft.dtype.name))
    by_thread = emit.gather(emit.Move((0,), fft.dtype.name))

    def turn(data, element_turns, thread_turns, column, thread):
        turns = cuda.local.array(elements, number)
        mine = cuda.local.array(1, number)
        by_element(turns, element_turns, column)
        by_thread(mine, thread_turns, thread * pitch + column)
        for e in range(elements):
            factor = turns[e] * mine[0]
            if back:
                factor = factor.conjugate()
            data[e] = data[e] * factor

    return device_function(turn)


@lazy_kernel
def columns_forward_kernel(
    fft: BlockFFT, pitch: int, dtype: str, halves: bool, wraps: bool, prologue: Callable | None = None
):
    """Kernel ``f(x, work, *turns, plate, segments, x_inner, x_rows, length, begin, hop, extra)``.

    The grid is (chunks of columns, plates).
    Segment s of a row starts at its sample ``begin + s hop``; samples outside of the row are zero, or with `wraps`
    those before it are the last ones.
    """
    parts = _halves(dtype, halves)
    first = _reader(fft, pitch, dtype, parts[0], wraps, prologue)
    second = _reader(fft, pitch, dtype, parts[-1], wraps, prologue)
    two = len(parts) == 2
    store = emit.scatter(emit.Move(tuple(offset * pitch for offset in fft.offsets), fft.dtype.name))
    forward, here, turn, points = fft.forward, line_of(fft), _turn(fft, pitch), fft.size * pitch
    elements, number = fft.elements_per_thread, fft.dtype

    def transform_columns(
        x, work, element_turns, thread_turns, plate, segments, x_inner, x_rows, length, begin, hop, extra
    ):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, column = here()
        live = column < pitch
        column = min(column, pitch - 1)
        place = thread * pitch + column
        page = np.int64(cuda.blockIdx.y)
        segment = np.int64(_u(plate + page) % _u(segments))
        row = np.int64(_u(plate + page) // _u(segments))
        base = np.int64(_u(row) // _u(x_inner) % _u(x_rows)) * length
        position = begin + segment * hop + place
        first(data, x, row, base, position, length, extra)
        if two:
            second(data, x, row, base, position + points, length, extra)
        forward(data, shared)
        turn(data, element_turns, thread_turns, column, thread)
        if live:
            store(data, work, page * points + place)

    return finish(fft, transform_columns)


@lazy_kernel
def rows_filter_kernel(fft: BlockFFT, height: int, across: bool):
    """Kernel ``f(work, spectra, plate, segments, inner, groups)``: grid (chunks of page rows, plates).

    In place. Row r of the output uses filter ``r // inner % groups``. Pages are taken in the opposite order of the
    other kernels: those written last by the kernel before are still in the L2 cache. With `across` the grid is
    (plates, chunks): the same page row of all plates comes one after the other, for spectra larger than that cache.
    """
    load, store, here, convolve = fft.load, fft.store, line_of(fft), convolved(fft)
    elements, number, size, per_block = fft.elements_per_thread, fft.dtype, fft.size, fft.ffts_per_block

    def filter_rows(work, spectra, plate, segments, inner, groups):
        data = cuda.local.array(elements, number)
        factors = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, line = here()
        if across:
            page = np.int64(cuda.blockIdx.x)
            line = np.int64(cuda.blockIdx.y) * per_block + np.int64(cuda.threadIdx.y)
        else:
            page = np.int64(cuda.gridDim.y) - 1 - np.int64(cuda.blockIdx.y)
        live = line < height
        line = min(line, height - 1)
        group = np.int64(_u(plate + page) // _u(segments) // _u(inner) % _u(groups))
        base = (page * height + line) * size + thread
        load(data, work, base)
        convolve(data, factors, shared, spectra, (group * height + line) * size + thread)
        if live:
            store(data, work, base)

    return finish(fft, filter_rows)


@lazy_kernel
def rows_spectrum_kernel(fft: BlockFFT, height: int):
    """Kernel ``f(spectra)``: the second step for filters, in place, over the points."""
    load, store, here = fft.load, fft.store, line_of(fft)
    elements, number, size = fft.elements_per_thread, fft.dtype, fft.size
    transform = spectrum_of(fft, size * height)

    def transform_rows(spectra):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, line = here()
        live = line < height
        line = min(line, height - 1)
        base = (np.int64(cuda.blockIdx.y) * height + line) * size + thread
        load(data, spectra, base)
        transform(data, shared)
        if live:
            store(data, spectra, base)

    return finish(fft, transform_rows)


@lazy_kernel
def columns_inverse_kernel(fft: BlockFFT, pitch: int, dtype: str, halves: bool, epilogue: Callable | None = None):
    """Kernel ``f(work, out, *turns, plate, segments, lead, hop, window, extra)``: grid as in the forward one.

    Samples ``lead ... lead + hop`` of a segment's transform are samples ``s hop ...`` of the output's row.
    """
    parts = _halves(dtype, halves)
    offsets = tuple(offset * pitch for offset in fft.offsets)
    load = emit.gather(emit.Move(offsets, fft.dtype.name))
    first, second = (
        emit.scatter(emit.Move(offsets, fft.dtype.name, dtype, part, masked=True)) for part in (parts[0], parts[-1])
    )
    after, after_second = (each_sample(fft, epilogue, part, pitch) for part in (parts[0], parts[-1]))
    two = len(parts) == 2
    inverse, here, turn, points = fft.inverse, line_of(fft), _turn(fft, pitch, back=True), fft.size * pitch
    elements, number = fft.elements_per_thread, fft.dtype

    def finish_columns(work, out, element_turns, thread_turns, plate, segments, lead, hop, window, extra):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, column = here()
        live = column < pitch
        column = min(column, pitch - 1)
        place = thread * pitch + column
        page = np.int64(cuda.blockIdx.y)
        load(data, work, page * points + place)
        turn(data, element_turns, thread_turns, column, thread)
        inverse(data, shared)
        if live:
            done = np.int64(_u(plate + page) % _u(segments)) * hop
            row = np.int64(_u(plate + page) // _u(segments))
            limit = min(hop, window - done)
            base = row * window + done
            sample = place - lead
            after(data, row, sample + done, min(window, done + hop), extra)
            first(data, out, base + sample, sample, limit)
            if two:
                after_second(data, row, sample + points + done, min(window, done + hop), extra)
                second(data, out, base + sample + points, sample + points, limit)

    return finish(fft, finish_columns)
