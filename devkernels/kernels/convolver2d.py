"""`FFTConvolve2D`: one planned convolution over two axes; transforms filters, checks arrays, launches three kernels.

in: an `AxisPlan` for each axis. out: calls on arrays of NumPy, CuPy or torch. The work area holds one complex page, of
the transform's width and the image's height, for each image, or for two real ones.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.engine import choose, emit
from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.kernels import arrays, convolve_autograd, convolve_grad2d, convolve_images
from devkernels.kernels.convolve_images_steps import WHOLE, Bands
from devkernels.kernels.convolve_long import columns_fft
from devkernels.kernels.convolve_plan import COMPUTE, word_bytes
from devkernels.kernels.convolve_plan2d import AxisPlan, axis_plan
from devkernels.kernels.convolve_recipe import Recipes, key_of
from devkernels.kernels.convolve_steps import extra_type, signature, takes_extra
from devkernels.kernels.convolve_views import expanded

_MOST_GRID_Y = 65535
# Bytes of pages that are worked on at a time. As few as would stay in the L2 cache between the kernels are slower
# (bench/results/fftconvolve.json): the ends of so many kernels cost more than the trips to memory.
_WORK = 1 << 30
_HALVED = 1 << 20  # samples from which one real image goes as two halves: smaller ones take as long as their launches


@dataclass(frozen=True)
class _Steps:
    """Elements of the areas between the kernels, and the launches of each part of the images."""

    work: int
    marks: int
    parts: tuple


@dataclass(frozen=True)
class _Recipe:
    """What is left of a call once arrays like these have been checked."""

    shape: tuple[int, ...]
    steps: _Steps
    filters: tuple
    itemsize: int
    samples: int

    @property
    def bytes(self) -> tuple[int, int]:
        """Of the images and of the results."""
        return self.itemsize * self.samples, self.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class _Other:
    """A call that another plan does."""

    plan: Any
    bytes: tuple[int, int]


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


class FFTConvolve2D:
    """A planned two-dimensional convolution; made by `make_fftconvolve2d`, which documents it."""

    gradients = convolve_grad2d

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
        self._recipes = Recipes()
        self._pairs = not dtype.startswith("complex")
        wraps = bool(y.lead or x.lead)
        (x_read, x_written), (y_read, y_written) = (_known(*pair) for pair in ((self.rows, x), (self.columns, y)))
        self._width = x.segments * x.size
        self._kernels = (
            convolve_images.rows_forward_kernel(
                self.rows, dtype, self._pairs, wraps, prologue, emit.UNKNOWN if wraps else x_read, _segments(x), bands
            ),
            convolve_images.columns_kernel(
                self.columns, self._width, y_read, y_written, True, _segments(y), x.segments
            ),
            convolve_images.rows_inverse_kernel(
                self.rows, dtype, self._pairs, epilogue, x_written, _segments(x), bands
            ),
        )
        self._filter_columns = one = self.columns if y.segments == 1 else _columns(y.size, precision, 1, columns)
        self._filter_kernels = (
            convolve_images.rows_forward_kernel(self.rows, dtype, False, False, None),
            convolve_images.columns_spectrum_kernel(one, x.size),
        )

    def __repr__(self) -> str:
        sizes = "x".join(str(plan.size) for plan in self.plans)
        return f"<FFTConvolve2D {self.mode} of {self.shape} with {self.taps}, {self.dtype}, {sizes}>"

    def describe(self) -> str:
        """Say in words how the convolution is done."""
        y, x = self.plans
        how = "two real images in a complex one" if self._pairs else "each image by itself"
        ahead = f"; each image begins with its own last {y.lead} rows and {x.lead} columns" if y.lead or x.lead else ""
        if y.segments * x.segments > 1:
            ahead += f"; overlap-save in {y.segments} segments along columns and {x.segments} along rows"
        return (
            f"three kernels over pages of {self._width} columns, {how}{ahead}; rows of {self.rows.plan.describe()}; "
            f"columns of {self.columns.plan.describe()}"
        )

    # -- filters -------------------------------------------------------------------------------------------------------

    def prepare(self, h: Any) -> Any:
        """Transform filters (..., rows, columns) once, in two kernels; give the result to calls as `spectra`."""
        seen = arrays.describe(h, "h")
        self._check_filter(seen)
        count = math.prod(seen.shape[:-2])
        spectra, marks = self._spectra_areas(h, count)
        launches = self._filter_launches(count)
        arrays.run_where_kernels_live(
            {"h": arrays.cast(h, self.dtype).reshape(-1), "spectra": spectra, "marks": marks},
            lambda h, spectra, marks: self._run_filters(launches, h, spectra, marks), ("spectra",),
        )  # fmt: skip
        return seen.shape[:-2], spectra

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

    def _check_filter(self, seen: arrays.Described) -> None:
        if seen.dtype != self.dtype or seen.shape[-2:] != self.taps:
            raise ArgumentError(
                f"the filter has shape {seen.shape} and dtype {seen.dtype}; its last axes must be {self.taps}, "
                f"its dtype {self.dtype}.", spec=self,
            )  # fmt: skip

    def _grid(self, fft: BlockFFT, count: int, pages: int) -> tuple:
        return (-(-count // fft.ffts_per_block), pages), fft.block_dim, 0, fft.shared_memory_size

    # -- images --------------------------------------------------------------------------------------------------------

    def __call__(
        self, x: Any, h: Any = None, *, spectra: Any = None, out: Any = None, stream: Any = None, extra: Any = None
    ) -> Any:
        """Convolve images x (..., rows, columns) with filters whose leading axes broadcast with those of x.

        `extra` is an array for the prologue and epilogue.
        """
        if stream is not None:
            with arrays.on_stream(x, stream):
                return self(x, h, spectra=spectra, out=out, extra=extra)
        key = key_of(x, h, None, out, extra) if (h is None) != (spectra is None) else None
        key = key and (*key, spectra and spectra[0])
        recipe = self._recipes.find(key, x, out)
        if recipe is not None:
            return self._again(recipe, x, h, spectra, out, extra)
        seen = arrays.describe(x, "x", gradients=True)
        if seen.dtype != self.dtype:
            raise ArgumentTypeError(f"x has dtype {seen.dtype}; this convolution was made for {self.dtype}.", spec=self)
        if seen.shape[-2:] != self.shape:
            raise ArgumentError(f"x has shape {seen.shape}; its last axes must be {self.shape}.", spec=self)
        if (h is None) == (spectra is None):
            raise ArgumentError("pass either a filter h or spectra made by prepare().", spec=self)
        if h is not None:
            filters = arrays.describe(h, "h", gradients=True)
            self._check_filter(filters)
            arrays.check_same_device(seen, filters, ("x", "h"))
            if convolve_autograd.recording(x, h):
                return convolve_autograd.apply(self, x, h, out)
        more = arrays.check_extra(extra, self.takes_extra, seen, self)
        if h is None:
            arrays.describe(x, "x")  # refuses a tensor whose gradient would get lost: it needs h
        given, filter_ = x, h
        batch, groups, x, h = self._broadcast(seen.shape[:-2], x, h, spectra)
        if h is not None and math.prod(batch) == groups and self._in_halves is not None:
            result = self._in_halves(x, h, out=out, extra=extra)
            if key is not None and x is given and h is filter_:
                taken = (seen.itemsize * math.prod(seen.shape), seen.itemsize * math.prod(result.shape))
                self._recipes.keep(key, _Other(self._in_halves, taken))
            return result
        shape = (*batch, *self.out_shape)
        if out is not None:
            self._check_out(out, seen, shape)
        result = arrays.empty(x, shape, self.dtype) if out is None else out
        if 0 in shape:
            return result
        data = (self.prepare(h) if spectra is None else spectra)[1]
        steps = self._steps(math.prod(batch), groups)
        work, marks = self._areas(steps, x)
        arrays.run_where_kernels_live(
            {"x": arrays.cast(x, self.dtype).reshape(-1), "spectra": data, "work": work, "marks": marks,
             "out": result.reshape(-1), **more},
            lambda x, spectra, work, marks, out, extra=0: self._run(steps, x, spectra, work, marks, out, extra),
            ("work", "marks", "out"),
        )  # fmt: skip
        if key is not None and x is given and h is filter_:
            filters = () if h is None else self._filter_launches(math.prod(filters.shape[:-2]))
            self._recipes.keep(key, _Recipe(shape, steps, filters, seen.itemsize, math.prod(seen.shape)))
        return result

    @functools.cached_property
    def _in_halves(self) -> FFTConvolve2D | None:
        """The plan for one real image with a filter, large enough that both its halves had better make a plate."""
        y, x = self.plans
        if not self._pairs or self._halved or y.lead or x.lead or self.mode == "circular" or y.window < 2:
            return None
        if math.prod(self.shape) < _HALVED:
            return None
        rows = -(-y.window // 2)
        half = axis_plan(rows + y.taps - 1, y.taps, COMPUTE[self.dtype], y.taps - 1, rows)
        if 4 * half.size * half.segments > 3 * y.size * y.segments:
            return None
        return FFTConvolve2D((half, x), self.dtype, self.mode, self.prologue, self.epilogue, halved=y)

    def _again(self, recipe: _Recipe | _Other, x: Any, h: Any, spectra: Any, out: Any, extra: Any) -> Any:
        """A call on arrays like those of a recipe."""
        if isinstance(recipe, _Other):
            return recipe.plan(x, h, out=out, extra=extra)
        result = arrays.empty(x, recipe.shape, self.dtype) if out is None else out
        if h is None:
            data = spectra[1]
        else:
            data, mark = self._spectra_areas(h, math.prod(h.shape[:-2]))
            self._run_filters(recipe.filters, h.reshape(-1), data, mark)
        areas, more = self._areas(recipe.steps, x), 0 if extra is None else extra.reshape(-1)
        self._run(recipe.steps, x.reshape(-1), data, *areas, result.reshape(-1), more)
        return result

    def run(self, x: Any, h: Any) -> Any:
        """`__call__` without a record of gradients."""
        return self(x.detach(), h.detach())

    def _broadcast(self, images: tuple, x: Any, h: Any, spectra: Any) -> tuple:
        """(batch shape, filters, x, h); operands are repeated where the kernels' rule does not cover it.

        The rule: one filter for all images, or one for each index of the last batch axes.
        """
        filters = tuple(h.shape[:-2]) if h is not None else spectra[0]
        try:
            batch = np.broadcast_shapes(images, filters)
        except ValueError:
            raise ArgumentError(f"filters of batch {filters} do not fit images of batch {images}.", spec=self) from None
        if batch != images:
            x = expanded(x, (*batch, *self.shape))
        own = filters
        while own and own[0] == 1:
            own = own[1:]
        if own and own != batch[len(batch) - len(own) :]:
            if h is None:
                raise ArgumentError(
                    f"spectra of batch {filters} do not fit images of batch {images}; pass h, one filter, or one for "
                    f"each index of the last batch axes.", spec=self,
                )  # fmt: skip
            own, h = batch, expanded(h, (*batch, *self.taps))
        return batch, math.prod(own), x, h

    def _check_out(self, out: Any, seen: arrays.Described, shape: tuple[int, ...]) -> None:
        mine = arrays.check_result(out, seen, shape, self.dtype, self)
        if arrays.overlap(seen, mine) and seen.shape != mine.shape:
            raise ArgumentError("out overlaps x in memory; pass a separate array.", spec=self)

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

    def _steps(self, images: int, groups: int) -> _Steps:
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
        return _Steps(some * groups * page_rows * self._width, some * groups * chunks, tuple(parts))

    def _areas(self, steps: _Steps, x: Any) -> tuple[Any, Any]:
        """Memory between the kernels: pages, and marks of what was not finite."""
        work = arrays.temporary(self.kept, x, (steps.work,), self.columns.dtype.name)
        return work, arrays.temporary(self.kept, x, (steps.marks,), "int32")

    @staticmethod
    def _run(steps: _Steps, x: Any, spectra: Any, work: Any, marks: Any, out: Any, extra: Any) -> None:
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
