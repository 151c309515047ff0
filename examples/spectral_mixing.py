"""A transform and a matrix product in one kernel: channels are mixed, frequency by frequency, without leaving the chip.

Usage: python examples/spectral_mixing.py

One thread block takes the channels of one signal: a device FFT of every channel, the product of a mixing matrix with
the spectra in shared memory, a low-pass filter, and the inverse transform. Written with three calls, this is two
transforms and a product, with the spectra going through memory in between. Runs on a GPU, and in Numba's simulator
without one.
"""

import sys

import numpy as np

import devkernels
from devkernels import cuda
from devkernels.target import home
from devkernels.tolerance import fft_bound, product_bound, relative_error

CHANNELS, SAMPLES, KEPT = 8, 32, 10  # frequencies 0 ... 9 and their mirror images
ZERO = np.complex64(0)


def make_mixer():
    """Return the kernel ``mix(signals, matrix, out)`` and the transform that knows its launch.

    Signals and results have shape (signals * channels, samples), the matrix (channels, channels); all are complex64.
    """
    forward = devkernels.fft(fft_type="c2c", size=SAMPLES, precision=np.float32, direction="forward",
                             ffts_per_block=CHANNELS, elements_per_thread=8)  # fmt: skip
    inverse = forward.inverse()
    # matrix (channels x channels) times spectra (channels x samples), by the same threads
    mm = devkernels.matmul(size=(CHANNELS, SAMPLES, CHANNELS), precision=np.float32, data_type="complex",
                           block_dim=forward.block_dim)  # fmt: skip
    storage, value_type, slots = forward.storage_size, forward.value_type, forward.elements_per_thread
    a_size, b_size, c_size, kind = mm.a_size, mm.b_size, mm.c_size, mm.c_value_type
    samples, kept, scale = SAMPLES, KEPT, np.float32(1 / forward.scale)

    @devkernels.kernel
    def mix(signals, matrix, out):
        thread_data = cuda.local.array(storage, value_type)
        scratch = cuda.shared.array(0, value_type)
        weights = cuda.shared.array(a_size, kind)
        spectra = cuda.shared.array(b_size, kind)
        mixed = cuda.shared.array(c_size, kind)
        row, channel = forward.row(), cuda.threadIdx.y
        mm.load_a(matrix, 0, 0, weights)
        forward.load(signals, row, thread_data)
        forward(thread_data, scratch)
        for i in range(slots):
            spectra[channel * samples + forward.index(i)] = thread_data[i]
        cuda.syncthreads()
        mm(1, weights, spectra, 0, mixed)
        cuda.syncthreads()
        for i in range(slots):
            k = forward.index(i)
            inside = k < kept or k > samples - kept
            thread_data[i] = mixed[channel * samples + k] * scale if inside else ZERO
        inverse(thread_data, scratch)
        inverse.store(thread_data, out, row)

    return mix, forward


def reference(signals, matrix):
    """The same in three steps of NumPy, in complex128."""
    spectra = np.fft.fft(signals.astype(np.complex128).reshape(-1, CHANNELS, SAMPLES))
    mixed = matrix.astype(np.complex128) @ spectra
    mixed[..., KEPT : SAMPLES - KEPT + 1] = 0
    return np.fft.ifft(mixed).reshape(signals.shape)


def main():
    """Mix a few signals; returns 0 if the result is right."""
    rng = np.random.default_rng()

    def draw(*shape):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

    count = 3
    signals, matrix = draw(count * CHANNELS, SAMPLES), draw(CHANNELS, CHANNELS)
    mix, forward = make_mixer()
    launch = forward.launch(rows=len(signals))
    out = np.full_like(signals, np.nan)
    if home().kind == "gpu":
        import cupy

        there = [cupy.asarray(x) for x in (signals, matrix, out)]
        mix[launch](*there)
        out = there[2].get()
    else:
        mix[launch](signals, matrix, out)
    error = relative_error(out, reference(signals, matrix))
    bound = fft_bound("float32", SAMPLES, 2) + product_bound("float32", "float32", CHANNELS)
    print(f"{count} signals of {CHANNELS} channels, error against NumPy: {error:.1e} (bound {bound:.1e})")
    return 0 if error < bound else 1


if __name__ == "__main__":
    sys.exit(main())
