"""Calls of `fused_linear` on tensors that look as they did last time: one check in C++, no signature in Python.

in: tensors.  out: the result of the planned call, or of the autograd function where a gradient is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from devkernels.linear import _torch_ops as ops
from devkernels.linear import _torch_run as raw
from devkernels.linear._torch_kept import forward_code
from devkernels.linear._torch_look import Learned, Look

any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_grad_enabled = torch.is_grad_enabled
learned = Learned(Look)


def autocast(x: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    """Operands in the dtype of the autocast context that is active on their device, if any."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.is_floating_point() and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        return tuple(None if t is None else t.to(dtype) for t in (x, *others))
    return (x, *others)


def _of_nothing(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """The layer for a batch of no tokens, where there is nothing to fuse."""
    forward_code(activation, bias is not None, False)
    raw.check_layer(x, weight)
    y = torch.nn.functional.linear(x, weight, bias)
    return y if activation is None else y.relu() if activation == "relu" else torch.nn.functional.gelu(y)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """``activation(x @ weight.T + bias)``, outside of torch.compile. One function, since every call in it is felt."""
    if any_autocast():
        x, weight, bias = autocast(x, weight, bias)
    if _grad_enabled() and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)):
        if 0 in x.shape:
            return _of_nothing(x, weight, bias, activation)
        return ops.linear(x, weight, bias, activation)
    look = learned.known.get(id(weight))
    if look is not None and look.activation == activation:
        side = look.bias_pointer(x, weight, bias)
        if side is not None:
            a, b = x.data_ptr(), weight.data_ptr()
            if not (a | b | side) & 255:
                out = look.new_out()
                look.lt.launch(a, b, 0, out.data_ptr(), side, 0, raw._raw_stream(look.index))
                return out
    if 0 in x.shape:
        return _of_nothing(x, weight, bias, activation)
    code = forward_code(activation, bias is not None, False)
    y = raw.run(x, weight, bias, code)[0]
    learned.learn(x, weight, bias, activation, code)
    return y
