"""Kernels of convolution over the last two axes: rows forward; columns forward, filter, inverse; rows inverse.

in: two `BlockFFT`, along rows and along columns. out: `devkernels.kernel` objects over flat arrays. Three trips through
memory; the spectrum along rows stays in the engine's order, since nobody in between cares.

Two real images travel as one complex image (convolution is linear), complex ones alone: a *plate* is such a unit. With
`groups` filters, plate q of group g holds images ``step q * groups + g`` and ``(step q + 1) * groups + g``; in the work
array plate and group make page ``q * groups + g``, of `height` rows of `width` (the row transform's length) values.

What is not finite in one image must not spoil the other of its plate: the first kernel takes it for zero and marks the
image, one number for each of its blocks (bit 0 the first image of the plate, bit 1 the second); the last kernel makes
marked images NaN throughout, as the transform would have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import emit
from devkernels.engine.block_fft import BlockFFT
from devkernels.kernels.convolve_steps import (
    each_sample,
    finish,
    finite_only,
    line_of,
    not_finite,
    spectrum_of,
    spoiler,
)
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.lazy import cuda


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


def _spoil(fft: BlockFFT) -> Callable:
    """Device function ``f(data, marks, start, count)``: make the marked parts NaN."""
    stride, threads, spoil = fft.stride, fft.stride * fft.ffts_per_block, spoiler(fft)

    def spoil_marked(data, marks, start, count):
        mark = 0
        for place in range(cuda.threadIdx.y * stride + cuda.threadIdx.x, count, threads):
            mark |= marks[start + place]
        if cuda.syncthreads_or(np.int32(mark)):
            first, second = cuda.syncthreads_or(np.int32(mark & 1)), cuda.syncthreads_or(np.int32(mark & 2))
            spoil(data, (1 if first else 0) | (2 if second else 0))

    return device_function(spoil_marked)


@lazy_kernel
def rows_forward_kernel(
    fft: BlockFFT, dtype: str, pairs: bool = False, wraps: bool = False, prologue: Callable | None = None,
    known: emit.Spans = emit.UNKNOWN,
):  # fmt: skip
    """Kernel ``f(x, work, marks, images, groups, image_rows, image_columns, page_rows, lead_y, lead_x, extra)``.

    Grid (chunks of rows, pages). With `pairs` two real images make one plate. With `wraps` row r of a page is row
    ``r - lead_y`` of the image and its sample c sample ``c - lead_x``, those before the first counted from the end.
    `known` is what is known of samples inside an image's row; without `wraps` only.
    """
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
    forward, store, separate, here = fft.forward, fft.store, _apart(fft), line_of(fft)
    elements, number, size = fft.elements_per_thread, fft.dtype, fft.size
    step, zero = 2 if pairs else 1, fft.dtype.type(0)

    def transform_rows(x, work, marks, images, groups, image_rows, image_columns, page_rows, lead_y, lead_x, extra):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, row = here()
        page = np.int64(cuda.blockIdx.y)
        group = np.int64(np.uint32(page) % np.uint32(groups))  # 32 bits: a division of 64 is a long one
        image = step * (page - group) + group
        live = row < image_rows + lead_y
        width = image_columns if live else 0
        source, column = min(row, image_rows - 1), thread
        if wraps:
            source = row - lead_y if row >= lead_y else row - lead_y + image_rows
            column = thread - lead_x
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
            width = width if other < images else 0
            base = ((other if other < images else image) * image_rows + source) * image_columns + column
            second(data, x, base, column, width)
            if wraps:
                around_second(data, x, base + image_columns, column + image_columns, width if column < 0 else 0)
            before_second(data, (other, source), column, width, extra)
            separate(data, marks, page * np.int64(cuda.gridDim.x) + np.int64(cuda.blockIdx.x))
        forward(data, shared)
        if live:
            store(data, work, (page * page_rows + row) * size + thread)

    return finish(fft, transform_rows)


@lazy_kernel
def columns_spectrum_kernel(fft: BlockFFT, width: int):
    """Kernel ``f(work, rows)``: columns of filters, of which `rows` rows are there, in place; over the points."""
    offsets = tuple(offset * width for offset in fft.offsets)
    load = emit.gather(emit.Move(offsets, fft.dtype.name, masked=True))
    store = emit.scatter(emit.Move(offsets, fft.dtype.name))
    elements, number, size = fft.elements_per_thread, fft.dtype, fft.size
    transform, here = spectrum_of(fft, size * width), line_of(fft)

    def transform_columns(work, rows):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, column = here()
        live = column < width
        first = thread * width + min(column, width - 1)
        base = np.int64(cuda.blockIdx.y) * (size * width) + first
        load(data, work, base, first, rows * width)
        transform(data, shared)
        if live:
            store(data, work, base)

    return finish(fft, transform_columns)


@lazy_kernel
def columns_kernel(
    fft: BlockFFT, width: int, read: emit.Spans = emit.UNKNOWN, written: emit.Spans = emit.UNKNOWN,
    backwards: bool = True,
):  # fmt: skip
    """Kernel ``f(work, spectra, groups, image_rows, page_rows, start, window)``: grid (chunks of columns, pages).

    In place: reads the first `image_rows` rows of a page, writes rows ``start ... start + window`` of the result;
    `read` and `written` are what is known of them. Pages are taken in the opposite order of the other kernels: those
    written last before are still in the L2 cache.
    """
    offsets = tuple(offset * width for offset in fft.offsets)
    load = emit.gather(emit.Move(offsets, fft.dtype.name, masked=True, inside=read[0], within=read[1]))
    store = emit.scatter(emit.Move(offsets, fft.dtype.name, masked=True, inside=written[0], within=written[1]))
    load_filter = emit.gather(emit.Move(offsets, fft.dtype.name))
    forward, filter_inverse, here = fft.forward, fft.filter_inverse, line_of(fft)
    elements, number, size = fft.elements_per_thread, fft.dtype, fft.size

    def filter_columns(work, spectra, groups, image_rows, page_rows, start, window):
        data = cuda.local.array(elements, number)
        factors = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, column = here()
        page = np.int64(cuda.blockIdx.y)
        if backwards:
            page = np.int64(cuda.gridDim.y) - 1 - page
        live = column < width
        first = thread * width + min(column, width - 1)
        base = page * page_rows * width
        load(data, work, base + first, first, image_rows * width)
        forward(data, shared)
        group = np.int64(np.uint32(page) % np.uint32(groups))
        load_filter(factors, spectra, group * (size * width) + first)
        filter_inverse(data, factors, shared)
        if live:
            first -= start * width
            store(data, work, base + first, first, window * width)

    return finish(fft, filter_columns)


@lazy_kernel
def rows_inverse_kernel(
    fft: BlockFFT, dtype: str, pairs: bool = False, epilogue: Callable | None = None, known: emit.Spans = emit.UNKNOWN
):
    """Kernel ``f(work, out, marks, images, groups, out_rows, out_columns, page_rows, start, chunks, extra)``.

    The grid is as in the forward one, which had `chunks` blocks for each page. `known` is what is known of the samples
    that are written.
    """
    real = not dtype.startswith("complex")
    ends = ("real", "imag") if real else ("both", "both")
    inside, within = known
    first, second = (
        emit.scatter(emit.Move(fft.offsets, fft.dtype.name, dtype, part, masked=True, inside=inside, within=within))
        for part in ends
    )
    inverse, load, here = fft.inverse, fft.load, line_of(fft)
    elements, number, size = fft.elements_per_thread, fft.dtype, fft.size
    step, spoil = 2 if pairs else 1, _spoil(fft)
    after, after_second = (each_sample(fft, epilogue, part, 1, False, True) for part in ends)

    def finish_rows(work, out, marks, images, groups, out_rows, out_columns, page_rows, start, chunks, extra):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, row = here()
        page = np.int64(cuda.blockIdx.y)
        group = np.int64(np.uint32(page) % np.uint32(groups))  # 32 bits: a division of 64 is a long one
        image = step * (page - group) + group
        load(data, work, (page * page_rows + min(row, out_rows - 1)) * size + thread)
        inverse(data, shared)
        if pairs:
            spoil(data, marks, page * chunks, chunks)
        if row < out_rows:
            column = thread - start
            after(data, (image, row), column, out_columns, extra)
            first(data, out, (image * out_rows + row) * out_columns + column, column, out_columns)
            other = image + groups
            if pairs and other < images:
                after_second(data, (other, row), column, out_columns, extra)
                second(data, out, (other * out_rows + row) * out_columns + column, column, out_columns)

    return finish(fft, finish_rows)
