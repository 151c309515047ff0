"""What `devkernels.linear` asks of the package that an array comes from.

in: nothing.  out: `Arrays`, the face of a package, `Described`, what a spec needs to know of an array, and `CPU`.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

CPU = -1


class Described(NamedTuple):
    """An array as a spec needs it: strides in elements, dtype by name, device number (-1: the CPU)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int


class Arrays:
    """What the package that an array comes from can do. Use `arrays_of` or `package`."""

    name = ""

    def empty(self, shape, dtype: str, device: int, stream: int | None = None):
        """Make an uninitialised C-ordered array, on `stream` where the package's allocator is stream-ordered."""
        raise NotImplementedError

    def maker(self, shape, dtype: str, device: int):
        """Return a function without arguments that makes such arrays on the current device and stream, cheaply."""
        raise NotImplementedError

    def stream(self, device: int) -> int:
        """Pointer of the package's current stream; 0 on the CPU."""
        return 0

    def several_devices(self) -> bool:
        """Whether more than one device is visible, so that the current one must be checked."""
        return False

    def on(self, device: int):
        """Context in which `device` is the current device."""
        return contextlib.nullcontext()

    def on_stream(self, stream: int | None, device: int):
        """Context in which `stream` is the package's current stream."""
        return contextlib.nullcontext()
