"""Bytes of elements and accesses, and how values of a thread are spread over a result; no CUDA is imported here."""

from __future__ import annotations

from dataclasses import dataclass

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "float64": 8, "complex64": 8, "complex128": 16}
WIDEST = 16  # bytes of one access


@dataclass(frozen=True)
class Spread:
    """values[columns k + e] of a thread is element (row + row_step k, column + column_step e)."""

    rows: int
    columns: int
    row_step: int
    column_step: int


EIGHTS = Spread(4, 8, 4, 1)  # for accesses of eight elements
SINGLES = Spread(16, 2, 1, 32)  # for single elements: neighbouring lanes have neighbouring columns
