"""Convolution with filters that no block transform holds: four-step transforms, three kernels for the rows.

in: a `RowPlan` of method "four-step". out: launches on flat arrays. The work area holds one transform (`points` complex
numbers) for each row, or segment of a row, that is under way: as many as fit `WORK_BYTES`, and at least one. Small work
areas stay in the L2 cache, but the ends of many short launches cost more than that saves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels.engine import choose
from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.engine.plan import BlockPlan
from devkernels.kernels import arrays
from devkernels.kernels import convolve_long_kernels as kernels
from devkernels.kernels.convolve_batch import Broadcast
from devkernels.kernels.convolve_plan import RowPlan
from devkernels.target import Target

WORK_BYTES = 256 << 20
_MANY_COLUMNS = 8  # columns of a block: 64 bytes of a row, two sectors


def columns_of_a_block(plan: BlockPlan) -> int:
    """Columns that fit a block's shared memory, threads and registers: data, and about 40 for all else."""
    registers = plan.elements * plan.word_bytes // 4 + 40
    count = _MANY_COLUMNS
    while count > 1 and (
        count * (plan.size + 2 * plan.threads) * plan.word_bytes > choose.MAX_SHARED
        or count * plan.threads * registers > Target.max_registers_per_block
        or count * plan.threads > Target.max_threads_per_block
    ):
        count //= 2
    return count


# Plans of at most 16 elements a thread for lengths whose fastest plan in one kernel has more: with the turns beside
# them, these would leave few threads on a multiprocessor.
LIGHT: dict[tuple[int, str], tuple[int, ...]] = {
    (512, "float32"): (8, 8, 8), (1024, "float32"): (16, 8, 8), (2048, "float32"): (16, 16, 8),
}  # fmt: skip


def light_fft(size: int, precision: str) -> BlockFFT:
    """The transform along rows: the usual plan, or a lighter one."""
    radices = LIGHT.get((size, precision))
    if radices is not None:
        return block_fft(size, precision, radices=radices)
    # The turns need registers of their own: no limit but that of the block.
    return dataclasses.replace(block_fft(size, precision), max_registers=None)


def columns_fft(size: int, precision: str, **options: Any) -> BlockFFT:
    """The transform along columns: the usual plan, with several columns in a block."""
    base = block_fft(size, precision).plan
    return block_fft(
        size, precision, radices=base.radices, elements_per_thread=base.elements,
        ffts_per_block=columns_of_a_block(base), columns=True, **options,
    )  # fmt: skip


