"""`block_fft(...)`: a block transform as an object with device functions, for fused spectral kernels.

in: length, precision, optionally a plan. out: a `BlockFFT`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from devkernels.engine import index
from devkernels.engine.plan import BlockPlan, make_plan
from devkernels.errors import SpecError


@dataclass(frozen=True)
class BlockFFT:
    """A block transform whose spectrum stays in the order in which the threads hold it."""

    plan: BlockPlan
    dtype: np.dtype
    offset: float = 0.0
    rotated: bool = False
    real_input: bool = False

    @property
    def size(self) -> int:
        """Length of a row."""
        return self.plan.size

    @property
    def elements_per_thread(self) -> int:
        """Length of the thread's local array."""
        return self.plan.elements

    @property
    def stride(self) -> int:
        """Slot e of thread tx is row element ``tx + e * stride``."""
        return self.plan.threads

    @property
    def block_dim(self) -> tuple[int, int, int]:
        """Thread block: x runs along a row, y over the rows of a block."""
        return self.plan.block_dim

    @property
    def ffts_per_block(self) -> int:
        """Rows that a block transforms."""
        return self.plan.rows

    @property
    def shared_memory_size(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return self.plan.shared_bytes

    @functools.cached_property
    def spectrum_index(self) -> np.ndarray:
        """Frequency (stride, elements_per_thread) in slot e of thread tx after `forward`."""
        return index.spectrum_index(self.plan.radices, self.plan.elements, self.plan.groups[-1])

    def order_filter(self, spectrum: np.ndarray) -> np.ndarray:
        """Natural-order spectra (..., size) in the engine's order: slot e of thread tx reads ``[tx + e * stride]``."""
        order = self.spectrum_index.T.reshape(-1)
        return np.ascontiguousarray(np.asarray(spectrum)[..., order])

    @functools.cached_property
    def forward(self):
        """Device function ``forward(data, shared)``: data[e] = x[tx + e stride] becomes the spectrum."""
        return self._make(-1, real_input=self.real_input)

    @functools.cached_property
    def inverse(self):
        """Device function ``inverse(data, shared)``: the spectrum becomes size * x."""
        return self._make(1)

    @functools.cached_property
    def filter_inverse(self):
        """Device function ``filter_inverse(data, factors, shared)``: ``inverse`` of data * factors, a little cheaper."""
        return self._make(1, filtered=True)

    def _make(self, sign, filtered=False, **options):
        from devkernels.engine import stages

        run = stages.compose(
            self.plan, self.dtype, sign, offset=self.offset, rotated=self.rotated, filtered=filtered, **options
        )
        return stages.bind(self.plan, run, filtered)


@functools.lru_cache(maxsize=256)
def block_fft(radices, elements, rows=1, dtype="complex64", *, offset=0.0, rotated=False, real_input=False) -> BlockFFT:
    """Make a `BlockFFT` from radices."""
    dtype = np.dtype(dtype)
    if dtype.name not in ("complex64", "complex128"):
        raise SpecError(f"dtype {dtype} must be complex64 or complex128.")
    plan = make_plan(tuple(radices), elements, rows, dtype.itemsize)
    return BlockFFT(plan, dtype, offset, rotated, real_input)
