"""What the tests of convolutions share: random data, results by definition in float64, bounds. NumPy only."""

import numpy as np

from devkernels.kernels.convolve_plan import COMPUTE, window
from devkernels.tolerance import fft_bound


def random(rng, shape, dtype):
    """Normal values of a dtype."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def reference(x, h, mode):
    """The convolution along the last axis in double precision, leading axes broadcast."""
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    length, taps = x.shape[-1], h.shape[-1]
    points = 1 << (length + taps - 2).bit_length() if length + taps > 2 else 1
    full = np.fft.ifft(np.fft.fft(x.astype(wide), points) * np.fft.fft(h.astype(wide), points))[
        ..., : length + taps - 1
    ]
    full = full if wide is np.complex128 else full.real
    if mode == "circular":
        wrapped = full[..., :length].copy()
        wrapped[..., : taps - 1] += full[..., length:]
        return wrapped
    start, samples = window(mode, length, taps)
    return full[..., start : start + samples]


def bound(dtype, points):
    """Bound on the relative error of a convolution by transforms of so many points."""
    storage = fft_bound("float16", 2) if dtype == "float16" else 0
    return fft_bound(COMPUTE[dtype], points, 2) + storage


def error(got, want, x, h, mode):
    """Relative error of a convolution's result.

    Transforms spread their errors evenly over all samples of the full convolution, whose norm is what they are relative
    to; a narrow window of them (one sample of seven, say) may be small by chance.
    """
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    scale = np.linalg.norm(want)
    if mode != "circular":
        full = reference(x, h, "full")
        scale = max(scale, np.linalg.norm(full) * (want.size / full.size) ** 0.5)
    return float(np.linalg.norm(np.asarray(got, wide) - want) / scale)
