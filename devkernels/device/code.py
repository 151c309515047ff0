"""LTO-IR of one device function, built when the linker asks for it.

In: a `FunctionRequest` (small, picklable, no Numba). Out: bytes, through devkernels.cache. `linkable` wraps a request
for Numba's linker; equal requests are one object to it, so that calling or linking a function twice links it once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from devkernels import cache, libmathdx
from devkernels.libmathdx import Description
from devkernels.target import Target


@dataclass(frozen=True)
class FunctionRequest:
    """One library function for one architecture."""

    description: Description
    target: Target

    @property
    def symbol(self) -> str:
        """Name that the kernel calls it by; known before the function is compiled."""
        return _symbol(self.description)

    @property
    def key(self) -> str:
        """Cache key: what is compiled, for what, and by which library and compiler."""
        return _key(self)

    def build(self) -> bytes:
        """Compile; takes seconds."""
        return libmathdx.ltoir(self.description, self.target.number)

    def ltoir(self) -> bytes:
        """LTO-IR from the cache, compiled on the first request."""
        return cache.get_or_build("ltoir", self.key, self.build, spec=self.description)


@functools.cache
def _symbol(description: Description) -> str:
    return libmathdx.symbol(description)


@functools.cache
def _key(request: FunctionRequest) -> str:
    d = request.description
    fields = tuple(sorted((name, str(getattr(d, name))) for name in d.__dataclass_fields__))
    return cache.digest("cufftdx", fields, str(request.target), libmathdx.version(), libmathdx.nvrtc_version())


@functools.cache
def _linkable_class() -> type:
    from numba import cuda

    class FunctionCode(cuda.LTOIR):
        """A device function for Numba's linker; `.data` compiles on first use."""

        def __init__(self, request: FunctionRequest):
            super().__init__(data=None, name=request.symbol)
            self.request = request
            self.key = request.key

        @property
        def data(self) -> bytes:
            return self.request.ltoir()

        def build(self) -> bytes:
            return self.request.build()

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self) and other.key == self.key

        def __hash__(self) -> int:
            return hash(self.key)

    return FunctionCode


@functools.cache
def linkable(request: FunctionRequest):
    """Wrap `request` as an object that Numba's linker takes."""
    return _linkable_class()(request)
