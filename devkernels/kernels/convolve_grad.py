"""Gradients of convolutions along rows, computed by the same kernels.

in: a planned convolution, the gradient of its result, its operands. out: gradients of the operands. With
``y[m] = sum_j h[j] x[s + m - j]``, s the plan's `start`, both gradients are windows of correlations: of the result's
gradient with h, and with x, summed over the rows that share an operand; they are done by other plans of the same kind.
Written for any array library; `convolve_autograd` puts them behind torch's autograd.
"""

from __future__ import annotations

import functools
from typing import Any

from devkernels.kernels import convolve_plan
from devkernels.kernels.convolve_views import circular_turned, joined, padded, pieces, sum_to, turned

AXES = 1
_SEGMENT = 4096  # samples of a row that a filter's gradient takes at a time, where one transform cannot hold the row


@functools.lru_cache(maxsize=256)
def _window(kind: type, start: int, samples: int, length: int, taps: int, dtype: str) -> Any:
    return kind(convolve_plan.plan_window(start, samples, length, taps, dtype), dtype, "window")


@functools.lru_cache(maxsize=256)
def _circle(kind: type, length: int, dtype: str) -> Any:
    return kind(convolve_plan.plan_rows("circular", length, length, dtype), dtype, "circular")


def input_gradient(plan: Any, gradient: Any, h: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of x, which has batch shape `batch`."""
    rows = plan.plan
    if plan.mode == "circular":
        result = _circle(type(plan), rows.length, plan.dtype)(gradient, circular_turned(h, (rows.length,)))
    else:
        inner = _window(type(plan), rows.taps - 1 - rows.start, rows.length, rows.window, rows.taps, plan.dtype)
        result = inner(gradient, turned(h, 1))
    return sum_to(result, batch)


def filter_gradient(plan: Any, gradient: Any, x: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of h, which has batch shape `batch`."""
    kind, rows, dtype = type(plan), plan.plan, plan.dtype
    top = convolve_plan.longest_linear(dtype)
    if plan.mode == "circular":
        if rows.length <= top or rows.taps > _SEGMENT:
            other = circular_turned(x, (rows.length,))
            return sum_to(_circle(kind, rows.length, dtype)(gradient, other)[..., : rows.taps], batch)
        x = joined([x[..., rows.length - (rows.taps - 1) :], x], -1)
        start, length = rows.taps - 1, rows.length + rows.taps - 1
    else:
        start, length = rows.start, rows.length
        first = length - 1 - start
        if max(length, rows.window) <= top or rows.taps > _SEGMENT:
            missing = max(0, -first)  # taps that no sample of the result has met
            inner = _window(kind, max(0, first), rows.taps - missing, rows.window, length, dtype)
            return sum_to(padded(inner(gradient, turned(x, 1)), (missing,), (0,)), batch)
    # In segments: sample m of a segment meets x[start + m - k], k < taps.
    step = min(_SEGMENT, rows.window)
    count = -(-rows.window // step)
    cut = pieces(padded(gradient, (0,), (count * step - rows.window,)), step, step)
    reach = step + rows.taps - 1
    before = rows.taps - 1 - start
    after = max(0, count * step + rows.taps - 1 - before - length)
    whole = padded(x, (before,), (after,)) if before >= 0 else padded(x[..., -before:], (0,), (after - before,))
    windows = pieces(whole, reach, step)[..., :count, :]
    inner = _window(kind, step - 1, rows.taps, step, reach, dtype)
    return sum_to(inner(cut, turned(windows, 1)).sum(-2), batch)
