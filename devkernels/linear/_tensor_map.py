"""Tensor maps (CUtensorMap): what the copy unit of sm_90 is told about a matrix.

in: shapes, then pointers.  out: the place of 128 bytes that a kernel takes as a parameter.
"""

from __future__ import annotations

import ctypes
import functools

from devkernels.errors import DevkernelsError
from devkernels.linear import _cuda

BLOCK = 64  # columns: 128 bytes, the width of the swizzle
_TYPES = {"uint8": 0, "float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLE_128, _L2_256 = 3, 3


class Map:
    """A tensor map (CUtensorMap) in memory of its own: which matrix the copy unit reads, and in which boxes.

    A matrix of 16-bit elements is described as blocks of 64 columns, which lie one after another in a stage; a mask as
    it is. `across` are the blocks, or the bytes, of a box.
    """

    def __init__(self, device: int, dtype: str, rows: int, columns: int, pitch: int, down: int, across: int):
        u64, u32, pointer = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p
        if dtype == "uint8":
            sizes, strides, box, swizzle = (columns, rows), (pitch,), (across, down), 0
        else:
            sizes, strides = (BLOCK, rows, columns // BLOCK), (2 * pitch, 2 * BLOCK)
            box, swizzle = (BLOCK, down, across), _SWIZZLE_128
        rank = len(sizes)
        self._memory = (u64 * 24)()  # the driver wants multiples of 64 bytes
        self.place = ctypes.addressof(self._memory) + -ctypes.addressof(self._memory) % 64
        self._sizes, self._strides = (u64 * rank)(*sizes), (u64 * len(strides))(*strides)
        self._box, self._ones = (u32 * rank)(*box), (u32 * rank)(*[1] * rank)
        self._kind, self._swizzle = _TYPES[dtype], swizzle
        self._encode = functools.partial(_encoder(), pointer(self.place), self._kind, rank)
        self._rest = self._sizes, self._strides, self._box, self._ones, 0, swizzle, _L2_256, 0
        self._device, self._pointer = device, 0

    def words(self) -> tuple[int, ...]:
        """All that the driver is told but the pointer, as native/parameter.h reads it."""
        encode = ctypes.cast(_encoder(), ctypes.c_void_p).value
        return (encode, self._kind, len(self._sizes), *self._sizes, *self._strides, *self._box, self._swizzle, _L2_256)

    def at(self, pointer: int) -> None:
        """Let it describe a matrix that lies there."""
        if pointer != self._pointer:
            error = self._encode(pointer, *self._rest)
            if error == _cuda.INVALID_CONTEXT:  # a thread's first call, such as that of torch's backward pass
                _cuda.enter(self._device)
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
