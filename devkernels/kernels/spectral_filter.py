"""A filter in the frequency domain as one kernel: ``y = ifft(fft(x) * H)`` along the last axis.

In: rows of samples, and H as an array or as a device function. Out: filtered rows. Forward transform, product and
inverse transform stay on chip: x is read once and y written once. Two ways: the engine's transforms (`spectral_engine`)
where they have the length and one filter serves all rows; else those of `devkernels.fft` (`spectral_transform`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from devkernels.checks import whole_number
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError, UnsupportedSizeError
from devkernels.kernels import arrays
from devkernels.kernels.spectral_checks import (
    FILTER_COMPLEX,
    FILTER_REAL,
    PRECISION,
    Rows,
    check_filter,
    check_out,
    check_rows,
    dtype_name,
)
from devkernels.kernels.spectral_engine import EngineFilter, engine_filter
from devkernels.target import Target

if TYPE_CHECKING:
    from devkernels.device.fft import DeviceFFT
    from devkernels.kernels.spectral_transform import TransformFilter


@dataclass
class _Recipe:
    """One checked call: what remains to be done for device arrays with the same fingerprints."""

    launch: Callable[[Any, Any, Any], None]
    dtype: str
    rows: tuple[int, ...]
    filter_rows: tuple[int, ...] | None
    shape: tuple[int, ...]

    def run(self, x: Any, h: Any, out: Any) -> Any:
        if out is None:
            out = arrays.empty(x, self.shape, self.dtype)
        if self.rows != self.shape:
            x, y = x.reshape(self.rows), out.reshape(self.rows)
        else:
            y = out
        if self.filter_rows is not None and len(h.shape) != 2:
            h = h.reshape(self.filter_rows)
        self.launch(x, h, y)
        return out


class SpectralFilter:
    """A planned spectral filter; made by `make_spectral_filter`, which documents it."""

    def __init__(
        self, size: int, dtype: str, points: int, op: Callable | None, engine: EngineFilter | None,
        plan_transforms: Callable[[], TransformFilter],
    ):  # fmt: skip
        self.size, self.dtype, self.points, self.op, self.engine = size, dtype, points, op, engine
        self.layout, self._plan_transforms = Rows(dtype), plan_transforms
        self._recipes: dict[tuple, _Recipe] = {}

    @property
    def bins(self) -> int:
        """Values of H: the frequencies of ``numpy.fft.fft``, or of ``rfft`` for real data."""
        return self.points // 2 + 1 if self.layout.real else self.points

    @functools.cached_property
    def transforms(self) -> TransformFilter:
        """The way through `devkernels.fft`, planned when it is needed: for one H per row, if the engine does the rest.

        Raises
        ------
        UnsupportedSizeError
            `devkernels.fft` has no transform of these points.
        """
        return self._plan_transforms()

    @property
    def fft(self) -> DeviceFFT | None:
        """The transform of `devkernels.fft` that it can use, or None."""
        try:
            return self.transforms.fft
        except UnsupportedSizeError:
            return None

    def __repr__(self) -> str:
        what = "device function" if self.op is not None else f"{self.bins} values of H"
        ways = [f"{self.engine.fft.plan.radices} of the engine"] if self.engine is not None else []
        ways += [] if self.fft is None else [repr(self.fft)]
        return f"<SpectralFilter size {self.size}, {self.dtype}, {what}, {' else '.join(ways)}>"

    def image_sources(self) -> dict[str, tuple]:
        """Kernels of this filter for ``devkernels build``, by file name: those that a call launches.

        Of the engine there are ``..._rows``, for rows and an H in the engine's order, and ``..._order_<dtype>``, which
        puts an H of shape (1, bins) into that order; with `op`, ``..._rows`` alone. Through `devkernels.fft`, for one H
        per row or where the engine has no such length, there is ``..._<dtype>``: rows in C order, H as (1 or rows,
        bins), and the output, ``kernel[grid, block, stream, shared](x, h, y)``. One thread block does
        ``notes["rows_per_block"]`` rows.
        """
        x = f"{self.layout.stored}[{':,' * self.layout.tail}::1]"
        precision = PRECISION[self.dtype]
        filters = [None] if self.op is not None else [FILTER_COMPLEX[precision], FILTER_REAL[precision]]
        found = {} if self.engine is None else self.engine.image_sources(filters, x)
        if self.fft is not None and not (self.engine is not None and self.op is not None):
            found |= self.transforms.image_sources(filters, x)
        return found

    def __call__(self, x: Any, H: Any = None, *, out: Any = None, stream: Any = None) -> Any:
        """Filter every row of `x`; see `make_spectral_filter`."""
        if stream is not None:
            with arrays.on_stream(x, stream):
                return self(x, H, out=out)
        key = self._recipe_key(x, H, out)
        recipe = None if key is None else self._recipes.get(key)
        if recipe is not None:
            return recipe.run(x, H, out)
        seen = check_rows(self, x, "x")
        rows = arrays.as_rows(x, self.layout.tail, "x", copy=True)
        h = check_filter(self, H, seen)
        if out is None:
            out = arrays.empty(x, seen.shape, self.layout.stored)
        else:
            check_out(self, out, seen, H)
        y = arrays.as_rows(out, self.layout.tail, "out", copy=False)
        launch = self._launch(rows.shape[0], h)
        named = {"x": rows, "y": y} if h is None else {"x": rows, "h": h, "y": y}
        arrays.run_where_kernels_live(named, lambda x, y, h=None: launch(x, h, y), ("y",))
        if key is not None:
            self._remember(key, seen, launch, rows, h)
        return out

    def _launch(self, rows: int, h: Any) -> Callable[[Any, Any, Any], None]:
        """Function ``f(x, h, y)`` that launches what filters that many rows."""
        if self.engine is not None and (h is None or len(h) == 1):
            return self.engine.launches(rows)
        try:
            return self.transforms.launches(rows, None if h is None else arrays.describe(h, "H").dtype)
        except UnsupportedSizeError:
            if self.engine is None:
                raise
            raise UnsupportedSizeError(
                f"One filter for each row needs a device transform, and devkernels.fft has none of {self.points} "
                f"points; pass one H for all rows, or make the filter with a longer fft_size.", spec=self,
            ) from None  # fmt: skip

    def _recipe_key(self, x: Any, H: Any, out: Any) -> tuple | None:
        """What the checks of this call depend on, or None if it must be looked at in full."""
        source = arrays.known(x)
        if source is None or not source.mark.contiguous:  # a recipe does not look for rows with gaps
            return None
        marks = [source.mark]
        place = None if out is None else source if out is x else arrays.known(out)
        if out is not None:
            if place is None or not place.mark.contiguous:
                return None
            # Where memory lies is no property of one array: whether arrays overlap is looked at in each call.
            if place.start < source.stop and source.start < place.stop and place != source:
                return None
            marks.append(place.mark)
        if H is not None:
            response = arrays.known(H)
            if response is None or not response.mark.contiguous:
                return None
            if place is not None and place.start < response.stop and response.start < place.stop:
                return None
            marks.append(response.mark)
        return (*marks, H is None, out is None)

    def _remember(self, key, seen, launch, rows, h) -> None:
        """Keep what was found out about arrays like these: their next call goes straight to the launch."""
        if len(self._recipes) >= 256:
            self._recipes.clear()
        shapes = tuple(rows.shape), None if h is None else tuple(h.shape), seen.shape
        self._recipes[key] = _Recipe(launch, self.layout.stored, *shapes)


def make_spectral_filter(
    size: int,
    dtype: object,
    *,
    op: Callable | None = None,
    fft_size: int | None = None,
    sm: object = None,
    ffts_per_block: int | None = None,
    elements_per_thread: int | None = None,
) -> SpectralFilter:
    """Plan ``y = ifft(fft(x) * H)`` along rows of `size` samples, as one kernel.

    Parameters
    ----------
    size : int
        Samples of a row.
    dtype : dtype or str
        Of x and y: float16, float32, float64 (real rows; the transform is ``rfft`` / ``irfft``), complex64, complex128,
        or ``"complex32"`` (float16 arrays whose last axis holds real and imaginary part).
    op : callable, optional
        A device function ``op(X, k)`` in place of an array H: gets a value of the unnormalised spectrum
        (``numpy.fft.fft(x)[k]``) and its index, returns the new value. Compiled into the kernel. In float16 it is
        given complex64.
    fft_size : int, optional
        Points of the transform, if longer than the row: rows are padded with zeros on load and cropped on store, and
        H has the frequencies of this size. For row lengths that have no device transform.
    sm, ffts_per_block, elements_per_thread : optional
        As in `devkernels.fft`. With one of the last two the transform is that of `devkernels.fft` in any case.

    Returns
    -------
    SpectralFilter
        Call it ``f(x, H, out=None, stream=None)``: x of shape (..., size), an array of NumPy, CuPy or torch; H of
        shape (bins,) for all rows or (..., bins), one per row, complex or real, of the same library; bins is the
        length of ``numpy.fft.fft`` (complex x) or ``rfft`` (real x). Returns an array of the same kind as x, or `out`
        (which may be x itself). Scaled as numpy.fft: H = 1 gives back x. Runs on `stream`, or on the current stream of
        the arrays' library.

    Raises
    ------
    UnsupportedSizeError
        No device transform of this size exists; the message names the next one and the padding option.
    SpecError, ArgumentError, ArgumentTypeError, DeviceMismatchError, ResourceError
        Before anything is launched; `out` is then untouched.
    """
    size, name = whole_number(size, "size"), dtype_name(dtype)
    points = size if fft_size is None else whole_number(fft_size, "fft_size")
    if points < size:
        raise SpecError(
            f"fft_size={points} is shorter than the rows, size={size}; leave it out, or make it at least that."
        )
    if op is not None and not callable(op):
        raise SpecError(f"op={op!r} is not a function op(X, k).")
    if sm is not None:
        Target.parse(sm)
    chosen = ffts_per_block is not None or elements_per_thread is not None
    engine = None if chosen else engine_filter(size, points, name, op)

    def plan_transforms() -> TransformFilter:
        from devkernels.kernels.spectral_transform import transform_filter

        return transform_filter(size, points, name, PRECISION[name], op, sm, ffts_per_block, elements_per_thread)

    made = SpectralFilter(size, name, points, op, engine, plan_transforms)
    if engine is None:
        _ = made.transforms  # now: there may be none
    return made


@functools.lru_cache(maxsize=256)
def _planned(size: int, dtype: str, op: Callable | None, fft_size: int | None, target: object) -> SpectralFilter:
    return make_spectral_filter(size, dtype, op=op, fft_size=fft_size, sm=target)


def spectral_filter(x: Any, H: Any, *, fft_size: int | None = None, out: Any = None, stream: Any = None) -> Any:
    """Filter along the last axis: ``ifft(fft(x) * H)``, in one kernel; plans are kept.

    Parameters
    ----------
    x : array of NumPy, CuPy or torch, shape (..., n)
        Real or complex; torch.complex32 as ``torch.view_as_real``.
    H : array or callable
        On the frequency grid, for all rows or one per row, or a device function ``op(X, k)``.
    fft_size, out, stream : optional
        As in `make_spectral_filter`, which also says what is raised.

    Returns
    -------
    array
        Of x's library, dtype and shape.
    """
    from devkernels.target import current_target

    seen = arrays.describe(x, "x")
    if not seen.shape:
        raise ArgumentError("x has no axes; pass rows of samples.")
    if seen.dtype not in PRECISION or seen.dtype == "complex32":
        raise ArgumentTypeError(f"x has dtype {seen.dtype}; use {', '.join(n for n in PRECISION if n != 'complex32')}.")
    op = H if callable(H) and not hasattr(H, "shape") else None
    if seen.shape[-1] == 0:
        raise ArgumentError(f"x has shape {seen.shape}: rows without samples.")
    plan = _planned(seen.shape[-1], seen.dtype, op, fft_size, current_target())
    return plan(x, None if op is not None else H, out=out, stream=stream)
