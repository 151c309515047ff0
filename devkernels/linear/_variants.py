"""Algorithms of cuBLASLt beside those that its heuristic offers (at most eight of them): other tiles, other clusters.

in: an `LtMatmul`, an algorithm.  out: algorithms that the library accepts for that product, with their workspace.

The heuristic guesses; for some epilogs its guesses are a fifth slower than what the same product takes without the
epilog. So the guesses for the plain product are tried as well, and around the fastest the tiles and cluster shapes that
the algorithm is capable of (``cublasLtMatmulAlgoCapGetAttribute``, ``cublasLtMatmulAlgoCheck``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

from devkernels.linear import _workspace
from devkernels.linear._cublaslt import LtMatmul, NoAlgorithmError
from devkernels.linear.epilog import Epilog

_TILE, _SWIZZLE, _CLUSTER = 1, 4, 8  # cublasLtMatmulAlgoConfigAttributes_t
_TILE_IDS = 6  # cublasLtMatmulAlgoCapAttributes_t
_CLUSTERS = (2, 3, 4, 5, 6, 8)  # cublasLtClusterShape_t: 1x1, 2x1, 4x1, 1x2, 2x2, 1x4
_MOST_TILES = 1024

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
    """The algorithm with each other tile that it is capable of."""
    buffer, written = ctypes.create_string_buffer(algorithm, len(algorithm)), ctypes.c_size_t(0)
    tiles = (ctypes.c_uint32 * _MOST_TILES)()
    library = _workspace.bindings()
    try:
        library.matmul_algo_cap_get_attribute(
            ctypes.addressof(buffer), _TILE_IDS, ctypes.addressof(tiles), ctypes.sizeof(tiles),
            ctypes.addressof(written),
        )  # fmt: skip
    except library.cuBLASLtError:
        return []
    return list(_accepted(lt, (_with(algorithm, _TILE, tile) for tile in tiles[: written.value // 4])))


def other_orders(lt: LtMatmul, algorithm: bytes) -> list[Choice]:
    """The algorithm with other cluster shapes, and with its blocks in the other order."""
    several = [_with(algorithm, _CLUSTER, shape) for shape in _CLUSTERS]
    return list(_accepted(lt, [*several, *(_with(one, _SWIZZLE, 1) for one in (algorithm, *several) if one)]))


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
