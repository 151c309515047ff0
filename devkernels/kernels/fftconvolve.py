"""Convolution and correlation along the last axis as one kernel per call: read once, written once.

in: arrays of NumPy, CuPy or torch. out: arrays of the same kind. Padding and cropping happen in masked loads and
stores; there is no padded copy and no work area beyond the filter's spectrum.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.kernels import arrays, convolve_plan, convolve_rows
from devkernels.kernels.convolve_plan import COMPUTE, MODES, RowPlan

_MOST_GRID_Y = 65535


@dataclass(frozen=True)
class Broadcast:
    """How rows of x and filters make rows of the output: see `devkernels.kernels.convolve_rows`."""

    shape: tuple[int, ...]  # batch shape of the output
    groups: int
    inner: int
    x_inner: int
    x_rows: int

    @property
    def rows(self) -> int:
        """Rows of the output."""
        return math.prod(self.shape)

    @property
    def members(self) -> int:
        """Output rows per filter."""
        return self.rows // self.groups

    @property
    def layout(self) -> str:
        """Which row arithmetic the kernel needs."""
        if self.groups == 1:
            return "one"
        return "channels" if self.inner == 1 else "any"

    @property
    def repeats(self) -> bool:
        """Whether x has fewer rows than the output."""
        return self.x_rows * self.x_inner != self.rows or self.x_inner != 1


def _span(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, int] | None:
    """(inner, rows) if an operand of this batch shape is a contiguous run of the output's axes, else None."""
    padded = (1,) * (len(batch) - len(shape)) + shape
    own = [axis for axis, (n, full) in enumerate(zip(padded, batch, strict=True)) if n == full and full != 1]
    if not own:
        return math.prod(batch), 1
    first, last = own[0], own[-1]
    between = [batch[a] for a in range(first, last + 1) if a not in own and batch[a] != 1]
    if between:
        return None
    return math.prod(batch[last + 1 :]), math.prod(batch[first : last + 1])


def broadcast(x_batch: tuple[int, ...], h_batch: tuple[int, ...]) -> tuple[Broadcast, bool, bool]:
    """Rule of rows for these batch shapes, and whether x or h must be expanded because its axes do not adjoin."""
    try:
        batch = np.broadcast_shapes(x_batch, h_batch)
    except ValueError:
        raise ArgumentError(
            f"the leading axes {x_batch} of the first array and {h_batch} of the second do not broadcast."
        ) from None
    x_span, h_span = _span(x_batch, batch), _span(h_batch, batch)
    expand_x, expand_h = x_span is None, h_span is None
    x_inner, x_rows = x_span or (1, math.prod(batch))
    inner, groups = h_span or (1, math.prod(batch))
    return Broadcast(batch, groups, inner, x_inner, x_rows), expand_x, expand_h


