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


def make_index(find: Callable, which: str) -> Callable:
    """Return ``index(tile, i, j)``: where element (i, j) of op(a), or op(b), lies in its tile in shared memory."""

    @intrinsic
    def index(typingctx, tile, i, j):
        def emit(context, builder, signature, arguments):
            pointer = _matrix(context, builder, signature.args[0], arguments[0])
            tensor = ir.LiteralStructType([cgutils.voidptr_t])
            own = builder.insert_value(ir.Constant(tensor, ir.Undefined), pointer, 0)
            given = [_integer(builder, context.cast(builder, v, t, types.int32))
                     for v, t in zip(arguments[1:], signature.args[1:], strict=True)]  # fmt: skip
            found, address = _integer(builder), cgutils.alloca_once(builder, cgutils.voidptr_t)
            values = [own, *given, found, address]
            function = _function(context, builder, find, f"index_{which}", [v.type for v in values])
            builder.call(function, values)
            return builder.load(found)

        return types.int32(tile, i, j), emit

    return index


def make_copy_tile(find: Callable, which: str, axis: int) -> Callable:
    """Return ``copy(x, start, tile)``: a whole tile that begins `start` bytes into x, contiguous along `axis`.

    All of it is there when the call is over. The library copies 16 bytes at a time where the alignment of the product
    allows it.
    """

    @intrinsic
    def copy(typingctx, x, start, tile):
        def emit(context, builder, signature, arguments):
            matrix = context.make_array(signature.args[0])(context, builder, arguments[0])
            long = ir.IntType(64)
            step = cgutils.unpack_tuple(builder, matrix.strides, 2)[1 - axis]
            item = ir.Constant(long, context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype)))
            base = _matrix(context, builder, signature.args[0], arguments[0])
            offset = context.cast(builder, arguments[1], signature.args[1], types.uint64)
            steps = ir.ArrayType(long, 1)
            source = ir.Constant(ir.LiteralStructType([cgutils.voidptr_t, steps]), ir.Undefined)
            source = builder.insert_value(source, builder.gep(base, [offset]), 0)
            source = builder.insert_value(source, builder.sdiv(step, item), [1, 0])
            pointer = _matrix(context, builder, signature.args[2], arguments[2])
            sink = ir.Constant(ir.LiteralStructType([cgutils.voidptr_t]), ir.Undefined)
            sink = builder.insert_value(sink, pointer, 0)
            builder.call(_function(context, builder, find, f"copy_{which}", [source.type, sink.type]), [source, sink])
            builder.call(_function(context, builder, find, "copy_wait", []), [])
            return context.get_dummy_value()

        return types.void(x, start, tile), emit

    return copy


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


class LibraryPlaces:
    """Where the library's accumulators belong: it is asked in the kernel; `find` finds its code."""

    def __init__(self, find: Callable):
        self._find = find

    def position(self, context, builder, index):
        """Row and column of element `index`."""
        row, column = _integer(builder), _integer(builder)
        places = [_integer(builder, index), row, column]
        builder.call(_function(context, builder, self._find, "position", [p.type for p in places]), places)
        return builder.load(row), builder.load(column)

    def holds(self, context, builder, index):
        """Whether element `index` is one of c."""
        active, inside = _integer(builder), _integer(builder)
        builder.call(_function(context, builder, self._find, "active", [active.type]), [active])
        number = _integer(builder, index)
        function = _function(context, builder, self._find, "in_bounds", [number.type, inside.type])
        builder.call(function, [number, inside])
        zero = ir.IntType(32)(0)
        return builder.and_(
            builder.icmp_signed("!=", builder.load(active), zero), builder.icmp_signed("!=", builder.load(inside), zero)
        )


class GroupPlaces:
    """The same for warpgroups that have `rows` rows of `columns` columns each, by rule."""

    def __init__(self, columns: int, rows: int):
        self._columns, self._rows = columns, rows

    def position(self, context, builder, index):
        """Row and column of element `index`."""
        from devkernels.matrix.fragments import place_of_sum

        kind = ir.FunctionType(ir.IntType(32), [])
        thread = builder.asm(kind, "mov.u32 $0, %tid.x;", "=r", [], side_effect=False)
        return place_of_sum(builder, thread, index, self._columns, self._rows)

    def holds(self, context, builder, index):
        """All elements are of c."""
        return ir.Constant(ir.IntType(1), 1)


def make_position(places: LibraryPlaces | GroupPlaces) -> Callable:
    """Return ``position(f, i)``: row and column of c that element i of this thread's accumulator is."""
    pair = types.UniTuple(types.int32, 2)

    @intrinsic
    def ask(typingctx, i):
        def emit(context, builder, signature, arguments):
            index = context.cast(builder, arguments[0], signature.args[0], types.int32)
            return context.make_tuple(builder, pair, places.position(context, builder, index))

        return pair(i), emit

    return lambda f, i: ask(i)


def make_holds(places: LibraryPlaces | GroupPlaces) -> Callable:
    """Return ``holds(f, i)``: whether element i of this thread's accumulator is an element of c at all."""

    @intrinsic
    def ask(typingctx, i):
        def emit(context, builder, signature, arguments):
            index = context.cast(builder, arguments[0], signature.args[0], types.int32)
            return places.holds(context, builder, index)

        return types.boolean(i), emit

    return lambda f, i: ask(i)


def make_move(places: LibraryPlaces | GroupPlaces, count: int, store: bool) -> Callable:
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
            row, column = (builder.sext(v, long) for v in places.position(context, builder, index))
            row, column = builder.add(row, row0), builder.add(column, column0)
            inside = places.holds(context, builder, index)
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
