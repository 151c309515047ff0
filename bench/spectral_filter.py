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

TOTAL = 1 << 27  # complex values: 1 GiB read and 1 GiB written, far more than any L2
SIZES = (64, 96, 128, 256, 512, 1000, 1024, 1536, 2048, 4096, 8192, 10000, 16384)
CASES = [{"size": size, "dtype": "complex64"} for size in SIZES]
PEERS = {"nvmath callback": "nvmath callback", "cuFFT plan": "cuFFT plan", "CuPy idiom": "CuPy idiom"}
TABLES = {
    "times_copy": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **PEERS},
        note="Time as a multiple of a copy of the same bytes (1.00 is the floor); complex64, 2**27 values.",
    ),
    "host": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **PEERS},
        metric="host_us",
        note="Microseconds of host time for each call.",
    ),
    "error": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **PEERS},
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


def _cufft_plan(x, y, response):
    """One reused plan, an in-place multiplication, an in-place inverse."""
    import cupy as cp
    from cupy.cuda import cufft
    from cupyx.scipy.fft import get_fft_plan

    plan = get_fft_plan(x, axes=1, value_type="C2C")

    def run():
        plan.fft(x, y, cufft.CUFFT_FORWARD)
        cp.multiply(y, response, out=y)
        plan.fft(y, y, cufft.CUFFT_INVERSE)

    return run, lambda: y


def _error(x, response, get_result):
    """Relative error over the first, the last and some other rows; a value that was never written is NaN."""
    from devkernels.tolerance import relative_error

    last = x.shape[0] - 1
    rows = np.unique(np.concatenate([[0, 1, last], np.random.default_rng().integers(last, size=8)]))
    signal = x[rows].get().astype(np.complex128)
    want = np.fft.ifft(np.fft.fft(signal) * response.get().astype(np.complex128))
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

    size = case["size"]
    batch = TOTAL // size
    generator = cp.random.default_rng()
    x = generator.standard_normal((batch, 2 * size), dtype=cp.float32).view(cp.complex64)
    response = generator.standard_normal(2 * size, dtype=cp.float32).view(cp.complex64)
    scaled = response / np.float32(size)
    bound = fft_bound("complex64", size, transforms=2)
    contenders, closers = [], []

    def add(name, run, get_result, **extra):
        check = lambda: _error(x, response, get_result)  # noqa: E731 - one line, used once
        contenders.append(Contender(name, run, check, bound, extra=extra))

    def add_or_tell(name, make):
        """A contender that cannot be set up is a failed row with its reason, and the others go on."""
        try:
            make()
        except Exception as error:  # noqa: BLE001 - any peer may be missing or refuse the size
            reason = error

            def refuse():
                raise reason

            contenders.append(Contender(name, refuse))

    def ours():
        y = cp.full_like(x, cp.nan)
        convolve = devkernels.make_spectral_filter(size, cp.complex64)
        add("devkernels", lambda: convolve(x, response, out=y), lambda: y)

    def callback():
        run, get_result, close = _nvmath_callback(x, cp.full_like(x, cp.nan), scaled, size)
        closers.append(close)
        add("nvmath callback", run, get_result)

    def planned():
        add("cuFFT plan", *_cufft_plan(x, cp.full_like(x, cp.nan), scaled))

    def idiom():
        result = {}
        add("CuPy idiom", lambda: result.update(y=cp.fft.ifft(cp.fft.fft(x) * response)), lambda: result["y"])

    for name, make in (
        ("devkernels", ours),
        ("nvmath callback", callback),
        ("cuFFT plan", planned),
        ("CuPy idiom", idiom),
    ):
        add_or_tell(name, make)
    return Setup(contenders, moved_bytes=2 * x.nbytes, close=lambda: [close() for close in closers])
