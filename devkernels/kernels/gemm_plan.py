"""`Gemm`: a planned product, and what it remembers of calls.

In: arrays of NumPy, CuPy or torch. Out: the result; every check (gemm_checks.py) comes before anything is launched or
written. Made by `devkernels.make_gemm` (devkernels/kernels/gemm.py), which documents it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels import target
from devkernels.errors import TargetError
from devkernels.kernels import arrays, gemm_images, gemm_kernels, gemm_tune
from devkernels.kernels.gemm_aligned import Scratch
from devkernels.kernels.gemm_checks import Checks
from devkernels.kernels.gemm_route import PORTABLE, GemmSpec, as_matrix, by_kind, by_shape
from devkernels.kernels.gemm_tune import USUAL, Knobs
from devkernels.matrix.steps import operands_of

_REMEMBERED = 256


class Gemm:
    """A product with its dtypes and epilogue chosen; made by `make_gemm`, which documents it."""

    def __init__(self, spec: GemmSpec, tune: bool = False):
        self.spec, self.tune = spec, tune
        self._knobs: dict[str, Knobs] = {}  # what was measured, by what it depends on
        self.checks = Checks(spec)
        # What was found out about calls: by all that a launch depends on, addresses included, the launch; by all but
        # the result, its shape and dtype. No array is kept alive: one at the same address is as good.
        self._bound: dict[tuple, Callable[[], None]] = {}
        self._made: dict[tuple, tuple] = {}
        self._kept: list = []  # memory of captured CUDA graphs
        self._scratch = Scratch(self._forget)  # for copies of operands

    def __reduce__(self):
        return Gemm, (self.spec, self.tune)

    def _forget(self) -> None:
        self._bound.clear()
        self._made.clear()

    def __repr__(self) -> str:
        s = self.spec
        steps = ", ".join(step.name if step.function is None else step.function.__name__ for step in s.steps)
        return f"<Gemm {s.a_dtype} x {s.b_dtype} -> {s.out_dtype}, added up in {s.accumulate}, epilogue ({steps})>"

    def describe(self, a: Any = None, b: Any = None, c: Any = None, out: Any = None) -> str:
        """Say which main loop runs and why: for these dtypes on this machine, or for given arrays (c if it is read)."""
        if a is None or b is None:
            route = by_kind(self.spec, target.current_target())
            hint = "; arrays may still need another one" if route.path != PORTABLE else ""
            return f"{self!r}\n{route}{hint}"
        seen = self.checks.operands(a, b, None)
        d = self.checks.result(a, seen, out)
        result = as_matrix(arrays.describe(d, "out"))
        c_dtype = None if c is None else arrays.describe(c, "c").dtype
        route = by_shape(self.spec, target.current_target(), seen["a"], seen["b"], result, c_dtype)
        return f"{self!r}\n{route}"

    def __call__(
        self, a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 0.0, extra: tuple = (),
        out: Any = None, stream: Any = None,
    ) -> Any:  # fmt: skip
        """Multiply; see `make_gemm`."""
        extra = extra if type(extra) is tuple else tuple(extra) if isinstance(extra, tuple) else (extra,)
        key = None
        if stream is None or type(stream) is int:
            key = call_key((a, b, c, *extra), alpha, beta, stream)
        result = out
        if key is not None:
            if result is None and (made := self._made.get(key)) is not None:
                result = arrays.empty(a, *made)
            if result is not None and (mark := call_key((result,))) is not None:
                run = self._bound.get((key, mark))
                if run is not None and run() is not False:
                    return result
        return self._launch(a, b, c, alpha, beta, extra, result, stream, key)

    def bind(
        self, a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 0.0, extra: tuple = (), out: Any,
        stream: Any = None,
    ) -> Callable[[], None]:  # fmt: skip
        """Check everything once and run once; return a function that only launches again, on the same memory.

        It keeps its arrays alive. Where a product needs several launches, or host arrays are copied, it calls the plan.
        """
        extra = extra if isinstance(extra, tuple) else (extra,)
        kept = []
        self._launch(a, b, c, alpha, beta, extra, out, stream, None, kept)
        if not kept or kept[0] is None:

            def again() -> None:
                self(a, b, c, alpha=alpha, beta=beta, extra=extra, out=out, stream=stream)

            return again
        run = kept[0]
        run.arguments = run.arguments, a, b, c, extra, out

        def again_or_anew() -> None:
            if run() is False:  # operands are copied, and it is another stream, or one that is captured
                self(a, b, c, alpha=alpha, beta=beta, extra=extra, out=out, stream=stream)

        return again_or_anew if getattr(run, "declines", False) else run

    def _launch(
        self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, out: Any, stream: Any, key: tuple | None,
        kept: list | None = None,
    ) -> Any:  # fmt: skip
        """Check, compile if need be, launch, and remember under `key`, or in the list `kept`, how it was done."""
        if target.home().kind == "aot":
            raise TargetError(f"this process only compiles ({target.home().reason}); run products on a GPU.")
        checks = self.checks
        seen = checks.operands(a, b, c if beta != 0 else None)
        scalars = checks.scalars(alpha, beta)
        if c is not None and beta == 0:
            checks.operands(a, b, c)  # refused even if it is not read
        result = checks.result(a, seen, out)
        checks.check_extra(extra, operands_of(self.spec.steps), seen, a)
        inputs = {"a": a, "b": b, **({"c": c} if beta != 0 else {})}
        inputs |= {f"extra[{i}]": x for i, x in enumerate(extra) if hasattr(x, "shape") and x.shape != ()}
        if out is not None:
            checks.check_overlap(out, inputs)

        def launch(**given: Any) -> None:
            there = tuple(given.get(f"extra[{i}]", x) for i, x in enumerate(extra))
            values = given["a"], given["b"], given.get("c"), *scalars, there, given["out"]
            knobs = self._tuned(values, stream) if self.tune and target.home().kind == "gpu" else USUAL
            prepared = gemm_kernels.prepare(
                self.spec, *values[:3], given["out"], there, stream, self._kept, knobs, self._scratch
            )  # fmt: skip
            prepared(*values)
            if target.home().kind == "gpu" and given["out"] is result:
                if kept is not None:
                    kept.append(prepared.bind(*values))
                elif key is not None and (mark := call_key((result,))) is not None:
                    self._remember(key, mark, prepared.bind(*values))
                    self._made[key] = checks.shape(seen), self.spec.out_dtype

        arrays.run_where_kernels_live({**inputs, "out": result}, launch, ("out",))
        return result

    def _tuned(self, values: tuple, stream: Any) -> Knobs:
        """The fastest choice for arrays like these; measured on a result of its own, since out may be an operand."""
        a, b, c, _, _, extra, d = values
        left, right, result, route = gemm_kernels.routed(self.spec, a, b, c, d)
        key = gemm_tune.key_of(self.spec, route, left, right, result, c is not None)
        if key not in self._knobs:
            if gemm_tune.capturing(a, stream):
                return gemm_tune.known(key) or USUAL
            other = arrays.empty(a, tuple(d.shape), self.spec.out_dtype)

            def launch(knobs: Knobs) -> Callable[[], None]:
                run = gemm_kernels.prepare(self.spec, a, b, c, other, extra, stream, self._kept, knobs, self._scratch)
                return lambda: run(*values[:6], other)

            with arrays.on_stream(a, stream):
                self._knobs[key] = gemm_tune.tuned(key, route, a, launch)
        return self._knobs[key]

    def _remember(self, key: tuple, mark: tuple, run: Callable[[], None] | None) -> None:
        """Keep a launch for arrays like these at these addresses."""
        if run is None:
            return
        if len(self._bound) >= _REMEMBERED:
            self._forget()
        run.arguments = run.arguments[1]  # the buffer, and none of the arrays
        self._bound[key, mark] = run

    def image_sources(self, c: object = None, extra: str | None = None) -> dict[str, tuple]:
        """Kernels of this product for ``devkernels build``, by file name, for the target that is compiled for.

        Parameters
        ----------
        c : bool or dtype, optional
            Also those that read a c: True for one of the result's dtype, or its dtype.
        extra : str, optional
            What a function of yours takes after (acc, row, column), such as ``"float32[::1], float32"``; floating-point
            numbers have the type in which products are added up, integers are int64.

        Raises
        ------
        SpecError
            `c` or `extra` is not understood.
        """
        return gemm_images.image_sources(self.spec, c, extra)


def call_key(values: tuple, *others: Any) -> tuple | None:
    """All of some device arrays and numbers that a launch depends on; None if they must be looked at in full."""
    key = [*others]
    for x in values:
        kind = type(x)
        what = _KINDS.get(kind) or _kind(kind)
        if what == "torch":
            if x.is_neg() or x.is_conj() or (x.requires_grad and sys.modules["torch"].is_grad_enabled()):
                return None
            key += (x.data_ptr(), x.shape, x.stride(), x.dtype)
        elif what == "cupy":
            key += (x.data.ptr, x.shape, x.strides, x.dtype)
        elif what == "number":
            key += (kind, x)
        elif what == "none":
            key.append(None)
        else:
            return None
    return tuple(key)


_KINDS: dict[type, str] = {}  # types of arguments -> what they are for `call_key`


def _kind(kind: type) -> str:
    module = kind.__module__
    if module.startswith(("torch", "cupy")):
        found = module.partition(".")[0]
    elif issubclass(kind, (float, int, np.generic)):
        found = "number"
    else:
        found = "none" if kind is type(None) else "other"
    _KINDS[kind] = found
    return found
