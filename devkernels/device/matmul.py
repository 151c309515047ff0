"""`devkernels.matmul(...)`: one block-wide matrix product as an object that kernels call.

In: keywords (checked in devkernels/matmul_spec.py, completed in devkernels/matmul_traits.py). Out: a `DeviceMatmul`
(device/matmul_object.py). The kernel's text is the same on a GPU, ahead of time and in the simulator.
"""

from __future__ import annotations

from devkernels import matmul_traits
from devkernels.device.matmul_object import DeviceMatmul
from devkernels.errors import SpecError
from devkernels.matmul_spec import make_matmul_spec

__all__ = ["DeviceMatmul", "matmul"]


def matmul(
    *,
    size: tuple[int, int, int],
    precision: object,
    data_type: str = "real",
    arrangement: object = None,
    transpose_mode: object = None,
    leading_dimension: object = None,
    alignment: object = None,
    block_dim: object = None,
    block_size: object = None,
    static_block_dim: bool = False,
    layout: str = "plain",
    function: str = "MM",
    execution: str = "Block",
    with_pipeline: bool = False,
    enable_input_streaming: bool = False,
    sm: object = None,
    compiler: str = "numba",
) -> DeviceMatmul:
    """Make a matrix product on shared memory that kernels call: ``c = alpha * op(a) @ op(b) + beta * c``.

    Parameters
    ----------
    size : tuple of int
        (m, n, k): op(a) is m x k, op(b) is k x n, c is m x n.
    precision : dtype, or three of them
        Of a, b and c: numpy.float16, float32, float64, integers of 8 to 64 bits, or, of a and b in pipelines,
        "bfloat16". Three may differ where c is at
        least as wide (float16, float16 -> float32); integers need a c four times as wide (int8, int8 -> int32).
    data_type : {'real', 'complex'}
        Complex products are of float32 or float64, that is complex64 and complex128.
    arrangement : str or three of them, optional
        'row_major' or 'col_major', of a, b and c. Left out, together with transpose_mode: all 'row_major'.
    transpose_mode : str or two of them, optional
        'non_transposed', 'transposed' or 'conj_transposed', of a and b; all matrices are then in column order.
    leading_dimension : three ints or 'suggested', optional
        Elements between consecutive rows (row order) or columns. Left out: no gaps. 'suggested': padded against bank
        conflicts.
    alignment : three ints, optional
        Bytes, at most 16, to whose multiples the kernel promises to align a, b and c. Left out: one element. 16 lets
        the library read whole words.
    block_dim, block_size : int, tuple of int or 'suggested', optional
        Threads of a block; left out, or 'suggested', what the library suggests.
    static_block_dim : bool
        Promise that blocks have exactly these threads, which saves tests.
    layout : {'plain', 'suggested'}
        How a and b lie in shared memory: in rows or columns, or as the library suggests (swizzled, such that reads meet
        no bank twice). Suggested layouts go with ``mm(a, b, accumulator)`` only; ``load_a`` and ``load_b`` fill them.
        The library is called for them, and such calls are not inlined: the accumulator then waits in memory. For whole
        matrices, pipelines are the fast way.
    function : {'MM'}
        Only matrix products.
    execution : {'Block'}
        All threads of a block share the product.
    with_pipeline : bool
        Multiply tiles of two whole matrices in global memory, which are copied ahead into a ring of stages in shared
        memory: see ``mm.suggest_device_pipeline`` below. On sm_90, float16 and bfloat16 into float32 and int8 into
        int32 go through warpgroup products and tensor copies if the size allows it (m of 64, 128, 192 or 256, n a
        multiple of 8 up to 256, of 16 for int8, k a multiple of 128 bytes), and everything else through cuBLASDx's
        products and asynchronous copies of the threads; ``pipeline.describe()`` says which, and why.
    enable_input_streaming : bool
        Accepted for the sake of nvmath.device: pipelines never change elements on the way.
    sm : Target, str or int, optional
        Architecture, as ``"sm_90"`` or 90; left out: the current device, or the one that is compiled for.
    compiler : {'numba'}
        Only Numba.

    Returns
    -------
    DeviceMatmul
        With the traits of cuBLASDx by name (`a_dim`, `a_size`, `leading_dimension`, `block_dim`,
        `max_threads_per_block`, `get_shared_storage_size()` ...), and these calls inside a kernel. All threads of a
        block take part. a, b and c are contiguous arrays in shared memory of `a_size`, `b_size`, `c_size` elements of
        `a_value_type` ... Synchronise (``cuda.syncthreads()``) before a call, and again before its result is read.

        ``mm(alpha, a, b, beta, c)``
            c in shared memory. With beta = 0, c is not read.
        ``mm(alpha, a, lda, b, ldb, beta, c, ldc)``
            The same with leading dimensions that are known only in the kernel.
        ``mm(a, b, accumulator)``
            accumulator += op(a) @ op(b), where ``accumulator = cuda.local.array(mm.accumulator_size,
            mm.c_value_type)`` holds a share of c in registers: start with ``mm.clear(accumulator)`` or
            ``mm.load_accumulator(x, row, column, accumulator)``, end with ``mm.store_accumulator(accumulator, y, row,
            column)``, or go over the elements: ``mm.holds(i)`` says whether element i is one of c and
            ``mm.position(i)`` which. How elements are dealt to threads is unspecified, and differs between homes.
        ``mm.suggest_device_pipeline(depth, a, b)``
            On the host, of a product made with_pipeline, whose only form this is. The result is an argument of kernels,
            in which ``pipeline.get_tile(smem, i, j).execute(accumulator)`` adds tile (i, j) of a @ b to an accumulator.
        ``mm.load_a(x, row, column, a)``, ``load_b``, ``load_c``, ``mm.store_c(c, y, row, column)`` ...
            Move the tile of a 2-D global array that begins at (row, column) to shared memory and back, in the order
            that the product wants, whatever the order of the array. Outside the array a tile loads as zero and is not
            stored. 16 bytes at a time where array and tile are contiguous along the same axis and aligned so. The same
            is ``devkernels.load_tile(mm.a_tile, x, row, column, a)``, which has an asynchronous sister.

    Raises
    ------
    SpecError
        An argument is invalid alone or with the others, or the library has no such product.
    ResourceError
        a and b do not fit the shared memory of a block, or the block has too many threads.

    Notes
    -----
    Products are cuBLASDx's (NVIDIA, through libmathdx); in the simulator they are numpy's, added up in float32 or
    wider. Where libmathdx is not installed (the simulator needs none), suggested blocks and leading dimensions are
    other, valid ones.
    """
    if compiler != "numba":
        raise SpecError(f"compiler={compiler!r} is not supported; 'numba' is.")
    if function != "MM":
        raise SpecError(f"function={function!r} is not supported; 'MM' is.")
    if execution != "Block":
        raise SpecError(f"execution={execution!r} is not supported; 'Block' is.")
    spec = make_matmul_spec(
        size=size,
        precision=precision,
        data_type=data_type,
        arrangement=arrangement,
        transpose_mode=transpose_mode,
        leading_dimension=leading_dimension,
        alignment=alignment,
        block_dim=block_dim,
        block_size=block_size,
        static_block_dim=static_block_dim,
        layout=layout,
        with_pipeline=with_pipeline,
        sm=sm,
    )
    return DeviceMatmul(matmul_traits.complete(spec, leading_dimension))
