"""Kernels of two products one after the other for ``devkernels build``.

In: the two products, the columns of the matrix between them; the target that is compiled for. Out: kernels with their
signatures and notes, by file name.
"""

from __future__ import annotations

import itertools

from devkernels.compiler.image import Parameter
from devkernels.errors import SpecError
from devkernels.kernels import gemm_chain_kernels, gemm_images
from devkernels.kernels.gemm_plan import Gemm
from devkernels.matrix import chain, chain_groups, tensor

_BATCHES = 2  # of an operand that has any


def image_sources(
    first: Gemm, second: Gemm, fused: bool, columns: int | None, batched: tuple[bool, bool, bool]
) -> dict[str, tuple]:
    """Kernels by file name, for aligned matrices in C order, b and c in column order as well.

    Where two kernels run (not `fused`), the kernels of the two products.
    """
    if isinstance(columns, bool) or not isinstance(columns, int) or columns < 1:
        raise SpecError(
            f"columns={columns!r} must be the number of columns of the matrix in between, for which a kernel is built: "
            f"let the factory return chain.image_sources(512).",
            spec=first.spec,
        )
    if len(batched) != 3:
        raise SpecError(f"batched={batched!r} must say of a, b and c whether they have a batch axis.", spec=first.spec)
    if not fused:
        parts = {"first": first.image_sources(), "second": second.image_sources()}
        return {f"{which}_{name}": one for which, found in parts.items() for name, one in found.items()}
    extras = tuple(gemm_images.extra_of(product.spec, None) for product in (first, second))
    if None in extras:
        return {}
    found: dict[str, tuple] = {}
    for rows in itertools.product((True, False), repeat=2):
        kinds = ["rows" if one else "columns" for one in rows]
        name = f"gemm_chain_{first.spec.a_dtype}_{second.spec.out_dtype}_{columns}_b_{kinds[0]}_c_{kinds[1]}"
        found[name + ("_batched" if any(batched) else "")] = _source(first, second, columns, batched, rows, extras)
    return found


def _source(
    first: Gemm, second: Gemm, columns: int, batched: tuple[bool, ...], rows: tuple[bool, bool], extras: tuple
) -> tuple:
    counts = [_BATCHES if one else 1 for one in batched]
    steps, specs = (first.spec.steps, second.spec.steps), (first.spec, second.spec)
    dtype, out_dtype = first.spec.a_dtype, second.spec.out_dtype
    a = gemm_images.matrix(dtype, batch=counts[0])
    b = gemm_images.matrix(dtype, rows[0], columns=columns, batch=counts[1])
    c = gemm_images.matrix(dtype, rows[1], rows=columns, batch=counts[2])
    d = gemm_images.matrix(out_dtype, batch=max(counts))
    extra = (extras[0].parameter, extras[1].parameter)
    taken = tuple(one.batched for one in extras)
    groups = gemm_chain_kernels.groups_of(*specs, a, b, c, d)
    alpha = Parameter("alpha", "scalar", "float32")
    if groups is None:
        tiling = gemm_chain_kernels.tiling_of(*specs, a, b, c, d)
        matrices = tuple(gemm_images.array(n, t, 3) for n, t in zip("abcd", (dtype,) * 3 + (out_dtype,), strict=True))
        notes = {"block": tensor.THREADS, "shared": chain.shared_bytes(columns), "tile": tensor.TILE}
        return gemm_chain_kernels.chain_kernel(*steps, tiling, *taken), (*matrices, alpha, *extra), notes
    words = Parameter("maps", "tuple", items=(Parameter("", "scalar", "int64"),) * chain_groups.MAP_WORDS)
    lengths = tuple(Parameter(n, "scalar", "int64") for n in ("rows", "columns", "steps"))
    notes = {"block": chain_groups.THREADS, "shared": groups.shared_bytes, "tile": chain_groups.ROWS}
    signature = words, *lengths, alpha, gemm_images.array("d", out_dtype, 3, "C"), *extra
    return gemm_chain_kernels.chain_group_kernel(*steps, groups, *taken), signature, notes
