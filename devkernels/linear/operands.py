"""From arrays to a spec: everything that can be wrong with operands is said here, before anything is launched.

in: the arrays of a call.  out: `Operands`, which holds them with their package, device, alignment and `MatmulSpec`.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from devkernels.checks import kind_of
from devkernels.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from devkernels.linear.arrays import Arrays, Described, alignment_of, arrays_of
from devkernels.linear.epilog import Epilog
from devkernels.linear.spec import COMPUTE_TYPES, Layout, MatmulSpec, is_fp8


@dataclass(slots=True)
class Operands:
    """Validated operands of one product."""

    spec: MatmulSpec
    arrays: Arrays
    device: int
    alignment: int


def finite_number(name: str, value: object, dtype: str) -> complex | float:
    """Alpha or beta: a finite number, complex only for complex dtypes."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number: complex | float = float(value)
    elif isinstance(value, numbers.Complex) and not isinstance(value, bool):
        number = complex(value)
        if not dtype.startswith("complex"):
            raise ArgumentTypeError(f"{name}={value!r} is complex, but the operands are {dtype}.")
    else:
        raise ArgumentTypeError(f"{name}={value!r} is not a number; arrays of one element need float({name}).")
    if not (math.isfinite(number.real) and math.isfinite(number.imag)):
        raise ArgumentError(f"{name}={value!r} is not finite; the result would be NaN or infinite everywhere.")
    return number


def _describe(name: str, array: object, arrays: Arrays, device: int) -> Described:
    if arrays_of(array, name) is not arrays:
        raise ArgumentTypeError(
            f"{name} is a {kind_of(array)}, but `a` belongs to {arrays.name}; "
            f"all arrays of a call must come from one package."
        )
    told = arrays.describe(array)
    if told.device != device:
        raise DeviceMismatchError(
            f"{name} lies on device {told.device} and `a` on device {device} (-1 is the CPU); move one of them."
        )
    return told


def bias_axis(told: Described, m: int, n: int, batch: tuple[int, ...]) -> str:
    """Whether a bias runs along columns or rows, decided by its shape."""
    shape = told.shape
    if shape == (n,) or (len(shape) == 2 and shape == (1, n)):
        if n > 1 and told.strides[-1] != 1:
            raise ArgumentError(f"bias has stride {told.strides[-1]} between its elements; pass a contiguous copy.")
        return "columns"
    if len(shape) == 2 and shape == (m, 1):
        return "rows"
    hint = f" Write bias[:, None] for a bias along rows ({m}, 1)." if shape == (m,) else ""
    raise ArgumentError(
        f"bias has shape {shape}; for a result of shape {(*batch, m, n)} possible are ({n},) and (1, {n}), which run "
        f"along columns, and ({m}, 1), which runs along rows.{hint}"
    )


