"""PTX instructions of Hopper as Numba intrinsics: barriers in shared memory, tensor copies, warpgroup products.

In: register values and shared-memory addresses as uint32. Out: intrinsics to call in kernels; each writes one short
piece of inline PTX. Names and meaning are those of the PTX ISA manual. Imported only where a kernel is compiled for a
GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.matrix.memory import i32, i64


def _instruction(text: str, constraints: str, result: types.Type, *kinds: types.Type, effects: bool = True) -> Callable:
    """Intrinsic of one inline PTX text; its operands are cast to `kinds`."""

    def define(*given):
        def codegen(context, builder, signature, arguments):
            values = [context.cast(builder, v, have, want) for v, have, want in
                      zip(arguments, signature.args, kinds, strict=True)]  # fmt: skip
            returns = ir.VoidType() if result == types.void else context.get_value_type(result)
            kind = ir.FunctionType(returns, [v.type for v in values])
            found = builder.asm(kind, text, constraints, values, side_effect=effects)
            return context.get_dummy_value() if result == types.void else found

        return result(*given), codegen

    return _of_arity(define, len(kinds))


def _of_arity(define: Callable, count: int) -> Callable:
    """An intrinsic of `count` parameters that ``define(*types)`` describes."""
    if count == 0:

        @intrinsic
        def call(typingctx):
            return define()
    elif count == 1:

        @intrinsic
        def call(typingctx, a):
            return define(a)
    elif count == 2:

        @intrinsic
        def call(typingctx, a, b):
            return define(a, b)
    elif count == 3:

        @intrinsic
        def call(typingctx, a, b, c):
            return define(a, b, c)
    elif count == 4:

        @intrinsic
        def call(typingctx, a, b, c, d):
            return define(a, b, c, d)
    elif count == 5:

        @intrinsic
        def call(typingctx, a, b, c, d, e):
            return define(a, b, c, d, e)
    else:

        @intrinsic
        def call(typingctx, a, b, c, d, e, f):
            return define(a, b, c, d, e, f)

    return call


_u32, _u64 = types.uint32, types.uint64


@intrinsic
def divide(typingctx, a, b):
    """Quotient of two uint32; Numba's own division is one of 64 bits, a subroutine."""

    def codegen(context, builder, signature, arguments):
        a_, b_ = (context.cast(builder, v, t, _u32) for v, t in zip(arguments, signature.args, strict=True))
        return builder.udiv(a_, b_)

    return _u32(a, b), codegen


# -- barriers in shared memory -------------------------------------------------------------------------------------

barrier_init = _instruction("mbarrier.init.shared::cta.b64 [$0], $1;", "r,r,~{memory}", types.void, _u32, _u32)
barrier_expect = _instruction(
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r,~{memory}", types.void, _u32, _u32
)
barrier_arrive = _instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}", types.void, _u32)
barrier_wait = _instruction(
    "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again; }",
    "r,r,~{memory}", types.void, _u32, _u32,
)  # fmt: skip
barrier_end = _instruction("mbarrier.inval.shared::cta.b64 [$0];", "r,~{memory}", types.void, _u32)
fence_barrier_init = _instruction("fence.mbarrier_init.release.cluster;", "~{memory}", types.void)
registers_fewer = _instruction("setmaxnreg.dec.sync.aligned.u32 40;", "", types.void)
registers_more = _instruction("setmaxnreg.inc.sync.aligned.u32 232;", "", types.void)
same_in_warp = _instruction("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", types.uint32, _u32)

# -- where a thread is, read anew: nothing that depends on it is then kept in registers, as the compiler would ---------

thread_anew = _instruction("mov.u32 $0, %tid.x;", "=r", types.uint32)

# -- tensor copies -------------------------------------------------------------------------------------------------

