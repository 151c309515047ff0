"""Arguments of a product's kernels: views with three axes, numbers in the accumulator's kind, which accesses are wide.

In: checked arrays and a `GemmSpec`. Out: what kernels take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import STORED_BYTES, GemmSpec, Matrix


class Prepared:
    """A product's kernel with its configuration chosen: call it with ``(a, b, c, alpha, beta, extra, d)``.

    Good for arrays with the same shapes, strides and alignment, and for the same a and b where their addresses are in
    tensor maps.
    """

    def __init__(self, launch: Any, arrange: Callable[..., tuple], check: Callable[[tuple], None] | None = None):
        self._launch, self._arrange, self._check = launch, arrange, check

    def __call__(self, *values: Any) -> None:
        """Launch."""
        arranged = self._arrange(*values)
        if self._check is not None:
            self._check(arranged)
        self._launch(*arranged)

    def bind(self, *values: Any) -> Callable[[], None] | None:
        """A function that only launches again, with these very values; None where there is no such thing."""
        return self._launch.bind(*self._arrange(*values))


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


def three_axes(spec: GemmSpec, batch: int) -> Callable[..., tuple]:
    """What a `Prepared` gives to a kernel on arrays with three axes; one that reads no c is given d in its place."""

    def arrange(a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> tuple:
        views = (batched_view(x, batch) for x in (a, b, d if c is None else c, d))
        return (*views, alpha, beta, numbers(spec, extra))

    return arrange


def wide(x: Matrix, by_eights: bool) -> bool:
    """Whether eight elements of a row are one aligned access (or two, of float32)."""
    return by_eights and x.along_rows is True and x.dtype in STORED_BYTES and x.aligned(min(16, 8 * x.itemsize))


def wide_rows(d: Matrix) -> bool:
    """Whether eight elements of a row are one aligned access, whichever eight."""
    return wide(d, d.columns % 8 == 0)
