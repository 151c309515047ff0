"""`FusedLinear`: a layer with explicit forward and backward, on CuPy or NumPy (several of them: `mlp`).

in: arrays (…, in_features).  out: arrays (…, out_features), and gradients of input, weight and bias.

Which products a training step takes, and what each does besides multiplying:

    forward          x @ W.T        RELU_AUX_BIAS / GELU_AUX_BIAS: bias, activation, mask; or, where `autotune` found
                                    that to be faster, a kernel of ours that keeps GELU's slope
    activation       one pass       derivative of the layer's own activation; on a GPU also the bias gradient
    weight gradient  dz.T @ x       BGRADA (for cuBLASLt, which sees the transpose, BGRADB): the bias gradient, where no
                                    other step has it
    input gradient   dz @ W         DRELU_BGRAD / DGELU_BGRAD where the layer below has an activation: its derivative
                                    and its bias gradient
"""

from __future__ import annotations

import math
from typing import NamedTuple

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.libraries import stream_handle
from devkernels.linear import activations, joined, kept
from devkernels.linear.arrays import CPU, arrays_of, package
from devkernels.linear.bounded import Bounded
from devkernels.linear.epilog import Epilog
from devkernels.linear.lean import LayerBackward, LayerCall
from devkernels.linear.masks import Lifetime, Mask
from devkernels.linear.matmul import prepare, product
from devkernels.linear.operands import analyse
from devkernels.linear.saved import Saved
from devkernels.linear.tune_layer import autotune

_DTYPES = ("float16", "bfloat16", "float32", "float64")


class Gradients(NamedTuple):
    """What `FusedLinear.backward` returns."""

    input: object
    weight: object
    bias: object


