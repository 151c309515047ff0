"""Gradients of convolutions along rows, computed by the same kernels.

in: a planned convolution, the gradient of its result, its operands. out: gradients of the operands. With
``y[m] = sum_j h[j] x[s + m - j]``, s the plan's `start`, both gradients are windows of correlations: of the result's
gradient with h, and with x, summed over the rows that share an operand. Written for any array library; `apply` puts
them behind torch's autograd.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from devkernels.errors import ArgumentError
from devkernels.kernels import arrays, convolve_plan
from devkernels.kernels.convolver import FFTConvolve

_SEGMENT = 4096  # samples of a row that a filter's gradient takes at a time, where one transform cannot hold the row


def _module(array: Any) -> Any:
    kind = arrays.library(array, "array")
    return np if kind == "numpy" else sys.modules[kind]


def _turned(array: Any) -> Any:
    """Reversed and conjugate along the last axis."""
    if arrays.library(array, "array") == "torch":
        flipped = array.flip(-1)
        return flipped.conj().resolve_conj() if flipped.is_complex() else flipped
    return array[..., ::-1].conj()


def _pad(array: Any, before: int, after: int) -> Any:
    """Zeros before and after the last axis."""
    if arrays.library(array, "array") == "torch":
        return sys.modules["torch"].nn.functional.pad(array, (before, after))
    return _module(array).pad(array, [(0, 0)] * (array.ndim - 1) + [(before, after)])


def _windows(array: Any, length: int, step: int) -> Any:
    """Overlapping pieces of the last axis, as a new axis before it."""
    if arrays.library(array, "array") == "torch":
        return array.unfold(-1, length, step)
    return _module(array).lib.stride_tricks.sliding_window_view(array, length, axis=-1)[..., ::step, :]


def recording(x: Any, h: Any) -> bool:
    """Whether torch is recording gradients of these arrays."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or not torch.is_grad_enabled():
        return False
    return bool(x.requires_grad or h.requires_grad)


def sum_to(array: Any, batch: tuple[int, ...], tail: int = 1) -> Any:
    """Sum over the leading axes, all but `tail`, along which an operand of this batch shape was broadcast."""
    extra = len(array.shape) - tail - len(batch)
    axes = tuple(range(extra))
    if axes:
        array = array.sum(axes)
    axes = tuple(i for i, n in enumerate(batch) if n == 1 and array.shape[i] != 1)
    if axes:
        array = array.sum(axes, keepdim=True) if hasattr(array, "requires_grad") else array.sum(axes, keepdims=True)
    return array


@functools.lru_cache(maxsize=256)
def _window(start: int, samples: int, length: int, taps: int, dtype: str) -> FFTConvolve:
    plan = convolve_plan.plan_window(start, samples, length, taps, dtype)
    return FFTConvolve(plan, dtype, "window")


@functools.lru_cache(maxsize=256)
def _circle(length: int, dtype: str) -> FFTConvolve:
    return FFTConvolve(convolve_plan.plan_rows("circular", length, length, dtype), dtype, "circular")


def _circular_turned(array: Any, length: int) -> Any:
    """``conj(a[-k mod length])``: what makes a circular convolution a correlation."""
    module = _module(array)
    padded = _pad(array, 0, length - array.shape[-1])
    turned = _turned(padded)
    return module.roll(turned, 1, -1)


def input_gradient(plan: FFTConvolve, gradient: Any, h: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of x, which has batch shape `batch`."""
    rows = plan.plan
    if plan.mode == "circular":
        result = _circle(rows.length, plan.dtype)(gradient, _circular_turned(h, rows.length))
    else:
        inner = _window(rows.taps - 1 - rows.start, rows.length, rows.window, rows.taps, plan.dtype)
        result = inner(gradient, _turned(h))
    return sum_to(result, batch)


def filter_gradient(plan: FFTConvolve, gradient: Any, x: Any, batch: tuple[int, ...]) -> Any:
    """Gradient of h, which has batch shape `batch`."""
    rows, dtype = plan.plan, plan.dtype
    top = convolve_plan.longest_linear(dtype)
    if plan.mode == "circular":
        if rows.length <= top or rows.taps > _SEGMENT:
            turned = _circular_turned(x, rows.length)
            return sum_to(_circle(rows.length, dtype)(gradient, turned)[..., : rows.taps], batch)
        x = _pad(x, 0, 0)
        module = _module(x)
        ahead = x[..., rows.length - (rows.taps - 1) :]
        x = module.cat([ahead, x], -1) if hasattr(module, "cat") else module.concatenate([ahead, x], -1)
        start, length = rows.taps - 1, rows.length + rows.taps - 1
    else:
        start, length = rows.start, rows.length
        first = length - 1 - start
        if max(length, rows.window) <= top or rows.taps > _SEGMENT:
            missing = max(0, -first)  # taps that no sample of the result has met
            inner = _window(max(0, first), rows.taps - missing, rows.window, length, dtype)
            return sum_to(_pad(inner(gradient, _turned(x)), missing, 0), batch)
    # In segments: sample m of a segment meets x[start + m - k], k < taps.
    step = min(_SEGMENT, rows.window)
    count = -(-rows.window // step)
    pieces = _windows(_pad(gradient, 0, count * step - rows.window), step, step)
    reach = step + rows.taps - 1
    before = rows.taps - 1 - start
    after = max(0, count * step + rows.taps - 1 - before - length)
    padded = _pad(x, before, after) if before >= 0 else _pad(x[..., -before:], 0, after - before)
    windows = _windows(padded, reach, step)[..., :count, :]
    inner = _window(step - 1, rows.taps, step, reach, dtype)
    return sum_to(inner(pieces, _turned(windows)).sum(-2), batch)


@functools.cache
def _function() -> Any:
    import torch

    class Convolve(torch.autograd.Function):
        """Convolution whose gradients are convolutions, which can be differentiated again."""

        @staticmethod
        def forward(ctx, plan, x, h):
            ctx.plan = plan
            ctx.save_for_backward(x, h)
            return plan.run(x, h)

        @staticmethod
        def backward(ctx, gradient):
            from devkernels.kernels import convolve_grad, convolve_grad2d

            x, h = ctx.saved_tensors
            plan, of_x, of_h = ctx.plan, None, None
            tail, ways = (2, convolve_grad2d) if hasattr(plan, "plans") else (1, convolve_grad)
            if ctx.needs_input_grad[1]:
                of_x = ways.input_gradient(plan, gradient, h, tuple(x.shape[:-tail]))
            if ctx.needs_input_grad[2]:
                of_h = ways.filter_gradient(plan, gradient, x, tuple(h.shape[:-tail]))
            return None, of_x, of_h

    return Convolve


def apply(plan: Any, x: Any, h: Any) -> Any:
    """Convolve torch tensors so that gradients flow.

    Raises
    ------
    ArgumentError
        The plan has a prologue or an epilogue, whose derivatives are not known.
    """
    if plan.prologue is not None or plan.epilogue is not None:
        raise ArgumentError(
            "the derivatives of a prologue or epilogue are not known; pass detached tensors, or put these functions "
            "beside the convolution.", spec=plan,
        )  # fmt: skip
    return _function().apply(plan, x, h)
