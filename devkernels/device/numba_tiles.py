"""Typing and lowering of tile layouts and collectives in Numba's CUDA target.

In: a `TileLayout` or a `Collective` met by Numba as a global or closure value. Out: inlined loops (device/tiles.py).
Imported only when a kernel is compiled for a GPU.
"""

from __future__ import annotations

from numba import types
from numba.core.errors import TypingError
from numba.cuda.extending import overload_method

from devkernels.device import tiles
from devkernels.device.numba_objects import INLINE, DeviceObjectType, absent, refresh, register


class TileLayoutType(DeviceObjectType):
    """Numba type of one layout."""

    def __init__(self, layout):
        self.layout = layout
        super().__init__(layout)


class CollectiveType(DeviceObjectType):
    """Numba type of one collective."""

    def __init__(self, collective):
        self.called = collective.spec
        super().__init__(collective)


_TRAITS = ("shape", "rows", "columns", "dtype", "order", "leading_dimension", "swizzle", "size", "bytes")
register(TileLayoutType, _TRAITS, lambda value, name: getattr(value.layout, name))
register(CollectiveType, (), lambda value, name: None)


@overload_method(TileLayoutType, "index", jit_options=INLINE)
def _index(layout, i, j):
    index = tiles.make_index(layout.layout)
    return lambda layout, i, j: index(i, j)


def _check(name: str, layout, x, tile) -> None:
    if not isinstance(layout, TileLayoutType):
        raise TypingError(f"{name}: the first argument is {layout}, not a devkernels.tile_layout.")
    wanted = str(layout.layout.dtype)
    if not isinstance(x, types.Array) or x.ndim != 2 or str(x.dtype) != wanted:
        raise TypingError(f"{name}: the matrix must be a 2-D array of {wanted}, not {x}.")
    if not isinstance(tile, types.Array) or tile.ndim != 1 or tile.layout != "C" or str(tile.dtype) != wanted:
        raise TypingError(f"{name}: the tile must be a contiguous 1-D array of {wanted} in shared memory, not {tile}.")


@overload_method(CollectiveType, "__call__", jit_options=INLINE)
def _call(f, first, second=None, third=None, fourth=None, fifth=None):
    if f.called == "wait_tiles":
        if not isinstance(first, types.IntegerLiteral) or not 0 <= first.literal_value < 64:
            raise TypingError("wait_tiles takes a constant number of groups, from 0 to 63.")
        wait = tiles.make_wait(first.literal_value)
        return lambda f, first, second=None, third=None, fourth=None, fifth=None: wait()
    if absent(fifth):
        raise TypingError(f"{f.called} takes five arguments: see its documentation.")
    if f.called == "store_tile":
        _check(f.called, first, third, second)
        store = tiles.make_store(first.layout, tiles.axis_of(third))

        def put(f, first, second=None, third=None, fourth=None, fifth=None):
            store(third, fourth, fifth, second)

        return put
    _check(f.called, first, second, fifth)
    make = tiles.make_load if f.called == "load_tile" else tiles.make_load_async
    load = make(first.layout, tiles.axis_of(second))

    def get(f, first, second=None, third=None, fourth=None, fifth=None):
        load(second, third, fourth, fifth)

    return get


refresh()
