"""Planned products on raw tensors: forward and backward of one layer.

in: tensors without regard to autograd.  out: results, and what the backward pass needs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.linear import kept
from devkernels.linear._gelu_forward import GeluForward
from devkernels.linear._torch_kept import LIKE_Y, SLOPE, forget, kind_of, on_gpu
from devkernels.linear._weight_gradient import WeightGradient
from devkernels.linear.activations import on_device
from devkernels.linear.arrays import package
from devkernels.linear.bounded import Bounded
from devkernels.linear.elementwise import unpack_bits
from devkernels.linear.epilog import Epilog
from devkernels.linear.joined import chosen
from devkernels.linear.matmul import Prepared, prepare
from devkernels.linear.operands import analyse

_ARRAYS = package("torch")
# Signatures of calls -> what is planned for them.
_entries, _products, _passes, _steps = (Bounded(size) for size in (512, 512, 256, 256))
_raw_stream = _ARRAYS.raw_stream
_float32 = torch.float32
_precision = torch.get_float32_matmul_precision
DEFAULT, BIAS, BGRADA = int(Epilog.DEFAULT), int(Epilog.BIAS), int(Epilog.BGRADA)


class _Entry:
    """A planned product with all that a call needs at hand. `lt` is None where more than one call is needed."""

    __slots__ = ("copy", "index", "lt", "new_aux", "new_gradient", "new_out", "prepared", "shape")

    def __init__(self, prepared: Prepared, shape: tuple[int, ...], copy: bool, own: GeluForward | None = None):
        self.prepared, self.shape, self.copy = prepared, shape, copy
        spec, self.index = prepared.spec, prepared.device
        self.lt = own or prepared.lean
        self.new_out = _ARRAYS.maker(shape, spec.out_dtype, prepared.device)
        self.new_aux, self.new_gradient = prepared.new_aux, prepared.new_gradient
        if own is not None:  # in one dimension, by which it is known from what cuBLASLt keeps
            self.new_aux = _ARRAYS.maker((math.prod(shape),), spec.out_dtype, prepared.device)


def flatten(name: str, x: Tensor) -> Tensor:
    """View (or, where there is no view, copy) of a tensor as (tokens, features)."""
    if x.dim() == 0 or x.numel() == 0:
        raise ArgumentError(f"{name} has shape {tuple(x.shape)}; at least one token of features is needed.")
    if x.dim() == 2 and 1 in x.stride():
        return x
    return x.reshape(-1, x.shape[-1]).contiguous()


def check_layer(x: Tensor, weight: Tensor) -> None:
    """Raise unless an input fits a weight."""
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ArgumentError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)}: their last axes must be equal.")
    if x.dtype != weight.dtype:
        raise ArgumentTypeError(
            f"x is {str(x.dtype)[6:]} and weight is {str(weight.dtype)[6:]}; convert one, or use torch.autocast."
        )


def _plan_layer(x: Tensor, weight: Tensor, bias: Tensor | None, code: int, compute: str | None) -> _Entry:
    check_layer(x, weight)
    flat = flatten("x", x)
    epilog = Epilog.of("gelu", bias=bias is not None, aux=True) if code == SLOPE else Epilog(code)
    operands = analyse(flat, weight.T, bias=bias, epilog=epilog, compute_type=compute)
    prepared, copy, own = prepare(operands), flat.data_ptr() != x.data_ptr(), None
    straight = flat.is_contiguous() and weight.is_contiguous() and (bias is None or bias.is_contiguous())
    if code == SLOPE and straight and prepared.lean is not None and operands.alignment >= 16:
        (tokens, k), n = flat.shape, weight.shape[0]
        own = kept.slope_for(_ARRAYS, tokens, n, k, str(x.dtype)[6:], prepared.device)
    return _Entry(prepared, (*x.shape[:-1], prepared.spec.n), copy, own)


def entry_for(x: Tensor, weight: Tensor, bias: Tensor | None, code: int) -> _Entry:
    """Return what is planned for such tensors and an epilog by number."""
    dtype = x.dtype
    compute = "32f_fast_tf32" if dtype is _float32 and _precision() != "highest" else None
    key = (code, x.shape, x.stride(), dtype, x.get_device(), weight.shape, weight.stride(), weight.dtype,
           weight.get_device(), (x.data_ptr() | weight.data_ptr()) & 255, compute)  # fmt: skip
    if bias is not None:
        key = (*key, bias.shape, bias.stride(), bias.dtype, bias.get_device(), bias.data_ptr() & 255)
    entry = _entries.get(key)
    if entry is None:
        entry = _entries.keep(key, _plan_layer(x, weight, bias, code, compute))
    return entry


def run(x: Tensor, weight: Tensor, bias: Tensor | None, code: int) -> tuple[Tensor, Tensor | None]:
    """``epilog(x @ weight.T + bias)`` and the raw mask, if the epilog (by number) makes one."""
    entry = entry_for(x, weight, bias, code)
    x_pointer, w_pointer, b_pointer = x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()
    lt = entry.lt
    if lt is None or entry.copy:
        out, mask, _ = entry.prepared(flatten("x", x), weight.T, None, bias)
        return out.reshape(entry.shape), None if mask is None else mask._buffer.data
    out = entry.new_out()
    if entry.new_aux is None:
        lt.launch(x_pointer, w_pointer, 0, out.data_ptr(), b_pointer, 0, _raw_stream(entry.index))
        return out, None
    aux = entry.new_aux()
    lt.launch(x_pointer, w_pointer, 0, out.data_ptr(), b_pointer, aux.data_ptr(), _raw_stream(entry.index))
    return out, aux


def product(code: int, a: Tensor, b: Tensor, aux: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """``epilog(a @ b)`` of two matrices, and its bias gradient; `aux` is the raw mask of a backward epilog."""
    dtype = a.dtype
    compute = "32f_fast_tf32" if dtype is _float32 and _precision() != "highest" else None
    a_pointer, b_pointer = a.data_ptr(), b.data_ptr()
    key = (code, a.shape, a.stride(), dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device(),
           (a_pointer | b_pointer) & 255, compute)  # fmt: skip
    entry = _products.get(key)
    if entry is None:
        prepared = prepare(analyse(a, b, epilog=Epilog(code), compute_type=compute))
        entry = _products.keep(key, _Entry(prepared, prepared.out_shape, False))
    lt = entry.lt
    if lt is None:
        out, _, gradient = entry.prepared(a, b, None, None, aux)
        return out, gradient
    out, gradient, side = entry.new_out(), None, 0
    if entry.new_gradient is not None:
        gradient = entry.new_gradient()
        side = gradient.data_ptr()
    lt.launch(a_pointer, b_pointer, 0, out.data_ptr(), side, 0 if aux is None else aux.data_ptr(),
              _raw_stream(entry.index))  # fmt: skip
    return out, gradient


def forget_choices() -> None:
    """Ask again what layers keep and how the backward pass goes: it has just been measured."""
    forget()
    _steps.clear()


def through_activation(kind: str, dy: Tensor, kept: Tensor, need_sum: bool) -> tuple[Tensor, Tensor | None]:
    """Gradient before the activation, and its sum over the tokens where that comes along.

    `dy` is (tokens, features); `kept` is ReLU's result or mask, or the raw GELU aux or slope, as `kind_of` says.
    """
    if dy.is_cuda:
        if not dy.is_contiguous():
            dy = dy.contiguous()
        rows, columns = dy.shape
        index, d_pointer, k_pointer = dy.get_device(), dy.data_ptr(), kept.data_ptr()
        key = (rows, columns, dy.dtype, kept.stride(0), kind, index, (d_pointer | k_pointer) & 15)
        found = _passes.get(key, _passes)
        if found is _passes:
            found = on_device(_ARRAYS, index, str(dy.dtype)[6:], rows, columns, kept.stride(0), kind, key[-1])
            _passes.keep(key, found)
        if found is not None and not _ARRAYS.several_devices():
            kernel, new_dz, new_db = found
            dz, db = new_dz(), new_db() if need_sum else None
            kernel.launch(d_pointer, k_pointer, dz.data_ptr(), db.data_ptr() if need_sum else 0, _raw_stream(index))
            return dz, db
    if kind == "relu":
        return torch.ops.aten.threshold_backward(dy, kept, 0), None
    if kind == "gelu_slope":
        return dy * kept, None
    if kind == "relu_aux":
        return dy.masked_fill(~unpack_bits(_ARRAYS, kept, dy.shape[-1]), 0), None
    return torch.ops.aten.gelu_backward(dy, kept[:, : dy.shape[-1]], approximate="tanh"), None


def backward(dy: Tensor, x: Tensor, weight: Tensor, kept: Tensor | None, activation: str | None,
             needs: tuple[bool, ...]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of input, weight and bias of one layer, those that are needed."""
    kind = None if activation is None else kind_of(activation, kept)
    if needs[0] and needs[1] and on_gpu(dy):
        step = _step_for(dy, x, weight, kept, kind, needs[2])
        if step is not None:
            return step(dy.data_ptr(), x.data_ptr(), weight.data_ptr(), 0 if kept is None else kept.data_ptr())[:3]
    dz = flatten("dy", dy)
    dx = dw = db = None
    if kind is not None:
        dz, db = through_activation(kind, dz, kept.reshape(dz.shape) if kind in LIKE_Y else kept, needs[2])
    if needs[0]:
        dx = product(DEFAULT, dz, weight)[0]
        if x.dim() != 2:
            dx = dx.reshape(x.shape)
    if needs[1]:
        sums = needs[2] and db is None
        dw, found = product(BGRADA if sums else DEFAULT, dz.T, flatten("x", x))
        db = found if sums else db
    elif needs[2] and db is None:
        db = dz.sum(0)
    return dx, dw, db


