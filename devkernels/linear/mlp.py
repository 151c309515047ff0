"""`FusedMLP`: layers one after another, whose backward passes share their epilogs.

in: arrays (…, features).  out: arrays, and the gradients of the input and of all weights and biases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from devkernels.errors import ArgumentError, SpecError
from devkernels.linear.layer import FusedLinear
from devkernels.linear.masks import MASKS
from devkernels.linear.saved import Saved


class FusedMLP:
    """Layers one after another, with the activation between them (not after the last).

    The backward pass takes two products for each layer: the derivative of the activation below and that layer's bias
    gradient are epilogs of the input gradient.

    Parameters
    ----------
    sizes : sequence of int
        Features of the input, of each hidden layer, and of the result.
    activation : {"relu", "gelu"}
        Between the layers.
    seed : int, optional
        Seed of the first layer; the others count on from it.
    **options
        As for `FusedLinear`.
    """

    def __init__(self, sizes: Sequence[int], *, activation: str = "relu", seed: int | None = None, **options):
        if len(sizes) < 2:
            raise SpecError(f"sizes={list(sizes)!r} must name at least the input's and the result's features.")
        last = len(sizes) - 2
        self.layers = [
            FusedLinear(a, b, activation=None if i == last else activation, seed=None if seed is None else seed + i,
                        **options)
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        ]  # fmt: skip
        self._last: list[Saved] | None = None

    def __iter__(self) -> Iterator[FusedLinear]:
        return iter(self.layers)

    def forward(self, x, *, training: bool = True, stream=None):
        """Result of the last layer, shape (…, sizes[-1])."""
        kept = []
        for layer in self.layers:
            x, saved = layer.forward_saving(x, training=training, stream=stream)
            kept.append(saved)
        if training:
            self._last = kept
        return x

    __call__ = forward

    def backward(self, dy, *, stream=None) -> tuple[object, list[tuple[object, object]]]:
        """Gradient of the input, and (weight, bias) gradients of each layer, for the last training `forward`."""
        if self._last is None:
            raise ArgumentError("backward() has no forward pass to belong to; call forward() with training first.")
        kept, self._last = self._last, None
        lead = kept[0].lead
        if dy.shape != (*lead, self.layers[-1].out_features):
            raise ArgumentError(f"dy has shape {dy.shape}; the result had {(*lead, self.layers[-1].out_features)}.")
        gradients: list[tuple[object, object]] = []
        top = self.layers[-1]
        dz, known = top._through_activation(dy, kept[-1], stream)
        for index in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[index]
            saved = layer._take(kept[index])
            need = layer.bias is not None
            weight, bias = layer.parameter_gradients(dz, saved, need_bias=need and known is None, stream=stream)
            gradients.append((weight, (bias if known is None else known) if need else None))
            below = self.layers[index - 1] if index else None
            mask = kept[index - 1].mask if index else None
            if mask is not None and mask.kind not in MASKS:  # no epilog takes it
                dx, _ = layer.input_gradient(dz, None, None, stream=stream)
                dz, known = below._through_activation(dx, kept[index - 1], stream)
            else:
                dz, known = layer.input_gradient(dz, below.activation if below else None, mask, stream=stream)
        return dz.reshape(*lead, self.layers[0].in_features), gradients[::-1]

    def parameters(self) -> list:
        """Weights and biases of all layers, in order."""
        return [p for layer in self.layers for p in layer.parameters()]
