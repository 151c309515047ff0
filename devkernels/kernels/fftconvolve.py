"""Convolution and correlation along the last axis, or the last two: the public functions.

in: arrays of NumPy, CuPy or torch. out: arrays of the same kind. Along one axis a call is one kernel; padding and
cropping happen in its masked loads and stores, and there is no work area beyond the filter's spectrum. Filters that no
block transform holds, and images, take three kernels and a work area.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError, UnsupportedSizeError
from devkernels.kernels import arrays, convolve_plan
from devkernels.kernels.convolve_plan import COMPUTE, MODES
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
    tune : bool
        Measure which plan is fastest on this GPU, once, and keep it (see `block_fft`).

    Returns
    -------
    FFTConvolve
        ``f(x, h, out=None, stream=None)`` with x (..., length), h (..., taps), leading axes broadcast. To transform
        filters once, ``s = f.prepare(h)`` and then ``f(x, spectra=s)``.

    Raises
    ------
    SpecError, UnsupportedSizeError
        The mode, dtype or lengths are not supported.
    """
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, (type, np.dtype)) else np.dtype(dtype).name
    if name not in COMPUTE:
        raise SpecError(f"dtype={dtype!r} is not supported; use one of {', '.join(COMPUTE)}.")
    if mode not in MODES:
        raise SpecError(f"mode={mode!r} must be one of {', '.join(MODES)}.")
    for value, what in ((length, "length"), (taps, "taps")):
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise SpecError(f"{what}={value!r} must be a positive number of samples.")
    if method not in (None, "overlap"):
        raise SpecError(f"method={method!r} must be 'overlap', or left out.")
    return _planned(mode, int(length), int(taps), name, method, prologue, epilogue, tune)


def fftconvolve(
    in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Convolve along the last axis, or the last two, as ``scipy.signal.fftconvolve(in1, in2, mode, axes)``.

    Parameters
    ----------
    in1, in2 : arrays of NumPy, CuPy or torch
        Shapes (..., n) and (..., k) with leading axes that broadcast; same dtype. The filter, in2, is transformed in a
        small kernel of its own; where it is used again, see `make_fftconvolve`.
    mode : {"full", "same", "valid", "circular", "causal"}
        See `make_fftconvolve`.
    axes : int or tuple of two int, optional
        The last axis (-1, also None), or the last two, (-2, -1): three kernels then.
    out : array, optional
        Result array, contiguous.
    stream : optional
        CUDA stream; default: the current one of the arrays' library.

    Returns
    -------
    array
        Of in1's library and dtype.

    Raises
    ------
    ArgumentError, ArgumentTypeError, SpecError, UnsupportedSizeError
        Before anything is launched.
    """
    return _convolve(in1, in2, mode, axes, None, out, stream)


def oaconvolve(
    in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Convolve long rows with a shorter filter, as ``scipy.signal.oaconvolve(in1, in2, mode, axes=-1)``.

    Overlap-save in one kernel: each segment is read, transformed, filtered and written by one thread block, and nothing
    is kept in memory between. Filters of more than 12288 samples (6144 in double precision) are done by transforms in
    three kernels, with a work area of up to 256 MiB or one segment. Parameters, results and errors as in `fftconvolve`.
    """
    return _convolve(in1, in2, mode, axes, "overlap", out, stream)


def correlate(
    in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Correlate along the last axis, or the last two, as ``scipy.signal.correlate(in1, in2, mode, method="fft")`` does.

    ``correlate(x, h)`` is `fftconvolve` of x with the conjugate of h in reversed order; parameters as there.
    """
    seen = arrays.describe(in2, "in2", gradients=True)
    turned = tuple(range(-min(_axes(axes, len(in1.shape)), len(seen.shape)), 0))
    if seen.library == "torch":
        reversed_ = in2.flip(turned)
        reversed_ = reversed_.conj().resolve_conj() if reversed_.is_complex() else reversed_
    else:
        reversed_ = in2[(..., *(slice(None, None, -1) for _ in turned))].conj()
    return _convolve(in1, reversed_, mode, axes, None, out, stream)


def _convolve(in1: Any, in2: Any, mode: str, axes: Any, method: str | None, out: Any, stream: Any) -> Any:
    first, second = (arrays.describe(a, n, gradients=True) for a, n in ((in1, "in1"), (in2, "in2")))
    if not first.shape or not second.shape:
        raise ArgumentError("both arrays need at least one axis.")
    count = _axes(axes, len(first.shape))
    if first.dtype != second.dtype:
        raise ArgumentTypeError(f"in1 has dtype {first.dtype} and in2 {second.dtype}; convert one of them.")
    if 0 in (first.shape[-1], second.shape[-1]):
        raise ArgumentError(f"in1 has shape {first.shape} and in2 {second.shape}: no samples to convolve.")
    if count == 2:
        from devkernels.kernels.fftconvolve2d import make_fftconvolve2d

        if len(second.shape) < 2 or 0 in (*first.shape[-2:], *second.shape[-2:]):
            raise ArgumentError(f"in1 has shape {first.shape} and in2 {second.shape}; both need two axes of samples.")
        try:
            plan = make_fftconvolve2d(first.shape[-2:], second.shape[-2:], first.dtype, mode)
        except UnsupportedSizeError:  # larger than a transform
            from devkernels.kernels import convolve_tiles

            arrays.check_same_device(first, second, ("in1", "in2"))
            with arrays.on_stream(in1, stream):
                return convolve_tiles.convolve(in1, in2, mode, out)
        return plan(in1, in2, out=out, stream=stream)
    plan = make_fftconvolve(first.shape[-1], second.shape[-1], first.dtype, mode, method=method)
    return plan(in1, in2, out=out, stream=stream)


def _axes(axes: Any, ndim: int) -> int:
    """1 for the last axis, 2 for the last two."""
    given = (axes,) if isinstance(axes, int) else (-1,) if axes is None else tuple(axes)
    wanted = sorted(axis + ndim if axis < 0 else axis for axis in given)
    for count in (1, 2):
        if count <= ndim and wanted == list(range(ndim - count, ndim)):
            return count
    raise SpecError(f"axes={axes!r} is not supported: use the last axis (-1) or the last two (-2, -1).")
