"""Which main loop a product takes, and why: decided from dtypes, orders, alignment and architecture.

In: a `GemmSpec` and what is known of the arrays. Out: a `Route`. Nothing is compiled or launched here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from devkernels import target
from devkernels.kernels.arrays import Described
from devkernels.matrix import packed, small, staged
from devkernels.matrix.steps import Step

WARPGROUP, TENSOR, STAGED, SMALL, PORTABLE = "warpgroup", "tensor", "staged", "small", "portable"
_MANY = 16  # products from which on small ones get a warp, or a row a thread
TENSOR_DTYPES = {"float16": "f16", "bfloat16": "bf16"}
STORED_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}  # what the warpgroup path can store
# In what products of a dtype are added up, if nothing else is said.
ACCUMULATE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64",
               "complex64": "complex64", "complex128": "complex128", "int8": "int32", "uint8": "int32",
               "int16": "int64", "int32": "int64", "int64": "int64"}  # fmt: skip
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "int8": 1,
              "uint8": 1, "int16": 2, "int32": 4, "int64": 8}  # fmt: skip
_WORTH_LINES = 2560  # and from which on one is worth a copy to whole lines of the L2 cache
_WORTH = 256  # sides from which on a product is worth a copy of a misaligned operand
_MAX_LENGTH = 2**31 - 512


@dataclass(frozen=True)
class GemmSpec:
    """What a `Gemm` was made for."""

    a_dtype: str
    b_dtype: str
    out_dtype: str
    accumulate: str
    steps: tuple[Step, ...]
    prologue_a: Callable | None = None
    prologue_b: Callable | None = None
    tf32: int = 0  # float32 is multiplied with ten bits after the point: in one product, or three; 0: as it is

    @property
    def kind(self) -> str | None:
        """What warpgroup products would multiply, as PTX names it; None if they have no such numbers."""
        if self.a_dtype != self.b_dtype:
            return None
        if self.tf32 == 1 and self.a_dtype == self.accumulate == "float32":
            return "tf32"
        if self.a_dtype == "int8" and (self.accumulate == "float32" or self.whole):
            return "s8"
        return TENSOR_DTYPES.get(self.a_dtype) if self.accumulate == "float32" else None

    @property
    def whole(self) -> bool:
        """Whether sums in int32 are the result as they are."""
        return self.accumulate == self.out_dtype == "int32" and not self.steps


class Matrix(NamedTuple):
    """One operand as (batch, rows, columns); strides in bytes. A batch stride of 0 repeats one matrix."""

    batch: int
    rows: int
    columns: int
    strides: tuple[int, int, int]
    pointer: int
    itemsize: int
    dtype: str

    @property
    def along_rows(self) -> bool | None:
        """True in row order, False in column order, None if neither axis is contiguous."""
        _, down, across = self.strides
        if self.columns == 1 and self.rows > 1 and down == self.itemsize:
            return False
        if across == self.itemsize or self.columns == 1:
            return True
        return False if down == self.itemsize or self.rows == 1 else None

    @property
    def pitch(self) -> int:
        """Bytes between consecutive rows (row order) or columns."""
        down, across = self.strides[1:]
        lines, stride = (self.rows, down) if self.along_rows else (self.columns, across)
        length = self.columns if self.along_rows else self.rows
        return stride if lines > 1 else -(-length * self.itemsize // 16) * 16

    def aligned(self, to: int = 16) -> bool:
        """Whether address and strides are multiples of `to` bytes."""
        batch = self.strides[0] if self.batch > 1 else 0
        return self.pointer % to == 0 and self.pitch % to == 0 and batch % to == 0


def as_matrix(seen: Described) -> Matrix:
    """Axes of an array with two or three of them."""
    shape, strides = seen.shape, seen.strides
    if len(shape) == 2:
        shape, strides = (1, *shape), (0, *strides)
    return Matrix(*shape, tuple(strides), seen.pointer, seen.itemsize, seen.dtype)


@dataclass(frozen=True)
class Route:
    """The path that a product takes and the reason, in words."""

    path: str
    reason: str
    copied: tuple[bool, bool] = (False, False)  # whether a and b are copied first
    plain: GemmSpec | None = None  # the product of operands that are converted, or go through their prologues, first

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def plain_spec(spec: GemmSpec) -> GemmSpec:
    """The product of what prologues and conversions would make of the operands.

    Its operands have the dtype in which the sums are, and 16-bit floats keep theirs, for the tensor cores.
    """
    half = spec.a_dtype == spec.b_dtype and spec.a_dtype in TENSOR_DTYPES and spec.accumulate == "float32"
    dtype = spec.a_dtype if half else spec.accumulate
    return replace(spec, a_dtype=dtype, b_dtype=dtype, prologue_a=None, prologue_b=None)


def by_kind(spec: GemmSpec, architecture: target.Target) -> Route:
    """What dtypes, prologues and architecture allow."""
    if target.simulating():
        return Route(PORTABLE, "the simulator runs Python; it has no tensor cores")
    route, plain = _as_they_are(spec, architecture), plain_spec(spec)
    if route.path != PORTABLE or plain == spec or spec.accumulate.startswith("int"):
        return route
    other = _as_they_are(plain, architecture)
    if other.path == PORTABLE:
        return route
    return Route(other.path, f"{_made(spec, plain)} first ({route.reason}); {other.reason}", plain=plain)


def _made(spec: GemmSpec, plain: GemmSpec) -> str:
    """What is done to the operands, in words."""
    told = []
    for name, have, want, prologue in (("a", spec.a_dtype, plain.a_dtype, spec.prologue_a),
                                       ("b", spec.b_dtype, plain.b_dtype, spec.prologue_b)):  # fmt: skip
        if prologue is not None:
            told.append(f"{name} is copied through its prologue, as {want}")
        elif have != want:
            told.append(f"{name} is copied as {want}")
    return ", ".join(told)


def _as_they_are(spec: GemmSpec, architecture: target.Target) -> Route:
    """The same for operands that nothing is done to."""
    plain = spec.prologue_a is None and spec.prologue_b is None and (spec.out_dtype in STORED_BYTES or spec.whole)
    if spec.kind in ("tf32", "s8") and architecture.major == 9 and plain:
        return Route(WARPGROUP, f"{_NAMES[spec.kind]} on {architecture}: tensor copies and warpgroup products")
    return _without_warpgroups(spec, architecture)


_NAMES = {"f16": "float16", "bf16": "bfloat16", "tf32": "float32 as tf32", "s8": "int8"}


def _without_warpgroups(spec: GemmSpec, architecture: target.Target) -> Route:
    """What else tf32 and int8 may take, and what all other dtypes take."""
    if spec.a_dtype == spec.b_dtype and spec.a_dtype in staged.DTYPES:
        return _staged(spec, architecture)
    if spec.a_dtype == "int8" and spec.kind is None:
        return Route(PORTABLE, "tensor cores add int8 up in int32, which is the result as it is, or becomes float32 "
                               "(accumulate='float32')")  # fmt: skip
    if spec.a_dtype != spec.b_dtype or spec.a_dtype not in TENSOR_DTYPES:
        return Route(
            PORTABLE, f"tensor cores are used for float16 and bfloat16, not for {spec.a_dtype} by {spec.b_dtype}"
        )
    if spec.accumulate != "float32":
        return Route(PORTABLE, f"tensor cores add up in float32, not {spec.accumulate}")
    if spec.prologue_a is not None or spec.prologue_b is not None:
        return Route(PORTABLE, "operands go straight to the tensor cores, past any prologue")
    if spec.out_dtype not in STORED_BYTES:
        return Route(PORTABLE, f"the tensor-core paths store {', '.join(STORED_BYTES)}, not {spec.out_dtype}")
    if architecture.major < 8:
        return Route(PORTABLE, f"its tensor-core products exist from sm_80 on, and this is {architecture}")
    if architecture.major != 9:
        return Route(TENSOR, f"warpgroup products exist on sm_90 only, and this is {architecture}")
    return Route(WARPGROUP, f"{spec.a_dtype} on {architecture}: tensor copies and warpgroup products")


def _staged(spec: GemmSpec, architecture: target.Target) -> Route:
    dtype = spec.a_dtype
    if spec.accumulate != dtype:
        return Route(PORTABLE, f"products of {dtype} are added up in {dtype} elsewhere, not in {spec.accumulate}")
    if spec.prologue_a is not None or spec.prologue_b is not None:
        return Route(PORTABLE, "operands are copied into shared memory as they are, past any prologue")
    stored = STORED_BYTES if dtype == "float32" else (dtype,)
    if spec.out_dtype not in stored:
        return Route(PORTABLE, f"sums in {dtype} are stored as {', '.join(stored)} elsewhere, not as {spec.out_dtype}")
    if architecture.major < 8:
        return Route(PORTABLE, f"asynchronous copies exist from sm_80 on, and this is {architecture}")
    how = "fused multiply-adds"
    if dtype in ("float64", "complex128"):
        how = "tensor cores in double precision"
    elif spec.tf32 == 3:
        how = "three products of tf32 for each, on tensor cores"
    return Route(STAGED, f"{dtype} on {architecture}: slices are copied ahead into shared memory; {how}")


def small_tiling(
    spec: GemmSpec, a: Matrix, b: Matrix, d: Matrix, has_c: bool, architecture: target.Target
) -> small.SmallTiling | packed.PackedTiling | None:
    """How small products are cut, or None if they are none, or do not lie as such main loops need."""
    if target.simulating() or d.batch < _MANY or spec.prologue_a is not None or spec.prologue_b is not None:
        return None
    sizes = d.rows, d.columns, a.columns
    one = spec.a_dtype == spec.b_dtype == spec.accumulate and packed.suits(*sizes, spec.a_dtype, spec.out_dtype)
    if one and architecture.major >= 8 and all(x.along_rows is not None and x.aligned() for x in (a, b)):
        return _packed(spec, a, b, d, has_c)
    if has_c or not small.suits(*sizes, spec.a_dtype, spec.b_dtype, spec.out_dtype, spec.accumulate):
        return None
    for x in (a, b, d):
        row = x.columns * x.itemsize
        dense = (
            (x.columns == 1 or x.strides[2] == x.itemsize)
            and (x.rows == 1 or x.strides[1] == row)
            and (x.batch == 1 or x.strides[0] == x.rows * row)
        )
        if not dense or x.pointer % 16:
            return None
    return small.SmallTiling(*sizes, spec.a_dtype, spec.b_dtype, spec.out_dtype, spec.accumulate, a.batch > 1,
                             b.batch > 1)  # fmt: skip


def _packed(spec: GemmSpec, a: Matrix, b: Matrix, d: Matrix, has_c: bool) -> packed.PackedTiling:
    tiling = packed.PackedTiling(
        d.rows, d.columns, a.columns, spec.a_dtype, spec.out_dtype, a.along_rows is True, b.along_rows is False, has_c
    )
    run = tiling.run * d.itemsize
    return replace(tiling, d_wide=d.along_rows is True and run % 4 == 0 and d.aligned(min(16, run)))


def by_shape(
    spec: GemmSpec, architecture: target.Target, a: Matrix, b: Matrix, d: Matrix, c_dtype: str | None = None
) -> Route:
    """The same for given operands, and a c of this dtype if one is read."""
    kind = by_kind(spec, architecture)
    if kind.plain is not None and max(d.rows, d.columns, a.columns) <= _MAX_LENGTH:
        from devkernels.kernels.gemm_aligned import converting

        copies = converting(spec, kind.plain)
        a, b = (x if copy is None else copy.placed(x) for x, copy in zip((a, b), copies, strict=True))
        route = by_shape(kind.plain, architecture, a, b, d, c_dtype)
        return Route(route.path, f"{kind.reason.split(';')[0]}; {route.reason}", plain=kind.plain)
    tiling = small_tiling(spec, a, b, d, c_dtype is not None, architecture)
    if tiling is not None and not (spec.accumulate != "float32" and c_dtype in TENSOR_DTYPES):
        if isinstance(tiling, packed.PackedTiling):
            how = f"{tiling.threads_each} threads each, {tiling.count} in the shared memory of a block"
        else:
            how = "a warp each, on tensor cores" if tiling.in_warps else "a thread for each row"
        return Route(SMALL, f"{d.batch} products of {d.rows} x {d.columns} x {a.columns}: {how}")
    route = kind
    if max(d.rows, d.columns, a.columns) > _MAX_LENGTH:
        return Route(PORTABLE, "an axis is longer than 2**31 - 512")
    if route.path == STAGED and spec.accumulate != "float32" and c_dtype in TENSOR_DTYPES:
        return Route(PORTABLE, f"c of {c_dtype} beside sums in {spec.accumulate}")
    if route.path == STAGED:
        found = [(name, _misfit(name, x, None)) for name, x in (("a", a), ("b", b))]
        return _with_copies(route, found, d, a.columns) or route
    if route.path != WARPGROUP:
        return route
    if c_dtype is not None and spec.whole:
        return Route(PORTABLE, "warpgroup products of int8 leave no room for c beside sums in int32")
    only = {"a": True, "b": False} if spec.kind in ("tf32", "s8") else {}  # the orders that such products can read
    found = [(name, _backwards(name, x) or _misfit(name, x, only.get(name))) for name, x in (("a", a), ("b", b))]
    if not any(why for _, why in found):
        if route.path != WARPGROUP or min(d.rows, d.columns, a.columns) < _WORTH_LINES:
            return route
        found = [(name, _across(name, x)) for name, x in (("a", a), ("b", b))]
        return _with_copies(route, found, d, a.columns) or route
    if (copies := _with_copies(route, found, d, a.columns)) is not None:
        return copies
    reason = next(why for _, why in found if why is not None)
    other = _without_warpgroups(spec, architecture) if only else Route(TENSOR, reason)
    return Route(other.path, f"{reason}; {other.reason}" if only else reason)


def _with_copies(route: Route, found: list[tuple[str, str | None]], d: Matrix, inner: int) -> Route | None:
    """The route with copies of what does not fit it, if that is worth it for a product of this size."""
    copied = tuple(why is not None for _, why in found)
    if not any(copied) or min(d.rows, d.columns) < _WORTH or d.rows * d.columns * inner < _WORTH**3:
        return None
    reason = next(why for _, why in found if why is not None)
    names = " and ".join(name for (name, _), copy in zip(found, copied, strict=True) if copy)
    return Route(route.path, f"{route.reason}; {names} copied to aligned memory first: {reason}", copied)


def _backwards(name: str, x: Matrix) -> str | None:
    """Why a tensor map cannot describe a matrix whose addresses do not grow; None if they do."""
    lines = x.rows if x.along_rows else x.columns
    if x.along_rows is None or lines == 1 or x.pitch > 0:
        return f"batches of {name} follow one another backwards" if x.batch > 1 and x.strides[0] < 0 else None
    return f"the {'rows' if x.along_rows else 'columns'} of {name} follow one another backwards, or not at all " \
           f"({x.pitch} bytes)"  # fmt: skip


def _across(name: str, x: Matrix) -> str | None:
    """Why each line of a matrix takes the copy unit two lines of the cache; None if it does not."""
    if x.aligned(128):
        return None
    return f"lines of {name}, {x.pitch} bytes apart, lie across those of the L2 cache"


def _misfit(name: str, x: Matrix, rows: bool | None) -> str | None:
    """Why tensor copies cannot read a matrix, in row or column order if it must be so; None if they can."""
    if rows is not None and x.along_rows is not rows:
        return f"such products read {name} in {'row' if rows else 'column'} order only"
    if x.along_rows is None:
        return f"neither axis of {name} is contiguous (strides {x.strides[1:]} bytes)"
    if x.aligned():
        return None
    return (
        f"wide copies need multiples of 16 bytes; {name} begins at {x.pointer % 16} mod 16 and its "
        f"{'rows' if x.along_rows else 'columns'} are {x.pitch} bytes apart"
    )
