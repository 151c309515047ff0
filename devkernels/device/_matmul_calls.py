"""Calls of libmathdx's product functions by their C symbols, as Numba intrinsics.

In: a function that finds the code (asked during lowering, when the architecture is known). Out: intrinsics. Numbers
pass by pointer, tensors as a structure of one pointer. Imported only where a kernel is compiled for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cuda.extending import intrinsic

from devkernels.device._intrinsics import data_pointer_of

_NUMBA = {"complex64": types.complex64, "complex128": types.complex128}


def _value_type(name: str) -> types.Type:
    return _NUMBA.get(name) or getattr(types, name)


def _function(context, builder, find: Callable, name: str, kinds: list):
    code = find()
    context.active_code_library.add_linking_file(code)
    kind = ir.FunctionType(ir.VoidType(), kinds)
    return cgutils.get_or_insert_function(builder.module, kind, code.request.symbols[name])


def _matrix(context, builder, array_type, array):
    return builder.bitcast(data_pointer_of(context, builder, array_type, array), cgutils.voidptr_t)


def _boxed(context, builder, value, have, want):
    """Address of a number of type `want`, aligned to all of it, as the library's complex numbers are."""
    place = cgutils.alloca_once(builder, context.get_value_type(want))
    place.align = 16
    builder.store(context.cast(builder, value, have, want), place)
    return builder.bitcast(place, cgutils.voidptr_t)


def make_multiply(find: Callable, c_type: str, gaps: bool) -> Callable:
    """Return ``multiply(alpha, a, b, beta, c)``, or with `gaps` ``(alpha, a, lda, b, ldb, beta, c, ldc)``."""

    def emit(context, builder, signature, arguments):
        scalar = _value_type(c_type)
        given = []
        for number, (kind, value) in enumerate(zip(signature.args, arguments, strict=True)):
            if isinstance(kind, types.Array):
                given.append(_matrix(context, builder, kind, value))
            else:
                is_scalar = number in ((0, 5) if gaps else (0, 3))
                given.append(_boxed(context, builder, value, kind, scalar if is_scalar else types.uint32))
        function = _function(context, builder, find, "execute", [value.type for value in given])
        builder.call(function, given)
        return context.get_dummy_value()

    if gaps:

        @intrinsic
        def multiply(typingctx, alpha, a, lda, b, ldb, beta, c, ldc):
            return types.void(alpha, a, lda, b, ldb, beta, c, ldc), emit
    else:

        @intrinsic
        def multiply(typingctx, alpha, a, b, beta, c):
            return types.void(alpha, a, b, beta, c), emit

    return multiply


def make_accumulate(find: Callable) -> Callable:
    """Return ``accumulate(a, b, accumulator)``."""

    def emit(context, builder, signature, arguments):
        tensor = ir.LiteralStructType([cgutils.voidptr_t])
        given = []
        for kind, value in zip(signature.args, arguments, strict=True):
            pointer = _matrix(context, builder, kind, value)
            given.append(builder.insert_value(ir.Constant(tensor, ir.Undefined), pointer, 0))
        builder.call(_function(context, builder, find, "execute", [tensor] * 3), given)
        return context.get_dummy_value()

    @intrinsic
    def accumulate(typingctx, a, b, accumulator):
        return types.void(a, b, accumulator), emit

    return accumulate


def make_clear(count: int) -> Callable:
    """Return ``clear(accumulator)``; written out, so that the accumulator stays in registers."""

    def emit(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        for i in range(count):
            place = builder.gep(pointer, [ir.IntType(32)(i)], inbounds=True)
            builder.store(ir.Constant(place.type.pointee, None), place)
        return context.get_dummy_value()

    @intrinsic
    def clear(typingctx, accumulator):
        return types.void(accumulator), emit

    return clear


def _integer(builder, value=None):
    kind = ir.IntType(32)
    place = cgutils.alloca_once(builder, kind)
    if value is not None:
        builder.store(value, place)
    return place


def _ask_position(context, builder, find, index):
    row, column = _integer(builder), _integer(builder)
    places = [_integer(builder, index), row, column]
    builder.call(_function(context, builder, find, "position", [p.type for p in places]), places)
    return builder.load(row), builder.load(column)


def _ask_holds(context, builder, find, index):
    active, inside = _integer(builder), _integer(builder)
    builder.call(_function(context, builder, find, "active", [active.type]), [active])
    number = _integer(builder, index)
    builder.call(_function(context, builder, find, "in_bounds", [number.type, inside.type]), [number, inside])
    zero = ir.IntType(32)(0)
    return builder.and_(
        builder.icmp_signed("!=", builder.load(active), zero), builder.icmp_signed("!=", builder.load(inside), zero)
    )


def make_position(find: Callable) -> Callable:
    """Return ``position(f, i)``: row and column of c that element i of this thread's accumulator is."""
    pair = types.UniTuple(types.int32, 2)

    @intrinsic
    def ask(typingctx, i):
        def emit(context, builder, signature, arguments):
            index = context.cast(builder, arguments[0], signature.args[0], types.int32)
            return context.make_tuple(builder, pair, _ask_position(context, builder, find, index))

        return pair(i), emit

    return lambda f, i: ask(i)


def make_holds(find: Callable) -> Callable:
    """Return ``holds(f, i)``: whether element i of this thread's accumulator is an element of c at all."""

    @intrinsic
    def ask(typingctx, i):
        def emit(context, builder, signature, arguments):
            index = context.cast(builder, arguments[0], signature.args[0], types.int32)
            return _ask_holds(context, builder, find, index)

        return types.boolean(i), emit

    return lambda f, i: ask(i)


def make_move(find: Callable, count: int, store: bool) -> Callable:
    """Return ``move(x, row, column, accumulator)`` between an accumulator and the tile at (row, column) of x.

    Elements outside x load as zero and are not stored. Written out for each element, so that the accumulator stays in
    registers.
    """

    def emit(context, builder, signature, arguments):
        matrix_type, row_type, column_type, fragment_type = signature.args
        matrix = context.make_array(matrix_type)(context, builder, arguments[0])
        strides = cgutils.unpack_tuple(builder, matrix.strides, 2)
        shape = cgutils.unpack_tuple(builder, matrix.shape, 2)
        fragment = context.make_array(fragment_type)(context, builder, arguments[3]).data
        row0 = context.cast(builder, arguments[1], row_type, types.int64)
        column0 = context.cast(builder, arguments[2], column_type, types.int64)
        base = builder.bitcast(matrix.data, cgutils.voidptr_t)
        long = ir.IntType(64)
        for i in range(count):
            index = ir.IntType(32)(i)
            register = builder.gep(fragment, [index], inbounds=True)
            row, column = (builder.sext(v, long) for v in _ask_position(context, builder, find, index))
            row, column = builder.add(row, row0), builder.add(column, column0)
            inside = _ask_holds(context, builder, find, index)
            for value, length in ((row, shape[0]), (column, shape[1])):
                inside = builder.and_(inside, builder.icmp_unsigned("<", value, length))
            if not store:
                builder.store(ir.Constant(register.type.pointee, None), register)
            with builder.if_then(inside):
                offset = builder.add(builder.mul(row, strides[0]), builder.mul(column, strides[1]))
                place = builder.bitcast(builder.gep(base, [offset]), matrix.data.type)
                source, sink = (register, place) if store else (place, register)
                builder.store(builder.load(source), sink)
        return context.get_dummy_value()

    @intrinsic
    def move(typingctx, x, row, column, accumulator):
        return types.void(x, row, column, accumulator), emit

    return move
