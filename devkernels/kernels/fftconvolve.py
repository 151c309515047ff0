"""Convolution and correlation along one axis, or two: the public functions.

in: arrays of NumPy, CuPy or torch. out: arrays of the same kind. Along one axis a call is one kernel; padding and
cropping happen in its masked loads and stores, and there is no work area beyond the filter's spectrum. Filters that no
block transform holds, and images, take three kernels and a work area.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels.errors import ArgumentError, SpecError, UnsupportedSizeError
from devkernels.kernels import arrays, convolve_arguments, convolve_plan, convolve_recipe
from devkernels.kernels.convolve_plan import checked
from devkernels.kernels.convolve_views import turned
from devkernels.kernels.convolver import FFTConvolve


@functools.lru_cache(maxsize=256)
def _planned(
    mode: str, length: int, taps: int, dtype: str, method: str | None, prologue: Callable | None,
    epilogue: Callable | None, tune: bool,
) -> FFTConvolve:  # fmt: skip
    plan = convolve_plan.plan_rows(mode, length, taps, dtype, method)
    if epilogue and plan.parts > 1:
        raise SpecError(
            f"epilogue is not available where rows are passed several times, as with this filter of {taps} samples."
        )
    return FFTConvolve(plan, dtype, mode, prologue, epilogue, tune)


def make_fftconvolve(
    length: int,
    taps: int,
    dtype: object,
    mode: str = "full",
    *,
    method: str | None = None,
    prologue: Callable | None = None,
    epilogue: Callable | None = None,
    tune: bool = False,
) -> FFTConvolve:
    """Plan the convolution of rows of `length` samples with filters of `taps` samples.

    Parameters
    ----------
    length, taps : int
        Samples along the last axis.
    dtype : dtype or str
        Of rows, filters and results: float16 (computed in float32), float32, float64, complex64, complex128.
    mode : {"full", "same", "valid", "circular", "causal"}
        Which samples of the convolution are returned. The first three as in scipy.signal; "causal" the first `length`
        of "full"; "circular" the circular convolution of period `length`.
    method : {"overlap"}, optional
        Use overlap-save also where one transform would hold a row. Default: whatever is estimated to be fastest.
    prologue, epilogue : callable, optional
        Device functions ``f(value, row, position)`` applied to each sample on load and on store, inside the kernel: to
        the samples of x (not to the zeros around them) and to those of the result; `row` counts rows of the result.
        Or ``f(value, row, position, extra)``: `extra` is the flat array of that name that calls are given, of any dtype
        and length, for gates, scales, residuals; which of its elements to read is the function's business. Their
        derivatives are not known: tensors that require gradients are refused, before anything is launched. To train
        through a gate, put it beside the convolution, where torch sees it: ``gate * plan(x, h)``.
    tune : bool
        Measure which plan is fastest on this GPU, once, with a progress bar, and keep it in the cache: of the block
        transform (see `block_fft`), or how a four-step transform is split; ``describe()`` says what was chosen.

    Returns
    -------
    FFTConvolve
        ``f(x, h, out=None, stream=None, extra=None)`` with x (..., length), h (..., taps), leading axes broadcast. To
        transform filters once, ``s = f.prepare(h)`` and then ``f(x, spectra=s)``.

    Raises
    ------
    SpecError, UnsupportedSizeError
        The mode, dtype or lengths are not supported.
    """
    name = checked(dtype, mode)
    for value, what in ((length, "length"), (taps, "taps")):
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise SpecError(f"{what}={value!r} must be a positive number of samples.")
    if method not in (None, "overlap"):
        raise SpecError(f"method={method!r} must be 'overlap', or left out.")
    return _planned(mode, int(length), int(taps), name, method, prologue, epilogue, tune)


def fftconvolve(
    in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Convolve along one axis, or two, as ``scipy.signal.fftconvolve(in1, in2, mode, axes)``.

    Parameters
    ----------
    in1, in2 : arrays of NumPy, CuPy or torch, or lists
        Shapes (..., n) and (..., k) with leading axes that broadcast; they need not be as many. The filter, in2, is
        transformed in a small kernel of its own; where it is used again, see `make_fftconvolve`. Different dtypes meet
        as in NumPy; integers count as float64; two single numbers without axes give their product.
    mode : {"full", "same", "valid", "circular", "causal"}
        See `make_fftconvolve`.
    axes : int or tuple of one or two int, optional
        The axes of in1 that are convolved: one kernel for one, three for two. Default: the last one (where SciPy takes
        all). Axes that are not the last are brought there by a copy, and the result's back. in2 has the same ones,
        counted from the end, or no others at all.
    out : array, optional
        Result array, contiguous.
    stream : optional
        CUDA stream; default: the current one of the arrays' library.

    Returns
    -------
    array
        Of in1's library, and of the dtype in which the operands meet; empty if one of them has no samples.

    Raises
    ------
    ArgumentError, ArgumentTypeError, SpecError, UnsupportedSizeError
        Before anything is launched.
    """
    return _convolve(in1, in2, mode, axes, None, out, stream)


