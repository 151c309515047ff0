"""The spectral filter on the engine's transforms: kernels, and which filters they are for.

in: length and dtype of rows, H for all rows or a device function. out: an `EngineFilter` that launches the kernels.

The spectrum stays in the order in which the engine computes it, so H is put into that order first, by a kernel over the
few values that it has. Two real rows make one complex row: convolution is linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import choose, emit, spectrum, uneven
from devkernels.engine.block_fft import BlockFFT, block_fft
from devkernels.errors import UnsupportedSizeError
from devkernels.kernels import arrays
from devkernels.kernels.convolve_steps import convolved, line_of
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch.jit import kernel
from devkernels.lazy import cuda

_MOST_STAGES = 3  # more exchanges than cuFFTDx has are no gain
_THREADS = 128  # of the kernel that orders H


@dataclass(frozen=True)
class EngineFilter:
    """Filters rows of `size` samples with the engine; made by `engine_filter`."""

    fft: BlockFFT
    size: int
    dtype: str
    op: Callable | None = None

    @property
    def pairs(self) -> bool:
        """Whether two real rows travel as one complex row."""
        return self.dtype.startswith("float")

    def launches(self, rows: int) -> Callable[[Any, Any, Any], None]:
        """Function ``f(x, h, y)`` for that many rows: x and y (rows, size), h (1, bins), or None with `op`."""
        transforms = -(-rows // 2) if self.pairs else rows
        run = rows_kernel(self)[self.fft.launch(rows=transforms)]
        if self.op is not None:
            return lambda x, h, y: run(x, y)
        points, number = self.fft.size, self.fft.dtype.name
        order = order_kernel(self.fft, self.pairs)[-(-points // _THREADS), _THREADS]

        def launch(x, h, y):
            ordered = arrays.empty(x, (points,), number)
            order(h, ordered)
            run(x, ordered, y)

        return launch

    def image_sources(self, filters: list, rows: str) -> dict[str, tuple]:
        """Kernels for ``devkernels build``: of rows of the type `rows`, and of each dtype of H (or None, with `op`)."""
        fft = self.fft
        notes = {"size": self.size, "fft_size": fft.size, "dtype": self.dtype, "block": list(fft.block_dim),
                 "shared": fft.shared_memory_size, "rows_per_block": fft.ffts_per_block * (1 + self.pairs)}  # fmt: skip
        name, number = f"spectral_filter_{self.size}_{self.dtype}", f"{fft.dtype.name}[::1]"
        found, small = {}, {**notes, "block": [_THREADS, 1, 1], "shared": 0}
        for h in filters:
            ordered = "" if h is None else f"{number}, "
            found[f"{name}_rows"] = (rows_kernel(self), f"void({rows}, {ordered}{rows})", notes)
            if h is not None:
                order = order_kernel(fft, self.pairs)
                found[f"{name}_order_{h}"] = (order, f"void({h}[:,::1], {number})", small)
        return found


def engine_filter(size: int, points: int, dtype: str, op: Callable | None) -> EngineFilter | None:
    """The engine's way for rows of `size` samples and transforms of `points`, or None where it has none."""
    precision = "float64" if dtype in ("float64", "complex128") else "float32"
    if op is not None and dtype.startswith("float"):
        return None  # a device function wants each row's own spectrum
    try:
        words = 16 if precision == "float64" else 8
        stages = len(((choose.uneven(points, words) if op is None else None) or choose.choose(points, words)).radices)
    except UnsupportedSizeError:
        return None
    return (
        EngineFilter(block_fft(points, precision, uneven=op is None), size, dtype, op)
        if stages <= _MOST_STAGES
        else None
    )


@lazy_kernel
def order_kernel(fft: BlockFFT, real_rows: bool):
    """Kernel ``f(h, ordered)``: H of shape (1, bins), its half for real rows, in the engine's order, over size."""
    frequency, number, points = spectrum.frequency_at(fft.plan), fft.dtype.type, fft.size
    scale = (np.float32 if fft.dtype == np.complex64 else np.float64)(1 / points)

    def order_filter(h, ordered):
        place = np.int64(cuda.blockIdx.x) * _THREADS + np.int64(cuda.threadIdx.x)
        if place < points:
            k = np.int64(frequency(place))
            if not real_rows:
                ordered[place] = number(h[0, k]) * scale
            elif 2 * k > points:
                ordered[place] = number(h[0, points - k]).conjugate() * scale
            elif k == 0 or 2 * k == points:  # as numpy.fft.irfft: these are real
                ordered[place] = number(h[0, k].real) * scale
            else:
                ordered[place] = number(h[0, k]) * scale

    return kernel(order_filter)


