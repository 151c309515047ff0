"""The programs of bench/start.py, each one a whole process: ``python bench/_start_programs.py NAME``.

in: the environment that bench/start.py sets. out: one line of JSON on stdout. Nothing is imported before a program
asks for it, since imports are part of what is measured.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]

SIZE, ROWS = 256, 64


class Clock:
    """Stages of a process; the first includes the start of Python, which began at the time in the environment."""

    def __init__(self):
        self.stages: dict[str, float] = {}
        self.start = self.last = float(os.environ["BENCH_STARTED"])

    def mark(self, stage: str) -> None:
        now = time.time()
        self.stages[stage] = round(1e3 * (now - self.last), 1)
        self.last = now

    def report(self, error: float, bound: float, builds: int) -> None:
        first = round(1e3 * (time.time() - self.start), 1)
        assert error <= bound, f"error {error}"
        told = {"first_result_ms": first, "stages_ms": self.stages, "error": error, "builds": builds}
        print(json.dumps(told | {"numba_imported": "numba" in sys.modules}))


class Bindings:
    """As much of an array library as these programs need, on cuda.bindings alone: no CuPy, no torch, no Numba."""

    def __init__(self):
        from cuda.bindings import driver

        self._driver = driver
        self._call(driver.cuInit, 0)
        self._call(
            driver.cuCtxSetCurrent, self._call(driver.cuDevicePrimaryCtxRetain, self._call(driver.cuDeviceGet, 0))
        )

    @staticmethod
    def _call(function, *arguments):
        status, *values = function(*arguments)
        assert int(status) == 0, status
        return values[0] if values else None

    def asarray(self, host):
        """A copy of a contiguous NumPy array on the GPU."""
        pointer = self._call(self._driver.cuMemAlloc, host.nbytes)
        self._call(self._driver.cuMemcpyHtoD, pointer, host.ctypes.data, host.nbytes)
        return DeviceArray(self, int(pointer), host.shape, host.dtype)

    def wait(self):
        """Wait for the GPU."""
        self._call(self._driver.cuCtxSynchronize)


class DeviceArray:
    """An array on the GPU that says so by ``__cuda_array_interface__``."""

    def __init__(self, owner, pointer, shape, dtype):
        self.owner, self.pointer, self.shape, self.dtype = owner, pointer, shape, dtype

    @property
    def __cuda_array_interface__(self):
        return {"version": 3, "data": (self.pointer, False), "shape": self.shape, "typestr": self.dtype.str,
                "strides": None, "stream": None}  # fmt: skip

    def get(self):
        """The array on the host."""
        import numpy as np

        host = np.empty(self.shape, self.dtype)
        self.owner._call(self.owner._driver.cuMemcpyDtoH, host.ctypes.data, self.pointer, host.nbytes)
        return host


def _library(clock):
    """CuPy, or cuda.bindings if the environment says so; and a function that waits for the GPU."""
    if os.environ.get("BENCH_ARRAYS") == "bindings":
        import numpy  # noqa: F401 - a stage of its own

        clock.mark("numpy")
        own = Bindings()
        clock.mark("cuda.bindings and context")
        return own, own.wait
    import cupy as cp

    clock.mark("cupy")
    cp.cuda.Device().synchronize()
    cp.empty(1)
    clock.mark("context")
    return cp, cp.cuda.Device().synchronize


def _data(cp):
    import numpy as np

    rng = np.random.default_rng()
    x = (rng.standard_normal((ROWS, SIZE)) + 1j * rng.standard_normal((ROWS, SIZE))).astype(np.complex64)
    h = (rng.standard_normal(SIZE) + 1j * rng.standard_normal(SIZE)).astype(np.complex64)
    want = np.fft.ifft(np.fft.fft(x.astype(complex)) * h)
    nothing = np.full((ROWS, SIZE), np.nan, np.complex64)
    return cp.asarray(x), cp.asarray(h), cp.asarray(nothing), want


def _error(y, want, scale=1.0):
    import numpy as np

    got = y.get() / scale
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def two_fft_nvmath() -> None:
    """The published way."""
    clock = Clock()
    clock.mark("python")
    cp, wait = _library(clock)
    x, h, y, want = _data(cp)
    clock.mark("data")
    import numpy as np
    from numba import cuda
    from nvmath.device import FFT, float32x2, float32x2_type

    clock.mark("import numba, nvmath")
    options = dict(fft_type="c2c", size=SIZE, precision=np.float32, execution="Block")
    forward, inverse = FFT(direction="forward", **options), FFT(direction="inverse", **options)
    storage, stride, ept, fpb = (
        forward.storage_size,
        forward.stride,
        forward.elements_per_thread,
        forward.ffts_per_block,
    )
    shared_size = max(forward.shared_memory_size, inverse.shared_memory_size)
    block = forward.block_dim

    @cuda.jit
    def convolve(x, h, y):
        thread_data = cuda.local.array(storage, float32x2_type)
        shared = cuda.shared.array(0, float32x2_type)
        row = cuda.blockIdx.x * fpb + cuda.threadIdx.y
        if row >= x.shape[0]:
            return
        for i in range(ept):
            a = x[row, cuda.threadIdx.x + i * stride]
            thread_data[i] = float32x2(a.real, a.imag)
        forward.execute(thread_data, shared)
        for i in range(ept):
            a, b = thread_data[i], h[cuda.threadIdx.x + i * stride]
            thread_data[i] = float32x2(a.x * b.real - a.y * b.imag, a.x * b.imag + a.y * b.real)
        cuda.syncthreads()
        inverse.execute(thread_data, shared)
        for i in range(ept):
            a = thread_data[i]
            y[row, cuda.threadIdx.x + i * stride] = complex(a.x, a.y)

    clock.mark("device functions")
    convolve[-(-ROWS // fpb), tuple(block), 0, shared_size](x, h, y)
    wait()
    clock.mark("compile and launch")
    clock.report(_error(y, want, SIZE), 1e-5, -1)


def two_fft_devkernels() -> None:
    """The same kernel text through devkernels."""
    clock = Clock()
    clock.mark("python")
    cp, wait = _library(clock)
    x, h, y, want = _data(cp)
    clock.mark("data")
    import numpy as np

    import devkernels
    from devkernels import cache, cuda

    clock.mark("import devkernels")
    forward = devkernels.fft(fft_type="c2c", size=SIZE, precision=np.float32, direction="forward")
    inverse = forward.inverse()
    storage, value_type = forward.storage_size, forward.value_type

    @devkernels.kernel
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

    clock.mark("device functions")
    convolve[forward.launch(rows=ROWS)](x, h, y)
    wait()
    clock.mark("compile or load, and launch")
    clock.report(_error(y, want, SIZE), 1e-5, cache.counts()["builds"])
    if path := os.environ.get("BENCH_IMAGE"):
        plan = forward.launch(rows=ROWS)
        notes = {"grid": list(plan[0]), "block": list(plan[1]), "shared": plan[3]}
        signature = "void(complex64[:,::1], complex64[::1], complex64[:,::1])"
        devkernels.compile(convolve, signature, notes=notes).save(path)


def two_fft_image() -> None:
    """The same kernel from an image file: no compiler, no Numba."""
    clock = Clock()
    clock.mark("python")
    cp, wait = _library(clock)
    x, h, y, want = _data(cp)
    clock.mark("data")
    import devkernels

    kernel = devkernels.load_image(os.environ["BENCH_IMAGE"])
    clock.mark("import devkernels, read image")
    notes = kernel.image.notes
    kernel[notes["grid"], notes["block"], None, notes["shared"]](x, h, y)
    wait()
    clock.mark("load and launch")
    assert "numba" not in sys.modules
    clock.report(_error(y, want, SIZE), 1e-5, 0)


def filter_devkernels() -> None:
    """The ready spectral filter."""
    clock = Clock()
    clock.mark("python")
    cp, wait = _library(clock)
    x, h, y, want = _data(cp)
    clock.mark("data")
    import devkernels
    from devkernels import cache

    clock.mark("import devkernels")
    y = devkernels.spectral_filter(x, h)
    wait()
    clock.mark("filter")
    clock.report(_error(y, want), 1e-5, cache.counts()["builds"])


def cupy_fft() -> None:
    """The same by CuPy's own transforms: three kernels, two plans."""
    clock = Clock()
    clock.mark("python")
    cp, wait = _library(clock)
    x, h, y, want = _data(cp)
    clock.mark("data")
    y[...] = cp.fft.ifft(cp.fft.fft(x) * h)
    wait()
    clock.mark("cupy.fft")
    clock.report(_error(y, want), 1e-5, 0)


def floor() -> None:
    """What every program with these arrays pays: the interpreter, the library, a context, the data there and back."""
    clock = Clock()
    clock.mark("python")
    cp, wait = _library(clock)
    x, *_ = _data(cp)
    clock.mark("data")
    import numpy as np

    wait()
    clock.report(_error(x, np.fft.ifft(np.fft.fft(x.get()))), 1e-5, 0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
