"""One face for the arrays of NumPy, CuPy and torch: what they are, where they lie, how to make new ones.

in: an array.  out: its `Arrays` (the package) and `Described` (shape, strides, dtype, device). A package is touched
only if the caller's array shows that it is imported already.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import sys
from typing import NamedTuple

from devkernels import graphs
from devkernels.errors import ArgumentTypeError, MissingDependencyError, TargetError

CPU = -1
_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class Described(NamedTuple):
    """An array as a spec needs it: strides in elements, dtype by name, device number (-1: the CPU)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int


class _Foreign:
    """A stream's pointer with the CUDA stream protocol."""

    def __init__(self, pointer: int):
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


class Arrays:
    """What the package that an array comes from can do. Use `arrays_of` or `package`."""

    name = ""

    def empty(self, shape, dtype: str, device: int, stream: int | None = None):
        """Make an uninitialised C-ordered array, on `stream` where the package's allocator is stream-ordered."""
        raise NotImplementedError

    def maker(self, shape, dtype: str, device: int):
        """Return a function without arguments that makes such arrays on the current device and stream, cheaply."""
        raise NotImplementedError

    def stream(self, device: int) -> int:
        """Pointer of the package's current stream; 0 on the CPU."""
        return 0

    def several_devices(self) -> bool:
        """Whether more than one device is visible, so that the current one must be checked."""
        return False

    def on(self, device: int):
        """Context in which `device` is the current device."""
        return contextlib.nullcontext()

    def on_stream(self, stream: int | None, device: int):
        """Context in which `stream` is the package's current stream."""
        return contextlib.nullcontext()


