"""How a tile of a matrix lies in shared memory: order, padding, swizzle; and the factory `tile_layout`.

In: keywords. Out: a frozen `TileLayout`, which `load_tile` and its kin (device/collectives.py) take in kernels. Nothing
of CUDA is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from devkernels.checks import one_of, whole_number
from devkernels.errors import SpecError

WORD = 16  # bytes of the widest access, and of what a swizzle moves
ORDERS = ("row_major", "col_major")
SWIZZLES = (128, 64, 32)  # bytes of the lines that are swizzled


@dataclass(frozen=True)
class TileLayout:
    """Shape, dtype and places of a tile in shared memory; made by `devkernels.tile_layout`, which documents it."""

    rows: int
    columns: int
    dtype_name: str
    order: str
    leading_dimension: int
    swizzle: int = 0
    block_dim: tuple[int, int, int] | None = None

    @property
    def spec(self) -> tuple:
        """All that makes this layout what it is."""
        return (self.rows, self.columns, self.dtype_name, self.order, self.leading_dimension, self.swizzle,
                self.block_dim)  # fmt: skip

    @property
    def _numba_type_(self):
        """Numba asks for this when it meets the layout in a kernel; only then is its CUDA target imported."""
        from devkernels.device import numba_tiles

        return numba_tiles.TileLayoutType(self)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements."""
        return np.dtype(self.dtype_name)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def along_rows(self) -> bool:
        """Whether the elements of a row lie together."""
        return self.order == "row_major"

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def lines(self) -> tuple[int, int]:
        """Lines of the tile (rows, or columns in column order), and elements of a line."""
        return self.shape if self.along_rows else self.shape[::-1]

    @property
    def size(self) -> int:
        """Elements of shared memory that the tile takes, gaps included."""
        return self.lines[0] * self.leading_dimension

    @property
    def bytes(self) -> int:
        """The same in bytes."""
        return self.size * self.item

    def index(self, i: int, j: int) -> int:
        """Where element (i, j) lies in the tile's flat array; inside kernels too."""
        line, element = (i, j) if self.along_rows else (j, i)
        lanes = WORD // self.item
        piece = _swizzled(self.swizzle, line, element // lanes) if self.swizzle else element // lanes
        return line * self.leading_dimension + piece * lanes + element % lanes


def _swizzled(swizzle: int, line: int, piece: int) -> int:
    """Which 16 bytes of a line hold piece number `piece`: as the tensor copies of sm_90 swizzle."""
    if swizzle == 128:
        return piece ^ (line & 7)
    if swizzle == 64:
        return piece ^ ((line >> 1) & 3)
    return piece ^ ((line >> 2) & 1)


def tile_layout(
    shape: tuple[int, int],
    dtype: object,
    *,
    order: str = "row_major",
    leading_dimension: object = None,
    swizzle: object = False,
    block_dim: object = None,
) -> TileLayout:
    """Describe a tile of a matrix in shared memory, for `load_tile`, `store_tile` and `load_tile_async`.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns of the tile.
    dtype : dtype
        Of its elements: NumPy's integers, floats and complex numbers of 1 to 16 bytes.
    order : {'row_major', 'col_major'}
        Whether rows or columns lie together in shared memory, whatever the order of the matrix: a tile is transposed
        on the way if they differ.
    leading_dimension : int or 'padded', optional
        Elements from one row (column, in column order) to the next. Left out: no gaps. ``"padded"``: the least odd
        multiple of 16 bytes, with which 16 bytes of eight consecutive rows lie in different banks.
    swizzle : bool, or one of 128, 64, 32
        Exchange the pieces of 16 bytes within lines of so many bytes, such that reads down a column meet no bank twice
        and no memory is lost; the pattern is that of the tensor copies and warpgroup products of sm_90. True: the
        widest that the leading dimension allows. Element (i, j) is then at ``layout.index(i, j)``.
    block_dim : int or tuple of int, optional
        Threads of the blocks that will call, if that is known: divisions by constants are cheaper. Left out: the
        kernel's own.

    Returns
    -------
    TileLayout
        With `shape`, `rows`, `columns`, `dtype`, `order`, `leading_dimension`, `swizzle`, `size` (elements of shared
        memory), `bytes`, and ``index(i, j)``. Hashable, and a constant inside kernels.

    Raises
    ------
    SpecError
        An argument is invalid alone or with the others.

    Examples
    --------
    >>> layout = devkernels.tile_layout((64, 32), np.float32, order="col_major", leading_dimension="padded")
    >>> layout.leading_dimension
    68
    """
    given = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if len(given) != 2:
        raise SpecError(f"shape={shape!r} must be two numbers: rows and columns.")
    rows, columns = (whole_number(one, "shape") for one in given)
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise SpecError(f"dtype={dtype!r} is not a dtype of NumPy's.") from None
    if kind.kind not in "iufc" or kind.itemsize > WORD:
        raise SpecError(f"dtype={dtype!r} is not supported; use integers, floats or complex numbers of 1 to 16 bytes.")
    order = one_of(order, "order", ORDERS)
    length = columns if order == "row_major" else rows
    if isinstance(leading_dimension, str):
        one_of(leading_dimension, "leading_dimension", ("padded",))
        chosen = (-(-length * kind.itemsize // WORD) | 1) * WORD // kind.itemsize
    else:
        chosen = length if leading_dimension is None else whole_number(leading_dimension, "leading_dimension", length)
    if block_dim is not None:
        given = tuple(block_dim) if isinstance(block_dim, (tuple, list)) else (block_dim,)
        if len(given) > 3:
            raise SpecError(f"block_dim={block_dim!r} must be up to three numbers: x, y and z.")
        block_dim = tuple(whole_number(one, "block_dim") for one in (*given, 1, 1)[:3])
    return TileLayout(rows, columns, kind.name, order, chosen, _swizzle(swizzle, chosen * kind.itemsize), block_dim)


def _swizzle(wanted: object, pitch: int) -> int:
    """Bytes of the lines that are swizzled, 0 for none; `pitch` is the leading dimension in bytes."""
    if wanted is False or wanted is None:
        return 0
    if wanted is not True and wanted not in SWIZZLES:
        raise SpecError(f"swizzle={wanted!r} must be False, True, or one of {', '.join(map(str, SWIZZLES))}.")
    fitting = [width for width in (SWIZZLES if wanted is True else (int(wanted),)) if pitch % width == 0]
    if not fitting:
        raise SpecError(
            f"swizzle={wanted!r} needs a leading dimension of a multiple of {32 if wanted is True else wanted} bytes; "
            f"it is {pitch} bytes."
        )
    return fitting[0]