class FFTConvolve:
    """A planned convolution along rows; made by `make_fftconvolve`, which documents it."""

    def __init__(
        self, plan: RowPlan, dtype: str, mode: str, prologue: Callable | None = None,
        epilogue: Callable | None = None, tune: bool = False,
    ):  # fmt: skip
        self.plan, self.dtype, self.mode = plan, dtype, mode
        self.prologue, self.epilogue = prologue, epilogue
        linear = plan.method == "linear"
        self.fft: BlockFFT = block_fft(
            plan.size, plan.precision, frequency_offset=-0.25 if linear else 0.0, real_input=linear, tune=tune
        )

    def __repr__(self) -> str:
        return f"<FFTConvolve {self.mode} of {self.plan.length} with {self.plan.taps}, {self.dtype}: {self.describe()}>"

    def describe(self) -> str:
        """Say in words how the convolution is done."""
        plan = self.plan
        how = {"circular": "the transform is the row", "linear": "right-angle weights, no zero padding",
               "overlap": f"overlap-save, {plan.hop} samples a segment"}[plan.method]  # fmt: skip
        return f"{how}; {self.fft.plan.describe()}"

    # -- filters -------------------------------------------------------------------------------------------------------

    def prepare(self, h: Any) -> Any:
        """Transform filters (..., taps) once; give the result to calls as `spectra`.

        Returns
        -------
        Spectra
            The batch shape and an array (filters, transform length) in the engine's order.
        """
        seen = arrays.describe(h, "h")
        if seen.dtype != self.dtype:
            raise ArgumentTypeError(f"the filter has dtype {seen.dtype}, the convolution {self.dtype}.", spec=self)
        if not seen.shape or seen.shape[-1] != self.plan.taps:
            raise ArgumentError(
                f"the filter has shape {seen.shape}; its last axis must be {self.plan.taps}.", spec=self
            )
        flat = arrays.cast(h, self.dtype).reshape(-1)
        count = math.prod(seen.shape[:-1])
        launch = convolve_rows.filter_kernel(self.fft, self.dtype)[self.fft.launch(rows=count)]
        found = []
        for skip in range(0, self.plan.taps, self.plan.part):
            spectra = arrays.empty(h, (count * self.fft.size,), self.fft.dtype.name)
            numbers = (count, min(self.plan.part, self.plan.taps - skip), self.plan.taps, skip)
            arrays.run_where_kernels_live(
                {"h": flat, "spectra": spectra}, lambda h, spectra, numbers=numbers: launch(h, spectra, *numbers),
                ("spectra",),
            )  # fmt: skip
            found.append(spectra)
        return Spectra(seen.shape[:-1], tuple(found))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def __call__(self, x: Any, h: Any = None, *, spectra: Any = None, out: Any = None, stream: Any = None) -> Any:
        """Convolve x with h, or with filters transformed by `prepare`."""
        seen = arrays.describe(x, "x")
        if seen.dtype != self.dtype:
            raise ArgumentTypeError(f"x has dtype {seen.dtype}; this convolution was made for {self.dtype}.", spec=self)
        if not seen.shape or seen.shape[-1] != self.plan.length:
            raise ArgumentError(f"x has shape {seen.shape}; its last axis must be {self.plan.length}.", spec=self)
        if (h is None) == (spectra is None):
            raise ArgumentError("pass either a filter h or spectra made by prepare().", spec=self)
        if h is not None:
            arrays.check_same_device(seen, arrays.describe(h, "h"), ("x", "h"))
            h_batch = tuple(h.shape[:-1])
        else:
            h_batch = spectra.batch
        rule, expand_x, expand_h = broadcast(seen.shape[:-1], h_batch)
        if expand_h:
            if h is None:
                raise ArgumentError(f"spectra of batch {h_batch} do not adjoin in {rule.shape}; pass h.", spec=self)
            h = _expand(h, (*rule.shape, self.plan.taps))
        if expand_x:
            x = _expand(x, (*rule.shape, self.plan.length))
        if h is not None and _differentiable(seen, x, h):
            if out is not None:
                raise ArgumentError("out cannot be given where gradients are recorded; use torch.no_grad().", spec=self)
            from devkernels.kernels.convolve_grad import apply

            return apply(self, x, h)
        shape = (*rule.shape, self.plan.window)
        if out is not None:
            self._check_out(out, seen, shape)
        result = arrays.empty(x, shape, self.dtype) if out is None else out
        if 0 in shape:
            return result
        spectra = self.prepare(h) if spectra is None else spectra
        rows = arrays.cast(x, self.dtype).reshape(-1)
        self._launch(rows, spectra.data, result.reshape(-1), rule, stream)
        return result

    def run(self, x: Any, h: Any) -> Any:
        """`__call__` without a record of gradients."""
        return self(_detached(x), _detached(h))

    def _check_out(self, out: Any, seen: arrays.Described, shape: tuple[int, ...]) -> None:
        mine = arrays.describe(out, "out")
        arrays.check_same_device(seen, mine, ("x", "out"))
        if mine.dtype != self.dtype or mine.shape != shape:
            raise ArgumentError(
                f"out has shape {mine.shape} and dtype {mine.dtype}; it must have {shape} and {self.dtype}.", spec=self
            )
        expected = np.cumprod((mine.itemsize, *shape[:0:-1]))[::-1]
        if any(n > 1 and s != e for n, s, e in zip(shape, mine.strides, expected, strict=True)):
            raise ArgumentError("out is not contiguous; pass an array in C order.", spec=self)
        if arrays.overlap(seen, mine) or (mine.pointer == seen.pointer and not self.plan.whole):
            raise ArgumentError("out overlaps x in memory; pass a separate array.", spec=self)

    def _launch(self, x: Any, spectra: tuple, out: Any, rule: Broadcast, stream: Any) -> None:
        plan, fft = self.plan, self.fft
        if plan.method == "overlap":
            passes = self._overlap_passes(rule)
        else:
            passes = [self._single_pass(rule)]
        launches = [
            (run[grid, fft.block_dim, stream or 0, fft.shared_memory_size], numbers) for run, grid, numbers in passes
        ]

        def launch(x, out, **spectra):
            for (run, numbers), part in zip(launches, spectra.values(), strict=True):
                run(x, part, out, *numbers)

        named = {f"spectra_{number}": part for number, part in enumerate(spectra)}
        arrays.run_where_kernels_live({"x": x, **named, "out": out}, launch, ("out",))

    def _kind(self, rule: Broadcast) -> convolve_rows.Rows:
        return convolve_rows.Rows(self.dtype, rule.layout, rule.repeats, self.prologue, self.epilogue)

    def _overlap_passes(self, rule: Broadcast) -> list:
        """(kernel, grid, numbers) for each part of the filter; the first writes, the others add."""
        plan, fft, kind = self.plan, self.fft, self._kind(rule)
        segments = -(-plan.window // (plan.hop * (2 if kind.real else 1)))
        high = -(-rule.rows // _MOST_GRID_Y)
        grid = (-(-segments // fft.ffts_per_block), -(-rule.rows // high), high)
        rows = (rule.rows, rule.inner, rule.groups, rule.x_inner, rule.x_rows)
        passes = []
        for skip in range(0, plan.taps, plan.part):
            run = convolve_rows.overlap_kernel(fft, kind, plan.wraps, adds=skip > 0)
            passes.append((run, grid, (*rows, plan.length, plan.part, plan.start - skip, plan.window)))
        return passes

    def _single_pass(self, rule: Broadcast) -> tuple:
        """(kernel, grid, numbers) where one transform holds a row."""
        plan, fft, kind = self.plan, self.fft, self._kind(rule)
        if rule.groups > _MOST_GRID_Y:
            raise ArgumentError(f"{rule.groups} filters are too many for one launch; the most is {_MOST_GRID_Y}.")
        pairs = plan.method == "circular" and kind.real
        grid = (-(-rule.members // (fft.ffts_per_block * (2 if pairs else 1))), rule.groups)
        numbers = (rule.members, rule.groups, rule.inner, rule.x_inner, rule.x_rows)
        if plan.method == "linear":
            run = convolve_rows.linear_kernel(fft, kind, plan.whole, plan.tail)
            return run, grid, (*numbers, plan.length, plan.start, plan.window)
        make = convolve_rows.circular_pair_kernel if pairs else convolve_rows.circular_kernel
        return make(fft, kind), grid, numbers


def _differentiable(seen: arrays.Described, x: Any, h: Any) -> bool:
    """Whether torch is recording gradients of these arrays."""
    return seen.library == "torch" and sys.modules["torch"].is_grad_enabled() and (x.requires_grad or h.requires_grad)


def _detached(array: Any) -> Any:
    return array.detach() if arrays.library(array, "array") == "torch" else array


@dataclass(frozen=True)
class Spectra:
    """Transformed filters: their batch shape and the flat arrays that kernels read, one for each part of a filter."""

    batch: tuple[int, ...]
    data: tuple


def _expand(array: Any, shape: tuple[int, ...]) -> Any:
    """The array repeated to a shape: for operands whose batch axes do not adjoin in the output."""
    if arrays.library(array, "array") == "torch":
        return array.expand(shape).contiguous()
    module = np if isinstance(array, np.ndarray) else __import__("cupy")
    return module.ascontiguousarray(module.broadcast_to(array, shape))


@functools.lru_cache(maxsize=256)
def _planned(
    mode: str, length: int, taps: int, dtype: str, method: str | None, prologue: Callable | None,
    epilogue: Callable | None, tune: bool,
) -> FFTConvolve:  # fmt: skip
    plan = convolve_plan.plan_rows(mode, length, taps, dtype, method)
    if (prologue or epilogue) and not (plan.method == "linear" or (plan.method == "circular" and "complex" in dtype)):
        raise SpecError(
            f"prologue and epilogue are not available where a row is done in segments or two at a time "
            f"(mode={mode!r}, rows of {length}, filter of {taps}, {dtype})."
        )
    if epilogue and plan.method == "linear" and plan.tail:
        raise SpecError("epilogue needs a window within the transform's length; use mode='causal'.")
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
        Device functions ``f(value, row, position)`` applied to each sample on load and on store, inside the kernel.
        Available for "causal" rows that fit one transform, and for circular complex rows.
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
    is kept in memory between. Filters that no transform holds take one pass for each 8192 samples (4096 in double
    precision). Parameters, results and errors as in `fftconvolve`.
    """
    return _convolve(in1, in2, mode, axes, "overlap", out, stream)


def correlate(
    in1: Any, in2: Any, mode: str = "full", axes: Any = None, *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Correlate along the last axis, as ``scipy.signal.correlate(in1, in2, mode, method="fft")`` does for rows.

    ``correlate(x, h)`` is `fftconvolve` of x with the conjugate of h in reversed order; parameters as there.
    """
    seen = arrays.describe(in2, "in2")
    if seen.library == "torch":
        turned = in2.flip(-1)
        turned = turned.conj().resolve_conj() if turned.is_complex() else turned
    else:
        turned = in2[..., ::-1].conj()
    return _convolve(in1, turned, mode, axes, None, out, stream)


def _convolve(in1: Any, in2: Any, mode: str, axes: Any, method: str | None, out: Any, stream: Any) -> Any:
    first, second = arrays.describe(in1, "in1"), arrays.describe(in2, "in2")
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
        return make_fftconvolve2d(first.shape[-2:], second.shape[-2:], first.dtype, mode)(
            in1, in2, out=out, stream=stream
        )
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
