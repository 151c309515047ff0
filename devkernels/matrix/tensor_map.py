"""Tensor maps: what the tensor copies of sm_90 read, encoded by the driver.

In: address, sizes and strides of a matrix in global memory. Out: 16 words, as signed numbers, which a kernel takes as
a tuple.
"""

from __future__ import annotations

import ctypes

from devkernels.launch import driver

_DTYPE = {"uint8": 0, "int8": 0, "float16": 6, "float32": 7, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLE_128, _L2_128, _L2_256 = 3, 2, 3
_LINE = 128  # bytes of a line of the L2 cache


def encode(
    address: int, dtype: str, itemsize: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> tuple[int, ...]:
    """Encode a map; sizes and box count elements, fastest first, strides are bytes of all axes but the fastest.

    The rules of the hardware: the address and the strides are multiples of 16 bytes, an axis is at most 2**32 long, a
    box at most 256. Elements outside read as zero.
    """
    rank = len(sizes)
    words = (ctypes.c_uint64 * 24)()  # the driver wants 64 bytes of alignment
    start = -(ctypes.addressof(words) // 8) % 8
    place = ctypes.addressof(words) + 8 * start
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    # Lines that lie across those of the cache would fetch a second 256 bytes each: 14 % of the time of large products.
    even = address % _LINE == 0 and all(stride % _LINE == 0 for stride in strides)
    granularity = _L2_256 if even else _L2_128
    status = driver.library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), _DTYPE[dtype], rank, ctypes.c_void_p(address), (u64 * rank)(*sizes),
        (u64 * (rank - 1))(*strides), (u32 * rank)(*box), (u32 * rank)(*[1] * rank), 0, _SWIZZLE_128, granularity, 0,
    )  # fmt: skip
    driver.check(status, f"Describing a matrix of {sizes} elements, strides {strides}, to the copy unit")
    return tuple((ctypes.c_int64 * 16).from_address(place))
