"""libmathdx's matrix products (cuBLASDx) through its C interface: traits, names of functions, their LTO-IR.

In: plain integers and names (a `MatmulDescription`). Out: traits as integers, and bytes of LTO-IR. Enumerations are
those of the headers that the wheel ships (libcommondx.h, libcublasdx.h; 0.3).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from devkernels.libmathdx import Int64, check, code_of, load

_PRECISION = {"float16": 3, "float32": 5, "float64": 6, "int8": 7, "int16": 8, "int32": 9, "int64": 10, "uint8": 11,
              "uint16": 12, "uint32": 13, "uint64": 14}  # fmt: skip
_TYPE = {"real": 0, "complex": 1}
_ARRANGEMENT = {"col_major": 0, "row_major": 1}
_TRANSPOSE = {"non_transposed": 0, "transposed": 1, "conj_transposed": 2}
_API = {"shared": 0, "leading_dimensions": 1, "fragment": 2, "suggested": 2}
_OPERATOR = dict(function=0, size=1, type=2, precision=3, sm=4, execution=5, block_dim=6, leading_dimension=7,
                 transpose_mode=8, api=9, arrangement=10, alignment=11, static_block_dim=12)  # fmt: skip
_TRAIT = dict(block_dim=3, leading_dimension=4, alignment=7, suggested_leading_dimension=8,
              suggested_block_dim=9)  # fmt: skip
_TRAIT_SYMBOL = 5
_BLOCK = 1
# Tensors: a and b in shared memory, c in registers; in plain layouts, or as the library suggests, which then also
# copies from global ones.
_TENSORS = {"fragment": {"a": 0, "b": 1, "c": 11},
            "suggested": {"a": 3, "b": 4, "c": 6, "global a": 7, "global b": 8}}  # fmt: skip
_STORAGE_BYTES = 0  # trait of a tensor
_SYMBOL_NAME = 0  # option of a device function
_PLAIN = {"execute": (0, "a", "b", "c"), "position": (6, "c"), "active": (8, "c"), "in_bounds": (10, "c")}
# Device functions by name: their kind, and the tensors that they are for.
FUNCTIONS = {
    "fragment": _PLAIN,
    "suggested": {**_PLAIN, "index_a": (7, "a"), "index_b": (7, "b"), "copy_a": (1, "global a", "a"),
                  "copy_b": (1, "global b", "b"), "copy_wait": (2,)},
}  # fmt: skip


@dataclass(frozen=True)
class MatmulDescription:
    """One cuBLASDx product: what its descriptor is made of. Triples are for a, b, c; None leaves it to the library."""

    size: tuple[int, int, int]
    precision: tuple[str, str, str]
    data_type: str
    sm: int  # 90 for sm_90
    arrangement: tuple[str, str, str] | None = None
    transpose_mode: tuple[str, str] | None = None
    leading_dimension: tuple[int, int, int] | None = None
    alignment: tuple[int, int, int] | None = None
    block_dim: tuple[int, int, int] | None = None
    static_block_dim: bool = False
    api: str = (
        "shared"  # one of shared, leading_dimensions, fragment, suggested (fragment, with such layouts of a and b)
    )


class _Descriptor:
    """A cuBLASDx descriptor, destroyed at the end of the ``with`` block."""

    def __init__(self, description: MatmulDescription):
        self.about = description
        self.handle = Int64()

    def __enter__(self) -> _Descriptor:
        d, library = self.about, load()
        check(library.cublasdxCreateDescriptor(ctypes.byref(self.handle)), "creating a descriptor", d)
        try:
            self._set("api", _API[d.api])
            self._set("size", d.size)
            self._set("precision", [_PRECISION[p] for p in d.precision])
            self._set("function", 0)
            self._set("execution", _BLOCK)
            self._set("type", _TYPE[d.data_type])
            self._set("sm", d.sm * 10)
            if d.block_dim is not None:
                self._set("block_dim", d.block_dim)
            if d.static_block_dim:
                self._set("static_block_dim", 1)
            if d.leading_dimension is not None and d.api not in ("leading_dimensions", "suggested"):
                self._set("leading_dimension", d.leading_dimension)
            if d.transpose_mode is not None:
                self._set("transpose_mode", [_TRANSPOSE[t] for t in d.transpose_mode])
            if d.arrangement is not None:
                self._set("arrangement", [_ARRANGEMENT[a] for a in d.arrangement])
            if d.alignment is not None:
                self._set("alignment", d.alignment)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        load().cublasdxDestroyDescriptor(self.handle)

    def _set(self, operator: str, value: object) -> None:
        if isinstance(value, int):
            status = load().cublasdxSetOperatorInt64(self.handle, _OPERATOR[operator], Int64(value))
        else:
            values = (Int64 * len(value))(*value)
            size = ctypes.c_size_t(len(value))
            status = load().cublasdxSetOperatorInt64s(self.handle, _OPERATOR[operator], size, values)
        check(status, f"setting {operator}={value}", self.about)

    def triple(self, trait: str) -> tuple[int, int, int]:
        values = (Int64 * 3)()
        status = load().cublasdxGetTraitInt64s(self.handle, _TRAIT[trait], ctypes.c_size_t(3), values)
        check(status, trait, self.about)
        return tuple(values)

    def symbol(self) -> str:
        library, size = load(), ctypes.c_size_t()
        status = library.cublasdxGetTraitStrSize(self.handle, _TRAIT_SYMBOL, ctypes.byref(size))
        check(status, "symbol", self.about)
        text = ctypes.create_string_buffer(size.value)
        check(library.cublasdxGetTraitStr(self.handle, _TRAIT_SYMBOL, size, text), "symbol", self.about)
        return text.value.decode()

    @contextmanager
    def tensors(self) -> Iterator[dict[str, Int64]]:
        """The tensors of the fragment form, by name."""
        library, made = load(), {}
        try:
            for name, kind in _TENSORS[self.about.api].items():
                tensor = made[name] = Int64()
                status = library.cublasdxCreateTensor(self.handle, kind, ctypes.byref(tensor))
                check(status, "creating a tensor", self.about)
            handles = (Int64 * len(made))(*made.values())
            check(library.cublasdxFinalizeTensors(ctypes.c_size_t(len(made)), handles), "tensors", self.about)
            yield made
        finally:
            for tensor in made.values():
                library.cublasdxDestroyTensor(tensor)


def traits(description: MatmulDescription) -> dict[str, tuple[int, int, int]]:
    """Triples by name: block_dim, leading_dimension, alignment, and the suggested ones."""
    with _Descriptor(description) as d:
        return {name: d.triple(name) for name in _TRAIT}


def storage(description: MatmulDescription) -> tuple[int, int, int]:
    """Bytes of a and b in shared memory, and of c in a thread's registers, in the fragment form."""
    found = []
    with _Descriptor(description) as d, d.tensors() as tensors:
        for name in "abc":
            size = Int64()
            status = load().cublasdxGetTensorTraitInt64(tensors[name], _STORAGE_BYTES, ctypes.byref(size))
            check(status, f"the size of {name}", description)
            found.append(size.value)
    return tuple(found)


