"""Device functions of libmathdx through the cache, for real: one compile each, however many ask."""

import os
import subprocess
import sys
import time

import numpy as np
from numba import cuda

import devkernels
from devkernels import cache

CODE = """
import sys, time
import numpy as np
import devkernels
from devkernels import cache, fft_sizes
from devkernels.device.code import FunctionRequest
from devkernels.target import Target

f = devkernels.fft(fft_type="c2c", size=4, precision=np.float32, direction="forward", execution="Thread")
request = FunctionRequest(fft_sizes.description(f.spec), Target(9, 0))
request.key
time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
code = request.ltoir()
print(cache.counts("ltoir")["builds"], len(code), hash(code))
"""


def test_sixteen_processes_compile_a_function_once(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": ":".join(sys.path), "DEVKERNELS_CACHE_DIR": str(tmp_path), "DEVKERNELS_QUIET": "1",
        "PYTHONHASHSEED": "0",
    }  # fmt: skip
    start = str(time.time() + 10)
    processes = [
        subprocess.Popen([sys.executable, "-c", CODE, start], env=environment, stdout=subprocess.PIPE)
        for _ in range(16)
    ]
    answers = [process.communicate(timeout=300)[0].decode().split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 16
    assert sum(int(builds) for builds, *_ in answers) == 1
    assert len({tuple(rest) for _, *rest in answers}) == 1
    assert int(answers[0][1]) > 1000


def test_kernels_share_functions(tmp_path, monkeypatch):
    """Two kernels that call the same two functions: two compiles of functions, two of kernels, in any order."""
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    cache.forget()
    before = cache.counts("ltoir")["builds"], cache.counts("kernel")["builds"]
    forward = devkernels.fft(fft_type="c2c", size=4, precision=np.float32, direction="forward", execution="Thread")
    inverse = forward.inverse()
    value_type = forward.value_type

    def make(scale):
        def kernel(x, y):
            i = cuda.grid(1)
            data = cuda.local.array(4, value_type)
            for k in range(4):
                data[k] = x[i, k]
            forward(data)
            inverse(data)
            forward(data)
            inverse(data)
            for k in range(4):
                y[i, k] = data[k] * scale

        return kernel

    signature = "void(complex64[:,::1], complex64[:,::1])"
    first = devkernels.compile(make(0.25), signature)
    second = devkernels.compile(make(0.5), signature)
    assert first.cubin != second.cubin
    assert cache.counts("ltoir")["builds"] - before[0] == 2
    assert cache.counts("kernel")["builds"] - before[1] == 2
    assert first.local_bytes == 0  # linked as LTO-IR: inlined, nothing spilled
