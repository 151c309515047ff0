"""How one axis of a two-dimensional convolution is done: which transform, what is written.

in: lengths and the window that is wanted. out: a frozen `AxisPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass

from devkernels.engine import choose
from devkernels.errors import SpecError, UnsupportedSizeError
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolve_plan import COMPUTE


@dataclass(frozen=True)
class AxisPlan:
    """One axis: transform length, and which samples of the full (or circular) convolution are written.

    With `lead` the transform begins with the axis's last `lead` samples: a circular convolution of a length that has no
    transform of its own.
    """

    size: int
    length: int
    taps: int
    start: int
    window: int
    lead: int = 0


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
        axis_plan(n, k, COMPUTE[dtype], *convolve_plan.window(mode, n, k), mode == "circular")
        for n, k in zip(shape, taps, strict=True)
    )


def window_plans(
    shape: tuple[int, ...], taps: tuple[int, ...], starts: tuple[int, ...], samples: tuple[int, ...], dtype: str
) -> tuple[AxisPlan, ...]:
    """A plan for each axis, to write `samples` samples from `starts` of the full convolution."""
    return tuple(
        axis_plan(n, k, COMPUTE[dtype], start, window)
        for n, k, start, window in zip(shape, taps, starts, samples, strict=True)
    )


def axis_plan(length: int, taps: int, precision: str, start: int, window: int, circular: bool = False) -> AxisPlan:
    """Plan an axis on which `window` samples from sample `start` are wanted."""
    words = convolve_plan.word_bytes(precision)
    lead = 0
    if circular:
        if taps > length:
            raise SpecError(f"mode='circular' needs a filter no larger than the images: {taps} > {length}.")
        if _has_plan(length, words):
            return AxisPlan(length, length, taps, start, window)
        lead = start = taps - 1
        needed = length + taps - 1
    else:
        # What wraps around must not reach the window: sample n + N of the full convolution lies on sample n.
        needed = max(length, taps, start + window, length + taps - 1 - start)
    top = choose.largest(words)
    for size in sorted(base << k for base in (1, 3, 9) for k in range(1, 15) if 4 <= base << k <= top):
        if size >= needed and _has_plan(size, words):
            return AxisPlan(size, length, taps, start, window, lead)
    raise UnsupportedSizeError(f"An axis of {length} with {taps} taps needs {needed} points; the most is {top}.")


def _has_plan(size: int, words: int) -> bool:
    try:
        choose.choose(size, words)
    except UnsupportedSizeError:
        return False
    return True
