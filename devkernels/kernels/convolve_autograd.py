"""Planned convolutions behind torch's autograd.

in: a plan, whose `gradients` are `convolve_grad` or `convolve_grad2d`, and tensors. out: a tensor with a gradient.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from devkernels.errors import ArgumentError


def recording(x: Any, h: Any) -> bool:
    """Whether torch is recording gradients of these arrays."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or not torch.is_grad_enabled():
        return False
    return bool(x.requires_grad or h.requires_grad)


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
            x, h = ctx.saved_tensors
            plan, of_x, of_h = ctx.plan, None, None
            ways = plan.gradients
            if ctx.needs_input_grad[1]:
                of_x = ways.input_gradient(plan, gradient, h, tuple(x.shape[: -ways.AXES]))
            if ctx.needs_input_grad[2]:
                of_h = ways.filter_gradient(plan, gradient, x, tuple(h.shape[: -ways.AXES]))
            return None, of_x, of_h

    return Convolve


def apply(plan: Any, x: Any, h: Any, out: Any = None) -> Any:
    """Convolve torch tensors so that gradients flow.

    Raises
    ------
    ArgumentError
        `out` is given, or the plan has a prologue or an epilogue, whose derivatives are not known.
    """
    if out is not None:
        raise ArgumentError("out cannot be given where gradients are recorded; use torch.no_grad().", spec=plan)
    if plan.prologue is not None or plan.epilogue is not None:
        raise ArgumentError(
            "the derivatives of a prologue or epilogue are not known; pass detached tensors, or put these functions "
            "beside the convolution.", spec=plan,
        )  # fmt: skip
    return _function().apply(plan, x, h)
