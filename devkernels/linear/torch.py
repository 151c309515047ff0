"""Fused linear layers for torch: `fused_linear`, `FusedLinear`, `FusedMLP`, with autograd, autocast and torch.compile.

in: tensors (…, in_features) on the CPU or a CUDA device.  out: tensors (…, out_features).

Three roads lead to the same products: without gradients, the planned call itself (no dispatcher in between); with
gradients, an autograd function around it; under torch.compile, registered operators that the compiler leaves whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from devkernels.checks import kind_of
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.linear import _torch_native, _torch_train
from devkernels.linear import _torch_ops as ops
from devkernels.linear import _torch_run as raw
from devkernels.linear._torch_graphs import Recording
from devkernels.linear._torch_kept import forward_code, on_gpu, training_code
from devkernels.linear._torch_mlp import mlp_backward, mlp_forward
from devkernels.linear._torch_quick import any_autocast, autocast
from devkernels.linear._torch_quick import linear as _linear
from devkernels.linear.epilog import Epilog
from devkernels.linear.tune_layer import autotune as tune

__all__ = ["FusedLinear", "FusedMLP", "build_extension", "fused_linear"]

_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    """``activation(x @ weight.T + bias)`` in one fused product; differentiable once.

    Parameters
    ----------
    x : Tensor, shape (…, in_features)
    weight : Tensor, shape (out_features, in_features)
    bias : Tensor, shape (out_features,), optional
    activation : {None, "relu", "gelu"}
        GELU is the tanh approximation (``torch.nn.GELU("tanh")``).

    Returns
    -------
    Tensor, shape (…, out_features)

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceMismatchError, SpecError
        Before anything is launched.
    """
    if _compiling():
        return _traced(x, weight, bias, activation)
    return _linear(x, weight, bias, activation)


def build_extension() -> None:
    """Build the C++ extension by which layers in training spare the host half of its time; once, about a minute.

    It is kept in devkernels' cache, for this version of torch and of Python, and found there by later processes of
    their own accord. Without it the same kernels are launched from a Python autograd function. It takes a C++ compiler
    and ninja (``pip install ninja``); ``python -m devkernels.linear.build_extension`` does the same.

    Raises
    ------
    CompileError
        There is no compiler or no ninja, or they refuse.
    JitDisabledError
        DEVKERNELS_DISABLE_JIT is set, and the extension has not been built before.

    Notes
    -----
    `fused_linear` and `FusedLinear` take it once calls and their backward passes repeat; layers that are recorded from
    then on (`record`), a `FusedMLP` too, at once. torch.compile, autocast, and a `FusedMLP` that is not recorded do
    without.
    """
    _torch_native.build()
    _torch_train.learned.forget()  # what was learned without it


def _traced(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """The same through the registered operator, for torch.compile and torch.export."""
    x, weight, bias = autocast(x, weight, bias)
    return torch.ops.devkernels.linear_forward(x, weight, bias, activation or "none", activation == "gelu")[0]


def _check_sample(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"x is a {kind_of(x)}; record() takes a tensor.")


def _replayed(recording: Recording, x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor | None:
    """Result of a recorded layer; None where no gradient is asked for, or where the recording does not fit."""
    return recording(x, parameters) if _grad_enabled() and not any_autocast() else None


class FusedLinear(nn.Module):
    """``activation(x @ weight.T + bias)`` as a module; parameters, their names and their start are those of nn.Linear.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last axes of input and result.
    bias : bool
        Whether there is one.
    activation : {None, "relu", "gelu"}
        GELU is the tanh approximation.
    device, dtype : optional
        As for nn.Linear.
    """

    _recording: Recording | None = None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, activation: str | None = None,
                 device=None, dtype=None):  # fmt: skip
        super().__init__()
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"{name}={value!r} must be a whole number of at least 1.")
        Epilog.of(activation, bias=bias, aux=False)
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start values of nn.Linear: uniform within ``1 / sqrt(in_features)``."""
        limit = 1.0 / math.sqrt(self.in_features)
        with torch.no_grad():
            self.weight.uniform_(-limit, limit)
            if self.bias is not None:
                self.bias.uniform_(-limit, limit)

    @classmethod
    def from_linear(cls, linear: nn.Linear, activation: str | None = None) -> FusedLinear:
        """Make a layer that shares the parameters of an nn.Linear."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, activation, device="meta")
        layer.weight = linear.weight
        if linear.bias is not None:
            layer.bias = linear.bias
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Return ``activation(x @ weight.T + bias)``, shape (…, out_features)."""
        if _compiling():
            return _traced(x, self.weight, self.bias, self.activation)
        parameters = self._parameters  # nn.Module.__getattr__ costs a microsecond for each parameter
        if "weight" not in parameters:  # weight_norm and the like make it a plain attribute
            return _linear(x, self.weight, self.bias, self.activation)
        weight, bias = parameters["weight"], parameters["bias"]
        if self._recording is not None:
            y = _replayed(self._recording, x, (weight,) if bias is None else (weight, bias))
            if y is not None:
                return y
        return _linear(x, weight, bias, self.activation)

    def record(self, x: Tensor, *, copy: bool = True) -> FusedLinear:
        """Capture forward and backward pass for inputs like `x` in CUDA graphs, which later calls replay; return self.

        For small layers, where the host is slower than the GPU: a replayed pass is one launch. Training steps that the
        graphs do not fit (another shape, parameters moved elsewhere, a forward pass before the last one's backward
        pass) and calls without gradients go the ordinary way. On the CPU nothing is recorded.

        Parameters
        ----------
        x : Tensor
            Its shape, strides, dtype and ``requires_grad`` are what counts.
        copy : bool
            Whether inputs are copied into memory of the graphs' own. Else `x` itself is that memory: calls with `x`
            are spared the copy, others overwrite it.

        Notes
        -----
        As with ``torch.cuda.make_graphed_callables``, the result lies in memory that the next call writes again.
        Gradients are copied to memory of their own, all of them in one launch. Record again after
        `autotune`. A layer that is copied or pickled loses its recording.
        """
        _check_sample(x)
        weight, bias, activation = self.weight, self.bias, self.activation
        parameters = (weight,) if bias is None else (weight, bias)
        code = training_code(x, weight, bias, activation)

        def forward(x: Tensor) -> tuple[Tensor, Tensor | None]:
            y, aux = raw.run(x, weight, bias, code)
            return y, y if aux is None and activation is not None else aux

        def backward(dy: Tensor, x: Tensor, kept: Tensor | None, need_x: bool) -> tuple[Tensor | None, ...]:
            needs = (need_x, weight.requires_grad, bias is not None and bias.requires_grad)
            return raw.backward(dy, x, weight, kept, activation, needs)[: 1 + len(parameters)]

        self._recording = Recording(forward, backward, x, parameters, copy) if on_gpu(x) else None
        return self

    def autotune(self, x: Tensor, *, backward: bool = True, candidates: int = 32) -> list[dict[str, object]]:
        """Time the kernels for inputs of this shape and keep the fastest, on disk too; see `FusedMatmul.autotune`."""
        with torch.no_grad():
            bias = None if self.bias is None else self.bias.detach()
            x, weight, bias = autocast(x.detach(), self.weight.detach(), bias)
            reports = tune(raw.flatten("x", x), weight, bias, self.activation, backward=backward, candidates=candidates)
            raw.forget_choices()
            _torch_train.learned.forget()
            return reports

    def extra_repr(self) -> str:
        """Arguments, as nn.Linear shows them."""
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
                f"activation={self.activation!r}")  # fmt: skip


