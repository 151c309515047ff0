"""The gradient through an activation with the bias gradient beside it, as one CUDA kernel (`_activation.cu`).

in: pointers to the gradient and to what the forward pass kept.  out: the gradient before the activation and its sum
over the rows. Compiled and launched through `_cuda`, with arguments that are laid out once.
"""

from __future__ import annotations

import ctypes
import functools
import threading

from devkernels.errors import DevkernelsError
from devkernels.linear import _cuda, _workspace
from devkernels.linear.arrays import Arrays

TYPES = {
    "float16": (0, 2, 4),
    "bfloat16": (1, 2, 4),
    "float32": (2, 4, 4),
    "float64": (3, 8, 8),
}  # number, bytes, sum's
KINDS = {"relu": 0, "gelu": 1, "relu_aux": 2, "gelu_aux": 1, "gelu_slope": 3}
_THREADS, _MAX_ROW_BLOCKS, _MAX_SLABS = 256, 64, 16384
# Lanes side by side in a block. Few rows: narrow blocks, each of which sees all rows, so that none waits for others.
# That is faster up to so many rows on an H200, for ReLU and for GELU, which computes more for each element.
_FEW_ROWS, _NARROW, _WIDE = (256, 128), 8, 16
# Rows that a thread loads before it computes. GELU computes longer than ReLU: where the memory decides, fewer rows, so
# that some blocks load while others compute (106 us instead of 118 for 16384 x 4096 of float16).
_AHEAD, _AHEAD_LARGE_GELU, _LARGE = 4, 2, 1 << 24
_FILL = 528  # blocks of 256 threads that an H200 holds at a time (132 multiprocessors, 4 by their registers)

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
    values = {"TYPE": number, "VEC": vector, "KIND": kind, "LANES": lanes, "AHEAD": ahead}
    return _cuda.compile_file("_activation.cu", architecture, values)


@functools.cache
def _function(arrays: Arrays, device: int, number: int, vector: int, kind: int, lanes: int, ahead: int):
    major, minor = arrays.capability(device)
    code = compile_source(number, vector, kind, f"sm_{major}{minor}", lanes, ahead)
    return _cuda.load(arrays, device, code, "activation_backward")


def counters(arrays: Arrays, device: int, stream: int) -> int:
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
        kernel = _function(arrays, device, number, vector, code, lanes, ahead)
        slabs = -(-columns // (lanes * vector))
        blocks = min(-(-rows // (4 * tall)), max(1, _FILL // slabs), _MAX_ROW_BLOCKS,
                     max(1, _workspace.WORKSPACE_BYTES // (columns * sum_size)))  # fmt: skip
        if lanes == _NARROW:
            blocks = 1
        if slabs > _MAX_SLABS and blocks > 1:
            raise DevkernelsError(f"{columns} columns are more than the kernel takes ({_MAX_SLABS * lanes * vector}).")
        per_block = -(-rows // blocks)
        grid = slabs, -(-rows // per_block)
        self._several = grid[1] > 1
        self._values = [ctypes.c_uint64(0) for _ in range(10)]
        for slot, value in zip(self._values[6:], (rows, columns, kept_ld, per_block), strict=True):
            slot.value = value
        places = [ctypes.addressof(value) for value in self._values]
        self._launch = _cuda.Launch("activation_backward", device, kernel, grid, (lanes, tall), 0, places)
        self._lock = threading.Lock()
        shared = ("work", "counters") if self._several else (0, 0)
        self.laid_out = ("dy", "kept", "dz", "db", *shared, rows, columns, kept_ld, per_block)

    def launch(self, dy: int, kept: int, dz: int, db: int, stream: int) -> None:
        """Run on pointers; `db` 0 leaves the sum out."""
        partial = zeroed = 0
        if db and self._several:
            partial = _workspace.spaces(self._arrays, self._device).get(stream)
            if partial is None:
                partial, memory = _workspace.reserve(self._arrays, self._device, stream)
                del memory
            zeroed = counters(self._arrays, self._device, stream)
        v = self._values
        with self._lock:
            v[0].value, v[1].value, v[2].value, v[3].value, v[4].value, v[5].value = dy, kept, dz, db, partial, zeroed
            self._launch.on(stream)
