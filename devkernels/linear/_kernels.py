"""The gradient through an activation with the bias gradient beside it, as one CUDA kernel (`_activation.cu`).

in: pointers to the gradient and to what the forward pass kept.  out: the gradient before the activation and its sum
over the rows. Compiled by NVRTC when first needed, kept on disk (`devkernels.cache`, kind "cubin"); launched through
cuda.bindings with arguments that are laid out once.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from pathlib import Path

from devkernels import cache
from devkernels.errors import CompileError, DevkernelsError
from devkernels.linear import _workspace
from devkernels.linear.arrays import Arrays

TYPES = {
    "float16": (0, 2, 4),
    "bfloat16": (1, 2, 4),
    "float32": (2, 4, 4),
    "float64": (3, 8, 8),
}  # number, bytes, sum's
KINDS = {"relu": 0, "gelu": 1, "relu_aux": 2, "gelu_aux": 1}
_THREADS, _MAX_ROW_BLOCKS, _MAX_SLABS = 256, 64, 16384
# Lanes side by side in a block. Few rows: narrow blocks, each of which sees all rows, so that none waits for others.
# That is faster up to so many rows on an H200, for ReLU and for GELU, which computes more for each element.
_FEW_ROWS, _NARROW, _WIDE = (256, 128), 8, 16
# Rows that a thread loads before it computes. GELU computes longer than ReLU: where the memory decides, fewer rows, so
# that some blocks load while others compute (106 us instead of 118 for 16384 x 4096 of float16).
_AHEAD, _AHEAD_LARGE_GELU, _LARGE = 4, 2, 1 << 24
_FILL = 528  # blocks of 256 threads that an H200 holds at a time (132 multiprocessors, 4 by their registers)
_INVALID_CONTEXT = 201

_lock = threading.Lock()
_counters: dict[tuple[str, int, int], tuple[int, object]] = {}


def compile_source(number: int, vector: int, kind: int, architecture: str, lanes: int = _WIDE,
                   ahead: int = _AHEAD) -> bytes:  # fmt: skip
    """Compile the kernel for one dtype, vector length, kind and architecture; return the cubin, from the cache if kept.

    Raises
    ------
    CompileError
        NVRTC refuses the source.
    """
    from cuda.bindings import nvrtc

    source = (Path(__file__).parent / "_activation.cu").read_text()
    options = [f"-arch={architecture}", "-std=c++17", f"-DTYPE={number}", f"-DVEC={vector}", f"-DKIND={kind}",
               f"-DLANES={lanes}", f"-DAHEAD={ahead}"]  # fmt: skip
    version = nvrtc.nvrtcVersion()[1:]

    def build() -> bytes:
        error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"_activation.cu", 0, [], [])
        try:
            (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
            if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                _, size = nvrtc.nvrtcGetProgramLogSize(program)
                log = bytearray(size)
                nvrtc.nvrtcGetProgramLog(program, log)
                raise CompileError(f"NVRTC refuses _activation.cu with {options}: {log.decode(errors='replace')}")
            _, size = nvrtc.nvrtcGetCUBINSize(program)
            code = bytearray(size)
            nvrtc.nvrtcGetCUBIN(program, code)
            return bytes(code)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    return cache.get_or_build("cubin", cache.digest(source, options, version), build, spec="activation_backward")


@functools.cache
def _function(arrays: Arrays, device: int, number: int, vector: int, kind: int, lanes: int, ahead: int):
    from cuda.bindings import driver

    major, minor = arrays.capability(device)
    code = compile_source(number, vector, kind, f"sm_{major}{minor}", lanes, ahead)
    with arrays.on(device):
        _enter(device)
        error, module = driver.cuModuleLoadData(code)
        _check(driver, error, "cuModuleLoadData")
        error, function = driver.cuModuleGetFunction(module, b"activation_backward")
        _check(driver, error, "cuModuleGetFunction")
    return int(function)


def _enter(device: int) -> None:
    """Make the device's primary context current in this thread; torch's autograd threads start without one."""
    from cuda.bindings import driver

    error, current = driver.cuCtxGetCurrent()
    _check(driver, error, "cuCtxGetCurrent")
    if int(current) == 0:
        error, handle = driver.cuDeviceGet(device)
        _check(driver, error, "cuDeviceGet")
        error, context = driver.cuDevicePrimaryCtxRetain(handle)
        _check(driver, error, "cuDevicePrimaryCtxRetain")
        (error,) = driver.cuCtxSetCurrent(context)
        _check(driver, error, "cuCtxSetCurrent")


@functools.cache
def _library():
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@functools.cache
def _copier():
    function = _library().cuMemcpyDtoDAsync_v2
    function.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def copy_bytes(target: int, source: int, count: int, device: int, stream: int) -> None:
    """Copy memory of a device, by pointers; half of what it costs the host to do so through an array's package."""
    error = _copier()(target, source, count, stream)
    if error == _INVALID_CONTEXT:
        _enter(device)
        error = _copier()(target, source, count, stream)
    if error:
        raise DevkernelsError(f"cuMemcpyDtoDAsync failed with CUresult {error}.")


