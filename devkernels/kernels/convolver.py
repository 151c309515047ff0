"""`FFTConvolve`: one planned convolution along rows; transforms filters, checks arrays, launches the kernel.

in: a `RowPlan`. out: calls on arrays of NumPy, CuPy or torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.kernels import arrays, convolve_ahead, convolve_autograd, convolve_grad, convolve_rows
from devkernels.kernels.convolve_batch import Broadcast, broadcast
from devkernels.kernels.convolve_long import FourStep
from devkernels.kernels.convolve_plan import RowPlan
from devkernels.kernels.convolve_recipe import Recipe, Recipes, key_of
from devkernels.kernels.convolve_steps import extra_type, takes_extra
from devkernels.kernels.convolve_views import expanded

_MOST_GRID_Y = 65535


class FFTConvolve:
    """A planned convolution along rows; made by `make_fftconvolve`, which documents it."""

    gradients = convolve_grad

    def __init__(
        self, plan: RowPlan, dtype: str, mode: str, prologue: Callable | None = None,
        epilogue: Callable | None = None, tune: bool = False, lines: tuple[int, int] | None = None,
    ):  # fmt: skip
        self.plan, self.dtype, self.mode = plan, dtype, mode
        self.prologue, self.epilogue = prologue, epilogue
        wants = takes_extra(prologue, 2, "prologue"), takes_extra(epilogue, 2, "epilogue")
        self.takes_extra = any(wants)
        self._passes: dict[tuple[Broadcast, bool], list] = {}
        self._recipes = Recipes()
        self.kept: list = []
        self._long: FourStep | None = None
        if plan.method == "four-step":
            if tune:
                from devkernels.kernels import convolve_tune

                found = convolve_tune.four_step(plan, dtype, mode)
                self.plan, lines = dataclasses.replace(plan, columns=found.columns), found.lines
            self._long = FourStep(self.plan, dtype, prologue, epilogue, lines)
            self.fft: BlockFFT = self._long.rows
            return
        linear, circular = plan.method == "linear", plan.method == "circular"
        self.fft = block_fft(
            plan.size, plan.precision, frequency_offset=-0.25 if linear else 0.0, real_input=linear, tune=tune,
            neighbours=circular and dtype.startswith("complex"), uneven=linear or circular,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<FFTConvolve {self.mode} of {self.plan.length} with {self.plan.taps}, {self.dtype}: {self.describe()}>"

    def describe(self) -> str:
        """Say in words how the convolution is done."""
        plan = self.plan
        if self._long is not None:
            return self._long.describe()
        how = {"circular": "the transform is the row", "linear": "right-angle weights, no zero padding",
               "overlap": f"overlap-save, {plan.hop} samples a segment"}[plan.method]  # fmt: skip
        return f"{how}; {self.fft.plan.describe()}"

    # -- filters -------------------------------------------------------------------------------------------------------

    def prepare(self, h: Any) -> Any:
        """Transform filters (..., taps) once; give the result to calls as `spectra`.

        Returns
        -------
        Spectra
            The batch shape and an array (filters, transform length) in the engine's order.
        """
        seen = arrays.describe(h, "h")
        if seen.dtype != self.dtype:
            raise ArgumentTypeError(f"the filter has dtype {seen.dtype}, the convolution {self.dtype}.", spec=self)
        if not seen.shape or seen.shape[-1] != self.plan.taps:
            raise ArgumentError(
                f"the filter has shape {seen.shape}; its last axis must be {self.plan.taps}.", spec=self
            )
        flat = arrays.cast(h, self.dtype).reshape(-1)
        count = math.prod(seen.shape[:-1])
        if self._long is not None:
            return Spectra(seen.shape[:-1], self._long.prepare(flat, count))
        found = []
        for launch, numbers in self._filter_passes(count):
            spectra = arrays.temporary(self.kept, h, (count * self.fft.size,), self.fft.dtype.name)
            arrays.run_where_kernels_live(
                {"h": flat, "spectra": spectra},
                lambda h, spectra, launch=launch, numbers=numbers: launch(h, spectra, *numbers), ("spectra",),
            )  # fmt: skip
            found.append(spectra)
        return Spectra(seen.shape[:-1], tuple(found))

    def _filter_passes(self, count: int) -> list:
        """(launch, numbers) for the spectra of `count` filters, one for each part of a filter."""
        plan = self.plan
        launch = convolve_rows.filter_kernel(self.fft, self.dtype)[self.fft.launch(rows=count)]
        return [
            (launch, (count, min(plan.part, plan.taps - skip), plan.taps, skip))
            for skip in range(0, plan.taps, plan.part)
        ]

    def image_sources(self) -> dict[str, tuple]:
        """Kernels for ``devkernels build``: of filters, and of rows with one filter for all or one for each channel.

        The notes hold the plan and the block; `devkernels.kernels.convolve_rows` says what each kernel takes.
        """
        fft, plan = self.fft, self.plan
        number, integers = fft.dtype.name, ", int64"
        notes = {**dataclasses.asdict(plan), "mode": self.mode, "dtype": self.dtype, "block": list(fft.block_dim),
                 "rows_per_block": fft.ffts_per_block, "shared": fft.shared_memory_size}  # fmt: skip
        name = f"fftconvolve_{self.mode}_{plan.length}_{plan.taps}_{self.dtype}"
        if self._long is not None:
            return self._long.image_sources(name, notes, self.takes_extra)
        filters, extra = convolve_rows.filter_kernel(fft, self.dtype), extra_type(self.dtype, self.takes_extra)
        found = {f"{name}_filter": (filters, f"void({self.dtype}[::1], {number}[::1]{integers * 4})", notes)}
        for layout in ("one", "channels"):
            groups, inner = (1, 2) if layout == "one" else (2, 1)
            rule = Broadcast(
                (2, 2) if layout == "channels" else (2,), groups, inner, 1, 4 if layout == "channels" else 2
            )
            passes = self._overlap_passes(rule) if plan.method == "overlap" else [self._single_pass(rule)]
            for kind, (run, _, numbers, _) in zip(("first", "more"), passes, strict=False):
                rows = f"{self.dtype}[::1], {number}[::1], {self.dtype}[::1]"
                suffix = layout if kind == "first" else f"{layout}_more"
                found[f"{name}_{suffix}"] = (run, f"void({rows}{integers * len(numbers)}, {extra})", notes)
        return found

    # -- rows ----------------------------------------------------------------------------------------------------------

    def __call__(
        self, x: Any, h: Any = None, *, spectra: Any = None, out: Any = None, stream: Any = None, extra: Any = None
    ) -> Any:
        """Convolve x with h, or with filters transformed by `prepare`; `extra` is for the prologue and epilogue."""
        if stream is not None:
            with arrays.on_stream(x, stream):
                return self(x, h, spectra=spectra, out=out, extra=extra)
        key = key_of(x, h, spectra, out, extra) if (h is None) != (spectra is None) else None
        recipe = self._recipes.find(key, x, out)
        if recipe is not None:
            return recipe.run(x, h, spectra, out, extra)
        seen = arrays.describe(x, "x", gradients=True)
        if seen.dtype != self.dtype:
            raise ArgumentTypeError(f"x has dtype {seen.dtype}; this convolution was made for {self.dtype}.", spec=self)
        if not seen.shape or seen.shape[-1] != self.plan.length:
            raise ArgumentError(f"x has shape {seen.shape}; its last axis must be {self.plan.length}.", spec=self)
        if (h is None) == (spectra is None):
            raise ArgumentError("pass either a filter h or spectra made by prepare().", spec=self)
        if h is not None:
            arrays.check_same_device(seen, arrays.describe(h, "h", gradients=True), ("x", "h"))
            h_batch = tuple(h.shape[:-1])
        else:
            h_batch = spectra.batch
        given = arrays.check_extra(extra, self.takes_extra, seen, self)
        if h is None:
            arrays.describe(x, "x")  # refuses a tensor whose gradient would get lost: it needs h
        rule, expand_x, expand_h = broadcast(seen.shape[:-1], h_batch)
        if expand_h:
            if h is None:
                raise ArgumentError(f"spectra of batch {h_batch} do not adjoin in {rule.shape}; pass h.", spec=self)
            h = expanded(h, (*rule.shape, self.plan.taps))
        if expand_x:
            x = expanded(x, (*rule.shape, self.plan.length))
        if h is not None and convolve_autograd.recording(x, h):
            return convolve_autograd.apply(self, x, h, out)
        shape = (*rule.shape, self.plan.window)
        if out is not None:
            self._check_out(out, seen, shape)
        result = arrays.empty(x, shape, self.dtype) if out is None else out
        if 0 in shape:
            return result
        data = self.prepare(h).data if spectra is None else spectra.data
        rows = arrays.cast(x, self.dtype).reshape(-1)
        self._launch(rows, data, result.reshape(-1), rule, _aligned(seen, out), given)
        if key is not None and not (expand_x or expand_h):
            self._remember(key, seen, out, shape, math.prod(h_batch) if h is not None else None, rule)
        return result

    def _remember(
        self, key: tuple, seen: arrays.Described, out: Any, shape: tuple, filters: int | None, rule: Broadcast
    ):  # fmt: skip
        """Keep what was found out about arrays like these: their next call goes straight to the launches."""
        taken = seen.itemsize * math.prod(seen.shape), seen.itemsize * math.prod(shape)
        if self._long is not None:
            if filters is None:
                self._recipes.keep(key, self._long.recipe(rule, shape, taken))
            return
        points, dtype = self.fft.size, self.fft.dtype.name
        self._recipes.keep(key, Recipe(
            shape, self.dtype, tuple(self._launches(rule, _aligned(seen, out))),
            tuple(self._filter_passes(filters)) if filters else (),
            (points * (filters or 0), dtype),
            taken, self.kept,
        ))  # fmt: skip

    def work_bytes(self, rows: int) -> int:
        """Bytes of memory that a call on `rows` rows needs beyond its arrays: none, but for four-step transforms."""
        return 0 if self._long is None else self._long.work_bytes(rows)

    def run(self, x: Any, h: Any) -> Any:
        """`__call__` without a record of gradients."""
        return self(_detached(x), _detached(h))

    def _check_out(self, out: Any, seen: arrays.Described, shape: tuple[int, ...]) -> None:
        mine = arrays.check_result(out, seen, shape, self.dtype, self)
        if arrays.overlap(seen, mine) or (mine.pointer == seen.pointer and not self.plan.whole):
            raise ArgumentError("out overlaps x in memory; pass a separate array.", spec=self)

    def _launches(self, rule: Broadcast, aligned: bool) -> list:
        """(launch, numbers) for each part of the filter; `aligned`: x and out begin at multiples of 16 bytes."""
        block, key = self.fft.block_dim, (rule, aligned)
        if key not in self._passes:
            if len(self._passes) >= 64:
                self._passes.clear()
            overlap = self.plan.method == "overlap"
            self._passes[key] = self._overlap_passes(rule) if overlap else [self._single_pass(rule, aligned)]
        return [(run[grid, block, 0, shared], numbers) for run, grid, numbers, shared in self._passes[key]]

    def _launch(self, x: Any, spectra: tuple, out: Any, rule: Broadcast, aligned: bool, extra: dict) -> None:
        if self._long is not None:
            self._long.launch(x, spectra, out, rule, extra)
            return
        launches = self._launches(rule, aligned)

        def launch(x, out, extra=0, **spectra):
            for (run, numbers), part in zip(launches, spectra.values(), strict=True):
                run(x, part, out, *numbers, extra)

        named = {f"spectra_{number}": part for number, part in enumerate(spectra)}
        arrays.run_where_kernels_live({"x": x, **named, **extra, "out": out}, launch, ("out",))

    def _kind(self, rule: Broadcast) -> convolve_rows.Rows:
        return convolve_rows.Rows(self.dtype, rule.layout, rule.repeats, self.prologue, self.epilogue)

    def _overlap_passes(self, rule: Broadcast) -> list:
        """(kernel, grid, numbers, shared bytes) for each part of the filter; the first writes, the others add."""
        plan, fft, kind = self.plan, self.fft, self._kind(rule)
        segments = -(-plan.window // (plan.hop * (2 if kind.real else 1)))
        high = -(-rule.rows // _MOST_GRID_Y)
        grid = (-(-segments // fft.ffts_per_block), -(-rule.rows // high), high)
        rows = (rule.rows, rule.inner, rule.groups, rule.x_inner, rule.x_rows)
        passes = []
        for skip in range(0, plan.taps, plan.part):
            run = convolve_rows.overlap_kernel(fft, kind, plan.wraps, skip > 0)
            numbers = (*rows, plan.length, plan.part, plan.start - skip, plan.window)
            passes.append((run, grid, numbers, fft.shared_memory_size))
        return passes

    def _single_pass(self, rule: Broadcast, aligned: bool = False) -> tuple:
        """(kernel, grid, numbers, shared bytes) where one transform holds a row."""
        plan, fft, kind = self.plan, self.fft, self._kind(rule)
        if rule.groups > _MOST_GRID_Y:
            raise ArgumentError(f"{rule.groups} filters are too many for one launch; the most is {_MOST_GRID_Y}.")
        pairs = plan.method == "circular" and kind.real
        grid = (-(-rule.members // (fft.ffts_per_block * (2 if pairs else 1))), rule.groups)
        numbers = (rule.members, rule.groups, rule.inner, rule.x_inner, rule.x_rows)
        if plan.method == "linear":
            run = convolve_rows.linear_kernel(fft, kind, plan.whole, plan.tail)
            return run, grid, (*numbers, plan.length, plan.start, plan.window), fft.shared_memory_size
        if aligned and plan.method == "circular" and convolve_ahead.suits(fft, kind):
            run, grid = convolve_ahead.circular_ahead_kernel(fft, kind), convolve_ahead.grid(fft, rule.members)
            return run, grid, numbers, convolve_ahead.shared_bytes(fft)
        if pairs:
            run = convolve_rows.circular_pair_kernel(fft, kind)
        else:
            run = convolve_rows.circular_kernel(fft, kind, aligned or not fft.plan.neighbours)
        return run, grid, numbers, fft.shared_memory_size


def _aligned(x: arrays.Described, out: Any) -> bool:
    """Whether the rows and the result begin at multiples of 16 bytes, as new arrays do."""
    return x.pointer % 16 == 0 and (out is None or arrays.describe(out, "out").pointer % 16 == 0)


def _detached(array: Any) -> Any:
    return array.detach() if arrays.library(array, "array") == "torch" else array


@dataclass(frozen=True)
class Spectra:
    """Transformed filters: their batch shape and the flat arrays that kernels read, one for each part of a filter."""

    batch: tuple[int, ...]
    data: tuple
