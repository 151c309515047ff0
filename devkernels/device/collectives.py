"""Collectives that any kernel may call: `load_tile`, `store_tile`, `load_tile_async`, `wait_tiles`.

In: a `TileLayout`, a 2-D array in global memory, a place in it, and a flat array in shared memory. Out: the tile, on
the other side. The text of a kernel is the same on a GPU (device/numba_tiles.py), ahead of time, and in the simulator,
where the bodies below run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels.device import tiles
from devkernels.device.tile_layout import TileLayout, tile_layout
from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.target import simulating

__all__ = ["TileLayout", "load_tile", "load_tile_async", "store_tile", "tile_layout", "wait_tiles"]


class Collective:
    """A function that all threads of a block call together, inside kernels only."""

    def __init__(self, body: Callable):
        functools.update_wrapper(self, body)
        self._body = body

    @property
    def spec(self) -> str:
        """Its name, which is all that kernels depend on."""
        return self.__name__

    @property
    def _numba_type_(self):
        """Numba asks for this when it meets the function in a kernel; only then is its CUDA target imported."""
        from devkernels.device import numba_tiles

        return numba_tiles.CollectiveType(self)

    def __call__(self, *arguments: Any) -> None:
        """Run in the simulator."""
        if not simulating():
            raise ArgumentError(f"{self.__name__} is for kernels: call it inside one, by all threads of a block.")
        self._body(*arguments)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<collective devkernels.{self.__name__}>"


def _move(make: Callable, layout: TileLayout, x: Any, row: int, column: int, tile: Any) -> None:
    if not isinstance(layout, TileLayout):
        raise ArgumentTypeError(f"layout={layout!r} is not a TileLayout; make one with devkernels.tile_layout.")
    x, flat = np.asarray(x), np.asarray(tile)
    if x.ndim != 2:
        raise ArgumentError(f"the matrix has shape {x.shape}; pass one with two axes, such as one of a batch.")
    for name, array in (("matrix", x), ("tile", flat)):
        if array.dtype != layout.dtype:
            raise ArgumentTypeError(f"the {name} has dtype {array.dtype}; the layout was made for {layout.dtype}.")
    if flat.size < layout.size:
        raise ArgumentError(f"the tile has {flat.size} elements of shared memory; its layout takes {layout.size}.")
    make(layout, tiles.axis_of(x))(x, row, column, flat.reshape(-1))


@Collective
def load_tile(layout: TileLayout, x: Any, row: int, column: int, tile: Any) -> None:
    """Load the tile of a matrix that begins at (row, column) to shared memory; all threads of a block call together.

    Parameters
    ----------
    layout : TileLayout
        How the tile lies in shared memory; a constant of the kernel, made by `tile_layout`.
    x : 2-D array in global memory
        The matrix, of the layout's dtype, in any order, with any strides.
    row, column : int
        Where the tile begins in x; it may reach over any edge.
    tile : 1-D array in shared memory
        ``cuda.shared.array(layout.size, layout.dtype)``, or a part of one.

    Notes
    -----
    Element (i, j) is then at ``tile[layout.index(i, j)]``: ``x[row + i, column + j]``, and zero outside x. Synchronise
    (``cuda.syncthreads()``) before it is read. 16 bytes at a time where rows or columns lie together on both sides, on
    multiples of 16 bytes, also at the edges; else by elements, neighbouring threads along the contiguous axis of x.
    """
    _move(tiles.make_load, layout, x, row, column, tile)


@Collective
def load_tile_async(layout: TileLayout, x: Any, row: int, column: int, tile: Any) -> None:
    """As `load_tile`, by asynchronous copies that pass no registers (sm_80 and newer); see `wait_tiles`.

    Each call makes one group of copies. What the hardware cannot copy so (elements of one or two bytes that are not
    part of aligned words, places before the first row or column) is loaded at once. The tile is there for all threads
    after ``wait_tiles(n)`` and ``cuda.syncthreads()``.
    """
    _move(tiles.make_load_async, layout, x, row, column, tile)


@Collective
def wait_tiles(pending: int) -> None:
    """Wait until at most the newest `pending` groups of `load_tile_async` of this thread are on their way.

    `pending` is a constant of the kernel: 0 waits for all.
    """
    if not 0 <= pending < 64:
        raise ArgumentError(f"wait_tiles({pending!r}): pass a number of groups, from 0 to 63.")


@Collective
def store_tile(layout: TileLayout, tile: Any, y: Any, row: int, column: int) -> None:
    """Store a tile from shared memory to the place in a matrix that begins at (row, column); see `load_tile`.

    What lies outside y is not stored. Synchronise between the last write to the tile and the call.
    """
    _move(tiles.make_store, layout, y, row, column, tile)
