"""Convolution with filters that no block transform holds: four-step transforms, three kernels for the rows.

in: a `RowPlan` of method "four-step". out: launches on flat arrays. The work area holds one transform (`points` complex
numbers) for each row, or segment of a row, that is under way: as many as fit `WORK_BYTES`, and at least one. Small work
areas stay in the L2 cache, but the ends of many short launches cost more than that saves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.engine import choose
from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.engine.plan import BlockPlan
from devkernels.kernels import arrays
from devkernels.kernels import convolve_long_kernels as kernels
from devkernels.kernels.convolve_batch import Broadcast
from devkernels.kernels.convolve_plan import COMPUTE, RowPlan
from devkernels.kernels.convolve_steps import extra_type, signature
from devkernels.target import Target

WORK_BYTES = 256 << 20
_SPECTRA_IN_L2 = 12 << 20  # bytes of a filter's spectrum up to which the L2 cache keeps it beside the rows

# Radices and elements along columns whose fastest plan along rows has more elements a thread: with the turns beside
# them, these leave more threads on a multiprocessor.
LIGHT: dict[int, tuple[tuple[int, ...], int]] = {512: ((16, 8, 4), 16)}


def columns_of_a_block(plan: BlockPlan, line: int) -> int:
    """Columns that fit a block's shared memory, threads and registers: data, and about 40 for all else."""
    registers = plan.elements * plan.word_bytes // 4 + 40
    count = max(1, line // plan.word_bytes)
    while count > 1 and (
        count * (plan.size + 2 * plan.threads) * plan.word_bytes > choose.MAX_SHARED
        or count * plan.threads * registers > Target.max_registers_per_block
        or count * plan.threads > Target.max_threads_per_block
    ):
        count //= 2
    return count


def columns_fft(
    size: int, precision: str, line: int = 64, plan: tuple[tuple[int, ...], int] | None = None, **options: Any
) -> BlockFFT:
    """The transform along columns: the usual plan, or these radices and elements, with `line` bytes of neighbours."""
    base = block_fft(size, precision).plan
    if plan is not None:
        base = block_fft(size, precision, radices=plan[0], elements_per_thread=plan[1]).plan
    return block_fft(
        size, precision, radices=base.radices, elements_per_thread=base.elements,
        ffts_per_block=columns_of_a_block(base, line), columns=True, **options,
    )  # fmt: skip


def lines(columns: int, dtype: str) -> tuple[int, int]:
    """Bytes of a row of memory that a block of columns takes at a time, there and back (measured)."""
    real = not dtype.startswith("complex")
    if columns > 512:
        return (64, 64) if COMPUTE[dtype] == "float32" else (128, 128)
    return (256 if columns <= 128 else 128), (64 if not real and columns == 256 else 128)


def run(parts, x, spectra, element_turns, thread_turns, work, out, extra=0) -> None:
    """Launch the kernels of `FourStep.steps`."""
    for there, numbers, along, along_numbers, back, back_numbers in parts:
        there(x, work, element_turns, thread_turns, *numbers, extra)
        along(work, spectra, *along_numbers)
        back(work, out, element_turns, thread_turns, *back_numbers, extra)


@dataclass(frozen=True)
class LongRecipe:
    """What is left of a call on given spectra once arrays like these have been checked; see `convolve_recipe`."""

    shape: tuple[int, ...]
    dtype: str
    elements: int
    parts: tuple
    number: str
    bytes: tuple[int, int]
    kept: list

    def run(self, x: Any, h: None, spectra: Any, out: Any, extra: Any) -> Any:
        """Do the call for arrays with the recipe's fingerprints."""
        result = arrays.empty(x, self.shape, self.dtype) if out is None else out
        work = arrays.temporary(self.kept, x, (self.elements,), self.number)
        more = 0 if extra is None else extra.reshape(-1)
        run(self.parts, x.reshape(-1), *spectra.data, work, result.reshape(-1), more)
        return result


class FourStep:
    """Transforms of one plan: `prepare` for filters, `launch` for rows."""

    def __init__(
        self, plan: RowPlan, dtype: str, prologue: Callable | None = None, epilogue: Callable | None = None,
        widths: tuple[int, int] | None = None,
    ):  # fmt: skip
        self.plan, self.dtype = plan, dtype
        self.width = plan.size // plan.columns
        real = not dtype.startswith("complex")
        self.offset = -0.25 if real else 0.0
        self.rows = block_fft(self.width, plan.precision)
        self._halves_in = real and plan.length - plan.begin > plan.size
        self._halves_filter = real and plan.taps > plan.size
        halves_out = real and plan.lead + plan.hop > plan.size
        options = {halves: dict(frequency_offset=self.offset, real_input=real and not halves) for halves in (0, 1)}
        there, back = widths or lines(plan.columns, dtype)
        light = LIGHT.get(plan.columns)
        columns = [columns_fft(plan.columns, plan.precision, there, light, **options[halves]) for halves in (0, 1)]
        self.columns, self.columns_filter = columns[self._halves_in], columns[self._halves_filter]
        # The way back must find the frequencies where the way there has left them.
        choices = (columns_fft(plan.columns, plan.precision, line, light, frequency_offset=self.offset)
                   for line in (back, there))  # fmt: skip
        self.columns_back = next(
            fft for fft in choices if np.array_equal(fft.spectrum_index, self.columns.spectrum_index)
        )
        width = self.width
        self._forward = kernels.columns_forward_kernel(
            self.columns, width, dtype, self._halves_in, plan.wraps, prologue
        )
        self._forward_filter = kernels.columns_forward_kernel(
            self.columns_filter, width, dtype, self._halves_filter, False, None
        )
        self._spectrum = kernels.rows_spectrum_kernel(self.rows, plan.columns)
        self._across = plan.size * self.rows.dtype.itemsize > _SPECTRA_IN_L2
        self._middle = kernels.rows_filter_kernel(self.rows, plan.columns, self._across)
        self._inverse = kernels.columns_inverse_kernel(self.columns_back, width, dtype, halves_out, epilogue)
        self.kept: list = []
        self._turns: dict[tuple[str, str], tuple] = {}

    def describe(self) -> str:
        """Say the plan in words."""
        plan = self.plan
        how = f"{plan.segments} transforms a row" if plan.segments > 1 else "one transform a row"
        return (
            f"four-step, {how} of {plan.columns} * {self.width} points; columns of {self.columns.plan.describe()}; "
            f"rows of {self.rows.plan.describe()}"
        )

    # -- filters -------------------------------------------------------------------------------------------------------

    def turn_tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Twiddle factors between the steps, in float64: by element and column, by thread and column."""
        points, columns = self.plan.size, self.columns
        first = columns.spectrum_index[:, 0]  # of a thread; the elements' frequencies lie at the same offsets from it
        frequencies = np.asarray(columns.frequency_offsets), first + self.offset
        place = np.arange(self.width)
        return tuple(np.exp(-2j * np.pi * ((f[:, None] * place) % points) / points) for f in frequencies)

    def turns(self, like: Any) -> tuple:
        """`turn_tables` as flat arrays of `like`'s library, on its device; made once for each device."""
        seen = arrays.describe(like, "x", gradients=True)
        key = (seen.library, seen.device)
        if key not in self._turns:
            self._turns[key] = tuple(
                arrays.constant(like, table.astype(self.rows.dtype).reshape(-1)) for table in self.turn_tables()
            )
        return self._turns[key]

    def prepare(self, h: Any, count: int) -> tuple:
        """Spectra of `count` filters, a flat array `h`, and the tables that go with them."""
        plan, columns, rows = self.plan, self.columns_filter, self.rows
        names, turns = ("element_turns", "thread_turns"), self.turns(h)
        spectra = arrays.temporary(self.kept, h, (count * plan.size,), rows.dtype.name)

        def launch(h, spectra, **turns):
            for first in range(0, count, 65535):
                some = min(65535, count - first)
                span = slice(first * plan.size, (first + some) * plan.size)
                self._forward_filter[self._grid(columns, self.width, some)](
                    h, spectra[span], *turns.values(), first, 1, 1, count, plan.taps, 0, 0, 0
                )
                self._spectrum[self._grid(rows, plan.columns, some)](spectra[span])

        arrays.run_where_kernels_live(
            {"h": h, "spectra": spectra, **dict(zip(names, turns, strict=True))}, launch, ("spectra",)
        )
        return spectra, *turns

    def _grid(self, fft: BlockFFT, count: int, plates: int) -> tuple:
        return (-(-count // fft.ffts_per_block), plates), fft.block_dim, 0, fft.shared_memory_size

    # -- rows ----------------------------------------------------------------------------------------------------------

    def work_bytes(self, rows: int) -> int:
        """Bytes of the work area of a call on `rows` rows."""
        return self._under_way(rows) * self.plan.size * self.rows.dtype.itemsize

    def _under_way(self, rows: int) -> int:
        fit = max(1, WORK_BYTES // (self.plan.size * self.rows.dtype.itemsize))
        return min(rows * self.plan.segments, fit, 65535)

    def steps(self, rule: Broadcast) -> tuple:
        """Elements of the work area, and the launches of all rows: (kernel, numbers) there, along rows, back, ..."""
        plan, columns, rows = self.plan, self.columns, self.rows
        plates, at_once = rule.rows * plan.segments, self._under_way(rule.rows)
        parts = []
        for plate in range(0, plates, at_once):
            some = min(at_once, plates - plate)
            along, back = (self._grid(fft, self.width, some) for fft in (columns, self.columns_back))
            (chunks, _), *block = self._grid(rows, plan.columns, some)
            parts.append((
                self._forward[along],
                (plate, plan.segments, rule.x_inner, rule.x_rows, plan.length, plan.begin, plan.hop),
                self._middle[((some, chunks) if self._across else (chunks, some), *block)],
                (plate, plan.segments, rule.inner, rule.groups),
                self._inverse[back],
                (plate, plan.segments, plan.lead, plan.hop, plan.window),
            ))  # fmt: skip
        return at_once * plan.size, tuple(parts)

    def launch(self, x: Any, spectra: tuple, out: Any, rule: Broadcast, extra: dict) -> None:
        """Convolve flat `x` into flat `out`; `extra` may hold an array of that name for the caller's functions."""
        elements, parts = self.steps(rule)
        work = arrays.temporary(self.kept, x, (elements,), self.rows.dtype.name)
        names = ("spectra", "element_turns", "thread_turns")
        arrays.run_where_kernels_live(
            {"x": x, **dict(zip(names, spectra, strict=True)), **extra, "work": work, "out": out},
            functools.partial(run, parts), ("work", "out"),
        )  # fmt: skip

    def recipe(self, rule: Broadcast, shape: tuple[int, ...], taken: tuple[int, int]) -> LongRecipe:
        """What is left of a call like one that was checked; `taken` are the bytes of the rows and of the result."""
        return LongRecipe(shape, self.dtype, *self.steps(rule), self.rows.dtype.name, taken, self.kept)

    def image_sources(self, name: str, notes: dict, takes_extra: bool) -> dict[str, tuple]:
        """Kernels for ``devkernels build``."""
        number, real, extra = self.rows.dtype.name, self.dtype, extra_type(self.dtype, takes_extra)
        arrays_of = (real, *(number,) * 3)
        kinds = {
            "columns": (self._forward, arrays_of, 7, extra),
            "filter_columns": (self._forward_filter, arrays_of, 7, "int64"),
            "filter_rows": (self._spectrum, (number,), 0, ""),
            "rows": (self._middle, (number,) * 2, 4, ""),
            "columns_back": (self._inverse, (number, real, number, number), 5, extra),
        }
        return {
            f"{name}_{kind}": (kernel, signature(types, integers, last), notes)
            for kind, (kernel, types, integers, last) in kinds.items()
        }
