"""Reading and writing 32 elements of an array of any strides and dtype, one by one, from and to float32 registers.

In: what `devkernels.matrix.finish` knows of an array that allows no 16-byte accesses. Out: intrinsics. Imported only
where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import dtype_name, i32, i64, signed, store_one, stored_type, to_float
from devkernels.matrix.memory_sizes import Spread
from devkernels.matrix.ptx import _float_pointer


def _matrix(context, builder, array_type, array, kind):
    """(base address, strides) of an array, as integers of 64 bits."""
    found = context.make_array(array_type)(context, builder, array)
    strides = [builder.extract_value(found.strides, i) for i in range(array_type.ndim)]
    return builder.ptrtoint(found.data, ir.IntType(64)), strides, ir.PointerType(kind, 1)


def _positions(context, builder, signature, arguments, spread: Spread, clamp: bool):
    """(batch, rows and columns of the values, last row, last column) as integers of 64 bits."""
    batch, row, column, last_row, last_column = (
        signed(context, builder, v, t) for v, t in zip(arguments[2:7], signature.args[2:7], strict=True)
    )

    def within(value, last):
        return builder.select(builder.icmp_signed("<", value, last), value, last) if clamp else value

    rows = [within(builder.add(row, i64(spread.row_step * k)), last_row) for k in range(spread.rows)]
    columns = [within(builder.add(column, i64(spread.column_step * e)), last_column) for e in range(spread.columns)]
    return batch, rows, columns, last_row, last_column


@functools.cache
def make_gather(axes: str, batched: bool, spread: Spread) -> Callable:
    """Return ``gather(values, array, batch, row, column, last_row, last_column)``: 32 elements of any array in float32.

    `axes` is column, row or matrix: what the array has an axis for. Places outside are read as the last inside.
    """

    @intrinsic
    def gather(typingctx, values, array, batch, row, column, last_row, last_column):
        def codegen(context, builder, signature, arguments):
            dtype = dtype_name(signature.args[1].dtype)
            pointer = _float_pointer(context, builder, signature.args[0], arguments[0])
            base, strides, kind = _matrix(context, builder, signature.args[1], arguments[1], stored_type(dtype))
            group, rows, columns, _, _ = _positions(context, builder, signature, arguments, spread, True)
            if batched:
                base = builder.add(base, builder.mul(group, strides[0]))
            down = {"row": strides[-1], "matrix": strides[-2:][0]}.get(axes)
            across = None if axes == "row" else strides[-1]
            known = {}
            for k in range(spread.rows):
                for e in range(spread.columns):
                    key = (k if down is not None else 0, e if across is not None else 0)
                    if key not in known:
                        place = base
                        if down is not None:
                            place = builder.add(place, builder.mul(rows[k], down))
                        if across is not None:
                            place = builder.add(place, builder.mul(columns[e], across))
                        known[key] = to_float(builder, builder.load(builder.inttoptr(place, kind)), dtype)
                    builder.store(known[key], builder.gep(pointer, [i32(spread.columns * k + e)], inbounds=True))
            return context.get_dummy_value()

        return types.void(values, array, batch, row, column, last_row, last_column), codegen

    return gather


@functools.cache
def make_scatter(dtype: str, spread: Spread) -> Callable:
    """Return ``scatter(values, array, batch, row, column, last_row, last_column)``: store 32 elements, masked."""

    @intrinsic
    def scatter(typingctx, values, array, batch, row, column, last_row, last_column):
        def codegen(context, builder, signature, arguments):
            pointer = _float_pointer(context, builder, signature.args[0], arguments[0])
            base, strides, _ = _matrix(context, builder, signature.args[1], arguments[1], stored_type(dtype))
            group, rows, columns, last_row_, last_column_ = _positions(
                context, builder, signature, arguments, spread, False
            )
            base = builder.add(base, builder.mul(group, strides[0]))
            for k in range(spread.rows):
                line = builder.add(base, builder.mul(rows[k], strides[1]))
                inside_row = builder.icmp_signed("<=", rows[k], last_row_)
                for e in range(spread.columns):
                    value = builder.load(builder.gep(pointer, [i32(spread.columns * k + e)], inbounds=True))
                    inside = builder.and_(inside_row, builder.icmp_signed("<=", columns[e], last_column_))
                    with builder.if_then(inside):
                        place = builder.add(line, builder.mul(columns[e], strides[2]))
                        store_one(builder, place, value, dtype)
            return context.get_dummy_value()

        return types.void(values, array, batch, row, column, last_row, last_column), codegen

    return scatter
