"""Operands that a fast main loop cannot read as they are, copied first: aligned, converted, through their prologues.

In: a `GemmSpec` and arrays in any order, with any strides. Out: launches of two or three kernels: copies to lines on
multiples of 16 bytes, and the product of the copies. Their memory belongs to the plan (`Scratch`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.compiler.kernel import Options
from devkernels.device.inline import device_function
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import ITEM_BYTES, GemmSpec, Matrix, as_matrix
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch import driver, streams
from devkernels.launch.jit import Kernel
from devkernels.lazy import cuda

THREADS = 256
_EACH = 4  # elements of a thread that converts
_SHORT = 256  # lines shorter than this are converted several in a block
_GRID = 65535  # the most of a grid along y and z
_MOST = 8  # copies that a plan has memory for at a time


def make_kernel(item: int, turning: bool):
    """Return ``align(x, y, sixteenths)``: y = x, 16 bytes a thread; both have three axes, y is dense.

    Lines of y are `sixteenths` times 16 bytes long; what lies beyond the lines of x is zero. The grid has pieces of a
    line along x, lines along y and batches along z; when `turning`, because neighbours in memory are neighbouring lines
    of x, it is pieces that lie along y and lines along x.
    """
    from devkernels.matrix import ptx, tensor_calls

    gather, address, each = tensor_calls.make_gather(item), ptx.address, 16 // item

    def align(x, y, sixteenths):
        number = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        lines, length = x.shape[1], x.shape[2]
        for batch in range(np.int64(cuda.blockIdx.z), x.shape[0], np.int64(cuda.gridDim.z)):
            for other in range(np.int64(cuda.blockIdx.y), sixteenths if turning else lines, cuda.gridDim.y):
                line, piece = (number, other) if turning else (other, number)
                if line < lines and piece < sixteenths:
                    first = piece * each
                    place = address(x) + np.uint64(batch * x.strides[0] + line * x.strides[1] + first * x.strides[2])
                    to = address(y) + np.uint64(((batch * lines + line) * sixteenths + piece) * 16)
                    gather(to, place, x.strides[2], length - first)

    return align


@functools.cache
def aligning_kernel(item: int, turning: bool) -> Kernel:
    """The kernel that copies; see `make_kernel`."""
    return Kernel(make_kernel(item, turning), Options(launch_bounds=THREADS))


def make_converting(prologue: Callable | None, by_rows: bool, short: bool = False) -> Callable:
    """Return ``convert(x, y)``: y[b, i, j] = prologue(x[b, i, j], i, j), on arrays with three axes.

    Threads follow the rows, or the columns. The grid has pieces of a line along x, lines along y and batches along z;
    where lines are `short`, pieces of all of them, one after another, along x.
    """
    function = device_function((lambda x, row, column: x) if prologue is None else prologue)
    threads, each, axis = THREADS, _EACH, 2 if by_rows else 1

    def convert(x, y):
        first = np.int64(cuda.blockIdx.x) * (threads * each) + cuda.threadIdx.x
        for batch in range(np.int64(cuda.blockIdx.z), x.shape[0], np.int64(cuda.gridDim.z)):
            for line in range(np.int64(cuda.blockIdx.y), x.shape[3 - axis], np.int64(cuda.gridDim.y)):
                for e in range(each):
                    at = first + e * threads
                    if at < x.shape[axis]:
                        row, column = (line, at) if by_rows else (at, line)
                        y[batch, row, column] = function(x[batch, row, column], row, column)

    def convert_all(x, y):
        first, lines, length = (
            np.int64(cuda.blockIdx.x) * (threads * each) + cuda.threadIdx.x,
            x.shape[3 - axis],
            x.shape[axis],
        )
        for e in range(each):
            number = first + e * threads
            if number < x.shape[0] * lines * length:
                whole = number // length
                at, batch = number - whole * length, whole // lines
                line = whole - batch * lines
                row, column = (line, at) if by_rows else (at, line)
                y[batch, row, column] = function(x[batch, row, column], row, column)

    return convert_all if short else convert


@lazy_kernel
def converting_kernel(prologue: Callable | None, by_rows: bool, short: bool = False) -> Kernel:
    """The kernel that converts; see `make_converting`."""
    return Kernel(make_converting(prologue, by_rows, short), Options(launch_bounds=THREADS))


class Scratch:
    """Memory of a plan for copies of operands: one set for each stream, which the product's launches share in turn.

    `forget` is called when memory is given up that remembered launches may still write to.
    """

    def __init__(self, forget: Callable[[], None]):
        self._found: dict[tuple, Any] = {}
        self._forget = forget
        self.lock = threading.RLock()  # copies and product of a call are not to be mixed with those of another thread

    def take(self, like: Any, stream: int, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """An array for the copy of operand `name`, on this stream; the same one for the same request."""
        key = arrays.library(like, name), arrays.describe(like, name).device, stream, name, shape, dtype
        if key not in self._found:
            if len(self._found) >= _MOST:
                self._found.clear()
                self._forget()
            self._found[key] = arrays.empty(like, shape, dtype)
        return self._found[key]


def _sixteenths(length: int) -> int:
    """Pieces of 16 bytes in a line of a copy: whole lines of the L2 cache, where that is not much more."""
    return -(-length // 128) * 8 if length > 1024 else -(-length // 16)


@dataclass(frozen=True)
class Copy:
    """How one operand is copied: to which dtype, order (None: as it is), through which prologue."""

    dtype: str
    rows: bool | None = None
    prologue: Callable | None = None

    def placed(self, x: Matrix) -> Matrix:
        """Where the copy of x will lie."""
        item = ITEM_BYTES[self.dtype]
        by_rows = x.along_rows is not False if self.rows is None else self.rows
        lines, length = (x.rows, x.columns) if by_rows else (x.columns, x.rows)
        pitch = 16 * _sixteenths(length * item)
        batch = 0 if x.strides[0] == 0 else pitch * lines
        return Matrix(x.batch, x.rows, x.columns, (batch, *((pitch, item) if by_rows else (item, pitch))), 0, item,
                      self.dtype)  # fmt: skip

    def launch(self, x: Any, memory: Callable[[tuple, str], Any], stream: Any) -> tuple[Any, Any, tuple]:
        """The copy (not yet made), the launch that makes it, and that launch's arguments."""
        seen = as_matrix(arrays.describe(x, "array"))
        there = x if len(x.shape) == 3 else x[None]
        if seen.batch > 1 and seen.strides[0] == 0:
            there = there[:1]
        by_rows = seen.along_rows is not False if self.rows is None else self.rows
        count, length = (seen.rows, seen.columns) if by_rows else (seen.columns, seen.rows)
        item, batch = ITEM_BYTES[self.dtype], int(there.shape[0])
        sixteenths = _sixteenths(length * item)
        whole = memory((batch, count, sixteenths * 16 // item), self.dtype)
        y = whole[..., :length] if by_rows else whole[..., :length].swapaxes(1, 2)
        if self.prologue is None and self.dtype == seen.dtype:
            turning = seen.along_rows is not None and seen.along_rows is not by_rows
            across, down = (count, sixteenths) if turning else (sixteenths, count)
            grid = (-(-across // THREADS), min(down, _GRID), min(batch, _GRID))
            launch = aligning_kernel(item, turning)[grid, THREADS, stream]
            arguments = there if by_rows else there.swapaxes(1, 2), whole, sixteenths
        else:
            along = seen.along_rows is not False
            inner, outer = (seen.columns, seen.rows) if along else (seen.rows, seen.columns)
            short, share = inner < _SHORT, THREADS * _EACH
            grid = (-(-inner // share), min(outer, _GRID), min(batch, _GRID))
            grid = (-(-inner * outer * batch // share), 1, 1) if short else grid
            launch = converting_kernel(self.prologue, along, short)[grid, THREADS, stream]
            arguments = there, y
        return (y if len(x.shape) == 3 else y[0]), launch, arguments


class Copied:
    """Launches of a product some of whose operands are copied first; called as a `Prepared`.

    ``prepare(a, b, c, d, extra)`` prepares the product for the copies, which may be copied again; `purpose` keeps the
    memory of the two apart.
    """

    def __init__(
        self, copies: tuple[Copy | None, Copy | None], stream: Any, kept: list, scratch: Scratch | None,
        prepare: Callable[..., Any], purpose: str,
    ):  # fmt: skip
        self._purpose = purpose
        self._copies, self._stream, self._prepare, self._scratch = copies, stream, prepare, scratch
        self._kept = kept  # what a CUDA graph that is being captured will write to

    def __call__(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> None:
        """Copy to memory of this call's own, and multiply."""
        with arrays.on_stream(a, self._stream):
            found = []
            for x, copy in zip((a, b), self._copies, strict=True):
                if copy is not None:
                    x, launch, arguments = copy.launch(
                        x, lambda shape, dtype, x=x: arrays.temporary(self._kept, x, shape, dtype), self._stream
                    )
                    launch(*arguments)
                found.append(x)
            run = self._prepare(*found, c, d, extra)
            run(*found, c, alpha, beta, extra, d)

    def bind(self, *values: Any) -> Callable[[], bool | None] | None:
        """A function that does it again, with these very values, in memory of the plan.

        It returns False, and does nothing, on another stream than now and while a CUDA graph is captured: such calls
        take the long way, to memory of their own.
        """
        a, b, c, alpha, beta, extra, d = values
        current = _current(a)
        if self._scratch is None or current is None:
            return None
        with arrays.on_stream(a, self._stream):
            here = current()
            if driver.capturing(here):
                return None
            found, runs = [], []
            for name, x, copy in (("a", a, self._copies[0]), ("b", b, self._copies[1])):
                if copy is not None:
                    x, launch, arguments = copy.launch(
                        x,
                        lambda shape, dtype, x=x, name=name: self._scratch.take(
                            x, here, name + self._purpose, shape, dtype
                        ),
                        self._stream,
                    )  # fmt: skip
                    runs.append(launch.bind(*arguments))
                found.append(x)
            last = self._prepare(*found, c, d, extra).bind(*found, c, alpha, beta, extra, d)
        if last is None:
            return None
        runs.append(last)
        for one in runs:
            one.arguments = one.arguments[1]  # the buffers, and none of the arrays
        moving, lock, capturing, first = self._stream is None, self._scratch.lock, driver.capturing, runs[:-1]

        def run() -> bool | None:
            if (moving and current() != here) or capturing(here):
                return False
            with lock:
                for one in first:
                    one()
                return last()

        made = [x for x, copy in zip(found, self._copies, strict=True) if copy is not None]
        run.arguments, run.declines = (values, (runs, made)), True
        return run


def _current(x: Any) -> Callable[[], int] | None:
    """Function that gives the current stream of an array's library; None for one that has no such thing."""
    kind = arrays.library(x, "a")
    if kind == "torch" and x.is_cuda:
        return streams.current_torch(x.get_device())
    return streams.current_cupy() if kind == "cupy" else None


def aligning(spec: GemmSpec, copied: tuple[bool, bool]) -> tuple[Copy | None, Copy | None]:
    """Copies of operands that tensor copies cannot read; some products read one order only."""
    orders = (True, False) if spec.kind in ("tf32", "s8") else (None, None)
    dtypes = spec.a_dtype, spec.b_dtype
    return tuple(Copy(dtypes[i], orders[i]) if copied[i] else None for i in range(2))


def converting(spec: GemmSpec, plain: GemmSpec) -> tuple[Copy | None, Copy | None]:
    """Copies that make the operands of `plain` of those of `spec`."""
    made = []
    for have, want, prologue in ((spec.a_dtype, plain.a_dtype, spec.prologue_a),
                                 (spec.b_dtype, plain.b_dtype, spec.prologue_b)):  # fmt: skip
        made.append(None if have == want and prologue is None else Copy(want, None, prologue))
    return tuple(made)
