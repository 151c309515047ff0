"""What a spectral filter takes: dtypes, shapes, and arrays that lie as they must.

In: a planned filter and a caller's arrays. Out: what is known of them, or an error that names argument, value and
remedy, before anything is launched or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.kernels import arrays

PRECISION = {"float16": "float16", "complex32": "float16", "float32": "float32", "complex64": "float32",
              "float64": "float64", "complex128": "float64"}  # fmt: skip
FILTER_COMPLEX = {"float16": "complex64", "float32": "complex64", "float64": "complex128"}
FILTER_REAL = {"float16": "float32", "float32": "float32", "float64": "float64"}


def dtype_name(dtype: object) -> str:
    """The name of a dtype that filters take, however it is written."""
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, type) else np.dtype(dtype).name
    if name not in PRECISION:
        raise SpecError(f"dtype={dtype!r} is not supported; use one of {', '.join(PRECISION)}.")
    return name


@dataclass(frozen=True)
class Rows:
    """How arrays of one dtype are laid out."""

    dtype: str

    @property
    def stored(self) -> str:
        """Dtype of the elements in memory: complex32 is pairs of float16."""
        return "float16" if self.dtype == "complex32" else self.dtype

    @property
    def tail(self) -> int:
        """Axes of one row."""
        return 2 if self.dtype == "complex32" else 1

    @property
    def real(self) -> bool:
        """Whether samples are real."""
        return self.dtype.startswith("float")


def check_rows(plan: Any, x: Any, name: str) -> arrays.Described:
    """What is known of rows that a filter can read or write."""
    seen, rows = arrays.describe(x, name), plan.layout
    if seen.dtype != rows.stored:
        raise ArgumentTypeError(
            f"{name} has dtype {seen.dtype}; this filter was made for {plan.dtype}"
            f"{' (float16 with a last axis of 2)' if rows.tail == 2 else ''}: "
            f"convert {name}, or make a filter for its dtype.",
            spec=plan,
        )
    wanted = (plan.size, 2) if rows.tail == 2 else (plan.size,)
    if len(seen.shape) < rows.tail or seen.shape[len(seen.shape) - rows.tail :] != wanted:
        raise ArgumentError(
            f"{name} has shape {seen.shape}; its last {'axes' if rows.tail == 2 else 'axis'} must be "
            f"{', '.join(map(str, wanted))}, the size that this filter was made for.",
            spec=plan,
        )
    if 0 in seen.shape:
        raise ArgumentError(f"{name} has shape {seen.shape}: no rows. Pass at least one row.", spec=plan)
    if (seen.shape[-1] > 1 and seen.strides[-1] != seen.itemsize) or (rows.tail == 2 and seen.strides[-2] != 4):
        raise ArgumentError(
            f"the last axis of {name} is not contiguous (strides {seen.strides} bytes); pass a contiguous copy, "
            f"such as numpy.ascontiguousarray({name}) or {name}.contiguous().",
            spec=plan,
        )
    word = 4 if rows.tail == 2 else seen.itemsize
    if seen.pointer % word or any(
        s % word for n, s in zip(seen.shape[: -rows.tail], seen.strides, strict=False) if n > 1
    ):
        raise ArgumentError(f"{name} does not start its rows on a multiple of {word} bytes; pass a copy.", spec=plan)
    return seen


def check_filter(plan: Any, H: Any, seen: arrays.Described) -> Any:
    """H as rows: one for all, or one for each row of x; None for a filter with a device function."""
    if plan.op is not None:
        if H is not None:
            raise ArgumentTypeError("this filter was made with a device function; call it without H.", spec=plan)
        return None
    if H is None or callable(H):
        raise ArgumentTypeError(
            "H is missing: pass an array on the frequency grid, or make the filter with op=a device function.",
            spec=plan,
        )
    mine = arrays.describe(H, "H")
    arrays.check_same_device(seen, mine, ("x", "H"))
    precision = PRECISION[plan.dtype]
    allowed = {FILTER_COMPLEX[precision], FILTER_REAL[precision]}
    if mine.dtype not in allowed:
        raise ArgumentTypeError(
            f"H has dtype {mine.dtype}; for {plan.dtype} data it must be {' or '.join(sorted(allowed))}.", spec=plan
        )
    batch = seen.shape[: len(seen.shape) - plan.layout.tail]
    shapes = [(plan.bins,), *([(*batch, plan.bins)] if batch else [])]
    if mine.shape not in shapes:
        raise ArgumentError(
            f"H has shape {mine.shape}; it must be {' (one filter for all rows) or '.join(map(str, shapes))}"
            f"{' (one per row)' if batch else ''}: {plan.bins} frequencies of a {plan.points}-point transform"
            f"{' of real data' if plan.layout.real else ''}.",
            spec=plan,
        )
    return arrays.as_rows(arrays.cast(H, mine.dtype), 1, "H", copy=True)


def check_out(plan: Any, out: Any, seen: arrays.Described, H: Any) -> None:
    """Raise unless results can be written to `out`, which may be x itself."""
    mine = check_rows(plan, out, "out")
    arrays.check_same_device(seen, mine, ("x", "out"))
    if mine.shape != seen.shape:
        raise ArgumentError(f"out has shape {mine.shape}; it must be that of x, {seen.shape}.", spec=plan)
    if arrays.overlap(seen, mine):
        raise ArgumentError(
            "out overlaps x in memory; pass x itself (filtering in place) or a separate array.", spec=plan
        )
    if H is not None and arrays.intersect(arrays.describe(H, "H"), mine):
        raise ArgumentError(
            "out overlaps H in memory: rows would be filtered with results; pass a separate array.", spec=plan
        )
    if mine.library == "numpy" and not out.flags.writeable:
        raise ArgumentError("out is read-only; pass a writeable array.", spec=plan)
