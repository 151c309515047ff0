"""Operands that tensor copies cannot read, copied once to lines on multiples of 16 bytes; the product of the copies.

In: a `GemmSpec` and arrays of 16-bit floats in any order, with any strides. Out: a launch of two or three kernels.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from devkernels.compiler.kernel import Options
from devkernels.kernels import arrays, gemm_warpgroup
from devkernels.kernels.gemm_route import GemmSpec, as_matrix
from devkernels.launch.jit import Kernel
from devkernels.lazy import cuda

_EIGHT, _THREADS = 8, 256


def make_kernel():
    """Return ``align(x, y, eighths)``: y = x, eight elements a thread; both have three axes, y is dense.

    Lines of y are a multiple of eight elements long; what lies beyond the lines of x is zero. The grid has eighths of a
    line along x, lines along y and batches along z.
    """
    from devkernels.matrix import ptx, tensor_calls

    gather, address = tensor_calls.make_gather_eight(), ptx.address

    def align(x, y, eighths):
        number = np.int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        batch, first = np.int64(cuda.blockIdx.z), number * _EIGHT
        if number < eighths:
            for line in range(np.int64(cuda.blockIdx.y), x.shape[1], cuda.gridDim.y):
                place = address(x) + np.uint64(batch * x.strides[0] + line * x.strides[1] + first * x.strides[2])
                to = address(y) + np.uint64(((batch * x.shape[1] + line) * eighths + number) * 16)
                gather(to, place, x.strides[2], x.shape[2] - first)

    return align


@functools.cache
def aligning_kernel() -> Kernel:
    """The kernel that copies; see `make_kernel`."""
    return Kernel(make_kernel(), Options(launch_bounds=_THREADS))


def aligned(x: Any, kept: list, stream: Any) -> Any:
    """A copy of x with the same axes and order, its lines on multiples of 16 bytes. x has two or three axes."""
    seen = as_matrix(arrays.describe(x, "array"))
    lines = x if len(x.shape) == 3 else x[None]
    if seen.batch > 1 and seen.strides[0] == 0:
        lines = lines[:1]
    turned = seen.along_rows is False
    if turned:
        lines = lines.swapaxes(1, 2)
    batch, count, length = (int(n) for n in lines.shape)
    eighths = -(-length // _EIGHT)
    y = arrays.temporary(kept, x, (batch, count, eighths * _EIGHT), seen.dtype)
    grid = (-(-eighths // _THREADS), min(count, 65535), batch)
    aligning_kernel()[grid, _THREADS, stream](lines, y, eighths)
    y = y[..., :length]
    y = y.swapaxes(1, 2) if turned else y
    return y if len(x.shape) == 3 else y[0]


class Aligned:
    """Launches of a product some of whose operands are copied first; called as a `Prepared`."""

    def __init__(self, spec: GemmSpec, copied: tuple[bool, bool], stream: Any, kept: list):
        self._spec, self._copied, self._stream = spec, copied, stream
        self._kept = kept  # what a CUDA graph that is being captured will write to

    def __call__(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> None:
        """Copy and multiply."""
        with arrays.on_stream(a, self._stream):
            a, b = (
                aligned(x, self._kept, self._stream) if copy else x
                for x, copy in zip((a, b), self._copied, strict=True)
            )
            matrices = (as_matrix(arrays.describe(x, "array")) for x in (a, b))
            result = as_matrix(arrays.describe(d, "out"))
            run = gemm_warpgroup.prepare(self._spec, *matrices, c, result, extra, self._stream)
            run(a, b, c, alpha, beta, extra, d)

    def bind(self, *_: Any) -> None:
        """Nothing: the copies have memory of their own each time."""
        return
