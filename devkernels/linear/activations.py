"""Gradients through an activation where no product is at hand to do it: one pass over the gradient.

in: a gradient and what the forward pass kept.  out: the gradient before the activation, and the bias gradient where the
pass can sum it up on the way (on a GPU, see `_kernels`).
"""

from __future__ import annotations

from devkernels.errors import JitDisabledError
from devkernels.linear import _cuda, _kernels, elementwise
from devkernels.linear.arrays import CPU, Arrays
from devkernels.linear.bounded import Bounded

_prepared: Bounded = Bounded(256)  # shape and what was kept -> (kernel, new_dz, new_db)


def on_device(arrays: Arrays, device: int, dtype: str, rows: int, columns: int, kept_ld: int, kind: str, bits: int):
    """Return (kernel, new_dz, new_db) for a shape, or None where the kernel cannot be had.

    Parameters
    ----------
    kind : {"relu", "gelu", "relu_aux", "gelu_aux", "gelu_slope"}
        What was kept: the result of ReLU, the input of GELU, a bit mask, the slope.
    bits : int
        Pointers or-ed together; 16-byte loads are used where they allow it.
    """
    aligned = not bits & 15
    key = (arrays.name, device, dtype, rows, columns, kept_ld, kind, aligned)
    found = _prepared.get(key)
    if found is None:
        if device == CPU or arrays.name == "numpy" or dtype not in _kernels.TYPES or not _cuda.available():
            return None
        try:
            kernel = _kernels.ActivationBackward(arrays, device, dtype, rows, columns, kept_ld, kind, aligned)
        except JitDisabledError:  # DEVKERNELS_DISABLE_JIT: array operations do it instead
            return None
        found = kernel, arrays.maker((rows, columns), dtype, device), arrays.maker((columns,), dtype, device)
        _prepared.keep(key, found)
    return found


def multiply_derivative(arrays, dy, mask, device: int, need_sum: bool):
    """``dy`` (tokens, features) times the derivative of the activation that `mask` comes from, and its sum over tokens.

    The sum is None where it is not needed or not cheap here; the weight gradient's product makes it then.
    """
    data = mask.data_for(mask.kind, dy.shape, dy.dtype.name, device, arrays)
    with arrays.on(device):
        return _multiply_on_the_current_device(arrays, dy, mask.kind, data, device, need_sum)


def _multiply_on_the_current_device(arrays, dy, kind: str, data, device: int, need_sum: bool):
    rows, n = dy.shape
    if arrays.name == "cupy":
        dy = dy if dy.flags.c_contiguous else arrays.xp.ascontiguousarray(dy)
        pointer = arrays.pointer
        found = on_device(arrays, device, dy.dtype.name, rows, n, data.shape[-1], kind, pointer(dy) | pointer(data))
        if found is not None:
            kernel, new_dz, new_db = found
            dz, db = new_dz(), new_db() if need_sum else None
            kernel.launch(pointer(dy), pointer(data), pointer(dz), pointer(db) if need_sum else 0,
                          arrays.stream(device))  # fmt: skip
            return dz, db
    wide = "float64" if dy.dtype.name == "float64" else "float32"
    if kind == "gelu_slope":
        return dy * data, None
    if kind == "relu_aux":
        return dy * elementwise.unpack_bits(arrays, data, n).astype(dy.dtype), None
    slope = elementwise.gelu_derivative(arrays.xp, elementwise.cast(arrays, data[..., :n], wide))
    return (elementwise.cast(arrays, dy, wide) * slope).astype(dy.dtype), None
