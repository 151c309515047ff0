"""The few LLVM instructions that Numba does not offer: wide accesses, unsigned offsets, calls by C symbol.

In: Numba arrays inside kernels. Out: values and addresses. A complex value moves as one 8- or 16-byte word (Numba
moves it as two), and offsets are unsigned (Numba's signed indices cost a select and an add each).
Imported only where a kernel is compiled for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cuda.extending import intrinsic

_GENERIC = 0


def _data_pointer(context, builder, array_type, array):
    return context.make_array(array_type)(context, builder, array).data


def data_pointer_of(context, builder, array_type, array):
    """Generic pointer to an array's first element, while code is written."""
    pointer = _data_pointer(context, builder, array_type, array)
    if pointer.type.addrspace != _GENERIC:
        pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee), "generic")
    return pointer


@intrinsic
def data_pointer(typingctx, array):
    """Pointer to the first element of a local, shared or global array, in its own address space."""
    if not isinstance(array, types.Array):
        return None

    def codegen(context, builder, signature, arguments):
        return _data_pointer(context, builder, signature.args[0], arguments[0])

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def advance(typingctx, pointer, bytes_):
    """Return `pointer` moved on by an unsigned number of bytes."""
    if not isinstance(pointer, types.CPointer) or not isinstance(bytes_, types.Integer):
        return None

    def codegen(context, builder, signature, arguments):
        distance = context.cast(builder, arguments[1], signature.args[1], types.uint64)
        base = builder.bitcast(arguments[0], cgutils.voidptr_t)
        return builder.bitcast(builder.gep(base, [distance], inbounds=True), arguments[0].type)

    return pointer(pointer, bytes_), codegen


@intrinsic
def settled(typingctx, number):
    """Return an unsigned 64-bit number through an empty instruction that LLVM does not look into.

    LLVM sinks the arithmetic of an address into every conditional block that uses it, which the assembler then leaves
    as branches; behind this the arithmetic is done once, and such a block is one access that the hardware predicates.
    """

    def codegen(context, builder, signature, arguments):
        value = context.cast(builder, arguments[0], signature.args[0], types.uint64)
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        return builder.asm(kind, "mov.b64 $0, $1;", "=l,l", [value], side_effect=False)

    return types.uint64(number), codegen


