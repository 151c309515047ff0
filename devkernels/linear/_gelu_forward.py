"""Forward product of a layer with GELU that keeps the slope of the activation (`_gelu_forward.cu`, sm_90).

in: pointers to the input, weight and bias.  out: the result, and GELU's slope at every element of it. cuBLASLt's
GELU_AUX_BIAS keeps GELU's input instead. The backward pass then has but to multiply.
"""

from __future__ import annotations

import ctypes
import functools
import threading

from devkernels.linear import _cuda
from devkernels.linear._kernels import TYPES
from devkernels.linear._tensor_map import BLOCK, Map
from devkernels.linear.arrays import Arrays

DTYPES = ("float16", "bfloat16")
_TALL, _WIDE, _THREADS = 128, 256, 384  # of a block's tile, see the source
_ROWS = 16  # of a warp's part of the results
_STAGES = 4
# Up to so many inputs, blocks do not share the weight: that reads more from the L2 cache, but none waits for another
# between tiles (237 us instead of 243 at 16384 x 4096 x 1024; 416 instead of 411 at 8192 x 4096 x 4096).
_SHORT = 2048
_MOST = 1 << 31


def possible(arrays: Arrays, device: int, dtype: str, tokens: int, features: int, width: int) -> bool:
    """Whether there is a kernel for such a layer on this device: 16 bits, multiples of 64 features, sm_90."""
    if dtype not in DTYPES or features % BLOCK or width % BLOCK or max(tokens, features, width) >= _MOST:
        return False
    return tokens > 0 and _cuda.available() and tuple(arrays.capability(device)) == (9, 0)


def shared_bytes() -> int:
    """Dynamic shared memory of a block: the stages, results on their way out, the bias, the barriers."""
    return (_STAGES * (_TALL + _WIDE) * BLOCK + 2 * _TALL * BLOCK) * 2 + 4 * _WIDE + 16 * _STAGES + 1024


def compile_source(dtype: str, cluster: int) -> bytes:
    """Compile the kernel for one dtype and cluster; return the cubin, from the cache if kept."""
    values = {"TYPE": TYPES[dtype][0], "CL": cluster, "STAGES": _STAGES}
    return _cuda.compile_file("_gelu_forward.cu", "sm_90a", values, ("_hopper.cu",))


@functools.cache
def _function(arrays: Arrays, device: int, dtype: str, cluster: int) -> int:
    return _cuda.load(arrays, device, compile_source(dtype, cluster), "gelu_forward", shared_bytes())


class GeluForward:
    """One shape of the kernel, with its arguments laid out. Threads may share it.

    Parameters
    ----------
    tokens, features, width : int
        The input is (tokens, width), the weight (features, width), the result (tokens, features), all contiguous.
    """

    def __init__(self, arrays: Arrays, device: int, dtype: str, tokens: int, features: int, width: int):
        cluster = 1 if width <= _SHORT else 2
        self._x = Map(device, dtype, tokens, width, width, _TALL, 1)
        self._w = Map(device, dtype, features, width, width, _WIDE // cluster, 1)
        self._y, self._slope = (Map(device, dtype, tokens, features, features, _ROWS, 1) for _ in range(2))
        self._bias = ctypes.c_uint64(0)
        self._sizes = [ctypes.c_uint32(size) for size in (tokens, features, width)]
        places = [m.place for m in (self._x, self._w, self._y, self._slope)]
        places += [ctypes.addressof(value) for value in (self._bias, *self._sizes)]
        tiles = -(-tokens // (_TALL * cluster)) * -(-features // _WIDE)
        clusters = min(tiles, _cuda.multiprocessors(device) // cluster)
        kernel = _function(arrays, device, dtype, cluster)
        self._launch = _cuda.Launch(
            "gelu_forward", device, kernel, (clusters * cluster, 1), (_THREADS, 1), shared_bytes(), places
        )
        self._lock = threading.Lock()
        self.laid_out = ((self._x, "x"), (self._w, "weight"), (self._y, "y"), (self._slope, "kept"), "bias",
                         tokens, features, width)  # fmt: skip

    def launch(self, x: int, weight: int, c: int, out: int, bias: int, slope: int, stream: int) -> None:
        """Run on pointers, multiples of 16, as a planned product of cuBLASLt does; there is no `c`; `bias` may be 0."""
        with self._lock:
            self._x.at(x)
            self._w.at(weight)
            self._y.at(out)
            self._slope.at(slope)
            self._bias.value = bias
            self._launch.on(stream)
