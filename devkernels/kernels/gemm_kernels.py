"""The kernels of a product and their launches.

In: a `GemmSpec` and checked arrays. Out: a `Prepared` launch of ``(a, b, c, alpha, beta, extra, d)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from devkernels import target
from devkernels.compiler.kernel import Options
from devkernels.device.inline import device_function
from devkernels.kernels import arrays, gemm_aligned, gemm_warpgroup
from devkernels.kernels.gemm_route import (
    PORTABLE,
    SMALL,
    TENSOR,
    TENSOR_DTYPES,
    WARPGROUP,
    GemmSpec,
    Matrix,
    Route,
    as_matrix,
    by_shape,
    small_tiling,
)
from devkernels.kernels.gemm_tune import USUAL, Knobs
from devkernels.kernels.gemm_views import Prepared, numbers, three_axes, wide_rows
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch import driver
from devkernels.launch.jit import Kernel
from devkernels.matrix import packed, portable, small, staged, tensor
from devkernels.matrix.steps import element_function, function_of


def prepare(
    spec: GemmSpec, a: Any, b: Any, c: Any, d: Any, extra: tuple, stream: Any, kept: list, knobs: Knobs = USUAL,
    scratch: gemm_aligned.Scratch | None = None,
) -> Prepared | gemm_aligned.Copied:  # fmt: skip
    """Choose, compile (or find) and configure the kernel for checked arrays.

    `kept` takes memory of captured graphs, `scratch` has that of copied operands.
    """
    left, right, result, route = routed(spec, a, b, c, d)
    if route.plain is not None:

        def of_plain(a: Any, b: Any, c: Any, d: Any, extra: tuple) -> Prepared | gemm_aligned.Copied:
            return prepare(route.plain, a, b, c, d, extra, stream, kept, knobs, scratch)

        copies = gemm_aligned.converting(spec, route.plain)
        return gemm_aligned.Copied(copies, stream, kept, scratch, of_plain, " converted")
    if route.path == SMALL:
        tiling = small_tiling(spec, left, right, result, c is not None, target.current_target())
        make = _packed if isinstance(tiling, packed.PackedTiling) else _small
        return make(spec, tiling, result, extra, stream)
    if route.path == TENSOR:
        return _tensor(spec, left, right, c, result, extra, stream)
    if route.path == PORTABLE:
        return _portable(spec, left, right, c, result, extra, stream)
    main = gemm_warpgroup.prepare if route.path == WARPGROUP else _staged

    def of_arrays(a: Any, b: Any, c: Any, d: Any, extra: tuple) -> Prepared:
        left, right = (as_matrix(arrays.describe(x, "array")) for x in (a, b))
        return main(spec, left, right, c, as_matrix(arrays.describe(d, "out")), extra, stream, knobs)

    if any(route.copied):
        copies = gemm_aligned.aligning(spec, route.copied)
        return gemm_aligned.Copied(copies, stream, kept, scratch, of_arrays, " aligned")
    return main(spec, left, right, c, result, extra, stream, knobs)


def routed(spec: GemmSpec, a: Any, b: Any, c: Any, d: Any) -> tuple[Matrix, Matrix, Matrix, Route]:
    """Axes of a, b and d, and the main loop that they take."""
    left, right, result = (as_matrix(arrays.describe(x, n)) for x, n in ((a, "a"), (b, "b"), (d, "out")))
    c_dtype = None if c is None else arrays.describe(c, "c").dtype
    return left, right, result, by_shape(spec, target.current_target(), left, right, result, c_dtype)


# -- the portable main loop --------------------------------------------------------------------------------------------


def _portable(spec: GemmSpec, a: Matrix, b: Matrix, c: Any, d: Matrix, extra: tuple, stream: Any) -> Prepared:
    tile, depth = portable.default_tile()
    tiling = portable.PortableTiling(
        spec.accumulate, a.along_rows is not False, b.along_rows is not False, c is not None, tile, depth
    )
    batched = tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    kernel = portable_kernel(spec, tiling, None if c is None else arrays.describe(c, "c").dtype, batched)
    grid = (-(-d.columns // tile) * d.batch, -(-d.rows // tile))
    return Prepared(kernel[grid, tiling.threads, stream], three_axes(spec, d.batch))


def _converter(accumulate: str) -> Callable:
    kind = np.dtype(accumulate).type
    return device_function(lambda x: kind(x))


def _rounding(prologue: Callable | None, dtype: str) -> Callable | None:
    """The prologue with its result rounded to float16 where the operand is that, as on the way to tensor cores."""
    if prologue is None or dtype != "float16":
        return prologue
    function, half = device_function(prologue), np.float16
    return device_function(lambda x, row, column: half(function(x, row, column)))


def _stored(spec: GemmSpec) -> Callable:
    """Device function that makes an element of the result: integers of 8 bits are rounded and clamped."""
    if spec.out_dtype == "int8" and spec.accumulate.startswith("float"):
        clamp = function_of("int8", np.dtype(spec.accumulate).type)
        return device_function(lambda x: np.int8(clamp(x)))
    return device_function(lambda x: x)


@lazy_kernel
def portable_kernel(
    spec: GemmSpec, tiling: portable.PortableTiling, c_dtype: str | None, batched: tuple[bool, ...]
) -> Kernel:
    """The kernel on arrays with three axes; see `portable.make_kernel`."""
    epilogue = element_function(spec.steps, np.dtype(spec.accumulate).type, batched)
    prologues = _rounding(spec.prologue_a, spec.a_dtype), _rounding(spec.prologue_b, spec.b_dtype)
    function = portable.make_kernel(tiling, _converter(spec.accumulate), _stored(spec), *prologues, epilogue)
    return Kernel(function, Options(launch_bounds=tiling.threads))


# -- slices copied ahead: float32, float64, complex --------------------------------------------------------------------


def _staged(
    spec: GemmSpec, a: Matrix, b: Matrix, c: Any, d: Matrix, extra: tuple, stream: Any, knobs: Knobs
) -> Prepared:
    tiling = staged_tiling(spec, a, b, d, c is not None, driver.multiprocessors(driver.current_device()))
    tiling = knobs.of(tiling)
    batched = tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    (rows, columns), batch = tiling.tile, d.batch
    grid = (-(-d.columns // columns) * batch, -(-d.rows // rows))
    launch = staged_kernel(spec, tiling, batched)[grid, tiling.threads, stream, tiling.shared_bytes]
    return Prepared(launch, three_axes(spec, batch))


def staged_tiling(spec: GemmSpec, a: Matrix, b: Matrix, d: Matrix, has_c: bool, blocks: int) -> staged.StagedTiling:
    """How slices are cut: small tiles where large ones would leave a quarter of `blocks` without work."""

    def operand(x: Matrix, along: bool) -> staged.Operand:
        unit = x.along_rows is not None
        return staged.Operand(along, unit, unit and x.aligned())

    left, right = operand(a, a.along_rows is not False), operand(b, b.along_rows is False)
    large = staged.StagedTiling(spec.a_dtype, left, right, spec.out_dtype, has_c, split=spec.tf32 == 3)
    rows, columns = large.tile
    few = 4 * -(-d.rows // rows) * -(-d.columns // columns) * d.batch < 3 * blocks
    run = large.run * d.itemsize
    wide = d.along_rows is True and d.columns % large.run == 0 and run % 4 == 0 and d.aligned(min(16, run))
    tall = target.current_target().major >= 9
    return replace(large, small=few, d_wide=wide, tall=tall)


@lazy_kernel
def staged_kernel(spec: GemmSpec, tiling: staged.StagedTiling, batched: tuple[bool, ...]) -> Kernel:
    """The kernel on arrays with three axes; see `staged.make_kernel`."""
    epilogue = element_function(spec.steps, np.dtype(spec.accumulate).type, batched)
    return Kernel(staged.make_kernel(tiling, epilogue), Options(launch_bounds=tiling.launch_bounds))


# -- tensor cores, any alignment ---------------------------------------------------------------------------------------


def _tensor(spec: GemmSpec, a: Matrix, b: Matrix, c: Any, d: Matrix, extra: tuple, stream: Any) -> Prepared:
    tiling = tensor_tiling(spec, a, b, d, c is not None)
    batched = tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    grid = (-(-d.columns // tensor.TILE) * d.batch, -(-d.rows // tensor.TILE))
    launch = tensor_kernel(spec, tiling, batched)[grid, tensor.THREADS, stream]
    return Prepared(launch, three_axes(spec, d.batch))


def tensor_tiling(spec: GemmSpec, a: Matrix, b: Matrix, d: Matrix, has_c: bool) -> tensor.TensorTiling:
    """How the operands lie."""
    return tensor.TensorTiling(
        TENSOR_DTYPES[spec.a_dtype], spec.out_dtype, a.along_rows is not False, b.along_rows is not False,
        wide_rows(a), wide_rows(b), has_c, wide_rows(d),
    )  # fmt: skip


@lazy_kernel
def tensor_kernel(spec: GemmSpec, tiling: tensor.TensorTiling, batched: tuple[bool, ...]) -> Kernel:
    """The kernel on arrays with three axes; see `tensor.make_kernel`."""
    epilogue = element_function(spec.steps, np.float32, batched)
    return Kernel(tensor.make_kernel(tiling, epilogue), Options(launch_bounds=(tensor.THREADS, 2)))


# -- many small products -----------------------------------------------------------------------------------------------


def _small(spec: GemmSpec, tiling: small.SmallTiling, d: Matrix, extra: tuple, stream: Any) -> Prepared:
    batch, batched = d.batch, tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    launch = small_kernel(spec, tiling, batched)[tiling.blocks(batch), small.THREADS, stream]

    def arrange(a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> tuple:
        return (*(x if len(x.shape) == 3 else x[None] for x in (a, b, d)), batch, alpha, numbers(spec, extra))

    return Prepared(launch, arrange)


def _packed(spec: GemmSpec, tiling: packed.PackedTiling, d: Matrix, extra: tuple, stream: Any) -> Prepared:
    batch, batched = d.batch, tuple(len(getattr(x, "shape", ())) == 3 for x in extra)
    kernel = packed_kernel(spec, tiling, batched)
    launch = kernel[-(-batch // tiling.count), tiling.threads, stream, tiling.shared_bytes]
    return Prepared(launch, three_axes(spec, batch))


@lazy_kernel
def packed_kernel(spec: GemmSpec, tiling: packed.PackedTiling, batched: tuple[bool, ...]) -> Kernel:
    """The kernel for sizes that are constants; see `packed.make_kernel`."""
    epilogue = element_function(spec.steps, np.dtype(spec.accumulate).type, batched)
    return Kernel(packed.make_kernel(tiling, epilogue), Options(launch_bounds=tiling.threads))


@lazy_kernel
def small_kernel(spec: GemmSpec, tiling: small.SmallTiling, batched: tuple[bool, ...]) -> Kernel:
    """The kernel for sizes that are constants; see `small.make_kernel`."""
    epilogue = element_function(spec.steps, np.dtype(spec.accumulate).type, batched)
    return Kernel(small.make_kernel(tiling, epilogue), Options(launch_bounds=small.THREADS))
