"""The short way of a launch, for arguments of the types that it has been made for: one loop, few function calls.

In: a kernel on a device, a configuration, and the types of arguments that it takes: all arrays CuPy's, all torch's, or
all Numba's, in C order; numbers of Python. Out: a function that launches such arguments in two thirds of the time of
the general way (`devkernels.launch.launcher`). What it was not made for goes the general way, which launches it or says
what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devkernels.compiler.image import itemsize
from devkernels.launch import arguments, arrays, driver, streams
from devkernels.launch.buffer import Buffer

General = Callable[[tuple, Buffer], None]
Fits = Callable[[tuple, Buffer], "int | None"]


def launch(
    loaded: Any, kinds: list[type], configurations: dict, stream: int | None, buffers: list[Buffer], general: General
) -> Callable[[tuple], None] | None:
    """A function that launches values of these types; None if they have to take the general way.

    Parameters
    ----------
    loaded : Loaded
        The kernel on its device; its tables have accepted values of these types.
    kinds : list of type
        Types of the arguments.
    configurations : dict
        Stream -> launch configuration, as the driver takes it.
    stream : int or None
        The stream; None for the current one of the arrays' library.
    buffers : list of Buffer
        Those of this launch that are not in use.
    general : callable
        Function(values, buffer) that launches anything, or raises.
    """
    fits, scalars = _arrays(loaded, kinds, stream), _scalars(loaded, kinds)
    if fits is None or scalars is None:
        return None
    count, new_buffer, handle, null = len(kinds), loaded.new_buffer, loaded.handle, driver.NULL
    entry, again = driver.launch_entry(), loaded.again_with(configurations)

    def fire(values: tuple) -> None:
        buffer = buffers.pop() if buffers else new_buffer()
        try:
            where = fits(values, buffer) if len(values) == count else None
            for number, kind, code, index in scalars:
                value = values[number]
                if type(value) is not kind:
                    where = None
                buffer.views[code][index] = value
        except (AttributeError, IndexError, TypeError, ValueError, OverflowError):  # no such array, too large a number
            where = None
        if where is None:
            general(values, buffer)
            return
        if status := entry(configurations[where], handle, buffer.words, null):
            again(status, where, buffer)
        buffers.append(buffer)

    return fire


def _scalars(loaded: Any, kinds: list[type]) -> list[tuple[int, type, str, int]] | None:
    """(number of the argument, type, view and index in the buffer) of all scalars, if they are written as they are."""
    found = []
    for number, (parameter, place) in enumerate(zip(loaded.image.parameters, loaded.places, strict=True)):
        if parameter.kind == "array":
            continue
        if parameter.kind != "scalar" or not _plain(parameter.dtype, kinds[number]):
            return None
        index = place.offsets[0] // itemsize(parameter.dtype)
        found.append((number, kinds[number], arguments.SCALAR_CODES[parameter.dtype], index))
    return found


def _plain(dtype: str, kind: type) -> bool:
    if arguments.SCALAR_CODES.get(dtype, "e") == "e" or dtype.startswith("complex"):
        return False
    if dtype == "bool":
        return kind is bool
    return kind is int or (kind is float and dtype.startswith("float"))


def _arrays(loaded: Any, kinds: list[type], stream: int | None) -> Fits | None:
    """Function(values, buffer): the stream to launch on if the arrays are as expected, whose addresses it writes."""
    words = {
        number: arguments.ArrayWords(parameter, place, loaded.image.name)
        for number, (parameter, place) in enumerate(zip(loaded.image.parameters, loaded.places, strict=True))
        if parameter.kind == "array"
    }
    if not words or any(one.parameter.layout == "F" for one in words.values()):
        return None
    for of_library, make in ((arrays.is_cupy, _cupy_fits), (arrays.is_torch, _torch_fits)):
        if all(of_library(kinds[number]) for number in words):  # a tensor and a parameter of a module are both torch's
            current = loaded.current_streams[kinds[loaded.leading]] if stream is None else lambda: stream
            return make(words, loaded.device, current)
    if all(arrays.is_numba(kinds[number]) for number in words):
        return _numba_fits(words, loaded.device, stream)
    return None


def _misaligned(words: dict[int, arguments.ArrayWords]) -> int:
    """Bits that are zero in every address; of the strictest array: what only this refuses goes the general way."""
    return max(one.misaligned for one in words.values())


def _cupy_fits(words: dict[int, arguments.ArrayWords], device: int, current: Callable[[], int]) -> Fits:
    import numpy

    known = [(number, numpy.dtype(one.parameter.dtype), one.address, one.slot) for number, one in words.items()]
    misaligned, several = _misaligned(words), driver.device_count() > 1

    def fits(values: tuple, buffer: Buffer) -> int | None:
        words, shapes, together = buffer.words64, buffer.shapes, 0
        for number, dtype, address, slot in known:
            array = values[number]
            if array.dtype is not dtype or not array._c_contiguous or array.shape != shapes[slot]:
                return None
            together |= (pointer := array.data.ptr)
            words[address] = pointer
            if several and array.data.device_id != device:
                return None
        return None if together & misaligned else current()

    return fits


def _torch_fits(words: dict[int, arguments.ArrayWords], device: int, current: Callable[[], int]) -> Fits:
    import torch

    known = [
        (number, getattr(torch, one.parameter.dtype), one.parameter.dtype.startswith("complex"), one.address, one.slot)
        for number, one in words.items()
    ]
    misaligned = _misaligned(words)

    def fits(values: tuple, buffer: Buffer) -> int | None:
        words, shapes, together = buffer.words64, buffer.shapes, 0
        for number, dtype, is_complex, address, slot in known:
            array = values[number]
            if array.dtype is not dtype or not array.is_contiguous() or array.shape != shapes[slot]:
                return None
            if array.get_device() != device or array.is_neg() or (is_complex and array.is_conj()):
                return None
            together |= (pointer := array.data_ptr())
            words[address] = pointer
        return None if together & misaligned else current()

    return fits


def _numba_fits(words: dict[int, arguments.ArrayWords], device: int, stream: int | None) -> Fits:
    """Numba has no current stream: each array may say which stream writes it. Where two differ, one must wait."""
    import numpy

    known = [(number, numpy.dtype(one.parameter.dtype), one.address, one.slot) for number, one in words.items()]
    misaligned, several, leading = _misaligned(words), driver.device_count() > 1, min(words)
    fixed, none = stream, streams.LEGACY_DEFAULT

    def fits(values: tuple, buffer: Buffer) -> int | None:
        words, shapes, together, where = buffer.words64, buffer.shapes, 0, fixed
        if where is None:
            own = values[leading].stream
            where = int(own.handle) or none if own else none
        for number, dtype, address, slot in known:
            array = values[number]
            if array.dtype is not dtype or (array.shape, array.strides) != shapes[slot]:
                return None
            memory = array.gpu_data
            together |= (pointer := int(memory.device_pointer))
            words[address] = pointer
            if (own := array.stream) and (int(own.handle) or none) != where:
                return None
            if several and pointer and memory.context.device.id != device:
                return None
        return None if together & misaligned else where

    return fits
