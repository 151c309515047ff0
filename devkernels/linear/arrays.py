"""One face for the arrays of NumPy, CuPy and torch: what they are, where they lie, how to make new ones.

in: an array.  out: its `Arrays` (the package) and `Described` (shape, strides, dtype, device). A package is touched
only if the caller's array shows that it is imported already.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys

from devkernels import graphs
from devkernels.errors import ArgumentTypeError, MissingDependencyError
from devkernels.libraries import library_of, on_stream
from devkernels.linear.arrays_base import CPU, Arrays, Described
from devkernels.linear.arrays_torch import TorchArrays

_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


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
        return on_stream("cupy", stream, device)

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


__all__ = [
    "CPU",
    "Arrays",
    "CupyArrays",
    "Described",
    "NumpyArrays",
    "TorchArrays",
    "alignment_of",
    "arrays_of",
    "package",
]

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
    known = _by_type.get(type(array))
    return known if known is not None else _by_type.setdefault(type(array), _PACKAGES[library_of(array, name)])


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