class FourStep:
    """Transforms of one plan: `prepare` for filters, `launch` for rows."""

    def __init__(self, plan: RowPlan, dtype: str, prologue: Callable | None = None, epilogue: Callable | None = None):
        self.plan, self.dtype = plan, dtype
        self.width = plan.size // plan.columns
        real = not dtype.startswith("complex")
        self.offset = -0.25 if real else 0.0
        self.rows = light_fft(self.width, plan.precision)
        self._halves_in = real and plan.length - plan.begin > plan.size
        self._halves_filter = real and plan.taps > plan.size
        halves_out = real and plan.lead + plan.hop > plan.size
        options = {halves: dict(frequency_offset=self.offset, real_input=real and not halves) for halves in (0, 1)}
        columns = [columns_fft(plan.columns, plan.precision, **options[halves]) for halves in (0, 1)]
        self.columns = columns[self._halves_in]
        width = self.width
        self._forward = kernels.columns_forward_kernel(
            self.columns, width, dtype, self._halves_in, plan.wraps, prologue
        )
        self._forward_filter = kernels.columns_forward_kernel(
            columns[self._halves_filter], width, dtype, self._halves_filter, False, None
        )
        self._spectrum = kernels.rows_spectrum_kernel(self.rows, plan.columns)
        self._middle = kernels.rows_filter_kernel(self.rows, plan.columns)
        self._inverse = kernels.columns_inverse_kernel(self.columns, width, dtype, halves_out, epilogue)
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
        """Twiddle factors between the steps, in float64: by page row and element, by page row and thread."""
        points, rows = self.plan.size, self.rows
        frequency = self.columns.spectrum_index.T.reshape(-1)[:, None] + self.offset
        elements = np.arange(rows.elements_per_thread) * rows.stride
        return tuple(
            np.exp(-2j * np.pi * ((frequency * place) % points) / points)
            for place in (elements, np.arange(rows.stride))
        )

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
        plan, columns, rows = self.plan, self.columns, self.rows
        row_turns, thread_turns = self.turns(h)
        spectra = arrays.temporary(self.kept, h, (count * plan.size,), rows.dtype.name)

        def launch(h, spectra, row_turns, thread_turns):
            for first in range(0, count, 65535):
                some = min(65535, count - first)
                span = slice(first * plan.size, (first + some) * plan.size)
                self._forward_filter[self._grid(columns, self.width, some)](
                    h, spectra[span], first, 1, 1, count, plan.taps, 0, 0
                )
                self._spectrum[self._grid(rows, plan.columns, some)](spectra[span], row_turns, thread_turns)

        arrays.run_where_kernels_live(
            {"h": h, "spectra": spectra, "row_turns": row_turns, "thread_turns": thread_turns}, launch, ("spectra",)
        )
        return spectra, row_turns, thread_turns

    def _grid(self, fft: BlockFFT, count: int, plates: int) -> tuple:
        return (-(-count // fft.ffts_per_block), plates), fft.block_dim, 0, fft.shared_memory_size

    # -- rows ----------------------------------------------------------------------------------------------------------

    def work_bytes(self, rows: int) -> int:
        """Bytes of the work area of a call on `rows` rows."""
        return self._under_way(rows) * self.plan.size * self.rows.dtype.itemsize

    def _under_way(self, rows: int) -> int:
        fit = max(1, WORK_BYTES // (self.plan.size * self.rows.dtype.itemsize))
        return min(rows * self.plan.segments, fit, 65535)

    def launch(self, x: Any, spectra: tuple, out: Any, rule: Broadcast) -> None:
        """Convolve flat `x` into flat `out`."""
        plan, columns, rows = self.plan, self.columns, self.rows
        plates, at_once = rule.rows * plan.segments, self._under_way(rule.rows)
        work = arrays.temporary(self.kept, x, (at_once * plan.size,), rows.dtype.name)

        def run(x, spectra, row_turns, thread_turns, work, out):
            for plate in range(0, plates, at_once):
                some = min(at_once, plates - plate)
                along = self._grid(columns, self.width, some)
                self._forward[along](
                    x, work, plate, plan.segments, rule.x_inner, rule.x_rows, plan.length, plan.begin, plan.hop
                )
                self._middle[self._grid(rows, plan.columns, some)](
                    work, spectra, row_turns, thread_turns, plate, plan.segments, rule.inner, rule.groups
                )
                self._inverse[along](work, out, plate, plan.segments, plan.lead, plan.hop, plan.window)

        names = ("spectra", "row_turns", "thread_turns")
        named = dict(zip(names, spectra, strict=True))
        arrays.run_where_kernels_live({"x": x, **named, "work": work, "out": out}, run, ("work", "out"))

    def image_sources(self, name: str, notes: dict) -> dict[str, tuple]:
        """Kernels for ``devkernels build``."""
        number, real = self.rows.dtype.name, self.dtype
        kinds = {
            "columns": (self._forward, (real, number), 7),
            "filter_columns": (self._forward_filter, (real, number), 7),
            "filter_rows": (self._spectrum, (number,) * 3, 0),
            "rows": (self._middle, (number,) * 4, 4),
            "columns_back": (self._inverse, (number, real), 5),
        }
        return {
            f"{name}_{kind}": (kernel, f"void({', '.join([f'{t}[::1]' for t in types] + ['int64'] * integers)})", notes)
            for kind, (kernel, types, integers) in kinds.items()
        }