@functools.cache
def symbols(description: MatmulDescription) -> dict[str, str]:
    """Names of the device functions, known without compiling them."""
    if description.api not in FUNCTIONS:
        with _Descriptor(description) as descriptor:
            return {"execute": descriptor.symbol()}
    stem = "devkernels_matmul_" + hashlib.sha256(repr(description).encode()).hexdigest()[:24]
    return {name: f"{stem}_{name}" for name in FUNCTIONS[description.api]}


def ltoir(description: MatmulDescription, target_sm: int) -> bytes:
    """Compile to LTO-IR for `target_sm` (90 for sm_90); the fragment form's functions come together."""
    library = load()
    with _Descriptor(description) as descriptor:
        if description.api not in FUNCTIONS:
            return code_of(description, target_sm, lambda code: library.cublasdxFinalizeCode(code, descriptor.handle))
        with descriptor.tensors() as tensors, ExitStack() as stack:
            functions = []
            for name, symbol in symbols(description).items():
                kind, *wanted = FUNCTIONS[description.api][name]
                given = (Int64 * len(wanted))(*(tensors[one] for one in wanted)) if wanted else None
                function, count = Int64(), ctypes.c_size_t(len(wanted))
                status = library.cublasdxCreateDeviceFunction(
                    descriptor.handle, kind, count, given, ctypes.byref(function)
                )
                check(status, f"creating {name}", description)
                stack.callback(library.cublasdxDestroyDeviceFunction, function)
                status = library.cublasdxSetDeviceFunctionOptionStr(function, _SYMBOL_NAME, symbol.encode())
                check(status, f"naming {name}", description)
                functions.append(function)
            array, count = (Int64 * len(functions))(*functions), ctypes.c_size_t(len(functions))
            return code_of(
                description, target_sm, lambda code: library.cublasdxFinalizeDeviceFunctions(code, count, array)
            )
