"""How one axis of a two-dimensional convolution is done: which transform, what is written.

in: lengths and the window that is wanted. out: a frozen `AxisPlan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from devkernels.engine import choose
from devkernels.errors import SpecError, UnsupportedSizeError
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolve_plan import COMPUTE

# Points of a segment: a transform that passes shared memory once only (24 * 24), where 1152 points do so twice; with 63
# taps two fit 1024 samples. Columns take .0646 ms so, with the longer transform .0735 (16 images of 1024 x 1024, H200).
SEGMENT = 576
MOST_SEGMENTS = 8  # all of a column's are in one block, which so may write in place


@dataclass(frozen=True)
class AxisPlan:
    """One axis: transform length, and which samples of the full (or circular) convolution are written.

    An axis goes in `segments` (overlap-save) where that makes transforms shorter by a stage: segment s starts at sample
    ``begin + s hop`` and gives samples ``s hop ...`` of the window. Along rows these begin at a multiple of 8 in a
    transform where there is room, and so do segments: results are then written in whole sectors of memory.

    With `lead` the transform begins with the axis's last `lead` samples: a circular convolution of a length that has no
    transform of its own.
    """

    size: int
    length: int
    taps: int
    start: int
    window: int
    lead: int = 0
    segments: int = 1
    hop: int = 0  # samples of the result that a segment gives
    first: int = 0  # where they begin in its transform

    @property
    def begin(self) -> int:
        """Sample of the axis (after its lead) where the first segment starts: zero or less."""
        return self.start - self.first


def check_valid(shape: tuple[int, ...], taps: tuple[int, ...]) -> None:
    """Raise unless one of two shapes is at least as large as the other along all axes, as mode "valid" needs."""
    pairs = list(zip(shape, taps, strict=True))
    if any(n < k for n, k in pairs) and any(n > k for n, k in pairs):
        raise SpecError(
            f"mode='valid' needs one operand at least as large as the other along every convolved axis, not {shape} "
            f"and {taps}."
        )


def axis_plans(shape: tuple[int, ...], taps: tuple[int, ...], dtype: str, mode: str) -> tuple[AxisPlan, ...]:
    """A plan for each axis of a convolution in a mode."""
    return tuple(
        axis_plan(n, k, COMPUTE[dtype], *convolve_plan.window(mode, n, k), mode == "circular", along)
        for n, k, along in zip(shape, taps, (False, True), strict=True)
    )


def window_plans(
    shape: tuple[int, ...], taps: tuple[int, ...], starts: tuple[int, ...], samples: tuple[int, ...], dtype: str
) -> tuple[AxisPlan, ...]:
    """A plan for each axis, to write `samples` samples from `starts` of the full convolution."""
    return tuple(
        axis_plan(n, k, COMPUTE[dtype], start, window, along=along)
        for n, k, start, window, along in zip(shape, taps, starts, samples, (False, True), strict=True)
    )


def axis_variants(length: int, taps: int, dtype: str, mode: str, along: bool) -> list[AxisPlan]:
    """Plans of an axis that may be worth measuring, the usual one first."""
    start, window = convolve_plan.window(mode, length, taps)
    return list(_axis_plans(length, taps, COMPUTE[dtype], start, window, mode == "circular", along))


def axis_plan(
    length: int, taps: int, precision: str, start: int, window: int, circular: bool = False, along: bool = False
) -> AxisPlan:
    """Plan an axis on which `window` samples from sample `start` are wanted; `along` rows, or down columns."""
    return next(_axis_plans(length, taps, precision, start, window, circular, along))


def _axis_plans(
    length: int, taps: int, precision: str, start: int, window: int, circular: bool, along: bool
) -> Iterator[AxisPlan]:  # fmt: skip
    def even(samples: int) -> int:
        return -(-samples // 8) * 8 if along else samples

    words = convolve_plan.word_bytes(precision)
    lead = 0
    if circular:
        if taps > length:
            raise SpecError(f"mode='circular' needs a filter no larger than the images: {taps} > {length}.")
        if _has_plan(length, words):
            yield AxisPlan(length, length, taps, start, window, hop=window, first=start)
            return
        lead = start = taps - 1
        needed = length + taps - 1
    else:
        # What wraps around must not reach the window: sample n + N of the full convolution lies on sample n.
        needed = max(length, taps, start + window, length + taps - 1 - start)
    top, found = choose.largest(words), 0
    for size in sorted(base << k for base in (1, 3, 9) for k in range(1, 15) if 4 <= base << k <= top):
        if size >= needed and _has_plan(size, words):
            segments = 0 if found or start < taps - 1 - length else _in_segments(size, taps, window, words)
            if segments:
                hop = min(SEGMENT - taps + 1, even(-(-window // segments)))
                least, most = taps - 1, SEGMENT - hop
                first = even(least) if even(least) <= most else least
                yield AxisPlan(SEGMENT, length, taps, start, window, lead, segments, hop, first)
            # Samples may stand some places later as long as the axis and the window still end in the transform.
            room = size - max(length + lead, start + window)
            first = even(start) if even(start) - start <= room else start
            yield AxisPlan(size, length, taps, start, window, lead, 1, window, first)
            found += 1
            if found == 2:
                return
    if not found:
        raise UnsupportedSizeError(f"An axis of {length} with {taps} taps needs {needed} points; the most is {top}.")


def _in_segments(size: int, taps: int, window: int, words: int) -> int:
    """Segments in which an axis goes instead of in one transform of `size` points; 0 if it should not."""
    if words != 8 or size <= SEGMENT or taps > SEGMENT // 4:
        return 0
    segments = -(-window // (SEGMENT - taps + 1))
    return segments if segments <= MOST_SEGMENTS and segments * SEGMENT <= size else 0


def _has_plan(size: int, words: int) -> bool:
    try:
        choose.choose(size, words)
    except UnsupportedSizeError:
        return False
    return True