def make_load(word: types.Type, lanes: int, result: types.Type) -> Callable:
    """Return ``load(pointer, k)``: `lanes` numbers of type `word` from word number ``k * lanes``, as one access.

    `result` is a complex type (two lanes), or `word` itself.
    """

    @intrinsic
    def load(typingctx, pointer, k):
        if not isinstance(pointer, types.CPointer) or not isinstance(k, types.Integer):
            return None

        def codegen(context, builder, signature, arguments):
            address = _word_address(context, builder, signature, arguments, word, lanes)
            value = builder.load(address, align=lanes * word.bitwidth // 8)
            if lanes == 1:
                return value
            number = context.make_complex(builder, result)
            number.real = builder.extract_element(value, ir.Constant(ir.IntType(32), 0))
            number.imag = builder.extract_element(value, ir.Constant(ir.IntType(32), 1))
            return number._getvalue()

        return result(pointer, k), codegen

    return load


def make_store(word: types.Type, lanes: int, source: types.Type) -> Callable:
    """Return ``store(pointer, k, value)``, the counterpart of `make_load`."""

    @intrinsic
    def store(typingctx, pointer, k, value):
        if not isinstance(pointer, types.CPointer) or not isinstance(k, types.Integer):
            return None

        def codegen(context, builder, signature, arguments):
            address = _word_address(context, builder, signature, arguments, word, lanes)
            content = arguments[2]
            if lanes == 2:
                number = context.make_complex(builder, source, value=content)
                vector = ir.Constant(address.type.pointee, ir.Undefined)
                vector = builder.insert_element(vector, number.real, ir.Constant(ir.IntType(32), 0))
                content = builder.insert_element(vector, number.imag, ir.Constant(ir.IntType(32), 1))
            builder.store(content, address, align=lanes * word.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(pointer, k, source), codegen

    return store


def _word_address(context, builder, signature, arguments, word, lanes):
    index = context.cast(builder, arguments[1], signature.args[1], types.uint64)
    llvm_word = context.get_value_type(word)
    target = ir.VectorType(llvm_word, lanes) if lanes > 1 else llvm_word
    space = arguments[0].type.addrspace
    typed = builder.bitcast(arguments[0], ir.PointerType(target, space))
    return builder.gep(typed, [index], inbounds=True)


@intrinsic
def misaligned(typingctx, pointer, bytes_):
    """Whether an address is no multiple of `bytes_` (a power of two)."""
    if not isinstance(pointer, types.CPointer):
        return None

    def codegen(context, builder, signature, arguments):
        address = builder.ptrtoint(arguments[0], ir.IntType(64))
        mask = builder.sub(
            context.cast(builder, arguments[1], signature.args[1], types.int64), ir.Constant(address.type, 1)
        )
        return builder.icmp_unsigned("!=", builder.and_(address, mask), ir.Constant(address.type, 0))

    return types.boolean(pointer, bytes_), codegen


def make_copy(size: int) -> Callable:
    """Return ``copy(to, to_bytes, source, source_bytes)``: `size` bytes, a multiple of 4, as one access each."""

    @intrinsic
    def copy(typingctx, to, to_bytes, source, source_bytes):
        if not isinstance(to, types.CPointer) or not isinstance(source, types.CPointer):
            return None

        def codegen(context, builder, signature, arguments):
            vector = ir.VectorType(ir.IntType(32), size // 4)

            def place(pointer, offset, kind):
                distance = context.cast(builder, offset, kind, types.uint64)
                raw = builder.bitcast(pointer, ir.PointerType(ir.IntType(8), pointer.type.addrspace))
                moved = builder.gep(raw, [distance], inbounds=True)
                return builder.bitcast(moved, ir.PointerType(vector, pointer.type.addrspace))

            value = builder.load(place(arguments[2], arguments[3], signature.args[3]), align=size)
            builder.store(value, place(arguments[0], arguments[1], signature.args[1]), align=size)
            return context.get_dummy_value()

        return types.void(to, to_bytes, source, source_bytes), codegen

    return copy


def make_copy_async(size: int) -> Callable:
    """Return ``copy(to, to_bytes, source, source_bytes, count)``: `count` of `size` bytes, then zeros.

    Asynchronous, to a pointer into shared memory; `size` is 4, 8 or 16.
    """
    mode = "cg" if size == 16 else "ca"
    text = f"cp.async.{mode}.shared.global [$0], [$1], {size}, $2;"

    @intrinsic
    def copy(typingctx, to, to_bytes, source, source_bytes, count):
        if not isinstance(to, types.CPointer) or not isinstance(source, types.CPointer):
            return None

        def codegen(context, builder, signature, arguments):
            shared = arguments[0]
            if shared.type.addrspace != 3:
                shared = builder.addrspacecast(shared, ir.PointerType(shared.type.pointee, 3))
            here = context.cast(builder, arguments[1], signature.args[1], types.uint32)
            there = context.cast(builder, arguments[3], signature.args[3], types.uint64)
            place = builder.add(builder.ptrtoint(shared, ir.IntType(32)), here)
            origin = builder.add(builder.ptrtoint(arguments[2], ir.IntType(64)), there)
            bytes_ = context.cast(builder, arguments[4], signature.args[4], types.uint32)
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32), ir.IntType(64), ir.IntType(32)])
            builder.asm(kind, text, "r,l,r,~{memory}", [place, origin, bytes_], side_effect=True)
            return context.get_dummy_value()

        return types.void(to, to_bytes, source, source_bytes, count), codegen

    return copy


def make_half_to_float() -> Callable:
    """Return ``convert(bits)``: the float32 of the float16 in the low 16 bits."""

    @intrinsic
    def half_to_float(typingctx, bits):
        if not isinstance(bits, types.Integer):
            return None

        def codegen(context, builder, signature, arguments):
            low = builder.trunc(arguments[0], ir.IntType(16)) if signature.args[0].bitwidth > 16 else arguments[0]
            return builder.fpext(builder.bitcast(low, ir.HalfType()), ir.FloatType())

        return types.float32(bits), codegen

    return half_to_float


def make_float_to_half() -> Callable:
    """Return ``convert(value)``: the float16 nearest to a float32, as an unsigned 64-bit number."""

    @intrinsic
    def float_to_half(typingctx, value):
        def codegen(context, builder, signature, arguments):
            half = builder.fptrunc(arguments[0], ir.HalfType())
            return builder.zext(builder.bitcast(half, ir.IntType(16)), ir.IntType(64))

        return types.uint64(types.float32), codegen

    return float_to_half


def make_call(find_code: Callable, arrays: int) -> Callable:
    """Return an intrinsic that calls a C function on the addresses of `arrays` arrays, and links its code.

    `find_code()` is asked during lowering, when the architecture is known; it returns an object for Numba's linker
    whose `request.symbol` is the name to call.
    """

    def emit(context, builder, signature, arguments):
        code = find_code()
        context.active_code_library.add_linking_file(code)
        pointers = []
        for array_type, array in zip(signature.args, arguments, strict=True):
            pointers.append(data_pointer_of(context, builder, array_type, array))
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type for pointer in pointers])
        function = cgutils.get_or_insert_function(builder.module, function_type, code.request.symbol)
        builder.call(function, pointers)
        return context.get_dummy_value()

    if arrays == 1:

        @intrinsic
        def call(typingctx, data):
            return types.void(data), emit
    else:

        @intrinsic
        def call(typingctx, data, shared):
            return types.void(data, shared), emit

    return call
