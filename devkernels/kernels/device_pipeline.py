"""Device pipelines: the product of two whole matrices, whose tiles are copied ahead while others are multiplied.

In: a `DeviceMatmul` made with_pipeline, a depth, two matrices. Out: a `DevicePipeline`, an argument of kernels of
``@devkernels.kernel``. On a GPU and ahead of time its calls are compiled (device/numba_pipeline.py); in the simulator
the bodies below run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from devkernels import target
from devkernels.checks import whole_number
from devkernels.device.shape import Dim3
from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import Matrix, as_matrix
from devkernels.pipeline_spec import LINE, TENSOR, WARPGROUP, PipelineSpec, check_depth, deepest, engine
from devkernels.pipeline_spec import warpgroup_misfit as misfit

STORAGE_WORDS = 48  # two tensor maps of 16 words; address and strides of a and b; rows, columns, inner dimension


class DevicePipeline:
    """Two matrices and how their tiles pass through shared memory; made by ``mm.suggest_device_pipeline``.

    Pass it to a kernel of ``@devkernels.kernel`` and launch with `block_dim` threads and `buffer_size` bytes of dynamic
    shared memory. It keeps its matrices alive; their contents may change between launches.

    Attributes
    ----------
    mm : DeviceMatmul
    pipeline_depth : int
        Stages in shared memory.
    buffer_size, buffer_alignment : int
        Bytes of shared memory, and to which multiple they must be aligned.
    block_dim : Dim3
        Threads of a block.
    storage_bytes : int
        Bytes of global memory with what a kernel must know of the matrices.
    """

    is_device_pipeline = True  # for devkernels/compiler/pipelines.py

    def __init__(self, mm: Any, pipeline_depth: int | None, a: Any, b: Any):
        self.mm, self.a, self.b = mm, a, b
        left, right = (_matrix(mm, x, which) for which, x in enumerate((a, b)))
        if left.columns != right.rows:
            raise ArgumentError(
                f"a has {left.columns} columns and b has {right.rows} rows; they must be the same.", spec=mm.spec
            )
        self._why = None
        spec = PipelineSpec(mm.spec, 2)
        if engine(mm.spec) == WARPGROUP:
            self._why = _uncopied(mm.spec, left, right)
            turned = not left.along_rows, right.along_rows is True
            spec = PipelineSpec(mm.spec, 2, TENSOR, *turned) if self._why is None else spec
        depth = deepest(spec) if pipeline_depth is None else whole_number(pipeline_depth, "pipeline_depth")
        self.spec = PipelineSpec(mm.spec, depth, spec.copies, spec.a_turned, spec.b_turned)
        check_depth(self.spec)
        self._storage = None
        kind = target.home().kind
        if kind == "gpu":
            self._storage = self._stored(left, right)

    def __repr__(self) -> str:
        return f"<DevicePipeline of {self.a.shape} by {self.b.shape}, {self.describe()}>"

    def __reduce__(self):
        return DevicePipeline, (self.mm, self.pipeline_depth, self.a, self.b)

    def describe(self) -> str:
        """Say who multiplies and who copies, and why."""
        if self.spec.engine == WARPGROUP:
            product = "warpgroup products"
            copies = "tensor copies" if self._why is None else f"copies by the threads of the block: {self._why}"
        else:
            product, copies = f"cuBLASDx's products ({misfit(self.mm.spec)})", "copies by the threads of the block"
        return f"{product}, {copies}, {self.pipeline_depth} stages in {self.buffer_size} bytes"

    @property
    def _numba_type_(self):
        """Numba asks for this when it meets the type of a pipeline in a signature."""
        from devkernels.device import numba_pipeline

        return numba_pipeline.DevicePipelineType(self.spec)

    @property
    def address(self) -> int:
        """Where in global memory lies what a kernel must know of the matrices."""
        if self._storage is None:
            raise ArgumentError("this pipeline was made where there is no GPU; it can be compiled for, not launched.")
        return arrays.describe(self._storage, "storage").pointer

    @property
    def pipeline_depth(self) -> int:
        """Stages in shared memory."""
        return self.spec.depth

    @property
    def buffer_size(self) -> int:
        """Bytes of dynamic shared memory that the pipeline takes."""
        return self.spec.buffer_bytes

    @property
    def buffer_alignment(self) -> int:
        """Multiple of bytes at which the buffer must begin; all dynamic shared memory does."""
        return 16

    @property
    def storage_bytes(self) -> int:
        """Bytes of global memory with what a kernel must know of the matrices."""
        return 8 * STORAGE_WORDS

    @property
    def block_dim(self) -> Dim3:
        """Threads of a block."""
        return self.mm.block_dim

    def _stored(self, a: Matrix, b: Matrix) -> Any:
        words = [0] * STORAGE_WORDS
        if self.spec.copies == TENSOR:
            words[:16], words[16:32] = _map(a, self.spec, 0), _map(b, self.spec, 1)
        words[32:41] = [a.pointer, a.strides[1], a.strides[2], b.pointer, b.strides[1], b.strides[2], a.rows, b.columns,
                        a.columns]  # fmt: skip
        signed = [word - 2**64 if word >= 2**63 else word for word in words]
        return arrays.constant(self.a, np.array(signed, np.int64))

    # -- calls inside kernels: these bodies run in the simulator ------------------------------------------------------

    def get_tile(self, smem: Any, row: int, column: int) -> TilePipeline:
        """The tile of the product whose number from the top is `row`, and from the left `column` (collective).

        `smem` is the block's dynamic shared memory, `buffer_size` bytes of it.
        """
        if smem.nbytes < self.buffer_size:
            raise ArgumentError(
                f"smem has {smem.nbytes} bytes; this pipeline takes {self.buffer_size}: launch with "
                f"kernel[grid, block, stream, pipeline.buffer_size].",
                spec=self.mm.spec,
            )
        return TilePipeline(self, int(row), int(column))


class TilePipeline:
    """One tile of a pipelined product, in the simulator; ``execute(accumulator)`` adds it up."""

    def __init__(self, pipeline: DevicePipeline, row: int, column: int):
        self._pipeline, self._row, self._column = pipeline, row, column

    def execute(self, accumulator: Any) -> None:
        """Add the whole inner dimension of this tile to the accumulator (collective)."""
        from devkernels.device import simulated_matmul

        simulated_matmul.accumulate_matrices(
            self._pipeline.mm, self._pipeline.a, self._pipeline.b, self._row, self._column, accumulator
        )


def _matrix(mm: Any, x: Any, which: int) -> Matrix:
    name, kind = "ab"[which], target.home().kind
    seen, wanted = arrays.describe(x, name), mm.spec.value_types[which]
    if len(seen.shape) != 2 or 0 in seen.shape:
        raise ArgumentError(f"{name} has shape {seen.shape}; pass a matrix, such as one of a batch.", spec=mm.spec)
    if seen.dtype != wanted:
        raise ArgumentTypeError(f"{name} has dtype {seen.dtype}; the {mm.spec} takes {wanted}.", spec=mm.spec)
    if kind == "gpu" and seen.device == "host":
        raise ArgumentTypeError(f"{name} is in host memory; a pipeline reads matrices on the GPU.", spec=mm.spec)
    if kind != "gpu" and seen.device != "host":
        raise ArgumentTypeError(f"{name} is on a GPU, which this process does not use.", spec=mm.spec)
    return as_matrix(seen)


def _uncopied(spec: Any, a: Matrix, b: Matrix) -> str | None:
    """Why tensor copies cannot fill the stages; None if they can."""
    for name, x, length in (("a", a, spec.size[0]), ("b", b, spec.size[1])):
        if x.along_rows is None:
            return f"neither axis of {name} is contiguous"
        if not x.aligned() or x.pitch <= 0:
            return (
                f"{name} begins at {x.pointer % 16} mod 16 and its lines are {x.pitch} bytes apart, no multiple of 16"
            )
        if x.along_rows is not (name == "a"):  # turned
            if spec.item_bytes[0] != 2:
                return f"{name} of {spec.precision[0]} would have to be turned"
            if length % 64:
                return f"{name} would have to be turned, which goes by 64, not by {length}"
    return None


def _map(x: Matrix, spec: PipelineSpec, which: int) -> tuple[int, ...]:
    """Words of a tensor map."""
    from devkernels.matrix.tensor_map import encode

    turned = (spec.a_turned, spec.b_turned)[which]
    inner, outer = (x.columns, x.rows) if x.along_rows else (x.rows, x.columns)
    depth = LINE // x.itemsize
    box = (depth, depth if turned else spec.mm.size[which], 1)
    return encode(x.pointer, x.dtype, x.itemsize, (inner, outer, 1), (x.pitch, x.pitch * outer), box)
