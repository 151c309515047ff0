"""y = ifft(fft(x) * H) along the last axis, one filter for all rows: one fused kernel against what else there is.

in: cases of one transform length each. out: contenders for bench/harness.py. The floor is a copy of the same bytes:
x must be read and y written. Peers, strongest first:

- ``nvmath callback``: nvmath.fft with the filter (and 1/N) compiled into the forward transform as an LTO epilog, and
  a planned inverse in place: two passes over memory.
- ``cuFFT plan``: cuFFT through CuPy with one reused plan, the filter multiplied in place, the inverse in place, 1/N
  folded into the filter: three passes.
- ``CuPy idiom``: ``ifft(fft(x) * H)``, as most people write it.
"""

from __future__ import annotations

import numpy as np

from bench.harness import Contender, Setup
from bench.report import Table

HELD = True
TOTAL = 1 << 27  # complex values: 1 GiB read and 1 GiB written, far more than any L2
SIZES = (64, 96, 128, 256, 512, 1000, 1024, 1728, 2048, 4096, 8192, 10000, 16384)
REAL_SIZES = (256, 1000, 1024, 4096)
CASES = [{"size": size, "dtype": "complex64"} for size in SIZES] + [
    {"size": size, "dtype": "float32"} for size in REAL_SIZES
]
PEERS = {"nvmath callback": "nvmath callback", "cuFFT plan": "cuFFT plan", "CuPy idiom": "CuPy idiom"}
TABLES = {
    "times_copy": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **PEERS},
        where={"dtype": "complex64"},
        note="Time as a multiple of a copy of the same bytes (1.00 is the floor); complex64, 2**27 values.",
    ),
    "real": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", "cuFFT plan": "cuFFT plan", "CuPy idiom": "CuPy idiom"},
        where={"dtype": "float32"},
        note="Real input, time as a multiple of a copy of the same bytes; float32, 2**28 values.",
    ),
    "host": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **PEERS},
        where={"dtype": "complex64", "size": 256},
        metric="host_us",
        note="Microseconds of host time for each call.",
    ),
    "error": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **PEERS},
        where={"dtype": "complex64"},
        metric="error",
        note="Relative L2 error against NumPy in complex128.",
    ),
}


def _nvmath_callback(x, y, response, size):
    """Forward transform with the filter in its epilog, then a planned inverse in place."""
    import nvmath

    count = np.uint32(size)
    if size & (size - 1) == 0:
        mask = np.uint32(size - 1)

        def epilog(data_out, offset, value, filter_values, reserved):
            data_out[offset] = value * filter_values[np.uint32(offset) & mask]
    else:

        def epilog(data_out, offset, value, filter_values, reserved):
            data_out[offset] = value * filter_values[np.uint32(offset) % count]

    compiled = nvmath.fft.compile_epilog(epilog, "complex64", "complex64")
    forward = nvmath.fft.FFT(x, axes=[1])
    forward.plan(epilog=nvmath.fft.DeviceCallable(ltoir=compiled, size=len(compiled), data=response.data.ptr))
    inverse = nvmath.fft.FFT(y, axes=[1], options={"inplace": True})
    inverse.plan()
    result = {}

    def run():
        spectrum = forward.execute(direction=nvmath.fft.FFTDirection.FORWARD)
        inverse.reset_operand_unchecked(spectrum)
        result["y"] = inverse.execute(direction=nvmath.fft.FFTDirection.INVERSE)

    def close():
        forward.free()
        inverse.free()

    return run, lambda: result["y"], close


