"""Weight gradient of a layer, the gradient through its activation inside the product (`_weight_gradient.cu`, sm_90).

in: pointers to the result's gradient, what the forward pass kept, and the input.  out: the gradient before the
activation, its sum over the tokens, and the weight gradient: one kernel instead of `_kernels.ActivationBackward` and a
product. The pass over the gradient then hides behind the product, which has memory bandwidth to spare.
"""

from __future__ import annotations

import ctypes
import functools
import threading

from devkernels.errors import DevkernelsError
from devkernels.linear import _cuda
from devkernels.linear._kernels import KINDS, TYPES
from devkernels.linear.arrays import Arrays

DTYPES = ("float16", "bfloat16")
_TOKENS, _FEATURES, _WIDTH, _THREADS = 64, 128, 256, 384  # of a stage and a block, see the source
_BLOCK = 64  # columns: 128 bytes, the width of the swizzle
# Blocks that share the gradient before the activation. Alone, a block would take longer to make all of it than its
# products take; and 32 clusters of four do not fit on an H200 at a time, 64 of two do.
_CLUSTER, _STAGES, _AHEAD = 2, 4, 2
_MAP_TYPES = {"uint8": 0, "float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLE_128, _L2_256 = 3, 3
_MOST = 1 << 31


def possible(arrays: Arrays, device: int, dtype: str, tokens: int, features: int, width: int) -> bool:
    """Whether there is a kernel for such a layer on this device.

    It wants 16 bits, multiples of 64 features, an even number of 256 (or less) of the input's side by side, and sm_90.
    """
    if dtype not in DTYPES or features % _BLOCK or width % _BLOCK or -(-width // _WIDTH) % _CLUSTER:
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
    return _cuda.compile_file("_weight_gradient.cu", "sm_90a", values)


@functools.cache
def _function(arrays: Arrays, device: int, dtype: str, kind: int) -> int:
    return _cuda.load(arrays, device, compile_source(dtype, kind), "weight_gradient", shared_bytes(kind))


class _Map:
    """A tensor map (CUtensorMap) in memory of its own: which matrix the copy unit reads, and in which boxes.

    A matrix of 16-bit elements is described as blocks of 64 columns, which lie one after another in a stage; a mask as
    it is. `across` are the blocks, or the bytes, of a box.
    """

    def __init__(self, dtype: str, rows: int, columns: int, pitch: int, down: int, across: int):
        u64, u32, pointer = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p
        if dtype == "uint8":
            sizes, strides, box, swizzle = (columns, rows), (pitch,), (across, down), 0
        else:
            sizes, strides = (_BLOCK, rows, columns // _BLOCK), (2 * pitch, 2 * _BLOCK)
            box, swizzle = (_BLOCK, down, across), _SWIZZLE_128
        rank = len(sizes)
        self._memory = (u64 * 24)()  # the driver wants multiples of 64 bytes
        self.place = ctypes.addressof(self._memory) + -ctypes.addressof(self._memory) % 64
        self._sizes, self._strides = (u64 * rank)(*sizes), (u64 * len(strides))(*strides)
        self._box, self._ones = (u32 * rank)(*box), (u32 * rank)(*[1] * rank)
        self._encode = functools.partial(_encoder(), pointer(self.place), _MAP_TYPES[dtype], rank)
        self._rest = self._sizes, self._strides, self._box, self._ones, 0, swizzle, _L2_256, 0
        self._pointer = 0

    def at(self, pointer: int) -> None:
        """Let it describe a matrix that lies there."""
        if pointer != self._pointer:
            error = self._encode(pointer, *self._rest)
            if error:
                raise DevkernelsError(f"cuTensorMapEncodeTiled failed with CUresult {error}.")
            self._pointer = pointer


@functools.cache
def _encoder():
    function = _cuda.library().cuTensorMapEncodeTiled
    pointer, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [pointer, number, ctypes.c_uint32, pointer, pointer, pointer, pointer, pointer, *[number] * 4]
    function.restype = ctypes.c_int
    return function


class WeightGradient:
    """One shape of the kernel, with its arguments laid out. Threads may share it.

    Parameters
    ----------
    tokens, features, width : int
        The gradient is (tokens, features), the layer's input (tokens, width), the weight (features, width).
    kept_ld : int
        Elements from row to row of what was kept; bytes for a mask.
    kind : {"relu", "gelu", "relu_aux", "gelu_aux"}
        What was kept, as for `activations.on_device`.
    """

    def __init__(self, arrays: Arrays, device: int, dtype: str, tokens: int, features: int, width: int, kept_ld: int,
                 kind: str):  # fmt: skip
        code, rows = KINDS[kind], _TOKENS // _CLUSTER
        self._dy = _Map(dtype, tokens, features, features, rows, _FEATURES // _BLOCK)
        if code == KINDS["relu_aux"]:
            self._kept = _Map("uint8", tokens, kept_ld, kept_ld, rows, _FEATURES // 8)
        else:
            self._kept = _Map(dtype, tokens, features, kept_ld, rows, _FEATURES // _BLOCK)
        self._x = _Map(dtype, tokens, width, width, _TOKENS, _WIDTH // _BLOCK)
        self._dz = _Map(dtype, tokens, features, features, rows, _FEATURES // _BLOCK)
        self._results = [ctypes.c_uint64(0) for _ in range(2)]
        self._sizes = [ctypes.c_uint32(size) for size in (tokens, features, width)]
        places = [m.place for m in (self._dy, self._kept, self._x, self._dz)]
        places += [ctypes.addressof(value) for value in (*self._results, *self._sizes)]
        grid = -(-features // _FEATURES), -(-width // _WIDTH)
        kernel, size = _function(arrays, device, dtype, code), shared_bytes(code)
        self._launch = _cuda.Launch("weight_gradient", device, kernel, grid, (_THREADS, 1), size, places)
        self._lock = threading.Lock()

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
