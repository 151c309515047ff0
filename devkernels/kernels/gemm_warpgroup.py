"""The warpgroup kernel of a product and its launches: tensor maps, and what the end of a tile depends on.

In: a `GemmSpec` and what is known of checked arrays. Out: a `Prepared` launch, for a and b where they are.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from devkernels.compiler import elf
from devkernels.compiler.kernel import Options
from devkernels.errors import CompileError
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import STORED_BYTES, GemmSpec, Matrix, as_matrix
from devkernels.kernels.gemm_tune import USUAL, Knobs
from devkernels.kernels.gemm_views import Prepared, batched_view, numbers, wide
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch import driver
from devkernels.launch.jit import Kernel
from devkernels.matrix import finish, warpgroup
from devkernels.matrix.steps import operands_of, takes_all


def prepare(
    spec: GemmSpec, a: Matrix, b: Matrix, c: Any, d: Matrix, extra: tuple, stream: Any, knobs: Knobs = USUAL
) -> Prepared:
    """Configure the kernel for checked arrays; see `gemm_kernels.prepare`."""
    tiling = tiling_for(spec, a, b, c is not None)
    blocks = driver.multiprocessors(driver.current_device())
    tiling = knobs.of(replace(tiling, **dict(zip(("rows", "columns"), tile_for(d, blocks), strict=True))))
    end = finish_for(spec, d, None if c is None else as_matrix(arrays.describe(c, "c")), extra)
    kernel = warpgroup_kernel(spec, tiling, end)
    rows, columns, batch, steps = d.rows, d.columns, d.batch, -(-a.columns // tiling.depth)
    tiles = -(-rows // tiling.rows) * -(-columns // tiling.columns) * batch
    grid = min(blocks, tiles)
    launch = kernel[grid, warpgroup.THREADS, stream, tiling.shared_bytes]
    maps = (0,) * warpgroup.PAD_WORDS + (
        *tensor_map_of(a, tiling.a_turned, tiling.depth, tiling.rows),
        *tensor_map_of(b, tiling.b_turned, tiling.depth, tiling.columns),
    )  # fmt: skip

    def arrange(a: Any, b: Any, c: Any, alpha: Any, beta: Any, extra: tuple, d: Any) -> tuple:
        d = batched_view(d, batch)
        c = d if c is None else batched_view(c, batch)
        return (maps, rows, columns, steps, batch, alpha, beta, c, d, numbers(spec, extra))

    return Prepared(launch, arrange, lambda values: check_maps(kernel, values))


def tiling_for(spec: GemmSpec, a: Matrix, b: Matrix, has_c: bool) -> warpgroup.Tiling:
    """How the work is cut, but for the size of tiles."""
    return warpgroup.Tiling(
        kind=spec.kind, a_turned=not a.along_rows, b_turned=bool(b.along_rows),
        a_batched=a.batch > 1, b_batched=b.batch > 1, to_float=spec.kind == "s8" and not spec.whole,
        stages=warpgroup.Tiling.stages_for(spec.steps, has_c),
    )  # fmt: skip


# Tiles, and the time of one beside a tile of 128 x 128: what is loaded for each product grows as tiles get smaller.
TILES = {(128, 128): 1.0, (64, 128): 0.6, (64, 64): 0.46}


def tile_for(d: Matrix, blocks: int) -> tuple[int, int]:
    """Rows and columns of the tiles with which all blocks are done first."""

    def cost(tile: tuple[int, int]) -> float:
        tiles = -(-d.rows // tile[0]) * -(-d.columns // tile[1]) * d.batch
        return -(-tiles // blocks) * TILES[tile]

    return min(TILES, key=cost)


_CHECKED: weakref.WeakSet = weakref.WeakSet()


def check_maps(kernel: Kernel, values: tuple) -> None:
    """Raise if the tensor maps among a kernel's arguments would not lie as they must; looked at once."""
    if kernel not in _CHECKED:  # where parameters begin does not depend on what they are
        _check_parameters(kernel.launcher(values).image)
        _CHECKED.add(kernel)


def _check_parameters(image: Any) -> None:
    """The tensor maps must lie on multiples of 64 bytes; where parameters begin is up to the assembler."""
    (found,) = (kernel for kernel in elf.kernels(image.cubin) if kernel.symbol == image.symbol)
    if (found.parameter_base + 8 * warpgroup.PAD_WORDS) % 64:
        raise CompileError(
            f"Parameters of {image} begin at {found.parameter_base:#x}; tensor maps would not lie on multiples of 64 "
            f"bytes. This toolkit lays them out in another way than all before it.",
            spec=image,
        )


@lazy_kernel
def warpgroup_kernel(spec: GemmSpec, tiling: warpgroup.Tiling, end: finish.Finish) -> Kernel:
    """The kernel on tensor maps; see `warpgroup.make_kernel`."""
    ahead, last = finish.make_prepare(end, spec.steps), finish.make_finish(end, spec.steps)
    function = warpgroup.make_kernel(tiling, ahead, last, end.spread)
    return Kernel(function, Options(launch_bounds=warpgroup.THREADS, arch_specific=True))


def tensor_map_of(x: Matrix, turned: bool, depth: int, lines: int) -> tuple[int, ...]:
    """Words of a tensor map, as signed numbers. `turned`: the axis that is not the inner dimension is contiguous."""
    from devkernels.matrix.tensor_map import encode

    inner, outer = (x.columns, x.rows) if x.along_rows else (x.rows, x.columns)
    apart = x.strides[0] if x.batch > 1 else x.pitch * outer
    return encode(
        x.pointer, x.dtype, x.itemsize, (inner, outer, x.batch), (x.pitch, apart),
        (depth, depth if turned else lines, 1),
    )  # fmt: skip


def finish_for(spec: GemmSpec, d: Matrix, c: Matrix | None, extra: tuple) -> finish.Finish:
    """What the end of a tile depends on."""
    if spec.whole:  # the bits of whole numbers pass as those of float32
        d = d._replace(dtype="float32")
    by_eights = d.columns % 8 == 0
    operands = []
    for step in () if takes_all(spec.steps) else operands_of(spec.steps):
        seen = arrays.describe(extra[step.operand], f"extra[{step.operand}]")
        if step.axes == "matrix":
            x = as_matrix(seen)
            operands.append(finish.Operand(seen.dtype, wide(x, by_eights), len(seen.shape) == 3))
        else:
            dense = seen.dtype in STORED_BYTES and (seen.shape[0] == 1 or seen.strides[0] == seen.itemsize)
            aligned = seen.pointer % min(16, 8 * seen.itemsize) == 0
            operands.append(finish.Operand(seen.dtype, by_eights and dense and aligned))
    side = None if c is None else finish.Operand(c.dtype, wide(c, by_eights), True)
    return finish.Finish(
        finish.Operand(d.dtype, wide(d, by_eights), True), side, tuple(operands), by_eights, spec.whole
    )
