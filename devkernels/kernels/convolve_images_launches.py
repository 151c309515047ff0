"""The launches of a convolution over two axes: kernels, grids, what is between them.

in: an `AxisPlan` for each axis. out: an `ImageLaunches`, the base of `FFTConvolve2D`, which checks arrays. The work
area holds one complex page, of the transform's width and the image's height, for each image, or for two real ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.engine import choose, emit
from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.errors import ArgumentError
from devkernels.kernels import arrays, convolve_images
from devkernels.kernels.convolve_images_steps import WHOLE, Bands
from devkernels.kernels.convolve_long import columns_fft
from devkernels.kernels.convolve_plan import COMPUTE, word_bytes
from devkernels.kernels.convolve_plan2d import AxisPlan
from devkernels.kernels.convolve_steps import extra_type, signature, takes_extra

_MOST_GRID_Y = 65535
# Bytes of pages that are worked on at a time. As few as would stay in the L2 cache between the kernels are slower
# (bench/results/fftconvolve.json): the ends of so many kernels cost more than the trips to memory.
_WORK = 1 << 30


@dataclass(frozen=True)
class Steps:
    """Elements of the areas between the kernels, and the launches of each part of the images."""

    work: int
    marks: int
    parts: tuple


def _columns(size: int, precision: str, segments: int = 1, found: choose.Choice | None = None) -> BlockFFT:
    """The transform along columns, several columns in a block, all segments of each."""
    found = found or choose.COLUMNS.get((size, word_bytes(precision)))
    if found is None:
        usual = columns_fft(size, precision).plan
        found = choose.Choice(usual.radices, usual.elements, usual.rows)
    rows = found.rows if segments == 1 else segments * max(found.rows // 2, 2 * found.rows // segments)
    fft = block_fft(
        size, precision, radices=found.radices, elements_per_thread=found.elements, ffts_per_block=rows, columns=True,
        pairs=found.pairs,
    )  # fmt: skip
    return dataclasses.replace(fft, max_registers=found.max_registers)


def _segments(axis: AxisPlan) -> tuple[int, int]:
    return WHOLE if axis.segments == 1 else (axis.segments, axis.hop)


def _known(fft: BlockFFT, axis: AxisPlan) -> tuple[emit.Spans, emit.Spans]:
    """What is known of the samples of an axis that are read, and written, by all of its segments."""
    spans = []
    for s in range(axis.segments):
        length, limit = axis.length + axis.lead, max(0, min(axis.hop, axis.window - s * axis.hop))
        spans.append((
            emit.spans(fft.offsets, fft.stride, -(axis.begin + s * axis.hop), length),
            emit.spans(fft.offsets, fft.stride, axis.first, limit),
        ))  # fmt: skip
    return tuple(emit.common(found) for found in zip(*spans, strict=True))


class ImageLaunches:
    """Kernels and launches of one planned convolution over two axes."""

    def __init__(
        self, plans: tuple[AxisPlan, AxisPlan], dtype: str, mode: str = "window", prologue: Callable | None = None,
        epilogue: Callable | None = None, columns: choose.Choice | None = None, halved: AxisPlan | None = None,
    ):  # fmt: skip
        self.plans, self.dtype, self.mode = plans, dtype, mode
        self.prologue, self.epilogue = prologue, epilogue
        wants = takes_extra(prologue, 3, "prologue"), takes_extra(epilogue, 3, "epilogue")
        self.takes_extra = any(wants)
        precision, (y, x) = COMPUTE[dtype], plans
        whole, bands = y, None  # the axis of the images that are given
        if halved is not None:
            whole, bands = halved, Bands(y.window, halved.start - (halved.taps - 1), y.length)
        self.shape, self.taps, self.out_shape = (whole.length, x.length), (y.taps, x.taps), (whole.window, x.window)
        self._halved = halved is not None
        self.rows: BlockFFT = block_fft(x.size, precision)
        self.columns: BlockFFT = _columns(y.size, precision, y.segments, columns)
        self.kept: list = []
        self.work_limit = _WORK
        self._pairs = not dtype.startswith("complex")
        wraps = bool(y.lead or x.lead)
        (x_read, x_written), (y_read, y_written) = (_known(*pair) for pair in ((self.rows, x), (self.columns, y)))
        self._width = x.segments * x.size
        self._kernels = (
            convolve_images.rows_forward_kernel(
                self.rows, dtype, self._pairs, wraps, prologue, emit.UNKNOWN if wraps else x_read, _segments(x), bands
            ),
            convolve_images.columns_kernel(self.columns, self._width, y_read, y_written, _segments(y), x.segments),
            convolve_images.rows_inverse_kernel(
                self.rows, dtype, self._pairs, epilogue, x_written, _segments(x), bands
            ),
        )
        one = self.columns if y.segments == 1 else _columns(y.size, precision, 1, columns)
        if not np.array_equal(one.spectrum_index, self.columns.spectrum_index):
            one = self.columns  # fewer transforms in a block have another order: filters must have that of the images
        self._filter_columns = one
        self._filter_kernels = (
            convolve_images.rows_forward_kernel(self.rows, dtype, False, False, None),
            convolve_images.columns_spectrum_kernel(one, x.size),
        )

    def _spectra_areas(self, h: Any, count: int) -> tuple[Any, Any]:
        points = math.prod(plan.size for plan in self.plans)
        spectra = arrays.temporary(self.kept, h, (count * points,), self.columns.dtype.name)
        return spectra, arrays.temporary(self.kept, h, (1,), "int32")

    def _filter_launches(self, count: int) -> tuple:
        """(samples, points) before the filters of each launch, and the launches: along rows, along columns."""
        first, second = self._filter_kernels
        (y, x), parts = self.plans, []
        for start in range(0, count, _MOST_GRID_Y):
            some = min(_MOST_GRID_Y, count - start)
            parts.append((
                (start * y.taps * x.taps, start * y.size * x.size),
                first[self._grid(self.rows, y.taps, some)], (some, 1, *self.taps, y.size, 0, 0, 0),
                second[self._grid(self._filter_columns, x.size, some)], (y.taps,),
            ))  # fmt: skip
        return tuple(parts)

    @staticmethod
    def _run_filters(launches: tuple, h: Any, spectra: Any, marks: Any) -> None:
        for (skip, begin), first, numbers, second, second_numbers in launches:
            part = spectra[begin:] if begin else spectra
            first(h[skip:] if skip else h, part, marks, *numbers)
            second(part, *second_numbers)

    def _grid(self, fft: BlockFFT, count: int, pages: int) -> tuple:
        return (-(-count // fft.ffts_per_block), pages), fft.block_dim, 0, fft.shared_memory_size

    def work_bytes(self, images: int, filters: int = 1) -> int:
        """Bytes of the work area of a call on `images` images with `filters` filters."""
        _, some, page_rows = self._pages(images, filters)
        return some * filters * page_rows * self._width * self.columns.dtype.itemsize

    def _pages(self, images: int, groups: int) -> tuple[int, int, int]:
        """(plates of each filter, how many of them are worked on at a time, rows of a page)."""
        plates = -(-(images // groups) // (2 if self._pairs else 1))
        y = self.plans[0]
        page_rows = max(y.length + y.lead, y.window)
        if self.prologue is not None or self.epilogue is not None:  # they are told the number of their image
            return plates, plates, page_rows
        page = groups * page_rows * self._width * self.columns.dtype.itemsize
        parts = -(-plates // max(1, self.work_limit // page))
        return plates, -(-plates // parts), page_rows

    def _steps(self, images: int, groups: int) -> Steps:
        """All launches of a call."""
        first, middle, last = self._kernels
        rows, columns, (plan_y, plan_x) = self.rows, self.columns, self.plans
        plates, some, page_rows = self._pages(images, groups)
        if some * groups > _MOST_GRID_Y:
            raise ArgumentError(
                f"{images} images with {groups} filters are too many for one launch; the most is {_MOST_GRID_Y} "
                f"(twice that for real images with one filter).", spec=self,
            )  # fmt: skip
        height = plan_y.length + plan_y.lead
        chunks = self._grid(rows, height * plan_x.segments, 1)[0][0]
        step = groups * (2 if self._pairs else 1)  # images of a plate of each filter
        samples, results = math.prod(self.shape), math.prod(self.out_shape)
        parts = []
        for plate in range(0, plates, some):
            pages, begin = min(some, plates - plate) * groups, plate * step
            left = groups * 2 if self._halved else images - begin
            parts.append((
                (begin * samples, begin * results),
                first[self._grid(rows, height * plan_x.segments, pages)],
                (left, groups, *self.shape, page_rows, plan_y.lead, plan_x.lead - plan_x.begin),
                middle[self._grid(columns, self._width * plan_y.segments, pages)],
                (groups, height, page_rows, plan_y.begin, plan_y.first, plan_y.window),
                last[self._grid(rows, plan_y.window * plan_x.segments, pages)],
                (left, groups, *self.out_shape, page_rows, plan_x.first, chunks),
            ))  # fmt: skip
        return Steps(some * groups * page_rows * self._width, some * groups * chunks, tuple(parts))

    def _areas(self, steps: Steps, x: Any) -> tuple[Any, Any]:
        """Memory between the kernels: pages, and marks of what was not finite."""
        work = arrays.temporary(self.kept, x, (steps.work,), self.columns.dtype.name)
        return work, arrays.temporary(self.kept, x, (steps.marks,), "int32")

    @staticmethod
    def _run(steps: Steps, x: Any, spectra: Any, work: Any, marks: Any, out: Any, extra: Any) -> None:
        for (begin, into), first, numbers, middle, middle_numbers, last, last_numbers in steps.parts:
            there, back = (x[begin:], out[into:]) if begin else (x, out)
            first(there, work, marks, *numbers, extra)
            middle(work, spectra, *middle_numbers)
            last(work, back, marks, *last_numbers, extra)

    def image_sources(self) -> dict[str, tuple]:
        """Kernels for ``devkernels build``: of filters (two), rows, columns with the filter, rows."""
        number, real, mark = self.columns.dtype.name, self.dtype, "int32"
        name = f"fftconvolve2d_{self.mode}_{'x'.join(map(str, self.shape + self.taps))}_{self.dtype}"
        notes = {"shape": list(self.shape), "taps": list(self.taps), "mode": self.mode, "dtype": self.dtype,
                 "transform": [plan.size for plan in self.plans]}  # fmt: skip
        extra = extra_type(real, self.takes_extra)
        kinds = {
            "filter_rows": (self._filter_kernels[0], (real, number, mark), 7, "int64"),
            "filter_columns": (self._filter_kernels[1], (number,), 1, ""),
            "rows": (self._kernels[0], (real, number, mark), 7, extra),
            "columns": (self._kernels[1], (number, number), 6, ""),
            "rows_back": (self._kernels[2], (number, real, mark), 7, extra),
        }
        return {
            f"{name}_{kind}": (kernel, signature(types, integers, last), notes)
            for kind, (kernel, types, integers, last) in kinds.items()
        }