fence_async = _instruction("fence.proxy.async.shared::cta;", "~{memory}", types.void)
fence_map = _instruction("fence.proxy.tensormap::generic.acquire.sys [$0], 128;", "l,~{memory}", types.void, _u64)
prefetch_map = _instruction("prefetch.tensormap [$0];", "l,~{memory}", types.void, _u64)
copy_tile = _instruction(
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$3, $4, $5}], [$2];",
    "r,l,r,r,r,r,~{memory}", types.void,
    _u32, _u64, _u32, types.int32, types.int32, types.int32,
)  # fmt: skip

prefetch_line = _instruction("prefetch.global.L2 [$0];", "l,~{memory}", types.void, _u64)


@intrinsic
def parameter_address(typingctx, word):
    """Generic address of the kernel's parameter number `word` (a literal; words as Numba flattens the arguments).

    A tensor map must lie in parameter space to be read without a fence; Numba passes it as a tuple of 16 words, which
    lie there one after another. Must be called in the body of the kernel itself, whose name the parameter carries.
    """
    if not isinstance(word, types.IntegerLiteral):
        return None
    number = word.literal_value

    def codegen(context, builder, signature, arguments):
        name = f"{builder.function.name}_param_{number}"
        text = "{ .reg .b64 here; mov.b64 here, " + name + "; cvta.param.u64 $0, here; }"
        return builder.asm(ir.FunctionType(ir.IntType(64), []), text, "=l", [], side_effect=True)

    return types.uint64(word), codegen


@intrinsic
def shared_address(typingctx, array):
    """Address of a shared-memory array, as the 32 bits that PTX takes."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        if data.type.addrspace != 3:
            data = builder.addrspacecast(data, ir.PointerType(data.type.pointee, 3))
        return builder.ptrtoint(data, ir.IntType(32))

    return types.uint32(array), codegen


@intrinsic
def address(typingctx, array):
    """Address of an array in global memory."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.uint64(array), codegen


# -- warpgroup products --------------------------------------------------------------------------------------------

product_fence = _instruction("wgmma.fence.sync.aligned;", "~{memory}", types.void)
product_commit = _instruction("wgmma.commit_group.sync.aligned;", "~{memory}", types.void)
product_wait_one = _instruction("wgmma.wait_group.sync.aligned 1;", "~{memory}", types.void)
product_wait_all = _instruction("wgmma.wait_group.sync.aligned 0;", "~{memory}", types.void)


def _float_pointer(context, builder, array_type, array):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(data, ir.PointerType(ir.FloatType(), data.type.addrspace))


def _registers(count: int, others: list) -> ir.FunctionType:
    """Type of inline PTX that changes `count` float registers and reads `others`."""
    floats = [ir.FloatType()] * count
    return ir.FunctionType(ir.LiteralStructType(floats), floats + others)


# How the products are written: (k of one product, dtypes, what follows the predicate).
_KINDS = {"f16": (16, "f32.f16.f16", ", 1, 1, {a}, {b}"), "bf16": (16, "f32.bf16.bf16", ", 1, 1, {a}, {b}"),
          "tf32": (8, "f32.tf32.tf32", ", 1, 1"), "s8": (32, "s32.s8.s8", "")}  # fmt: skip


