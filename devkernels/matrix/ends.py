"""Ends of a tile whose sums lie in a thread's registers: alpha, c, the epilogue, conversion, masked stores.

In: where each sum belongs, as distances from the thread's first row and column; dtypes. Out: intrinsics. Imported only
where code is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import (
    SHARED,
    dtype_name,
    i32,
    i64,
    pack,
    place_of,
    pointer,
    registers,
    signed,
    slot,
    store_one,
    store_words,
    stored_type,
    to_float,
)

_PARTS = {"complex64": "float32", "complex128": "float64"}


def _call(context, builder, function, inner, given: list, have: tuple):
    """Result of a device function, its arguments cast as it wants them."""
    cast = [context.cast(builder, v, h, w) for v, h, w in zip(given, have, inner.args, strict=True)]
    return context.get_function(function, inner)(builder, cast)


def _scaled(context, builder, number, factor, value):
    """Product of two numbers of one kind, real or complex."""
    if not isinstance(number, types.Complex):
        return builder.fmul(value, factor)
    a, b = (context.make_complex(builder, number, value=v) for v in (factor, value))
    result = context.make_complex(builder, number)
    result.real = builder.fsub(builder.fmul(a.real, b.real), builder.fmul(a.imag, b.imag))
    result.imag = builder.fadd(builder.fmul(a.real, b.imag), builder.fmul(a.imag, b.real))
    return result._getvalue()


def _sum(context, builder, number, a, b):
    if not isinstance(number, types.Complex):
        return builder.fadd(a, b)
    x, y = (context.make_complex(builder, number, value=v) for v in (a, b))
    x.real, x.imag = builder.fadd(x.real, y.real), builder.fadd(x.imag, y.imag)
    return x._getvalue()


def _loaded(context, builder, array_type, place, number):
    """An element of any array as a number of the accumulator's kind."""
    dtype = dtype_name(array_type.dtype)
    if number == types.float32:
        return to_float(builder, builder.load(pointer(builder, place, stored_type(dtype))), dtype)
    model = context.data_model_manager[array_type.dtype]
    where = pointer(builder, place, model.get_data_type())
    return context.cast(builder, model.load_from_data_pointer(builder, where), array_type.dtype, number)


def _runs(columns: tuple[int, ...]) -> list[list[int]]:
    """Numbers of columns that lie side by side, from left to right."""
    order = sorted(range(len(columns)), key=columns.__getitem__)
    runs = [[order[0]]]
    for j in order[1:]:
        if columns[j] == columns[runs[-1][-1]] + 1:
            runs[-1].append(j)
        else:
            runs.append([j])
    return runs