def oaconvolve(
    in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Convolve long rows with a shorter filter, as ``scipy.signal.oaconvolve(in1, in2, mode, axes)``.

    Overlap-save in one kernel: each segment is read, transformed, filtered and written by one thread block, and nothing
    is kept in memory between. Filters of more than 12288 samples (6144 in double precision) are done by transforms in
    three kernels, with a work area of up to 256 MiB or one segment. Over two axes it is `fftconvolve`, in tiles where
    the images are larger than a transform. Parameters, results and errors as in `fftconvolve`.
    """
    return _convolve(in1, in2, mode, axes, "overlap", out, stream)


def correlate(
    in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Correlate along one axis, or two, as ``scipy.signal.correlate(in1, in2, mode, method="fft")`` does.

    ``correlate(x, h)`` is `fftconvolve` of x with the conjugate of h in reversed order; parameters as there. The
    result has the dtype in which the operands meet in NumPy: integers give integers, rounded.
    """
    return _convolve(in1, in2, mode, axes, None, out, stream, correlates=True)


def _convolve(
    in1: Any, in2: Any, mode: str, axes: Any, method: str | None, out: Any, stream: Any, correlates: bool = False
) -> Any:
    if stream is not None:
        with arrays.on_stream(convolve_arguments.as_array(in1), stream):
            return _convolve(in1, in2, mode, axes, method, out, None, correlates)
    key = None if correlates else _key(in1, in2, mode, axes, method, out)
    plan = _seen.get(key) if key else None
    if plan is not None:
        return plan(in1, in2, out=out)
    if out is None and axes is None and convolve_arguments.numbers(in1, in2):
        first, second = (convolve_arguments.as_array(number) for number in (in1, in2))
        return first * (second.conj() if correlates else second)
    asked = convolve_arguments.operands(in1, in2, mode, axes, whole=correlates)
    x, h = asked.first, asked.second
    if correlates:
        h = turned(h, asked.count)
    if 0 in (*asked.lasts[0], *asked.lasts[1]):
        return _nothing(asked, x, out)
    if asked.plain:
        return _planned_call(asked, x, h, mode, method, out, key if x is in1 and h is in2 else None)
    result = asked.finished(_planned_call(asked, x, h, mode, method, None))
    if out is None:
        return result
    seen = arrays.describe(x, "in1", gradients=True)
    arrays.check_result(out, seen, tuple(result.shape), asked.whole or asked.dtype, mode)
    out[...] = result
    return out


_seen: dict[tuple, Any] = {}  # plans of calls on device arrays, by all that their choice depended on
_MOST_SEEN = 256


def _key(in1: Any, in2: Any, mode: str, axes: Any, method: str | None, out: Any) -> tuple | None:
    """What the choice of a plan depends on, or None where the arrays must be looked at in full."""
    if axes is not None and type(axes) is not int and not (type(axes) is tuple and all(type(a) is int for a in axes)):
        return None
    marks = convolve_recipe.key_of(in1, in2, None, out)
    return marks and (*marks, mode, axes, method)


def _planned_call(
    asked: convolve_arguments.Operands,
    x: Any,
    h: Any,
    mode: str,
    method: str | None,
    out: Any,
    key: tuple | None = None,
) -> Any:
    """The convolution of operands along their last axes; `key` is what to remember the plan by."""
    (*_, length), (*_, taps) = asked.lasts
    if asked.count == 1:
        plan = make_fftconvolve(length, taps, asked.dtype, mode, method=method)
        return _remembered(plan, key)(x, h, out=out)
    from devkernels.kernels.fftconvolve2d import make_fftconvolve2d

    try:
        plan = make_fftconvolve2d(*asked.lasts, asked.dtype, mode)
    except UnsupportedSizeError:  # larger than a transform
        from devkernels.kernels import convolve_tiles

        return convolve_tiles.convolve(x, h, mode, out)
    return _remembered(plan, key)(x, h, out=out)


def _remembered(plan: Any, key: tuple | None) -> Any:
    if key is not None:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[key] = plan
    return plan


def _nothing(asked: convolve_arguments.Operands, x: Any, out: Any) -> Any:
    """The result without samples that SciPy gives where an operand has none."""
    if out is not None:
        raise ArgumentError(
            f"in1 and in2 have {asked.lasts[0]} and {asked.lasts[1]} samples: there is nothing for out."
        )
    batch = np.broadcast_shapes(*(shape[: -asked.count] for shape in asked.shapes))
    return asked.finished(arrays.empty(x, (*batch, *(0,) * asked.count), asked.dtype))
