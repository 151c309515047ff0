"""Kernels of a product for ``devkernels build``: what is compiled ahead of time, for which target.

In: a `GemmSpec`; the target that is compiled for. Out: kernels with their signatures and notes, by file name. Tilings
and routes come from the functions that launches take them from, asked about large aligned matrices.
"""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass, replace

from devkernels import target
from devkernels.compiler.image import Parameter
from devkernels.compiler.signature import parse
from devkernels.errors import SpecError
from devkernels.kernels import gemm_aligned, gemm_kernels, gemm_warpgroup
from devkernels.kernels.gemm_kernels import portable_kernel, staged_kernel, tensor_kernel
from devkernels.kernels.gemm_route import ITEM_BYTES, PORTABLE, STAGED, WARPGROUP, GemmSpec, Matrix, Route, by_shape
from devkernels.kernels.gemm_views import wide
from devkernels.kernels.gemm_warpgroup import TILES, warpgroup_kernel
from devkernels.matrix import finish, portable, tensor, warpgroup
from devkernels.matrix.steps import operands_of, takes_all

_SIDE = 4096  # of the matrices that routes are asked about


def array(name: str, dtype: str, axes: int, layout: str = "A") -> Parameter:
    """An array that a kernel takes."""
    return Parameter(name, "array", dtype, axes, layout)


def matrix(dtype: str, by_rows: bool = True, rows: int = _SIDE, columns: int = _SIDE, batch: int = 1) -> Matrix:
    """An aligned dense matrix, in row or in column order."""
    item = ITEM_BYTES[dtype]
    strides = (columns * item, item) if by_rows else (item, rows * item)
    return Matrix(batch, rows, columns, (rows * columns * item if batch > 1 else 0, *strides), 0, item, dtype)


@dataclass(frozen=True)
class Extra:
    """What a product's epilogue takes: parameters, and which of them have a batch axis."""

    parameters: tuple[Parameter, ...]

    @property
    def parameter(self) -> Parameter:
        """The parameter that holds them."""
        return Parameter("extra", "tuple", items=self.parameters)

    @property
    def batched(self) -> tuple[bool, ...]:
        """Of each, whether it has three axes."""
        return tuple(p.kind == "array" and p.ndim == 3 for p in self.parameters)


def extra_of(spec: GemmSpec, given: str | None) -> Extra | None:
    """What the epilogue takes; None for a function of the user's that takes what nobody has described."""
    if not takes_all(spec.steps):
        if given is not None:
            raise SpecError(
                f"extra={given!r} describes what a function takes; the operands of ready steps are known.", spec=spec
            )
        return Extra(operands(spec))
    if given is None:
        known = all(_takes_three(step.function) for step in spec.steps if step.name == "function")
        return Extra(()) if known else None
    parameters = parse(f"({given})") if isinstance(given, str) else None
    if parameters is None:
        raise SpecError(
            f"extra={given!r} is no list of types; write it as 'float32[::1], float32' (numbers have the type "
            f"{spec.accumulate} if they are no integers, which are int64).",
            spec=spec,
        )
    return Extra(tuple(replace(p, name=f"extra[{i}]") for i, p in enumerate(parameters)))


