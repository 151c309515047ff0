"""`devkernels.cuda`: Numba's module when something asks for it, and nothing before."""

import copy
import os
import pickle
import subprocess
import sys

import devkernels
from devkernels.canonical import digest


def test_it_is_numbas_module():
    from numba import cuda

    assert devkernels.cuda.jit is cuda.jit
    assert devkernels.cuda.to_device is cuda.to_device


def test_it_survives_copies_and_pickles():
    assert pickle.loads(pickle.dumps(devkernels.cuda)) is devkernels.cuda
    assert copy.copy(devkernels.cuda) is devkernels.cuda
    assert copy.deepcopy([devkernels.cuda])[0] is devkernels.cuda


def test_looking_at_it_imports_nothing():
    code = """
import sys, inspect, pickle, copy
before = set(sys.modules)  # cuda-bindings 12 loads the namespace package `cuda` when Python starts
import devkernels
from devkernels import cuda
from devkernels.canonical import digest
repr(cuda), pickle.dumps(cuda), copy.copy(cuda), digest(cuda), hasattr(cuda, "__wrapped__"), inspect.isfunction(cuda)

@devkernels.kernel(signature="void(float32[::1], int32)")
def k(x, n):
    x[cuda.grid(1)] = n

from devkernels.compiler.kernel import kernel_key, Options
from devkernels.compiler.signature import resolve
from devkernels.target import Target
kernel_key(k.py_func, resolve(k.py_func, k.signature), Target(9, 0), Options())
print([name for name in ("numba", "llvmlite", "cuda") if name in set(sys.modules) - before])
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1", "DEVKERNELS_TARGET": "sm_90"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.stdout.strip() == "[]", result.stderr


def test_it_has_one_digest():
    assert digest(devkernels.cuda) == digest(pickle.loads(pickle.dumps(devkernels.cuda)))
