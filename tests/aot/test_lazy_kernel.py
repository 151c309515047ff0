"""Kernels that are made only when they must be compiled: found again without being made."""

import pytest

from devkernels import cache, cuda
from devkernels.compiler.image import Parameter
from devkernels.compiler.kernel import Options
from devkernels.kernels.lazy_kernel import LazyKernel
from devkernels.launch.jit import Kernel
from devkernels.target import Target

ARRAY = Parameter("x", "array", "float32", 1, "C")
MADE = []


def adding(number, specific):
    MADE.append(number)

    def add(x):
        x[cuda.grid(1)] += number

    return Kernel(add, Options(arch_specific=specific))


@pytest.mark.parametrize("specific", [False, True])
def test_found_again_without_being_made(tmp_path, monkeypatch, specific):
    """Also where the kernel is compiled for sm_90a when sm_90 is asked for."""
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    cache.forget()
    MADE.clear()
    first = LazyKernel(adding, (3, specific)).image((ARRAY,), Target(9, 0))
    assert (str(first.target), MADE) == ("sm_90a" if specific else "sm_90", [3])
    cache.forget()  # as another process
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    assert LazyKernel(adding, (3, specific)).image((ARRAY,), Target(9, 0)) == first
    assert MADE == [3]
    cache.forget()
