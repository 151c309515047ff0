"""A kernel with two FFTs, and factories of images, which bench/images.py runs: of that kernel, and of ready kernels.

``devkernels build bench._image_factory:convolutions bench._image_factory:ready --target sm_90 -o FOLDER``
"""

from __future__ import annotations

import numpy as np

import devkernels
from devkernels import cuda

SIZES = (128, 1024)


def two_ffts(size):
    """A transform and a kernel, y = inverse(forward(x) * h) in one launch, for each row of x."""
    forward = devkernels.fft(fft_type="c2c", size=size, precision=np.float32, direction="forward")
    inverse = forward.inverse()
    storage, value_type = forward.storage_size, forward.value_type

    def convolve(x, h, y):
        thread_data = cuda.local.array(storage, value_type)
        shared = cuda.shared.array(0, value_type)
        row = forward.row()
        forward.load(x, row, thread_data)
        forward(thread_data, shared)
        for i in range(storage):
            thread_data[i] = thread_data[i] * h[forward.index(i)]
        cuda.syncthreads()
        inverse(thread_data, shared)
        inverse.store(thread_data, y, row)

    return forward, convolve


def _convolution(size):
    forward, convolve = two_ffts(size)
    _, block, _, shared_bytes = forward.launch(rows=1)
    notes = {"size": size, "rows_per_block": forward.ffts_per_block, "block": list(block), "shared": shared_bytes}
    return convolve, "void(complex64[:,::1], complex64[::1], complex64[:,::1])", notes


def convolutions():
    """Kernels with two FFTs each, by file name."""
    return {f"convolution_{size}": _convolution(size) for size in SIZES}


FILTERED, CONVOLVED = (256, "complex64"), (1024, 1024, "float32", "causal")
PRODUCT = {"dtype": "float16", "epilogue": ("bias", "silu")}


def ready():
    """Plans whose kernels a library might ship."""
    return [devkernels.make_spectral_filter(*FILTERED), devkernels.make_fftconvolve(*CONVOLVED),
            devkernels.make_gemm(**PRODUCT)]  # fmt: skip
