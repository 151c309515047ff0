"""The few driver calls that a launch needs, through ctypes: a call costs half of what a wrapping layer costs.

In: cubins, sizes and addresses as integers. Out: handles as integers; a driver error becomes a `DevkernelsError`. Needs
nothing but the driver itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator

from devkernels.errors import DevkernelsError, ImageError, ResourceError, TargetError
from devkernels.target import Target

_UNLOADABLE = (200, 209, 218, 222, 223, 300)  # invalid or foreign images
INVALID_CONTEXT, INVALID_HANDLE, OUT_OF_RESOURCES = 201, 400, 701
_MAX_THREADS_PER_BLOCK, _SHARED_SIZE, _LOCAL_SIZE, _NUM_REGS, _MAX_DYNAMIC_SHARED = 0, 1, 3, 4, 8  # of a function
_CC_MAJOR, _CC_MINOR, _SHARED_OPTIN, _MULTIPROCESSORS = 75, 76, 97, 16  # of a device
_POINTER_MEMORY_TYPE, _POINTER_ORDINAL, _POINTER_MANAGED = 2, 9, 8
_HOST_MEMORY = 1
_EVENT_DISABLE_TIMING = 2
_CAPTURE_RELAXED = 2

_void_p, _int, _uint = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint


@functools.cache
def library() -> ctypes.CDLL:
    """The driver, initialised.

    Raises
    ------
    TargetError
        There is no driver, or no GPU that it can use.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise TargetError(
            "A kernel can only be launched where there is a GPU and its driver; here kernels can be compiled "
            "(devkernels.compile), or simulated (DEVKERNELS_TARGET=sim)."
        ) from error
    for call in ("cuCtxPushCurrent_v2", "cuCtxSetCurrent"):
        getattr(driver, call).argtypes = [_void_p]
    driver.cuFuncSetAttribute.argtypes = [_void_p, _int, _int]
    driver.cuFuncGetAttribute.argtypes = [_void_p, _int, _void_p]
    driver.cuModuleGetFunction.argtypes = [_void_p, _void_p, ctypes.c_char_p]
    driver.cuModuleLoadData.argtypes = [_void_p, ctypes.c_char_p]
    driver.cuPointerGetAttribute.argtypes = [_void_p, _int, ctypes.c_uint64]
    driver.cuStreamWaitEvent.argtypes = [_void_p, _void_p, _uint]
    driver.cuEventRecord.argtypes = [_void_p, _void_p]
    driver.cuEventDestroy_v2.argtypes = [_void_p]
    driver.cuOccupancyMaxActiveBlocksPerMultiprocessor.argtypes = [_void_p, _void_p, _int, ctypes.c_size_t]
    status = driver.cuInit(0)
    if status:
        raise TargetError(f"The CUDA driver cannot be used: {_name(driver, status)}.")
    return driver


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = (("id", _int), ("padding", _int), ("value", _int), ("rest", ctypes.c_byte * 60))


