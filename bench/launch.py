"""What a launch costs the host: z = x + y on three small arrays, launched in every way there is.

in: cases by the library of the arrays. out: contenders for bench/harness.py; `host_us` is what counts. All launch
the same work on the same stream: through devkernels (called, bound, and from an image), Numba's dispatcher, CuPy's
RawKernel, cuda.core's launch, and cuLaunchKernel of cuda.bindings with arguments prepared once, which checks nothing.
"""

from __future__ import annotations

import ctypes

import numpy as np

import devkernels
from bench.harness import Contender, Setup
from bench.report import Table

COUNT, BLOCK = 4096, 128
GRID = COUNT // BLOCK
HOST_ROUNDS = 60  # taking turns: a host that is shared has better and worse moments
CASES = [{"arrays": "cupy"}, {"arrays": "torch"}, {"arrays": "numba"}]
TABLES = {
    "host": Table(
        rows=("arrays",),
        columns={
            "devkernels": "devkernels",
            "devkernels, bound": "devkernels, bound",
            "Numba dispatcher": "Numba dispatcher",
            "CuPy RawKernel": "CuPy RawKernel",
            "cuda.core launch": "cuda.core launch",
            "cuLaunchKernel, prepared": "cuLaunchKernel, prepared",
        },
        metric="host_us",
        note="Microseconds of host time for each launch with three array arguments, by library of the arrays.",
    )
}
SIGNATURE = "void(float32[::1], float32[::1], float32[::1], int32)"
CUDA_TEXT = """
extern "C" __global__ void add(const float *x, const float *y, float *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}
"""


def make_add():
    """Z = x + y; Numba is imported here, since listing the cases must need neither it nor a GPU."""
    from numba import cuda

    def add(x, y, z, n):
        i = cuda.grid(1)
        if i < n:
            z[i] = x[i] + y[i]

    return add


def _arrays(library):
    import cupy as cp

    arrays = [cp.random.standard_normal(COUNT, dtype=cp.float32) for _ in range(2)] + [cp.empty(COUNT, cp.float32)]
    if library == "torch":
        import torch

        return arrays, [torch.as_tensor(array, device="cuda") for array in arrays]
    if library == "numba":
        from numba import cuda

        return arrays, [cuda.as_cuda_array(array, sync=False) for array in arrays]
    return arrays, arrays


def _cuda_core(arrays, stream):
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    major, minor = device.compute_capability
    program = Program(CUDA_TEXT, "c++", ProgramOptions(arch=f"sm_{major}{minor}"))
    kernel = program.compile("cubin").get_kernel("add")
    config = LaunchConfig(grid=GRID, block=BLOCK)
    own = device.create_stream(stream)
    pointers = [array.data.ptr for array in arrays]
    count = np.int32(COUNT)
    return lambda: launch(own, config, kernel, *pointers, count)


def _bindings(arrays, stream, raw):
    """What the driver's call itself costs, with arguments that were converted once, through NVIDIA's own bindings."""
    from cuda.bindings import driver

    words = [ctypes.c_void_p(array.data.ptr) for array in arrays] + [ctypes.c_int32(COUNT)]
    addresses = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
    function = driver.CUfunction(raw.kernel.ptr)
    handle, start = driver.CUstream(stream.ptr), ctypes.addressof(addresses)

    def run():
        driver.cuLaunchKernel(function, GRID, 1, 1, BLOCK, 1, 1, 0, handle, start, 0)

    run.keep = words, addresses
    return run


def set_up(case):
    """Contenders that launch z = x + y; each result is checked against NumPy, with z poisoned before."""
    import tempfile

    import cupy as cp
    from numba import cuda

    add = make_add()
    plain, arrays = _arrays(case["arrays"])
    x, y, z = plain
    want = cp.asnumpy(x).astype(np.float64) + cp.asnumpy(y)
    stream = cp.cuda.get_current_stream()
    kernel = devkernels.kernel(add, signature=SIGNATURE)
    inferred = devkernels.kernel(add)
    with tempfile.TemporaryDirectory() as folder:
        image = devkernels.load_image(kernel.compile().save(f"{folder}/add.dkimage"))
    jitted = cuda.jit(SIGNATURE)(add)
    external = cuda.external_stream(stream.ptr)
    raw = cp.RawKernel(CUDA_TEXT, "add")
    runs = {
        "devkernels": lambda: kernel[GRID, BLOCK](*arrays, COUNT),
        "devkernels, no signature": lambda: inferred[GRID, BLOCK](*arrays, COUNT),
        "devkernels, image": lambda: image[GRID, BLOCK](*arrays, COUNT),
        "devkernels, bound": kernel[GRID, BLOCK].bind(*arrays, COUNT),
        "devkernels, bound to a stream": kernel[GRID, BLOCK, stream].bind(*arrays, COUNT),
        "Numba dispatcher": lambda: jitted[GRID, BLOCK, external](*arrays, COUNT),
    }
    count = np.int32(COUNT)
    if case["arrays"] == "cupy":
        runs |= {
            "CuPy RawKernel": lambda: raw((GRID,), (BLOCK,), (*arrays, count)),
            "cuda.core launch": _cuda_core(plain, stream),
            "cuLaunchKernel, prepared": _bindings(plain, stream, raw),
        }

    def checked(name, run):
        def error():
            z.fill(np.nan)
            run()
            cp.cuda.get_current_stream().synchronize()
            return float(np.linalg.norm(cp.asnumpy(z) - want) / np.linalg.norm(want))

        return Contender(name, run, error, 1e-6)

    return Setup([checked(name, run) for name, run in runs.items()], moved_bytes=12 * COUNT)
