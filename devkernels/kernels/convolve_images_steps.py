"""The three steps of a convolution over two axes as device functions: rows there, columns with the filter, rows back.

in: a `BlockFFT` along the axis. out: functions over a thread's local array, for the kernels of `convolve_images`, which
say where in the grid a step is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import emit
from devkernels.engine.block_fft import BlockFFT
from devkernels.kernels.convolve_steps import each_sample, finite_only, not_finite, spoiler
from devkernels.lazy import cuda

WHOLE = (1, 0)  # an axis in one piece: (segments, samples that each gives)


@dataclass(frozen=True)
class Bands:
    """One real image as the two of a plate: its upper and its lower half, with the rows around that they need.

    Row r of a page is rows ``begin + r`` and ``begin + hop + r`` of the image, r < `rows`; the halves give `hop` rows.
    """

    hop: int
    begin: int
    rows: int


def _apart(fft: BlockFFT) -> Callable:
    """Device function ``f(data, marks, place)``: take what is not finite for zero, and mark in which part it was."""
    found_in, clear = not_finite(fft), finite_only(fft)

    def separate(data, marks, place):
        mark = 0
        found = found_in(data)
        if cuda.syncthreads_or(np.int32(found)):
            mark = 1 if cuda.syncthreads_or(np.int32(found & 1)) else 0
            mark |= 2 if cuda.syncthreads_or(np.int32(found & 2)) else 0
            clear(data)
        if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
            marks[place] = mark

    return device_function(separate)


def _spoil(fft: BlockFFT, both: bool = False) -> Callable:
    """Device function ``f(data, marks, start, count)``: make the marked parts NaN, or with `both` both if one is."""
    stride, threads, spoil = fft.stride, fft.stride * fft.ffts_per_block, spoiler(fft)

    def spoil_marked(data, marks, start, count):
        mark = 0
        for place in range(cuda.threadIdx.y * stride + cuda.threadIdx.x, count, threads):
            mark |= marks[start + place]
        if cuda.syncthreads_or(np.int32(mark)):
            first, second = cuda.syncthreads_or(np.int32(mark & 1)), cuda.syncthreads_or(np.int32(mark & 2))
            spoil(data, 3 if both else (1 if first else 0) | (2 if second else 0))

    return device_function(spoil_marked)


def rows_there(
    fft: BlockFFT, dtype: str, pairs: bool, wraps: bool, prologue: Callable | None,
    known: emit.Spans, segments: tuple[int, int], bands: Bands | None = None,
) -> Callable:  # fmt: skip
    """Device function that reads a segment of a row of a page's images and transforms it; see `rows_forward_kernel`.

    `line` is the number of the segment in its page, `mark` the place where the block marks what is not finite.
    """
    count, hop = segments
    real = not dtype.startswith("complex")
    parts = ("real", "imag") if real else ("both", "both")
    inside, within = known
    first, second = (
        emit.gather(emit.Move(fft.offsets, fft.dtype.name, dtype, part, masked=True, inside=inside, within=within))
        for part in parts
    )
    around, around_second = (
        emit.gather(emit.Move(fft.offsets, fft.dtype.name, dtype, part, masked=True, keep=True)) for part in parts
    )
    before, before_second = (each_sample(fft, prologue, part, 1, wraps, True) for part in parts)
    forward, store, separate, elements, size = fft.forward, fft.store, _apart(fft), fft.elements_per_thread, fft.size
    step, zero = 2 if pairs else 1, fft.dtype.type(0)
    halves, top, below, most = (False, 0, 0, 0) if bands is None else (True, bands.begin, bands.hop, bands.rows)

    def transform(
        data, shared, x, work, marks, thread, line, page, mark, images, groups, image_rows, image_columns,
        page_rows, lead_y, lead_x, extra,
    ):  # fmt: skip
        group = np.int64(np.uint32(page) % np.uint32(groups))  # 32 bits: a division of 64 is a long one
        image = step * (page - group) + group
        row, column = line, thread
        if count > 1:
            row = np.int64(np.uint32(line) // np.uint32(count))
            column = thread + (line - row * count) * hop
        live = row < image_rows + lead_y
        width = image_columns if live else 0
        source = min(row, image_rows - 1)
        if halves:
            live, place = row < most, row + top
            source = max(0, min(place, image_rows - 1))
            width = image_columns if place == source else 0
        if wraps:
            source = row - lead_y if row >= lead_y else row - lead_y + image_rows
        column -= lead_x
        base = (image * image_rows + source) * image_columns + column
        if real and not pairs:
            for e in range(elements):
                data[e] = zero
        first(data, x, base, column, width)
        if wraps:
            around(data, x, base + image_columns, column + image_columns, width if column < 0 else 0)
        before(data, (image, source), column, width, extra)
        if pairs:
            other = image + groups
            if halves:
                other, place = image, row + top + below
                source = max(0, min(place, image_rows - 1))
                if width == 0:  # slots that are known to lie inside have been read nonetheless
                    for e in range(elements):
                        data[e] = zero
                width = image_columns if place == source else 0
            width = width if other < images else 0
            base = ((other if other < images else image) * image_rows + source) * image_columns + column
            second(data, x, base, column, width)
            if wraps:
                around_second(data, x, base + image_columns, column + image_columns, width if column < 0 else 0)
            if halves and width == 0:
                for e in range(elements):
                    data[e] = complex(data[e].real, zero.real)
            before_second(data, (other, source), column, width, extra)
            separate(data, marks, mark)
        forward(data, shared)
        if live:
            store(data, work, (page * page_rows * count + line) * size + thread)

    return device_function(transform)


def columns_through(
    fft: BlockFFT, width: int, read: emit.Spans, written: emit.Spans,
    segments: tuple[int, int], across: int,
) -> Callable:  # fmt: skip
    """Device function that takes a block's columns of a page through the filter; see `columns_kernel`.

    `chunk` is the number of the block in its page.
    """
    (count, hop), points, per_block = segments, width // across, fft.ffts_per_block // segments[0]
    meets = count > 1 and "block" not in [exchange.barrier for exchange in fft.plan.exchanges]
    at_filter = tuple(offset * points for offset in fft.offsets)
    offsets = tuple(offset * width for offset in fft.offsets)
    load = emit.gather(emit.Move(offsets, fft.dtype.name, masked=True, inside=read[0], within=read[1]))
    store = emit.scatter(emit.Move(offsets, fft.dtype.name, masked=True, inside=written[0], within=written[1]))
    load_filter, size = emit.gather(emit.Move(at_filter, fft.dtype.name)), fft.size
    forward, filter_inverse = fft.forward, fft.filter_inverse

    def through(
        data, factors, shared, work, spectra, thread, lane, chunk, page, groups, image_rows, page_rows, begin,
        start, window,
    ):  # fmt: skip
        place, done = lane, np.int64(0)
        if count > 1:
            done = lane // per_block * hop  # rows that the segments before give
            place = lane % per_block
        column = chunk * per_block + place
        live = column < width
        column = min(column, width - 1)
        base = page * page_rows * width
        place = (thread + done + begin) * width + column
        load(data, work, base + place, place, image_rows * width)
        forward(data, shared)
        if meets:  # all segments have been read
            cuda.syncthreads()
        group = np.int64(np.uint32(page) % np.uint32(groups))
        frequency = column
        if across > 1:
            frequency = np.int64(np.uint32(column) % np.uint32(points))
        load_filter(factors, spectra, (group * size + thread) * points + frequency)
        filter_inverse(data, factors, shared)
        if live:
            place = (thread - start) * width + column
            limit = window
            if count > 1:
                limit = max(0, min(hop, window - done))
            store(data, work, base + done * width + place, place, limit * width)

    return device_function(through)


def rows_back(
    fft: BlockFFT, dtype: str, pairs: bool, epilogue: Callable | None, known: emit.Spans,
    segments: tuple[int, int], bands: Bands | None = None,
) -> Callable:  # fmt: skip
    """Device function that transforms a segment of a page's row back and writes it; see `rows_inverse_kernel`."""
    count, hop = segments
    real = not dtype.startswith("complex")
    ends = ("real", "imag") if real else ("both", "both")
    inside, within = known
    first, second = (
        emit.scatter(emit.Move(fft.offsets, fft.dtype.name, dtype, part, masked=True, inside=inside, within=within))
        for part in ends
    )
    load, inverse, size, step = fft.load, fft.inverse, fft.size, 2 if pairs else 1
    spoil = _spoil(fft, bands is not None)
    halves, below = (False, 0) if bands is None else (True, bands.hop)
    after, after_second = (each_sample(fft, epilogue, part, 1, False, True) for part in ends)

    def transform(
        data, shared, work, out, marks, thread, line, page, images, groups, out_rows, out_columns,
        page_rows, start, chunks, extra,
    ):  # fmt: skip
        group = np.int64(np.uint32(page) % np.uint32(groups))  # 32 bits: a division of 64 is a long one
        image = step * (page - group) + group
        last = (below if halves else out_rows) * count - 1
        load(data, work, (page * page_rows * count + min(line, last)) * size + thread)
        inverse(data, shared)
        if pairs:
            spoil(data, marks, page * chunks, chunks)
        row, done, limit = line, np.int64(0), out_columns
        if count > 1:
            row = np.int64(np.uint32(line) // np.uint32(count))
            done = (line - row * count) * hop
            limit = max(0, min(hop, out_columns - done))
        if line <= last:
            column = thread - start
            after(data, (image, row), column + done, out_columns, extra)
            first(data, out, (image * out_rows + row) * out_columns + done + column, column, limit)
            other = image + groups
            if halves:
                other = image if row + below < out_rows else images
                row += below
            if pairs and other < images:
                after_second(data, (other, row), column + done, out_columns, extra)
                second(data, out, (other * out_rows + row) * out_columns + done + column, column, limit)

    return device_function(transform)