def analyse(a, b, *, c=None, bias=None, out=None, epilog: Epilog = Epilog.DEFAULT, compute_type=None, out_dtype=None,
            scaled=(False, False, False)) -> Operands:  # fmt: skip
    """Validate the arrays of a call and make its spec.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceMismatchError, SpecError
        With the argument's name, its value, and what is possible.
    """
    arrays = arrays_of(a, "a")
    told_a = arrays.describe(a)
    device = told_a.device
    told_b = _describe("b", b, arrays, device)
    for name, told in (("a", told_a), ("b", told_b)):
        if len(told.shape) < 2:
            raise ArgumentError(f"{name} has shape {told.shape}; it must be a matrix or a batch of matrices.")
        if told.dtype not in COMPUTE_TYPES:
            raise ArgumentTypeError(f"{name} is {told.dtype}; possible are {', '.join(COMPUTE_TYPES)}.")
        if 0 in told.shape:
            raise ArgumentError(f"{name} has shape {told.shape}; empty products are not supported.")
    (m, k), (k_b, n) = told_a.shape[-2:], told_b.shape[-2:]
    if k != k_b:
        hint = " Did you mean b.T?" if told_b.shape[-1] == k else ""
        raise ArgumentError(f"a {told_a.shape} and b {told_b.shape}: k is {k} in `a` and {k_b} in `b`.{hint}")
    batch = tuple(told_a.shape[:-2]) or tuple(told_b.shape[:-2])
    if math.prod(batch) == 1 and math.prod(told_b.shape[:-2]) > 1:
        batch = tuple(told_b.shape[:-2])
    fields: dict[str, object] = {
        "a": Layout.of("a", told_a.shape, told_a.strides, batch),
        "b": Layout.of("b", told_b.shape, told_b.strides, batch),
    }
    bits = arrays.pointer(a) | arrays.pointer(b)
    if told_a.dtype != told_b.dtype and not (is_fp8(told_a.dtype) and is_fp8(told_b.dtype)):
        raise ArgumentTypeError(f"a is {told_a.dtype} and b is {told_b.dtype}; convert one of them.")
    result_dtype = out_dtype or ("float16" if is_fp8(told_a.dtype) else told_a.dtype)
    shape = (*batch, m, n)
    if c is not None:
        told = _describe("c", c, arrays, device)
        if told.shape not in (shape, (m, n)):
            raise ArgumentError(f"c has shape {told.shape}; it must have the result's shape {shape}, or ({m}, {n}).")
        fields["c_dtype"] = told.dtype
        fields["c"] = Layout.of("c", told.shape, told.strides, batch)
        bits |= arrays.pointer(c)
    if out is not None:
        told = _describe("out", out, arrays, device)
        if told.shape != shape:
            raise ArgumentError(f"out has shape {told.shape}, but the result has {shape}.")
        if out_dtype is None and not is_fp8(told_a.dtype) and told.dtype != told_a.dtype:
            raise ArgumentTypeError(f"out is {told.dtype}, but the result is {told_a.dtype}.")
        result_dtype = told.dtype
        fields["out"] = Layout.of("out", told.shape, told.strides, batch)
        if len(shape) > 2 and math.prod(batch) > 1 and fields["out"].batch_stride == 0:
            raise ArgumentError("out overlaps itself: its batch axes have stride 0; pass a real array.")
        bits |= arrays.pointer(out)
    if epilog.has_bias != (bias is not None):
        raise ArgumentError(
            f"epilog {epilog.name} needs a bias." if bias is None else f"epilog {epilog.name} takes no bias; remove it."
        )
    if bias is not None:
        told = _describe("bias", bias, arrays, device)
        fields["bias_axis"] = bias_axis(told, m, n, batch)
        if told.dtype != result_dtype:
            raise ArgumentTypeError(f"bias is {told.dtype}, but the result is {result_dtype}; convert the bias.")
        bits |= arrays.pointer(bias)
    spec = MatmulSpec(
        m, n, k, told_a.dtype, batch, epilog, b_dtype=told_b.dtype, out_dtype=result_dtype, compute_type=compute_type,
        scaled=scaled, **fields,
    )  # fmt: skip
    return Operands(spec, arrays, device, alignment_of(bits))


def default_compute_type(arrays: Arrays, dtype: str) -> str | None:
    """Compute type by torch's switch for tf32 where the operands are torch's; else None (the dtype's default)."""
    if arrays.name == "torch" and dtype == "float32" and arrays.torch.get_float32_matmul_precision() != "highest":
        return "32f_fast_tf32"
    return None


def gradient_shape(spec: MatmulSpec) -> tuple[int, ...] | None:
    """Shape of the bias gradient that the epilog returns, or None."""
    if spec.epilog.gradient_output is None:
        return None
    return (*spec.batch, spec.m if spec.epilog is Epilog.BGRADA else spec.n)


_scalars: dict[tuple, object] = {}


def device_scale(value: object, name: str, arrays: Arrays, device: int):
    """Scale of an 8-bit operand as a float32 array of one element; numbers are kept, so that they are copied once."""
    if value is None:
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        if not math.isfinite(number) or number <= 0:
            raise ArgumentError(f"{name}={value!r} must be a finite number above 0.")
        key = (number, arrays.name, device)
        if key not in _scalars:
            if len(_scalars) > 256:
                _scalars.clear()
            array = arrays.empty((1,), "float32", device)
            array[:] = number
            _scalars[key] = array
        return _scalars[key]
    told = _describe(name, value, arrays, device)
    if told.dtype != "float32" or math.prod(told.shape) != 1:
        raise ArgumentTypeError(f"{name} must be a number or a float32 array of one element, not {told}.")
    return value
