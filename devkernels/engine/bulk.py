"""Bulk copies into shared memory as Numba intrinsics. Imported only where code is compiled, never in the simulator.

in: places in a shared array and a global one. out: instructions of sm_90.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

_SHARED = 3  # address space


def _assembly(builder, text: str, *operands) -> None:
    letters = {32: "r", 64: "l"}
    constraints = ",".join([*(letters[value.type.width] for value in operands), "~{memory}"])
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in operands])
    builder.asm(kind, text, constraints, list(operands), True)


def _in_shared(context, builder, array_type, array, place):
    """Shared address, 32 bits, of an array's element."""
    byte = ir.IntType(8)
    pointer = builder.gep(context.make_array(array_type)(context, builder, array).data, [place])
    pointer = builder.addrspacecast(builder.bitcast(pointer, byte.as_pointer()), byte.as_pointer(_SHARED))
    return builder.ptrtoint(pointer, ir.IntType(32))


@intrinsic
def barrier_init(typingctx, shared, place):
    """A barrier that one arrival and the bytes announced with it complete."""

    def write(context, builder, signature, arguments):
        barrier = _in_shared(context, builder, signature.args[0], *arguments)
        text = "mbarrier.init.shared::cta.b64 [$0], 1; fence.mbarrier_init.release.cluster;"
        _assembly(builder, text, barrier)
        return context.get_dummy_value()

    return types.void(shared, place), write


@intrinsic
def fetch(typingctx, shared, place, barrier, memory, source, size):
    """Start a copy of `size` bytes; reads and writes of the threads that met the caller at a barrier come before."""

    def write(context, builder, signature, arguments):
        array, to, at, memory_, from_, bytes_ = arguments
        target = _in_shared(context, builder, signature.args[0], array, to)
        barrier_ = _in_shared(context, builder, signature.args[0], array, at)
        data = context.make_array(signature.args[3])(context, builder, memory_).data
        origin = builder.ptrtoint(builder.gep(data, [from_]), ir.IntType(64))
        text = (
            "fence.proxy.async.shared::cta; mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $3; "
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$2], $3, [$1];"
        )
        _assembly(builder, text, target, barrier_, origin, bytes_)
        return context.get_dummy_value()

    return types.void(shared, place, barrier, memory, source, types.uint32), write


@intrinsic
def wait(typingctx, shared, place, parity):
    """Wait for the phase of a barrier with this parity."""

    def write(context, builder, signature, arguments):
        array, at, parity_ = arguments
        barrier = _in_shared(context, builder, signature.args[0], array, at)
        text = "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again; }"
        _assembly(builder, text, barrier, parity_)
        return context.get_dummy_value()

    return types.void(shared, place, types.uint32), write
