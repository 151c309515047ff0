"""Whether tensors look as others did: one check in C++, for calls that repeat.

in: tensors.  out: `Look`, the check with what the planned call needs; `Learned`, which makes one from the second of two
calls that look alike. The check is what torch.compile's guards use (``TensorGuards``: type, dispatch keys, dtype,
device, sizes and strides of several tensors at once). Where torch does not have it, `Learned` learns nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from devkernels.linear import _torch_run as raw
from devkernels.linear.bounded import Bounded

_guards = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)


def _told(*tensors: Tensor) -> list[tuple]:
    """The same in Python, some microseconds slower."""
    return [(t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.is_inference()) for t in tensors]


def look_of(*tensors: Tensor) -> Callable[..., bool]:
    """Return the check for tensors that look like these."""
    if _guards is None:
        told = _told(*tensors)
        return lambda *others: _told(*others) == told
    return _guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


class Look:
    """A planned product, and the check whether input, weight and bias are like those it was planned for."""

    __slots__ = ("_check", "_has_bias", "_precision", "activation", "index", "lt", "new_aux", "new_out")

    def __init__(self, entry: raw._Entry, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None):
        self.activation, self._has_bias, self.index = activation, bias is not None, entry.index
        self.lt, self.new_out, self.new_aux = entry.lt, entry.new_out, entry.new_aux
        self._check = look_of(*((x, weight) if bias is None else (x, weight, bias)))
        self._precision = raw._precision() if x.dtype is torch.float32 else None

    def same_precision(self) -> bool:
        """Whether torch's switch for tf32 stands as it did, where it matters."""
        return self._precision is None or self._precision == raw._precision()

    def bias_pointer(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> int | None:
        """Pointer of the bias (0 without one), or None where something differs."""
        if bias is None:
            same, pointer = not self._has_bias and self._check(x, weight), 0
        else:
            same, pointer = self._has_bias and self._check(x, weight, bias), bias.data_ptr()
        return pointer if same and (self._precision is None or self.same_precision()) else None


class Learned:
    """What calls on each weight look like, as far as they repeat.

    Parameters
    ----------
    kind : type
        `Look`, or what is derived from it.
    """

    def __init__(self, kind: type[Look]):
        self._kind = kind
        # By the id of a weight: an id that is used again fails the check, or passes it rightly.
        self.known: Bounded = Bounded(512)
        self.seen: Bounded = Bounded(512)  # what a weight was last called with, and how often in a row

    def learn(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, code: int) -> Look | None:
        """Make a look of tensors that came twice in a row, where one library call on them is all."""
        now = (x.shape, x.dtype, activation)
        before, times = self.seen.get(id(weight), (None, 0))
        times = times + 1 if before == now else 1
        if times > 2 or _guards is None:  # tried already: it is known, or cannot be
            return None
        self.seen.keep(id(weight), (now, times))
        if times < 2:
            return None
        entry = raw.entry_for(x, weight, bias, code)
        pointers = x.data_ptr() | weight.data_ptr() | (0 if bias is None else bias.data_ptr())
        if entry.lt is None or entry.copy or pointers & 255:
            return None
        return self.known.keep(id(weight), self._kind(entry, x, weight, bias, activation))

    def forget(self) -> None:
        """Forget everything: algorithms, or what ReLU keeps, have been chosen anew."""
        self.known.clear()
        self.seen.clear()
