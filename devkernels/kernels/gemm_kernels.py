"""The kernels of a product and their launches.

In: a `GemmSpec` and checked arrays. Out: ``run(a, b, c, alpha, beta, extra, d)``, good for arrays with the same shapes,
strides and alignment, and for the same a and b where their addresses are in tensor maps.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels import target
from devkernels.compiler import elf
from devkernels.compiler.image import Parameter
from devkernels.compiler.kernel import Options
from devkernels.device.inline import device_function
from devkernels.errors import CompileError
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import (
    SMALL,
    STORED_BYTES,
    TENSOR,
    TENSOR_DTYPES,
    WARPGROUP,
    GemmSpec,
    Matrix,
    as_matrix,
    by_kind,
    by_shape,
    small_tiling,
)
from devkernels.launch import driver
from devkernels.launch.jit import Kernel
from devkernels.matrix import finish, portable, small, tensor, warpgroup
from devkernels.matrix.steps import element_function, function_of, operands_of, takes_all


def prepare(spec: GemmSpec, a: Any, b: Any, c: Any, d: Any, extra: tuple, stream: Any) -> Callable:
    """Choose, compile (or find) and configure the kernel for checked arrays."""
    left, right, result = (as_matrix(arrays.describe(x, n)) for x, n in ((a, "a"), (b, "b"), (d, "out")))
    route = by_shape(spec, target.current_target(), left, right, result, c is not None)
    if route.path == SMALL:
        return _small(spec, small_tiling(spec, left, right, result, c is not None), result, extra, stream)
    if route.path == TENSOR:
        return _tensor(spec, left, right, c, result, extra, stream)
    if route.path == WARPGROUP:
        return _warpgroup(spec, left, right, c, result, extra, stream)
    return _portable(spec, left, right, c, result, extra, stream)


def numbers(spec: GemmSpec, extra: tuple) -> tuple:
    """Python's floating-point numbers in the accumulator's kind: as float64 they would make all arithmetic wide."""
    if not extra:
        return extra
    kind = np.dtype(spec.accumulate).type
    return tuple(kind(x) if isinstance(x, float) else x for x in extra)


def batched_view(x: Any, batch: int) -> Any:
    """View with three axes; one matrix is repeated by a stride of 0."""
    if len(x.shape) == 2:
        x = x[None]
    if x.shape[0] == batch:
        return x
    if arrays.library(x, "array") == "torch":
        return x.expand(batch, -1, -1)
    return (np if isinstance(x, np.ndarray) else sys.modules["cupy"]).broadcast_to(x, (batch, *x.shape[1:]))


# -- the portable main loop --------------------------------------------------------------------------------------------


def _portable(spec: GemmSpec, a: Matrix, b: Matrix, c: Any, d: Matrix, extra: tuple, stream: Any) -> Callable:
    tile, depth = portable.default_tile()
    tiling = portable.PortableTiling(
        spec.accumulate, a.along_rows is not False, b.along_rows is not False, c is not None, tile, depth
    )
    batched = tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    kernel = portable_kernel(spec, tiling, None if c is None else arrays.describe(c, "c").dtype, batched)
    grid = (-(-d.columns // tile) * d.batch, -(-d.rows // tile))
    launch, batch = kernel[grid, tiling.threads, stream], d.batch

    def run(a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> None:
        views = [batched_view(x, batch) for x in (a, b, d if c is None else c, d)]
        launch(*views, alpha, beta, numbers(spec, extra))

    return run


def _converter(accumulate: str) -> Callable:
    kind = np.dtype(accumulate).type
    return device_function(lambda x: kind(x))


def _stored(spec: GemmSpec) -> Callable:
    """Device function that makes an element of the result: integers of 8 bits are rounded and clamped."""
    if spec.out_dtype == "int8" and spec.accumulate.startswith("float"):
        clamp = function_of("int8", np.dtype(spec.accumulate).type)
        return device_function(lambda x: np.int8(clamp(x)))
    return device_function(lambda x: x)


@functools.lru_cache(maxsize=256)
def portable_kernel(
    spec: GemmSpec, tiling: portable.PortableTiling, c_dtype: str | None, batched: tuple[bool, ...]
) -> Kernel:
    """The kernel on arrays with three axes; see `portable.make_kernel`."""
    epilogue = element_function(spec.steps, np.dtype(spec.accumulate).type, batched)
    function = portable.make_kernel(
        tiling, _converter(spec.accumulate), _stored(spec), spec.prologue_a, spec.prologue_b, epilogue
    )
    return Kernel(function, Options(launch_bounds=tiling.threads))


# -- tensor cores, any alignment ---------------------------------------------------------------------------------------


def _tensor(spec: GemmSpec, a: Matrix, b: Matrix, c: Any, d: Matrix, extra: tuple, stream: Any) -> Callable:
    def wide(x: Matrix) -> bool:
        return x.along_rows is True and x.columns % 8 == 0 and x.aligned()

    tiling = tensor.TensorTiling(
        TENSOR_DTYPES[spec.a_dtype], spec.out_dtype, a.along_rows is not False, b.along_rows is not False, wide(a),
        wide(b), c is not None, wide_rows(d),
    )  # fmt: skip
    batched = tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    grid = (-(-d.columns // tensor.TILE) * d.batch, -(-d.rows // tensor.TILE))
    launch, batch = tensor_kernel(spec, tiling, batched)[grid, tensor.THREADS, stream], d.batch

    def run(a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> None:
        views = [batched_view(x, batch) for x in (a, b, d if c is None else c, d)]
        launch(*views, alpha, beta, numbers(spec, extra))

    return run


@functools.lru_cache(maxsize=256)
def tensor_kernel(spec: GemmSpec, tiling: tensor.TensorTiling, batched: tuple[bool, ...]) -> Kernel:
    """The kernel on arrays with three axes; see `tensor.make_kernel`."""
    epilogue = element_function(spec.steps, np.float32, batched)
    return Kernel(tensor.make_kernel(tiling, epilogue), Options(launch_bounds=(tensor.THREADS, 2)))


# -- many small products -----------------------------------------------------------------------------------------------


def _small(spec: GemmSpec, tiling: small.SmallTiling, d: Matrix, extra: tuple, stream: Any) -> Callable:
    batch, batched = d.batch, tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    launch = small_kernel(spec, tiling, batched)[tiling.blocks(batch), small.THREADS, stream]

    def run(a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> None:
        launch(*(x if len(x.shape) == 3 else x[None] for x in (a, b, d)), batch, alpha, numbers(spec, extra))

    return run


@functools.lru_cache(maxsize=256)
def small_kernel(spec: GemmSpec, tiling: small.SmallTiling, batched: tuple[bool, ...]) -> Kernel:
    """The kernel for sizes that are constants; see `small.make_kernel`."""
    epilogue = element_function(spec.steps, np.dtype(spec.accumulate).type, batched)
    return Kernel(small.make_kernel(tiling, epilogue), Options(launch_bounds=small.THREADS))


# -- the warpgroup main loop -------------------------------------------------------------------------------------------


def _warpgroup(spec: GemmSpec, a: Matrix, b: Matrix, c: Any, d: Matrix, extra: tuple, stream: Any) -> Callable:
    tiling = warpgroup.Tiling(
        kind=TENSOR_DTYPES[spec.a_dtype], a_turned=not a.along_rows, b_turned=bool(b.along_rows),
        a_batched=a.batch > 1, b_batched=b.batch > 1,
    )  # fmt: skip
    end = finish_for(spec, d, None if c is None else as_matrix(arrays.describe(c, "c")), extra)
    kernel = warpgroup_kernel(spec, tiling, end)
    rows, columns, batch, steps = d.rows, d.columns, d.batch, -(-a.columns // warpgroup.DEPTH)
    tiles = -(-rows // warpgroup.ROWS) * -(-columns // warpgroup.COLUMNS) * batch
    grid = min(driver.multiprocessors(driver.current_device()), tiles)
    launch = kernel[grid, warpgroup.THREADS, stream, tiling.shared_bytes]
    maps = (0,) * warpgroup.PAD_WORDS + _map(a, tiling.a_turned) + _map(b, tiling.b_turned)
    checked = False

    def run(a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> None:
        nonlocal checked
        d = batched_view(d, batch)
        c = d if c is None else batched_view(c, batch)
        values = (maps, rows, columns, steps, batch, alpha, beta, c, d, numbers(spec, extra))
        if not checked:
            _check_parameters(kernel.launcher(values).image)
            checked = True
        launch(*values)

    return run


def _check_parameters(image: Any) -> None:
    """The tensor maps must lie on multiples of 64 bytes; where parameters begin is up to the assembler."""
    (found,) = (kernel for kernel in elf.kernels(image.cubin) if kernel.symbol == image.symbol)
    if (found.parameter_base + 8 * warpgroup.PAD_WORDS) % 64:
        raise CompileError(
            f"Parameters of {image} begin at {found.parameter_base:#x}; tensor maps would not lie on multiples of 64 "
            f"bytes. This toolkit lays them out in another way than all before it.",
            spec=image,
        )


@functools.lru_cache(maxsize=256)
def warpgroup_kernel(spec: GemmSpec, tiling: warpgroup.Tiling, end: finish.Finish) -> Kernel:
    """The kernel on tensor maps; see `warpgroup.make_kernel`."""
    prepare, last = finish.make_prepare(end, spec.steps), finish.make_finish(end, spec.steps)
    function = warpgroup.make_kernel(tiling, prepare, last)
    return Kernel(function, Options(launch_bounds=warpgroup.THREADS, arch_specific=True))


def _map(x: Matrix, turned: bool) -> tuple[int, ...]:
    """Words of a tensor map, as signed numbers. `turned`: the axis that is not the inner dimension is contiguous."""
    from devkernels.matrix.tensor_map import encode

    inner, outer = (x.columns, x.rows) if x.along_rows else (x.rows, x.columns)
    apart = x.strides[0] if x.batch > 1 else x.pitch * outer
    return encode(
        x.pointer, x.dtype, x.itemsize, (inner, outer, x.batch), (x.pitch, apart),
        (64, warpgroup.DEPTH if turned else warpgroup.ROWS, 1),
    )  # fmt: skip


def _wide(x: Matrix, by_eights: bool) -> bool:
    """Whether eight elements of a row are one aligned access (or two, of float32)."""
    return by_eights and x.along_rows is True and x.dtype in STORED_BYTES and x.aligned(min(16, 8 * x.itemsize))


def wide_rows(d: Matrix) -> bool:
    """Whether eight elements of a row of the result are one aligned access, whichever eight."""
    return _wide(d, d.columns % 8 == 0)


def finish_for(spec: GemmSpec, d: Matrix, c: Matrix | None, extra: tuple) -> finish.Finish:
    """What the end of a tile depends on."""
    by_eights = d.columns % 8 == 0
    operands = []
    for step in () if takes_all(spec.steps) else operands_of(spec.steps):
        seen = arrays.describe(extra[step.operand], f"extra[{step.operand}]")
        if step.axes == "matrix":
            x = as_matrix(seen)
            operands.append(finish.Operand(seen.dtype, _wide(x, by_eights), len(seen.shape) == 3))
        else:
            dense = seen.dtype in STORED_BYTES and (seen.shape[0] == 1 or seen.strides[0] == seen.itemsize)
            aligned = seen.pointer % min(16, 8 * seen.itemsize) == 0
            operands.append(finish.Operand(seen.dtype, by_eights and dense and aligned))
    side = None if c is None else finish.Operand(c.dtype, _wide(c, by_eights), True)
    return finish.Finish(finish.Operand(d.dtype, _wide(d, by_eights), True), side, tuple(operands), by_eights)


# -- ahead of time -----------------------------------------------------------------------------------------------------


def _array(name: str, dtype: str, axes: int, layout: str = "A") -> Parameter:
    return Parameter(name, "array", dtype, axes, layout)


def image_sources(spec: GemmSpec) -> dict[str, tuple]:
    """Kernels for ``devkernels build``: on sm_90 the warpgroup loop for b in either order, elsewhere the portable one.

    For aligned matrices in C order without c; operands of ready steps have the dtype of a. Functions that take `extra`
    are not built ahead, since what they take is not known.
    """
    if takes_all(spec.steps):
        return {}
    operands = operands_of(spec.steps)
    here = target.current_target()
    sources = {}
    extra = tuple(
        _array(f"extra[{i}]", spec.a_dtype, 2 if step.axes == "matrix" else 1, "C") for i, step in enumerate(operands)
    )
    extra = Parameter("extra", "tuple", items=extra)
    number = [Parameter(n, "scalar", spec.accumulate) for n in ("alpha", "beta")]
    name = f"gemm_{spec.a_dtype}_{spec.b_dtype}_{spec.out_dtype}"
    if by_kind(spec, here).path == WARPGROUP:
        ends = tuple(finish.Operand(spec.a_dtype, True) for _ in operands)
        end = finish.Finish(finish.Operand(spec.out_dtype, True, True), None, ends, True)
        words = Parameter("maps", "tuple", items=(Parameter("", "scalar", "int64"),) * warpgroup.MAP_WORDS)
        lengths = [Parameter(n, "scalar", "int64") for n in ("rows", "columns", "steps", "batches")]
        matrices = [_array(n, spec.out_dtype, 3, "C") for n in ("c", "d")]
        for b_turned in (True, False):
            tiling = warpgroup.Tiling(kind=TENSOR_DTYPES[spec.a_dtype], b_turned=b_turned)
            signature = (words, *lengths, *number, *matrices, extra)
            notes = {"block": warpgroup.THREADS, "shared": tiling.shared_bytes}
            sources[f"{name}_b_{'rows' if b_turned else 'columns'}"] = (
                warpgroup_kernel(spec, tiling, end), signature, notes
            )  # fmt: skip
        return sources
    tiling = portable.PortableTiling(spec.accumulate, True, True, False)
    matrices = [_array(n, d, 3, "C") for n, d in (("a", spec.a_dtype), ("b", spec.b_dtype), ("c", spec.out_dtype),
                                                  ("d", spec.out_dtype))]  # fmt: skip
    kernel = portable_kernel(spec, tiling, None, (False,) * len(operands))
    return {name: (kernel, (*matrices, *number, extra), {"block": tiling.threads, "tile": tiling.tile})}
