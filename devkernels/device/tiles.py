"""Moving a tile of a global matrix to shared memory and back: masked, transposed, 16 bytes at a time where possible.

In: a `TileLayout`, and the axis along which the global array is contiguous, if its type says so. Out: functions
``move(x, row, column, tile)`` that all threads of a block call; plain Python, the same on a GPU and in the simulator,
but for the 16-byte accesses and asynchronous copies, which only compiled kernels have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.device.tile_layout import WORD, TileLayout
from devkernels.lazy import cuda
from devkernels.target import simulating

Block = tuple[int, int, int] | None


def axis_of(array) -> int | None:
    """Axis along which an array (or Numba's type of one) is contiguous: 1, 0, or None if only its strides tell."""
    if hasattr(array, "layout"):
        return {"C": 1, "F": 0}.get(array.layout)
    return 1 if array.flags.c_contiguous else 0 if array.flags.f_contiguous else None


def _thread_index(block_dim: Block) -> Callable:
    """Function that gives the thread's number in its block."""
    if block_dim is None:

        def number():
            return cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)

        return device_function(number)
    x, y, z = block_dim
    if y == z == 1:
        return device_function(lambda: cuda.threadIdx.x)
    return device_function(lambda: cuda.threadIdx.x + x * (cuda.threadIdx.y + y * cuda.threadIdx.z))


def _thread_count(block_dim: Block) -> Callable:
    """Function that gives the number of threads in the block."""
    if block_dim is None:
        return device_function(lambda: cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z)
    count = block_dim[0] * block_dim[1] * block_dim[2]
    return device_function(lambda: count)


def make_index(layout: TileLayout) -> Callable:
    """Return ``index(i, j)``: where element (i, j) of the tile lies."""
    pitch, along, swizzle, lanes = layout.leading_dimension, layout.along_rows, layout.swizzle, WORD // layout.item
    row_step, column_step = (pitch, 1) if along else (1, pitch)
    if not swizzle:
        return device_function(lambda i, j: i * row_step + j * column_step)
    place = make_place(layout)

    def index(i, j):
        line, element = (i, j) if along else (j, i)
        piece = element // lanes
        return line * pitch + place(line, piece) * lanes + (element - piece * lanes)

    return device_function(index)


def make_place(layout: TileLayout) -> Callable:
    """Return ``place(line, piece)``: which 16 bytes of a line hold piece number `piece`."""
    shift, mask = {128: (0, 7), 64: (1, 3), 32: (2, 1)}.get(layout.swizzle, (0, 0))
    if not mask:
        return device_function(lambda line, piece: piece)
    return device_function(lambda line, piece: piece ^ ((line >> shift) & mask))


def make_load(layout: TileLayout, contiguous: int | None) -> Callable:
    """Return ``load(x, row, column, tile)``: tile = x[row : row + rows, column : column + columns], zero outside x.

    The threads must synchronise before the tile is read.
    """
    return _make(layout, contiguous, False)


def make_store(layout: TileLayout, contiguous: int | None) -> Callable:
    """Return ``store(y, row, column, tile)``, the counterpart of `make_load`; what lies outside y is not stored."""
    return _make(layout, contiguous, True)


def _one_by_one(layout: TileLayout, by_rows: bool, index: Callable, store: bool) -> Callable:
    """``move(x, row, column, tile)`` by elements, with a mask; element (i, j) lies at ``index(tile, i, j)``."""
    line, count = layout.columns if by_rows else layout.rows, layout.rows * layout.columns
    thread_index, thread_count = _thread_index(layout.block_dim), _thread_count(layout.block_dim)

    def narrow(x, row, column, tile):
        for e in range(thread_index(), count, thread_count()):
            outer, inner = e // line, e % line
            i, j = (outer, inner) if by_rows else (inner, outer)
            r, c = row + i, column + j
            inside = r >= 0 and c >= 0 and r < x.shape[0] and c < x.shape[1]
            place = index(tile, i, j)
            if store:
                if inside:
                    x[r, c] = tile[place]
            elif inside:
                tile[place] = x[r, c]
            else:
                tile[place] = 0

    return device_function(narrow)


def _plain(layout: TileLayout, contiguous: int | None, store: bool) -> Callable:
    """By elements; neighbouring threads follow the global array's contiguous axis, whatever the tile's order."""
    place = make_index(layout)
    index = device_function(lambda tile, i, j: place(i, j))
    by_rows = contiguous == 1 if contiguous is not None else layout.along_rows
    return _one_by_one(layout, by_rows, index, store)


def _whole_words(layout: TileLayout) -> bool:
    """Whether lines of the tile are pieces of 16 bytes, on multiples of 16 bytes."""
    lanes = WORD // layout.item
    return layout.lines[1] % lanes == 0 and layout.leading_dimension % lanes == 0


def _make(layout: TileLayout, contiguous: int | None, store: bool) -> Callable:
    narrow = _plain(layout, contiguous, store)
    wide_axis = 1 if layout.along_rows else 0
    if simulating() or contiguous == 1 - wide_axis or not _whole_words(layout):
        return narrow
    return _wide(narrow, layout, store)


