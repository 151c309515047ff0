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

import numpy as np

from devkernels.checks import whole_number
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError, UnsupportedSizeError
from devkernels.kernels import arrays
from devkernels.kernels.spectral_engine import EngineFilter, engine_filter
from devkernels.target import Target

if TYPE_CHECKING:
    from devkernels.device.fft import DeviceFFT
    from devkernels.kernels.spectral_transform import TransformFilter

_PRECISION = {"float16": "float16", "complex32": "float16", "float32": "float32", "complex64": "float32",
              "float64": "float64", "complex128": "float64"}  # fmt: skip
_FILTER_COMPLEX = {"float16": "complex64", "float32": "complex64", "float64": "complex128"}
_FILTER_REAL = {"float16": "float32", "float32": "float32", "float64": "float64"}


def _dtype_name(dtype: object) -> str:
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, type) else np.dtype(dtype).name
    if name not in _PRECISION:
        raise SpecError(f"dtype={dtype!r} is not supported; use one of {', '.join(_PRECISION)}.")
    return name


@dataclass(frozen=True)
class _Rows:
    """How arrays of one dtype are laid out."""

    dtype: str

    @property
    def stored(self) -> str:
        """Dtype of the elements in memory: complex32 is pairs of float16."""
        return "float16" if self.dtype == "complex32" else self.dtype

    @property
    def tail(self) -> int:
        """Axes of one row."""
        return 2 if self.dtype == "complex32" else 1

    @property
    def real(self) -> bool:
        """Whether samples are real."""
        return self.dtype.startswith("float")


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
        self._rows, self._plan_transforms = _Rows(dtype), plan_transforms
        self._recipes: dict[tuple, _Recipe] = {}

    @property
    def bins(self) -> int:
        """Values of H: the frequencies of ``numpy.fft.fft``, or of ``rfft`` for real data."""
        return self.points // 2 + 1 if self._rows.real else self.points

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
        x = f"{self._rows.stored}[{':,' * self._rows.tail}::1]"
        precision = _PRECISION[self.dtype]
        filters = [None] if self.op is not None else [_FILTER_COMPLEX[precision], _FILTER_REAL[precision]]
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
        seen = self._check_rows(x, "x")
        rows = arrays.as_rows(x, self._rows.tail, "x", copy=True)
        h = self._check_filter(H, seen)
        if out is None:
            out = arrays.empty(x, seen.shape, self._rows.stored)
        else:
            self._check_out(out, seen, H)
        y = arrays.as_rows(out, self._rows.tail, "out", copy=False)
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
        self._recipes[key] = _Recipe(launch, self._rows.stored, *shapes)

    # -- checks, all before anything is launched or written ------------------------------------------------------------

    def _check_rows(self, x: Any, name: str) -> arrays.Described:
        seen, rows = arrays.describe(x, name), self._rows
        if seen.dtype != rows.stored:
            raise ArgumentTypeError(
                f"{name} has dtype {seen.dtype}; this filter was made for {self.dtype}"
                f"{' (float16 with a last axis of 2)' if rows.tail == 2 else ''}: "
                f"convert {name}, or make a filter for its dtype.",
                spec=self,
            )
        wanted = (self.size, 2) if rows.tail == 2 else (self.size,)
        if len(seen.shape) < rows.tail or seen.shape[len(seen.shape) - rows.tail :] != wanted:
            raise ArgumentError(
                f"{name} has shape {seen.shape}; its last {'axes' if rows.tail == 2 else 'axis'} must be "
                f"{', '.join(map(str, wanted))}, the size that this filter was made for.",
                spec=self,
            )
        if 0 in seen.shape:
            raise ArgumentError(f"{name} has shape {seen.shape}: no rows. Pass at least one row.", spec=self)
        if (seen.shape[-1] > 1 and seen.strides[-1] != seen.itemsize) or (rows.tail == 2 and seen.strides[-2] != 4):
            raise ArgumentError(
                f"the last axis of {name} is not contiguous (strides {seen.strides} bytes); pass a contiguous copy, "
                f"such as numpy.ascontiguousarray({name}) or {name}.contiguous().",
                spec=self,
            )
        word = 4 if rows.tail == 2 else seen.itemsize
        if seen.pointer % word or any(
            s % word for n, s in zip(seen.shape[: -rows.tail], seen.strides, strict=False) if n > 1
        ):
            raise ArgumentError(
                f"{name} does not start its rows on a multiple of {word} bytes; pass a copy.", spec=self
            )
        return seen

    def _check_filter(self, H: Any, seen: arrays.Described) -> Any:
        if self.op is not None:
            if H is not None:
                raise ArgumentTypeError("this filter was made with a device function; call it without H.", spec=self)
            return None
        if H is None or callable(H):
            raise ArgumentTypeError(
                "H is missing: pass an array on the frequency grid, or make the filter with op=a device function.",
                spec=self,
            )
        mine = arrays.describe(H, "H")
        arrays.check_same_device(seen, mine, ("x", "H"))
        precision = _PRECISION[self.dtype]
        allowed = {_FILTER_COMPLEX[precision], _FILTER_REAL[precision]}
        if mine.dtype not in allowed:
            raise ArgumentTypeError(
                f"H has dtype {mine.dtype}; for {self.dtype} data it must be {' or '.join(sorted(allowed))}.", spec=self
            )
        batch = seen.shape[: len(seen.shape) - self._rows.tail]
        shapes = [(self.bins,), *([(*batch, self.bins)] if batch else [])]
        if mine.shape not in shapes:
            raise ArgumentError(
                f"H has shape {mine.shape}; it must be {' (one filter for all rows) or '.join(map(str, shapes))}"
                f"{' (one per row)' if batch else ''}: {self.bins} frequencies of a {self.points}-point transform"
                f"{' of real data' if self._rows.real else ''}.",
                spec=self,
            )
        return arrays.as_rows(arrays.cast(H, mine.dtype), 1, "H", copy=True)

    def _check_out(self, out: Any, seen: arrays.Described, H: Any) -> None:
        mine = self._check_rows(out, "out")
        arrays.check_same_device(seen, mine, ("x", "out"))
        if mine.shape != seen.shape:
            raise ArgumentError(f"out has shape {mine.shape}; it must be that of x, {seen.shape}.", spec=self)
        if arrays.overlap(seen, mine):
            raise ArgumentError(
                "out overlaps x in memory; pass x itself (filtering in place) or a separate array.", spec=self
            )
        if H is not None and arrays.intersect(arrays.describe(H, "H"), mine):
            raise ArgumentError(
                "out overlaps H in memory: rows would be filtered with results; pass a separate array.", spec=self
            )
        if mine.library == "numpy" and not out.flags.writeable:
            raise ArgumentError("out is read-only; pass a writeable array.", spec=self)


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
    size, name = whole_number(size, "size"), _dtype_name(dtype)
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

        return transform_filter(size, points, name, _PRECISION[name], op, sm, ffts_per_block, elements_per_thread)

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
    if seen.dtype not in _PRECISION or seen.dtype == "complex32":
        raise ArgumentTypeError(
            f"x has dtype {seen.dtype}; use {', '.join(n for n in _PRECISION if n != 'complex32')}."
        )
    op = H if callable(H) and not hasattr(H, "shape") else None
    if seen.shape[-1] == 0:
        raise ArgumentError(f"x has shape {seen.shape}: rows without samples.")
    plan = _planned(seen.shape[-1], seen.dtype, op, fft_size, current_target())
    return plan(x, None if op is not None else H, out=out, stream=stream)
