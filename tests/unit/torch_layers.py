"""Layers of torch's own, beside which recorded ones of devkernels.linear.torch are set."""

import torch
from torch import nn

ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "gelu": nn.GELU("tanh")}


def plain(kind, layer, x):
    """What a FusedLinear with an activation `kind`, or a FusedMLP ("mlp"), computes, by torch's own operators."""
    for one in layer.layers if kind == "mlp" else [layer]:
        x = ACTIVATIONS[one.activation](nn.functional.linear(x, one.weight, one.bias))
    return x
