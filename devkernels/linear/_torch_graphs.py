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
from devkernels.errors import ArgumentError, CompileError, JitDisabledError
from devkernels.linear import _torch_run as raw
from devkernels.linear._copies import Copies
from devkernels.linear._cuda import copy_bytes
from devkernels.linear._torch_look import look_of
from devkernels.linear._torch_program import REFUSALS, Around, replay, replays

_grad_enabled = torch.is_grad_enabled


@contextlib.contextmanager
def _stream_of_its_own(device: torch.device) -> Iterator[None]:
    """A new stream is current: its workspace is not that of others, who may run at the same time."""
    cuda = torch.cuda
    stream, current = cuda.Stream(device), cuda.current_stream(device)
    stream.wait_stream(current)
    with cuda.device(device), cuda.stream(stream):
        yield
    current.wait_stream(stream)


def _only_device(x: Tensor) -> int:
    """Index of the device, where there is one only: it is the current one, and pointers alone will do. Else -1."""
    return -1 if raw._ARRAYS.several_devices() else x.get_device()


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
        self._same = look_of(x, *parameters)
        self._wanted = x.requires_grad or any(p.requires_grad for p in parameters)
        self._pointers = tuple(p.data_ptr() for p in parameters)
        self._index = _only_device(x)
        with _stream_of_its_own(x.device), torch.no_grad():
            held = self.x = x.detach().clone(memory_format=torch.contiguous_format) if copy else x.detach()
            there = graphs.with_torch(lambda: forward(held), 1)
            self.y, kept = there.result
            dy = self.dy = torch.zeros_like(self.y)
            back, around = self._captured(lambda: backward(dy, held, kept, x.requires_grad), x)
        self.gradients = (None, *back.result)  # of the recording, of x, of the parameters
        self._makers, self._copies = (), None
        self.x_pointer, self.dy_pointer = held.data_ptr(), dy.data_ptr()
        self._bytes = held.nbytes, dy.nbytes
        self.there, self.back = there, back  # the graphs and their memory
        self._native = None  # all of this in C++
        if around is not None:
            self._native = replay(there, back, around, x, parameters, held, self.y, dy)
        elif self._index >= 0:
            self._copy_gradients()
        self.turn = 0
        self.waiting: Callable[[], object] | None = None  # the forward pass whose backward pass is still to come

    def _captured(self, backward: Callable, x: Tensor) -> tuple[graphs.Replay, Around | None]:
        """Capture the backward pass; for the C++, which can change nodes of a graph, between copies."""
        if self._wanted and self._index >= 0 and x.is_contiguous() and replays():
            around = Around(backward, self.dy, self._index)
            with contextlib.suppress(JitDisabledError, CompileError):  # DEVKERNELS_DISABLE_JIT
                return graphs.with_torch(around, 1, nodes=True), around
        return graphs.with_torch(backward, 1), None

    def __call__(self, x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor | None:
        """Result for an input, differentiable; None where the graphs do not fit."""
        if self._native is not None:
            return self._native(x, *parameters)
        if not self._wanted or (self.waiting is not None and self.waiting() is not None):
            return None
        if not self._same(x, *parameters) or tuple(p.data_ptr() for p in parameters) != self._pointers:
            return None
        return _apply(self, x, *parameters)

    def take_x(self, x: Tensor, pointer: int) -> None:
        """Copy an input to where the graphs read it."""
        if self._index >= 0 and x.is_contiguous():
            copy_bytes(self.x_pointer, pointer, self._bytes[0], self._index, raw._raw_stream(self._index))
        else:
            self.x.copy_(x)

    def take_dy(self, dy: Tensor, pointer: int) -> None:
        """Copy a gradient, which has the result's shape and dtype, to where the graphs read it."""
        if self._index >= 0 and dy.is_contiguous():
            copy_bytes(self.dy_pointer, pointer, self._bytes[1], self._index, raw._raw_stream(self._index))
        else:
            self.dy.copy_(dy)

    def _copy_gradients(self) -> None:
        """Have gradients copied to memory of their own, all in one launch; autograd would do it one after the other."""
        made = [t for t in self.gradients if t is not None]
        if not all(t.is_contiguous() and t.numel() and not t.data_ptr() & 15 for t in made):
            return
        try:
            self._copies = Copies(raw._ARRAYS, self._index, [(t.data_ptr(), t.nbytes) for t in made])
        except (JitDisabledError, CompileError):  # DEVKERNELS_DISABLE_JIT
            return
        about = [None if t is None else (tuple(t.shape), str(t.dtype)[6:], self._index) for t in self.gradients]
        self._makers = tuple(None if told is None else raw._ARRAYS.maker(*told) for told in about)

    def give_gradients(self) -> tuple[Tensor | None, ...]:
        """Return what the backward pass has just written."""
        if self._copies is None:
            return self.gradients
        given = [None if make is None else make() for make in self._makers]
        self._copies.to([t.data_ptr() for t in given if t is not None], raw._raw_stream(self._index))
        return tuple(given)

    def __deepcopy__(self, memo: dict) -> None:
        """Copies of a layer have parameters elsewhere, and no recording."""

    def __reduce__(self):
        return type(None), ()


class _Replayed(torch.autograd.Function):
    """A `Recording` for autograd."""

    @staticmethod
    def forward(ctx, recording, x, *parameters):
        """Replay the forward pass."""
        held, pointer = recording.x, x.data_ptr()
        if pointer != recording.x_pointer:
            recording.take_x(x, pointer)
        recording.turn = turn = recording.turn + 1
        watched = (held, *parameters)
        ctx.told = recording, turn, watched, [t._version for t in watched]
        recording.waiting = weakref.ref(ctx)
        recording.there.launch()
        return recording.y.detach()

    @staticmethod
    def backward(ctx, dy):
        """Replay the backward pass."""
        return _go_back_once(ctx, dy) if _grad_enabled() else _go_back(ctx, dy)


def _go_back(ctx, dy):
    recording, turn, watched, versions = ctx.told
    if turn != recording.turn:
        raise ArgumentError(REFUSALS[0])
    if [t._version for t in watched] != versions:
        raise ArgumentError(REFUSALS[1])
    pointer = dy.data_ptr()
    if pointer != recording.dy_pointer:
        recording.take_dy(dy, pointer)
    recording.waiting = None
    recording.back.launch()
    return recording.give_gradients()


_go_back_once = once_differentiable(_go_back)
_apply = super(torch.autograd.Function, _Replayed).apply  # Function.apply looks for functorch first, see `_torch_ops`