class NumpyArrays(Arrays):
    """NumPy: everything on the CPU."""

    name = "numpy"
    facts = staticmethod(operator.attrgetter("shape", "strides", "dtype"))

    @functools.cached_property
    def xp(self):
        """The module itself."""
        import numpy

        return numpy

    def dtype(self, name: str):
        """Dtype object for a name; the 16- and 8-bit floats that NumPy lacks come from ml_dtypes."""
        return _numpy_dtype(name)

    def describe(self, array) -> Described:
        """Shape, strides in elements, dtype and device."""
        size = array.itemsize
        return Described(array.shape, tuple(s // size for s in array.strides), array.dtype.name, CPU)

    def pointer(self, array) -> int:
        """Address of the first element."""
        return array.ctypes.data

    def empty(self, shape, dtype, device, stream=None):
        """See `Arrays.empty`."""
        return self.xp.empty(shape, self.dtype(dtype))

    def maker(self, shape, dtype, device):
        """See `Arrays.maker`."""
        return functools.partial(self.xp.empty, shape, self.dtype(dtype))


class CupyArrays(NumpyArrays):
    """CuPy: arrays on a CUDA device, current stream and device from CuPy."""

    name = "cupy"

    @functools.cached_property
    def xp(self):
        """The module itself."""
        return sys.modules["cupy"]

    def describe(self, array) -> Described:
        """Shape, strides in elements, dtype and device."""
        size = array.itemsize
        return Described(array.shape, tuple(s // size for s in array.strides), array.dtype.name, array.data.device_id)

    pointer = staticmethod(operator.attrgetter("data.ptr"))  # address of the first element; no Python in between

    def empty(self, shape, dtype, device, stream=None):
        """See `Arrays.empty`."""
        with self.on(device), self.on_stream(stream, device):
            return self.xp.ndarray(shape, dtype=self.dtype(dtype))

    def maker(self, shape, dtype, device):
        """See `Arrays.maker`."""
        return functools.partial(self.xp.ndarray, shape, self.dtype(dtype))

    def stream(self, device):
        """Pointer of CuPy's current stream."""
        return self._current_stream(device).ptr

    @functools.cached_property
    def _current_stream(self):
        return self.xp.cuda.get_current_stream

    @functools.cache  # noqa: B019 - one instance for each package
    def several_devices(self):
        """See `Arrays.several_devices`."""
        return self.xp.cuda.runtime.getDeviceCount() > 1

    def on(self, device):
        """See `Arrays.on`."""
        return self.xp.cuda.Device(device)

    def on_stream(self, stream, device):
        """See `Arrays.on_stream`."""
        if stream is None:
            return contextlib.nullcontext()
        cuda = self.xp.cuda
        if hasattr(cuda.Stream, "from_external"):  # CuPy 14; ExternalStream warns there
            return cuda.Stream.from_external(_Foreign(stream))
        return cuda.ExternalStream(stream, device)

    def device_name(self, device: int) -> str:
        """Name of the GPU, for keys of what is tuned on it."""
        return self.xp.cuda.runtime.getDeviceProperties(device)["name"].decode()

    def capability(self, device: int) -> tuple[int, int]:
        """Compute capability of the GPU."""
        text = self.xp.cuda.Device(device).compute_capability
        return int(text[:-1]), int(text[-1])

    def milliseconds(self, run, device: int) -> float:
        """Device time of what `run` puts on the current stream."""
        cuda = self.xp.cuda
        start, stop = cuda.Event(), cuda.Event()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return cuda.get_elapsed_time(start, stop)

    @functools.cache  # noqa: B019 - one instance; a new stream each time would have a workspace of its own
    def _spare_stream(self, device: int):
        return self.xp.cuda.Stream(non_blocking=True)

    def captured(self, run, times: int):
        """Return a function that replays `times` runs from a CUDA graph on the current stream."""
        cuda = self.xp.cuda
        cuda.get_current_stream().synchronize()
        with self._spare_stream(cuda.runtime.getDevice()):
            return graphs.with_cupy(run, times)


class TorchArrays(Arrays):
    """torch: tensors on the CPU or a CUDA device, current stream and device from torch."""

    name = "torch"

    @functools.cached_property
    def torch(self):
        """The module itself."""
        return sys.modules["torch"]

    def dtype(self, name: str):
        """Dtype object for a name."""
        return getattr(self.torch, name)

    def describe(self, array) -> Described:
        """Shape, strides in elements, dtype and device."""
        if array.device.type not in ("cpu", "cuda"):
            raise TargetError(f"Tensors on {array.device} are not supported; move them to 'cuda' or 'cpu'.")
        return Described(tuple(array.shape), array.stride(), str(array.dtype)[6:], array.get_device())

    @functools.cached_property
    def pointer(self):
        """Function that returns the address of the first element; no Python in between."""
        return self.torch.Tensor.data_ptr

    def empty(self, shape, dtype, device, stream=None):
        """See `Arrays.empty`."""
        where = "cpu" if device == CPU else f"cuda:{device}"
        with self.on_stream(stream, device):
            return self.torch.empty(tuple(shape), dtype=self.dtype(dtype), device=where)

    def maker(self, shape, dtype, device):
        """See `Arrays.maker`.

        The function that torch.compile's own code allocates with takes half a microsecond less than empty_strided;
        it allocates on the current device.
        """
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        if device != CPU and not self.several_devices():
            guards = getattr(getattr(self.torch._C, "_dynamo", None), "guards", None)
            quick = getattr(guards, "_empty_strided_cuda", None)
            if quick is not None:
                return functools.partial(quick, tuple(shape), strides, self.dtype(dtype))
        where = self.torch.device("cpu" if device == CPU else f"cuda:{device}")
        return functools.partial(self.torch.empty_strided, tuple(shape), strides, dtype=self.dtype(dtype), device=where)

    def stream(self, device):
        """Pointer of torch's current stream."""
        return 0 if device == CPU else self.raw_stream(device)

    @functools.cached_property
    def raw_stream(self):
        """Function from a device to the pointer of its current stream; torch.compile's own code asks it."""
        quick = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)
        return quick or (lambda device: self.torch.cuda.current_stream(device).cuda_stream)

    @functools.cache  # noqa: B019 - one instance for each package
    def several_devices(self):
        """See `Arrays.several_devices`."""
        return self.torch.cuda.device_count() > 1

    def on(self, device):
        """See `Arrays.on`."""
        return contextlib.nullcontext() if device == CPU else self.torch.cuda.device(device)

    def on_stream(self, stream, device):
        """See `Arrays.on_stream`."""
        if stream is None or device == CPU:
            return contextlib.nullcontext()
        return self.torch.cuda.stream(self.torch.cuda.ExternalStream(stream, device=f"cuda:{device}"))

    def device_name(self, device: int) -> str:
        """Name of the GPU, for keys of what is tuned on it."""
        return self.torch.cuda.get_device_name(device)

    def capability(self, device: int) -> tuple[int, int]:
        """Compute capability of the GPU."""
        return self.torch.cuda.get_device_capability(device)

    def milliseconds(self, run, device: int) -> float:
        """Device time of what `run` puts on the current stream."""
        event = functools.partial(self.torch.cuda.Event, enable_timing=True)
        start, stop = event(), event()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    @functools.cache  # noqa: B019 - one instance; a new stream each time would have a workspace of its own
    def _spare_stream(self, device: int):
        return self.torch.cuda.Stream()

    def captured(self, run, times: int):
        """Return a function that replays `times` runs from a CUDA graph on the current stream."""
        cuda = self.torch.cuda
        stream = self._spare_stream(cuda.current_device())
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            return graphs.with_torch(run, times)


_PACKAGES: dict[str, Arrays] = {"numpy": NumpyArrays(), "cupy": CupyArrays(), "torch": TorchArrays()}
_by_type: dict[type, Arrays] = {}


def package(name: str) -> Arrays:
    """Return the `Arrays` of "numpy", "cupy" or "torch", importing it."""
    if name not in _PACKAGES:
        raise ArgumentTypeError(f"package={name!r} is unknown; possible are 'numpy', 'cupy' and 'torch'.")
    if name not in sys.modules:
        import importlib

        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingDependencyError(
                f"{name} is needed for this ({error}); pip install 'devkernels[cu12]' or [cu13] brings CuPy, "
                f"'devkernels[torch]' torch."
            ) from error
    return _PACKAGES[name]


def arrays_of(array: object, name: str = "array") -> Arrays:
    """Return the package that an array belongs to."""
    kind = type(array)
    known = _by_type.get(kind)
    if known is not None:
        return known
    for package_name, class_name in (("numpy", "ndarray"), ("cupy", "ndarray"), ("torch", "Tensor")):
        module = sys.modules.get(package_name)
        if module is not None and isinstance(array, getattr(module, class_name, ())):
            _by_type[kind] = _PACKAGES[package_name]
            return _PACKAGES[package_name]
    raise ArgumentTypeError(f"{name} is a {kind.__module__}.{kind.__qualname__}, not an array of NumPy, CuPy or torch.")


def stream_pointer(stream: object) -> int:
    """Pointer of a stream given as a number, or as a stream of CuPy, torch, cuda.core or Numba."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    for attribute in ("ptr", "cuda_stream"):
        value = getattr(stream, attribute, None)
        if isinstance(value, int):
            return value
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    handle = getattr(getattr(stream, "handle", None), "value", None)
    if isinstance(handle, int) or (handle is None and hasattr(stream, "handle")):
        return handle or 0
    raise ArgumentTypeError(f"stream={stream!r} is neither a stream nor its pointer.")


def alignment_of(bits: int) -> int:
    """Largest power of two, at most 256, that divides all of the numbers that were or-ed into `bits`."""
    low = bits & 255
    return 256 if low == 0 else low & -low


@functools.cache
def _numpy_dtype(name: str):
    import numpy

    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError as error:
            raise MissingDependencyError(f"NumPy and CuPy know {name} only with ml_dtypes; install it.") from error
        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


def bytes_of(shape, item_bytes: int) -> int:
    """Bytes of a contiguous array."""
    return math.prod(shape) * item_bytes
