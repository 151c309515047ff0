"""What a layer of torch keeps of its activation (`kept`), and by which forward product.

in: tensors.  out: the number of the forward epilog; what a tensor that was kept is.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from devkernels.linear import kept
from devkernels.linear.arrays import package
from devkernels.linear.bounded import Bounded
from devkernels.linear.epilog import Epilog

SLOPE = -1  # in place of an epilog's number: GELU by a kernel of ours that keeps the slope (`kept.slope_for`)
LIKE_Y = ("relu", "gelu_slope")  # what is kept has the result's elements, without padding
_ARRAYS = package("torch")
_kept = Bounded(512)


@functools.cache
def forward_code(activation: str | None, bias: bool, aux: bool) -> int:
    """Number of the forward epilog."""
    return int(Epilog.of(activation, bias=bias, aux=aux))


def on_gpu(x: Tensor) -> bool:
    """Whether a tensor lies on a GPU."""
    return x.is_cuda


def keeps_mask(x: Tensor, weight: Tensor, activation: str | None) -> bool:
    """Whether the forward product keeps a mask: always for GELU; for ReLU where that was measured to be faster."""
    if activation == "gelu":
        return True
    if activation is None or not x.is_cuda or weight.dim() != 2:
        return False
    key = (x.shape, weight.shape, x.dtype, x.get_device())
    answer = _kept.get(key)
    if answer is None:
        n, k = weight.shape
        answer = kept.mask_for(_ARRAYS, x.numel() // k, n, k, str(x.dtype)[6:], x.get_device())
        _kept.keep(key, answer)
    return answer


def keeps_slope(x: Tensor, weight: Tensor) -> bool:
    """Whether the forward product keeps GELU's slope instead of its input: where that was measured to be faster."""
    if not x.is_cuda or weight.dim() != 2:
        return False
    key = (x.shape, weight.shape, x.dtype, x.get_device(), "gelu")
    answer = _kept.get(key)
    if answer is None:
        n, k = weight.shape
        answer = kept.slope_for(_ARRAYS, x.numel() // k, n, k, str(x.dtype)[6:], x.get_device()) is not None
        _kept.keep(key, answer)
    return answer


def training_code(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> int:
    """Number of the forward epilog in training, or `SLOPE`."""
    if activation == "gelu" and keeps_slope(x, weight):
        return SLOPE
    return forward_code(activation, bias is not None, keeps_mask(x, weight, activation))


def kind_of(activation: str, kept: Tensor) -> str:
    """What was kept: of ReLU "relu" (the result) or "relu_aux" (bits), of GELU "gelu" (the input) or "gelu_slope"."""
    if activation == "relu":
        return "relu_aux" if kept.dtype is torch.uint8 else activation
    return "gelu_slope" if kept.dim() == 1 else activation


def forget() -> None:
    """Ask again: it has just been measured."""
    _kept.clear()
