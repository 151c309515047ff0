"""Epilogs written out in array operations, for NumPy, CuPy and torch.

in: products and masks.  out: what the epilog makes of them. This is the meaning of every epilog: NumPy runs it, the
tests compare cuBLASLt with it, and devices that lack a fused epilog fall back to it.

GELU is the tanh approximation (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016), which is what cuBLASLt uses.
"""

from __future__ import annotations

import math

from devkernels.linear.epilog import Epilog, gelu_aux_columns, relu_mask_bytes

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def gelu(xp, x):
    """GELU of `x`, tanh approximation."""
    return 0.5 * x * (1.0 + xp.tanh(_SCALE * (x + _CUBIC * x * x * x)))


def gelu_derivative(xp, x):
    """Derivative of `gelu` at `x`."""
    x = x.clip(-16, 16)  # 1 and 0 from there on, in every dtype; further out x * x overflows and inf * 0 is NaN
    t = xp.tanh(_SCALE * (x + _CUBIC * x * x * x))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _SCALE * (1.0 + 3.0 * _CUBIC * x * x)


def pack_bits(arrays, keep):
    """Pack booleans (…, m, n) into a ReLU mask (…, m, bytes)."""
    n = keep.shape[-1]
    width = relu_mask_bytes(n)
    if arrays.name == "torch":
        torch = arrays.torch
        bits = torch.nn.functional.pad(keep.to(torch.uint8), (0, width * 8 - n)).reshape(*keep.shape[:-1], width, 8)
        shifts = torch.arange(8, dtype=torch.uint8, device=keep.device)
        return torch.bitwise_left_shift(bits, shifts).sum(-1, dtype=torch.int32).to(torch.uint8)
    xp = arrays.xp
    bits = xp.zeros((*keep.shape[:-1], width * 8), xp.uint8)
    bits[..., :n] = keep
    weights = xp.asarray([1 << i for i in range(8)], xp.uint8)
    return (bits.reshape(*keep.shape[:-1], width, 8) * weights).sum(-1).astype(xp.uint8)


def unpack_bits(arrays, data, n: int):
    """Unpack a ReLU mask into booleans (…, m, n)."""
    if arrays.name == "torch":
        torch = arrays.torch
        shifts = torch.arange(8, dtype=torch.uint8, device=data.device)
        bits = torch.bitwise_right_shift(data.unsqueeze(-1), shifts) & 1
        return bits.reshape(*data.shape[:-1], -1)[..., :n].bool()
    xp = arrays.xp
    bits = (data[..., None] >> xp.arange(8, dtype=xp.uint8)) & 1
    return bits.reshape(*data.shape[:-1], -1)[..., :n].astype(bool)


def finish(arrays, epilog: Epilog, z, aux_in, wide: str):
    """Apply an epilog to ``z = alpha a @ b + beta c + bias``.

    Parameters
    ----------
    z : array
        In the accumulate dtype, or (in the fallback) in the result's dtype.
    aux_in : array, optional
        Raw buffer of the mask, for the backward epilogs.
    wide : str
        Dtype to compute in.

    Returns
    -------
    result, aux, gradient : array
        In `wide`; the last two None where the epilog has none. BGRADA and BGRADB are not handled here.
    """
    n = z.shape[-1]
    xp = arrays.torch if arrays.name == "torch" else arrays.xp
    z = cast(arrays, z, wide)
    aux = gradient = None
    if epilog.activation == "relu":
        keep = ~(z < 0)  # as cuBLASLt's AUX epilogs on an H200: the bits of zeros and of NaN are set, NaN stays NaN
        aux = pack_bits(arrays, keep) if epilog.aux_output else None
        z = xp.where(keep, z, xp.zeros_like(z)) if arrays.name == "torch" else xp.where(keep, z, z.dtype.type(0))
    elif epilog.activation == "gelu":
        if epilog.aux_output:
            aux = _pad_columns(arrays, z, gelu_aux_columns(n))
        z = gelu(xp, z)
    elif epilog.derivative == "relu":
        z = z * cast(arrays, unpack_bits(arrays, aux_in, n), wide)
    elif epilog.derivative == "gelu":
        z = z * gelu_derivative(xp, cast(arrays, aux_in[..., :n], wide))
    if epilog in (Epilog.DRELU_BGRAD, Epilog.DGELU_BGRAD):
        gradient = z.sum(-2)
    return z, aux, gradient


def cast(arrays, x, dtype: str):
    """Array in another dtype; itself where it has it already."""
    wanted = arrays.dtype(dtype)
    if x.dtype == wanted:
        return x
    return x.to(wanted) if arrays.name == "torch" else x.astype(wanted)


def copy(arrays, x):
    """A copy of an array."""
    return x.clone() if arrays.name == "torch" else x.copy()


def alike(arrays, x, y) -> bool:
    """Whether two results are the same but for rounding (True for two that are None); NaN is like nothing."""
    if x is None:
        return y is None
    wide = x.dtype if str(x.dtype).rpartition(".")[2].startswith(("complex", "float64")) else arrays.dtype("float32")
    x, y = (a.to(wide) if arrays.name == "torch" else a.astype(wide) for a in (x, y))
    norm = arrays.torch.linalg.vector_norm if arrays.name == "torch" else lambda a: arrays.xp.linalg.norm(a.ravel())
    return bool(norm(x - y) <= 2.0**-5 * norm(y))


def _pad_columns(arrays, z, width: int):
    n = z.shape[-1]
    if width == n:
        return z
    if arrays.name == "torch":
        return arrays.torch.nn.functional.pad(z, (0, width - n))
    return arrays.xp.pad(z, [(0, 0)] * (z.ndim - 1) + [(0, width - n)])


def round_operand(arrays, x, compute_type: str):
    """Round float32 operands as the reduced-precision compute types do before multiplying."""
    if compute_type in ("32f_fast_16f", "32f_fast_16bf"):
        narrow = "float16" if compute_type == "32f_fast_16f" else "bfloat16"
        if arrays.name == "torch" or narrow == "float16":
            return cast(arrays, cast(arrays, x, narrow), "float32")
        return _keep_mantissa(arrays, x, 7)
    if compute_type == "32f_fast_tf32":
        return _keep_mantissa(arrays, x, 10)
    return x


def _keep_mantissa(arrays, x, bits: int):
    """Round float32 (or the parts of complex64) to `bits` explicit bits of mantissa, ties away from zero."""
    drop = 23 - bits
    if arrays.name == "torch":
        torch = arrays.torch
        if x.is_complex():
            return torch.view_as_complex(_keep_mantissa(arrays, torch.view_as_real(x).contiguous(), bits))
        whole = (x.contiguous().view(torch.int32) + (1 << (drop - 1))) & -(1 << drop)
        return torch.where(torch.isfinite(x), whole.view(torch.float32), x)
    xp = arrays.xp
    x = xp.ascontiguousarray(x)
    if x.dtype.kind == "c":
        return _keep_mantissa(arrays, x.view(xp.float32), bits).view(x.dtype)
    whole = (x.view(xp.int32) + xp.int32(1 << (drop - 1))) & xp.int32(-(1 << drop))
    return xp.where(xp.isfinite(x), whole.view(xp.float32), x)
