"""Operands of convolutions turned, padded, cut and moved, the same for arrays of NumPy, CuPy and torch.

in: an array. out: another one of the same library, a view where it can be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from devkernels.kernels import arrays


def module_of(array: Any) -> Any:
    """The array's library."""
    kind = arrays.library(array, "array")
    return np if kind == "numpy" else sys.modules[kind]


def turned(array: Any, axes: int) -> Any:
    """Conjugate, and reversed along the last `axes` axes: what makes a convolution a correlation."""
    if arrays.library(array, "array") == "torch":
        flipped = array.flip(tuple(range(-axes, 0)))
        return flipped.conj().resolve_conj() if flipped.is_complex() else flipped
    return array[(..., *(slice(None, None, -1),) * axes)].conj()


def circular_turned(array: Any, shape: tuple[int, ...]) -> Any:
    """``conj(a[-k mod shape])`` along the last axes: what makes a circular convolution a correlation."""
    axes = tuple(range(-len(shape), 0))
    missing = tuple(n - k for n, k in zip(shape, array.shape[-len(shape) :], strict=True))
    whole = padded(array, (0,) * len(shape), missing)
    return module_of(array).roll(turned(whole, len(shape)), (1,) * len(shape), axes)


def padded(array: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
    """Zeros before and after the last axes."""
    if not any(before + after):
        return array
    widths = list(zip(before, after, strict=True))
    module = module_of(array)
    if arrays.library(array, "array") == "torch":
        return module.nn.functional.pad(array, [n for pair in reversed(widths) for n in pair])
    return module.pad(array, [(0, 0)] * (array.ndim - len(widths)) + widths)


def pieces(array: Any, length: int, step: int) -> Any:
    """Pieces of the last axis, one each `step` samples, as a new axis before it."""
    if arrays.library(array, "array") == "torch":
        return array.unfold(-1, length, step)
    return module_of(array).lib.stride_tricks.sliding_window_view(array, length, axis=-1)[..., ::step, :]


def joined(parts: list, axis: int) -> Any:
    """Arrays one after the other."""
    return module_of(parts[0]).concatenate(parts, axis)


def moved(array: Any, source: Iterable[int], target: Iterable[int]) -> Any:
    """Axes in other places."""
    module = module_of(array)
    return (module.movedim if hasattr(module, "movedim") else module.moveaxis)(array, tuple(source), tuple(target))


def converted(array: Any, dtype: str) -> Any:
    """The array in another dtype."""
    if arrays.library(array, "array") == "torch":
        return array.to(getattr(sys.modules["torch"], dtype))
    return array.astype(dtype)


def expanded(array: Any, shape: tuple[int, ...]) -> Any:
    """The array repeated to a shape, as a copy: for operands whose batch axes do not adjoin in the output."""
    if arrays.library(array, "array") == "torch":
        return array.expand(shape).contiguous()
    module = module_of(array)
    return module.ascontiguousarray(module.broadcast_to(array, shape))


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
