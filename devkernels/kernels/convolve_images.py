"""Kernels of convolution over the last two axes: rows forward; columns forward, filter, inverse; rows inverse.

in: two `BlockFFT`, along rows and along columns. out: `devkernels.kernel` objects over flat arrays. Three trips through
memory; the spectrum along rows stays in the engine's order, since nobody in between cares.

Two real images travel as one complex image (convolution is linear), complex ones alone: a *plate* is such a unit. With
`groups` filters, plate q of group g holds images ``step q * groups + g`` and ``(step q + 1) * groups + g``; in the work
array plate and group make page ``q * groups + g``, of `height` rows of `width` (the row transform's length) values.
"""

from __future__ import annotations

import numpy as np

from devkernels.engine import emit
from devkernels.engine.block_fft import BlockFFT
from devkernels.kernels.convolve_rows import _finish
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.lazy import cuda


@lazy_kernel
def rows_forward_kernel(fft: BlockFFT, dtype: str):
    """Kernel ``f(x, work, images, groups, image_rows, image_columns, page_rows)``: grid (chunks of rows, pages)."""
    real = not dtype.startswith("complex")
    first = emit.gather(emit.Move(fft.offsets, fft.dtype.name, dtype, "real" if real else "both", masked=True))
    second = emit.gather(emit.Move(fft.offsets, fft.dtype.name, dtype, "imag" if real else "both", masked=True))
    forward, store = fft.forward, fft.store
    elements, number, per_block, size = fft.elements_per_thread, fft.dtype, fft.ffts_per_block, fft.size
    step = 2 if real else 1

    def transform_rows(x, work, images, groups, image_rows, image_columns, page_rows):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread = np.int64(cuda.threadIdx.x)
        page = np.int64(cuda.blockIdx.y)
        row = np.int64(cuda.blockIdx.x) * per_block + np.int64(cuda.threadIdx.y)
        image = step * (page // groups) * groups + page % groups
        live = row < image_rows
        width = image_columns if live else 0
        base = (image * image_rows + row) * image_columns + thread
        first(data, x, base, thread, width)
        if real:
            other = image + groups
            width = width if other < images else 0
            second(data, x, (other * image_rows + row) * image_columns + thread, thread, width)
        forward(data, shared)
        if live:
            store(data, work, (page * page_rows + row) * size + thread)

    return _finish(fft, transform_rows)


@lazy_kernel
def columns_kernel(fft: BlockFFT, width: int):
    """Kernel ``f(work, spectra, groups, image_rows, page_rows, start, window)``: grid (chunks of columns, pages).

    In place: reads the first `image_rows` rows of a page, writes rows ``start ... start + window`` of the result.
    """
    offsets = tuple(offset * width for offset in fft.offsets)
    load = emit.gather(emit.Move(offsets, fft.dtype.name, masked=True))
    store = emit.scatter(emit.Move(offsets, fft.dtype.name, masked=True))
    load_filter = emit.gather(emit.Move(offsets, fft.dtype.name))
    forward, filter_inverse = fft.forward, fft.filter_inverse
    elements, number, per_block, size = fft.elements_per_thread, fft.dtype, fft.ffts_per_block, fft.size

    def filter_columns(work, spectra, groups, image_rows, page_rows, start, window):
        data = cuda.local.array(elements, number)
        factors = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread = np.int64(cuda.threadIdx.y)
        page = np.int64(cuda.blockIdx.y)
        column = np.int64(cuda.blockIdx.x) * per_block + np.int64(cuda.threadIdx.x)
        live = column < width
        column = min(column, width - 1)
        place = thread * width + column
        base = page * page_rows * width
        load(data, work, base + place, place, image_rows * width)
        forward(data, shared)
        load_filter(factors, spectra, page % groups * (size * width) + place)
        filter_inverse(data, factors, shared)
        if live:
            place -= start * width
            store(data, work, base + place, place, window * width)

    return _finish(fft, filter_columns)


@lazy_kernel
def rows_inverse_kernel(fft: BlockFFT, dtype: str):
    """Kernel ``f(work, out, images, groups, out_rows, out_columns, page_rows, start)``; grid as in the forward one."""
    real = not dtype.startswith("complex")
    first = emit.scatter(emit.Move(fft.offsets, fft.dtype.name, dtype, "real" if real else "both", masked=True))
    second = emit.scatter(emit.Move(fft.offsets, fft.dtype.name, dtype, "imag" if real else "both", masked=True))
    inverse, load = fft.inverse, fft.load
    elements, number, per_block, size = fft.elements_per_thread, fft.dtype, fft.ffts_per_block, fft.size
    step = 2 if real else 1

    def finish_rows(work, out, images, groups, out_rows, out_columns, page_rows, start):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread = np.int64(cuda.threadIdx.x)
        page = np.int64(cuda.blockIdx.y)
        row = np.int64(cuda.blockIdx.x) * per_block + np.int64(cuda.threadIdx.y)
        image = step * (page // groups) * groups + page % groups
        load(data, work, (page * page_rows + min(row, out_rows - 1)) * size + thread)
        inverse(data, shared)
        if row < out_rows:
            column = thread - start
            first(data, out, (image * out_rows + row) * out_columns + column, column, out_columns)
            other = image + groups
            if real and other < images:
                second(data, out, (other * out_rows + row) * out_columns + column, column, out_columns)

    return _finish(fft, finish_rows)
