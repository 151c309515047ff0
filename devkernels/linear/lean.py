"""A planned product on operands that are already known: what `FusedMatmul.execute` costs the host.

in: an output or none, a stream or none.  out: the result; or None where something needs a closer look.
"""

from __future__ import annotations

import math
import weakref

from devkernels.errors import ArgumentError
from devkernels.libraries import stream_handle
from devkernels.linear._fixed import fixed
from devkernels.linear._gelu_forward import GeluForward
from devkernels.linear.masks import GeluSlope
from devkernels.linear.matmul import Prepared


def _nothing() -> None:
    """Stand in for a weak reference before there is one."""


def possible(prepared: Prepared) -> bool:
    """Whether one library call does all, and nothing but the result is returned."""
    return prepared.lean is not None and prepared.mask_class is None and prepared.gradient is None


class LeanCall:
    """Pointers of the operands and everything else that does not change between calls."""

    __slots__ = ("_a", "_b", "_bias", "_c", "_called", "_device", "_dtype", "_fixed", "_kind", "_last", "_make",
                 "_name", "_pointer", "_prepared", "_shape", "_stream", "_strides")  # fmt: skip

    def __init__(self, prepared: Prepared, a, b, c, bias):
        arrays, spec = prepared.arrays, prepared.spec
        pointer = self._pointer = arrays.pointer
        self._a, self._b = pointer(a), pointer(b)
        self._c = 0 if c is None else pointer(c)
        self._bias = 0 if bias is None else pointer(bias)
        self._prepared, self._device, self._name = prepared, prepared.device, arrays.name
        self._called, self._fixed = False, None
        self._stream, self._make = prepared.stream, prepared.new_out
        self._kind, self._dtype, self._shape = type(a), arrays.dtype(spec.out_dtype), spec.out_shape
        size = a.itemsize
        self._strides = tuple(size * math.prod(self._shape[i + 1 :]) for i in range(len(self._shape)))
        self._last = _nothing  # weak reference to the `out` of the last call: the same array need not be checked again

    def __call__(self, out, stream):
        """Run; None if `out` is not just what is planned for (contiguous, aligned)."""
        device = self._device
        if out is not None:
            if self._last() is out:
                target = self._pointer(out)
            else:
                target = self._fits(out)
                if not target:
                    return None
                self._last = weakref.ref(out)
        else:
            if stream is None:
                out = self._make()
            else:
                spec = self._prepared.spec
                out = self._prepared.arrays.empty(self._shape, spec.out_dtype, device, stream_handle(stream))
            target = self._pointer(out)
        where = self._stream(device) if stream is None else stream_handle(stream)
        if self._fixed is not None:
            self._fixed(target, where)
            return out
        lt = self._prepared.lean
        if self._called:  # a second call with these operands: they are worth a descriptor of their own
            self._fixed = fixed(lt, self._a, self._b, self._c, self._bias)
            self._fixed(target, where)
        else:
            lt.launch(self._a, self._b, self._c, target, self._bias, 0, where)
            self._called = True
        return out

    def _fits(self, out) -> int:
        if type(out) is not self._kind or out.shape != self._shape or out.dtype != self._dtype:
            return 0
        name = self._name
        if name == "cupy":
            data = out.data
            pointer = data.ptr
            same = out.strides == self._strides and data.device_id == self._device
        elif name == "torch":
            pointer = out.data_ptr()
            same = out.is_contiguous() and out.get_device() == self._device
        else:
            pointer, same = self._pointer(out), out.strides == self._strides
        return pointer if same and not pointer & 255 else 0


