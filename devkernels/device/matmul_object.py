"""`DeviceMatmul`: the object that kernels call, with the traits of cuBLASDx.

In: a completed `MatmulSpec`. Out: traits, and calls in three homes: on a GPU and ahead of time it is LTO-IR of
libmathdx (device/numba_matmul.py), in the simulator it is NumPy (device/simulated_matmul.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from devkernels import matmul_traits, target
from devkernels.checks import whole_number
from devkernels.device.shape import Dim3
from devkernels.device.tile_layout import TileLayout
from devkernels.errors import SpecError
from devkernels.matmul_spec import MatmulSpec


class Matrices(NamedTuple):
    """One value for each of a, b and c."""

    a: object
    b: object
    c: object


def _dtype(name: str) -> np.dtype | str:
    """NumPy's dtype of this name; the name of one that NumPy lacks."""
    return name if name == "bfloat16" else np.dtype(name)


class DeviceMatmul:
    """A product on shared memory; made by `devkernels.matmul`, which documents it. Frozen, hashable, picklable."""

    def __init__(self, spec: MatmulSpec):
        self._spec = spec
        if target.simulating():
            from devkernels.device import simulated

            simulated.accept_empty_link()

    # -- identity ------------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> MatmulSpec:
        """The completed, frozen description."""
        return self._spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMatmul) and other._spec == self._spec

    def __hash__(self) -> int:
        return hash(self._spec)

    def __repr__(self) -> str:
        return f"<DeviceMatmul {self._spec}, {self.block_size} threads>"

    def __reduce__(self):
        return DeviceMatmul, (self._spec,)

    @property
    def _numba_type_(self):
        """Numba asks for this when it meets the object in a kernel; only then is its CUDA target imported."""
        from devkernels.device import numba_matmul

        return numba_matmul.DeviceMatmulType(self)

    # -- traits --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int, int]:
        """(m, n, k): op(a) is m x k, op(b) is k x n, c is m x n."""
        return self._spec.size

    @property
    def precision(self) -> Matrices:
        """NumPy types of the real numbers that a, b and c are made of; ``"bfloat16"`` by its name."""
        return Matrices(*(getattr(np, name, name) for name in self._spec.precision))

    @property
    def data_type(self) -> str:
        """``real`` or ``complex``."""
        return self._spec.data_type

    @property
    def function(self) -> str:
        """Always ``MM``."""
        return "MM"

    @property
    def execution(self) -> str:
        """Always ``Block``: all threads of a block share the product."""
        return "Block"

    @property
    def arrangement(self) -> Matrices | None:
        """Orders of a, b and c; None if the product was made with transpose_mode."""
        return None if self._spec.arrangement is None else Matrices(*self._spec.arrangement)

    @property
    def transpose_mode(self) -> tuple[str, str] | None:
        """Modes of a and b; None if the product was made with arrangement."""
        return self._spec.transpose_mode

    @property
    def sm(self) -> target.Target:
        """The architecture whose traits these are."""
        return self._spec.target

    @property
    def static_block_dim(self) -> bool:
        """Whether the kernel promises to be launched with exactly `block_dim` threads."""
        return self._spec.static_block_dim

    @property
    def layout(self) -> str:
        """``plain``, or ``suggested``: how a and b lie in shared memory."""
        return self._spec.layout

    @property
    def with_pipeline(self) -> bool:
        """Whether a and b come through a pipeline; see `suggest_device_pipeline`."""
        return self._spec.with_pipeline

    def suggest_device_pipeline(self, pipeline_depth: int | None, a, b):
        """Pipeline for the product of two whole matrices in global memory, an argument for kernels.

        Parameters
        ----------
        pipeline_depth : int or None
            Stages in shared memory, at least 2; None: as many as fit, at most 8.
        a, b : 2-D arrays on the GPU
            Matrices (rows, inner) and (inner, columns) of any shape, order and strides; in the simulator and ahead of
            time of NumPy.

        Returns
        -------
        DevicePipeline
            ``pipeline.describe()`` says who multiplies and who copies, and why. In a kernel of ``@devkernels.kernel``:
            ``pipeline.get_tile(smem, i, j).execute(accumulator)`` adds tile (i, j) of a @ b, over the whole inner
            dimension, to an accumulator; `smem` is dynamic shared memory of ``pipeline.buffer_size`` bytes. All
            threads of a block take part. Launch with ``kernel[grid, mm.block_dim, stream, pipeline.buffer_size]``.

        Raises
        ------
        SpecError, ResourceError, ArgumentError, ArgumentTypeError
            This product was made without with_pipeline, the stages do not fit, or the matrices do not suit it.
        """
        if not self._spec.with_pipeline:
            raise SpecError(f"the {self._spec} was made without with_pipeline=True.", spec=self._spec)
        from devkernels.kernels.device_pipeline import DevicePipeline

        return DevicePipeline(self, pipeline_depth, a, b)

    @property
    def a_value_type(self) -> np.dtype:
        """Dtype of a."""
        return _dtype(self._spec.value_types[0])

    @property
    def b_value_type(self) -> np.dtype:
        """Dtype of b."""
        return _dtype(self._spec.value_types[1])

    @property
    def c_value_type(self) -> np.dtype:
        """Dtype of c, of the accumulator, and of alpha and beta."""
        return np.dtype(self._spec.value_types[2])

    def _stored_dim(self, which: int) -> tuple[int, int]:
        shape = self._spec.shapes[which]
        mode = (self._spec.transpose_mode or ("non_transposed",) * 2)[which] if which < 2 else "non_transposed"
        return shape if mode == "non_transposed" else shape[::-1]

    @property
    def a_dim(self) -> tuple[int, int]:
        """Rows and columns of a as it is stored, before any transposition."""
        return self._stored_dim(0)

    @property
    def b_dim(self) -> tuple[int, int]:
        """Rows and columns of b as it is stored."""
        return self._stored_dim(1)

    @property
    def c_dim(self) -> tuple[int, int]:
        """Rows and columns of c."""
        return self._stored_dim(2)

    @property
    def leading_dimension(self) -> Matrices:
        """Distance, in elements, between consecutive rows (row order) or columns (column order)."""
        return Matrices(*self._spec.leading_dimension)

    @property
    def suggested_leading_dimension(self) -> Matrices:
        """Leading dimensions with which shared memory has the fewest bank conflicts."""
        from dataclasses import replace

        plain = replace(self._spec, leading_dimension=None)
        return Matrices(*matmul_traits.suggestions(plain)["suggested_leading_dimension"])

    @property
    def alignment(self) -> Matrices:
        """Alignment of a, b and c in shared memory, in bytes, that the kernel promises."""
        return Matrices(*self._spec.alignment)

    @property
    def a_size(self) -> int:
        """Elements of shared memory that a takes, with the gaps of its leading dimension."""
        return matmul_traits.sizes(self._spec)[0]

    @property
    def b_size(self) -> int:
        """As `a_size`, of b."""
        return matmul_traits.sizes(self._spec)[1]

    @property
    def c_size(self) -> int:
        """As `a_size`, of c."""
        return matmul_traits.sizes(self._spec)[2]

    @property
    def block_dim(self) -> Dim3:
        """Threads of one block."""
        return Dim3(*self._spec.block_dim)

    @property
    def block_size(self) -> int:
        """Threads of one block, multiplied out."""
        return self._spec.threads

    @property
    def max_threads_per_block(self) -> int:
        """The same; the name that cuBLASDx gives it."""
        return self._spec.threads

    @property
    def shared_memory_size(self) -> int:
        """Bytes of shared memory for a, b and c one after another."""
        return self.get_shared_storage_size()

    @property
    def shared_memory_size_ab(self) -> int:
        """Bytes of shared memory for a and b one after another; all that the accumulator form needs."""
        return self.get_shared_storage_size_ab()

    def get_shared_storage_size(self, *leading_dimension: int) -> int:
        """Bytes for a, b and c one after another, each aligned; with other leading dimensions if three are given."""
        return self._spec.shared_bytes(3, self._leading(leading_dimension, 3))

    def get_shared_storage_size_ab(self, *leading_dimension: int) -> int:
        """Bytes for a and b; with other leading dimensions if two are given."""
        return self._spec.shared_bytes(2, self._leading(leading_dimension, 2))

    def _leading(self, given: tuple, count: int) -> tuple[int, int, int] | None:
        if not given:
            return None
        if len(given) != count:
            raise SpecError(f"give {count} leading dimensions, or none; not {len(given)}.", spec=self._spec)
        numbers = [whole_number(one, "leading_dimension") for one in given]
        return tuple([*numbers, self._spec.leading_dimension[2]][:3])

    @property
    def accumulator_size(self) -> int:
        """Elements of `c_value_type` in the accumulator form's local array; how they are dealt out is unspecified."""
        return matmul_traits.fragment_size(self._spec, target.simulating())

    @property
    def files(self) -> list:
        """Always empty: a call links its own code."""
        return []

    def likely_requests(self, here: target.Target) -> list:
        """Nothing: which of its forms a kernel calls is known only when it is compiled."""
        return []

    def tile_of(self, which: int) -> TileLayout:
        """How op(a), op(b) or c (0, 1, 2) lies in shared memory, where the layout is plain."""
        spec = self._spec
        order = "row_major" if spec.row_order[which] else "col_major"
        return TileLayout(*spec.shapes[which], spec.value_types[which], order, spec.leading_dimension[which],
                          block_dim=tuple(spec.block_dim))  # fmt: skip

    def _plain_tile(self, which: int) -> TileLayout:
        if self._spec.layout != "plain" and which < 2:
            raise SpecError(f"the {self._spec} lets the library place elements; load_a and load_b know where.",
                            spec=self._spec)  # fmt: skip
        return self.tile_of(which)

    @property
    def a_tile(self) -> TileLayout:
        """Layout of op(a) in shared memory, for `devkernels.load_tile` and its kin."""
        return self._plain_tile(0)

    @property
    def b_tile(self) -> TileLayout:
        """As `a_tile`, of op(b)."""
        return self._plain_tile(1)

    @property
    def c_tile(self) -> TileLayout:
        """As `a_tile`, of c."""
        return self._plain_tile(2)

    # -- calls inside kernels: these bodies run in the simulator; on a GPU Numba compiles device/numba_matmul.py -------

    def __call__(self, *arguments):
        """Multiply inside a kernel: see `devkernels.matmul` for the three forms."""
        from devkernels.device import simulated_matmul

        simulated_matmul.call(self, *arguments)

    def clear(self, accumulator):
        """Set this thread's accumulator to zero."""
        accumulator[: self.accumulator_size] = 0

    def load_accumulator(self, x, row, column, accumulator):
        """Load the m x n tile of the 2-D array `x` that begins at (row, column); zero outside `x`."""
        from devkernels.device import simulated_matmul

        simulated_matmul.move_accumulator(self, x, row, column, accumulator, False)

    def store_accumulator(self, accumulator, y, row, column):
        """Store the accumulator to the tile of `y` at (row, column); what lies outside `y` is left out."""
        from devkernels.device import simulated_matmul

        simulated_matmul.move_accumulator(self, y, row, column, accumulator, True)

    def position(self, i):
        """(row, column) in c of element `i` of this thread's accumulator; only if ``holds(i)``."""
        from devkernels.device import simulated_matmul

        return simulated_matmul.position(self, i)

    def holds(self, i):
        """Whether element `i` of this thread's accumulator is an element of c."""
        from devkernels.device import simulated_matmul

        return simulated_matmul.holds(self, i)

    def load_a(self, x, row, column, tile):
        """Load op(a) from the tile of the 2-D array `x` at (row, column) (collective; zero outside `x`)."""
        self._tile(0, x, row, column, tile, False)

    def load_b(self, x, row, column, tile):
        """As `load_a`, for op(b)."""
        self._tile(1, x, row, column, tile, False)

    def load_c(self, x, row, column, tile):
        """As `load_a`, for c."""
        self._tile(2, x, row, column, tile, False)

    def store_a(self, tile, y, row, column):
        """Store op(a) to the tile of `y` at (row, column) (collective; what lies outside `y` is left out)."""
        self._tile(0, y, row, column, tile, True)

    def store_b(self, tile, y, row, column):
        """As `store_a`, for op(b)."""
        self._tile(1, y, row, column, tile, True)

    def store_c(self, tile, y, row, column):
        """As `store_a`, for c."""
        self._tile(2, y, row, column, tile, True)

    def _tile(self, which, array, row, column, tile, store):
        from devkernels.device import simulated_matmul

        simulated_matmul.move_tile(self, which, array, row, column, tile, store)
