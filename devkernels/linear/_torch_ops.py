"""The autograd functions and the registered operators around the products of `_torch_run`.

in: tensors.  out: tensors that autograd and torch.compile can follow.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from devkernels.linear._torch_kept import forward_code, training_code
from devkernels.linear._torch_mlp import mlp_backward, mlp_forward
from devkernels.linear._torch_run import backward, run
from devkernels.linear._torch_train import known, learned
from devkernels.linear.epilog import gelu_aux_columns, relu_mask_bytes

_grad_enabled = torch.is_grad_enabled


def _linear_backward(ctx, dy):
    saved, needs, training = ctx.saved_tensors, ctx.needs_input_grad, ctx.training
    x, weight, kept = saved
    if training is not None:
        found = training.backward(dy, saved, needs)
        if found is not None:
            return found
        training.learn(dy, x, weight, kept, needs)
    dx, dw, db = backward(dy, x, weight, kept, ctx.activation, needs)
    return dx, dw, db, None


_linear_backward_once = once_differentiable(_linear_backward)


class LinearFunction(torch.autograd.Function):
    """`fused_linear` with its gradients."""

    @staticmethod
    def forward(ctx, x, weight, bias, activation):
        """Run the product; keep its mask, or the result of ReLU."""
        training = known(weight, activation)
        found = None if training is None else training.forward(x, weight, bias)
        if found is None:
            code = training_code(x, weight, bias, activation)
            found = run(x, weight, bias, code)
            training = learned.learn(x, weight, bias, activation, code)
        y, aux = found
        ctx.activation, ctx.training = activation, training
        ctx.save_for_backward(x, weight, y if aux is None and activation is not None else aux)
        return y

    @staticmethod
    def backward(ctx, dy):
        """One pass through the activation and two products."""
        if _grad_enabled():  # create_graph=True: the result must refuse to be differentiated again
            return _linear_backward_once(ctx, dy)
        return _linear_backward(ctx, dy)


class MlpFunction(torch.autograd.Function):
    """`FusedMLP` with its gradients."""

    @staticmethod
    def forward(ctx, x, activation, layers, *parameters):
        """Run all layers; keep their inputs and masks."""
        weights, biases = parameters[:layers], parameters[layers:]
        y, *kept = mlp_forward(x, weights, biases, activation)
        ctx.activation, ctx.layers = activation, layers
        ctx.save_for_backward(x, *weights, *kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Two products for each layer."""
        x, *saved = ctx.saved_tensors
        dx, *rest = mlp_backward(dy, x, saved[: ctx.layers], saved[ctx.layers :], ctx.activation)
        return (dx, None, None, *rest)


# Function.apply looks through its arguments for what functorch has left behind, at 10 microseconds a call.
_transforming = getattr(torch._C, "_are_functorch_transforms_active", None)
_apply_linear = super(torch.autograd.Function, LinearFunction).apply
_apply_mlp = super(torch.autograd.Function, MlpFunction).apply


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Differentiable `fused_linear`."""
    if _transforming is None or _transforming():
        return LinearFunction.apply(x, weight, bias, activation)
    training = known(weight, activation)
    if training is not None and training.native is not None:
        y = training.native(x, weight, bias)
        if y is not None:
            return y
    return _apply_linear(x, weight, bias, activation)


def mlp(x: Tensor, activation: str, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """Differentiable `FusedMLP`."""
    if _transforming is None or _transforming():
        return MlpFunction.apply(x, activation, len(weights), *weights, *biases)
    return _apply_mlp(x, activation, len(weights), *weights, *biases)


# ---------------------------------------------------------------- operators for torch.compile


@torch.library.custom_op("devkernels::linear_forward", mutates_args=())
def linear_forward_op(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, aux: bool
) -> tuple[Tensor, Tensor]:
    """Result and raw mask (empty without `aux`)."""
    code = forward_code(None if activation == "none" else activation, bias is not None, aux)
    y, mask = run(x, weight, bias, code)
    return y, x.new_empty(0) if mask is None else mask


@linear_forward_op.register_fake
def _(x, weight, bias, activation, aux):
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    return y, _fake_mask(y, activation) if aux else x.new_empty(0)


def _fake_mask(y: Tensor, activation: str) -> Tensor:
    tokens, n = y.numel() // y.shape[-1], y.shape[-1]
    if activation == "relu":
        return y.new_empty((tokens, relu_mask_bytes(n)), dtype=torch.uint8)
    return y.new_empty((tokens, gelu_aux_columns(n)))


@torch.library.custom_op("devkernels::linear_backward", mutates_args=())
def linear_backward_op(
    dy: Tensor, x: Tensor, weight: Tensor, kept: Tensor, activation: str, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """All gradients of one layer."""
    name = None if activation == "none" else activation
    dx, dw, db = backward(dy, x, weight, kept, name, (True, True, has_bias))
    return dx, dw, x.new_empty(0) if db is None else db


@linear_backward_op.register_fake
def _(dy, x, weight, kept, activation, has_bias):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), x.new_empty(weight.shape[0] if has_bias else 0)


def _setup(ctx, inputs, output):
    x, weight, bias, activation, _ = inputs
    y, mask = output
    ctx.activation, ctx.has_bias = activation, bias is not None
    ctx.save_for_backward(x, weight, y if activation == "relu" and mask.numel() == 0 else mask)


def _backward(ctx, dy, _):
    x, weight, kept = ctx.saved_tensors
    dx, dw, db = linear_backward_op(dy, x, weight, kept, ctx.activation, ctx.has_bias)
    return dx, dw, db if ctx.has_bias else None, None, None


linear_forward_op.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("devkernels::mlp_forward", mutates_args=())
def mlp_forward_op(x: Tensor, weights: list[Tensor], biases: list[Tensor], activation: str) -> list[Tensor]:
    """See `mlp_forward`."""
    return mlp_forward(x, weights, biases, activation)


@mlp_forward_op.register_fake
def _(x, weights, biases, activation):
    results = [x.new_empty((*x.shape[:-1], weight.shape[0])) for weight in weights]
    return [results[-1], *results[:-1], *(_fake_mask(r, activation) for r in results[:-1])]


@torch.library.custom_op("devkernels::mlp_backward", mutates_args=())
def mlp_backward_op(dy: Tensor, x: Tensor, weights: list[Tensor], kept: list[Tensor], activation: str) -> list[Tensor]:
    """See `mlp_backward`."""
    return mlp_backward(dy, x, weights, kept, activation)


@mlp_backward_op.register_fake
def _(dy, x, weights, kept, activation):
    return [x.new_empty(x.shape), *(w.new_empty(w.shape) for w in weights), *(w.new_empty(w.shape[0]) for w in weights)]


def _mlp_setup(ctx, inputs, output):
    x, weights, _, activation = inputs
    ctx.activation, ctx.layers = activation, len(weights)
    ctx.save_for_backward(x, *weights, *output[1:])


def _mlp_backward(ctx, gradients):
    x, *saved = ctx.saved_tensors
    layers = ctx.layers
    dx, *rest = mlp_backward_op(gradients[0], x, saved[:layers], saved[layers:], ctx.activation)
    return dx, rest[:layers], rest[layers:], None


mlp_forward_op.register_autograd(_mlp_backward, setup_context=_mlp_setup)
