"""Convolution over the last two axes in three kernels: rows, columns with the filter, rows.

in: images and a filter, arrays of NumPy, CuPy or torch. out: an array of the same kind.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from devkernels.engine import choose
from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError, UnsupportedSizeError
from devkernels.kernels import arrays, convolve_images, convolve_plan
from devkernels.kernels.convolve_long import columns_fft
from devkernels.kernels.convolve_plan import COMPUTE, MODES

_MOST_GRID_Y = 65535


def axis_plan(mode: str, length: int, taps: int, precision: str) -> tuple[int, int, int]:
    """(transform length, start, window) along one axis."""
    start, window = convolve_plan.window(mode, length, taps)
    bytes_ = convolve_plan.word_bytes(precision)
    if mode == "circular":
        if taps > length:
            raise SpecError(f"mode='circular' needs a filter no larger than the images: {taps} > {length}.")
        choose.choose(length, bytes_)
        return length, start, window
    # What wraps around must not reach the window: sample n + N of the full convolution lies on sample n.
    needed = max(length, start + window, length + taps - 1 - start)
    top = choose.largest(bytes_)
    sizes = sorted(base << k for base in (1, 3, 9) for k in range(1, 15) if 4 <= base << k <= top)
    for size in sizes:
        if size >= needed:
            try:
                choose.choose(size, bytes_)
            except UnsupportedSizeError:
                continue
            return size, start, window
    raise UnsupportedSizeError(f"An axis of {length} with {taps} taps needs {needed} points; the most is {top}.")


class FFTConvolve2D:
    """A planned two-dimensional convolution; made by `make_fftconvolve2d`."""

    def __init__(self, shape: tuple[int, int], taps: tuple[int, int], dtype: str, mode: str):
        self.shape, self.taps, self.dtype, self.mode = shape, taps, dtype, mode
        precision = COMPUTE[dtype]
        plans = [axis_plan(mode, n, k, precision) for n, k in zip(shape, taps, strict=True)]
        (self.height, self.start_y, out_y), (self.width, self.start_x, out_x) = plans
        self.out_shape = (out_y, out_x)
        self.rows: BlockFFT = block_fft(self.width, precision)
        self.columns: BlockFFT = columns_fft(self.height, precision)
        self._kernels = (
            convolve_images.rows_forward_kernel(self.rows, dtype),
            convolve_images.columns_kernel(self.columns, self.width),
            convolve_images.rows_inverse_kernel(self.rows, dtype),
        )

    def __repr__(self) -> str:
        return f"<FFTConvolve2D {self.mode} of {self.shape} with {self.taps}, {self.dtype}, {self.height}x{self.width}>"

    @property
    def _real(self) -> bool:
        return not self.dtype.startswith("complex")

    def prepare(self, h: Any) -> Any:
        """Transform filters (..., rows, columns) once, with the array library's FFT; give the result as `spectra`."""
        seen = arrays.describe(h, "h")
        if seen.dtype != self.dtype or seen.shape[-2:] != self.taps:
            raise ArgumentError(
                f"the filter has shape {seen.shape} and dtype {seen.dtype}; its last axes must be {self.taps}, "
                f"its dtype {self.dtype}.", spec=self,
            )  # fmt: skip
        order_y = self.columns.spectrum_index.T.reshape(-1)
        order_x = self.rows.spectrum_index.T.reshape(-1)
        size, scale = (self.height, self.width), 1 / (self.height * self.width)
        if seen.library == "torch":
            torch = sys.modules["torch"]
            wide = h.to(torch.complex128 if self.columns.dtype == np.complex128 else torch.complex64)
            spectrum = torch.fft.fft2(wide, s=size) * scale
            y, x = (torch.as_tensor(order, device=h.device) for order in (order_y, order_x))
            spectrum = spectrum.index_select(-2, y).index_select(-1, x)
        else:
            module = np if seen.library == "numpy" else sys.modules["cupy"]
            spectrum = module.fft.fft2(h.astype(self.columns.dtype), s=size) * scale
            spectrum = spectrum[..., module.asarray(order_y), :][..., module.asarray(order_x)]
        return seen.shape[:-2], arrays.cast(spectrum, self.columns.dtype.name).reshape(-1)

    def __call__(self, x: Any, h: Any = None, *, spectra: Any = None, out: Any = None, stream: Any = None) -> Any:
        """Convolve images x (..., rows, columns) with one filter, or one per channel (the axis before rows)."""
        seen = arrays.describe(x, "x")
        if seen.dtype != self.dtype:
            raise ArgumentTypeError(f"x has dtype {seen.dtype}; this convolution was made for {self.dtype}.", spec=self)
        if seen.shape[-2:] != self.shape:
            raise ArgumentError(f"x has shape {seen.shape}; its last axes must be {self.shape}.", spec=self)
        if (h is None) == (spectra is None):
            raise ArgumentError("pass either a filter h or spectra made by prepare().", spec=self)
        if h is not None:
            arrays.check_same_device(seen, arrays.describe(h, "h"), ("x", "h"))
        batch = seen.shape[:-2]
        filters = tuple(h.shape[:-2]) if h is not None else spectra[0]
        groups, images = math.prod(filters), math.prod(batch)
        tail = batch[len(batch) - len(filters) :] if filters else ()
        if groups != 1 and filters != tail:
            raise ArgumentError(
                f"filters of batch {filters} do not fit images of batch {batch}; pass one filter, or one for each of "
                f"the last batch axes.", spec=self,
            )  # fmt: skip
        shape = (*batch, *self.out_shape)
        if out is not None:
            self._check_out(out, seen, shape)
        result = arrays.empty(x, shape, self.dtype) if out is None else out
        if images == 0:
            return result
        data = (self.prepare(h) if spectra is None else spectra)[1]
        plates = -(-(images // groups) // (2 if self._real else 1))
        pages, page_rows = plates * groups, max(self.shape[0], self.out_shape[0])
        if pages > _MOST_GRID_Y:
            raise ArgumentError(f"{images} images are too many for one launch; pass at most {_MOST_GRID_Y}.", spec=self)
        work = arrays.empty(x, (pages * page_rows * self.width,), self.columns.dtype.name)
        self._launch(
            arrays.cast(x, self.dtype).reshape(-1), data, work, result.reshape(-1), images, groups, pages, page_rows,
            stream or 0,
        )  # fmt: skip
        return result

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

    def image_sources(self) -> dict[str, tuple]:
        """Kernels for ``devkernels build``: rows, columns with the filter, rows."""
        number, real = self.columns.dtype.name, self.dtype
        name = f"fftconvolve2d_{self.mode}_{'x'.join(map(str, self.shape + self.taps))}_{self.dtype}"
        notes = {"shape": list(self.shape), "taps": list(self.taps), "mode": self.mode, "dtype": self.dtype,
                 "transform": [self.height, self.width]}  # fmt: skip
        kinds = (("rows", (real, number), 5), ("columns", (number, number), 5), ("rows_back", (number, real), 6))
        return {
            f"{name}_{kind}": (
                kernel, f"void({', '.join([f'{t}[::1]' for t in types] + ['int64'] * integers)})", notes
            )
            for kernel, (kind, types, integers) in zip(self._kernels, kinds, strict=True)
        }  # fmt: skip

    def _launch(self, x, data, work, out, images, groups, pages, page_rows, stream) -> None:
        first, middle, last = self._kernels
        rows, columns = self.rows, self.columns

        def grid(count, fft):
            return (-(-count // fft.ffts_per_block), pages)

        def launch(x, spectra, work, out):
            first[grid(self.shape[0], rows), rows.block_dim, stream, rows.shared_memory_size](
                x, work, images, groups, *self.shape, page_rows
            )
            middle[grid(self.width, columns), columns.block_dim, stream, columns.shared_memory_size](
                work, spectra, groups, self.shape[0], page_rows, self.start_y, self.out_shape[0]
            )
            last[grid(self.out_shape[0], rows), rows.block_dim, stream, rows.shared_memory_size](
                work, out, images, groups, *self.out_shape, page_rows, self.start_x
            )

        arrays.run_where_kernels_live({"x": x, "spectra": data, "work": work, "out": out}, launch, ("out",))


@functools.lru_cache(maxsize=128)
def _planned(shape, taps, dtype, mode) -> FFTConvolve2D:
    return FFTConvolve2D(shape, taps, dtype, mode)


def make_fftconvolve2d(
    shape: tuple[int, int], taps: tuple[int, int], dtype: object, mode: str = "full"
) -> FFTConvolve2D:
    """Plan the convolution of images of `shape` (rows, columns) with filters of shape `taps`.

    Parameters
    ----------
    shape, taps : tuple of two int
        The last two axes.
    dtype : dtype or str
        float16, float32, float64, complex64 or complex128.
    mode : {"full", "same", "valid", "circular", "causal"}
        As in `make_fftconvolve`, along both axes. "circular" needs lengths that have a block transform.

    Returns
    -------
    FFTConvolve2D
        ``f(x, h, out=None, stream=None)``; ``s = f.prepare(h)`` and ``f(x, spectra=s)`` to transform filters once.
        One filter for all images, or one for each index of the last batch axes.

    Raises
    ------
    SpecError, UnsupportedSizeError
        The mode, dtype or sizes are not supported.
    """
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, (type, np.dtype)) else np.dtype(dtype).name
    if name not in COMPUTE:
        raise SpecError(f"dtype={dtype!r} is not supported; use one of {', '.join(COMPUTE)}.")
    if mode not in MODES:
        raise SpecError(f"mode={mode!r} must be one of {', '.join(MODES)}.")
    if len(shape) != 2 or len(taps) != 2 or min(*shape, *taps) < 1:
        raise SpecError(f"shape={shape!r} and taps={taps!r} must be two positive lengths each.")
    return _planned(tuple(map(int, shape)), tuple(map(int, taps)), name, mode)
