"""A planned product on operands that are already known: what `FusedMatmul.execute` costs the host.

in: an output or none, a stream or none.  out: the result; or None where something needs a closer look.
"""

from __future__ import annotations

import math
import weakref

from devkernels.linear.arrays import stream_pointer
from devkernels.linear.matmul import Prepared


def _nothing() -> None:
    """Stand in for a weak reference before there is one."""


def possible(prepared: Prepared) -> bool:
    """Whether one library call does all, and nothing but the result is returned."""
    return prepared.lean is not None and prepared.mask_class is None and prepared.gradient is None


class LeanCall:
    """Pointers of the operands and everything else that does not change between calls."""

    __slots__ = ("_a", "_b", "_bias", "_c", "_device", "_dtype", "_kind", "_last", "_launch", "_make", "_name",
                 "_pointer", "_prepared", "_shape", "_stream", "_strides")  # fmt: skip

    def __init__(self, prepared: Prepared, a, b, c, bias):
        arrays, spec = prepared.arrays, prepared.spec
        pointer = self._pointer = arrays.pointer
        self._a, self._b = pointer(a), pointer(b)
        self._c = 0 if c is None else pointer(c)
        self._bias = 0 if bias is None else pointer(bias)
        self._prepared, self._device, self._name = prepared, prepared.device, arrays.name
        self._launch, self._stream, self._make = prepared.lean.launch, prepared.stream, prepared.new_out
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
                out = self._prepared.arrays.empty(self._shape, spec.out_dtype, device, stream_pointer(stream))
            target = self._pointer(out)
        self._launch(self._a, self._b, self._c, target, self._bias, 0,
                     self._stream(device) if stream is None else stream_pointer(stream))  # fmt: skip
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
    """The forward product of a layer for one shape of input, with the layer's present weight and bias."""

    __slots__ = ("_bias", "_bias_pointer", "_device", "_dtype", "_kind", "_lifetime", "_name", "_out", "_pointer",
                 "_prepared", "_shape", "_strides", "_weight", "_weight_pointer")  # fmt: skip

    def __init__(self, prepared: Prepared, weight, bias, shape: tuple[int, ...], lifetime):
        arrays = prepared.arrays
        pointer = self._pointer = arrays.pointer
        self._prepared, self._device, self._name = prepared, prepared.device, arrays.name
        self._weight, self._bias, self._lifetime = weight, bias, lifetime
        self._weight_pointer, self._bias_pointer = pointer(weight), 0 if bias is None else pointer(bias)
        self._kind, self._dtype, self._shape = type(weight), weight.dtype, shape
        size = weight.itemsize
        self._strides = tuple(size * math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self._out = arrays.maker(shape, prepared.spec.out_dtype, prepared.device)

    def __call__(self, x, out, weight, bias):
        """Run; returns (result, mask), or None where something needs a closer look."""
        if weight is not self._weight or bias is not self._bias or x.dtype != self._dtype:
            return None
        device, pointer, prepared = self._device, self._pointer, self._prepared
        source = pointer(x)
        if out is None:
            out = self._out()
            target = pointer(out)
        else:
            if type(out) is not self._kind or out.shape != self._shape or out.strides != self._strides:
                return None
            target = pointer(out)
            if target & 255 or out.dtype != self._dtype or (self._name == "cupy" and out.data.device_id != device):
                return None
        if source & 255 or (self._name == "cupy" and x.data.device_id != device):
            return None
        mask, aux = None, 0
        if prepared.mask_class is not None:
            data = prepared.new_aux()
            aux = pointer(data)
            spec = prepared.spec
            mask = prepared.mask_class.around(
                data, spec.out_shape, spec.out_dtype, device, prepared.arrays, self._lifetime
            )
        prepared.lean.launch(source, self._weight_pointer, 0, target, self._bias_pointer, aux, prepared.stream(device))
        if mask is not None:
            mask.written()
        return out, mask


class LayerBackward:
    """The backward pass of a layer for one shape: a pass through the activation, and two products.

    `through` is the kernel of the activation with makers of its outputs (`activations.on_device`), None without one.
    """

    __slots__ = ("_by_weight", "_device", "_input", "_new_db", "_new_dw", "_new_dx", "_new_dz", "_pointer", "_stream",
                 "_through", "_weight", "_weight_pointer")  # fmt: skip

    def __init__(self, by_input: Prepared, by_weight: Prepared, weight, dx_shape, through, need_bias: bool):
        arrays = by_input.arrays
        self._through, self._new_dz, new_db = through or (None, None, None)
        self._input, self._weight = by_input.lean, weight
        self._by_weight, self._weight_pointer, self._pointer = by_weight.lean, arrays.pointer(weight), arrays.pointer
        self._new_dx = arrays.maker(dx_shape, by_input.spec.out_dtype, by_input.device)
        self._new_dw = by_weight.new_out
        self._new_db = (by_weight.new_gradient or new_db) if need_bias else None
        self._device, self._stream = by_input.device, by_input.stream

    def __call__(self, dy, x, mask_data, weight):
        """Run; (dx, dw, db), or None where the weight is another one than planned for."""
        if weight is not self._weight:
            return None
        pointer = self._pointer
        stream = self._stream(self._device)
        source = pointer(dy)
        db, sums = None, 0
        if self._new_db is not None:
            db = self._new_db()
            sums = pointer(db)
        if self._through is not None:
            dz = self._new_dz()
            target = pointer(dz)
            self._through.launch(source, pointer(mask_data), target, sums, stream)
            source, sums = target, 0
        dx = self._new_dx()
        self._input.launch(source, self._weight_pointer, 0, pointer(dx), 0, 0, stream)
        dw = self._new_dw()
        self._by_weight.launch(source, pointer(x), 0, pointer(dw), sums, 0, stream)
        return dx, dw, db
