"""Products of matrices in one kernel with a Python epilogue: ``d = epilogue(alpha a @ b + beta c)``.

In: matrices of NumPy, CuPy or torch, and an epilogue: names of ready steps, or a function of (acc, row, column, ...).
Out: the result. Main loops, in devkernels/matrix: tensor copies and warpgroup products on sm_90 (warpgroup.py), small
products in registers (small.py), tensor cores at any alignment (tensor.py), slices copied ahead for wider and complex
numbers (staged.py), and a portable one for every dtype, order and architecture (portable.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels.errors import SpecError
from devkernels.kernels import arrays
from devkernels.kernels.gemm_plan import Gemm
from devkernels.kernels.gemm_route import ACCUMULATE, GemmSpec
from devkernels.matrix.steps import is_function, make_steps, takes_all

__all__ = ["Gemm", "gemm", "make_gemm"]


def _dtype_name(value: object, argument: str) -> str:
    name = str(value).removeprefix("torch.") if not isinstance(value, type) else np.dtype(value).name
    if name not in ACCUMULATE:
        raise SpecError(f"{argument}={value!r} is not supported; use one of {', '.join(ACCUMULATE)}.")
    return name


def make_gemm(
    dtype: object,
    *,
    out_dtype: object = None,
    accumulate: object = None,
    epilogue: object = None,
    prologue_a: Callable | None = None,
    prologue_b: Callable | None = None,
    tf32: int | None = None,
    tune: bool = False,
) -> Gemm:
    """Plan ``d[row, column] = epilogue(alpha (a @ b)[row, column] + beta c[row, column])`` as one kernel.

    Parameters
    ----------
    dtype : dtype or str, or two of them
        Of a and b: float16, bfloat16 (torch), float32, float64, complex64, complex128, or integers.
    out_dtype : dtype or str, optional
        Of the result. Left out: int8 if the epilogue ends with ``"int8"``; int32 or int64 for integers; else that of a.
    accumulate : dtype or str, optional
        In which products are added up and the epilogue computes. Left out: float32 for 16-bit floats, int32 for 8-bit
        integers, int64 for wider ones, else the dtype itself. float32 for int8: sums are exact in int32 on tensor
        cores, then rounded to float32, so that scales, biases and functions can follow.
    epilogue : callable, str, or a sequence of them, optional
        A plain Python function ``f(acc, row, column, *extra)`` that returns the element of the result, compiled into
        the kernel; or names of ready steps, applied one after another, each with its operand, if it has one, in
        `extra`: ``"bias"`` and ``"column_scale"`` (of shape (n,)), ``"row_bias"`` and ``"row_scale"`` (m,),
        ``"residual"`` and ``"multiply"`` (m, n), ``"relu"``, ``"gelu"`` (exact), ``"gelu_tanh"``, ``"silu"``,
        ``"int8"`` (clamp to -128 ... 127 and round to even). Functions among several steps are ``f(acc, row, column)``.
    prologue_a, prologue_b : callable, optional
        Functions ``f(x, row, column)`` that every element of a or b passes through on its way in. float16 and bfloat16
        operands are rounded to their dtype again behind it. On a GPU the operand is copied through its prologue once,
        and the product of the copy takes the fast main loops.
    tf32 : {0, 1, 3}, optional
        Multiply float32, or the parts of complex64, on tensor cores, as numbers with ten bits after the point, and add
        up in float32. 1: in one product, which drops the other bits (a relative error of up to 2**-10 in each factor;
        float32 only, on sm_90; elsewhere this changes nothing). 3: in three products, of each number rounded and what
        that leaves (about as exact as float32; from sm_80 on; infinities become NaN). 0: multiply what is there. Left
        out: 3 for complex64, else 0.
    tune : bool
        Measure some ways of cutting the work at the first call for shapes and orders, on a GPU, and keep the fastest in
        the cache. Such a call takes seconds; while a CUDA graph is captured nothing is measured, and what the cache
        knows is used, or the rules.

    Returns
    -------
    Gemm
        Call it ``g(a, b, c=None, alpha=1, beta=0, extra=(), out=None, stream=None)``: a of shape (m, k) or (batch, m,
        k), b of (k, n) or (batch, k, n), in any order, also strided; c of the result's shape, not read if beta is 0;
        `extra` what the epilogue takes, arrays and numbers. Returns an array of the kind of a, or `out`, which may be
        c or the operand of a ready step. ``g.describe(a, b)`` says which of the main loops runs, and why;
        ``g.bind(a, b, ..., out=out)`` checks and runs once and gives a function that only launches again.

    Raises
    ------
    SpecError, ArgumentError, ArgumentTypeError, DeviceMismatchError, ResourceError
        Before anything is launched; `out` is then untouched.

    Notes
    -----
    On sm_90, products of float16 and bfloat16 whose rows or columns lie on multiples of 16 bytes go through tensor
    copies and warpgroup products (docs/matmul.md has what was measured); many small ones, dense and in row order, are
    computed in registers; other products of 16-bit floats go through tensor cores from sm_80 on, and float32, float64
    and complex numbers through slices that are copied ahead, float64 and complex128 on tensor cores; everything else
    through a portable kernel. A function is called with row and column inside the result, but perhaps
    more than once for the last ones; it must have no side effects. In float32, silu and gelu_tanh are computed with
    the hardware's exp2 and reciprocal (relative error about 2**-21). Python numbers in `extra` become numbers of the
    accumulator's kind.

    Examples
    --------
    >>> g = devkernels.make_gemm("float16", epilogue=("bias", "silu", "residual"))
    >>> y = g(x, w, extra=(bias, residual))
    """
    given = tuple(dtype) if isinstance(dtype, (tuple, list)) else (dtype, dtype)
    if len(given) != 2:
        raise SpecError(f"dtype={dtype!r} must be one dtype, or two: of a and b.")
    a_dtype, b_dtype = (_dtype_name(one, "dtype") for one in given)
    steps = make_steps(epilogue)
    kinds = {ACCUMULATE[a_dtype], ACCUMULATE[b_dtype]}
    if accumulate is not None:
        kind = _dtype_name(accumulate, "accumulate")
    elif len(kinds) == 1:
        kind = kinds.pop()
    else:
        kind = np.result_type(*kinds).name
    if kind not in ("float32", "float64", "complex64", "complex128", "int32", "int64"):
        raise SpecError(f"accumulate={accumulate!r} is not supported; add up in float32 or wider, or int32 or int64.")
    bytes_to_floats = kind == "float32" and {a_dtype, b_dtype} <= {"int8", "uint8"}
    whole = [np.dtype(one).kind in "iu" for one in (kind, ACCUMULATE[a_dtype])]
    halved = np.dtype(kind).kind != "c" and np.dtype(ACCUMULATE[a_dtype]).kind == "c"
    if (whole[0] != whole[1] and not bytes_to_floats) or halved:
        raise SpecError(f"accumulate={kind} cannot hold products of {a_dtype} and {b_dtype}.")
    if kind not in ("float32", "float64"):
        for step in steps:
            if step.name in ("gelu", "gelu_tanh", "silu", "int8", "relu"):
                raise SpecError(f"epilogue {step.name!r} is for real floating point, not for {kind}; write a function.")
    if out_dtype is not None:
        result = _dtype_name(out_dtype, "out_dtype")
    elif steps and steps[-1].name == "int8":
        result = "int8"
    else:
        complex_sums = np.dtype(kind).kind == "c" and not a_dtype.startswith("complex")
        result = kind if np.dtype(kind).kind in "iu" or bytes_to_floats or complex_sums else a_dtype
    if np.dtype(kind).kind == "c" and not result.startswith("complex") and not takes_all(steps):
        raise SpecError(
            f"out_dtype={result} cannot hold {kind}; let the epilogue be a function that returns real numbers."
        )
    for name, function in (("prologue_a", prologue_a), ("prologue_b", prologue_b)):
        if function is not None and not is_function(function):
            raise SpecError(f"{name}={function!r} is not a function f(x, row, column).")
    if tf32 is None:
        tf32 = 3 if a_dtype == b_dtype == kind == "complex64" else 0
    if tf32 not in (0, 1, 3):
        raise SpecError(f"tf32={tf32!r} is not understood; pass 0, 1 or 3, the number of products for each.")
    possible = ("float32",) if tf32 == 1 else ("float32", "complex64")
    if tf32 and not (a_dtype == b_dtype == kind and kind in possible):
        raise SpecError(
            f"tf32={int(tf32)} is a way of multiplying {' or '.join(possible)}, not {a_dtype} by {b_dtype} added up in "
            f"{kind}."
        )
    return Gemm(GemmSpec(a_dtype, b_dtype, result, kind, steps, prologue_a, prologue_b, int(tf32)), bool(tune))


_MOST = 64
_known: dict[tuple, Gemm] = {}  # by dtypes as their libraries give them, which is quicker to find out


@functools.lru_cache(maxsize=_MOST)
def _planned(dtypes: tuple, out_dtype: str | None, epilogue: object) -> Gemm:
    return make_gemm(dtypes, out_dtype=out_dtype, epilogue=epilogue)


def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float = 1, beta: float = 0, epilogue: object = None, extra: tuple = (),
    out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Multiply matrices once: ``epilogue(alpha a @ b + beta c)``; see `make_gemm`, whose plans this keeps.

    Parameters
    ----------
    a, b, c, alpha, beta, extra, out, stream
        As a `Gemm` takes them.
    epilogue : callable, str, or a sequence of them, optional
        As in `make_gemm`. Pass the same function object each time: a new one is compiled anew.

    Returns
    -------
    array
        Of the kind of a, or `out`; its dtype is that of `out`, else of a (int32 or int64 for integers).
    """
    epilogue = tuple(epilogue) if isinstance(epilogue, list) else epilogue
    kinds = getattr(a, "dtype", None), getattr(b, "dtype", None), None if out is None else getattr(out, "dtype", None)
    try:
        plan = _known.get((kinds, epilogue))
    except TypeError:  # not hashable, and so no epilogue
        make_steps(epilogue)
        raise
    if plan is None:
        dtypes = arrays.describe(a, "a").dtype, arrays.describe(b, "b").dtype
        plan = _planned(dtypes, None if out is None else arrays.describe(out, "out").dtype, epilogue)
        if len(_known) >= _MOST:
            _known.clear()
        _known[kinds, epilogue] = plan
    return plan(a, b, c, alpha=alpha, beta=beta, extra=extra, out=out, stream=stream)
