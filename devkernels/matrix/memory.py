"""Numbers between memory and registers while code is written: words, vectors, dtypes, places in arrays.

In: LLVM values and names of dtypes. Out: LLVM values; nothing here is an intrinsic itself. Everything that the main
loops and their ends load, convert and store goes through these. Imported only where code is compiled.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from devkernels.matrix.memory_sizes import WIDEST

GLOBAL, SHARED = 1, 3  # address spaces
ITEM = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}  # what `pack` makes of float32


def i32(value: int) -> ir.Constant:
    """A constant of 32 bits."""
    return ir.Constant(ir.IntType(32), value)


def i64(value: int) -> ir.Constant:
    """A constant of 64 bits."""
    return ir.Constant(ir.IntType(64), value)


# -- registers: local arrays whose indices are all constants -----------------------------------------------------------


def registers(context, builder, array_type, array):
    """Pointer to the first element of a local array."""
    return context.make_array(array_type)(context, builder, array).data


def slot(builder, pointer, index: int):
    """Pointer to element `index` of a local array."""
    return builder.gep(pointer, [i32(index)], inbounds=True)


# -- places ------------------------------------------------------------------------------------------------------------


def signed(context, builder, value, have):
    """An index as 64 bits with a sign."""
    return context.cast(builder, value, have, types.int64)


def place_of(builder, array, indices: tuple):
    """Address, as an integer, of an element; one index of 64 bits for each axis."""
    where = builder.ptrtoint(array.data, ir.IntType(64))
    for axis, index in enumerate(indices):
        where = builder.add(where, builder.mul(index, builder.extract_value(array.strides, axis)))
    return where


def pointer(builder, place, kind, space: int = GLOBAL):
    """An address as a pointer to `kind`."""
    return builder.inttoptr(place, ir.PointerType(kind, space))


def _moved(builder, place, offset: int):
    return builder.add(place, ir.Constant(place.type, offset)) if offset else place


# -- words of 32 bits, in accesses of at most 16 bytes -----------------------------------------------------------------


def load_words(builder, place, offset: int, count: int, space: int = GLOBAL) -> list:
    """`count` words from `offset` bytes after an aligned address."""
    found = []
    while len(found) < count:
        width = min(WIDEST // 4, count - len(found))
        vector = ir.VectorType(ir.IntType(32), width)
        where = _moved(builder, place, offset + 4 * len(found))
        value = builder.load(pointer(builder, where, vector, space), align=4 * width)
        found += [builder.extract_element(value, i32(i)) for i in range(width)]
    return found


def load_words_once(builder, place, offset: int, count: int) -> list:
    """As `load_words`, from global memory, of what is read once: it takes no room in the L1 cache."""
    found = []
    while len(found) < count:
        width = min(WIDEST // 4, count - len(found))
        vector = {4: ".v4", 2: ".v2", 1: ""}[width]
        names = ", ".join(f"${i}" for i in range(width))
        text = f"ld.global.L1::no_allocate{vector}.b32 {'{' + names + '}' if width > 1 else names}, [${width}];"
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.LiteralStructType([word] * width) if width > 1 else word, [ir.IntType(64)])
        where = _moved(builder, place, offset + 4 * len(found))
        value = builder.asm(kind, text, ",".join(["=r"] * width + ["l"]), [where], side_effect=True)
        found += [builder.extract_value(value, i) for i in range(width)] if width > 1 else [value]
    return found


def store_words(builder, place, offset: int, words: list, space: int = GLOBAL) -> None:
    """Store words, the counterpart of `load_words`."""
    for done in range(0, len(words), WIDEST // 4):
        group = words[done : done + WIDEST // 4]
        value = vector_of(builder, group)
        where = _moved(builder, place, offset + 4 * done)
        builder.store(value, pointer(builder, where, value.type, space), align=4 * len(group))


def vector_of(builder, values: list):
    """A vector of some values of one type."""
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, i32(i))
    return vector


def halves(builder, value) -> list:
    """The two words of a float64."""
    bits = builder.bitcast(value, ir.IntType(64))
    return [builder.trunc(bits, ir.IntType(32)), builder.trunc(builder.lshr(bits, i64(32)), ir.IntType(32))]


def whole(builder, low, high):
    """The float64 of two words."""
    bits = builder.or_(builder.zext(low, ir.IntType(64)), builder.shl(builder.zext(high, ir.IntType(64)), i64(32)))
    return builder.bitcast(bits, ir.DoubleType())


# -- dtypes ------------------------------------------------------------------------------------------------------------


def dtype_name(numba_type) -> str:
    """Name of a dtype as Numba knows it; its bfloat16 has several."""
    name = str(numba_type)
    return "bfloat16" if "bfloat16" in name else name


def stored_type(dtype: str):
    """LLVM type in which a real element lies in memory."""
    if dtype in ("float32", "float64"):
        return ir.FloatType() if dtype == "float32" else ir.DoubleType()
    bits = {"bfloat16": 16, "float16": 16, "bool": 8}.get(dtype) or int(dtype.lstrip("uint"))
    return ir.IntType(bits)


def to_float(builder, value, dtype: str):
    """A stored element as float32."""
    if dtype == "bfloat16":
        return builder.bitcast(builder.shl(builder.zext(value, ir.IntType(32)), i32(16)), ir.FloatType())
    if dtype == "float16":
        return builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
    if dtype == "float32":
        return value
    if dtype == "float64":
        return builder.fptrunc(value, ir.FloatType())
    return (builder.uitofp if dtype.startswith("u") or dtype == "bool" else builder.sitofp)(value, ir.FloatType())


def pack(builder, values: list, dtype: str) -> list:
    """Words of 32 bits that hold `values` (float32, or float64 for float64) in `dtype`."""
    if dtype == "float64":
        return [word for value in values for word in halves(builder, value)]
    if dtype == "float32":
        return [builder.bitcast(v, ir.IntType(32)) for v in values]
    if dtype in ("float16", "bfloat16"):
        text = "cvt.rn." + ("f16x2" if dtype == "float16" else "bf16x2") + ".f32 $0, $1, $2;"
        kind = ir.FunctionType(ir.IntType(32), [ir.FloatType(), ir.FloatType()])
        return [builder.asm(kind, text, "=r,f,f", [values[i + 1], values[i]], side_effect=False)
                for i in range(0, len(values), 2)]  # fmt: skip
    kind = ir.FunctionType(ir.IntType(32), [ir.FloatType()])  # int8: rounded to even, clamped
    words = []
    for i in range(0, len(values), 4):
        word = i32(0)
        for e in range(4):
            byte = builder.asm(kind, "cvt.rni.sat.s8.f32 $0, $1;", "=r,f", [values[i + e]], side_effect=False)
            word = builder.or_(word, builder.shl(builder.and_(byte, i32(255)), i32(8 * e)))
        words.append(word)
    return words


def unpack(builder, words: list, dtype: str) -> list:
    """The numbers in some words of 32 bits: as float32, or float64 as they are."""
    if dtype == "float64":
        return [whole(builder, *words[i : i + 2]) for i in range(0, len(words), 2)]
    if dtype == "float32":
        return [builder.bitcast(word, ir.FloatType()) for word in words]
    found, bits = [], 8 * ITEM[dtype]
    for word in words:
        for i in range(32 // bits):
            part = builder.trunc(builder.lshr(word, i32(bits * i)) if i else word, ir.IntType(bits))
            found.append(to_float(builder, part, dtype))
    return found


def store_one(builder, place, value, dtype: str) -> None:
    """Store one number (float32, or float64 for float64) in `dtype`."""
    kind = stored_type(dtype)
    if dtype not in ("float32", "float64"):
        value = builder.trunc(pack(builder, [value] * (4 // ITEM[dtype]), dtype)[0], kind)
    builder.store(value, pointer(builder, place, kind))
