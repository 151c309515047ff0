"""Grids and blocks, as device objects tell them.

In: nothing. Out: plain tuples; nothing heavy is imported with them.
"""

from __future__ import annotations

from typing import NamedTuple


class Dim3(NamedTuple):
    """Extent of a block or a grid."""

    x: int
    y: int = 1
    z: int = 1


class Launch(NamedTuple):
    """What goes between the brackets of a launch: ``kernel[f.launch(rows=1000)](...)``."""

    grid: Dim3
    block: Dim3
    stream: object
    shared_memory_size: int