class _Step:
    """The backward pass of one layer with all plans at hand: a pass through the activation, and two products.

    Or, with `joined`, the pass inside the product that makes the weight's gradient.
    """

    __slots__ = ("index", "input", "joined", "new_db", "new_dw", "new_dx", "new_dz", "through", "weight")

    def __init__(self, dy: Tensor, x: Tensor, weight: Tensor, through: tuple | None, sums: bool, compute: str | None,
                 joined: WeightGradient | None):  # fmt: skip
        flat, flat_dy = flatten("x", x), flatten("dy", dy)
        self.joined = joined
        self.through, self.new_dz, self.new_db = through or (None, None, None)
        dz = flat_dy if through is None else self.new_dz()
        over_tokens = Epilog.BGRADA if sums and through is None else Epilog.DEFAULT
        first = prepare(analyse(dz, weight, compute_type=compute))
        second = prepare(analyse(dz.T, flat, epilog=over_tokens, compute_type=compute))
        self.input, self.weight, self.index = first.lean, second.lean, first.device
        self.new_dx = _ARRAYS.maker(tuple(x.shape), first.spec.out_dtype, first.device)
        self.new_dw = second.new_out
        if second.new_gradient is not None:
            self.new_db = second.new_gradient
        if not sums:
            self.new_db = None

    def __call__(self, dy: int, x: int, weight: int, kept: int) -> tuple[Tensor, Tensor, Tensor | None, None]:
        """Run on pointers; gradients of input, weight and bias, and of the activation's name for autograd."""
        stream, pointer = _raw_stream(self.index), dy
        db, sums = None, 0
        if self.new_db is not None:
            db = self.new_db()
            sums = db.data_ptr()
        dx, dw = self.new_dx(), self.new_dw()
        if self.through is not None:
            held = self.new_dz()
            pointer = held.data_ptr()
            if self.joined is not None:
                self.joined.launch(dy, kept, x, pointer, sums, dw.data_ptr(), stream)
                self.input.launch(pointer, weight, 0, dx.data_ptr(), 0, 0, stream)
                return dx, dw, db, None
            self.through.launch(dy, kept, pointer, sums, stream)
            sums = 0
        self.input.launch(pointer, weight, 0, dx.data_ptr(), 0, 0, stream)
        self.weight.launch(pointer, x, 0, dw.data_ptr(), sums, 0, stream)
        return dx, dw, db, None