class FusedMLP(nn.Module):
    """Linear layers with an activation between them, as one differentiable step.

    The backward pass takes two products for each layer and no pass over the activations besides: the derivative of
    each activation and each bias gradient are epilogs of the products (DRELU_BGRAD, DGELU_BGRAD, BGRADB).

    Parameters
    ----------
    sizes : sequence of int
        Features of the input, of each hidden layer, and of the result.
    activation : {"relu", "gelu"}
        Between the layers, not after the last.
    device, dtype : optional
        As for nn.Linear.

    Notes
    -----
    ``state_dict`` has ``layers.0.weight``, ``layers.0.bias``, ``layers.1.weight`` ...
    """

    _recording: Recording | None = None

    def __init__(self, sizes: Sequence[int], activation: str = "relu", device=None, dtype=None):
        super().__init__()
        if len(sizes) < 2:
            raise SpecError(f"sizes={list(sizes)!r} must name at least the input's and the result's features.")
        if activation not in ("relu", "gelu"):
            raise SpecError(f"activation={activation!r}; possible between layers are 'relu' and 'gelu'.")
        last = len(sizes) - 2
        self.activation = activation
        self.layers = nn.ModuleList(
            FusedLinear(a, b, activation=None if i == last else activation, device=device, dtype=dtype)
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Result of the last layer, shape (…, sizes[-1])."""
        weights = [layer.weight for layer in self.layers]
        biases = [layer.bias for layer in self.layers]
        if any(b is None for b in biases):
            raise ArgumentError("FusedMLP needs a bias in each layer; chain FusedLinear modules instead.")
        if _compiling() or any_autocast():
            x, *cast = autocast(x, *weights, *biases)
            weights, biases = cast[: len(weights)], cast[len(weights) :]
        if _compiling():
            return torch.ops.devkernels.mlp_forward(x, weights, biases, self.activation)[0]
        if 0 in x.shape:
            for layer in self.layers:
                x = layer(x)
            return x
        if self._recording is not None:
            y = _replayed(self._recording, x, (*weights, *biases))
            if y is not None:
                return y
        if _grad_enabled() and (x.requires_grad or any(p.requires_grad for p in (*weights, *biases))):
            return ops.mlp(x, self.activation, weights, biases)
        for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            code = forward_code(None if index == len(weights) - 1 else self.activation, True, False)
            x = raw.run(x, weight, bias, code)[0]
        return x

    def record(self, x: Tensor, *, copy: bool = True) -> FusedMLP:
        """Capture forward and backward pass in CUDA graphs, see `FusedLinear.record`."""
        _check_sample(x)
        weights, biases = [layer.weight for layer in self.layers], [layer.bias for layer in self.layers]
        activation = self.activation

        def forward(x: Tensor) -> tuple[Tensor, list[Tensor]]:
            y, *kept = mlp_forward(x, weights, biases, activation)
            return y, kept

        def backward(dy: Tensor, x: Tensor, kept: list[Tensor], need_x: bool) -> tuple[Tensor, ...]:
            return tuple(mlp_backward(dy, x, weights, kept, activation))

        self._recording = Recording(forward, backward, x, (*weights, *biases), copy) if on_gpu(x) else None
        return self
