"""`FFTConvolve2D`: one planned convolution over two axes; transforms filters, checks arrays, launches three kernels.

in: an `AxisPlan` for each axis. out: calls on arrays of NumPy, CuPy or torch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.kernels import arrays, convolve_autograd, convolve_grad2d
from devkernels.kernels.convolve_images_launches import ImageLaunches, Steps
from devkernels.kernels.convolve_plan import COMPUTE
from devkernels.kernels.convolve_plan2d import axis_plan
from devkernels.kernels.convolve_recipe import Recipes, key_of
from devkernels.kernels.convolve_views import expanded

_HALVED = 1 << 20  # samples from which one real image goes as two halves: smaller ones take as long as their launches


@dataclass(frozen=True)
class _Recipe:
    """What is left of a call once arrays like these have been checked."""

    shape: tuple[int, ...]
    steps: Steps
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


class FFTConvolve2D(ImageLaunches):
    """A planned two-dimensional convolution; made by `make_fftconvolve2d`, which documents it."""

    gradients = convolve_grad2d

    def __init__(self, *plan: Any, **options: Any):  # those of `ImageLaunches`
        super().__init__(*plan, **options)
        self._recipes = Recipes()

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
        one = "; one large image with a filter goes as two halves" if self._in_halves is not None else ""
        return (
            f"three kernels over pages of {self._width} columns, {how}{one}{ahead}; "
            f"rows of {self.rows.plan.describe()}; columns of {self.columns.plan.describe()}"
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

    def _check_filter(self, seen: arrays.Described) -> None:
        if seen.dtype != self.dtype or seen.shape[-2:] != self.taps:
            raise ArgumentError(
                f"the filter has shape {seen.shape} and dtype {seen.dtype}; its last axes must be {self.taps}, "
                f"its dtype {self.dtype}.", spec=self,
            )  # fmt: skip

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
