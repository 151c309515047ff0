"""CUDA C++ of this folder on a device: compiled by NVRTC when first needed, kept on disk, launched by pointers.

in: names of source files and options.  out: cubins (`devkernels.cache`, kind "cubin"), functions, their launches.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path

from devkernels import cache
from devkernels.errors import CompileError, DevkernelsError, JitDisabledError
from devkernels.linear.arrays import Arrays
from devkernels.linear.bounded import Bounded

INVALID_CONTEXT = 201
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def compile_file(name: str, architecture: str, values: dict[str, int], also: tuple[str, ...] = ()) -> bytes:
    """Compile a source of this folder with `values` as macros; return the cubin, from the cache.

    `_common.cu`, and the sources named by `also`, stand before it.

    Raises
    ------
    CompileError
        NVRTC refuses the source.
    """
    from cuda.bindings import nvrtc

    here = Path(__file__).parent
    source = "".join((here / part).read_text() for part in ("_common.cu", *also, name))
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


def prepared(known: Bounded, key: tuple, possible: Callable[[], bool], make: Callable[[], object]):
    """Return what `known` has for a key, or made now; None where that is not possible or cannot be compiled here."""
    found = known.get(key)
    if found is None and possible():
        try:
            found = known.keep(key, make())
        except (JitDisabledError, CompileError):  # DEVKERNELS_DISABLE_JIT; an NVRTC that knows no sm_90a
            return None
    return found


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


@functools.cache
def multiprocessors(device: int) -> int:
    """Multiprocessors of a device."""
    from cuda.bindings import driver

    enter(device)
    error, handle = driver.cuDeviceGet(device)
    check(driver, error, "cuDeviceGet")
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    error, count = driver.cuDeviceGetAttribute(attribute, handle)
    check(driver, error, "cuDeviceGetAttribute")
    return count


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


class _Configuration(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (("dimensions", ctypes.c_uint * 6), ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint))  # fmt: skip


class Launch(dict):
    """A function with its grid, block, shared memory and parameters, launched again and again: ``launch.on(stream)``.

    Everything is laid out as cuLaunchKernelEx takes it, so that ctypes converts nothing. The dictionary holds the
    configurations of the streams. The parameters are ctypes objects whose values the caller changes between launches.
    """

    def __init__(self, name: str, device: int, function: int, grid: tuple[int, int], block: tuple[int, int],
                 shared_bytes: int, places: list[int]):  # fmt: skip
        super().__init__()
        self._name, self._device = name, device
        self.function, self.dimensions, self.shared_bytes = function, (*grid, 1, *block, 1), shared_bytes
        self._memory = (ctypes.c_void_p * len(places))(*places)
        word = ctypes.c_void_p.from_param
        self._function, self._null = word(function), word(0)
        self._parameters, self._call = word(ctypes.addressof(self._memory)), library().cuLaunchKernelEx

    def __missing__(self, stream: int) -> object:
        if len(self) >= 1024:  # streams that are gone
            self.clear()
        made = _Configuration((ctypes.c_uint * 6)(*self.dimensions), self.shared_bytes, stream, None, 0)
        made = self[stream] = ctypes.byref(made)
        return made

    def on(self, stream: int) -> None:
        """Launch on a stream; the caller holds a lock on the parameters."""
        error = self._call(self[stream], self._function, self._parameters, self._null)
        if error == INVALID_CONTEXT:
            enter(self._device)
            error = self._call(self[stream], self._function, self._parameters, self._null)
        if error:
            raise DevkernelsError(f"cuLaunchKernelEx of {self._name} failed with CUresult {error}.")


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
