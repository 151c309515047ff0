"""Operands that tensor copies cannot read, copied once to lines on multiples of 16 bytes; the product of the copies.

In: a `GemmSpec` and arrays in any order, with any strides. Out: a launch of two or three kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels.compiler.kernel import Options
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import GemmSpec, as_matrix
from devkernels.kernels.gemm_views import Prepared
from devkernels.launch.jit import Kernel
from devkernels.lazy import cuda

_THREADS = 256


def make_kernel(item: int, turning: bool):
    """Return ``align(x, y, sixteenths)``: y = x, 16 bytes a thread; both have three axes, y is dense.

    Lines of y are `sixteenths` times 16 bytes long; what lies beyond the lines of x is zero. The grid has pieces of a
    line along x, lines along y and batches along z; when `turning`, because neighbours in memory are neighbouring lines
    of x, it is pieces that lie along y and lines along x.
    """
    from devkernels.matrix import ptx, tensor_calls

    gather, address, each = tensor_calls.make_gather(item), ptx.address, 16 // item

    def align(x, y, sixteenths):
        batch, number = np.int64(cuda.blockIdx.z), np.int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        lines, length = x.shape[1], x.shape[2]
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
    return Kernel(make_kernel(item, turning), Options(launch_bounds=_THREADS))


def aligned(x: Any, rows: bool | None, kept: list, stream: Any) -> Any:
    """A copy of x with the same axes, its lines on multiples of 16 bytes, in row or column order, or that of x (None).

    x has two or three axes.
    """
    seen = as_matrix(arrays.describe(x, "array"))
    lines = x if len(x.shape) == 3 else x[None]
    if seen.batch > 1 and seen.strides[0] == 0:
        lines = lines[:1]
    by_rows = seen.along_rows is not False if rows is None else rows
    if not by_rows:
        lines = lines.swapaxes(1, 2)
    batch, count, length = (int(n) for n in lines.shape)
    each = 16 // seen.itemsize
    sixteenths = -(-length // each)
    y = arrays.temporary(kept, x, (batch, count, sixteenths * each), seen.dtype)
    turning = seen.along_rows is not None and seen.along_rows is not by_rows
    across, down = (count, sixteenths) if turning else (sixteenths, count)
    grid = (-(-across // _THREADS), min(down, 65535), batch)
    aligning_kernel(seen.itemsize, turning)[grid, _THREADS, stream](lines, y, sixteenths)
    y = y[..., :length]
    y = y if by_rows else y.swapaxes(1, 2)
    return y if len(x.shape) == 3 else y[0]


class Aligned:
    """Launches of a product some of whose operands are copied first; called as a `Prepared`.

    ``prepare(a, b, c, d, extra)`` prepares the product for the copies; a, b and d are `Matrix`.
    """

    def __init__(
        self, spec: GemmSpec, copied: tuple[bool, bool], stream: Any, kept: list, prepare: Callable[..., Prepared]
    ):
        self._spec, self._copied, self._stream, self._prepare = spec, copied, stream, prepare
        self._kept = kept  # what a CUDA graph that is being captured will write to

    def __call__(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> None:
        """Copy and multiply."""
        orders = (True, False) if self._spec.kind in ("tf32", "s8") else (None, None)
        with arrays.on_stream(a, self._stream):
            a, b = (
                aligned(x, rows, self._kept, self._stream) if copy else x
                for x, rows, copy in zip((a, b), orders, self._copied, strict=True)
            )
            matrices = (as_matrix(arrays.describe(x, "array")) for x in (a, b))
            run = self._prepare(*matrices, c, as_matrix(arrays.describe(d, "out")), extra)
            run(a, b, c, alpha, beta, extra, d)

    def bind(self, *_: Any) -> None:
        """Nothing: the copies have memory of their own each time."""
        return
