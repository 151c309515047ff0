"""Two products, one after the other: ``d = second(first(alpha a @ b) @ c)``, the matrix between them kept on chip.

In: matrices, and two epilogues. Out: the result. 16-bit floats from sm_80 on take one kernel
(devkernels/matrix/chain.py) as long as 128 rows of the matrix in between fit shared memory; all else takes two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels import target
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.kernels import arrays, gemm_chain_images
from devkernels.kernels.gemm import Gemm, make_gemm
from devkernels.kernels.gemm_chain_kernels import (
    chain_group_kernel,
    chain_kernel,
    configured,
    groups_of,
    tiling_of,
)
from devkernels.kernels.gemm_plan import call_key
from devkernels.kernels.gemm_route import PORTABLE, STAGED, TENSOR_DTYPES, GemmSpec, Matrix, Route, as_matrix, by_kind
from devkernels.kernels.gemm_views import batched_view, numbers
from devkernels.matrix import chain, chain_groups, tensor

_REMEMBERED = 256
FUSED, SEPARATE = "one kernel", "two kernels"
# From here on two kernels were measured to be faster on an H200 (0.038 against 0.052 ms, 16384 x 512 x 512 x 512): each
# finishes a tile while it multiplies another, and the matrix in between is still in the L2 cache.
_MANY_ROWS, _WIDE = 16384, 512


class GemmChain:
    """Two products with their epilogues chosen; made by `make_gemm_chain`, which documents it."""

    def __init__(self, first: Gemm, second: Gemm):
        self.first, self.second = first, second
        self._bound: dict[tuple, Callable[[], None]] = {}  # launches, by all that they depend on, addresses included

    @property
    def _specs(self) -> tuple[GemmSpec, GemmSpec]:
        return self.first.spec, self.second.spec

    def __repr__(self) -> str:
        return f"<GemmChain {self.first!r}, then {self.second!r}>"

    def _route(self, columns: int | None, last: int | None = None, rows: int | None = None) -> Route:
        """One kernel or two, and why; `last`: columns of the result, `rows`: its rows, those of all batches."""
        here = target.current_target()
        kind = by_kind(self.first.spec, here)
        if kind.path in (PORTABLE, STAGED):
            return Route(SEPARATE, kind.reason)
        if self.first.spec.a_dtype not in TENSOR_DTYPES:
            return Route(SEPARATE, f"one kernel keeps {' or '.join(TENSOR_DTYPES)} in between")
        if columns is None:
            return Route(FUSED, "as long as 128 rows of the matrix in between fit shared memory")
        if here.major == 9:
            if chain_groups.stages_for(columns, here.max_shared_bytes) < 2:
                return Route(
                    SEPARATE, f"128 rows of {columns} columns in between leave no room for two stages of tensor copies"
                )
            if min(columns, last or 0) >= _WIDE and (rows or 0) >= _MANY_ROWS:
                return Route(
                    SEPARATE,
                    f"two products of {rows} rows by {columns} and {last} columns are faster by themselves: each "
                    f"finishes a tile while it multiplies another",
                )
            return Route(FUSED, f"128 rows of {columns} columns in between stay in shared memory; tensor copies and "
                                f"warpgroup products where a, b and c lie on multiples of 16 bytes")  # fmt: skip
        needed = chain.shared_bytes(columns)
        if needed > here.max_shared_bytes:
            return Route(
                SEPARATE,
                f"128 rows of {columns} columns in between take {needed} bytes of shared memory; a block of {here} has "
                f"{here.max_shared_bytes}",
            )
        return Route(FUSED, f"128 rows of {columns} columns in between stay in {needed} bytes of shared memory")

    def describe(self, columns: int | None = None, last: int | None = None, rows: int | None = None) -> str:
        """Say whether one kernel runs or two, and why.

        `columns` are those of the matrix in between, `last` those of the result, `rows` its rows, all batches together.
        """
        return f"{self!r}\n{self._route(columns, last, rows)}"

    def __call__(
        self, a: Any, b: Any, c: Any, *, alpha: float = 1, extra: tuple = (), then: tuple = (), out: Any = None,
        stream: Any = None,
    ) -> Any:  # fmt: skip
        """Multiply; see `make_gemm_chain`."""
        key = None
        plain = type(extra) is type(then) is tuple and (stream is None or type(stream) is int)
        if out is not None and plain:
            key = call_key((a, b, c, *extra, *then, out), len(extra), alpha, stream)
            if key is not None and (run := self._bound.get(key)) is not None:
                run()
                return out
        seen = self.first.checks.check(a, b, alpha, extra)
        left, right = seen["a"], seen["b"]
        self._check_last(c, right.columns)
        last = as_matrix(arrays.describe(c, "c"))
        route = self._route(right.columns, last.columns, left.rows * (seen["batch"] or 1))
        if route.path == SEPARATE:
            between = self.first(a, b, alpha=alpha, extra=extra, stream=stream)
            return self.second(between, c, extra=then, out=out, stream=stream)
        stand_in = _stand_in(a, left, right, seen["batch"])
        result = self.second.checks.check_into(stand_in, c, then, out, a)
        inputs = {"a": a, "b": b, "c": c}
        inputs |= {f"extra[{i}]": x for i, x in enumerate(extra) if hasattr(x, "shape") and x.shape != ()}
        inputs |= {f"then[{i}]": x for i, x in enumerate(then) if hasattr(x, "shape") and x.shape != ()}
        if out is not None:
            mine = arrays.describe(out, "out")
            for name, x in inputs.items():
                other = arrays.describe(x, name)
                if arrays.overlap(mine, other) or mine.pointer == other.pointer:
                    raise ArgumentError(f"out overlaps {name} in memory; pass a separate array.", spec=self.second.spec)

        def launch(**given: Any) -> None:
            first = tuple(given.get(f"extra[{i}]", x) for i, x in enumerate(extra))
            second = tuple(given.get(f"then[{i}]", x) for i, x in enumerate(then))
            d = given["out"]
            matrices = tuple(as_matrix(arrays.describe(given[name], name)) for name in ("a", "b", "c", "out"))
            if (groups := groups_of(*self._specs, *matrices)) is not None:
                kernel = chain_group_kernel(
                    self.first.spec.steps, self.second.spec.steps, groups, _batched(first), _batched(second)
                )
                prepared, values = configured(self._specs, kernel, groups, matrices, alpha, d, first, second, stream)
                prepared(*values)
                if key is not None and d is result:
                    self._remember(key, prepared.bind(*values))
                return
            batch = d.shape[0] if len(d.shape) == 3 else 1
            kernel = chain_kernel(
                self.first.spec.steps, self.second.spec.steps,
                tiling_of(*self._specs, left, right, last, as_matrix(arrays.describe(d, "out"))),
                _batched(first), _batched(second),
            )  # fmt: skip
            grid = (-(-left.rows // tensor.TILE), batch)
            views = [batched_view(x, batch) for x in (given["a"], given["b"], given["c"], d)]
            kernel[grid, tensor.THREADS, stream, chain.shared_bytes(right.columns)](
                *views, np.float32(alpha), numbers(self.first.spec, first), numbers(self.second.spec, second)
            )

        arrays.run_where_kernels_live({**inputs, "out": result}, launch, ("out",))
        return result

    def image_sources(
        self, columns: int | None = None, batched: tuple[bool, bool, bool] = (False, False, False)
    ) -> dict[str, tuple]:
        """Kernels of this chain for ``devkernels build``, by file name, for the target that is compiled for.

        Parameters
        ----------
        columns : int
            Those of the matrix in between: the one kernel is made for a number of them.
        batched : tuple of bool, optional
            Which of a, b and c have a batch axis (of more than one).

        Raises
        ------
        SpecError
            `columns` are missing, or `batched` is not understood.
        """
        fused = self._route(columns).path == FUSED
        return gemm_chain_images.image_sources(self.first, self.second, fused, columns, batched)

    def __reduce__(self):
        return GemmChain, (self.first, self.second)

    def _remember(self, key: tuple, run: Callable[[], None]) -> None:
        """Keep a launch for arrays like these at these addresses, and none of the arrays."""
        if len(self._bound) >= _REMEMBERED:
            self._bound.clear()
        run.arguments = run.arguments[1]
        self._bound[key] = run

    def _check_last(self, c: Any, columns: int) -> None:
        """Say in this plan's words what the second product would say of its operand b."""
        seen, wanted = arrays.describe(c, "c"), self.second.spec.b_dtype
        if seen.dtype != wanted:
            raise ArgumentTypeError(
                f"c has dtype {seen.dtype}; this chain was made for {wanted}.", spec=self.second.spec
            )
        if len(seen.shape) in (2, 3) and seen.shape[-2] != columns:
            raise ArgumentError(
                f"a @ b has {columns} columns and c has {seen.shape[-2]} rows; they must be the same.",
                spec=self.second.spec,
            )


