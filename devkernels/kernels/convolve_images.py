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

from devkernels.engine import emit
from devkernels.engine.block_fft import BlockFFT
from devkernels.kernels import convolve_images_steps as steps
from devkernels.kernels.convolve_images_steps import WHOLE
from devkernels.kernels.convolve_steps import finish, line_of, spectrum_of
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.lazy import cuda


@lazy_kernel
def rows_forward_kernel(
    fft: BlockFFT, dtype: str, pairs: bool = False, wraps: bool = False, prologue: Callable | None = None,
    known: emit.Spans = emit.UNKNOWN, segments: tuple[int, int] = WHOLE, bands: steps.Bands | None = None,
):  # fmt: skip
    """Kernel ``f(x, work, marks, images, groups, image_rows, image_columns, page_rows, lead_y, lead_x, extra)``.

    Grid (chunks of rows' segments, pages). With `pairs` two real images make one plate. Sample c of segment s is sample
    ``c + s hop - lead_x`` of an image's row. With `wraps` row r of a page is row ``r - lead_y`` of the image, and rows
    and samples before the first are counted from the end. `known` is what is known of samples inside an image's row;
    without `wraps` only. With `bands` a plate is the two halves of one image.
    """
    transform = steps.rows_there(fft, dtype, pairs, wraps, prologue, known, segments, bands)
    elements, number, here = fft.elements_per_thread, fft.dtype, line_of(fft)

    def transform_rows(x, work, marks, images, groups, image_rows, image_columns, page_rows, lead_y, lead_x, extra):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, line = here()
        page = np.int64(cuda.blockIdx.y)
        mark = page * np.int64(cuda.gridDim.x) + np.int64(cuda.blockIdx.x)
        transform(
            data, shared, x, work, marks, thread, line, page, mark, images, groups, image_rows,
            image_columns, page_rows, lead_y, lead_x, extra,
        )  # fmt: skip

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
    segments: tuple[int, int] = WHOLE, across: int = 1,
):  # fmt: skip
    """Kernel ``f(work, spectra, groups, image_rows, page_rows, begin, start, window)``.

    Grid (chunks of columns, pages). In place: reads the first `image_rows` rows of a page, segment s from row ``begin +
    s hop``, and writes rows ``start ... start + hop`` of its transform to rows ``s hop ...`` of the page, `window` in
    all; `read` and `written` are what is known of them. A block has all segments of its columns, so that it reads
    before it writes. Rows are in `across` segments, each with columns of its own. Pages are taken in the opposite order
    of the other kernels: those written last before are still in the L2 cache.
    """
    through = steps.columns_through(fft, width, read, written, segments, across)
    elements, number = fft.elements_per_thread, fft.dtype

    def filter_columns(work, spectra, groups, image_rows, page_rows, begin, start, window):
        data = cuda.local.array(elements, number)
        factors = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, lane, chunk = np.int64(cuda.threadIdx.y), np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.x)
        page = np.int64(cuda.gridDim.y) - 1 - np.int64(cuda.blockIdx.y)
        through(
            data, factors, shared, work, spectra, thread, lane, chunk, page, groups, image_rows, page_rows, begin,
            start, window,
        )  # fmt: skip

    return finish(fft, filter_columns)


@lazy_kernel
def rows_inverse_kernel(
    fft: BlockFFT, dtype: str, pairs: bool = False, epilogue: Callable | None = None,
    known: emit.Spans = emit.UNKNOWN, segments: tuple[int, int] = WHOLE, bands: steps.Bands | None = None,
):  # fmt: skip
    """Kernel ``f(work, out, marks, images, groups, out_rows, out_columns, page_rows, start, chunks, extra)``.

    The grid is as in the forward one, which had `chunks` blocks for each page. Samples ``start ... start + hop`` of
    segment s are samples ``s hop ...`` of a row. `known` is what is known of the samples that are written.
    """
    transform = steps.rows_back(fft, dtype, pairs, epilogue, known, segments, bands)
    elements, number, here = fft.elements_per_thread, fft.dtype, line_of(fft)

    def finish_rows(work, out, marks, images, groups, out_rows, out_columns, page_rows, start, chunks, extra):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, line = here()
        page = np.int64(cuda.blockIdx.y)
        transform(
            data, shared, work, out, marks, thread, line, page, images, groups, out_rows, out_columns,
            page_rows, start, chunks, extra,
        )  # fmt: skip

    return finish(fft, finish_rows)
