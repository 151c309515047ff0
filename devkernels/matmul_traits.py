"""What a product on shared memory means for its target: block shape, leading dimensions, alignment, fragment.

In: a `MatmulSpec`. Out: the completed spec, and the number of elements of c that a thread holds. Numbers come from
libmathdx; in the simulator, which needs none, and where it is not installed, from the rules below: valid numbers, the
same everywhere, but not the library's suggestions.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from devkernels import libmathdx, pipeline_spec
from devkernels.errors import CompileError, SpecError
from devkernels.libmathdx import matmul as library
from devkernels.matmul_spec import LEAST_THREADS, MAX_ALIGNMENT, MatmulSpec, check_shared
from devkernels.target import simulating
from devkernels.traits import remembered


def description(spec: MatmulSpec, api: str = "shared") -> library.MatmulDescription:
    """The spec in libmathdx's terms."""
    return library.MatmulDescription(
        size=spec.size,
        precision=spec.precision,
        data_type=spec.data_type,
        sm=spec.target.number,
        arrangement=spec.arrangement,
        transpose_mode=spec.transpose_mode,
        leading_dimension=None if api == "leading_dimensions" else spec.leading_dimension,
        alignment=spec.alignment,
        block_dim=spec.block_dim,
        static_block_dim=spec.static_block_dim,
        api=api,
    )


def complete(spec: MatmulSpec, leading_dimension: object) -> MatmulSpec:
    """Fill in what was left out: dense leading dimensions or the library's suggested ones, its block, its alignment.

    Raises
    ------
    SpecError
        The library has no such product.
    ResourceError
        The matrices do not fit shared memory.
    """
    if spec.with_pipeline and pipeline_spec.engine(spec) == pipeline_spec.WARPGROUP:
        return _for_warpgroups(spec)
    found = suggestions(replace(spec, leading_dimension=None, with_pipeline=False))
    if spec.leading_dimension is None:
        chosen = found["suggested_leading_dimension"] if leading_dimension == "suggested" else None
        spec = replace(spec, leading_dimension=chosen or spec.least_leading_dimension)
    if spec.alignment is None:
        spec = replace(spec, alignment=found["alignment"])
    if spec.block_dim is None:
        spec = replace(spec, block_dim=found["suggested_block_dim"])
    check_shared(spec)
    return spec


def _for_warpgroups(spec: MatmulSpec) -> MatmulSpec:
    """The library has no part in these."""
    return replace(
        spec, leading_dimension=spec.leading_dimension or spec.least_leading_dimension,
        alignment=spec.alignment or (MAX_ALIGNMENT,) * 3,
        block_dim=spec.block_dim or (pipeline_spec.group_threads(spec), 1, 1),
    )  # fmt: skip


@functools.cache
def suggestions(spec: MatmulSpec) -> dict[str, tuple[int, int, int]]:
    """Alignment, suggested leading dimensions and block of a product."""
    if not _ask_library():
        return _rules(spec)
    found = remembered("matmul", spec, lambda: _suggestions(spec))
    return {name: tuple(value) for name, value in found.items()}


def _ask_library() -> bool:
    return not simulating() and libmathdx.available()


def _suggestions(spec: MatmulSpec) -> dict[str, tuple[int, int, int]]:
    try:
        return library.traits(description(spec))
    except CompileError as error:
        raise SpecError(f"cuBLASDx has no {spec}. ({str(error)[-600:]})", spec=spec) from error


def _rules(spec: MatmulSpec) -> dict[str, tuple[int, int, int]]:
    m, n, _ = spec.size
    threads = min(256, max(LEAST_THREADS, -(-m * n // (16 * 32)) * 32))  # 16 elements of c a thread
    return {"alignment": spec.item_bytes, "suggested_leading_dimension": spec.least_leading_dimension,
            "suggested_block_dim": (threads, 1, 1)}  # fmt: skip


@functools.cache
def fragment_size(spec: MatmulSpec, dealt: bool) -> int:
    """Elements of c that a thread holds in registers; `dealt` out evenly (as the simulator does) or the library's."""
    by_warpgroups = spec.with_pipeline and pipeline_spec.engine(spec) == pipeline_spec.WARPGROUP
    if not dealt and not by_warpgroups and _ask_library():
        return _storage(spec)[2] // spec.item_bytes[2]
    m, n, _ = spec.size
    return -(-m * n // spec.threads)


def fragment_api(spec: MatmulSpec) -> str:
    """What libmathdx calls the accumulator form with this layout."""
    return "fragment" if spec.layout == "plain" else "suggested"


@functools.cache
def sizes(spec: MatmulSpec) -> tuple[int, int, int]:
    """Elements of a, b and c in shared memory."""
    if spec.layout == "plain" or not _ask_library():
        return spec.sizes()
    a, b, _ = _storage(spec)
    return a // spec.item_bytes[0], b // spec.item_bytes[1], spec.sizes()[2]


def _storage(spec: MatmulSpec) -> tuple[int, int, int]:
    spec = replace(spec, with_pipeline=False)
    return tuple(remembered("storage", spec, lambda: library.storage(description(spec, fragment_api(spec)))))
