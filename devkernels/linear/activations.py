"""Gradients through an activation where no product is at hand to do it: one pass over the gradient.

in: a gradient and the mask of the forward product.  out: the gradient before the activation.
"""

from __future__ import annotations

import functools

from devkernels.linear import elementwise
from devkernels.linear.masks import Mask

_RELU_CODE = "y = (mask[(i / n) * width + ((i % n) >> 3)] >> ((i % n) & 7)) & 1 ? x : T(0)"
_GELU_CODE = """
    typedef typename wider<T>::type W;
    W z = W(aux[(i / n) * width + i % n]);
    W t = tanh(W(0.7978845608028654) * (z + W(0.044715) * z * z * z));
    W d = W(0.5) * (W(1) + t) + W(0.5) * z * (W(1) - t * t) * W(0.7978845608028654) * (W(1) + W(0.134145) * z * z);
    y = T(W(x) * d)
"""
_WIDER = """
template <typename T> struct wider { typedef float type; };
template <> struct wider<double> { typedef double type; };
"""


@functools.cache
def _kernels(cupy):
    relu = cupy.ElementwiseKernel("T x, raw uint8 mask, int64 n, int64 width", "T y", _RELU_CODE, "devkernels_drelu")
    gelu = cupy.ElementwiseKernel("T x, raw T aux, int64 n, int64 width", "T y", _GELU_CODE, "devkernels_dgelu",
                                  preamble=_WIDER)  # fmt: skip
    return {"relu_aux": relu, "gelu_aux": gelu}


def multiply_derivative(arrays, dy, mask: Mask, device: int):
    """``dy`` times the derivative of the activation that `mask` comes from."""
    data = mask.data_for(mask.kind, dy.shape, dy.dtype.name, device, arrays)
    if arrays.name == "cupy":
        with arrays.on(device):
            return _kernels(arrays.xp)[mask.kind](dy, data, dy.shape[-1], data.shape[-1])
    wide = "float64" if dy.dtype.name == "float64" else "float32"
    n = dy.shape[-1]
    if mask.kind == "relu_aux":
        return dy * elementwise.unpack_bits(arrays, data, n).astype(dy.dtype)
    derivative = elementwise.gelu_derivative(arrays.xp, elementwise.cast(arrays, data[..., :n], wide))
    return (elementwise.cast(arrays, dy, wide) * derivative).astype(dy.dtype)
