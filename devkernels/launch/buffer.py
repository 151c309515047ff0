"""The memory of one launch: all words that a kernel takes, at the places where its cubin expects them.

In: a kernel's parameters. Out: buffers, and for every parameter a `Place` in them. A buffer remembers the shapes of the
arrays whose constant words (items, shape, strides ...) it holds, so that the next launch with arrays of the same shapes
only writes addresses.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from devkernels.compiler import image as images
from devkernels.compiler.image import Parameter

_VIEWS = "bBhHiIqQfd?"  # the codes of `struct` that a memoryview can write


class Place(NamedTuple):
    """Where a parameter lies: byte offset of each of its words, and the number of its slot if it is an array."""

    offsets: tuple[int, ...]
    slot: int = -1
    items: tuple[Place, ...] = ()


def places(parameters: tuple[Parameter, ...]) -> tuple[Place, ...]:
    """The place of every parameter."""
    words = iter(images.layout(parameters))
    slots = iter(range(10**6))

    def place(parameter: Parameter) -> Place:
        if parameter.kind == "tuple":
            items = tuple(map(place, parameter.items))
            return Place(tuple(offset for item in items for offset in item.offsets), items=items)
        offsets = tuple(next(words)[0] for _ in parameter.slots())
        return Place(offsets, next(slots) if parameter.kind == "array" else -1)

    return tuple(map(place, parameters))


def _array_slots(parameters: tuple[Parameter, ...]) -> int:
    return sum(1 if one.kind == "array" else _array_slots(one.items) for one in parameters)


class Buffer:
    """Words of one launch; `words` is what cuLaunchKernel takes as kernelParams."""

    __slots__ = ("_addresses", "_owner", "memory", "shapes", "views", "words", "words64")

    def __init__(self, parameters: tuple[Parameter, ...]):
        layout = images.layout(parameters)
        end = layout[-1][0] + layout[-1][1] if layout else 0
        self.memory = bytearray(-(-max(end, 1) // 16) * 16)
        self._owner = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        start = ctypes.addressof(self._owner)
        self._addresses = (ctypes.c_void_p * max(len(layout), 1))(*(start + offset for offset, _ in layout))
        self.words = ctypes.c_void_p.from_param(ctypes.addressof(self._addresses))
        self.views = {code: memoryview(self.memory).cast(code) for code in _VIEWS}
        self.words64 = self.views["Q"]
        self.shapes: list[object] = [None] * _array_slots(parameters)
