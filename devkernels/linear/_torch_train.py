"""Training steps on tensors that look as they did last time: one check in C++ for the way there, one for the way back.

in: what autograd hands to `LinearFunction`.  out: results of the planned products, or None where something is new.
What this takes the place of is in `_torch_run`.
"""

from __future__ import annotations

from torch import Tensor

from devkernels.linear import _torch_run as raw
from devkernels.linear._torch_kept import kind_of, on_gpu
from devkernels.linear._torch_look import Learned, Look, look_of
from devkernels.linear._torch_program import plan


class Training(Look):
    """The planned forward product for tensors of one look, and (once it is known) the backward pass."""

    __slots__ = ("_bias_like", "_same", "_step", "_tries", "native")

    def __init__(self, entry: raw._Entry, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None):
        super().__init__(entry, x, weight, bias, activation)
        self.native = None  # both ways in C++ (`_torch_program.plan`), once the way back is known
        self._bias_like = None if bias is None else (bias.shape, bias.stride())
        self._step: tuple[tuple[bool, ...], raw._Step] | None = None
        self._same, self._tries = None, 0

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
        """Result and raw mask."""
        side = self.bias_pointer(x, weight, bias)
        if side is None:
            return None
        a, b = x.data_ptr(), weight.data_ptr()
        if (a | b | side) & 255:
            return None
        out, aux, target = self.new_out(), None, 0
        if self.new_aux is not None:
            aux = self.new_aux()
            target = aux.data_ptr()
        self.lt.launch(a, b, 0, out.data_ptr(), side, target, raw._raw_stream(self.index))
        return out, aux

    def backward(self, dy: Tensor, saved: tuple[Tensor, Tensor, Tensor | None], needs: tuple[bool, ...]):
        """Gradients of x, weight and bias, and None; None alone where something is new."""
        step, (x, weight, kept) = self._step, saved
        if step is None or step[0] != needs or not self._same(dy, x, weight):
            return None
        a, b, c, d = dy.data_ptr(), x.data_ptr(), weight.data_ptr(), 0 if kept is None else kept.data_ptr()
        if (a | b | c | d) & 255 or not (self._precision is None or self.same_precision()):
            return None
        return step[1](a, b, c, d)

    def learn(self, dy: Tensor, x: Tensor, weight: Tensor, kept: Tensor | None, needs: tuple[bool, ...]) -> None:
        """Keep the backward pass for such gradients, where it is a pass and two products on contiguous tensors."""
        known = self.native if not needs[0] else self._step
        if known is not None or self._tries > 2 or not needs[1] or not on_gpu(dy):
            return
        self._tries += 1
        kind = None if self.activation is None else kind_of(self.activation, kept)
        step = raw._step_for(dy, x, weight, kept, kind, needs[2])
        if step is None:
            return
        if needs[0]:
            self._same = look_of(dy, x, weight)
            self._step = needs, step
        if self.native is None:
            bias = None if self._bias_like is None else weight.new_empty_strided(*self._bias_like)
            self.native = plan(self.lt, self.new_out, self.new_aux, step, x, weight, bias, self.activation)


learned = Learned(Training)


def known(weight: Tensor, activation: str | None) -> Training | None:
    """What is known for a weight."""
    found = learned.known.get(id(weight))
    return found if found is not None and found.activation == activation else None
