"""Products on shared memory in NumPy, for Numba's CUDA simulator.

In: a `DeviceMatmul` and the arrays of one simulated thread. Out: the same data as on a GPU, in the same places. As on a
GPU, the kernel synchronises its threads before a product reads shared memory and before its result is read.
"""

from __future__ import annotations

import numpy as np

from devkernels.device import tiles
from devkernels.device.simulated import thread_here
from devkernels.errors import ArgumentError, ArgumentTypeError


def _number(mm) -> int:
    """The calling thread's number in its block."""
    own, (x, y, _) = thread_here().threadIdx, mm.block_dim
    return own.x + x * (own.y + y * own.z)


def _check_dtype(mm, array, which: int, name: str) -> np.ndarray:
    array, wanted = np.asarray(array), np.dtype(mm.spec.value_types[which])
    if array.dtype != wanted:
        raise ArgumentTypeError(
            f"{name} of the {mm.spec} has dtype {array.dtype}; make it with cuda.shared.array and "
            f"dtype=mm.{'abc'[which]}_value_type, which is {wanted}.",
            spec=mm.spec,
        )
    return array


def _matrix(mm, array, which: int, leading_dimension: int) -> np.ndarray:
    """View of a flat array in shared memory as the matrix op(a), op(b) or c; conjugation is the caller's."""
    name, spec = "abc"[which], mm.spec
    flat = _check_dtype(mm, array, which, name).reshape(-1)
    rows, columns = spec.shapes[which]
    along_rows = spec.row_order[which]
    lines, length = (rows, columns) if along_rows else (columns, rows)
    needed = (lines - 1) * leading_dimension + length
    if flat.size < needed:
        raise ArgumentError(f"{name} of the {spec} has {flat.size} elements; it needs {needed}.", spec=spec)
    item = flat.dtype.itemsize
    strides = (leading_dimension * item, item) if along_rows else (item, leading_dimension * item)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), strides)


def _operands(mm, a, b, lda: int, ldb: int) -> tuple[np.ndarray, np.ndarray]:
    """op(a) and op(b), wide enough to add up as the library does."""
    found = []
    for which, (array, ld) in enumerate(((a, lda), (b, ldb))):
        matrix = _matrix(mm, array, which, ld)
        if mm.spec.conjugated[which]:
            matrix = matrix.conj()
        found.append(matrix.astype(_wide(mm)))
    return tuple(found)


def _wide(mm) -> np.dtype:
    kind = np.dtype(mm.spec.value_types[2])
    return kind if kind.kind in "iu" else np.result_type(kind, np.float32)


def _store(values: np.ndarray, sink: np.ndarray) -> None:
    with np.errstate(all="ignore"):  # overflow passes silently on a GPU
        sink[...] = values.astype(sink.dtype)


def call(mm, *arguments) -> None:
    """Run ``mm(...)``; see devkernels.matmul for the forms."""
    if mm.spec.with_pipeline:
        raise ArgumentError(
            f"the {mm.spec} multiplies through mm.suggest_device_pipeline(depth, a, b) only.", spec=mm.spec
        )
    if len(arguments) != 3 and mm.spec.layout != "plain":
        raise ArgumentError(
            f"the {mm.spec} has suggested layouts of a and b, which go with mm(a, b, accumulator) only.", spec=mm.spec
        )
    if len(arguments) == 3:
        _accumulate(mm, *arguments)
    elif len(arguments) == 5:
        alpha, a, b, beta, c = arguments
        _multiply(mm, alpha, a, b, beta, c, mm.spec.leading_dimension)
    elif len(arguments) == 8:
        alpha, a, lda, b, ldb, beta, c, ldc = arguments
        _multiply(mm, alpha, a, b, beta, c, (int(lda), int(ldb), int(ldc)))
    else:
        raise ArgumentError(
            "a product takes mm(alpha, a, b, beta, c), mm(alpha, a, lda, b, ldb, beta, c, ldc) or "
            f"mm(a, b, accumulator); got {len(arguments)} arguments.",
            spec=mm.spec,
        )


def _multiply(mm, alpha, a, b, beta, c, leading_dimension) -> None:
    lda, ldb, ldc = leading_dimension
    left, right = _operands(mm, a, b, lda, ldb)
    sink = _matrix(mm, c, 2, ldc)
    if _number(mm) != 0:  # one thread does the work of all; the others wait at the kernel's own barrier
        return
    kind = left.dtype.type
    with np.errstate(all="ignore"):
        result = kind(alpha) * (left @ right)
        if beta != 0:
            result = result + kind(beta) * sink.astype(left.dtype)
    _store(result, sink)


def position(mm, i: int) -> tuple[int, int]:
    """See DeviceMatmul.position."""
    element = _number(mm) + i * mm.spec.threads
    return divmod(element, mm.spec.size[1])


def holds(mm, i: int) -> bool:
    """See DeviceMatmul.holds."""
    m, n, _ = mm.spec.size
    return _number(mm) < mm.spec.threads and _number(mm) + i * mm.spec.threads < m * n


def _accumulate(mm, a, b, accumulator) -> None:
    left, right = _operands(mm, a, b, *mm.spec.leading_dimension[:2])
    _check_dtype(mm, accumulator, 2, "the accumulator")
    for i in range(mm.accumulator_size):
        if holds(mm, i):
            row, column = position(mm, i)
            with np.errstate(all="ignore"):
                accumulator[i] = (accumulator[i] + left[row] @ right[:, column]).astype(accumulator.dtype)


def accumulate_matrices(mm, a, b, row: int, column: int, accumulator) -> None:
    """Add the whole tile number (row, column) of a @ b to an accumulator; see DevicePipeline."""
    _check_dtype(mm, accumulator, 2, "the accumulator")
    m, n, _ = mm.spec.size
    left, right = (x.conj() if conjugated else x for x, conjugated in zip((a, b), mm.spec.conjugated, strict=True))
    for i in range(mm.accumulator_size):
        if not holds(mm, i):
            continue
        r, c = position(mm, i)
        r, c = row * m + r, column * n + c
        if r < left.shape[0] and c < right.shape[1]:
            with np.errstate(all="ignore"):
                found = left[r].astype(_wide(mm)) @ right[:, c].astype(_wide(mm))
                accumulator[i] = (accumulator[i] + found).astype(accumulator.dtype)


def move_accumulator(mm, x, row: int, column: int, accumulator, store: bool) -> None:
    """See DeviceMatmul.load_accumulator and store_accumulator."""
    for i in range(mm.accumulator_size):
        if not store:
            accumulator[i] = 0
        if not holds(mm, i):
            continue
        r, c = position(mm, i)
        if row + r < x.shape[0] and column + c < x.shape[1]:
            if store:
                x[row + r, column + c] = accumulator[i]
            else:
                accumulator[i] = x[row + r, column + c]


def move_tile(mm, which: int, x, row: int, column: int, tile, store: bool) -> None:
    """See DeviceMatmul.load_a and its kin."""
    _check_dtype(mm, x, which, "the array")
    flat = _check_dtype(mm, tile, which, "abc"[which]).reshape(-1)
    make = tiles.make_store if store else tiles.make_load
    make(mm.tile_of(which), tiles.axis_of(np.asarray(x)))(x, row, column, flat)