def _moves(fft: BlockFFT, dtype: str, part: str, size: int) -> tuple[Callable, Callable]:
    """Device functions ``f(data, row, thread)``: load a row, padded with zeros; store a row, cropped."""
    masked = size != fft.size
    # Both lengths are known, so that most slots need not ask where they are: asking takes registers, too.
    inside, within = emit.spans(fft.offsets, fft.stride, 0, size) if masked else emit.UNKNOWN
    move = emit.Move(
        fft.offsets, fft.dtype.name, dtype, part, masked, cache=fft.rows_cache, inside=inside, within=within
    )
    load, store = emit.gather(move), emit.scatter(move)
    if fft.uneven:
        load = uneven.by_those_that_load(fft.plan, load, masked)
    if not masked:
        return load, store

    def load_some(data, row, thread):
        load(data, row, thread, thread, size)

    def store_some(data, row, thread):
        store(data, row, thread, thread, size)

    return device_function(load_some), device_function(store_some)


@lazy_kernel
def rows_kernel(plan: EngineFilter):
    """Kernel ``f(x, ordered, y)``, or ``f(x, y)`` with a device function; x and y of shape (rows, size)."""
    if plan.op is not None:
        run = _function_rows(plan)
    else:
        run = _pairs(plan) if plan.pairs else _complex_rows(plan)
    return kernel(run, **plan.fft.kernel_options)


def _complex_rows(plan: EngineFilter) -> Callable:
    fft = plan.fft
    load, store = _moves(fft, plan.dtype, "both", plan.size)
    elements, number, convolve, here = fft.elements_per_thread, fft.dtype, convolved(fft), line_of(fft)

    def filter_rows(x, ordered, y):
        data = cuda.local.array(elements, number)
        factors = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, row = here()
        load(data, x[np.uint64(min(row, x.shape[0] - 1))], thread)
        convolve(data, factors, shared, ordered, thread)
        if row < x.shape[0]:
            store(data, y[np.uint64(row)], thread)

    return filter_rows


def _function_rows(plan: EngineFilter) -> Callable:
    fft = plan.fft
    load, store = _moves(fft, plan.dtype, "both", plan.size)
    op, number = device_function(plan.op), fft.dtype
    scalar, scale = number.type, (np.float32 if number == np.complex64 else np.float64)(1 / fft.size)
    forward, inverse, elements, here = fft.forward, fft.inverse, fft.elements_per_thread, line_of(fft)

    def scaled(value, k):
        return scalar(op(value, k)) * scale

    apply = fft.each_frequency(scaled)

    def filter_rows_by_function(x, y):
        data = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, row = here()
        load(data, x[np.uint64(min(row, x.shape[0] - 1))], thread)
        forward(data, shared)
        apply(data, thread)
        inverse(data, shared)
        if row < x.shape[0]:
            store(data, y[np.uint64(row)], thread)

    return filter_rows_by_function


def _pairs(plan: EngineFilter) -> Callable:
    fft = plan.fft
    load_first, store_first = _moves(fft, plan.dtype, "real", plan.size)
    load_second, store_second = _moves(fft, plan.dtype, "imag", plan.size)
    elements, number, convolve, here = fft.elements_per_thread, fft.dtype, convolved(fft, pairs=True), line_of(fft)

    def filter_pairs(x, ordered, y):
        data = cuda.local.array(elements, number)
        factors = cuda.local.array(elements, number)
        shared = cuda.shared.array(0, number)
        thread, pair = here()
        first = 2 * pair
        last = x.shape[0] - 1
        load_first(data, x[np.uint64(min(first, last))], thread)
        load_second(data, x[np.uint64(min(first + 1, last))], thread)
        convolve(data, factors, shared, ordered, thread)
        if first <= last:
            store_first(data, y[np.uint64(first)], thread)
        if first < last:
            store_second(data, y[np.uint64(first + 1)], thread)

    return filter_pairs
