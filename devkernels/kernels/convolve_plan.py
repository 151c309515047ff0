"""How a convolution is done: which kernel, which transform length, what is written.

in: lengths, mode, dtype. out: a frozen `RowPlan`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from devkernels.engine import choose, index
from devkernels.errors import SpecError, UnsupportedSizeError

_LONGEST = 2**31 - 2**20  # positions in a row are 32-bit numbers on the device
MODES = ("full", "same", "valid", "circular", "causal")
COMPUTE = {"float16": "float32", "float32": "float32", "float64": "float64", "complex64": "float32",
           "complex128": "float64"}  # fmt: skip


@dataclass(frozen=True)
class RowPlan:
    """One kernel for one kind of row.

    Attributes
    ----------
    method : str
        "circular" (the transform is the row), "linear" (right-angle weights, real rows), "overlap" (overlap-save), all
        in one kernel; or "four-step" (three kernels, for filters that no block transform holds).
    size : int
        Points of the transform.
    taps : int
        Samples of the filter.
    start, window : int
        Samples of the full (or circular) convolution that are written.
    """

    method: str
    size: int
    length: int
    taps: int
    start: int
    window: int
    precision: str
    wraps: bool = False
    part_limit: int = 1 << 62  # most samples of the filter that one pass takes
    columns: int = 0  # four-step: points of the transforms along columns
    lead: int = 0  # four-step: first sample of a segment's transform that is written
    begin: int = 0  # four-step: sample of the row where the first segment starts
    step: int = 0  # four-step: samples that a segment gives

    @property
    def whole(self) -> bool:
        """Whether rows and results fill the transform, so that nothing is masked."""
        return self.method == "circular" or (
            self.method == "linear" and self.start == 0 and self.length == self.window == self.size
        )

    @property
    def tail(self) -> bool:
        """Whether the window reaches past the transform's length."""
        return self.start + self.window > self.size

    @property
    def part(self) -> int:
        """Samples of the filter in one pass: all, unless it is too long for a transform."""
        return min(self.taps, self.part_limit)

    @property
    def parts(self) -> int:
        """Passes over the rows; each adds its part of the filter."""
        return -(-self.taps // self.part)

    @property
    def hop(self) -> int:
        """Samples that a segment of overlap-save gives."""
        return self.step or self.size - self.part + 1

    @property
    def segments(self) -> int:
        """Four-step transforms that a row takes."""
        return -(-self.window // self.hop)


def checked(dtype: object, mode: str) -> str:
    """The dtype's name; raises SpecError unless it and the mode are supported."""
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, (type, np.dtype)) else np.dtype(dtype).name
    if name not in COMPUTE:
        raise SpecError(f"dtype={dtype!r} is not supported; use one of {', '.join(COMPUTE)}.")
    if mode not in MODES:
        raise SpecError(f"mode={mode!r} must be one of {', '.join(MODES)}.")
    return name


def window(mode: str, length: int, taps: int) -> tuple[int, int]:
    """(start, samples) of the full convolution that a mode keeps, as in scipy.signal; "causal" keeps the first ones."""
    full = length + taps - 1
    if mode == "full":
        return 0, full
    if mode == "same":
        return (taps - 1) // 2, length
    if mode == "valid":
        low, high = sorted((length, taps))
        return low - 1, high - low + 1
    if mode in ("causal", "circular"):
        return 0, length
    raise SpecError(f"mode={mode!r} must be one of {', '.join(MODES)}.")


def longest_linear(dtype: str) -> int:
    """Longest row, or filter, that one transform convolves."""
    return (
        choose.largest(word_bytes(COMPUTE[dtype]))
        * (1 if not dtype.startswith("complex") else 8)
        // (1 if not dtype.startswith("complex") else 9)
    )


def word_bytes(precision: str) -> int:
    """Bytes of a complex number of this precision."""
    return 8 if precision == "float32" else 16


def _size_at_least(least: int, precision: str) -> int | None:
    """The least power of two, or three times one, that is long enough; None beyond the largest."""
    top = choose.largest(word_bytes(precision))
    sizes = sorted({base << k for base in (1, 3) for k in range(3, 15) if 8 <= base << k <= top})
    return next((size for size in sizes if size >= least), None)


def _has_plan(size: int, precision: str) -> bool:
    try:
        choose.choose(size, word_bytes(precision))
    except UnsupportedSizeError:
        return False
    return True


def _segment_size(taps: int, needed: int, precision: str) -> int | None:
    """Transform length of overlap-save: least work per sample, no longer than the row needs."""
    top = choose.largest(word_bytes(precision))
    if 4 * taps > 3 * top:  # segments would overlap so much that four-step transforms are faster (measured)
        return None
    enough = _size_at_least(needed + taps - 1, precision)
    best = None
    size = 64
    while size <= top:
        if size >= 2 * taps or size == top >= taps + taps // 8:
            # Work grows with log2(size); beyond 4096 fewer rows fit on a multiprocessor.
            cost = size / (size - taps + 1) * (6 + size.bit_length() + (6 if size > 4096 else 0))
            if best is None or cost < best[0]:
                best = cost, size
        if enough is not None and size >= enough:
            break
        size *= 2
    if best is None:
        return enough
    return min(best[1], enough) if enough is not None else best[1]


@functools.lru_cache(maxsize=1024)
def plan_rows(mode: str, length: int, taps: int, dtype: str, method: str | None = None) -> RowPlan:
    """Decide which kernel convolves rows of `length` samples with filters of `taps`.

    Parameters
    ----------
    mode : str
        One of full, same, valid, circular, causal.
    length, taps : int
        Samples of a row and of its filter.
    dtype : str
        Of the rows.
    method : {"overlap", "four-step"}, optional
        Overlap-save also where one transform holds the row; or the way of long filters.
    """
    start, samples = window(mode, length, taps)
    if mode == "circular" and taps > length:
        raise SpecError(f"mode='circular' needs a filter no longer than the rows: {taps} > {length}.")
    return plan_window(start, samples, length, taps, dtype, mode == "circular", method)


@functools.lru_cache(maxsize=1024)
def plan_window(
    start: int, samples: int, length: int, taps: int, dtype: str, circular: bool = False, method: str | None = None
) -> RowPlan:
    """`plan_rows` for `samples` samples from sample `start` of the full (or circular) convolution."""
    if max(length, taps) > _LONGEST:
        raise UnsupportedSizeError(f"Rows of {max(length, taps)} samples are too long; the most is {_LONGEST}.")
    precision = COMPUTE[dtype]
    real = not dtype.startswith("complex")
    common = dict(length=length, taps=taps, start=start, window=samples, precision=precision)
    if method != "four-step":
        if circular:
            if method is None and length >= 2 and _has_plan(length, precision):
                return RowPlan("circular", length, **common)
            size = _segment_size(taps, samples, precision)
            if size is not None:
                return RowPlan("overlap", size, **common, wraps=True)
        else:
            longest = max(length, taps)
            size = _size_at_least(longest, precision)
            overlap = _segment_size(taps, samples, precision)
            if real and size is not None and (overlap is None or (method is None and 4 * taps > length)):
                return RowPlan("linear", size, **common)
            if overlap is not None:
                return RowPlan("overlap", overlap, **common)
    found = four_step(common, dtype, circular)
    if found is not None:
        return found
    # The filter is too long for that, too: overlap-save with a part of it at a time.
    top = choose.largest(word_bytes(precision))
    return RowPlan("overlap", top, **common, wraps=circular, part_limit=top // 2)


LONGEST_FOUR_STEP = 1 << 24  # points


# Up to how many points columns, and rows, of a four-step transform run at which fraction of a copy's speed (measured on
# one H200, bench/results/long_convolution.json, by powers of two).
_COLUMN_SPEEDS = ((31, 0.5), (63, 0.75), (128, 0.93), (256, 0.9), (512, 0.86), (1024, 0.69), (2048, 0.5))
_ROW_SPEEDS = ((63, 0.7), (256, 0.98), (1024, 0.86), (2048, 0.84), (4096, 0.8), (8192, 0.74), (1 << 20, 0.55))


def _speed(points: int, speeds: tuple[tuple[int, float], ...]) -> float:
    return next(speed for most, speed in speeds if points <= most)


@functools.lru_cache(maxsize=1024)
def factors(points: int, precision: str) -> tuple[int, int] | None:
    """(columns' points, rows' points) of a four-step transform: those that are estimated to take the least time."""
    return next(ranked_factors(points, precision), None)


def ranked_factors(points: int, precision: str) -> Iterator[tuple[int, int]]:
    """All (columns' points, rows' points), those first that are estimated to take the least time."""
    words = word_bytes(precision)
    ranked = []
    for columns in range(2, 2049):
        rows, rest = divmod(points, columns)
        if rest or rows < 2 or rows > choose.largest(words) or not (index.is_length(columns) and index.is_length(rows)):
            continue
        # Bytes that the kernels of real rows move: those of the columns, two of them, three halves of the rows'.
        cost = 3 / _speed(columns, _COLUMN_SPEEDS) + 2 / _speed(rows, _ROW_SPEEDS)
        for size in (columns, rows):
            known = choose.measured(size, words)
            cost += 1 if known is None else (1.5 if known.elements > 32 and size == columns else 0)
        ranked.append((cost, -rows, columns, rows))
    for _, _, columns, rows in sorted(ranked):
        if _has_plan(columns, precision) and _has_plan(rows, precision):
            yield columns, rows


def _four_step_sizes(precision: str) -> list[int]:
    """Points of four-step transforms that are used where any length will do: powers of two, and three times one."""
    return [size for size in sorted({base << k for base in (1, 3) for k in range(12, 25)}) if size <= LONGEST_FOUR_STEP]


def four_step(common: dict, dtype: str, circular: bool) -> RowPlan | None:
    """Plan of a convolution by four-step transforms; None if the filter is too long for any."""
    length, taps, start, samples = (common[name] for name in ("length", "taps", "start", "window"))
    precision = common["precision"]
    per_point = 2 if not dtype.startswith("complex") else 1  # samples that a point holds
    if circular and per_point == 1 and length <= LONGEST_FOUR_STEP:
        found = factors(length, precision)
        if found is not None:
            return RowPlan("four-step", length, **common, columns=found[0], step=length)
    best = None
    for points in _four_step_sizes(precision):
        room = points * per_point
        if room < taps:
            continue
        # Sample n + room of the full convolution lies on (minus) sample n: it must not reach those that are written.
        if not circular and room >= max(length, start + samples, length + taps - 1 - start):
            choices = [(start, 0, samples)]
        else:
            choices = [(taps - 1, start - (taps - 1), min(samples, room - taps + 1))]
        for lead, begin, step in choices:
            cost = -(-samples // step) * points * (20 + math.log2(points))
            if best is None or cost < best[0]:
                best = cost, points, lead, begin, step
    if best is None:
        return None
    _, points, lead, begin, step = best
    columns, _ = factors(points, precision)
    return RowPlan("four-step", points, **common, wraps=circular, columns=columns, lead=lead, begin=begin, step=step)
