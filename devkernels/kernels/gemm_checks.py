"""Checks of a product's arguments, all before anything is launched or written.

In: what a caller passes to a `Gemm`. Out: what is known of it, or an error that names the argument, its value and what
to do.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from devkernels.errors import ArgumentError, ArgumentTypeError
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import ACCUMULATE, GemmSpec, Matrix, as_matrix
from devkernels.matrix.steps import Step, operands_of, takes_all


class Checks:
    """What a product made for `spec` takes."""

    def __init__(self, spec: GemmSpec):
        self.spec = spec
        self._number = np.dtype(spec.accumulate).type

    def scalars(self, alpha: Any, beta: Any) -> tuple:
        """Alpha and beta in the accumulator's kind."""
        kind = self._number
        if type(alpha) is float and type(beta) is float and kind is np.float32:  # the usual case, quickly
            return kind(alpha), kind(beta)
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not isinstance(value, numbers.Number):
                raise ArgumentTypeError(f"{name}={value!r} is not a number.", spec=self.spec)
        if np.dtype(kind).kind in "iu" and (alpha != int(alpha) or beta != int(beta)):
            raise ArgumentError(
                f"alpha={alpha!r} and beta={beta!r} must be whole numbers: {self.spec.accumulate} adds up.",
                spec=self.spec,
            )
        try:
            return kind(alpha), kind(beta)
        except TypeError:
            raise ArgumentTypeError(
                f"alpha={alpha!r} and beta={beta!r} must be numbers that {self.spec.accumulate} holds.", spec=self.spec
            ) from None

    def operands(self, a: Any, b: Any, c: Any) -> dict[str, Matrix]:
        """Axes of a, b and c, by name, and the length of the batch (None without one)."""
        found, spec = {}, self.spec
        described = {}
        for name, x, dtype in (("a", a, spec.a_dtype), ("b", b, spec.b_dtype), ("c", c, None)):
            if x is None:
                continue
            seen = described[name] = arrays.describe(x, name)
            if dtype is not None and seen.dtype != dtype:
                raise ArgumentTypeError(
                    f"{name} has dtype {seen.dtype}; this product was made for {dtype}: convert it, or make another.",
                    spec=spec,
                )
            if c is x and seen.dtype not in ACCUMULATE:
                raise ArgumentTypeError(f"c has dtype {seen.dtype}; use one of {', '.join(ACCUMULATE)}.", spec=spec)
            if c is x and seen.dtype.startswith("complex") and not spec.accumulate.startswith("complex"):
                raise ArgumentTypeError(
                    f"c has dtype {seen.dtype}, which {spec.accumulate}, in which this product adds up, cannot hold.",
                    spec=spec,
                )
            if len(seen.shape) not in (2, 3):
                raise ArgumentError(
                    f"{name} has shape {seen.shape}; pass a matrix, or a batch of them with three axes.", spec=spec
                )
            if 0 in seen.shape:
                raise ArgumentError(f"{name} has shape {seen.shape}: nothing to multiply.", spec=spec)
            if seen.pointer % seen.itemsize or any(s % seen.itemsize for s in seen.strides):
                raise ArgumentError(f"{name} does not lie on multiples of its item size; pass a copy.", spec=spec)
            arrays.check_same_device(described["a"], seen, ("a", name))
            found[name] = as_matrix(seen)
        left, right = found["a"], found["b"]
        if left.columns != right.rows:
            raise ArgumentError(
                f"a has {left.columns} columns and b has {right.rows} rows; they must be the same.", spec=spec
            )
        batches = {described[n].shape[0] for n in described if len(described[n].shape) == 3}
        if len(batches) > 1:
            raise ArgumentError(f"the batches of a, b and c have different lengths: {sorted(batches)}.", spec=spec)
        if "c" in found and (found["c"].rows, found["c"].columns) != (left.rows, right.columns):
            raise ArgumentError(
                f"c has shape {described['c'].shape}; it must be that of the result, {(left.rows, right.columns)}.",
                spec=spec,
            )
        found["batch"] = max(batches, default=None)
        return found

    def shape(self, seen: dict) -> tuple[int, ...]:
        """Shape of the result."""
        plain = (seen["a"].rows, seen["b"].columns)
        return plain if seen["batch"] is None else (seen["batch"], *plain)

    def new_result(self, a: Any, seen: dict) -> Any:
        """A new array for the result."""
        if self.spec.out_dtype == "bfloat16" and arrays.library(a, "a") != "torch":
            raise ArgumentTypeError("bfloat16 results need torch; CuPy and NumPy have no such dtype.", spec=self.spec)
        return arrays.empty(a, self.shape(seen), self.spec.out_dtype)

    def result(self, a: Any, seen: dict, out: Any) -> Any:
        """`out`, if it can take the result, or a new array of the kind of a."""
        if out is None:
            return self.new_result(a, seen)
        mine = arrays.describe(out, "out")
        arrays.check_same_device(arrays.describe(a, "a"), mine, ("a", "out"))
        if mine.dtype != self.spec.out_dtype:
            raise ArgumentTypeError(f"out has dtype {mine.dtype}; it must be {self.spec.out_dtype}.", spec=self.spec)
        if mine.shape != self.shape(seen):
            raise ArgumentError(f"out has shape {mine.shape}; it must be {self.shape(seen)}.", spec=self.spec)
        if any(s <= 0 for n, s in zip(mine.shape, mine.strides, strict=True) if n > 1):
            raise ArgumentError(f"out has strides {mine.strides}; they must be positive.", spec=self.spec)
        if mine.library == "numpy" and not out.flags.writeable:
            raise ArgumentError("out is read-only; pass a writeable array.", spec=self.spec)
        return out

    def check_overlap(self, out: Any, inputs: dict[str, Any]) -> None:
        """Raise if the result would be written over something that is still to be read."""
        mine = arrays.describe(out, "out")
        for name, x in inputs.items():
            other = arrays.describe(x, name)
            same = (mine.pointer, mine.strides, mine.shape) == (other.pointer, other.strides, other.shape)
            safe = same and name not in ("a", "b") and self._elementwise(name)
            if not safe and (same or arrays.overlap(mine, other)):
                raise ArgumentError(f"out overlaps {name} in memory; pass a separate array.", spec=self.spec)

    def _elementwise(self, name: str) -> bool:
        """Whether an operand is read only where, and just before, the result is written."""
        return name == "c" or not takes_all(self.spec.steps)

    def check_extra(self, extra: tuple, steps: list[Step], seen: dict, a: Any) -> None:
        """Raise unless `extra` is what the epilogue takes."""
        if takes_all(self.spec.steps):
            for i, x in enumerate(extra):
                if hasattr(x, "shape") and x.shape != ():
                    arrays.check_same_device(
                        arrays.describe(a, "a"), arrays.describe(x, f"extra[{i}]"), ("a", f"extra[{i}]")
                    )
            return
        if len(extra) != len(steps):
            names = ", ".join(step.name for step in steps) or "none"
            raise ArgumentError(
                f"extra has {len(extra)} items; the steps of this epilogue that have an operand are: {names}.",
                spec=self.spec,
            )
        m, n = seen["a"].rows, seen["b"].columns
        for i, (step, x) in enumerate(zip(steps, extra, strict=True)):
            mine = arrays.describe(x, f"extra[{i}]")
            arrays.check_same_device(arrays.describe(a, "a"), mine, ("a", f"extra[{i}]"))
            shapes = {"column": [(n,)], "row": [(m,)], "matrix": [(m, n)]}[step.axes]
            if step.axes == "matrix" and seen["batch"] is not None:
                shapes.append((seen["batch"], m, n))
            if mine.shape not in shapes:
                raise ArgumentError(
                    f"extra[{i}], the operand of {step.name!r}, has shape {mine.shape}; it must be "
                    f"{' or '.join(map(str, shapes))}.",
                    spec=self.spec,
                )
            if mine.dtype not in (*ACCUMULATE, "bool"):
                raise ArgumentTypeError(f"extra[{i}] has dtype {mine.dtype}, which is not supported.", spec=self.spec)

    def check(self, a: Any, b: Any, alpha: float, extra: tuple) -> dict:
        """Check the operands of a call that has no c; return their axes."""
        seen = self.operands(a, b, None)
        self.scalars(alpha, 0)
        self.check_extra(extra, operands_of(self.spec.steps), seen, a)
        return seen

    def check_into(self, a: Any, b: Any, extra: tuple, out: Any, like: Any) -> Any:
        """As `check`; return `out`, checked, or a new array of the kind of `like`."""
        seen = self.check(a, b, 1, extra)
        return self.result(like, seen, out)
