"""Copies of several arrays in one launch (`_copies.cu`).

in: what lies where, once; then where to.  out: copies, at the host's cost of one.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence

from devkernels.linear import _cuda
from devkernels.linear._kernels import TYPES
from devkernels.linear.arrays import Arrays

PIECES, _THREADS, _PER_THREAD = 16, 256, 4 * 16  # pieces of a launch; bytes that a thread moves at once
_WAVES = 4


class _Part(ctypes.Structure):
    _fields_ = (("to", ctypes.c_uint64), ("source", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


WORDS, TO, SOURCE = ctypes.sizeof(_Part) // 8, 0, 1  # numbers that describe a piece, and which of them these are


@functools.cache
def _function(arrays: Arrays, device: int) -> int:
    major, minor = arrays.capability(device)
    code = _cuda.compile_file("_copies.cu", f"sm_{major}{minor}", {"TYPE": TYPES["float32"][0], "PARTS": PIECES})
    return _cuda.load(arrays, device, code, "copies")


class Copies:
    """Copies from fixed places.

    Parameters
    ----------
    pieces : sequence of (int, int)
        Pointer, a multiple of 16, and bytes of each piece.
    """

    def __init__(self, arrays: Arrays, device: int, pieces: Sequence[tuple[int, int]]):
        kernel, most = _function(arrays, device), _WAVES * _cuda.multiprocessors(device)
        self._launches, self._parts = [], []
        for first in range(0, len(pieces), PIECES):
            some = pieces[first : first + PIECES]
            parts = (_Part * PIECES)()
            for part, (pointer, count) in zip(parts, some, strict=False):
                part.source, part.bytes = pointer, count
            blocks = -(-max(count for _, count in some) // (_THREADS * _PER_THREAD))
            grid = max(1, min(blocks, most)), len(some)
            self._launches.append(
                _cuda.Launch("copies", device, kernel, grid, (_THREADS, 1), 0, [ctypes.addressof(parts)])
            )
            self._parts += [(parts, i) for i in range(len(some))]
        self._lock = threading.Lock()

    def laid_out(self) -> list[tuple[_cuda.Launch, list[int]]]:
        """Describe the launches for `_torch_program`: each with its one parameter, `WORDS` numbers for each piece."""
        described = []
        for number, launch in enumerate(self._launches):
            parts = self._parts[number * PIECES][0]
            described.append((launch, list((ctypes.c_uint64 * (WORDS * PIECES)).from_buffer(parts))))
        return described

    def to(self, pointers: Sequence[int], stream: int) -> None:
        """Copy each piece to a place of its own, a multiple of 16."""
        with self._lock:
            for (parts, i), pointer in zip(self._parts, pointers, strict=True):
                parts[i].to = pointer
            for launch in self._launches:
                launch.on(stream)
