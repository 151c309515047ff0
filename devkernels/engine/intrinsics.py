"""The engine's inner steps as Numba intrinsics: they write LLVM instructions with llvmlite.

in: the constants of `emit`. out: intrinsics. Imported only where code is compiled, never in the simulator.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from devkernels.engine.emit import weighted
from devkernels.engine.networks import Network, Product
from devkernels.errors import SpecError

_GLOBAL = 1  # NVVM address space: constant memory would serialise lanes that read different rows


@functools.cache
def _sources() -> str:
    """Digest of the files that decide what is written for a spec."""
    folder = pathlib.Path(__file__).parent
    text = b"".join((folder / name).read_bytes() for name in ("networks.py", "emit.py", "intrinsics.py"))
    return hashlib.sha256(text).hexdigest()


class _Writer:
    """What writes an intrinsic's instructions, with content that the cache of kernels can compare."""

    def __init__(self, write: Callable, *content: object):
        self.write, self.content = write, content

    def __cache_key__(self):
        """All that the instructions depend on."""
        return self.content, _sources()


class IRArithmetic:
    """Arithmetic on LLVM values; Python floats become constants."""

    def __init__(self, builder, real):
        self.builder = builder
        self.real = real

    def _value(self, a):
        return ir.Constant(self.real, float(a)) if isinstance(a, (int, float)) else a

    def add(self, a, b):
        """Emit a + b."""
        return self.builder.fadd(self._value(a), self._value(b))

    def sub(self, a, b):
        """Emit a - b."""
        return self.builder.fsub(self._value(a), self._value(b))

    def mul(self, a, b):
        """Emit a * b."""
        return self.builder.fmul(self._value(a), self._value(b))

    def fma(self, a, b, c):
        """Emit a * b + c with one rounding."""
        return self.builder.fma(self._value(a), self._value(b), self._value(c))

    def neg(self, a):
        """Emit -a, as LLVM wrote it before it had an instruction for it (NVVM's dialect for sm_90 is that old)."""
        return self.builder.fsub(ir.Constant(self.real, -0.0), self._value(a))


def _real_type(dtype: np.dtype):
    return {"complex64": ir.FloatType(), "complex128": ir.DoubleType(), "float32": ir.FloatType(),
            "float64": ir.DoubleType()}[np.dtype(dtype).name]  # fmt: skip


def _pointer(context, builder, array_type, value, real):
    """Data pointer of a Numba array, as a pointer to its real parts."""
    data = context.make_array(array_type)(context, builder, value).data
    return builder.bitcast(data, real.as_pointer())


class _Local:
    """A thread's local array, read and written at constant slots, so that it lives in registers."""

    def __init__(self, builder, pointer, real):
        self.builder, self.pointer, self.real = builder, pointer, real

    def _at(self, index):
        return self.builder.gep(self.pointer, [ir.IntType(32)(index)])

    def load(self, slot):
        return tuple(self.builder.load(self._at(2 * slot + part)) for part in (0, 1))

    def store(self, slot, pair):
        for part in (0, 1):
            value = pair[part]
            if value is None or isinstance(value, float):
                value = ir.Constant(self.real, value or 0.0)
            self.builder.store(value, self._at(2 * slot + part))


