"""From what the caller passes to the words that a kernel takes: checked, and cheap the second time.

In: a kernel's parameters and one device. Out: for each parameter a `Table`: type of the argument -> function that
checks one such argument and writes its words into a buffer.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from typing import Any

from devkernels.compiler import pipelines
from devkernels.compiler.image import Parameter, itemsize
from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.launch import arrays
from devkernels.launch.buffer import Buffer, Place

SCALAR_CODES = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "complex64": "f", "complex128": "d",
}  # fmt: skip

Writer = Callable[[Any, Buffer], None]


class Table(dict):
    """Type of an argument -> function(argument, buffer). Missing types are worked out once, or refused."""

    def __init__(self, parameter: Parameter, place: Place, kernel: str, device: int, strict: bool, foreign: dict):
        super().__init__()
        self._parameter, self._place, self._kernel = parameter, place, kernel
        self._device, self._strict, self._foreign = device, strict, foreign
        self._array = ArrayWords(parameter, place, kernel) if parameter.kind == "array" else None
        self._items = [
            Table(item, inner, kernel, device, strict, foreign)
            for item, inner in zip(parameter.items, place.items, strict=True)
        ]

    def __missing__(self, kind: type) -> Writer:
        make = {"array": self._for_array, "tuple": self._for_tuple, "scalar": self._for_scalar,
                "pipeline": self._for_pipeline}[self._parameter.kind]  # fmt: skip
        self[kind] = write = make(kind)
        return write

    def refuse(self, kind: type) -> ArgumentTypeError:
        """The error for an argument of a type, or in a memory, that the kernel cannot take."""
        parameter = self._parameter
        article = {"array": "a", "tuple": "a tuple", "scalar": "an" if parameter.dtype[:1] == "i" else "a",
                   "pipeline": "a"}  # fmt: skip
        wanted = f"{article[parameter.kind]} {parameter}"
        hint = ""
        if parameter.kind == "array":
            hint = " on the GPU (CuPy, torch, Numba, or anything with __cuda_array_interface__ or DLPack)"
            if kind.__module__.partition(".")[0] in ("numpy", "builtins") and hasattr(kind, "__len__"):
                hint += "; copy it there first, for example with cupy.asarray"
            elif arrays.is_torch(kind):
                hint += "; move it there first, with .cuda()"
        return ArgumentTypeError(
            f"Kernel {self._kernel}: argument {parameter.name} must be {wanted}{hint}, not a "
            f"{kind.__module__}.{kind.__qualname__}{' in host memory' if arrays.is_torch(kind) else ''}.",
            spec=parameter,
        )

    def _for_array(self, kind: type) -> Writer:
        write = arrays.writer(kind, self._array, self._device, self.refuse)
        if not (arrays.is_cupy(kind) or arrays.is_torch(kind)):
            self._foreign[kind] = arrays.producer_of(kind)
        return write

    def _for_tuple(self, kind: type) -> Writer:
        if not issubclass(kind, tuple):
            raise self.refuse(kind)
        items = self._items
        if len(items) > 4 and all(item.kind == "scalar" and item.dtype == "int64" for item in self._parameter.items):
            return self._for_words(len(items))

        def write(values: Any, buffer: Buffer) -> None:
            if len(values) != len(items):
                raise ArgumentError(
                    f"Kernel {self._kernel}: argument {self._parameter.name} has {len(values)} items; "
                    f"{len(items)} are expected.",
                    spec=self._parameter,
                )
            for table, value in zip(items, values, strict=True):
                table[type(value)](value, buffer)

        return write

    def _for_pipeline(self, kind: type) -> Writer:
        if not pipelines.is_pipeline(kind):
            raise self.refuse(kind)
        parameter, index = self._parameter, self._place.offsets[0] // 8
        fitting: weakref.WeakSet = weakref.WeakSet()  # a pipeline never changes, and asking for its type takes long

        def write(pipeline: Any, buffer: Buffer) -> None:
            if pipeline not in fitting:
                other = pipelines.parameter(parameter.name, pipeline)
                if other.dtype != parameter.dtype:
                    raise ArgumentTypeError(
                        f"Kernel {self._kernel}: argument {parameter.name} is another pipeline than the kernel was "
                        f"compiled for: {other}, not {parameter}.",
                        spec=parameter,
                    )
                fitting.add(pipeline)
            buffer.words64[index] = pipelines.address(pipeline)

        return write

    def _for_words(self, count: int) -> Writer:
        """Many integers in a row, such as a tensor map, at once."""
        pack, offset = struct.Struct(f"{count}q").pack_into, self._place.offsets[0]

        def write(values: Any, buffer: Buffer) -> None:
            if len(values) != count:
                raise ArgumentError(
                    f"Kernel {self._kernel}: argument {self._parameter.name} has {len(values)} items; "
                    f"{count} are expected.",
                    spec=self._parameter,
                )
            pack(buffer.memory, offset, *values)

        return write

    def _for_scalar(self, kind: type) -> Writer:
        name = self._parameter.dtype
        rank, code = _rank(kind), SCALAR_CODES.get(name)
        wanted = _WANTED[name.rstrip("0123456789")] if code else -1
        if rank is None or rank > wanted or (self._strict and inferred(kind) != name):
            raise self.refuse(kind)
        size = itemsize(name)
        if code == "e":  # memoryviews do not know half precision
            offset = self._place.offsets[0]
            return lambda value, buffer: struct.pack_into("e", buffer.memory, offset, value)
        if name.startswith("complex"):
            real, imag = (offset // (size // 2) for offset in self._place.offsets)

            def write_complex(value: Any, buffer: Buffer) -> None:
                view = buffer.views[code]
                view[real], view[imag] = value.real, value.imag

            return write_complex
        index = self._place.offsets[0] // size
        convert = {0: bool, 1: int}.get(wanted) if kind is not int else None  # NumPy's booleans are no integers

        def write_converted(value: Any, buffer: Buffer) -> None:
            buffer.views[code][index] = convert(value)

        def write_plain(value: Any, buffer: Buffer) -> None:
            buffer.views[code][index] = value

        return write_plain if convert is None else write_converted


_WANTED = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def _rank(kind: type) -> int | None:
    """0 for booleans, 1 integers, 2 real numbers, 3 complex numbers, None for everything else."""
    if kind.__module__ == "numpy":
        import numpy

        if issubclass(kind, numpy.generic):
            return {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}.get(numpy.dtype(kind).kind)
        return None
    for rank, known in enumerate((bool, int, float, complex)):
        if issubclass(kind, known):
            return rank
    return None


def inferred(kind: type) -> str | None:
    """The scalar type that a kernel without a signature is compiled for, as @cuda.jit would have it."""
    if kind.__module__ == "numpy" and _rank(kind) is not None:
        import numpy

        return numpy.dtype(kind).name
    rank = _rank(kind)
    return None if rank is None else ("bool", "int64", "float64", "complex128")[rank]


class ArrayWords:
    """Checks shape, strides and dtype of an array against its parameter, and writes its constant words."""

    def __init__(self, parameter: Parameter, place: Place, kernel: str):
        self.parameter, self.kernel, self.slot = parameter, kernel, place.slot
        self.itemsize = itemsize(parameter.dtype)
        self.misaligned = min(self.itemsize, 8) - 1  # the kernel may read whole items, at most 8 bytes at a time
        first = place.offsets[0] // 8
        self.address = first + 4  # the words are: two null owners, items, bytes per item, address, shape, strides
        self._head, self._tail = slice(first, first + 4), slice(first + 5, first + 5 + 2 * parameter.ndim)

    def contiguous(self, shape: tuple[int, ...], buffer: Buffer) -> None:
        """Write the constant words of an array in the order that the parameter asks for (C where it asks for none)."""
        self._write(shape, shape, self._strides(shape), buffer)

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...], buffer: Buffer) -> None:
        """Write the constant words of an array with any strides (in bytes), unless the buffer has them."""
        if buffer.shapes[self.slot] != (shape, strides):
            self.check_layout(shape, strides)
            self._write((shape, strides), shape, strides, buffer)

    def _strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        order = range(len(shape)) if self.parameter.layout == "F" else range(len(shape) - 1, -1, -1)
        strides, step = [0] * len(shape), self.itemsize
        for axis in order:
            strides[axis] = step
            step *= shape[axis]
        return tuple(strides)

    def _write(self, key: Any, shape: tuple[int, ...], strides: tuple[int, ...], buffer: Buffer) -> None:
        if len(shape) != self.parameter.ndim:
            raise self.error(f"has {len(shape)} dimensions", f"has shape {tuple(shape)}")
        items = 1
        for length in shape:
            items *= length
        words = buffer.views["q"]
        words[self._head] = memoryview(struct.pack("4q", 0, 0, items, self.itemsize)).cast("q")
        if shape:
            words[self._tail] = memoryview(struct.pack(f"{2 * len(shape)}q", *shape, *strides)).cast("q")
        buffer.shapes[self.slot] = key

    def check_layout(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Raise unless an array is stored in the order that the parameter asks for."""
        layout = self.parameter.layout
        if layout == "A" or 0 in shape or len(shape) != self.parameter.ndim:
            return  # a wrong rank is said elsewhere
        step = self.itemsize
        for axis in range(len(shape)) if layout == "F" else range(len(shape) - 1, -1, -1):
            if shape[axis] != 1 and strides[axis] != step:
                raise self.layout_error(f"strides {strides} in bytes for shape {shape}")
            step *= shape[axis]

    def dtype_error(self, found: object) -> ArgumentTypeError:
        """The error for an array of another dtype."""
        return self.error(f"has dtype {found}", kind=ArgumentTypeError)

    def layout_error(self, found: str = "") -> ArgumentError:
        """The error for an array that is stored in another order."""
        name = {"C": "ascontiguousarray", "F": "asfortranarray"}.get(self.parameter.layout, "ascontiguousarray")
        return self.error(f"is not contiguous in {self.parameter.layout} order", found, f"copy it with {name}")

    def alignment_error(self, pointer: int) -> ArgumentError:
        """The error for an array whose address is no multiple of what the kernel reads at once."""
        return self.error(f"begins at address {pointer:#x}, no multiple of {self.misaligned + 1}", "", "copy it")

    def error(
        self, what: str, detail: str = "", remedy: str = "", kind: type[ArgumentError] = ArgumentError
    ) -> ArgumentError:
        """An error about this parameter's array."""
        parts = [f"Kernel {self.kernel}: argument {self.parameter.name} {what}", detail,
                 f"a {self.parameter} is expected", remedy]  # fmt: skip
        return kind("; ".join(part for part in parts if part) + ".", spec=self.parameter)
