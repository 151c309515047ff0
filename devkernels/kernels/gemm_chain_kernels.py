"""The kernels of two products one after the other, and how they are launched.

In: a chain's two products and what is known of its operands. Out: tilings, kernels, configured launches; of
devkernels/matrix/chain.py (tensor cores) and devkernels/matrix/chain_groups.py (warpgroups).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from devkernels import target
from devkernels.compiler.kernel import Options
from devkernels.kernels.gemm_route import GemmSpec, Matrix
from devkernels.kernels.gemm_views import batched_view, numbers, wide_rows
from devkernels.kernels.gemm_warpgroup import check_maps, tensor_map_of
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch.jit import Kernel
from devkernels.matrix import chain, chain_groups, tensor, warpgroup
from devkernels.matrix.steps import Step, element_function


def tiling_of(first: GemmSpec, second: GemmSpec, a: Matrix, b: Matrix, c: Matrix, d: Matrix) -> chain.ChainTiling:
    """How tensor cores do it where operands lie so."""
    matrices = (a, b, c)
    return chain.ChainTiling(
        first.a_dtype, second.out_dtype, b.columns,
        tuple(x.along_rows is not False for x in matrices), tuple(map(wide_rows, matrices)), wide_rows(d),
    )  # fmt: skip


def groups_of(
    first: GemmSpec, second: GemmSpec, a: Matrix, b: Matrix, c: Matrix, d: Matrix
) -> chain_groups.GroupChain | None:
    """How warpgroups do it; None where they cannot, or tensor copies cannot read the operands."""
    here = target.current_target()
    fitting = all(x.along_rows is not None and x.aligned() and x.pitch > 0 and x.strides[0] >= 0 for x in (a, b, c))
    if here.major != 9 or not fitting or second.out_dtype not in ("float16", "bfloat16", "float32"):
        return None
    if max(a.rows, a.columns, b.columns, c.columns) > 2**31 - 512 or d.batch > 65535:
        return None
    pair = 2 * d.itemsize
    return chain_groups.GroupChain(
        first.a_dtype, second.out_dtype, b.columns,
        (not a.along_rows, bool(b.along_rows), bool(c.along_rows)), tuple(x.batch > 1 for x in (a, b, c)),
        chain_groups.stages_for(b.columns, here.max_shared_bytes),
        d.along_rows is True and d.columns % 2 == 0 and d.aligned(pair),
    )  # fmt: skip


def configured(
    specs: tuple[GemmSpec, GemmSpec], kernel: Kernel, t: chain_groups.GroupChain, matrices: tuple[Matrix, ...],
    alpha: float, d: Any, first: tuple, second: tuple, stream: Any,
) -> tuple[Any, tuple]:  # fmt: skip
    """The launch of the kernel by warpgroups, and its arguments."""
    a, b, c, result = matrices
    maps = (0,) * warpgroup.PAD_WORDS
    for x, turned in zip((a, b, c), t.turned, strict=True):
        maps += tensor_map_of(x, turned, chain_groups.DEPTH, chain_groups.ROWS)
    values = (
        maps, result.rows, result.columns, -(-a.columns // chain_groups.DEPTH), np.float32(alpha),
        batched_view(d, result.batch), numbers(specs[0], first), numbers(specs[1], second),
    )  # fmt: skip
    check_maps(kernel, values)
    grid = (-(-result.rows // chain_groups.ROWS), result.batch)
    return kernel[grid, chain_groups.THREADS, stream, t.shared_bytes], values


@lazy_kernel
def chain_group_kernel(
    first_steps: tuple[Step, ...], second_steps: tuple[Step, ...], tiling: chain_groups.GroupChain, first: tuple,
    second: tuple,
) -> Kernel:  # fmt: skip
    """The same by warpgroups; see `chain_groups.make_kernel`."""
    ends = element_function(first_steps, np.float32, first), element_function(second_steps, np.float32, second)
    options = Options(launch_bounds=chain_groups.THREADS, arch_specific=True)
    return Kernel(chain_groups.make_kernel(tiling, *ends), options)


@lazy_kernel
def chain_kernel(
    first_steps: tuple[Step, ...], second_steps: tuple[Step, ...], tiling: chain.ChainTiling, first: tuple,
    second: tuple,
) -> Kernel:  # fmt: skip
    """The one kernel of two products with these epilogues; see `chain.make_kernel`."""
    ends = element_function(first_steps, np.float32, first), element_function(second_steps, np.float32, second)
    return Kernel(chain.make_kernel(tiling, *ends), Options(launch_bounds=tensor.THREADS))
