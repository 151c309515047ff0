"""Arguments of a product's kernels: views with three axes, numbers in the accumulator's kind, which accesses are wide.

In: checked arrays and a `GemmSpec`. Out: what kernels take.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import STORED_BYTES, GemmSpec, Matrix


def numbers(spec: GemmSpec, extra: tuple) -> tuple:
    """Python's floating-point numbers in the accumulator's kind: as float64 they would make all arithmetic wide."""
    if not extra:
        return extra
    kind = np.dtype(spec.accumulate).type
    return tuple(kind(x) if isinstance(x, float) else x for x in extra)


def batched_view(x: Any, batch: int) -> Any:
    """View with three axes; one matrix is repeated by a stride of 0."""
    if len(x.shape) == 2:
        x = x[None]
    if x.shape[0] == batch:
        return x
    if arrays.library(x, "array") == "torch":
        return x.expand(batch, -1, -1)
    return (np if isinstance(x, np.ndarray) else sys.modules["cupy"]).broadcast_to(x, (batch, *x.shape[1:]))


def wide(x: Matrix, by_eights: bool) -> bool:
    """Whether eight elements of a row are one aligned access (or two, of float32)."""
    return by_eights and x.along_rows is True and x.dtype in STORED_BYTES and x.aligned(min(16, 8 * x.itemsize))


def wide_rows(d: Matrix) -> bool:
    """Whether eight elements of a row of the result are one aligned access, whichever eight."""
    return wide(d, d.columns % 8 == 0)
