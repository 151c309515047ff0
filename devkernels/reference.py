"""float64 references in plain NumPy, for tests, examples and the bench.

In: arrays of any precision. Out: what the package's kernels should give, in float64 or complex128, with the package's
scales (device transforms are not normalised; filters and convolutions are).
"""

from __future__ import annotations

import numpy as np


def pack_spectrum(half: np.ndarray, layout: str, full_size: int) -> np.ndarray:
    """Bring ``numpy.fft.rfft``'s half spectrum into a layout of cuFFTDx: natural, packed or full."""
    if layout == "natural":
        return half
    if layout == "packed":
        packed = half[..., : full_size // 2].copy()
        packed[..., 0] = half[..., 0].real + 1j * half[..., full_size // 2].real
        return packed
    mirrored = np.conj(half[..., 1 : (full_size + 1) // 2][..., ::-1])
    return np.concatenate([half, mirrored], axis=-1)


def unpack_spectrum(values: np.ndarray, layout: str, full_size: int) -> np.ndarray:
    """Undo `pack_spectrum`: give the half spectrum."""
    if layout == "packed":
        half = np.concatenate([values, values[..., :1].imag.astype(values.dtype)], axis=-1)
        half[..., 0] = half[..., 0].real
        return half
    return values[..., : full_size // 2 + 1]


def device_fft(
    x: np.ndarray, *, fft_type: str, size: int, direction: str = "forward", layout: str = "natural"
) -> np.ndarray:
    """Transform rows along the last axis as a device FFT does: zero-padded or cropped to its size, not normalised."""
    length = {"c2c": size, "r2c": size}.get(fft_type) or {"natural": size // 2 + 1, "packed": size // 2, "full": size}[
        layout
    ]
    wide = np.zeros((*x.shape[:-1], length), dtype=np.float64 if fft_type == "r2c" else np.complex128)
    kept = min(length, x.shape[-1])
    wide[..., :kept] = x[..., :kept]
    if fft_type == "c2c":
        return np.fft.fft(wide) if direction == "forward" else np.fft.ifft(wide) * size
    if fft_type == "r2c":
        return pack_spectrum(np.fft.rfft(wide), layout, size)
    return np.fft.irfft(unpack_spectrum(wide, layout, size), size) * size


def spectral_filter(x: np.ndarray, H: np.ndarray, fft_size: int | None = None) -> np.ndarray:
    """``ifft(fft(x) * H)`` along the last axis (``irfft``, ``rfft`` for real x), padded to `fft_size` and cropped."""
    n = x.shape[-1]
    points = fft_size or n
    if np.iscomplexobj(x):
        return np.fft.ifft(np.fft.fft(x.astype(np.complex128), points) * H)[..., :n]
    return np.fft.irfft(np.fft.rfft(x.astype(np.float64), points) * H, points)[..., :n]