@functools.cache
def make_end(dtype: str, rows: tuple[int, ...], columns: tuple[int, ...], has_c: bool, wide: bool) -> Callable:
    """Return ``end(function, sums, alpha, beta, batch, row, column, c, d, extra)``: finish a thread's sums, masked.

    sums[i, j], a flat array whose numbers have their real part before the imaginary one, is element (row + rows[i],
    column + columns[j]). The function is that of `steps.element_function`, called inside only. `wide`: the number of
    columns is a multiple of each run of consecutive `columns`, and a run of d is one aligned access, or several.
    """

    @intrinsic
    def end(typingctx, function, sums, alpha, beta, batch, row, column, c, d, extra):
        number = {"complex64": types.complex64, "complex128": types.complex128}.get(dtype) or sums.dtype
        kinds = (number, types.int32, types.int32, types.int32, extra)
        inner = function.get_call_type(typingctx, kinds, {})
        is_complex = isinstance(number, types.Complex)

        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[1], arguments[1])
            alpha_, beta_ = (context.cast(builder, v, t, number)
                             for v, t in zip(arguments[2:4], signature.args[2:4], strict=True))  # fmt: skip
            batch_, row_, column_ = (signed(context, builder, v, t)
                                     for v, t in zip(arguments[4:7], signature.args[4:7], strict=True))  # fmt: skip
            c_, d_ = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (7, 8))
            last = [builder.extract_value(d_.shape, i) for i in (1, 2)]

            def sum_of(i, j):
                index = i * len(columns) + j
                if not is_complex:
                    return builder.load(slot(builder, target, index))
                value = context.make_complex(builder, number)
                value.real, value.imag = (builder.load(slot(builder, target, 2 * index + p)) for p in range(2))
                return value._getvalue()

            def element(i, j, r, k):
                value = _scaled(context, builder, number, alpha_, sum_of(i, j))
                if has_c:
                    other = _loaded(context, builder, signature.args[7], place_of(builder, c_, (batch_, r, k)), number)
                    if is_complex:
                        value = _sum(context, builder, number, value, _scaled(context, builder, number, beta_, other))
                    else:
                        value = builder.fma(beta_, other, value)
                narrow = [builder.trunc(v, ir.IntType(32)) for v in (batch_, r, k)]
                found = _call(context, builder, function, inner, [value, *narrow, arguments[9]], kinds)
                found = context.cast(builder, found, inner.return_type, number)
                if not is_complex:
                    return [found]
                parts = context.make_complex(builder, number, value=found)
                return [parts.real, parts.imag]

            part = _PARTS.get(dtype, dtype)
            for i, down in enumerate(rows):
                r = builder.add(row_, i64(down))
                inside_row = builder.icmp_signed("<", r, last[0])
                for run in _runs(columns):
                    across = [builder.add(column_, i64(columns[j])) for j in run]
                    groups = [(run, across)] if wide else [([j], [k]) for j, k in zip(run, across, strict=True)]
                    for own, places in groups:
                        inside = builder.and_(inside_row, builder.icmp_signed("<", places[0], last[1]))
                        with builder.if_then(inside):
                            values = [v for j, k in zip(own, places, strict=True) for v in element(i, j, r, k)]
                            where = place_of(builder, d_, (batch_, r, places[0]))
                            if wide:
                                store_words(builder, where, 0, pack(builder, values, part))
                            else:
                                for number_of, value in enumerate(values):
                                    step = (4 if part == "float32" else 8) * number_of
                                    store_one(builder, builder.add(where, i64(step)), value, part)
            return context.get_dummy_value()

        return types.void(function, sums, alpha, beta, batch, row, column, c, d, extra), codegen

    return end


@functools.cache
def make_keep(dtype: str, rows: int) -> Callable:
    """Return ``keep(function, sums, to, batch, row, column, last_row, last_column, extra)``: an end in shared memory.

    A thread's 8 x (rows // 8) sums, element (row + 8 i, column + j), become 16-bit elements at ``to + 512 i``. The
    function is called inside only: beyond the last row with the last one, beyond the last column not at all; such
    elements are zero, so that a product with them adds nothing.
    """

    @intrinsic
    def keep(typingctx, function, sums, to, batch, row, column, last_row, last_column, extra):
        kinds = (types.float32, types.int32, types.int32, types.int32, extra)
        inner = function.get_call_type(typingctx, kinds, {})

        def codegen(context, builder, signature, arguments):
            target = registers(context, builder, signature.args[1], arguments[1])
            base = context.cast(builder, arguments[2], signature.args[2], types.uint32)
            batch_, row_, column_, last_row_, last_column_ = (
                context.cast(builder, v, t, types.int32)
                for v, t in zip(arguments[3:8], signature.args[3:8], strict=True)
            )
            zero = ir.Constant(ir.FloatType(), 0.0)

            def least(a, b):
                return builder.select(builder.icmp_signed("<", a, b), a, b)

            for i in range(rows // 8):
                own_row, results = least(builder.add(row_, i32(8 * i)), last_row_), []
                for j in range(8):
                    own_column = builder.add(column_, i32(j))
                    inside = builder.icmp_signed("<=", own_column, last_column_)
                    value = builder.load(slot(builder, target, 8 * i + j))
                    given = [value, batch_, own_row, least(own_column, last_column_), arguments[8]]
                    result = _call(context, builder, function, inner, given, kinds)
                    result = context.cast(builder, result, inner.return_type, types.float32)
                    results.append(builder.select(inside, result, zero))
                store_words(builder, base, 512 * i, pack(builder, results, dtype), SHARED)
            return context.get_dummy_value()

        return types.void(function, sums, to, batch, row, column, last_row, last_column, extra), codegen

    return keep
