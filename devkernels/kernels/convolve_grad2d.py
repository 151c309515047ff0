"""Gradients of convolutions over the last two axes, computed by the same kernels; see `convolve_grad` for the rule.

in: a planned convolution, the gradient of its result, its operands. out: gradients of the operands.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from devkernels.kernels import arrays
from devkernels.kernels.convolve_grad import sum_to
from devkernels.kernels.fftconvolve2d import FFTConvolve2D, make_fftconvolve2d, plan_windows


def _turned(array: Any) -> Any:
    """Reversed and conjugate along the last two axes."""
    if arrays.library(array, "array") == "torch":
        flipped = array.flip((-2, -1))
        return flipped.conj().resolve_conj() if flipped.is_complex() else flipped
    return array[..., ::-1, ::-1].conj()


def _pad(array: Any, before: tuple[int, int], after: tuple[int, int]) -> Any:
    """Zeros before and after the last two axes."""
    if not any(before + after):
        return array
    if arrays.library(array, "array") == "torch":
        return sys.modules["torch"].nn.functional.pad(array, (before[1], after[1], before[0], after[0]))
    module = np if isinstance(array, np.ndarray) else sys.modules["cupy"]
    return module.pad(array, [(0, 0)] * (array.ndim - 2) + list(zip(before, after, strict=True)))


def _circular_turned(array: Any, shape: tuple[int, int]) -> Any:
    """``conj(a[-k mod shape])``: what makes a circular convolution a correlation."""
    padded = _pad(array, (0, 0), tuple(n - k for n, k in zip(shape, array.shape[-2:], strict=True)))
    kind = arrays.library(array, "array")
    return sys.modules[kind].roll(_turned(padded), (1, 1), (-2, -1))


def input_gradient(plan: FFTConvolve2D, gradient: Any, h: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of x, which has batch shape `batch`."""
    if plan.mode == "circular":
        inner = make_fftconvolve2d(plan.shape, plan.shape, plan.dtype, "circular")
        turned = _circular_turned(h, plan.shape)
    else:
        starts = tuple(p.taps - 1 - p.start for p in plan.plans)
        inner, turned = plan_windows(plan.out_shape, plan.taps, starts, plan.shape, plan.dtype), _turned(h)
    return sum_to(inner(gradient, turned), batch, 2)


def filter_gradient(plan: FFTConvolve2D, gradient: Any, x: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of h, which has batch shape `batch`."""
    if plan.mode == "circular":
        inner = make_fftconvolve2d(plan.shape, plan.shape, plan.dtype, "circular")
        result = inner(gradient, _circular_turned(x, plan.shape))
        return sum_to(result[..., : plan.taps[0], : plan.taps[1]], batch, 2)
    starts = tuple(p.length - 1 - p.start for p in plan.plans)
    missing = tuple(max(0, -start) for start in starts)  # taps that no sample of the result has met
    samples = tuple(k - m for k, m in zip(plan.taps, missing, strict=True))
    starts = tuple(max(0, start) for start in starts)
    inner = plan_windows(plan.out_shape, plan.shape, starts, samples, plan.dtype)
    return sum_to(_pad(inner(gradient, _turned(x)), missing, (0, 0)), batch, 2)