def _cufft_plan(x, y, response, size):
    """Reused plans, the filter multiplied in place, the inverse; in place where the types allow it (complex input)."""
    import cupy as cp
    from cupy.cuda import cufft

    batch = x.shape[0]
    if x.dtype.kind == "c":
        spectrum, forward = y, cufft.Plan1d(size, cufft.CUFFT_C2C, batch)
        inverse = forward
    else:
        spectrum = cp.empty((batch, size // 2 + 1), cp.complex64)
        forward, inverse = cufft.Plan1d(size, cufft.CUFFT_R2C, batch), cufft.Plan1d(size, cufft.CUFFT_C2R, batch)

    def run():
        forward.fft(x, spectrum, cufft.CUFFT_FORWARD)
        cp.multiply(spectrum, response, out=spectrum)
        inverse.fft(spectrum, y, cufft.CUFFT_INVERSE)

    return run, lambda: y


def _idiom(x, response, size):
    import cupy as cp

    result = {}
    if x.dtype.kind == "c":

        def run():
            result["y"] = cp.fft.ifft(cp.fft.fft(x) * response)
    else:

        def run():
            result["y"] = cp.fft.irfft(cp.fft.rfft(x) * response, size)

    return run, lambda: result["y"]


def _error(x, response, get_result):
    """Relative error over the first, the last and some other rows; a value that was never written is NaN."""
    from devkernels.tolerance import relative_error

    last = x.shape[0] - 1
    rows = np.unique(np.concatenate([[0, 1, last], np.random.default_rng().integers(last, size=8)]))
    wide = response.get().astype(np.complex128)
    signal = x[rows].get()
    if signal.dtype.kind == "c":
        want = np.fft.ifft(np.fft.fft(signal.astype(np.complex128)) * wide)
    else:
        want = np.fft.irfft(np.fft.rfft(signal.astype(np.float64)) * wide, signal.shape[1])
    result = get_result()
    if bool(_isnan_anywhere(result)):
        return float("nan")
    return relative_error(result[rows].get(), want)


def _isnan_anywhere(array):
    import cupy as cp

    step = max(1, (1 << 25) // array.shape[1])  # in parts, to need little memory
    return any(bool(cp.isnan(array[start : start + step]).any()) for start in range(0, array.shape[0], step))


def set_up(case):
    import cupy as cp

    import devkernels
    from devkernels.tolerance import fft_bound

    size, dtype = case["size"], np.dtype(case["dtype"])
    generator = cp.random.default_rng()
    if dtype.kind == "c":
        x = generator.standard_normal((TOTAL // size, 2 * size), dtype=cp.float32).view(cp.complex64)
        frequencies = size
    else:
        x = generator.standard_normal((2 * TOTAL // size, size), dtype=cp.float32)
        frequencies = size // 2 + 1
    parts = np.random.default_rng().standard_normal((2, frequencies))
    if dtype.kind == "f":  # numpy.fft.irfft ignores imaginary parts here, cuFFT does not for all sizes
        parts[1, 0] = 0
        parts[1, -1] *= size % 2
    response = cp.asarray((parts[0] + 1j * parts[1]).astype(np.complex64))
    scaled = response / np.float32(size)
    bound = fft_bound(dtype, size, transforms=2)
    contenders, closers = [], []

    def add(name, make):
        """Set up a contender; one that cannot be is a failed row with its reason, and the others go on."""
        try:
            run, get_result = make()
        except Exception as error:  # noqa: BLE001 - any peer may be missing or refuse the size
            reason = error

            def refuse():
                raise reason

            contenders.append(Contender(name, refuse))
        else:
            contenders.append(Contender(name, run, lambda: _error(x, response, get_result), bound))

    def ours():
        y = cp.full_like(x, cp.nan)
        convolve = devkernels.make_spectral_filter(size, dtype)
        return lambda: convolve(x, response, out=y), lambda: y

    def callback():
        run, get_result, close = _nvmath_callback(x, cp.full_like(x, cp.nan), scaled, size)
        closers.append(close)
        return run, get_result

    add("devkernels", ours)
    if dtype.kind == "c":
        add("nvmath callback", callback)
    add("cuFFT plan", lambda: _cufft_plan(x, cp.full_like(x, cp.nan), scaled, size))
    add("CuPy idiom", lambda: _idiom(x, response, size))
    return Setup(contenders, moved_bytes=2 * x.nbytes, close=lambda: [close() for close in closers])
