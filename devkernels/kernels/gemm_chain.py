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
from devkernels.compiler.kernel import Options
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.kernels import arrays
from devkernels.kernels.gemm import Gemm, make_gemm
from devkernels.kernels.gemm_plan import call_key
from devkernels.kernels.gemm_route import PORTABLE, STAGED, TENSOR_DTYPES, Matrix, Route, as_matrix, by_kind
from devkernels.kernels.gemm_views import batched_view, numbers, wide_rows
from devkernels.kernels.gemm_warpgroup import check_maps, tensor_map_of
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch.jit import Kernel
from devkernels.matrix import chain, chain_groups, tensor, warpgroup
from devkernels.matrix.steps import Step, element_function

_REMEMBERED = 256
FUSED, SEPARATE = "one kernel", "two kernels"


class GemmChain:
    """Two products with their epilogues chosen; made by `make_gemm_chain`, which documents it."""

    def __init__(self, first: Gemm, second: Gemm):
        self.first, self.second = first, second
        self._bound: dict[tuple, Callable[[], None]] = {}  # launches, by all that they depend on, addresses included

    def __repr__(self) -> str:
        return f"<GemmChain {self.first!r}, then {self.second!r}>"

    def _route(self, columns: int | None) -> Route:
        """One kernel or two, and why."""
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

    def describe(self, columns: int | None = None) -> str:
        """Say whether one kernel runs or two, and why; `columns` are those of the matrix in between."""
        return f"{self!r}\n{self._route(columns)}"

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
        route = self._route(right.columns)
        if route.path == SEPARATE:
            between = self.first(a, b, alpha=alpha, extra=extra, stream=stream)
            return self.second(between, c, extra=then, out=out, stream=stream)
        last = as_matrix(arrays.describe(c, "c"))
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
            if (groups := _groups(self, *matrices)) is not None:
                kernel = chain_group_kernel(
                    self.first.spec.steps, self.second.spec.steps, groups, _batched(first), _batched(second)
                )
                configured, values = _configured(self, kernel, groups, matrices, alpha, d, first, second, stream)
                configured(*values)
                if key is not None and d is result:
                    self._remember(key, configured.bind(*values))
                return
            batch = d.shape[0] if len(d.shape) == 3 else 1
            kernel = compiled(
                self,
                _tiling(self, left, right, last, as_matrix(arrays.describe(d, "out"))),
                _batched(first),
                _batched(second),
            )
            grid = (-(-left.rows // tensor.TILE), batch)
            views = [batched_view(x, batch) for x in (given["a"], given["b"], given["c"], d)]
            kernel[grid, tensor.THREADS, stream, chain.shared_bytes(right.columns)](
                *views, np.float32(alpha), numbers(self.first.spec, first), numbers(self.second.spec, second)
            )

        arrays.run_where_kernels_live({**inputs, "out": result}, launch, ("out",))
        return result

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


def _tiling(plan: GemmChain, a: Matrix, b: Matrix, c: Matrix, d: Matrix) -> chain.ChainTiling:
    def wide(x: Matrix) -> bool:
        return x.along_rows is True and x.columns % 8 == 0 and x.aligned()

    matrices = (a, b, c)
    return chain.ChainTiling(
        plan.first.spec.a_dtype, plan.second.spec.out_dtype, b.columns,
        tuple(x.along_rows is not False for x in matrices), tuple(map(wide, matrices)), wide_rows(d),
    )  # fmt: skip


def compiled(plan: GemmChain, tiling: chain.ChainTiling, first: tuple, second: tuple) -> Kernel:
    """The one kernel; `first` and `second` say which operands of the epilogues have a batch axis."""
    return chain_kernel(plan.first.spec.steps, plan.second.spec.steps, tiling, first, second)


def _groups(plan: GemmChain, a: Matrix, b: Matrix, c: Matrix, d: Matrix) -> chain_groups.GroupChain | None:
    """How warpgroups do it; None where they cannot, or tensor copies cannot read the operands."""
    here = target.current_target()
    fitting = all(x.along_rows is not None and x.aligned() and x.pitch > 0 and x.strides[0] >= 0 for x in (a, b, c))
    if here.major != 9 or not fitting or plan.second.spec.out_dtype not in ("float16", "bfloat16", "float32"):
        return None
    if max(a.rows, a.columns, b.columns, c.columns) > 2**31 - 512 or d.batch > 65535:
        return None
    pair = 2 * d.itemsize
    return chain_groups.GroupChain(
        plan.first.spec.a_dtype, plan.second.spec.out_dtype, b.columns,
        (not a.along_rows, bool(b.along_rows), bool(c.along_rows)), tuple(x.batch > 1 for x in (a, b, c)),
        chain_groups.stages_for(b.columns, here.max_shared_bytes),
        d.along_rows is True and d.columns % 2 == 0 and d.aligned(pair),
    )  # fmt: skip


def _configured(
    plan: GemmChain, kernel: Kernel, t: chain_groups.GroupChain, matrices: tuple[Matrix, ...], alpha: float, d: Any,
    first: tuple, second: tuple, stream: Any,
) -> tuple[Any, tuple]:  # fmt: skip
    """The launch of the kernel by warpgroups, and its arguments."""
    a, b, c, result = matrices
    maps = (0,) * warpgroup.PAD_WORDS
    for x, turned in zip((a, b, c), t.turned, strict=True):
        maps += tensor_map_of(x, turned, chain_groups.DEPTH, chain_groups.ROWS)
    values = (
        maps, result.rows, result.columns, -(-a.columns // chain_groups.DEPTH), np.float32(alpha),
        batched_view(d, result.batch), numbers(plan.first.spec, first), numbers(plan.second.spec, second),
    )  # fmt: skip
    check_maps(kernel, values)
    grid = (-(-result.rows // chain_groups.ROWS), result.batch)
    return kernel[grid, chain_groups.THREADS, stream, t.shared_bytes], values


@lazy_kernel
def chain_group_kernel(
    first_steps: tuple[Step, ...], second_steps: tuple[Step, ...], tiling: chain_groups.GroupChain, first: tuple,
    second: tuple,
) -> Kernel:  # fmt: skip
    """The same by warpgroups; see `chain_groups.make_kernel`."""
    ends = element_function(first_steps, np.float32, first), element_function(second_steps, np.float32, second)
    options = Options(launch_bounds=chain_groups.THREADS, arch_specific=True)
    return Kernel(chain_groups.make_kernel(tiling, *ends), options)


@lazy_kernel
def chain_kernel(
    first_steps: tuple[Step, ...], second_steps: tuple[Step, ...], tiling: chain.ChainTiling, first: tuple,
    second: tuple,
) -> Kernel:  # fmt: skip
    """The one kernel of two products with these epilogues; see `chain.make_kernel`."""
    ends = element_function(first_steps, np.float32, first), element_function(second_steps, np.float32, second)
    return Kernel(chain.make_kernel(tiling, *ends), Options(launch_bounds=tensor.THREADS))


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
        ``g.describe(n)`` says whether one kernel runs or two, and why.

    Raises
    ------
    SpecError, ArgumentError, ArgumentTypeError, DeviceMismatchError
        Before anything is launched; `out` is then untouched.

    Notes
    -----
    One kernel for float16 and bfloat16 from sm_80 on, on tensor cores, as long as 128 rows of the matrix in between fit
    the shared memory of a block (640 columns on sm_90, beside two stages of tensor copies); all else takes two kernels,
    with the same result.
    """
    if isinstance(dtype, (tuple, list)):
        raise SpecError(f"dtype={dtype!r}: all operands of a chain have one dtype.")
    one = make_gemm(dtype, epilogue=first, out_dtype=dtype)
    return GemmChain(one, make_gemm(dtype, epilogue=second, out_dtype=out_dtype))
