"""How rows and filters combine: broadcasting of the leading axes without copies.

in: batch shapes. out: a `Broadcast`, numbers that kernels turn into row indices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from devkernels.errors import ArgumentError


@dataclass(frozen=True)
class Broadcast:
    """How rows of x and filters make rows of the output: see `devkernels.kernels.convolve_rows`."""

    shape: tuple[int, ...]  # batch shape of the output
    groups: int
    inner: int
    x_inner: int
    x_rows: int

    @property
    def rows(self) -> int:
        """Rows of the output."""
        return math.prod(self.shape)

    @property
    def members(self) -> int:
        """Output rows per filter."""
        return self.rows // self.groups

    @property
    def layout(self) -> str:
        """Which row arithmetic the kernel needs."""
        if self.groups == 1:
            return "one"
        return "channels" if self.inner == 1 else "any"

    @property
    def repeats(self) -> bool:
        """Whether x has fewer rows than the output."""
        return self.x_rows * self.x_inner != self.rows or self.x_inner != 1


def _span(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, int] | None:
    """(inner, rows) if an operand of this batch shape is a contiguous run of the output's axes, else None."""
    padded = (1,) * (len(batch) - len(shape)) + shape
    own = [axis for axis, (n, full) in enumerate(zip(padded, batch, strict=True)) if n == full and full != 1]
    if not own:
        return math.prod(batch), 1
    first, last = own[0], own[-1]
    between = [batch[a] for a in range(first, last + 1) if a not in own and batch[a] != 1]
    if between:
        return None
    return math.prod(batch[last + 1 :]), math.prod(batch[first : last + 1])


def broadcast(x_batch: tuple[int, ...], h_batch: tuple[int, ...]) -> tuple[Broadcast, bool, bool]:
    """Rule of rows for these batch shapes, and whether x or h must be expanded because its axes do not adjoin."""
    try:
        batch = np.broadcast_shapes(x_batch, h_batch)
    except ValueError:
        raise ArgumentError(
            f"the leading axes {x_batch} of the first array and {h_batch} of the second do not broadcast."
        ) from None
    x_span, h_span = _span(x_batch, batch), _span(h_batch, batch)
    expand_x, expand_h = x_span is None, h_span is None
    x_inner, x_rows = x_span or (1, math.prod(batch))
    inner, groups = h_span or (1, math.prod(batch))
    return Broadcast(batch, groups, inner, x_inner, x_rows), expand_x, expand_h
