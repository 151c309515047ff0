"""`Gemm`: a planned product, its checks, and what it remembers of calls.

In: arrays of NumPy, CuPy or torch. Out: the result; every check comes before anything is launched or written. Made by
`devkernels.make_gemm` (devkernels/kernels/gemm.py), which documents it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels import target
from devkernels.errors import ArgumentError, ArgumentTypeError, TargetError
from devkernels.kernels import arrays, gemm_images, gemm_kernels
from devkernels.kernels.gemm_route import ACCUMULATE, GemmSpec, Matrix, as_matrix, by_kind, by_shape
from devkernels.matrix.steps import Step, operands_of, takes_all

_REMEMBERED = 256


class Gemm:
    """A product with its dtypes and epilogue chosen; made by `make_gemm`, which documents it."""

    def __init__(self, spec: GemmSpec):
        self.spec = spec
        self._number = np.dtype(spec.accumulate).type
        self._launches: dict[tuple, Callable] = {}

    def __repr__(self) -> str:
        s = self.spec
        steps = ", ".join(step.name if step.function is None else step.function.__name__ for step in s.steps)
        return f"<Gemm {s.a_dtype} x {s.b_dtype} -> {s.out_dtype}, added up in {s.accumulate}, epilogue ({steps})>"

    def describe(self, a: Any = None, b: Any = None, c: Any = None, out: Any = None) -> str:
        """Say which main loop runs and why: for these dtypes on this machine, or for given arrays (c if it is read)."""
        if a is None or b is None:
            route = by_kind(self.spec, target.current_target())
            hint = "; arrays may still need the portable one" if route.path != "portable" else ""
            return f"{self!r}\n{route}{hint}"
        seen = self._operands(a, b, None)
        d = self._result(a, seen, out)
        result = as_matrix(arrays.describe(d, "out"))
        c_dtype = None if c is None else arrays.describe(c, "c").dtype
        route = by_shape(self.spec, target.current_target(), seen["a"], seen["b"], result, c_dtype)
        return f"{self!r}\n{route}"

    def __call__(
        self, a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 0.0, extra: tuple = (),
        out: Any = None, stream: Any = None,
    ) -> Any:  # fmt: skip
        """Multiply; see `make_gemm`."""
        extra = extra if isinstance(extra, tuple) else (extra,)
        if target.home().kind == "aot":
            raise TargetError(f"this process only compiles ({target.home().reason}); run products on a GPU.")
        result = out
        key = None
        if target.home().kind == "gpu":
            marks = [_mark(x) for x in (a, b, c, out, *extra)]
            if None not in marks:
                key = (tuple(marks), beta != 0, stream if isinstance(stream, int) else None)
                run = self._launches.get(key) if stream is None or isinstance(stream, int) else None
                if run is not None:
                    return run(a, b, c, alpha, beta, extra, out)
        seen = self._operands(a, b, c if beta != 0 else None)
        scalars = self._scalars(alpha, beta)
        if c is not None and beta == 0:
            self._operands(a, b, c)  # refused even if it is not read
        if out is None:
            result = self._new_result(a, seen)
        d = self._result(a, seen, result)
        steps = operands_of(self.spec.steps)
        self._check_extra(extra, steps, seen, a)
        inputs = {"a": a, "b": b, **({"c": c} if beta != 0 else {})}
        inputs |= {f"extra[{i}]": x for i, x in enumerate(extra) if hasattr(x, "shape") and x.shape != ()}
        if out is not None:
            self._check_overlap(out, inputs)

        def launch(**given: Any) -> None:
            there = tuple(given.get(f"extra[{i}]", x) for i, x in enumerate(extra))
            run = gemm_kernels.prepare(self.spec, given["a"], given["b"], given.get("c"), given["out"], there, stream)
            run(given["a"], given["b"], given.get("c"), *scalars, there, given["out"])
            if key is not None and (stream is None or isinstance(stream, int)):
                self._remember(key, a, seen, run)

        arrays.run_where_kernels_live({**inputs, "out": d}, launch, ("out",))
        return result

    def _remember(self, key: tuple, like: Any, seen: dict, run: Callable) -> None:
        """Keep what was found out about arrays like these at these addresses."""
        shape, dtype = self._shape(seen), self.spec.out_dtype
        made = key[0][3] != ()

        def again(a: Any, b: Any, c: Any, alpha: float, beta: float, extra: tuple, out: Any) -> Any:
            result = out if made else arrays.empty(a, shape, dtype)
            run(a, b, c if beta != 0 else None, *self._scalars(alpha, beta), extra, result)
            return result

        if len(self._launches) >= _REMEMBERED:
            self._launches.clear()
        self._launches[key] = again

    def check(self, a: Any, b: Any, alpha: float, extra: tuple) -> dict:
        """Check the operands of a call that has no c; return their axes."""
        seen = self._operands(a, b, None)
        self._scalars(alpha, 0)
        self._check_extra(extra, operands_of(self.spec.steps), seen, a)
        return seen

    def check_into(self, a: Any, b: Any, extra: tuple, out: Any, like: Any) -> Any:
        """As `check`; return `out`, checked, or a new array of the kind of `like`."""
        seen = self.check(a, b, 1, extra)
        return self._result(like, seen, out)

    # -- checks, all before anything is launched or written ------------------------------------------------------------

    def _scalars(self, alpha: Any, beta: Any) -> tuple:
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

    def _operands(self, a: Any, b: Any, c: Any) -> dict[str, Matrix]:
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

    def _shape(self, seen: dict) -> tuple[int, ...]:
        plain = (seen["a"].rows, seen["b"].columns)
        return plain if seen["batch"] is None else (seen["batch"], *plain)

    def _new_result(self, a: Any, seen: dict) -> Any:
        if self.spec.out_dtype == "bfloat16" and arrays.library(a, "a") != "torch":
            raise ArgumentTypeError("bfloat16 results need torch; CuPy and NumPy have no such dtype.", spec=self.spec)
        return arrays.empty(a, self._shape(seen), self.spec.out_dtype)

    def _result(self, a: Any, seen: dict, out: Any) -> Any:
        if out is None:
            return self._new_result(a, seen)
        mine = arrays.describe(out, "out")
        arrays.check_same_device(arrays.describe(a, "a"), mine, ("a", "out"))
        if mine.dtype != self.spec.out_dtype:
            raise ArgumentTypeError(f"out has dtype {mine.dtype}; it must be {self.spec.out_dtype}.", spec=self.spec)
        if mine.shape != self._shape(seen):
            raise ArgumentError(f"out has shape {mine.shape}; it must be {self._shape(seen)}.", spec=self.spec)
        if any(s <= 0 for n, s in zip(mine.shape, mine.strides, strict=True) if n > 1):
            raise ArgumentError(f"out has strides {mine.strides}; they must be positive.", spec=self.spec)
        if mine.library == "numpy" and not out.flags.writeable:
            raise ArgumentError("out is read-only; pass a writeable array.", spec=self.spec)
        return out

    def _check_overlap(self, out: Any, inputs: dict[str, Any]) -> None:
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

    def _check_extra(self, extra: tuple, steps: list[Step], seen: dict, a: Any) -> None:
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

    def image_sources(self) -> dict[str, tuple]:
        """Kernels of this product for ``devkernels build``, by file name; see `gemm_images.image_sources`."""
        return gemm_images.image_sources(self.spec)


def _mark(x: Any) -> tuple | None:
    """All of a device array that a launch depends on, or None if it must be looked at in full."""
    if x is None:
        return ()
    kind = type(x)
    module = kind.__module__.partition(".")[0]
    if module == "cupy":
        return (kind, x.data.ptr, x.shape, x.strides, x.dtype, x.data.device_id)
    if module == "torch" and x.is_cuda and not x.requires_grad and not x.is_conj() and not x.is_neg():
        return (kind, x.data_ptr(), x.shape, x.stride(), x.dtype, x.get_device())
    return (kind, x) if isinstance(x, (int, float, np.generic)) else None
