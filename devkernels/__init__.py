"""Device-side FFT and matmul objects for kernels written in Python, and ready kernels made of them.

Importing this package imports no CUDA library. It has one side effect: where there is no CUDA driver (or where
DEVKERNELS_TARGET=sim says so) it selects Numba's CUDA simulator for this process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from devkernels import target as _target
from devkernels._version import __version__

_target.select_home()

# Public name -> module that defines it; imported on first use so that `import devkernels` stays light.
_PUBLIC = {
    "DeviceFFT": "devkernels.device.fft_object",
    "DeviceMatmul": "devkernels.device.matmul_object",
    "DevkernelsError": "devkernels.errors",
    "KernelImage": "devkernels.compiler.image",
    "Launcher": "devkernels.launch",
    "Target": "devkernels.target",
    "TileLayout": "devkernels.device.tile_layout",
    "block_fft": "devkernels.engine.block_fft",
    "compile": "devkernels.compiler.kernel",
    "correlate": "devkernels.kernels.fftconvolve",
    "cuda": "devkernels.lazy",
    "device_function": "devkernels.device.inline",
    "fft": "devkernels.device.fft",
    "fftconvolve": "devkernels.kernels.fftconvolve",
    "gemm": "devkernels.kernels.gemm",
    "keep_nvmath_functions": "devkernels.compiler.nvmath_functions",
    "kernel": "devkernels.launch",
    "load_image": "devkernels.launch",
    "load_tile": "devkernels.device.collectives",
    "load_tile_async": "devkernels.device.collectives",
    "make_fftconvolve": "devkernels.kernels.fftconvolve",
    "make_fftconvolve2d": "devkernels.kernels.fftconvolve2d",
    "make_gemm": "devkernels.kernels.gemm",
    "make_gemm_chain": "devkernels.kernels.gemm_chain",
    "make_spectral_filter": "devkernels.kernels.spectral_filter",
    "matmul": "devkernels.device.matmul",
    "oaconvolve": "devkernels.kernels.fftconvolve",
    "spectral_filter": "devkernels.kernels.spectral_filter",
    "store_tile": "devkernels.device.collectives",
    "tile_layout": "devkernels.device.tile_layout",
    "use_images": "devkernels.compiler.shipped",
    "wait_tiles": "devkernels.device.collectives",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'devkernels' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


if TYPE_CHECKING:
    from devkernels.compiler.image import KernelImage
    from devkernels.compiler.kernel import compile
    from devkernels.compiler.nvmath_functions import keep_nvmath_functions
    from devkernels.compiler.shipped import use_images
    from devkernels.device.collectives import load_tile, load_tile_async, store_tile, wait_tiles
    from devkernels.device.fft import DeviceFFT, fft
    from devkernels.device.inline import device_function
    from devkernels.device.matmul import DeviceMatmul, matmul
    from devkernels.device.tile_layout import TileLayout, tile_layout
    from devkernels.engine.block_fft import block_fft
    from devkernels.errors import DevkernelsError
    from devkernels.kernels.fftconvolve import correlate, fftconvolve, make_fftconvolve, oaconvolve
    from devkernels.kernels.fftconvolve2d import make_fftconvolve2d
    from devkernels.kernels.gemm import gemm, make_gemm
    from devkernels.kernels.gemm_chain import make_gemm_chain
    from devkernels.kernels.spectral_filter import make_spectral_filter, spectral_filter
    from devkernels.launch import Launcher, kernel, load_image
    from devkernels.lazy import cuda
    from devkernels.target import Target
