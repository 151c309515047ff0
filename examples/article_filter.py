"""A published nvmath.device kernel, unchanged except for its import line: a filter in the frequency domain.

Usage: python examples/article_filter.py

The kernel is the one of "nvmath-python: seamless GPU acceleration in the Python ecosystem" (blog.hotdry.top,
22 September 2025), written for ``from nvmath.device import fft``, which nvmath-python 1.0 no longer has. Everything
inside `apply_filter`, the factory's keywords, the traits and the launch are the article's; the check of the result,
which the article leaves out, is added. Runs on a GPU, and in Numba's simulator without one.
"""

import sys

import numpy as np

from devkernels import fft  # the one line that differs; before numba.cuda, so that it can choose the simulator
from numba import cuda

from devkernels.tolerance import fft_bound, relative_error


def main():
    """Run the article's program; returns 0 if its result is right."""
    size = 128
    ffts_per_block = 1
    batch_size = 1
    FFT_fwd = fft(
        fft_type="c2c",
        size=size,
        precision=np.float32,
        direction="forward",
        ffts_per_block=ffts_per_block,
        elements_per_thread=2,
        execution="Block",
        compiler="numba",
    )
    FFT_inv = fft(
        fft_type="c2c",
        size=size,
        precision=np.float32,
        direction="inverse",
        ffts_per_block=ffts_per_block,
        elements_per_thread=2,
        execution="Block",
        compiler="numba",
    )

    value_type = FFT_fwd.value_type
    storage_size = FFT_fwd.storage_size
    shared_memory_size = FFT_fwd.shared_memory_size
    block_dim = FFT_fwd.block_dim

    @cuda.jit(link=FFT_fwd.files + FFT_inv.files)
    def apply_filter(signal, filter_kernel):
        thread_data = cuda.local.array(shape=(storage_size,), dtype=value_type)
        shared_mem = cuda.shared.array(shape=(0,), dtype=value_type)

        fft_id = (cuda.blockIdx.x * ffts_per_block) + cuda.threadIdx.y
        if fft_id >= batch_size:
            return
        offset = cuda.threadIdx.x

        for i in range(FFT_fwd.elements_per_thread):
            thread_data[i] = signal[fft_id, offset + i * FFT_fwd.stride]

        FFT_fwd(thread_data, shared_mem)

        for i in range(FFT_fwd.elements_per_thread):
            thread_data[i] = thread_data[i] * filter_kernel[fft_id, offset + i * FFT_fwd.stride]

        FFT_inv(thread_data, shared_mem)

        for i in range(FFT_fwd.elements_per_thread):
            signal[fft_id, offset + i * FFT_fwd.stride] = thread_data[i]

    data = np.random.randn(ffts_per_block, size).astype(np.float32) + 1j * np.random.randn(ffts_per_block, size).astype(
        np.float32
    )
    filter_kernel = np.random.randn(ffts_per_block, size).astype(np.float32) + 1j * np.random.randn(
        ffts_per_block, size
    ).astype(np.float32)
    data_d = cuda.to_device(data)
    filter_d = cuda.to_device(filter_kernel)

    apply_filter[1, block_dim, 0, shared_memory_size](data_d, filter_d)
    cuda.synchronize()

    # Not in the article. Device transforms are unnormalised both ways, hence the factor `size`.
    wide = data.astype(np.complex128)
    want = np.fft.ifft(np.fft.fft(wide) * filter_kernel.astype(np.complex128)) * size
    error = relative_error(data_d.copy_to_host(), want)
    bound = fft_bound("float32", size, transforms=2)
    print(f"error against NumPy {error:.2e} (bound {bound:.2e})")
    return 0 if error <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