def _step_for(dy, x, weight, kept, kind: str | None, sums: bool) -> _Step | None:
    """Return the step for contiguous, aligned operands; None where something asks for the longer way."""
    dtype = x.dtype
    bits = dy.data_ptr() | x.data_ptr() | weight.data_ptr() | (0 if kept is None else kept.data_ptr())
    if bits & 255 or not (dy.is_contiguous() and x.is_contiguous() and weight.is_contiguous()):
        return None
    compute = "32f_fast_tf32" if dtype is _float32 and _precision() != "highest" else None
    key = (dy.shape, dtype, x.shape, weight.shape, kind, sums, dy.get_device(), compute)
    step = _steps.get(key, _steps)
    if step is not _steps:
        return step
    step = None
    if dy.dtype == dtype == weight.dtype and not _ARRAYS.several_devices() and x.numel() and dy.numel():
        through, joined, index = None, None, dy.get_device()
        if kind is not None:
            columns = dy.shape[-1]
            ld = columns if kind in LIKE_Y else kept.stride(0)
            rows = dy.numel() // columns
            about = _ARRAYS, index, str(dtype)[6:], rows, columns
            through = on_device(*about, ld, kind, 0)
            joined = chosen(*about, weight.shape[1], kind, ld)
        if kind is None or through is not None:
            step = _Step(dy, x, weight, through, sums, compute, joined)
            if step.input is None or step.weight is None:
                step = None
    return _steps.keep(key, step)