def _takes_three(function: object) -> bool:
    """Whether an epilogue is a function of (acc, row, column) and nothing else."""
    function = getattr(function, "py_func", function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return len(parameters) == 3 and all(p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters)


def operands(spec: GemmSpec, name: str = "extra") -> tuple[Parameter, ...]:
    """Operands of ready steps, with the dtype of a."""
    return tuple(
        array(f"{name}[{i}]", spec.a_dtype, 2 if step.axes == "matrix" else 1, "C")
        for i, step in enumerate(operands_of(spec.steps))
    )


def _conversions(spec: GemmSpec, plain: GemmSpec) -> dict[str, tuple]:
    """Kernels that make the operands of `plain`, of arrays in C order, with gaps between lines or without."""
    sources = {}
    for which, copy in zip("ab", gemm_aligned.converting(spec, plain), strict=True):
        if copy is not None:
            have = spec.a_dtype if which == "a" else spec.b_dtype
            for layout, short in itertools.product("CA", (False, True)):
                parameters = array("x", have, 3, "C"), array("y", copy.dtype, 3, layout)
                kernel = gemm_aligned.converting_kernel(copy.prologue, True, short)
                notes = {"block": gemm_aligned.THREADS}
                name = ("_gaps" if layout == "A" else "") + ("_short" if short else "")
                sources[f"convert_{which}_{have}_{copy.dtype}{name}"] = kernel, parameters, notes
    return sources


def image_sources(spec: GemmSpec, c: object = None, extra: str | None = None) -> dict[str, tuple]:
    """Kernels by file name: the main loop for large aligned matrices in C order, b in column order where that differs.

    `c` (True: of the result's dtype; or a dtype) adds the kernels that read a c. Operands of ready steps have the dtype
    of a; what a function takes beyond (acc, row, column) is told by `extra`, and without it nothing is built. The notes
    of an image say which main loop it is, and why.
    """
    taken = extra_of(spec, extra)
    if taken is None:
        return {}
    sources = _sources(spec, None, taken)
    if c is not None and c is not False:
        sources |= _sources(spec, spec.out_dtype if c is True else _dtype(c, spec), taken)
    return sources


def _dtype(c: object, spec: GemmSpec) -> str:
    name = str(getattr(c, "__name__", c)).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise SpecError(f"c={c!r} is no dtype of products; use True, or one of {', '.join(ITEM_BYTES)}.", spec=spec)
    return name


def _sources(spec: GemmSpec, c_dtype: str | None, extra: Extra) -> dict[str, tuple]:
    """The kernels without c (None), or those with a c of this dtype."""
    a, d = matrix(spec.a_dtype), matrix(spec.out_dtype)
    side = None if c_dtype is None else matrix(c_dtype)
    found: dict[str, tuple] = {}
    for rows in (False, True):
        b = matrix(spec.b_dtype, rows)
        route = by_shape(spec, target.current_target(), a, b, d, c_dtype)
        if route.plain is not None:
            return {**_sources(route.plain, c_dtype, extra), **_conversions(spec, route.plain)}
        if any(route.copied):  # an order that this main loop reads through a copy only
            continue
        name = f"gemm_{spec.a_dtype}_{spec.b_dtype}_{spec.out_dtype}" + ("" if side is None else f"_c_{c_dtype}")
        if route.path == PORTABLE:
            if rows:
                found[name] = _portable(spec, route, side, extra)
            continue
        make = {WARPGROUP: _warpgroup, STAGED: _staged}.get(route.path, _tensor)
        for size, one in make(spec, route, (a, b, side, d), extra).items():
            found[f"{name}_b_{'rows' if rows else 'columns'}{size}"] = one
    return found


def _rest(spec: GemmSpec, extra: Extra) -> tuple[Parameter, ...]:
    return (*(Parameter(n, "scalar", spec.accumulate) for n in ("alpha", "beta")), extra.parameter)


def _matrices(spec: GemmSpec, side: Matrix | None, layout: str = "A") -> tuple[Parameter, ...]:
    """What kernels on arrays take: d stands where no c is read."""
    dtypes = spec.a_dtype, spec.b_dtype, spec.out_dtype if side is None else side.dtype, spec.out_dtype
    return tuple(array(name, dtype, 3, layout) for name, dtype in zip("abcd", dtypes, strict=True))


def _portable(spec: GemmSpec, route: Route, side: Matrix | None, extra: Extra) -> tuple:
    tiling = portable.PortableTiling(spec.accumulate, True, True, side is not None)
    kernel = portable_kernel(spec, tiling, None if side is None else side.dtype, extra.batched)
    notes = {"block": tiling.threads, "tile": tiling.tile, "route": str(route)}
    return kernel, (*_matrices(spec, side, "C"), *_rest(spec, extra)), notes


def _warpgroup(spec: GemmSpec, route: Route, given: tuple, extra: Extra) -> dict[str, tuple]:
    a, b, side, _ = given
    ends = () if takes_all(spec.steps) else tuple(finish.Operand(p.dtype, True) for p in extra.parameters)
    stored = finish.Operand("float32" if spec.whole else spec.out_dtype, True, True)
    read = None if side is None else finish.Operand(side.dtype, wide(side, True), True)
    end = finish.Finish(stored, read, ends, True, spec.whole)
    words = Parameter("maps", "tuple", items=(Parameter("", "scalar", "int64"),) * warpgroup.MAP_WORDS)
    lengths = tuple(Parameter(n, "scalar", "int64") for n in ("rows", "columns", "steps", "batches"))
    alpha, beta, operands = _rest(spec, extra)
    dense = array("c", spec.out_dtype if side is None else side.dtype, 3, "C"), array("d", spec.out_dtype, 3, "C")
    signature = (words, *lengths, alpha, beta, *dense, operands)
    sources, usual = {}, gemm_warpgroup.tiling_for(spec, a, b, side is not None)
    for down, across in TILES:
        tiling = replace(usual, rows=down, columns=across)
        notes = {"route": str(route), "block": warpgroup.THREADS, "shared": tiling.shared_bytes, "tile": [down, across]}
        size = "" if (down, across) == (128, 128) else f"_{down}x{across}"
        sources[size] = warpgroup_kernel(spec, tiling, end), signature, notes
    return sources


def _staged(spec: GemmSpec, route: Route, given: tuple, extra: Extra) -> dict[str, tuple]:
    a, b, side, d = given
    signature, sources = (*_matrices(spec, side), *_rest(spec, extra)), {}
    for size, blocks in (("", 1), ("_small", 2**30)):  # as if few blocks were to have work, or very many
        tiling = gemm_kernels.staged_tiling(spec, a, b, d, side is not None, blocks)
        notes = {"route": str(route), "block": tiling.threads, "shared": tiling.shared_bytes,
                 "tile": list(tiling.tile)}  # fmt: skip
        sources[size] = staged_kernel(spec, tiling, extra.batched), signature, notes
    return sources


def _tensor(spec: GemmSpec, route: Route, given: tuple, extra: Extra) -> dict[str, tuple]:
    a, b, side, d = given
    tiling = gemm_kernels.tensor_tiling(spec, a, b, d, side is not None)
    notes = {"route": str(route), "block": tensor.THREADS, "tile": [tensor.TILE, tensor.TILE]}
    return {"": (tensor_kernel(spec, tiling, extra.batched), (*_matrices(spec, side), *_rest(spec, extra)), notes)}