class _Configuration(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (("dimensions", _uint * 6), ("shared_bytes", _uint), ("stream", _void_p),
                ("attributes", ctypes.POINTER(_Attribute)), ("attribute_count", _uint))  # fmt: skip


_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE


class Configurations(dict):
    """Stream -> grid, block, shared memory and this stream, as `launch_entry` takes them; made when asked for.

    A configuration is never changed, so that many threads can launch with it at once.
    """

    def __init__(self, grid: tuple, block: tuple, shared_bytes: int, cooperative: bool):
        super().__init__()
        self._dimensions, self._shared_bytes = (*grid, *block), shared_bytes
        self._attributes = (_Attribute * 1)(_Attribute(_COOPERATIVE, 0, 1))
        self._count = int(cooperative)

    def __missing__(self, stream: int) -> object:
        if len(self) >= 1024:  # streams that are gone; what launches now holds its configuration
            self.clear()
        made = _Configuration((_uint * 6)(*self._dimensions), self._shared_bytes, stream, self._attributes, self._count)
        word = self[stream] = ctypes.byref(made)
        return word


@functools.cache
def launch_entry() -> Callable[..., int]:
    """cuLaunchKernelEx(configuration, function, parameters, extra) for arguments that are ctypes objects already.

    It takes a third of the arguments of cuLaunchKernel, and ctypes converts none of them, which is half of its cost.
    """
    return ctypes.CDLL(library()._name).cuLaunchKernelEx


def word(value: int) -> object:
    """A handle as a pointer that ctypes passes on as it is."""
    return _void_p.from_param(value)


NULL = word(0)


def _name(driver: ctypes.CDLL, status: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    driver.cuGetErrorString(status, ctypes.byref(text))
    return f"{(name.value or b'error %d' % status).decode()} ({(text.value or b'').decode()})"


def check(status: int, what: str, spec: object = None) -> None:
    """Raise for a status other than success."""
    if status == 0:
        return
    kind = ResourceError if status == OUT_OF_RESOURCES else DevkernelsError
    raise kind(f"{what} failed: {_name(library(), status)}.", spec=spec)


@functools.cache
def primary_context(device: int) -> int:
    """The context that CuPy, torch and Numba use on a device; kept for the life of the process."""
    handle, context = _int(), _void_p()
    check(library().cuDeviceGet(ctypes.byref(handle), device), f"Finding device {device}")
    check(library().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"Making a context on device {device}")
    return context.value


@contextlib.contextmanager
def current(device: int) -> Iterator[None]:
    """Make a device's context current within the block."""
    check(library().cuCtxPushCurrent_v2(primary_context(device)), f"Switching to device {device}")
    try:
        yield
    finally:
        library().cuCtxPopCurrent_v2(ctypes.byref(_void_p()))


def adopt(device: int) -> None:
    """Give this thread a context if it has none, as the CUDA runtime does; else leave it alone."""
    context = _void_p()
    library().cuCtxGetCurrent(ctypes.byref(context))
    if not context.value:
        check(library().cuCtxSetCurrent(primary_context(device)), f"Switching to device {device}")


def current_device() -> int:
    """Ordinal of the device whose context is current in this thread; 0 if there is none."""
    handle = _int()
    return handle.value if library().cuCtxGetDevice(ctypes.byref(handle)) == 0 else 0


def _device_attribute(device: int, attribute: int) -> int:
    handle, value = _int(), _int()
    check(library().cuDeviceGet(ctypes.byref(handle), device), f"Finding device {device}")
    check(library().cuDeviceGetAttribute(ctypes.byref(value), attribute, handle), f"Asking device {device}")
    return value.value


@functools.cache
def device_count() -> int:
    """How many devices this process sees."""
    number = _int()
    check(library().cuDeviceGetCount(ctypes.byref(number)), "Counting devices")
    return number.value


@functools.cache
def architecture(device: int) -> Target:
    """Architecture of a device."""
    return Target.parse((_device_attribute(device, _CC_MAJOR), _device_attribute(device, _CC_MINOR)))


@functools.cache
def max_shared_bytes(device: int) -> int:
    """Most shared memory, static and dynamic together, that a block may have after opting in."""
    return _device_attribute(device, _SHARED_OPTIN)


@functools.cache
def multiprocessors(device: int) -> int:
    """Multiprocessors of a device."""
    return _device_attribute(device, _MULTIPROCESSORS)


def capturing(stream: int) -> bool:
    """Whether a CUDA graph is being captured on a stream."""
    status = _int()
    check(library().cuStreamIsCapturing(_void_p(stream), ctypes.byref(status)), "Asking a stream")
    return status.value != 0


@contextlib.contextmanager
def _loading_while_capturing() -> Iterator[None]:
    """Within this block, this thread may load code although some stream is being captured.

    A capture forbids what could wait for the GPU in a way that a graph cannot hold; loading code for a launch that is
    being captured is none of that, and what the first launch of a kernel always needs.
    """
    mode = _int(_CAPTURE_RELAXED)
    check(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "Preparing to load a kernel")
    try:
        yield
    finally:
        library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


class Function:
    """A kernel loaded on one device; `handle` is what cuLaunchKernel takes."""

    def __init__(self, cubin: bytes, symbol: str, device: int):
        self.device = device
        driver, module, handle = library(), _void_p(), _void_p()
        with current(device), _loading_while_capturing():
            status = driver.cuModuleLoadData(ctypes.byref(module), cubin)
            if status in _UNLOADABLE:
                version = _int()
                driver.cuDriverGetVersion(ctypes.byref(version))
                raise ImageError(
                    f"The driver refuses the code of kernel {symbol} on {architecture(device)}: "
                    f"{_name(driver, status)}. The driver is for CUDA {version.value // 1000}."
                    f"{version.value % 1000 // 10}; code that was linked by a later major version needs a later "
                    f"driver, or must be built again."
                )
            check(status, f"Loading kernel {symbol} on device {device}")
            check(driver.cuModuleGetFunction(ctypes.byref(handle), module, symbol.encode()), f"Finding {symbol}")
            self.handle = handle.value
            self.max_threads = self._attribute(_MAX_THREADS_PER_BLOCK)
            self.registers = self._attribute(_NUM_REGS)
            self.local_bytes = self._attribute(_LOCAL_SIZE)
            self.static_shared_bytes = self._attribute(_SHARED_SIZE)
        self._opted_in = 0

    def _attribute(self, attribute: int) -> int:
        value = _int()
        check(library().cuFuncGetAttribute(ctypes.byref(value), attribute, self.handle), "Asking a kernel's attribute")
        return value.value

    def allow_shared(self, dynamic_bytes: int, static_bytes: int) -> None:
        """Opt in to so much dynamic shared memory; without that, the limit is 48 KB."""
        if dynamic_bytes + static_bytes <= 48 << 10 or dynamic_bytes <= self._opted_in:
            return
        with current(self.device):
            status = library().cuFuncSetAttribute(self.handle, _MAX_DYNAMIC_SHARED, dynamic_bytes)
        check(status, f"Opting in to {dynamic_bytes} bytes of dynamic shared memory")
        self._opted_in = dynamic_bytes

    def blocks_at_once(self, threads: int, dynamic_bytes: int) -> int:
        """How many blocks the device holds at the same time: the largest grid of a cooperative launch."""
        blocks = _int()
        with current(self.device):
            status = library().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(blocks), self.handle, threads, dynamic_bytes
            )
        check(status, "Asking for the occupancy")
        return blocks.value * _device_attribute(self.device, _MULTIPROCESSORS)


def device_of_pointer(pointer: int) -> int | None:
    """Ordinal of the device that an address belongs to; None for memory of the host."""
    driver, kind, managed, ordinal = library(), _uint(), _uint(), _int()
    if driver.cuPointerGetAttribute(ctypes.byref(kind), _POINTER_MEMORY_TYPE, pointer) != 0:
        return None  # the driver has never heard of it
    driver.cuPointerGetAttribute(ctypes.byref(managed), _POINTER_MANAGED, pointer)
    if kind.value == _HOST_MEMORY and not managed.value:
        return None
    check(driver.cuPointerGetAttribute(ctypes.byref(ordinal), _POINTER_ORDINAL, pointer), "Finding an array's device")
    return ordinal.value


def order_after(producer: int, consumer: int, device: int) -> None:
    """Let `consumer` wait for what has been put on the stream `producer` so far."""
    driver, event = library(), _void_p()
    with current(device):
        check(driver.cuEventCreate(ctypes.byref(event), _EVENT_DISABLE_TIMING), "Making an event")
        try:
            check(driver.cuEventRecord(event, producer), "Recording an event")
            check(driver.cuStreamWaitEvent(consumer, event, 0), "Waiting for an event")
        finally:
            driver.cuEventDestroy_v2(event)