@functools.cache
def make_product(
    kind: str, n: int, steps: int, a_step: int, b_step: int, a_turned: bool, b_turned: bool, first: int = 0
) -> Callable:
    """Return ``product(acc, a, b, add)``: `steps` products of 64 x n x 32 bytes from shared memory, added up.

    `a` and `b` are matrix descriptors (uint64) that advance by a_step and b_step (in units of 16 bytes); `acc` is a
    local array whose n // 2 float32 from number `first` on are the sums; those of int8 stand there as the bits of
    int32; `add` = 0 makes the first product overwrite them. Only 16-bit kinds can be turned.
    """
    count = n // 2
    k, dtypes, rest = _KINDS[kind]
    registers = ", ".join(f"${i}" for i in range(count))
    place_a, place_b, adds = (f"${2 * count + i}" for i in range(3))
    body = (
        f"{{ .reg .pred p; setp.ne.b32 p, {adds}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{dtypes} "
        f"{{{registers}}}, {place_a}, {place_b}, p{rest.format(a=int(a_turned), b=int(b_turned))}; }}"
    )
    letter = "r" if kind == "s8" else "f"
    constraints = ",".join([f"={letter}"] * count + [str(i) for i in range(count)] + ["l", "l", "r"])

    @intrinsic
    def product(typingctx, acc, a, b, add):
        def codegen(context, builder, signature, arguments):
            others = [ir.IntType(64), ir.IntType(64), ir.IntType(32)]
            number = ir.IntType(32) if kind == "s8" else ir.FloatType()
            asm_type = ir.FunctionType(ir.LiteralStructType([number] * count), [number] * count + others)
            floats = _float_pointer(context, builder, signature.args[0], arguments[0])
            base = builder.bitcast(floats, ir.PointerType(number, floats.type.addrspace))
            places = [builder.gep(base, [i32(first + i)], inbounds=True) for i in range(count)]
            values = [builder.load(p) for p in places]
            adds = context.cast(builder, arguments[3], signature.args[3], types.uint32)
            for step in range(steps):
                da = builder.add(arguments[1], i64(step * a_step)) if step else arguments[1]
                db = builder.add(arguments[2], i64(step * b_step)) if step else arguments[2]
                out = builder.asm(asm_type, body, constraints, [*values, da, db, i32(1) if step else adds],
                                  side_effect=True)  # fmt: skip
                values = [builder.extract_value(out, i) for i in range(count)]
            for p, v in zip(places, values, strict=True):
                builder.store(v, p)
            return context.get_dummy_value()

        return types.void(acc, types.uint64, types.uint64, add), codegen

    return product


@functools.cache
def make_integers(count: int, scaled: bool) -> Callable:
    """Return ``integers(values, factor)``: of the int32 whose bits stand in float32 registers, the float32 numbers.

    With `scaled`, their product with `factor` instead, as bits again.
    """

    @intrinsic
    def integers(typingctx, values, factor):
        def codegen(context, builder, signature, arguments):
            floats = _float_pointer(context, builder, signature.args[0], arguments[0])
            by = context.cast(builder, arguments[1], signature.args[1], types.int32)
            for i in range(count):
                place = builder.gep(floats, [i32(i)], inbounds=True)
                whole = builder.bitcast(builder.load(place), ir.IntType(32))
                if scaled:
                    value = builder.bitcast(builder.mul(whole, by), ir.FloatType())
                else:
                    value = builder.sitofp(whole, ir.FloatType())
                builder.store(value, place)
            return context.get_dummy_value()

        return types.void(values, factor), codegen

    return integers


@functools.cache
def make_settle(count: int) -> Callable:
    """Return ``settle(acc)``: no instruction, but the compiler may not move reads of `acc` across it."""
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)])

    @intrinsic
    def settle(typingctx, acc):
        def codegen(context, builder, signature, arguments):
            pointer = _float_pointer(context, builder, signature.args[0], arguments[0])
            places = [builder.gep(pointer, [i32(i)], inbounds=True) for i in range(count)]
            out = builder.asm(_registers(count, []), "", constraints,
                              [builder.load(p) for p in places], side_effect=True)  # fmt: skip
            for i, p in enumerate(places):
                builder.store(builder.extract_value(out, i), p)
            return context.get_dummy_value()

        return types.void(acc), codegen

    return settle


# -- two functions of float32, each one instruction --------------------------------------------------------------------

exp2_fast = _instruction("ex2.approx.ftz.f32 $0, $1;", "=f,f", types.float32, types.float32, effects=False)
reciprocal_fast = _instruction("rcp.approx.ftz.f32 $0, $1;", "=f,f", types.float32, types.float32, effects=False)
