"""Convolution over the last two axes in three kernels: how it is planned.

in: shapes of images and filters, dtype, mode. out: an `FFTConvolve2D`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from devkernels.errors import SpecError
from devkernels.kernels.convolve_plan import checked
from devkernels.kernels.convolve_plan2d import axis_plans, check_valid
from devkernels.kernels.convolver2d import FFTConvolve2D


@functools.lru_cache(maxsize=128)
def _planned(shape, taps, dtype, mode, prologue, epilogue, tune=False) -> FFTConvolve2D:
    if not tune:
        return FFTConvolve2D(axis_plans(shape, taps, dtype, mode), dtype, mode, prologue, epilogue)
    from devkernels.kernels import convolve_tune

    found = convolve_tune.images(shape, taps, dtype, mode)
    return FFTConvolve2D(found.plans, dtype, mode, prologue, epilogue, found.columns)


def make_fftconvolve2d(
    shape: tuple[int, int],
    taps: tuple[int, int],
    dtype: object,
    mode: str = "full",
    *,
    prologue: Callable | None = None,
    epilogue: Callable | None = None,
    tune: bool = False,
) -> FFTConvolve2D:
    """Plan the convolution of images of `shape` (rows, columns) with filters of shape `taps`.

    Parameters
    ----------
    shape, taps : tuple of two int
        The last two axes.
    dtype : dtype or str
        float16, float32, float64, complex64 or complex128.
    mode : {"full", "same", "valid", "circular", "causal"}
        As in `make_fftconvolve`, along both axes.
    prologue, epilogue : callable, optional
        Device functions ``f(value, image, row, column)`` applied to each sample on load and on store, inside the
        kernels; `image` counts images of the result. With a fifth argument, `extra`, as in `make_fftconvolve`. They
        have no gradients: see there.
    tune : bool
        Measure on this GPU, once, which transforms of rows and columns are fastest for such images, with a progress
        bar, and keep the answer in the cache; ``describe()`` says what was chosen.

    Returns
    -------
    FFTConvolve2D
        ``f(x, h, out=None, stream=None, extra=None)``; ``s = f.prepare(h)`` and ``f(x, spectra=s)`` to transform
        filters once. Leading axes broadcast; one filter for all images, or one for each index of the last batch axes,
        need no copies.

    Raises
    ------
    SpecError, UnsupportedSizeError
        The mode, dtype or sizes are not supported.
    """
    name = checked(dtype, mode)
    if len(shape) != 2 or len(taps) != 2 or min(*shape, *taps) < 1:
        raise SpecError(f"shape={shape!r} and taps={taps!r} must be two positive lengths each.")
    if mode == "valid":
        check_valid(shape, taps)
    return _planned(tuple(map(int, shape)), tuple(map(int, taps)), name, mode, prologue, epilogue, tune)