def _wide(narrow: Callable, layout: TileLayout, store: bool) -> Callable:
    """By 16 bytes where the array lies along the tile's lines, on multiples of 16 bytes: a test of the whole block.

    Pieces that the array's edge cuts through go by elements; pieces outside are zero, or not stored.
    """
    from devkernels.device._intrinsics import data_pointer, make_copy, misaligned

    copy, place, unsigned = make_copy(WORD), make_place(layout), np.uint64
    thread_index, thread_count = _thread_index(layout.block_dim), _thread_count(layout.block_dim)
    (lines, length), item, pitch = layout.lines, layout.item, layout.leading_dimension
    axis, lanes = 1 if layout.along_rows else 0, WORD // layout.item
    words, total, line_bytes = length // lanes, lines * (length // lanes), pitch * item

    def move(x, row, column, tile):
        start = unsigned(row * x.strides[0] + column * x.strides[1])
        step = unsigned(x.strides[1 - axis])
        first_line, first = (row, column) if axis == 1 else (column, row)
        source, sink = data_pointer(x), data_pointer(tile)
        odd = x.strides[axis] != item or ((start | step) & unsigned(15)) != 0 or first_line < 0 or first < 0
        if odd or misaligned(source, 16) or misaligned(sink, 16):
            narrow(x, row, column, tile)
        else:
            last_line, last = x.shape[1 - axis] - first_line, x.shape[axis] - first
            for e in range(unsigned(thread_index()), unsigned(total), unsigned(thread_count())):
                one = e // unsigned(words)
                piece = e - one * unsigned(words)
                there = start + one * step + piece * unsigned(WORD)
                own = place(one, piece)
                here = one * unsigned(line_bytes) + own * unsigned(WORD)
                begin = np.int64(piece) * lanes
                if np.int64(one) < last_line and begin + lanes <= last:
                    if store:
                        copy(source, there, sink, here)
                    else:
                        copy(sink, here, source, there)
                else:
                    at = np.int64(one) * pitch + np.int64(own) * lanes
                    for t in range(lanes):
                        inside = np.int64(one) < last_line and begin + t < last
                        far, near = first_line + np.int64(one), first + begin + t
                        r, c = (far, near) if axis == 1 else (near, far)
                        if store:
                            if inside:
                                x[r, c] = tile[at + t]
                        elif inside:
                            tile[at + t] = x[r, c]
                        else:
                            tile[at + t] = 0

    return device_function(move)


def make_load_async(layout: TileLayout, contiguous: int | None) -> Callable:
    """As `make_load`, by asynchronous copies where there are such, which make one group; see `make_wait`."""
    narrow = _plain(layout, contiguous, False)
    if simulating():
        return narrow
    from devkernels.device._intrinsics import data_pointer, make_copy_async, misaligned
    from devkernels.matrix.staged_copies import commit_copies

    place, unsigned = make_place(layout), np.uint64
    thread_index, thread_count = _thread_index(layout.block_dim), _thread_count(layout.block_dim)
    axis = 1 if layout.along_rows else 0
    wide = contiguous != 1 - axis and _whole_words(layout)
    item, pitch, (lines, length) = layout.item, layout.leading_dimension, layout.lines
    lanes = WORD // item if wide else 1
    words, total, piece_bytes = length // lanes, lines * (length // lanes), lanes * item
    if not wide and item not in (4, 8, 16):

        def by_elements(x, row, column, tile):
            narrow(x, row, column, tile)
            commit_copies()

        return device_function(by_elements)
    copy, index = make_copy_async(piece_bytes), make_index(layout)

    def load(x, row, column, tile):
        first_line, first = (row, column) if axis == 1 else (column, row)
        source, sink = data_pointer(x), data_pointer(tile)
        start = unsigned(row * x.strides[0] + column * x.strides[1])
        step, unit = unsigned(x.strides[1 - axis]), unsigned(x.strides[axis])
        odd = first_line < 0 or first < 0 or misaligned(sink, piece_bytes) or misaligned(source, piece_bytes)
        if wide:
            odd = odd or unit != unsigned(item)
        odd = odd or ((start | step) & unsigned(piece_bytes - 1)) != 0
        if odd:
            narrow(x, row, column, tile)
        else:
            last_line, last = x.shape[1 - axis] - first_line, x.shape[axis] - first
            for e in range(unsigned(thread_index()), unsigned(total), unsigned(thread_count())):
                one = e // unsigned(words)
                piece = e - one * unsigned(words)
                begin = np.int64(piece) * lanes
                count = min(max(last - begin, np.int64(0)), np.int64(lanes))
                if np.int64(one) >= last_line:
                    count = np.int64(0)
                there = start + one * step + unsigned(begin) * unit
                if wide:
                    here = one * unsigned(pitch * item) + place(one, piece) * unsigned(WORD)
                else:
                    i, j = (one, piece) if axis == 1 else (piece, one)
                    here = unsigned(index(i, j)) * unsigned(item)
                copy(sink, here, source, there if count > 0 else unsigned(0), count * item)
        commit_copies()

    return device_function(load)


def make_wait(groups: int) -> Callable:
    """Return ``wait()``: until at most so many of a thread's newest groups of copies are on their way."""
    if simulating():
        return device_function(lambda: None)
    from devkernels.matrix import staged_copies

    return staged_copies.make_wait(groups)


def make_placed(layout: TileLayout, index: Callable, copy: Callable | None, contiguous: int | None, store: bool,
                alignment: int | None = None) -> Callable:  # fmt: skip
    """As `make_load` and `make_store`, for a tile whose element (i, j) lies at ``index(tile, i, j)``.

    Of `layout` only the shape counts. ``copy(x, start, tile)``, if there is one, loads a tile that lies inside the
    array, `start` bytes from its first element, and on multiples of `alignment` bytes.
    """
    narrow = _one_by_one(layout, contiguous != 0, index, store)
    if copy is None:
        return narrow
    from devkernels.device._intrinsics import data_pointer, misaligned

    unsigned, axis, bits = np.uint64, contiguous, np.uint64(alignment - 1)
    rows, columns = layout.shape

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
