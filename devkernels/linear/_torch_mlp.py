"""Planned products on raw tensors: forward and backward of a chain of layers, whose epilogs share their work.

in: tensors without regard to autograd.  out: the result, and what the backward pass needs; gradients.
"""

from __future__ import annotations

from torch import Tensor

from devkernels.linear._torch_kept import forward_code
from devkernels.linear._torch_run import BGRADA, BIAS, DEFAULT, flatten, product, run
from devkernels.linear.epilog import Epilog


def mlp_forward(x: Tensor, weights, biases, activation: str) -> list[Tensor]:
    """Result, then the inputs of all layers but the first, then the raw masks of all layers but the last."""
    code = forward_code(activation, True, True)
    inputs, masks = [], []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x, mask = run(x, weight, bias, code)
        inputs.append(x)
        masks.append(mask)
    y, _ = run(x, weights[-1], biases[-1], BIAS)
    return [y, *inputs, *masks]


def mlp_backward(dy: Tensor, x: Tensor, weights, kept, activation: str) -> list[Tensor]:
    """Gradient of the input, of all weights, and of all biases."""
    layers = len(weights)
    inputs, masks = [x, *kept[: layers - 1]], kept[layers - 1 :]
    below = int(Epilog.DRELU_BGRAD if activation == "relu" else Epilog.DGELU_BGRAD)
    dz, known = flatten("dy", dy), None
    weight_gradients, bias_gradients = [], []
    for index in range(layers - 1, -1, -1):
        dw, db = product(BGRADA if known is None else DEFAULT, dz.T, flatten("x", inputs[index]))
        weight_gradients.append(dw)
        bias_gradients.append(db if known is None else known)
        if index:
            dz, known = product(below, dz, weights[index], masks[index - 1])
        else:
            dz, known = product(DEFAULT, dz, weights[0])
    return [dz.reshape(x.shape), *weight_gradients[::-1], *bias_gradients[::-1]]