@functools.cache
def _launcher():
    """Driver's launch function through ctypes: half the cost of the binding, which converts every argument anew."""
    function = _library().cuLaunchKernel
    number, pointer = ctypes.c_uint, ctypes.c_void_p
    function.argtypes = [pointer, *([number] * 7), pointer, pointer, pointer]
    function.restype = ctypes.c_int
    return function


def _check(driver, error, call: str) -> None:
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


def _counter(arrays: Arrays, device: int, stream: int) -> int:
    """Pointer to zeroed counters of a stream; every launch leaves them zero."""
    key = (arrays.name, device, stream)
    found = _counters.get(key)
    if found is None:
        with _lock:
            if key not in _counters:
                with arrays.on(device), arrays.on_stream(stream or None, device):
                    memory = arrays.empty((_MAX_SLABS,), "int32", device)
                    memory[...] = 0
                _counters[key] = arrays.pointer(memory), memory
            found = _counters[key]
    return found[0]


class ActivationBackward:
    """One shape of the kernel, with its arguments laid out. Threads may share it."""

    def __init__(self, arrays: Arrays, device: int, dtype: str, rows: int, columns: int, kept_ld: int, kind: str,
                 aligned: bool, lanes: int | None = None):  # fmt: skip
        number, size, sum_size = TYPES[dtype]
        vector = 16 // size
        code = KINDS[kind]
        ld_unit = 1 if code == 2 else vector
        if not aligned or columns % vector or kept_ld % ld_unit:
            vector = 1
        self._arrays, self._device = arrays, device
        lanes = lanes or (_NARROW if rows <= _FEW_ROWS[code == KINDS["gelu"]] else _WIDE)
        tall = _THREADS // lanes
        large = code == KINDS["gelu"] and rows * columns >= _LARGE
        ahead = _AHEAD_LARGE_GELU if large else _AHEAD
        self._kernel = _function(arrays, device, number, vector, code, lanes, ahead)
        slabs = -(-columns // (lanes * vector))
        blocks = min(-(-rows // (4 * tall)), max(1, _FILL // slabs), _MAX_ROW_BLOCKS,
                     max(1, _workspace.WORKSPACE_BYTES // (columns * sum_size)))  # fmt: skip
        if lanes == _NARROW:
            blocks = 1
        if slabs > _MAX_SLABS and blocks > 1:
            raise DevkernelsError(f"{columns} columns are more than the kernel takes ({_MAX_SLABS * lanes * vector}).")
        self._block = lanes, tall
        per_block = -(-rows // blocks)
        self._grid = slabs, -(-rows // per_block)
        self._values = [ctypes.c_uint64(0) for _ in range(10)]
        for slot, value in zip(self._values[6:], (rows, columns, kept_ld, per_block), strict=True):
            slot.value = value
        self._pointers = (ctypes.c_void_p * 10)(*(ctypes.addressof(v) for v in self._values))
        self._address = ctypes.addressof(self._pointers)
        self._lock = threading.Lock()
        self._call = _launcher()

    def launch(self, dy: int, kept: int, dz: int, db: int, stream: int) -> None:
        """Run on pointers; `db` 0 leaves the sum out."""
        partial = counters = 0
        if db and self._grid[1] > 1:
            partial = _workspace.spaces(self._arrays, self._device).get(stream)
            if partial is None:
                partial, memory = _workspace.reserve(self._arrays, self._device, stream)
                del memory
            counters = _counter(self._arrays, self._device, stream)
        v = self._values
        with self._lock:
            v[0].value, v[1].value, v[2].value, v[3].value, v[4].value, v[5].value = dy, kept, dz, db, partial, counters
            error = self._call(self._kernel, *self._grid, 1, *self._block, 1, 0, stream, self._address, None)
            if error == _INVALID_CONTEXT:
                _enter(self._device)
                error = self._call(self._kernel, *self._grid, 1, *self._block, 1, 0, stream, self._address, None)
        if error:
            raise DevkernelsError(f"cuLaunchKernel of activation_backward failed with CUresult {error}.")