def _table_loader(builder, table, real, row):
    """Emit the loads of one table row; return {(p, rest): pair}. Laid out so that neighbouring rows coalesce."""
    values, keys = table.values(), table.keys()
    size = 4 if isinstance(real, ir.FloatType) else 8
    per_chunk = 16 // (2 * size)  # complex numbers in one 16-byte access
    rows, count = values.shape
    chunks = -(-count // per_chunk)
    flat = np.zeros((chunks, rows, per_chunk), dtype=np.complex128)
    for index in range(count):
        flat[index // per_chunk, :, index % per_chunk] = values[:, index]
    numbers = flat.reshape(-1).view(np.float64)
    array = ir.ArrayType(real, numbers.size)
    module = builder.module
    name = module.get_unique_name("devkernels_twiddles")
    variable = ir.GlobalVariable(module, array, name, addrspace=_GLOBAL)
    variable.linkage = "internal"
    variable.global_constant = True
    variable.align = 16
    variable.initializer = ir.Constant(array, [float(v) for v in numbers])
    vector = ir.VectorType(real, 2 * per_chunk)
    base = builder.bitcast(variable, ir.PointerType(vector, addrspace=_GLOBAL))
    found = {}
    for chunk in range(chunks):
        index = builder.add(row, row.type(chunk * rows)) if chunk else row
        loaded = builder.load(builder.gep(base, [index]))
        loaded.align = 16
        for lane in range(min(per_chunk, count - chunk * per_chunk)):
            pair = tuple(builder.extract_element(loaded, ir.IntType(32)(2 * lane + part)) for part in (0, 1))
            found[keys[chunk * per_chunk + lane]] = pair
    return found


def butterflies(spec, dtype):
    """See `emit.butterflies`."""
    real = _real_type(dtype)

    def write(context, builder, signature, arguments):
        ops = IRArithmetic(builder, real)
        data = _Local(builder, _pointer(context, builder, signature.args[0], arguments[0], real), real)
        factors = None
        if spec.filtered:
            factors = _Local(builder, _pointer(context, builder, signature.args[1], arguments[1], real), real)
        row = arguments[-1]
        if spec.table is not None:
            width = ir.IntType(32)
            row = builder.trunc(row, width) if row.type.width > 32 else row
        loaded: dict[int, dict] = {}
        for number, slots in enumerate(spec.slots):
            power = None
            if spec.table is not None:
                step = spec.row_steps[number]
                if step not in loaded:
                    loaded[step] = _table_loader(
                        builder, spec.table, real, builder.add(row, row.type(step)) if step else row
                    )

                def power(p, rest, known=loaded[step]):
                    return known.get((p, rest))
            elif spec.base is not None:

                def power(p, rest):
                    w = spec.base**p
                    return None if rest else (w.real, w.imag)

            inputs = []
            for slot in slots:
                value = data.load(slot)
                if spec.real_input:
                    value = value[0], None
                inputs.append(value if factors is None else Product(factors.load(slot), value))
            if spec.table is not None and spec.table.common:
                inputs = [Product(power(0, Fraction(0)), value) for value in inputs]
            network = Network(ops, spec.sign, power)
            for slot, pair in zip(slots, weighted(network, network.dft(inputs), spec.weights), strict=True):
                data.store(slot, pair)
        return context.get_dummy_value()

    writer = _Writer(write, "butterflies", spec, np.dtype(dtype))

    if spec.filtered:

        @intrinsic
        def filtered(typingctx, data, factors, row):
            """Multiply by the factors and transform in place."""
            return types.void(data, factors, row), writer.write

        return filtered

    @intrinsic
    def transform(typingctx, data, row):
        """Transform in place."""
        return types.void(data, row), writer.write

    return transform


_MEMORY = {"float16": ir.HalfType(), "float32": ir.FloatType(), "float64": ir.DoubleType(),
           "complex32": ir.HalfType(), "complex64": ir.FloatType(), "complex128": ir.DoubleType()}  # fmt: skip
_BYTES = {"float16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16}


def _convert(builder, value, to):
    if value.type == to:
        return value
    wider = {"half": 0, "float": 1, "double": 2}
    return (builder.fpext if wider[str(to)] > wider[str(value.type)] else builder.fptrunc)(value, to)


def mover(move, store):
    """See `emit.gather` and `emit.scatter`."""
    real = _real_type(np.dtype(move.dtype))
    memory_name = move.memory or move.dtype
    stored = _MEMORY[memory_name]
    whole = memory_name.startswith("complex")
    if whole != (move.part == "both"):
        raise SpecError(f"part {move.part!r} does not suit memory of {memory_name}")
    shift = {"both": 0, "real": 0, "imag": 1}[move.part]
    word = ir.VectorType(stored, 2) if whole else stored

    # Masked ones would become branches; half precision has no such instruction.
    policy = {"once": "L1::no_allocate", "often": "L1::evict_last"}.get(move.cache)
    plain = policy is None or move.masked or isinstance(stored, ir.HalfType)
    letter, suffix = ("f", "f32") if isinstance(stored, ir.FloatType) else ("d", "f64")

    def read(builder, place, count):
        """Loaded numbers, `count` of them."""
        if plain:
            value = builder.load(place)
            value.align = _BYTES[memory_name]
            return [builder.extract_element(value, ir.IntType(32)(part)) for part in (0, 1)] if count == 2 else [value]
        address, word = builder.ptrtoint(place, ir.IntType(64)), ir.IntType(64)
        if count == 1:
            text = f"ld.global.{policy}.{suffix} $0, [$1];"
            return [builder.asm(ir.FunctionType(stored, [word]), text, f"={letter},l", [address], True)]
        both = ir.FunctionType(ir.LiteralStructType([stored, stored]), [word])
        text = f"ld.global.{policy}.v2.{suffix} {{$0, $1}}, [$2];"
        pair = builder.asm(both, text, f"={letter},={letter},l", [address], True)
        return [builder.extract_value(pair, part) for part in (0, 1)]

    def put(builder, place, numbers):
        """Store one number or two."""
        if plain:
            value = numbers[0]
            if len(numbers) == 2:
                value = ir.Constant(word, ir.Undefined)
                for part, number in enumerate(numbers):
                    value = builder.insert_element(value, number, ir.IntType(32)(part))
            builder.store(value, place).align = _BYTES[memory_name]
            return
        kinds = [ir.IntType(64), *(stored for _ in numbers)]
        operand = "$1" if len(numbers) == 1 else "{$1, $2}"
        text = f"st.global.{policy}.{'v2.' if len(numbers) == 2 else ''}{suffix} [$0], {operand};"
        constraints = ",".join(["l", *(letter for _ in numbers), "~{memory}"])
        builder.asm(
            ir.FunctionType(ir.VoidType(), kinds), text, constraints,
            [builder.ptrtoint(place, ir.IntType(64)), *numbers], True,
        )  # fmt: skip

    def both(builder, local, place, slots):
        """Move two complex numbers in one access."""
        registers = [builder.gep(local, [ir.IntType(32)(2 * slot + part)]) for slot in slots for part in (0, 1)]
        four = ir.VectorType(stored, 4)
        if plain:
            place = builder.bitcast(place, four.as_pointer(place.type.addrspace))
            if store:
                value = ir.Constant(four, ir.Undefined)
                for lane, register in enumerate(registers):
                    value = builder.insert_element(value, builder.load(register), ir.IntType(32)(lane))
                builder.store(value, place).align = 16
            else:
                value = builder.load(place)
                value.align = 16
                for lane, register in enumerate(registers):
                    builder.store(builder.extract_element(value, ir.IntType(32)(lane)), register)
            return
        address, word = builder.ptrtoint(place, ir.IntType(64)), ir.IntType(64)
        if store:
            builder.asm(
                ir.FunctionType(ir.VoidType(), [word, *(stored for _ in registers)]),
                f"st.global.{policy}.v4.f32 [$0], {{$1, $2, $3, $4}};", "l,f,f,f,f,~{memory}",
                [address, *(builder.load(register) for register in registers)], True,
            )  # fmt: skip
            return
        kind = ir.FunctionType(ir.LiteralStructType([stored] * 4), [word])
        text = f"ld.global.{policy}.v4.f32 {{$0, $1, $2, $3}}, [$4];"
        value = builder.asm(kind, text, "=f,=f,=f,=f,l", [address], True)
        for lane, register in enumerate(registers):
            builder.store(builder.extract_value(value, lane), register)

    def one(builder, local, place, slot):
        registers = [builder.gep(local, [ir.IntType(32)(2 * slot + part)]) for part in (0, 1)]
        if whole:
            if store:
                before = None
                if move.adds:
                    before = builder.load(place)
                    before.align = _BYTES[memory_name]
                numbers = []
                for part in (0, 1):
                    number = builder.load(registers[part])
                    if before is not None:
                        old = builder.extract_element(before, ir.IntType(32)(part))
                        number = builder.fadd(number, _convert(builder, old, real))
                    numbers.append(_convert(builder, number, stored))
                put(builder, place, numbers)
            else:
                for number, register in zip(read(builder, place, 2), registers, strict=True):
                    builder.store(_convert(builder, number, real), register)
        elif store:
            number = builder.load(registers[shift])
            if move.adds:
                before = builder.load(place)
                before.align = _BYTES[memory_name]
                number = builder.fadd(number, _convert(builder, before, real))
            put(builder, place, [_convert(builder, number, stored)])
        else:
            builder.store(_convert(builder, read(builder, place, 1)[0], real), registers[shift])

    def write(context, builder, signature, arguments):
        local = _pointer(context, builder, signature.args[0], arguments[0], real)
        memory = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        start = builder.gep(builder.bitcast(memory, word.as_pointer()), [arguments[2]])
        if move.masked:
            position, limit = (context.cast(builder, arguments[k], signature.args[k], types.int32) for k in (3, 4))
        for slots in move.accesses():
            slot, offset = slots[0], move.offsets[slots[0]]
            place = builder.gep(start, [ir.IntType(64)(offset)])
            if len(slots) == 2:
                both(builder, local, place, slots)
                continue
            lies = move.lies(slot)
            if lies:
                one(builder, local, place, slot)
                continue
            if lies is None:
                place_in_row = builder.add(position, position.type(offset))
                # Negative positions are large numbers here.
                ask(builder, local, place, slot, builder.icmp_unsigned("<", place_in_row, limit))
            elif not (store or move.keep):
                nothing(builder, local, slot)
        return context.get_dummy_value()

    def nothing(builder, local, slot):
        for part in (0, 1) if whole else (shift,):
            builder.store(ir.Constant(real, 0.0), builder.gep(local, [ir.IntType(32)(2 * slot + part)]))

    def ask(builder, local, place, slot, inside):
        if store or move.keep:
            with builder.if_then(inside):
                one(builder, local, place, slot)
            return
        with builder.if_else(inside) as (then, otherwise):
            with then:
                one(builder, local, place, slot)
            with otherwise:
                nothing(builder, local, slot)

    writer = _Writer(write, "move", move, store)

    if move.masked:

        @intrinsic
        def masked(typingctx, data, memory, base, position, limit):
            """Move the elements that lie inside."""
            return types.void(data, memory, base, position, limit), writer.write

        return masked

    @intrinsic
    def whole_move(typingctx, data, memory, base):
        """Move all elements."""
        return types.void(data, memory, base), writer.write

    return whole_move
