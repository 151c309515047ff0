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
_API = {"shared": 0, "leading_dimensions": 1, "fragment": 2}
_OPERATOR = dict(function=0, size=1, type=2, precision=3, sm=4, execution=5, block_dim=6, leading_dimension=7,
                 transpose_mode=8, api=9, arrangement=10, alignment=11, static_block_dim=12)  # fmt: skip
_TRAIT = dict(block_dim=3, leading_dimension=4, alignment=7, suggested_leading_dimension=8,
              suggested_block_dim=9)  # fmt: skip
_TRAIT_SYMBOL = 5
_BLOCK = 1
_SMEM_A, _SMEM_B, _RMEM_C = 0, 1, 11  # tensors
_STORAGE_BYTES = 0  # trait of a tensor
_EXECUTE, _POSITION, _ACTIVE, _IN_BOUNDS = 0, 6, 8, 10  # device functions
_SYMBOL_NAME = 0  # option of a device function

FRAGMENT_FUNCTIONS = {"execute": (_EXECUTE, 3), "position": (_POSITION, 1), "active": (_ACTIVE, 1),
                      "in_bounds": (_IN_BOUNDS, 1)}  # fmt: skip


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
    api: str = "shared"


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
            if d.leading_dimension is not None and d.api != "leading_dimensions":
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
    def tensors(self) -> Iterator[list[Int64]]:
        """The tensors of the fragment form: a and b in shared memory, c in registers."""
        library, made = load(), []
        try:
            for kind in (_SMEM_A, _SMEM_B, _RMEM_C):
                tensor = Int64()
                status = library.cublasdxCreateTensor(self.handle, kind, ctypes.byref(tensor))
                check(status, "creating a tensor", self.about)
                made.append(tensor)
            check(library.cublasdxFinalizeTensors(ctypes.c_size_t(3), (Int64 * 3)(*made)), "tensors", self.about)
            yield made
        finally:
            for tensor in made:
                library.cublasdxDestroyTensor(tensor)


def traits(description: MatmulDescription) -> dict[str, tuple[int, int, int]]:
    """Triples by name: block_dim, leading_dimension, alignment, and the suggested ones."""
    with _Descriptor(description) as d:
        return {name: d.triple(name) for name in _TRAIT}


def fragment_size(description: MatmulDescription) -> int:
    """Elements of c that a thread holds in registers."""
    with _Descriptor(description) as d, d.tensors() as tensors:
        size = Int64()
        status = load().cublasdxGetTensorTraitInt64(tensors[2], _STORAGE_BYTES, ctypes.byref(size))
        check(status, "the size of a fragment", description)
        return size.value


@functools.cache
def symbols(description: MatmulDescription) -> dict[str, str]:
    """Names of the device functions, known without compiling them."""
    if description.api != "fragment":
        with _Descriptor(description) as descriptor:
            return {"execute": descriptor.symbol()}
    stem = "devkernels_matmul_" + hashlib.sha256(repr(description).encode()).hexdigest()[:24]
    return {name: f"{stem}_{name}" for name in FRAGMENT_FUNCTIONS}


def ltoir(description: MatmulDescription, target_sm: int) -> bytes:
    """Compile to LTO-IR for `target_sm` (90 for sm_90); the fragment form's functions come together."""
    library = load()
    with _Descriptor(description) as descriptor:
        if description.api != "fragment":
            return code_of(description, target_sm, lambda code: library.cublasdxFinalizeCode(code, descriptor.handle))
        with descriptor.tensors() as tensors, ExitStack() as stack:
            functions = []
            for name, symbol in symbols(description).items():
                kind, count = FRAGMENT_FUNCTIONS[name]
                given = tensors if count == 3 else tensors[2:]
                function = Int64()
                status = library.cublasdxCreateDeviceFunction(
                    descriptor.handle, kind, ctypes.c_size_t(count), (Int64 * count)(*given), ctypes.byref(function)
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
