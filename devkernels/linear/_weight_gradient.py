"""Weight gradient of a layer, the gradient through its activation inside the product (`_weight_gradient.cu`, sm_90).

in: pointers to the result's gradient, what the forward pass kept, and the input.  out: the gradient before the
activation, its sum over the tokens, and the weight gradient: one kernel instead of `_kernels.ActivationBackward` and a
product. The pass over the gradient then hides behind the product, which has memory bandwidth to spare.
"""

from __future__ import annotations

import ctypes
import functools
import threading

from devkernels.linear import _cuda
from devkernels.linear._kernels import KINDS, TYPES
from devkernels.linear._tensor_map import BLOCK, Map
from devkernels.linear.arrays import Arrays

DTYPES = ("float16", "bfloat16")
_TOKENS, _FEATURES, _WIDTH, _THREADS = 64, 128, 256, 384  # of a stage and a block, see the source
# Blocks that share the gradient before the activation. Alone, a block would take longer to make all of it than its
# products take; and 32 clusters of four do not fit on an H200 at a time, 64 of two do.
_CLUSTER, _STAGES, _AHEAD = 2, 4, 2
_MOST = 1 << 31


def possible(arrays: Arrays, device: int, dtype: str, tokens: int, features: int, width: int) -> bool:
    """Whether there is a kernel for such a layer on this device.

    It wants 16 bits, multiples of 64 features, an even number of 256 (or less) of the input's side by side, and sm_90.
    """
    if dtype not in DTYPES or features % BLOCK or width % BLOCK or -(-width // _WIDTH) % _CLUSTER:
        return False
    return 0 < tokens < _MOST and _cuda.available() and tuple(arrays.capability(device)) == (9, 0)


def _ahead(kind: int) -> int:
    """Steps that are fetched ahead: what fits; a mask leaves room for one more."""
    return _AHEAD + (kind == KINDS["relu_aux"])


def shared_bytes(kind: int) -> int:
    """Dynamic shared memory of a block."""
    part = _TOKENS // _CLUSTER * _FEATURES * 2  # of the gradient, and of what was kept
    stage = (_FEATURES + _WIDTH) * _TOKENS * 2
    kept = 1024 if kind == KINDS["relu_aux"] else part
    barriers = 16 * _STAGES + 8 * _ahead(kind)
    return _STAGES * stage + _ahead(kind) * (part + kept) + barriers + _CLUSTER * _FEATURES * 4 + 1024


def compile_source(dtype: str, kind: int) -> bytes:
    """Compile the kernel for one dtype and kind; return the cubin, from the cache if kept."""
    values = {"TYPE": TYPES[dtype][0], "KIND": kind, "CL": _CLUSTER, "STAGES": _STAGES, "AHEAD": _ahead(kind)}
    return _cuda.compile_file("_weight_gradient.cu", "sm_90a", values, ("_hopper.cu",))


@functools.cache
def _function(arrays: Arrays, device: int, dtype: str, kind: int) -> int:
    return _cuda.load(arrays, device, compile_source(dtype, kind), "weight_gradient", shared_bytes(kind))


class WeightGradient:
    """One shape of the kernel, with its arguments laid out. Threads may share it.

    Parameters
    ----------
    tokens, features, width : int
        The gradient is (tokens, features), the layer's input (tokens, width), the weight (features, width).
    kept_ld : int
        Elements from row to row of what was kept; bytes for a mask.
    kind : {"relu", "gelu", "relu_aux", "gelu_aux", "gelu_slope"}
        What was kept, as for `activations.on_device`.
    """

    def __init__(self, arrays: Arrays, device: int, dtype: str, tokens: int, features: int, width: int, kept_ld: int,
                 kind: str):  # fmt: skip
        code, rows = KINDS[kind], _TOKENS // _CLUSTER
        self._dy = Map(device, dtype, tokens, features, features, rows, _FEATURES // BLOCK)
        if code == KINDS["relu_aux"]:
            self._kept = Map(device, "uint8", tokens, kept_ld, kept_ld, rows, _FEATURES // 8)
        else:
            self._kept = Map(device, dtype, tokens, features, kept_ld, rows, _FEATURES // BLOCK)
        self._x = Map(device, dtype, tokens, width, width, _TOKENS, _WIDTH // BLOCK)
        self._dz = Map(device, dtype, tokens, features, features, rows, _FEATURES // BLOCK)
        self._results = [ctypes.c_uint64(0) for _ in range(2)]
        self._sizes = [ctypes.c_uint32(size) for size in (tokens, features, width)]
        places = [m.place for m in (self._dy, self._kept, self._x, self._dz)]
        places += [ctypes.addressof(value) for value in (*self._results, *self._sizes)]
        grid = -(-features // _FEATURES), -(-width // _WIDTH)
        kernel, size = _function(arrays, device, dtype, code), shared_bytes(code)
        self._launch = _cuda.Launch("weight_gradient", device, kernel, grid, (_THREADS, 1), size, places)
        self._lock = threading.Lock()
        self.laid_out = ((self._dy, "dy"), (self._kept, "kept"), (self._x, "x"), (self._dz, "dz"), "db", "dw",
                         tokens, features, width)  # fmt: skip

    def launch(self, dy: int, kept: int, x: int, dz: int, db: int, dw: int, stream: int) -> None:
        """Run on pointers, multiples of 16; `db` 0 leaves the sum out."""
        b, w = self._results
        with self._lock:
            self._dy.at(dy)
            self._kept.at(kept)
            self._x.at(x)
            self._dz.at(dz)
            b.value, w.value = db, dw
            self._launch.on(stream)
