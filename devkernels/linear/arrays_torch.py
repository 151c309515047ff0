"""torch as a package of arrays.

in: tensors on the CPU or a CUDA device.  out: `TorchArrays`; torch is touched only when it is asked for something.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys

from devkernels import graphs
from devkernels.errors import TargetError
from devkernels.libraries import on_stream
from devkernels.linear.arrays_base import CPU, Arrays, Described


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
        return on_stream("torch", stream, device)

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