def _batched(extra: tuple) -> tuple[bool, ...]:
    return tuple(len(getattr(x, "shape", ())) == 3 for x in extra)


def _stand_in(a: Any, left: Matrix, right: Matrix, batch: int | None) -> Any:
    """Array with the shape of the matrix in between and one element of memory, for the checks of the second product."""
    shape = (left.rows, right.columns) if batch is None else (batch, left.rows, right.columns)
    one = arrays.empty(a, (1,) * len(shape), left.dtype)
    if arrays.library(a, "a") == "torch":
        return one.expand(shape)
    return (np if isinstance(one, np.ndarray) else sys.modules["cupy"]).broadcast_to(one, shape)


def make_gemm_chain(
    dtype: object, *, first: object = None, second: object = None, out_dtype: object = None
) -> GemmChain:
    """Plan ``d = second(first(alpha a @ b) @ c)``, such as a block of two layers, or scores times values.

    Parameters
    ----------
    dtype : dtype or str
        Of a, b and c: as in `make_gemm`. The matrix in between is rounded to it.
    first, second : callable, str, or a sequence of them, optional
        Epilogues of the two products, as in `make_gemm`.
    out_dtype : dtype or str, optional
        Of the result; left out, that of a.

    Returns
    -------
    GemmChain
        Call it ``g(a, b, c, alpha=1, extra=(), then=(), out=None, stream=None)``: a of shape (m, k) or (batch, m, k), b
        of (k, n), c of (n, p), each with a batch axis or without; `extra` is what the first epilogue takes and `then`
        what the second takes; alpha scales the first product. Returns an array of shape (m, p) or (batch, m, p).
        ``g.describe(n, p, rows)`` says whether one kernel runs or two, and why.

    Raises
    ------
    SpecError, ArgumentError, ArgumentTypeError, DeviceMismatchError
        Before anything is launched; `out` is then untouched.

    Notes
    -----
    One kernel for float16 and bfloat16 from sm_80 on, on tensor cores, as long as 128 rows of the matrix in between fit
    the shared memory of a block (640 columns on sm_90, beside two stages of tensor copies); all else takes two kernels,
    with the same result. So do products of 16384 rows and more whose n and p are both 512 or more on sm_90, where two
    kernels are faster; the matrix in between is then allocated at each call.
    """
    if isinstance(dtype, (tuple, list)):
        raise SpecError(f"dtype={dtype!r}: all operands of a chain have one dtype.")
    one = make_gemm(dtype, epilogue=first, out_dtype=dtype)
    return GemmChain(one, make_gemm(dtype, epilogue=second, out_dtype=out_dtype))
