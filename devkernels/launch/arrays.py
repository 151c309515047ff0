"""Reading device arrays of every library: address, shape, strides, dtype, device.

In: an array of CuPy, torch or Numba (each read directly), of anything else with ``__cuda_array_interface__``, or with
DLPack. Out: the words that a kernel takes, in a buffer. CuPy and torch are never imported here: an array of theirs
shows that the program has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from devkernels.checks import kind_of
from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.launch import driver, streams
from devkernels.launch.buffer import Buffer

_DLPACK_DEVICES = {2, 13}  # kDLCUDA, kDLCUDAManaged
_DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class ElsewhereError(Exception):
    """An array lies on another device than the kernel is loaded on; never leaves the launcher."""


def is_cupy(kind: type) -> bool:
    """Whether a type is CuPy's array, or derived from it."""
    return any(base.__name__ == "ndarray" and base.__module__.partition(".")[0] == "cupy" for base in kind.__mro__)


def is_torch(kind: type) -> bool:
    """Whether a type is torch's tensor, or derived from it."""
    return any(base.__name__ == "Tensor" and base.__module__.partition(".")[0] == "torch" for base in kind.__mro__)


def is_numba(kind: type) -> bool:
    """Whether a type is Numba's device array, or derived from it."""
    return any(base.__name__ == "DeviceNDArrayBase" and base.__module__.startswith("numba.") for base in kind.__mro__)


def writer(
    kind: type, words: Any, device: int, refuse: Callable[[type], ArgumentTypeError]
) -> Callable[[Any, Buffer], None]:
    """Function(array, buffer) for arrays of one type, on one device, for one parameter: checks and writes."""
    if is_cupy(kind):
        return _cupy_writer(words, device)
    if is_torch(kind):
        return _torch_writer(words, device)
    if is_numba(kind):
        return _numba_writer(words, device)
    if hasattr(kind, "__cuda_array_interface__") or hasattr(kind, "__dlpack__"):
        if kind.__module__.partition(".")[0] == "numpy":
            raise refuse(kind)
        return _generic_writer(words, device, refuse)
    raise refuse(kind)


def _cupy_writer(words: Any, device: int) -> Callable[[Any, Buffer], None]:
    import numpy

    if words.parameter.dtype == "bfloat16":
        raise words.dtype_error("that CuPy has")
    dtype, misaligned = numpy.dtype(words.parameter.dtype), words.misaligned
    slot, address, fortran = words.slot, words.address, words.parameter.layout == "F"

    def write(array: Any, buffer: Buffer) -> None:
        if array.dtype is not dtype and array.dtype != dtype:
            raise words.dtype_error(array.dtype)
        data = array.data
        pointer = data.ptr
        if data.device_id != device and array.size:
            raise ElsewhereError
        if pointer & misaligned:
            raise words.alignment_error(pointer)
        if array._f_contiguous if fortran else array._c_contiguous:
            shape = array.shape
            if buffer.shapes[slot] != shape:
                words.contiguous(shape, buffer)
        else:
            words.strided(array.shape, array.strides, buffer)
        buffer.words64[address] = pointer

    return write


def _torch_writer(words: Any, device: int) -> Callable[[Any, Buffer], None]:
    import torch

    dtype, misaligned, size = getattr(torch, words.parameter.dtype), words.misaligned, words.itemsize
    slot, address, fortran = words.slot, words.address, words.parameter.layout == "F"
    lazy = words.parameter.dtype.startswith("complex")

    def write(array: Any, buffer: Buffer) -> None:
        if array.dtype is not dtype:
            raise words.dtype_error(array.dtype)
        if array.get_device() != device:
            raise ElsewhereError
        if lazy and array.is_conj():
            raise words.error("is a lazily conjugated view", "", "call .resolve_conj()")
        if array.is_neg():
            raise words.error("is a lazily negated view", "", "call .resolve_neg()")
        pointer = array.data_ptr()
        if pointer & misaligned:
            raise words.alignment_error(pointer)
        shape = array.shape
        if not fortran and array.is_contiguous():
            if buffer.shapes[slot] != shape:
                words.contiguous(tuple(shape), buffer)
        else:
            words.strided(tuple(shape), tuple(step * size for step in array.stride()), buffer)
        buffer.words64[address] = pointer

    return write


def _numba_writer(words: Any, device: int) -> Callable[[Any, Buffer], None]:
    import numpy

    if words.parameter.dtype == "bfloat16":
        raise words.dtype_error("that Numba's arrays have")
    dtype, misaligned, address = numpy.dtype(words.parameter.dtype), words.misaligned, words.address
    several = driver.device_count() > 1

    def write(array: Any, buffer: Buffer) -> None:
        if array.dtype != dtype:
            raise words.dtype_error(array.dtype)
        memory = array.gpu_data
        pointer = int(memory.device_pointer)
        if several and pointer and memory.context.device.id != device:
            raise ElsewhereError
        if pointer & misaligned:
            raise words.alignment_error(pointer)
        words.strided(array.shape, array.strides, buffer)
        buffer.words64[address] = pointer

    return write


