"""Functions that nvmath.device compiles, from the cache: in kernels with its own objects, and for its pipelines.

In: the module ``nvmath.bindings.mathdx``, if the program has imported it. Out: the same module, whose calls that
compile ask `devkernels.cache` first. nvmath.device compiles a function again at every attempt to type a call, and keeps
nothing; what it asks for is told by the symbol of the function, under which nvmath itself remembers its declarations,
and by the options of the code object (architecture, compiler arguments).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from devkernels import cache, versions
from devkernels.canonical import digest
from devkernels.compiler.nvmath_layouts import KIND, Layouts
from devkernels.target import Target

_MODULE = "nvmath.bindings.mathdx"
_LIBRARIES = {"cufftdx": "CufftdxTraitType", "cublasdx": "CublasdxTraitType", "cusolverdx": "CusolverdxTraitType"}


def keep_nvmath_functions() -> bool:
    """Keep what nvmath.device compiles, from now on and for the rest of the process.

    Compiled functions, and the sizes of tensors and pipelines. `devkernels.kernel` and `devkernels.compile` see to it
    by themselves. Call it, after ``import nvmath.device``, for ``@cuda.jit`` kernels with nvmath's objects, and for
    device pipelines that are made before any kernel is decorated.

    Returns
    -------
    bool
        Whether nvmath.device has been imported, so that there is something to keep.

    Raises
    ------
    JitDisabledError
        Not by this call, but by nvmath's later ones: ``DEVKERNELS_DISABLE_JIT`` is set and a function is not in the
        cache.
    """
    mathdx = sys.modules.get(_MODULE)
    if mathdx is None:
        return False
    if not hasattr(mathdx, "_devkernels_kept"):
        mathdx._devkernels_kept = _Kept(mathdx)
    return True


def link_target(contents: Iterable[bytes], target: Target) -> Target:
    """The architecture to link for: ``sm_90a`` where sm_90 is asked for, if code for it is among `contents`.

    nvmath.device compiles for ``sm_90a`` on a Hopper GPU, whatever the kernel around it is compiled for, because the
    quick matrix instructions exist only there.
    """
    kept = getattr(sys.modules.get(_MODULE), "_devkernels_kept", None)
    if kept is None or target.arch_specific or not any(content in kept.arch_specific for content in contents):
        return target
    return replace(target, arch_specific=True)


class _Kept:
    """The calls of libmathdx's binding that lead from a description to LTO-IR, with the cache between."""

    def __init__(self, mathdx: Any):
        self._mathdx = mathdx
        self._options: dict[int, list[tuple]] = {}  # of each code object, in the order in which they were set
        self._functions: dict[str, tuple[int, bytes]] = {}  # by key: version of the instruction set, LTO-IR
        self._found: dict[int, tuple[int, bytes]] = {}  # the same by code object; nvmath keeps many of these
        self.arch_specific: set[bytes] = set()  # LTO-IR for sm_90a and the like
        self._specific_codes: set[int] = set()
        self._size, self._read = mathdx.commondx_get_code_ltoir_size, mathdx.commondx_get_code_ltoir
        self._number = mathdx.commondx_get_code_option_int64
        replaced = {
            "commondx_create_code": self._created,
            "commondx_destroy_code": self._destroyed,
            "commondx_get_code_ltoir_size": self._size_of,
            "commondx_get_code_ltoir": self._read_into,
            "commondx_get_code_option_int64": self._number_of,
            "cublasdx_finalize_device_functions": self._functions_finalized,
        }
        replaced |= {f"{library}_finalize_code": self._finalized(library) for library in _LIBRARIES}
        for kind in ("int64", "int64s", "str"):
            replaced[f"commondx_set_code_option_{kind}"] = self._option_set
        self._layouts = Layouts(mathdx, self._replace)
        for name, replacement in replaced.items():
            self._replace(name, replacement)

    def _replace(self, name: str, replacement: Callable) -> None:
        original = getattr(self._mathdx, name, None)
        if original is not None:  # else a version without one of the libraries
            setattr(self._mathdx, name, lambda *arguments: replacement(original, *arguments))

    def _created(self, original: Callable) -> int:
        code = original()
        self._options[code] = []  # the handle may be that of a code object that is gone
        self._specific_codes.discard(code)
        self._found.pop(code, None)
        return code

    def _destroyed(self, original: Callable, code: int) -> None:
        self._options.pop(code, None)
        self._found.pop(code, None)
        original(code)

    def _option_set(self, original: Callable, code: int, option: int, *values: Any) -> None:
        original(code, option, *values)
        if option == self._mathdx.CommondxOption.TARGET_SM and values[0] == 2:  # 900, and the mark of sm_90a
            self._specific_codes.add(code)
        plain = [tuple(value) if isinstance(value, list) else value for value in values]
        self._options.setdefault(code, []).append((int(option), [str(value) for value in plain]))

    def _finalized(self, library: str) -> Callable:
        trait = getattr(self._mathdx, _LIBRARIES[library], None)
        size = getattr(self._mathdx, f"{library}_get_trait_str_size", None)
        read = getattr(self._mathdx, f"{library}_get_trait_str", None)

        def finalized(original: Callable, code: int, descriptor: int) -> None:
            symbol = _text(size, read, descriptor, trait.SYMBOL_NAME)
            self._find(code, library, [symbol], lambda: original(code, descriptor))

        return finalized

    def _functions_finalized(self, original: Callable, code: int, count: int, functions: list[int]) -> None:
        mathdx = self._mathdx
        symbols = [
            _text(mathdx.cublasdx_get_device_function_trait_str_size, mathdx.cublasdx_get_device_function_trait_str,
                  function, mathdx.CublasdxDeviceFunctionTrait.SYMBOL)
            for function in functions
        ]  # fmt: skip
        self._find(code, "cublasdx device", symbols, lambda: original(code, count, functions))

    def _find(self, code: int, library: str, symbols: list[str], compile_now: Callable[[], None]) -> None:
        """The LTO-IR of a code object: from the cache, or compiled by the library and kept."""

        def build() -> bytes:
            try:
                compile_now()
            except self._mathdx.LibMathDxError:  # perhaps for want of a tensor or pipeline that was put off
                if not self._layouts.settle():
                    raise
                compile_now()
            size = self._size(code)
            content = bytearray(size)
            self._read(code, size, content)
            return struct.pack("<q", self._number(code, self._mathdx.CommondxOption.CODE_ISA)) + content

        known = versions.for_functions() | {"nvmath": versions.libraries()["nvmath"]}
        key = digest("nvmath", library, symbols, self._options.get(code, []), known)
        data = cache.get_or_build(KIND, key, build, spec=f"{library} function {', '.join(symbols)} of nvmath.device")
        if key not in self._functions:
            self._functions[key] = struct.unpack_from("<q", data)[0], data[8:]
        self._found[code] = self._functions[key]
        if code in self._specific_codes:
            self.arch_specific.add(self._functions[key][1])

    def _size_of(self, original: Callable, code: int) -> int:
        return len(self._found[code][1]) if code in self._found else original(code)

    def _read_into(self, original: Callable, code: int, size: int, buffer: bytearray) -> None:
        if code not in self._found:
            original(code, size, buffer)
            return
        buffer[:size] = self._found[code][1][:size]

    def _number_of(self, original: Callable, code: int, option: int) -> int:
        if code in self._found and option == self._mathdx.CommondxOption.CODE_ISA:
            return self._found[code][0]
        return original(code, option)


def _text(size: Callable, read: Callable, handle: int, trait: int) -> str:
    content = bytearray(size(handle, trait))
    read(handle, trait, len(content), content)
    return content[:-1].decode()  # without the zero at its end
