"""Kernels of a product for ``devkernels build``: what is compiled ahead of time, for which target.

In: a `GemmSpec`; the target that is compiled for. Out: kernels with their signatures and notes, by file name.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from devkernels import target
from devkernels.compiler.image import Parameter
from devkernels.kernels import gemm_aligned
from devkernels.kernels.gemm_kernels import portable_kernel, staged_kernel, tensor_kernel
from devkernels.kernels.gemm_route import PORTABLE, STAGED, TENSOR_DTYPES, WARPGROUP, GemmSpec, by_kind
from devkernels.kernels.gemm_warpgroup import TILES, warpgroup_kernel
from devkernels.matrix import finish, portable, staged, tensor, warpgroup
from devkernels.matrix.steps import operands_of, takes_all


def _array(name: str, dtype: str, axes: int, layout: str = "A") -> Parameter:
    return Parameter(name, "array", dtype, axes, layout)


def _conversions(spec: GemmSpec, plain: GemmSpec) -> dict[str, tuple]:
    """Kernels that make the operands of `plain`, of arrays in C order, with gaps between lines or without."""
    sources = {}
    for which, copy in zip("ab", gemm_aligned.converting(spec, plain), strict=True):
        if copy is not None:
            have = spec.a_dtype if which == "a" else spec.b_dtype
            for layout, short in itertools.product("CA", (False, True)):
                parameters = _array("x", have, 3, "C"), _array("y", copy.dtype, 3, layout)
                kernel = gemm_aligned.converting_kernel(copy.prologue, True, short)
                notes = {"block": gemm_aligned.THREADS}
                name = ("_gaps" if layout == "A" else "") + ("_short" if short else "")
                sources[f"convert_{which}_{have}_{copy.dtype}{name}"] = kernel, parameters, notes
    return sources


def image_sources(spec: GemmSpec) -> dict[str, tuple]:
    """Kernels by file name: the main loop of `by_kind`, for b in row and in column order where the loop differs.

    For aligned matrices in C order (or b in column order) without c; operands of ready steps have the dtype of a.
    Functions that take `extra` are not built ahead, since what they take is not known. The notes of an image say which
    main loop it is, and why.
    """
    if takes_all(spec.steps):
        return {}
    operands = operands_of(spec.steps)
    extra = tuple(
        _array(f"extra[{i}]", spec.a_dtype, 2 if step.axes == "matrix" else 1, "C") for i, step in enumerate(operands)
    )
    rest = (
        *(Parameter(n, "scalar", spec.accumulate) for n in ("alpha", "beta")),
        Parameter("extra", "tuple", items=extra),
    )
    route = by_kind(spec, target.current_target())
    if route.plain is not None:
        return {**image_sources(route.plain), **_conversions(spec, route.plain)}
    name = f"gemm_{spec.a_dtype}_{spec.b_dtype}_{spec.out_dtype}"
    matrices = tuple(_array(n, d, 3) for n, d in (("a", spec.a_dtype), ("b", spec.b_dtype), ("c", spec.out_dtype),
                                                  ("d", spec.out_dtype)))  # fmt: skip
    batched, sources = (False,) * len(operands), {}
    if route.path == PORTABLE:
        tiling = portable.PortableTiling(spec.accumulate, True, True, False)
        matrices = tuple(Parameter(p.name, "array", p.dtype, 3, "C") for p in matrices)
        kernel = portable_kernel(spec, tiling, None, batched)
        return {name: (kernel, (*matrices, *rest), {"block": tiling.threads, "tile": tiling.tile, "route": str(route)})}
    for rows in (False,) if spec.kind in ("tf32", "s8") and route.path == WARPGROUP else (True, False):
        notes = {"route": str(route)}
        if route.path == WARPGROUP:
            ends = tuple(finish.Operand(spec.a_dtype, True) for _ in operands)
            stored = "float32" if spec.whole else spec.out_dtype
            end = finish.Finish(finish.Operand(stored, True, True), None, ends, True, spec.whole)
            words = Parameter("maps", "tuple", items=(Parameter("", "scalar", "int64"),) * warpgroup.MAP_WORDS)
            lengths = tuple(Parameter(n, "scalar", "int64") for n in ("rows", "columns", "steps", "batches"))
            tiling = warpgroup.Tiling(kind=spec.kind, b_turned=rows, to_float=spec.kind == "s8" and not spec.whole)
            dense = tuple(_array(n, spec.out_dtype, 3, "C") for n in ("c", "d"))
            signature = (words, *lengths, *rest[:2], *dense, rest[2])
            for down, across in TILES:
                tiling = replace(tiling, rows=down, columns=across)
                tile = {"block": warpgroup.THREADS, "shared": tiling.shared_bytes, "tile": [down, across]}
                size = "" if (down, across) == (128, 128) else f"_{down}x{across}"
                sources[f"{name}_b_{'rows' if rows else 'columns'}{size}"] = (
                    warpgroup_kernel(spec, tiling, end), signature, notes | tile
                )  # fmt: skip
            continue
        elif route.path == STAGED:
            tiling = staged.StagedTiling(
                spec.a_dtype, staged.Operand(True), staged.Operand(not rows), spec.out_dtype, d_wide=True,
                tall=target.current_target().major >= 9, split=spec.tf32 == 3,
            )  # fmt: skip
            kernel, signature = staged_kernel(spec, tiling, batched), (*matrices, *rest)
            notes |= {"block": tiling.threads, "shared": tiling.shared_bytes, "tile": list(tiling.tile)}
        else:
            tiling = tensor.TensorTiling(
                TENSOR_DTYPES[spec.a_dtype], spec.out_dtype, True, rows, True, rows, False, True
            )
            kernel, signature = tensor_kernel(spec, tiling, batched), (*matrices, *rest)
            notes |= {"block": tensor.THREADS, "tile": [tensor.TILE, tensor.TILE]}
        sources[f"{name}_b_{'rows' if rows else 'columns'}"] = kernel, signature, notes
    return sources
