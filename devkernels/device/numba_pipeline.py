"""Typing and lowering of device pipelines in Numba's CUDA target.

In: a kernel's argument, the address of a `DevicePipeline`'s storage, whose Numba type is made of its `PipelineSpec`.
Out: the main loops: by warpgroups (devkernels/matrix/tile_product.py), or by cuBLASDx's products with copies by the
threads. Imported only when a kernel is compiled for a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.cuda.extending import core_models, intrinsic, overload_attribute, overload_method, register_model

from devkernels.device import _matmul_calls as calls
from devkernels.device import tiles
from devkernels.device.inline import device_function
from devkernels.device.numba_matmul import _code_finder
from devkernels.device.numba_objects import INLINE, refresh
from devkernels.lazy import cuda
from devkernels.pipeline_spec import WARPGROUP, PipelineSpec

_WORDS = ((32, 33, 34, 38, 40), (35, 36, 37, 40, 39))  # of a and b: address, two strides, rows, columns


class DevicePipelineType(types.Type):
    """Numba type of the pipelines of one spec; a value is the address of a pipeline's storage."""

    def __init__(self, spec: PipelineSpec):
        self.pipeline = spec
        super().__init__(spec.told())


class TilePipelineType(types.Type):
    """Numba type of one tile of such a pipeline."""

    def __init__(self, spec: PipelineSpec):
        self.pipeline = spec
        super().__init__("Tile" + spec.told())


@register_model(DevicePipelineType)
class _PipelineModel(core_models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.IntType(64))


@register_model(TilePipelineType)
class _TileModel(core_models.StructModel):
    def __init__(self, manager, kind):
        members = [("storage", types.uint64), ("buffer", types.uint32), ("row", types.int32), ("column", types.int32)]
        super().__init__(manager, kind, members)


def _register_trait(name: str, value: Callable) -> None:
    @overload_attribute(DevicePipelineType, name, inline="always")
    def attribute(pipeline):
        constant = value(pipeline.pipeline)
        return lambda pipeline: constant


_register_trait("pipeline_depth", lambda spec: spec.depth)
_register_trait("buffer_size", lambda spec: spec.buffer_bytes)
_register_trait("buffer_alignment", lambda spec: 16)


@intrinsic
def _make_tile(typingctx, pipeline, smem, row, column):
    kind = TilePipelineType(pipeline.pipeline)

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        if data.type.addrspace != 3:
            data = builder.addrspacecast(data, ir.PointerType(data.type.pointee, 3))
        made = cgutils.create_struct_proxy(kind)(context, builder)
        made.storage, made.buffer = arguments[0], builder.ptrtoint(data, ir.IntType(32))
        made.row, made.column = (context.cast(builder, v, t, types.int32)
                                 for v, t in zip(arguments[2:], signature.args[2:], strict=True))  # fmt: skip
        return made._getvalue()

    return kind(pipeline, smem, row, column), codegen


@intrinsic
def _parts(typingctx, tile):
    kind = types.Tuple((types.uint64, types.uint32, types.int32, types.int32))

    def codegen(context, builder, signature, arguments):
        own = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
        return context.make_tuple(builder, kind, (own.storage, own.buffer, own.row, own.column))

    return kind(tile), codegen


@overload_method(DevicePipelineType, "get_tile", jit_options=INLINE)
def _get_tile(pipeline, smem, row, column):
    if not isinstance(smem, types.Array):
        raise TypingError(f"get_tile takes the block's shared memory as an array, not {smem}.")
    if not isinstance(row, types.Integer) or not isinstance(column, types.Integer):
        raise TypingError(f"get_tile takes the numbers of a tile from the top and from the left, not {row}, {column}.")
    return lambda pipeline, smem, row, column: _make_tile(pipeline, smem, row, column)


@overload_method(TilePipelineType, "execute", jit_options=INLINE)
def _execute(tile, accumulator):
    spec = tile.pipeline
    wanted, count = spec.mm.value_types[2], _sums(spec)
    if not isinstance(accumulator, types.Array) or str(accumulator.dtype) != wanted:
        raise TypingError(f"execute takes cuda.local.array(mm.accumulator_size, mm.c_value_type), {count} numbers of "
                          f"{wanted}, not {accumulator}.")  # fmt: skip
    run = _make_execute(spec)

    def execute(tile, accumulator):
        storage, buffer, row, column = _parts(tile)
        run(storage, buffer, row, column, accumulator)

    return execute


def _sums(spec: PipelineSpec) -> int:
    from devkernels import matmul_traits

    return matmul_traits.fragment_size(spec.mm, False)


