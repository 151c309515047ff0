"""Images that no transform holds, in tiles: overlap-save along two axes.

in: images of any size and a filter that fits a transform. out: the convolution, put together of tiles. Tiles are copied
out of the images (their rows do not lie together); each is done by a planned convolution, alike ones by the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from devkernels.engine import choose
from devkernels.errors import ArgumentError, UnsupportedSizeError
from devkernels.kernels import arrays, convolve_autograd, convolve_plan
from devkernels.kernels.convolve_plan2d import window_plans
from devkernels.kernels.convolve_views import joined
from devkernels.kernels.convolver2d import FFTConvolve2D

_USUAL = 4096  # points of a transform along a tiled axis, if the filter leaves most of them to results


def _reach(taps: int, dtype: str) -> int:
    """Samples of the input that a tile takes along an axis."""
    top = choose.largest(convolve_plan.word_bytes(convolve_plan.COMPUTE[dtype]))
    if taps > top // 2:
        raise UnsupportedSizeError(
            f"Images whose axes need more than {top} points are done in tiles, for which a filter has at most "
            f"{top // 2} taps, not {taps}."
        )
    return min(top, max(_USUAL, 4 * taps))


def _spans(length: int, taps: int, start: int, window: int, reach: int) -> Iterator[tuple[int, int, int, int]]:
    """(first, last) samples of the result, and of the input that they need, tile by tile."""
    step = reach - taps + 1
    for first in range(0, window, step):
        last = min(first + step, window)
        low, high = start + first - (taps - 1), start + last
        yield first, last, max(0, low), max(max(0, low) + 1, min(length, high))


@functools.lru_cache(maxsize=128)
def _planned(shape: tuple, taps: tuple, starts: tuple, samples: tuple, dtype: str) -> FFTConvolve2D:
    return FFTConvolve2D(window_plans(shape, taps, starts, samples, dtype), dtype)


def convolve(x: Any, h: Any, mode: str, out: Any) -> Any:
    """Convolve images x with filters h along the last two axes; `out` as in `devkernels.fftconvolve`."""
    seen, filters = arrays.describe(x, "in1", gradients=True), arrays.describe(h, "in2", gradients=True)
    taps, dtype = filters.shape[-2:], seen.dtype
    windows = [convolve_plan.window(mode, n, k) for n, k in zip(seen.shape[-2:], taps, strict=True)]
    if mode == "circular":  # the image, with its own end before it
        x = joined([x[..., x.shape[-2] - taps[0] + 1 :, :], x], -2)
        x = joined([x[..., x.shape[-1] - taps[1] + 1 :], x], -1)
        windows = [(k - 1, n) for n, k in zip(seen.shape[-2:], taps, strict=True)]
    batch = np.broadcast_shapes(seen.shape[:-2], filters.shape[:-2])
    shape = (*batch, *(samples for _, samples in windows))
    recording = convolve_autograd.recording(x, h)
    if out is not None:
        mine = arrays.describe(out, "out")
        arrays.check_same_device(seen, mine, ("in1", "out"))
        if mine.shape != shape or mine.dtype != dtype or recording:
            raise ArgumentError(f"out has shape {mine.shape} and dtype {mine.dtype}; it must have {shape} and {dtype}.")
        if arrays.overlap(seen, mine) or mine.pointer == seen.pointer:
            raise ArgumentError("out overlaps in1 in memory; pass a separate array.")
    down, across = (
        list(_spans(n, k, start, samples, _reach(k, dtype)))
        for n, k, (start, samples) in zip(x.shape[-2:], taps, windows, strict=True)
    )
    result = out if out is not None or recording else arrays.empty(x, shape, dtype)
    spectra: dict[int, Any] = {}
    bands = []
    for y0, y1, y_low, y_high in down:
        tiles = []
        for x0, x1, x_low, x_high in across:
            tile = x[..., y_low:y_high, x_low:x_high]
            starts = (windows[0][0] + y0 - y_low, windows[1][0] + x0 - x_low)
            plan = _planned(tuple(tile.shape[-2:]), tuple(taps), starts, (y1 - y0, x1 - x0), dtype)
            if recording:
                tiles.append(plan(tile, h))
                continue
            same_batch = filters.shape[:-2] == () or filters.shape[:-2] == batch[len(batch) - len(filters.shape) + 2 :]
            if same_batch and id(plan) not in spectra:
                spectra[id(plan)] = plan.prepare(h)
            made = plan(tile, spectra=spectra[id(plan)]) if same_batch else plan(tile, h)
            result[..., y0:y1, x0:x1] = made
        if recording:
            bands.append(joined(tiles, -1))
    return joined(bands, -2) if recording else result
