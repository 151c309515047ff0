"""LTO-IR of one product on shared memory, built when the linker asks for it; see devkernels/device/code.py.

In: a `MatmulDescription` and a target. Out: a request for the linker, and names to call.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from devkernels import cache, libmathdx
from devkernels.libmathdx import matmul as library
from devkernels.target import Target


@dataclass(frozen=True)
class MatmulRequest:
    """The functions of one product for one architecture; they are compiled together."""

    description: library.MatmulDescription
    target: Target

    @property
    def symbol(self) -> str:
        """Name that the kernel calls the product by."""
        return self.symbols["execute"]

    @property
    def symbols(self) -> dict[str, str]:
        """Names of all functions."""
        return library.symbols(self.description)

    @property
    def key(self) -> str:
        """Cache key: what is compiled, for what, and by which library and compiler."""
        return _key(self)

    def build(self) -> bytes:
        """Compile; takes seconds."""
        return library.ltoir(self.description, self.target.number)

    def ltoir(self) -> bytes:
        """LTO-IR from the cache, compiled on the first request."""
        return cache.get_or_build("ltoir", self.key, self.build, spec=self.description)


@functools.cache
def _key(request: MatmulRequest) -> str:
    d = request.description
    fields = tuple(sorted((name, str(getattr(d, name))) for name in d.__dataclass_fields__))
    return cache.digest("cublasdx", fields, str(request.target), libmathdx.version(), libmathdx.nvrtc_version())