class FusedLinear:
    """``activation(x @ weight.T + bias)`` with its backward pass.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last axes of input and result.
    activation : {None, "relu", "gelu"}
        GELU is the tanh approximation.
    bias : bool
        Whether there is one.
    dtype : str
        float16, bfloat16 (with ml_dtypes), float32, float64.
    package_name : {"numpy", "cupy"}
        Whose arrays the layer works on. For torch see `devkernels.linear.torch`.
    device : int
        Device number (CuPy).
    compute_type : str, optional
        As for `fused_matmul`.
    seed : int, optional
        Weights and bias are uniform within ``1 / sqrt(in_features)``, as in torch's nn.Linear.

    Attributes
    ----------
    weight : array, shape (out_features, in_features)
    bias : array, shape (out_features,), or None
        Both may be replaced, or changed in place, between calls.
    """

    def __init__(self, in_features: int, out_features: int, *, activation: str | None = None, bias: bool = True,
                 dtype: str = "float32", package_name: str = "numpy", device: int = 0, compute_type: str | None = None,
                 seed: int | None = None):  # fmt: skip
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"{name}={value!r} must be a whole number of at least 1.")
        Epilog.of(activation, bias=bias, aux=False)  # says what is wrong with the activation
        if package_name not in ("numpy", "cupy"):
            raise SpecError(
                f"package_name={package_name!r}; possible are 'numpy' and 'cupy' (torch has its own modules)."
            )
        if dtype not in _DTYPES:
            raise SpecError(f"dtype={dtype!r}; possible are {', '.join(_DTYPES)}.")
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.compute_type, self.dtype = compute_type, dtype
        self.arrays = package(package_name)
        self.device = CPU if package_name == "numpy" else device
        self._lifetime = Lifetime()
        self._last: Saved | None = None
        self._calls = Bounded(64)  # what an input looks like -> LayerCall
        import numpy

        random = numpy.random.default_rng(seed)
        limit = 1.0 / math.sqrt(in_features)
        self.weight = self._parameter(random.uniform(-limit, limit, (out_features, in_features)))
        self.bias = self._parameter(random.uniform(-limit, limit, out_features)) if bias else None

    def _parameter(self, values):
        with self.arrays.on(self.device):
            return self.arrays.xp.asarray(values).astype(self.arrays.dtype(self.dtype))

    def _flat(self, name: str, x, features: int):
        """View of an array as (tokens, features)."""
        if arrays_of(x, name) is not self.arrays:
            raise ArgumentTypeError(f"{name} is not an array of {self.arrays.name}, on which this layer works.")
        if x.ndim == 0 or x.shape[-1] != features:
            raise ArgumentError(f"{name} has shape {x.shape}; its last axis must be {features}.")
        if x.ndim == 2:
            return x
        with self.arrays.on(self.device):
            return self.arrays.xp.ascontiguousarray(x).reshape(-1, features)

    def forward(self, x, *, out=None, training: bool = True, stream=None):
        """Return ``activation(x @ weight.T + bias)``, shape (…, out_features).

        With `training`, what the backward pass needs is kept in the layer until `backward` uses it.
        """
        y, saved = self.forward_saving(x, out=out, training=training, stream=stream)
        if training:
            self._last = saved
        return y

    __call__ = forward

    def forward_saving(self, x, *, out=None, training: bool = True, stream=None):
        """As `forward`, but return what the backward pass needs instead of keeping it: ``(y, saved)``."""
        weight = self.weight
        if stream is None and type(x) is type(weight):
            call = self._calls.get((self.arrays.facts(x), training))
            quick = None if call is None else call(x, out, weight, self.bias)
            if quick is not None:
                y, data = quick
                if not training:
                    return y, None
                lead = call.lead
                flat = x if len(lead) == 1 else x.reshape(-1, self.in_features)
                return y, Saved(self, flat, None, lead, call, data)
        with self._on(stream):  # copies of what is not contiguous belong on it, too
            return self._forward_anew(x, out, training, stream)

    def _on(self, stream):
        """Context in which a stream that was given, if any, is the current one."""
        return self.arrays.on_stream(None if stream is None else stream_handle(stream), self.device)

    def _forward_anew(self, x, out, training: bool, stream):
        """`forward_saving` of an input that looks otherwise than the last one did."""
        flat = self._flat("x", x, self.in_features)
        epilog = Epilog.of(self.activation, bias=self.bias is not None, aux=training and self.activation is not None)
        lead = x.shape[:-1]
        target = None if out is None else self._target(out, (*lead, self.out_features))
        y, mask, _ = product(
            epilog, flat, self.weight.T, bias=self.bias, out=target, compute_type=self.compute_type, stream=stream,
            lifetime=self._lifetime,
        )  # fmt: skip
        call = self._learn(x, flat, epilog, training)
        if call is not None and mask is not None and call.kind != mask.kind:  # the next call keeps something else
            call = None
        saved = Saved(self, flat, mask, lead, call) if training else None
        if out is not None:
            return out, saved
        return (y if len(lead) == 1 else y.reshape(*lead, self.out_features)), saved

    def _target(self, out, shape: tuple[int, ...]):
        """View of `out` as (tokens, features)."""
        if arrays_of(out, "out") is not self.arrays:
            raise ArgumentTypeError(f"out is not an array of {self.arrays.name}, on which this layer works.")
        if out.shape != shape:
            raise ArgumentError(f"out has shape {out.shape}, but the result has {shape}.")
        if out.ndim != 2 and not out.flags.c_contiguous:
            raise ArgumentError(f"out with strides {out.strides} is not contiguous; pass a C-ordered array.")
        return out if out.ndim == 2 else out.reshape(-1, self.out_features)

    def _learn(self, x, flat, epilog: Epilog, training: bool) -> LayerCall | None:
        """Keep the planned call for inputs of this shape, where one library call on contiguous arrays is all."""
        bias, weight = self.bias, self.weight
        operands = analyse(flat, weight.T, bias=bias, epilog=epilog, compute_type=self.compute_type)
        prepared = prepare(operands)
        if prepared.lean is None or not x.flags.c_contiguous or operands.alignment != 256:
            return None
        own = None
        if training and self.activation == "gelu":
            own = kept.slope_for(self.arrays, *flat.shape[:1], *weight.shape, self.dtype, self.device)
        call = LayerCall(prepared, weight, bias, x.shape[:-1], self._lifetime, own)
        return self._calls.keep((self.arrays.facts(x), training), call)

    def _take(self, saved: Saved | None) -> Saved:
        if saved is None:
            saved, self._last = self._last, None
            if saved is None:
                raise ArgumentError("backward() has no forward pass to belong to; call forward() with training first.")
        if not isinstance(saved, Saved) or saved.owner is not self:
            raise ArgumentError("saved= is not what this layer's forward_saving() returned.")
        if saved.used:
            raise ArgumentError("this forward pass has been used by a backward pass already; run it again.")
        saved.used = True
        return saved

    def backward(self, dy, saved: Saved | None = None, *, stream=None) -> Gradients:
        """Gradients of the last training `forward`, or of the one that `saved` comes from.

        Parameters
        ----------
        dy : array
            Gradient of the result, of its shape.

        Returns
        -------
        Gradients
            ``input`` (…, in_features), ``weight`` (out_features, in_features), ``bias`` (out_features,) or None.
        """
        expected = saved if saved is not None else self._last
        call = expected.call if type(expected) is Saved else None
        if stream is None and call is not None and call.backward is not None and type(dy) is type(self.weight):
            call.check()
            if expected.owner is self and not expected.used:
                data = expected.data if expected._mask is None else expected._mask.raw_data()
                found = call.backward(dy, expected.x, data, self.weight)
                if found is not None:
                    self._take(saved)
                    return Gradients(*found)
        if isinstance(expected, Saved) and dy.shape != (*expected.lead, self.out_features):
            raise ArgumentError(f"dy has shape {dy.shape}, but the result had {(*expected.lead, self.out_features)}.")
        saved = self._take(saved)
        dz, bias = self._through_activation(dy, saved, stream)
        need = self.bias is not None and bias is None
        weight, summed = self.parameter_gradients(dz, saved, need_bias=need, stream=stream)
        bias = summed if need else bias
        dx, _ = self.input_gradient(dz, None, None, stream=stream)
        self._learn_backward(dy, dz, saved)
        return Gradients(dx.reshape(*saved.lead, self.in_features), weight, bias)

    def _learn_backward(self, dy, dz, saved: Saved) -> None:
        """Keep the planned backward pass for gradients of this shape, where it is a kernel and two library calls."""
        arrays, mask, weight = self.arrays, saved.mask, self.weight
        pointers = arrays.pointer(dy) | arrays.pointer(saved.x) | arrays.pointer(weight)
        if saved.call is None or self.device == CPU or not dy.flags.c_contiguous or pointers & 255:
            return
        through, one, need_bias = None, None, self.bias is not None
        if mask is not None:
            data = mask.data_for(mask.kind, mask.shape, self.dtype, self.device, arrays)
            rows = saved.x.shape[0]
            about = arrays, self.device, self.dtype, rows, self.out_features
            through = activations.on_device(*about, data.shape[-1], mask.kind, 0)
            if through is None:
                return
            one = joined.chosen(*about, self.in_features, mask.kind, data.shape[-1])
        epilog = Epilog.BGRADA if need_bias and through is None else Epilog.DEFAULT
        by_input = prepare(analyse(dz, weight, compute_type=self.compute_type))
        by_weight = prepare(analyse(dz.T, saved.x, epilog=epilog, compute_type=self.compute_type))
        if by_input.lean is None or by_weight.lean is None:
            return
        shape = (*saved.lead, self.in_features)
        saved.call.backward = LayerBackward(by_input, by_weight, weight, dy, shape, through, need_bias, one)

    def _through_activation(self, dy, saved: Saved, stream=None):
        """Gradient before the activation, and the bias gradient where it comes along."""
        with self._on(stream):
            flat = self._flat("dy", dy, self.out_features)
            if saved.mask is None:
                return flat, None
            need = self.bias is not None
            return activations.multiply_derivative(self.arrays, flat, saved.mask, self.device, need)

    def parameter_gradients(self, dz, saved: Saved, *, need_bias: bool, stream=None):
        """Weight gradient, and bias gradient where needed, in one product over the tokens."""
        weight, _, bias = product(
            Epilog.BGRADA if need_bias else Epilog.DEFAULT, dz.T, saved.x, compute_type=self.compute_type, stream=stream
        )
        return weight, bias

    def input_gradient(self, dz, below: str | None, mask: Mask | None, *, stream=None):
        """``dz @ weight``; with the mask of the layer below, times its derivative, and that layer's bias gradient."""
        epilog = {None: Epilog.DEFAULT, "relu": Epilog.DRELU_BGRAD, "gelu": Epilog.DGELU_BGRAD}[below]
        dx, _, bias = product(epilog, dz, self.weight, mask=mask, compute_type=self.compute_type, stream=stream)
        return dx, bias

    def autotune(self, x, *, backward: bool = True, candidates: int = 32) -> list[dict[str, object]]:
        """Time the kernels for inputs of this shape and keep the fastest, on disk too; see `FusedMatmul.autotune`."""
        flat = self._flat("x", x, self.in_features)
        return autotune(flat, self.weight, self.bias, self.activation, compute_type=self.compute_type,
                        backward=backward, candidates=candidates)  # fmt: skip

    def parameters(self) -> list:
        """Weight and bias (without None)."""
        return [p for p in (self.weight, self.bias) if p is not None]

    def free(self) -> None:
        """Void the masks that this layer has made."""
        self._lifetime.ended = "the layer it belongs to was freed"
        self._last = None

    def __repr__(self) -> str:
        return (f"FusedLinear({self.in_features}, {self.out_features}, activation={self.activation!r}, "
                f"bias={self.bias is not None}, dtype={self.dtype!r}, package={self.arrays.name!r})")  # fmt: skip
