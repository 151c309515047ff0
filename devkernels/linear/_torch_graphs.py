"""Forward and backward pass of a layer as two CUDA graphs, for calls that repeat.

in: how a layer computes its passes, an input, parameters.  out: a `Recording`, which replays them on such inputs.

What remains for the host is autograd itself and one launch for each pass, whatever a pass consists of.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from devkernels import graphs
from devkernels.errors import ArgumentError

_grad_enabled = torch.is_grad_enabled


def _nothing() -> None:
    """Stand in for a weak reference before there is one."""


@contextlib.contextmanager
def _stream_of_its_own(device: torch.device) -> Iterator[None]:
    """A new stream is current: its workspace is not that of others, who may run at the same time."""
    cuda = torch.cuda
    stream, current = cuda.Stream(device), cuda.current_stream(device)
    stream.wait_stream(current)
    with cuda.device(device), cuda.stream(stream):
        yield
    current.wait_stream(stream)


class Recording:
    """The two passes of a layer for inputs of one shape and dtype, and for parameters at one place in memory.

    Parameters
    ----------
    forward : callable
        ``forward(x)`` returns the result and whatever the backward pass needs of it.
    backward : callable
        ``backward(dy, x, kept, need_x)`` returns the gradients of x and of all parameters.
    x : Tensor
        An input like those to come.
    parameters : tuple of Tensor
        What the passes read besides.
    copy : bool
        Whether inputs are copied to memory of the graphs' own; else `x` itself is that memory.
    """

    def __init__(self, forward: Callable, backward: Callable, x: Tensor, parameters: tuple[Tensor, ...], copy: bool):
        self.need_x = x.requires_grad
        self.look = x.shape, x.dtype, x.get_device()
        self.parameters = tuple((p.data_ptr(), p.requires_grad) for p in parameters)
        with _stream_of_its_own(x.device), torch.no_grad():
            held = self.x = x.detach().clone(memory_format=torch.contiguous_format) if copy else x.detach()
            self._forward = graphs.with_torch(lambda: forward(held), 1)
            self.y, kept = self._forward.result
            dy = self.dy = torch.zeros_like(self.y)
            self._backward = graphs.with_torch(lambda: backward(dy, held, kept, self.need_x), 1)
        self.gradients = self._backward.result
        self.x_pointer, self.dy_pointer = held.data_ptr(), dy.data_ptr()
        self.turn = 0
        self._pending: Callable[[], object] = _nothing  # the forward pass whose backward pass is still to come

    def __call__(self, x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor | None:
        """Result for an input, differentiable; None where the graphs do not fit."""
        pending = self._pending()
        if pending is not None and not pending.done:
            return None
        if (x.shape, x.dtype, x.get_device()) != self.look or (x.requires_grad and not self.need_x):
            return None
        wanted = x.requires_grad
        for p, (pointer, able) in zip(parameters, self.parameters, strict=True):
            if p.data_ptr() != pointer or (p.requires_grad and not able):
                return None
            wanted = wanted or p.requires_grad
        return _apply(self, x, *parameters) if wanted else None

    def forward(self, ctx, x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Replay the forward pass."""
        held = self.x
        if x.data_ptr() != self.x_pointer or not x.is_contiguous():
            held.copy_(x)
        self.turn += 1
        ctx.recording, ctx.turn, ctx.done, ctx.parameters = self, self.turn, False, parameters
        ctx.versions = [held._version, *[p._version for p in parameters]]
        self._pending = weakref.ref(ctx)
        self._forward.launch()
        return self.y.detach()

    def backward(self, ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Replay the backward pass."""
        if ctx.turn != self.turn:
            raise ArgumentError(
                "this forward pass was replayed from a CUDA graph, and a later one has overwritten what it left for "
                "its backward pass; go back before the next forward pass, or train without record()."
            )
        if ctx.versions != [self.x._version, *[p._version for p in ctx.parameters]]:
            raise ArgumentError(
                "the input or a parameter of this forward pass was modified in place before its backward pass."
            )
        if dy.data_ptr() != self.dy_pointer or not dy.is_contiguous():
            self.dy.copy_(dy)
        ctx.done = True
        self._backward.launch()
        return self.gradients

    def __deepcopy__(self, memo: dict) -> None:
        """Copies of a layer have parameters elsewhere, and no recording."""

    def __reduce__(self):
        return type(None), ()


def _go_back(ctx, dy):
    return (None, *ctx.recording.backward(ctx, dy))


_go_back_once = once_differentiable(_go_back)


class _Replayed(torch.autograd.Function):
    """A `Recording` for autograd."""

    @staticmethod
    def forward(ctx, recording, x, *parameters):
        """Replay the forward pass."""
        return recording.forward(ctx, x, parameters)

    @staticmethod
    def backward(ctx, dy):
        """Replay the backward pass."""
        return _go_back_once(ctx, dy) if _grad_enabled() else _go_back(ctx, dy)


_apply = super(torch.autograd.Function, _Replayed).apply  # Function.apply looks for functorch first, see `_torch_ops`