class LayerCall:
    """The forward product of a layer for one shape of input, with the layer's present weight and bias.

    Attributes
    ----------
    lead : tuple of int
        Leading axes of input and result.
    kind : str or None
        What it keeps of its activation.
    backward : LayerBackward or None
        The backward pass for gradients of a contiguous result, once it is known.
    """

    __slots__ = ("_bias", "_bias_pointer", "_facts", "_launch_at", "_lifetime", "_mask_class", "_new_aux", "_out",
                 "_out_facts", "_pointer", "_prepared", "_stream", "_weight", "_weight_pointer", "backward", "device",
                 "kind", "lead")  # fmt: skip

    def __init__(
        self, prepared: Prepared, weight, bias, lead: tuple[int, ...], lifetime, own: GeluForward | None = None
    ):
        arrays = prepared.arrays
        pointer = self._pointer = arrays.pointer
        self._prepared, self.device, self.lead, self.backward = prepared, prepared.device, lead, None
        self._weight, self._bias, self._lifetime = weight, bias, lifetime
        self._weight_pointer, self._bias_pointer = pointer(weight), 0 if bias is None else pointer(bias)
        shape = (*lead, prepared.spec.n)
        strides = tuple(weight.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self._facts, self._out_facts = arrays.facts, (shape, strides, weight.dtype)
        self._out = arrays.maker(shape, prepared.spec.out_dtype, prepared.device)
        self._launch_at, self._stream, self._new_aux = prepared.lean, prepared.stream, prepared.new_aux
        self._mask_class = prepared.mask_class
        if own is not None:
            self._launch_at, self._mask_class = own, GeluSlope
            self._new_aux = arrays.maker(prepared.out_shape, prepared.spec.out_dtype, prepared.device)
        self.kind = None if self._mask_class is None else self._mask_class.kind

    def __call__(self, x, out, weight, bias):
        """Run; returns (result, raw mask), or None where something needs a closer look."""
        if weight is not self._weight or bias is not self._bias:
            return None
        pointer = self._pointer
        source = pointer(x)
        if out is None:
            out = self._out()
            target = pointer(out)
        else:
            if type(out) is not type(weight) or self._facts(out) != self._out_facts:
                return None
            target = pointer(out)
            if target & 255 or not self._here(out):
                return None
        if source & 255 or not self._here(x):
            return None
        data, aux = None, 0
        if self._new_aux is not None:
            data = self._new_aux()
            aux = pointer(data)
        self._launch_at.launch(source, self._weight_pointer, 0, target, self._bias_pointer, aux,
                               self._stream(self.device))  # fmt: skip
        return out, data

    def _here(self, x) -> bool:
        """Whether a CuPy array lies on the layer's device; with one device it cannot but do so."""
        return not self._prepared.several or x.data.device_id == self.device

    def check(self) -> None:
        """Refuse where the layer was freed."""
        if self._lifetime.ended:
            raise ArgumentError(f"the mask of this forward pass cannot be used: {self._lifetime.ended}.")

    def mask(self, data):
        """Mask object around the raw mask of one call."""
        prepared = self._prepared
        mask = self._mask_class.around(
            data, prepared.out_shape, prepared.spec.out_dtype, self.device, prepared.arrays, self._lifetime
        )
        mask.written()
        return mask


class LayerBackward:
    """The backward pass of a layer for one shape: a pass through the activation, and two products.

    `through` is the kernel of the activation with makers of its outputs (`activations.on_device`), None without one;
    `joined` the one that makes the weight's gradient besides (`joined.chosen`), None where two steps are faster.
    """

    __slots__ = ("_by_weight", "_device", "_dy_facts", "_facts", "_input", "_joined", "_new_db", "_new_dw", "_new_dx",
                 "_new_dz", "_pointer", "_stream", "_through", "_weight", "_weight_pointer")  # fmt: skip

    def __init__(self, by_input: Prepared, by_weight: Prepared, weight, dy, dx_shape, through, need_bias: bool,
                 joined=None):  # fmt: skip
        arrays = by_input.arrays
        self._joined = joined
        self._facts, self._dy_facts = arrays.facts, arrays.facts(dy)
        self._through, self._new_dz, new_db = through or (None, None, None)
        self._input, self._weight = by_input.lean, weight
        self._by_weight, self._weight_pointer, self._pointer = by_weight.lean, arrays.pointer(weight), arrays.pointer
        self._new_dx = arrays.maker(dx_shape, by_input.spec.out_dtype, by_input.device)
        self._new_dw = by_weight.new_out
        self._new_db = (by_weight.new_gradient or new_db) if need_bias else None
        self._device, self._stream = by_input.device, by_input.stream

    def __call__(self, dy, x, mask_data, weight):
        """Run; (dx, dw, db), or None where the weight is another one or the gradient looks otherwise than planned."""
        if weight is not self._weight or self._facts(dy) != self._dy_facts:
            return None
        pointer = self._pointer
        source, x_pointer = pointer(dy), pointer(x)
        if (source | x_pointer) & 255:
            return None
        stream = self._stream(self._device)
        db, sums = None, 0
        if self._new_db is not None:
            db = self._new_db()
            sums = pointer(db)
        dx, dw = self._new_dx(), self._new_dw()
        if self._through is not None:
            dz = self._new_dz()
            target = pointer(dz)
            if self._joined is not None:
                self._joined.launch(source, pointer(mask_data), x_pointer, target, sums, pointer(dw), stream)
                self._input.launch(target, self._weight_pointer, 0, pointer(dx), 0, 0, stream)
                return dx, dw, db
            self._through.launch(source, pointer(mask_data), target, sums, stream)
            source, sums = target, 0
        self._input.launch(source, self._weight_pointer, 0, pointer(dx), 0, 0, stream)
        self._by_weight.launch(source, x_pointer, 0, pointer(dw), sums, 0, stream)
        return dx, dw, db
