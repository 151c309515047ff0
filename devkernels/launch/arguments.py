"""From what the caller passes to the words that a kernel takes: checked, and cheap the second time.

In: a kernel's parameters and one device. Out: for each parameter a `Table`: type of the argument -> function that
checks one such argument and gives its words. An array becomes three: a constant head (two null owners, items, bytes
per item), the address, and a constant tail (shape and strides); heads and tails are remembered by shape.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devkernels.compiler.image import Parameter, itemsize
from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.launch import arrays, streams

_SCALAR_CODES = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "complex64": "ff", "complex128": "dd",
}  # fmt: skip
_REMEMBERED_SHAPES = 4096


def code(parameter: Parameter) -> str:
    """The `struct` codes of a parameter's words, as the extractors of `Table` give them."""
    if parameter.kind == "array":
        return f"0q32sQ{16 * parameter.ndim}s" if parameter.ndim else "0q32sQ"  # 0q: aligned as the words are
    if parameter.kind == "tuple":
        return "".join(code(item) for item in parameter.items)
    if parameter.dtype not in _SCALAR_CODES:
        raise ArgumentTypeError(f"Parameter {parameter.name} is a {parameter.dtype} scalar, which cannot be passed.")
    return _SCALAR_CODES[parameter.dtype]


class Table(dict):
    """Type of an argument -> function(argument) -> tuple of words. Missing types are worked out once."""

    def __init__(self, parameter: Parameter, kernel: str, device: int, strict: bool, foreign: list):
        super().__init__()
        self._parameter, self._kernel, self._device, self._strict = parameter, kernel, device, strict
        self._foreign = foreign
        self._array = ArrayWords(parameter, kernel) if parameter.kind == "array" else None
        self._items = [Table(item, kernel, device, strict, foreign) for item in parameter.items]

    def __missing__(self, kind: type) -> Callable[[Any], tuple]:
        make = {"array": self._for_array, "tuple": self._for_tuple, "scalar": self._for_scalar}[self._parameter.kind]
        self[kind] = extract = make(kind)
        return extract

    def refuse(self, kind: type) -> ArgumentTypeError:
        """The error for an argument of a type, or in a memory, that the kernel cannot take."""
        parameter = self._parameter
        article = {"array": "a", "tuple": "a tuple", "scalar": "an" if parameter.dtype[:1] == "i" else "a"}
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

    def _for_array(self, kind: type) -> Callable[[Any], tuple]:
        extract = arrays.reader(kind, self._array, self._device, self.refuse)
        if not (arrays.is_cupy(kind) or arrays.is_torch(kind)):
            self._foreign.append(kind)
        return extract

    def _for_tuple(self, kind: type) -> Callable[[Any], tuple]:
        if not issubclass(kind, tuple):
            raise self.refuse(kind)
        items = self._items

        def extract(values: Any) -> tuple:
            if len(values) != len(items):
                raise ArgumentError(
                    f"Kernel {self._kernel}: argument {self._parameter.name} has {len(values)} items; "
                    f"{len(items)} are expected.",
                    spec=self._parameter,
                )
            return tuple(word for table, value in zip(items, values, strict=True) for word in table[type(value)](value))

        return extract

    def _for_scalar(self, kind: type) -> Callable[[Any], tuple]:
        name = self._parameter.dtype
        rank = _rank(kind)
        wanted = _WANTED[name.rstrip("0123456789")]
        if rank is None or rank > wanted or (self._strict and inferred(kind) != name):
            raise self.refuse(kind)
        if name.startswith("complex"):
            return lambda value: (value.real, value.imag)
        if name == "bool":
            return lambda value: (bool(value),)
        if rank == 0:  # NumPy's booleans are no integers to `struct`
            return lambda value: (int(value),)
        return lambda value: (value,)


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


@dataclass(frozen=True)
class Words:
    """The constant words of an array of one shape and strides."""

    head: bytes
    tail: bytes


class ArrayWords:
    """Checks shape, strides and dtype of an array against its parameter, and remembers what it made of each shape."""

    def __init__(self, parameter: Parameter, kernel: str):
        self.parameter, self.kernel = parameter, kernel
        self.itemsize = itemsize(parameter.dtype)
        self.misaligned = min(self.itemsize, 8) - 1  # the kernel may read whole items, at most 8 bytes at a time
        self.by_shape: dict[Any, Words] = {}  # contiguous arrays by shape; others by (shape, strides)

    def contiguous(self, shape: tuple[int, ...]) -> Words:
        """Words of an array in the order that the parameter asks for (C where it asks for none)."""
        words = self.by_shape.get(shape)
        if words is None:
            order = range(len(shape)) if self.parameter.layout == "F" else range(len(shape) - 1, -1, -1)
            strides, step = [0] * len(shape), self.itemsize
            for axis in order:
                strides[axis] = step
                step *= shape[axis]
            words = self._remember(shape, shape, tuple(strides))
        return words

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Words:
        """Words of an array with any strides (in bytes)."""
        words = self.by_shape.get((shape, strides))
        return self._remember((shape, strides), shape, strides) if words is None else words

    def _remember(self, key: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Words:
        parameter = self.parameter
        if len(shape) != parameter.ndim:
            raise self.error(f"has {len(shape)} dimensions", f"has shape {tuple(shape)}")
        items = 1
        for length in shape:
            items *= length
        head = struct.pack("QQqq", 0, 0, items, self.itemsize)
        words = Words(head, struct.pack(f"{2 * len(shape)}q", *shape, *strides))
        if len(self.by_shape) >= _REMEMBERED_SHAPES:
            self.by_shape.clear()
        self.by_shape[key] = words
        return words

    def check_layout(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Raise unless an array is stored in the order that the parameter asks for."""
        layout = self.parameter.layout
        if layout == "A" or 0 in shape or len(shape) != self.parameter.ndim:
            return
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


def stream_reader(kind: type, device: int) -> Callable[[Any], int]:
    """Function(array) -> current stream of the library that such arrays belong to, or their producer's stream."""
    if arrays.is_cupy(kind):
        current = streams.current_cupy()
        return lambda _: current()
    if arrays.is_torch(kind):
        current = streams.current_torch(device)
        return lambda _: current()
    return arrays.producer_stream
