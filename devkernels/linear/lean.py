"""A planned product on operands that are already known: what `FusedMatmul.execute` costs the host.

in: an output or none, a stream or none.  out: the result; or None where something needs a closer look.
"""

from __future__ import annotations

import math

from devkernels.linear.arrays import stream_pointer
from devkernels.linear.matmul import Prepared


def possible(prepared: Prepared) -> bool:
    """Whether one library call does all, and nothing but the result is returned."""
    return prepared.lean is not None and prepared.mask_class is None and prepared.gradient is None


class LeanCall:
    """Pointers of the operands and everything else that does not change between calls."""

    __slots__ = ("_a", "_b", "_bias", "_c", "_device", "_dtype", "_kind", "_launch", "_make", "_name", "_pointer",
                 "_prepared", "_shape", "_stream", "_strides")  # fmt: skip

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

    def __call__(self, out, stream):
        """Run; None if `out` is not just what is planned for (contiguous, aligned)."""
        device = self._device
        if out is not None:
            target = self._fits(out)
            if not target:
                return None
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