@functools.cache
def _make_execute(spec: PipelineSpec) -> Callable:
    if spec.engine == WARPGROUP:
        from devkernels.matrix import tile_product

        dtype = tile_product.COPIED[spec.mm.precision[0]]
        sizes = [spec.stage_bytes[i] // spec.mm.item_bytes[0] for i in range(2)]
        return tile_product.make_execute(spec, _make_matrix(dtype, dtype), _make_shared(dtype, dtype, sizes))
    return _with_library(spec)


def _with_library(spec: PipelineSpec) -> Callable:
    """Slices copied ahead by the threads, multiplied by cuBLASDx."""
    from devkernels.device.matmul_object import DeviceMatmul

    mm = DeviceMatmul(spec.mm)
    (m, n, k), (a_bytes, b_bytes) = mm.size, spec.stage_bytes
    accumulate = calls.make_accumulate(_code_finder(mm, "fragment"))
    load_a, load_b = (tiles.make_load_async(mm.tile_of(which), None) for which in range(2))
    matrix = _make_matrix(*spec.mm.value_types[:2])
    tile = _make_shared(*spec.mm.value_types[:2], mm.spec.sizes()[:2])
    u32, DEPTH, AHEAD = np.uint32, np.uint32(spec.depth), np.uint32(spec.depth - 1)
    STAGE, A_BYTES, zero, one = u32(a_bytes + b_bytes), u32(a_bytes), u32(0), u32(1)
    wait, drain = tiles.make_wait(2 * (spec.depth - 2)), tiles.make_wait(0)

    def fill(x, y, stage, row, column, inner):
        load_a(x, row, inner, tile(stage, 0))
        load_b(y, inner, column, tile(stage + A_BYTES, 1))

    fill = device_function(fill)

    def execute(storage, buffer, row, column, accumulator):
        x, y = matrix(storage, 0), matrix(storage, 1)
        row0, column0 = np.int64(row) * m, np.int64(column) * n
        cuda.syncthreads()
        for s in range(AHEAD):
            fill(x, y, buffer + u32(s) * STAGE, row0, column0, np.int64(s) * k)
        stage, free = zero, AHEAD
        for k0 in range(0, x.shape[1], k):
            wait()
            cuda.syncthreads()
            fill(x, y, buffer + free * STAGE, row0, column0, k0 + np.int64(AHEAD) * k)
            accumulate(tile(buffer + stage * STAGE, 0), tile(buffer + stage * STAGE + A_BYTES, 1), accumulator)
            free = stage
            stage += one
            if stage == DEPTH:
                stage = zero
        drain()
        cuda.syncthreads()

    return device_function(execute)


def _numba_dtype(name: str) -> types.Type:
    return calls._value_type(name)


@functools.cache
def _make_matrix(*dtypes: str) -> Callable:
    """Return ``matrix(storage, which)``: the array a (0) or b (1), with the strides that it has."""

    @intrinsic
    def matrix(typingctx, storage, which):
        if not isinstance(which, types.IntegerLiteral):
            return None
        kind = types.Array(_numba_dtype(dtypes[which.literal_value]), 2, "A")
        words = _WORDS[which.literal_value]

        def codegen(context, builder, signature, arguments):
            long, found = ir.IntType(64), []
            for word in words:
                place = builder.add(arguments[0], ir.Constant(long, 8 * word))
                found.append(builder.load(builder.inttoptr(place, ir.PointerType(long, 1))))
            address, *rest = found
            item = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            data = builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer())
            made = context.make_array(kind)(context, builder)
            shape, strides = (cgutils.pack_array(builder, values) for values in (rest[2:], rest[:2]))
            context.populate_array(made, data=data, shape=shape, strides=strides,
                                   itemsize=ir.Constant(long, item), meminfo=None)  # fmt: skip
            return made._getvalue()

        return kind(types.uint64, which), codegen

    return matrix


def _make_shared(a_dtype: str, b_dtype: str, sizes: tuple[int, int]) -> Callable:
    """Return ``tile(address, which)``: a flat array of a slice of a (0) or b (1) in shared memory."""

    @intrinsic
    def tile(typingctx, address, which):
        if not isinstance(which, types.IntegerLiteral):
            return None
        number = which.literal_value
        kind = types.Array(_numba_dtype((a_dtype, b_dtype)[number]), 1, "C")

        def codegen(context, builder, signature, arguments):
            long, data_type = ir.IntType(64), context.get_data_type(kind.dtype)
            item = ir.Constant(long, context.get_abi_sizeof(data_type))
            place = context.cast(builder, arguments[0], signature.args[0], types.uint32)
            shared = builder.inttoptr(place, ir.PointerType(data_type, 3))
            made = context.make_array(kind)(context, builder)
            shape = cgutils.pack_array(builder, [ir.Constant(long, sizes[number])])
            context.populate_array(
                made, data=builder.addrspacecast(shared, data_type.as_pointer(), "generic"), shape=shape,
                strides=cgutils.pack_array(builder, [item]), itemsize=item, meminfo=None,
            )  # fmt: skip
            return made._getvalue()

        return kind(address, which), codegen

    return tile


refresh()
