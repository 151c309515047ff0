"""Moving a tile of a global matrix to shared memory and back: masked, transposed, 16 bytes at a time where possible.

In: shape, order and leading dimension of the tile; the axis along which the global array is contiguous. Out: functions
``move(x, row, column, tile)`` that all threads of a block call; plain Python, the same on a GPU and in the simulator,
but for the 16-byte accesses, which only compiled kernels have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.lazy import cuda
from devkernels.target import simulating

WORD = 16  # bytes of the widest access


def axis_of(array) -> int | None:
    """Axis along which an array (or Numba's type of one) is contiguous: 1, 0, or None if only its strides tell."""
    if hasattr(array, "layout"):
        return {"C": 1, "F": 0}.get(array.layout)
    return 1 if array.flags.c_contiguous else 0 if array.flags.f_contiguous else None


def _thread_index(block_dim: tuple[int, int, int]) -> Callable:
    """Function that gives the thread's number in its block."""
    x, y, z = block_dim
    if y == z == 1:
        return device_function(lambda: cuda.threadIdx.x)
    return device_function(lambda: cuda.threadIdx.x + x * (cuda.threadIdx.y + y * cuda.threadIdx.z))


def make_load(rows: int, columns: int, along_rows: bool, pitch: int, item: int, contiguous: int | None,
              block_dim: tuple[int, int, int]) -> Callable:  # fmt: skip
    """Return ``load(x, row, column, tile)``: tile = x[row : row + rows, column : column + columns], zero outside x.

    Element (i, j) of the tile lies at ``i * pitch + j`` if `along_rows`, else at ``i + j * pitch``. The threads must
    synchronise before the tile is read.
    """
    return _make(rows, columns, along_rows, pitch, item, contiguous, block_dim, False)


def make_store(rows: int, columns: int, along_rows: bool, pitch: int, item: int, contiguous: int | None,
               block_dim: tuple[int, int, int]) -> Callable:  # fmt: skip
    """Return ``store(y, row, column, tile)``, the counterpart of `make_load`; what lies outside y is not stored."""
    return _make(rows, columns, along_rows, pitch, item, contiguous, block_dim, True)


def _one_by_one(rows, columns, by_rows, index, block_dim, store) -> Callable:
    """``move(x, row, column, tile)`` by elements, with a mask; element (i, j) lies at ``index(tile, i, j)``."""
    threads, count = block_dim[0] * block_dim[1] * block_dim[2], rows * columns
    thread_index = _thread_index(block_dim)
    line = columns if by_rows else rows

    def narrow(x, row, column, tile):
        for e in range(thread_index(), count, threads):
            outer, inner = e // line, e % line
            i, j = (outer, inner) if by_rows else (inner, outer)
            inside = row + i < x.shape[0] and column + j < x.shape[1]
            place = index(tile, i, j)
            if store:
                if inside:
                    x[row + i, column + j] = tile[place]
            elif inside:
                tile[place] = x[row + i, column + j]
            else:
                tile[place] = 0

    return device_function(narrow)


def _make(rows, columns, along_rows, pitch, item, contiguous, block_dim, store) -> Callable:
    row_step, column_step = (pitch, 1) if along_rows else (1, pitch)
    index = device_function(lambda tile, i, j: i * row_step + j * column_step)
    # Neighbouring threads follow the global array's contiguous axis, whatever the tile's order.
    by_rows = contiguous == 1 if contiguous is not None else along_rows
    narrow = _one_by_one(rows, columns, by_rows, index, block_dim, store)
    lanes = WORD // item
    wide_axis = 1 if along_rows else 0
    lines, length = (rows, columns) if along_rows else (columns, rows)
    if simulating() or contiguous != wide_axis or length % lanes or pitch % lanes or item > WORD:
        return narrow
    return _wide(narrow, lines, length, pitch, item, wide_axis, block_dim, store)


def _wide(narrow, lines, length, pitch, item, axis, block_dim, store) -> Callable:
    """16-byte accesses for tiles that lie inside the array and on 16-byte addresses; a test of the whole block."""
    from devkernels.device._intrinsics import data_pointer, make_copy, misaligned

    copy, thread_index = make_copy(WORD), _thread_index(block_dim)
    threads = block_dim[0] * block_dim[1] * block_dim[2]
    words, unsigned = length * item // WORD, np.uint64
    total, line_bytes = lines * words, pitch * item
    rows, columns = (lines, length) if axis == 1 else (length, lines)

    def move(x, row, column, tile):
        start = unsigned(row * x.strides[0] + column * x.strides[1])
        step = unsigned(x.strides[1 - axis])
        outside = row + rows > x.shape[0] or column + columns > x.shape[1] or row < 0 or column < 0
        source, sink = data_pointer(x), data_pointer(tile)
        if outside or ((start | step) & unsigned(15)) != 0 or misaligned(source, 16) or misaligned(sink, 16):
            narrow(x, row, column, tile)
        else:
            for e in range(unsigned(thread_index()), unsigned(total), unsigned(threads)):
                one = e // unsigned(words)
                inside = (e - one * unsigned(words)) * unsigned(WORD)
                there = start + one * step + inside
                here = one * unsigned(line_bytes) + inside
                if store:
                    copy(source, there, sink, here)
                else:
                    copy(sink, here, source, there)

    return device_function(move)


def make_placed(rows: int, columns: int, index: Callable, copy: Callable | None, contiguous: int | None,
                block_dim: tuple[int, int, int], store: bool, alignment: int | None = None) -> Callable:  # fmt: skip
    """As `make_load` and `make_store`, for a tile whose element (i, j) lies at ``index(tile, i, j)``.

    ``copy(x, start, tile)``, if there is one, loads a tile that lies inside the array, `start` bytes from its first
    element, and on multiples of `alignment` bytes.
    """
    narrow = _one_by_one(rows, columns, contiguous != 0, index, block_dim, store)
    if copy is None:
        return narrow
    from devkernels.device._intrinsics import data_pointer, misaligned

    unsigned, axis, bits = np.uint64, contiguous, np.uint64(alignment - 1)

    def load(x, row, column, tile):
        start = unsigned(row * x.strides[0] + column * x.strides[1])
        step = unsigned(x.strides[1 - axis])
        outside = row + rows > x.shape[0] or column + columns > x.shape[1] or row < 0 or column < 0
        source, sink = data_pointer(x), data_pointer(tile)
        if outside or ((start | step) & bits) != 0 or misaligned(source, alignment) or misaligned(sink, alignment):
            narrow(x, row, column, tile)
        else:
            copy(x, start, tile)

    return device_function(load)