class View(NamedTuple):
    """An array, told in plain values; `strides` are bytes, or None for C order."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: int | None
    stream: int | None = None
    keep: object = None


def _generic_writer(
    words: Any, device: int, refuse: Callable[[type], ArgumentTypeError]
) -> Callable[[Any, Buffer], None]:
    def write(array: Any, buffer: Buffer) -> None:
        seen = view(array)
        if seen.dtype != words.parameter.dtype:
            raise words.dtype_error(seen.dtype)
        if seen.pointer and seen.device is None:
            raise refuse(type(array))
        if seen.pointer and seen.device != device:
            raise ElsewhereError
        if seen.pointer & words.misaligned:
            raise words.alignment_error(seen.pointer)
        if seen.strides is not None:
            words.strided(seen.shape, seen.strides, buffer)
        elif words.parameter.layout == "F" and sum(length > 1 for length in seen.shape) > 1:
            raise words.layout_error(f"it is in C order, with shape {seen.shape}")
        else:
            words.contiguous(seen.shape, buffer)
        buffer.words64[words.address] = seen.pointer

    return write


def view(array: Any) -> View:
    """Describe any device array."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        import numpy

        pointer, strides = interface["data"][0], interface.get("strides")
        return View(
            pointer, tuple(interface["shape"]), None if strides is None else tuple(strides),
            numpy.dtype(interface["typestr"]).name, driver.device_of_pointer(pointer) if pointer else None,
            interface.get("stream"),
        )  # fmt: skip
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    raise ArgumentTypeError(f"A {kind_of(array)} is no device array.")


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype", _DLDataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


def _from_dlpack(array: Any) -> View:
    """Read a DLPack capsule without taking it over: its owner frees it when the capsule goes."""
    kind, ordinal = array.__dlpack_device__()
    if int(kind) not in _DLPACK_DEVICES:
        raise ArgumentTypeError(
            f"A {kind_of(array)} lies in host memory (DLPack device {int(kind)}); copy it to the GPU first."
        )
    capsule = array.__dlpack__(stream=streams.LEGACY_DEFAULT)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    if tensor.dtype.lanes != 1 or tensor.dtype.code not in _DLPACK_CODES:
        raise ArgumentTypeError(f"DLPack type {tensor.dtype.code} with {tensor.dtype.lanes} lanes is not supported.")
    name = _DLPACK_CODES[tensor.dtype.code]
    name += "" if name == "bool" else str(tensor.dtype.bits)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    size = tensor.dtype.bits // 8
    strides = tuple(tensor.strides[axis] * size for axis in range(tensor.ndim)) if tensor.strides else None
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, name, int(ordinal), None, capsule)


def producer_of(kind: type) -> Callable[[Any], int | None]:
    """Function(array) that gives the stream on which an array of neither CuPy nor torch is written, if it says so."""
    if is_numba(kind):
        return lambda array: streams.handle(array.stream)
    return lambda array: (getattr(array, "__cuda_array_interface__", None) or {}).get("stream")


def current_stream(kind: type, device: int) -> Callable[[], int] | None:
    """A function that gives the current stream of the library of such arrays; None where there is no such thing."""
    if is_cupy(kind):
        return streams.current_cupy()
    return streams.current_torch(device) if is_torch(kind) else None


def device_of(array: Any) -> int | None:
    """Ordinal of the device that an array lies on; None for anything that is no device array."""
    kind = type(array)
    if is_cupy(kind):
        return array.data.device_id
    if is_torch(kind):
        return array.get_device() if array.is_cuda else None
    if is_numba(kind):
        return array.gpu_data.context.device.id
    if kind.__module__.partition(".")[0] == "numpy" or not (
        hasattr(kind, "__cuda_array_interface__") or hasattr(kind, "__dlpack__")
    ):
        return None
    try:
        return view(array).device
    except ArgumentError:
        return None


def describe(array: Any) -> tuple[str, int, str, tuple[int, ...]] | None:
    """(dtype, rank, layout, shape) of a device array, or None; for kernels that have no signature yet."""
    kind = type(array)
    if is_cupy(kind):
        layout = "C" if array._c_contiguous else "F" if array._f_contiguous else "A"
        return array.dtype.name, array.ndim, layout, array.shape
    if device_of(array) is None:
        return None
    if is_torch(kind):
        size = array.element_size()
        name, shape, strides = str(array.dtype).partition(".")[2], tuple(array.shape), array.stride()
        return name, array.ndim, layout_of(shape, tuple(step * size for step in strides), size), shape
    seen = view(array)
    if seen.strides is None:
        return seen.dtype, len(seen.shape), "C", seen.shape
    from devkernels.compiler.image import itemsize

    return seen.dtype, len(seen.shape), layout_of(seen.shape, seen.strides, itemsize(seen.dtype)), seen.shape


def layout_of(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> str:
    """C, F or A."""
    for name, axes in (("C", range(len(shape) - 1, -1, -1)), ("F", range(len(shape)))):
        step = size
        for axis in axes:
            if shape[axis] != 1 and strides[axis] != step:
                break
            step *= shape[axis]
        else:
            return name
    return "A"
