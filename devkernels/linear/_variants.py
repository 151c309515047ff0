"""Algorithms of cuBLASLt beside those that its heuristic offers (at most eight of them): other tiles, other clusters.

in: an `LtMatmul`, an algorithm.  out: algorithms that the library accepts for that product, with their workspace.

The heuristic guesses; for some products its guesses are a fifth slower than another of the library's kernels. So the
guesses for the plain product are tried as well, and around the fastest the schedules, cluster shapes and tiles that the
algorithm is capable of (``cublasLtMatmulAlgoCapGetAttribute``, ``cublasLtMatmulAlgoCheck``).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Iterable, Iterator

from devkernels.linear import _workspace
from devkernels.linear._cublaslt import LtMatmul, NoAlgorithmError
from devkernels.linear.epilog import Epilog

_TILE, _SWIZZLE, _CUSTOM, _CLUSTER = 1, 4, 5, 8  # cublasLtMatmulAlgoConfigAttributes_t
_TILE_IDS, _CUSTOM_MAX = 6, 7  # cublasLtMatmulAlgoCapAttributes_t
_CLUSTERS = (2, 3, 4, 5, 6, 7, 8, 9)  # cublasLtClusterShape_t: 1x1, 2x1, 4x1, 1x2, 2x2, 4x2, 1x4, 2x4
_MOST_TILES = 1024
_NEAR = 0.6, 1.67  # tiles of so much the area are tried: what is much smaller or larger has never been the fastest

Choice = tuple[bytes, int]  # an algorithm, and the bytes of workspace that it needs


def of_the_plain_product(lt: LtMatmul) -> list[Choice]:
    """What the heuristic offers for the same product without its epilog, where it will do the epilog too."""
    if lt.epilog is Epilog.DEFAULT:
        return []
    plain = LtMatmul(lt.spec, Epilog.DEFAULT, lt.arrays, lt.device, alignment=lt.alignment, alpha=1.0, beta=0.0,
                     use_c=False)  # fmt: skip
    try:
        return list(_accepted(lt, (one["algo"].tobytes() for one in plain.candidates(8))))
    except NoAlgorithmError:
        return []


def other_tiles(lt: LtMatmul, algorithm: bytes) -> list[Choice]:
    """The algorithm with each other tile of about the same area that it is capable of."""
    areas = _areas()
    area = areas.get(_get(algorithm, _TILE))
    tiles = _capability(algorithm, _TILE_IDS, _MOST_TILES)
    if area is not None:
        low, high = (area * factor for factor in _NEAR)
        tiles = [tile for tile in tiles if low <= areas.get(tile, area) <= high]
    return list(_accepted(lt, (_with(algorithm, _TILE, tile) for tile in tiles)))


def other_ways(lt: LtMatmul, algorithm: bytes) -> list[Choice]:
    """The algorithm with each of its ways to go about a tile (its custom options)."""
    return list(_accepted(lt, _ways(algorithm)))


def other_schedules(lt: LtMatmul, algorithm: bytes) -> list[Choice]:
    """The algorithm with each of its ways to go about a tile, in each shape of cluster."""
    ways = [algorithm, *_ways(algorithm)]
    shapes = ((_with(way, _CLUSTER, shape) for shape in _CLUSTERS) for way in ways if way)
    return list(_accepted(lt, itertools.chain(ways, *shapes)))


def _ways(algorithm: bytes) -> list[bytes | None]:
    (most,) = _capability(algorithm, _CUSTOM_MAX, 1) or [0]
    return [_with(algorithm, _CUSTOM, value) for value in range(most + 1)]


def other_order(lt: LtMatmul, algorithm: bytes) -> list[Choice]:
    """The algorithm with its blocks in the other order."""
    return list(_accepted(lt, [_with(algorithm, _SWIZZLE, 1)]))


@functools.cache
def _areas() -> dict[int, int]:
    """Elements of each tile, by its number; the names of cublasLtMatmulTile_t tell."""
    tiles = getattr(_workspace.bindings(), "MatmulTile", ())
    sizes = ((int(tile), re.fullmatch(r"TILE_(\d+)x(\d+)", tile.name)) for tile in tiles)
    return {number: int(size[1]) * int(size[2]) for number, size in sizes if size}


def _capability(algorithm: bytes, attribute: int, most: int) -> list[int]:
    """Values of a capability, at most so many; none where the library does not tell."""
    buffer, written = ctypes.create_string_buffer(algorithm, len(algorithm)), ctypes.c_size_t(0)
    values = (ctypes.c_uint32 * most)()
    library = _workspace.bindings()
    try:
        library.matmul_algo_cap_get_attribute(
            ctypes.addressof(buffer), attribute, ctypes.addressof(values), ctypes.sizeof(values),
            ctypes.addressof(written),
        )  # fmt: skip
    except library.cuBLASLtError:
        return []
    return list(values[: written.value // 4])


def _get(algorithm: bytes, attribute: int) -> int | None:
    """One attribute of the algorithm, of four bytes."""
    buffer, slot = ctypes.create_string_buffer(algorithm, len(algorithm)), ctypes.c_uint32(0)
    library, written = _workspace.bindings(), ctypes.c_size_t(0)
    try:
        library.matmul_algo_config_get_attribute(
            ctypes.addressof(buffer), attribute, ctypes.addressof(slot), 4, ctypes.addressof(written)
        )
    except library.cuBLASLtError:
        return None
    return slot.value


def _with(algorithm: bytes, attribute: int, value: int) -> bytes | None:
    """The algorithm with one attribute set, None where the library refuses that."""
    buffer, slot = ctypes.create_string_buffer(algorithm, len(algorithm)), ctypes.c_uint32(value)
    library = _workspace.bindings()
    # The cluster shape is the one attribute of two bytes.
    size = 2 if attribute == _CLUSTER else 4
    try:
        library.matmul_algo_config_set_attribute(ctypes.addressof(buffer), attribute, ctypes.addressof(slot), size)
    except library.cuBLASLtError:
        return None
    return buffer.raw


def _accepted(lt: LtMatmul, algorithms: Iterable[bytes | None]) -> Iterator[Choice]:
    for algorithm in algorithms:
        need = None if algorithm is None else lt.accepts(algorithm)
        if need is not None:
            yield algorithm, need
