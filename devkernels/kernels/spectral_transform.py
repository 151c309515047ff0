"""The spectral filter on the transforms of `devkernels.fft`: any length that they have, and one H for each row.

in: length and dtype of rows, what happens to the spectrum, knobs. out: a `TransformFilter` that launches one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devkernels.device.fft import DeviceFFT, fft
from devkernels.errors import UnsupportedSizeError
from devkernels.kernels.spectral_kernels import array_kernel, forward_fft, function_kernel

_WIDE = {"float32": "complex64", "float64": "complex128"}  # precision -> dtype of H that is loaded as rows are


class TransformFilter:
    """Filters rows of `size` samples with one kernel; made by `transform_filter`."""

    def __init__(self, forward: DeviceFFT, size: int, dtype: str, op: Callable | None):
        self.fft, self.size, self.dtype, self.op = forward, size, dtype, op

    def kernel(self, filter_dtype: str | None = None) -> Any:
        """Return the kernel that filters with an H of `filter_dtype`, or with the device function."""
        if self.op is not None:
            return function_kernel(self.fft, self.op)
        return array_kernel(self.fft, filter_dtype == _WIDE.get(self.fft.spec.precision))

    def launches(self, rows: int, filter_dtype: str | None) -> Callable[[Any, Any, Any], None]:
        """Function ``f(x, h, y)`` for that many rows: x and y (rows, size), h (1 or rows, bins), or None with `op`."""
        run = self.kernel(filter_dtype)[self.fft.launch(rows=rows)]
        return (lambda x, h, y: run(x, y)) if filter_dtype is None else run

    def image_sources(self, filters: list, rows: str) -> dict[str, tuple]:
        """Kernels for ``devkernels build``: of rows of the type `rows`, for each dtype of H (or None, with `op`)."""
        launch = self.fft.launch(rows=1)
        notes = {"size": self.size, "fft_size": self.fft.size, "dtype": self.dtype, "bins": self.fft.output_length,
                 "rows_per_block": self.fft.ffts_per_block, "block": list(launch.block),
                 "shared": launch.shared_memory_size}  # fmt: skip
        sources = {}
        for h in filters:
            name = f"spectral_filter_{self.size}_{self.dtype}" + ("" if h is None else f"_{h}")
            signature = f"void({rows}, {rows})" if h is None else f"void({rows}, {h}[:,::1], {rows})"
            sources[name] = (self.kernel(h), signature, notes)
        return sources


def transform_filter(
    size: int, points: int, dtype: str, precision: str, op: Callable | None, sm: object = None,
    ffts_per_block: object = None, elements_per_thread: object = None,
) -> TransformFilter:  # fmt: skip
    """Plan a filter of rows of `size` samples with transforms of `points`.

    Raises
    ------
    UnsupportedSizeError
        There is no such transform; the message names the next one and how to pad rows to it.
    """
    real = dtype.startswith("float")
    try:
        forward = forward_fft(points, precision, real, sm, ffts_per_block, elements_per_thread)
    except UnsupportedSizeError as error:
        try:
            above = fft.next_supported_size(points, precision, "r2c" if real else "c2c", sm)
        except UnsupportedSizeError:
            raise error from None
        raise UnsupportedSizeError(
            f"{error} To filter rows of {size} samples padded with zeros, pass fft_size={above} and an H for "
            f"{above} points.",
            spec=error.spec,
        ) from None
    return TransformFilter(forward, size, dtype, op)
