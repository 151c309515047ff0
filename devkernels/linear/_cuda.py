"""CUDA C++ of this folder on a device: compiled by NVRTC when first needed, kept on disk, launched by pointers.

in: names of source files and options.  out: cubins (`devkernels.cache`, kind "cubin"), functions, their launches.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

from devkernels import cache
from devkernels.errors import CompileError, DevkernelsError
from devkernels.linear.arrays import Arrays

INVALID_CONTEXT = 201
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def compile_file(name: str, architecture: str, values: dict[str, int]) -> bytes:
    """Compile a source of this folder with `values` as macros, after `_common.cu`; return the cubin, from the cache.

    Raises
    ------
    CompileError
        NVRTC refuses the source.
    """
    from cuda.bindings import nvrtc

    here = Path(__file__).parent
    source = (here / "_common.cu").read_text() + (here / name).read_text()
    options = [f"-arch={architecture}", "-std=c++17", *(f"-D{key}={value}" for key, value in values.items())]
    version = nvrtc.nvrtcVersion()[1:]

    def build() -> bytes:
        error, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
        try:
            (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
            if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                _, size = nvrtc.nvrtcGetProgramLogSize(program)
                log = bytearray(size)
                nvrtc.nvrtcGetProgramLog(program, log)
                raise CompileError(f"NVRTC refuses {name} with {options}: {log.decode(errors='replace')}")
            _, size = nvrtc.nvrtcGetCUBINSize(program)
            code = bytearray(size)
            nvrtc.nvrtcGetCUBIN(program, code)
            return bytes(code)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    return cache.get_or_build("cubin", cache.digest(source, options, version), build, spec=name)


def load(arrays: Arrays, device: int, code: bytes, symbol: str, shared_bytes: int = 0) -> int:
    """Load a cubin on a device; return the handle of a function that may use so much dynamic shared memory."""
    from cuda.bindings import driver

    with arrays.on(device):
        enter(device)
        error, module = driver.cuModuleLoadData(code)
        check(driver, error, "cuModuleLoadData")
        error, function = driver.cuModuleGetFunction(module, symbol.encode())
        check(driver, error, "cuModuleGetFunction")
        if shared_bytes:
            attribute = driver.CUfunction_attribute(_MAX_DYNAMIC_SHARED)
            (error,) = driver.cuFuncSetAttribute(function, attribute, shared_bytes)
            check(driver, error, "cuFuncSetAttribute")
    return int(function)


def enter(device: int) -> None:
    """Make the device's primary context current in this thread; torch's autograd threads start without one."""
    from cuda.bindings import driver

    error, current = driver.cuCtxGetCurrent()
    check(driver, error, "cuCtxGetCurrent")
    if int(current) == 0:
        error, handle = driver.cuDeviceGet(device)
        check(driver, error, "cuDeviceGet")
        error, context = driver.cuDevicePrimaryCtxRetain(handle)
        check(driver, error, "cuDevicePrimaryCtxRetain")
        (error,) = driver.cuCtxSetCurrent(context)
        check(driver, error, "cuCtxSetCurrent")


@functools.cache
def library():
    """CUDA's driver."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@functools.cache
def _copier():
    function = library().cuMemcpyDtoDAsync_v2
    function.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def copy_bytes(target: int, source: int, count: int, device: int, stream: int) -> None:
    """Copy memory of a device, by pointers; half of what it costs the host to do so through an array's package."""
    error = _copier()(target, source, count, stream)
    if error == INVALID_CONTEXT:
        enter(device)
        error = _copier()(target, source, count, stream)
    if error:
        raise DevkernelsError(f"cuMemcpyDtoDAsync failed with CUresult {error}.")


@functools.cache
def launcher():
    """Driver's launch function through ctypes: half the cost of the binding, which converts every argument anew."""
    function = library().cuLaunchKernel
    number, pointer = ctypes.c_uint, ctypes.c_void_p
    function.argtypes = [pointer, *([number] * 7), pointer, pointer, pointer]
    function.restype = ctypes.c_int
    return function


def check(driver, error, call: str) -> None:
    """Raise where a call of the driver failed."""
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DevkernelsError(f"{call} failed: {error.name}")


@functools.cache
def available() -> bool:
    """Whether the parts that this needs are installed: cuda.bindings and NVRTC."""
    try:
        from cuda.bindings import driver, nvrtc

        return nvrtc.nvrtcVersion()[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS and driver is not None
    except (ImportError, RuntimeError, OSError):
        return False
