"""Gradients of convolutions over the last two axes, computed by the same kernels; see `convolve_grad` for the rule.

in: a planned convolution, the gradient of its result, its operands. out: gradients of the operands.
"""

from __future__ import annotations

import functools
from typing import Any

from devkernels.kernels.convolve_plan2d import axis_plans, window_plans
from devkernels.kernels.convolve_views import circular_turned, padded, sum_to, turned

AXES = 2


@functools.lru_cache(maxsize=128)
def _windows(kind: type, shape: tuple, taps: tuple, starts: tuple, samples: tuple, dtype: str) -> Any:
    return kind(window_plans(shape, taps, starts, samples, dtype), dtype)


@functools.lru_cache(maxsize=128)
def _circle(kind: type, shape: tuple, dtype: str) -> Any:
    return kind(axis_plans(shape, shape, dtype, "circular"), dtype, "circular")


def input_gradient(plan: Any, gradient: Any, h: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of x, which has batch shape `batch`."""
    if plan.mode == "circular":
        inner = _circle(type(plan), plan.shape, plan.dtype)
        other = circular_turned(h, plan.shape)
    else:
        starts = tuple(p.taps - 1 - p.start for p in plan.plans)
        inner, other = _windows(type(plan), plan.out_shape, plan.taps, starts, plan.shape, plan.dtype), turned(h, 2)
    return sum_to(inner(gradient, other), batch, 2)


def filter_gradient(plan: Any, gradient: Any, x: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of h, which has batch shape `batch`."""
    if plan.mode == "circular":
        inner = _circle(type(plan), plan.shape, plan.dtype)
        result = inner(gradient, circular_turned(x, plan.shape))
        return sum_to(result[..., : plan.taps[0], : plan.taps[1]], batch, 2)
    starts = tuple(p.length - 1 - p.start for p in plan.plans)
    missing = tuple(max(0, -start) for start in starts)  # taps that no sample of the result has met
    samples = tuple(k - m for k, m in zip(plan.taps, missing, strict=True))
    starts = tuple(max(0, start) for start in starts)
    inner = _windows(type(plan), plan.out_shape, plan.shape, starts, samples, plan.dtype)
    return sum_to(padded(inner(gradient, turned(x, 2)), missing, (0, 0)), batch, 2)
