"""libmathdx through its C interface: what a device FFT is made of, and its LTO-IR.

In: plain integers and names (a `Description`). Out: traits as integers, and bytes of LTO-IR. The library is
loaded with ctypes because it then needs neither a driver nor nvmath: it compiles for any architecture on any
machine. This package is the only one that talks to it; devkernels/libmathdx/matmul.py has its
matrix products. Enumerations are those of the headers that its wheel ships
(libcommondx.h, libcufftdx.h; 0.3).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

from devkernels.errors import CompileError, MissingDependencyError

_PRECISION = {"float16": 3, "float32": 5, "float64": 6}
_FFT_TYPE = {"c2c": 0, "r2c": 1, "c2r": 2}
_DIRECTION = {"forward": 0, "inverse": 1}
_EXECUTION = {"Thread": 0, "Block": 1}
_LAYOUT = {"natural": 0, "packed": 1, "full": 2}
_REAL_MODE = {"normal": 0, "folded": 1}
_API = {"register": 0, "shared": 1}

_OPERATOR = dict(size=0, direction=1, fft_type=2, precision=3, sm=4, execution=5, ffts_per_block=6,
                 elements_per_thread=7, real_fft_options=9, api=10)  # fmt: skip
_TRAIT = dict(implicit_type_batching=3, elements_per_thread=4, storage_size=5, stride=6, shared_memory_size=8,
              ffts_per_block=9, input_length=11, output_length=12, input_elements_per_thread=13,
              output_elements_per_thread=14, suggested_ffts_per_block=15)  # fmt: skip
_TRAIT_VALUE_TYPE, _TRAIT_INPUT_TYPE, _TRAIT_OUTPUT_TYPE, _TRAIT_BLOCK_DIM, _TRAIT_SYMBOL = 0, 1, 2, 7, 10
_OPTION_TARGET_SM, _OPTION_NVRTC_ARGUMENTS = 1, 4
_BLOCK_ONLY = ("shared_memory_size", "ffts_per_block", "suggested_ffts_per_block")

# commondxValueType -> name; "x2" marks two batched rows in one value.
VALUE_TYPES = {6: "float16x2", 7: "float16", 9: "complex32x2", 12: "float32", 13: "complex64", 14: "float64",
               15: "complex128"}  # fmt: skip

Int64 = ctypes.c_longlong


@dataclass(frozen=True)
class Description:
    """One cuFFTDx function: what its descriptor is made of."""

    size: int
    precision: str
    fft_type: str
    direction: str
    execution: str
    sm: int  # 90 for sm_90
    ffts_per_block: int | None = None
    elements_per_thread: int | None = None
    layout: str | None = None
    real_mode: str | None = None
    api: str = "register"


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library.

    Raises
    ------
    MissingDependencyError
        libmathdx, or the NVRTC that it needs, is not installed.
    """
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise MissingDependencyError(_how_to_install(error)) from error
    try:
        load_nvidia_dynamic_lib("nvrtc")  # before libmathdx, which names it without saying where it is
        library = ctypes.CDLL(load_nvidia_dynamic_lib("mathdx").abs_path)
    except (DynamicLibNotFoundError, OSError, RuntimeError) as error:
        raise MissingDependencyError(_how_to_install(error)) from error
    if (found := version(library)) >= (0, 4, 0):
        raise MissingDependencyError(f"libmathdx {found} has another C interface; install libmathdx < 0.4.")
    return library


def _how_to_install(cause: object) -> str:
    return (
        "libmathdx could not be loaded; install devkernels[cu12] or devkernels[cu13] on a GPU machine, "
        f"devkernels[aot] on one without a GPU. ({str(cause).strip().splitlines()[0]})"
    )


def available() -> bool:
    """Whether libmathdx can be loaded here."""
    try:
        load()
    except MissingDependencyError:
        return False
    return True


def version(library: ctypes.CDLL | None = None) -> tuple[int, int, int]:
    """Version of libmathdx."""
    library = load() if library is None else library
    parts = [ctypes.c_int() for _ in range(3)]
    library.mathdxGetVersionEx(*map(ctypes.byref, parts))
    return tuple(part.value for part in parts)


def nvrtc_version() -> tuple[int, int]:
    """Version of the NVRTC that libmathdx compiles with."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    nvrtc = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def check(status: int, what: str, about: object) -> None:
    """Raise CompileError with the library's own words for a status other than success."""
    if status == 0:
        return
    library = load()
    detail, size, code = f"status {status}", ctypes.c_size_t(), ctypes.c_int()
    if library.commondxGetLastErrorStrSize(ctypes.byref(size)) == 0 and size.value > 0:
        text = ctypes.create_string_buffer(size.value)
        if library.commondxGetLastErrorStr(ctypes.byref(code), size, text) == 0:
            lines = text.value.decode(errors="replace").strip().splitlines()
            detail = " | ".join(lines[-6:]) or detail  # the last lines name the failed assertion
    raise CompileError(f"libmathdx: {what} failed for {about}: {detail}", spec=about)


class _Descriptor:
    """A cuFFTDx descriptor, destroyed at the end of the ``with`` block."""

    def __init__(self, description: Description):
        self.about = description
        self.handle = Int64()

    def __enter__(self) -> _Descriptor:
        d, library = self.about, load()
        check(library.cufftdxCreateDescriptor(ctypes.byref(self.handle)), "creating a descriptor", d)
        try:
            self._set("api", _API[d.api])
            self._set("sm", d.sm * 10)
            self._set("size", d.size)
            self._set("precision", _PRECISION[d.precision])
            self._set("fft_type", _FFT_TYPE[d.fft_type])
            self._set("direction", _DIRECTION[d.direction])
            if d.layout is not None:
                values = (Int64 * 2)(_LAYOUT[d.layout], _REAL_MODE[d.real_mode or "normal"])
                status = library.cufftdxSetOperatorInt64s(
                    self.handle, _OPERATOR["real_fft_options"], ctypes.c_size_t(2), values
                )
                check(status, "setting real_fft_options", d)
            self._set("execution", _EXECUTION[d.execution])
            if d.execution == "Block" and d.ffts_per_block:
                self._set("ffts_per_block", d.ffts_per_block)
            if d.execution == "Block" and d.elements_per_thread:
                self._set("elements_per_thread", d.elements_per_thread)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        load().cufftdxDestroyDescriptor(self.handle)

    def _set(self, operator: str, value: int) -> None:
        status = load().cufftdxSetOperatorInt64(self.handle, _OPERATOR[operator], Int64(value))
        check(status, f"setting {operator}={value}", self.about)

    def integer(self, trait: str) -> int:
        value = Int64()
        check(load().cufftdxGetTraitInt64(self.handle, _TRAIT[trait], ctypes.byref(value)), trait, self.about)
        return value.value

    def value_type(self, trait: int) -> str:
        value = ctypes.c_int()
        status = load().cufftdxGetTraitCommondxDataType(self.handle, trait, ctypes.byref(value))
        check(status, "reading a value type", self.about)
        return VALUE_TYPES[value.value]

    def block_dim(self) -> tuple[int, int, int]:
        values = (Int64 * 3)()
        status = load().cufftdxGetTraitInt64s(self.handle, _TRAIT_BLOCK_DIM, ctypes.c_size_t(3), values)
        check(status, "block_dim", self.about)
        return tuple(values)

    def symbol(self) -> str:
        size = ctypes.c_size_t()
        check(load().cufftdxGetTraitStrSize(self.handle, _TRAIT_SYMBOL, ctypes.byref(size)), "symbol", self.about)
        text = ctypes.create_string_buffer(size.value)
        check(load().cufftdxGetTraitStr(self.handle, _TRAIT_SYMBOL, size, text), "symbol", self.about)
        return text.value.decode()

    def is_supported(self) -> bool:
        value = ctypes.c_int()
        check(load().cufftdxIsSupported(self.handle, ctypes.byref(value)), "asking for support", self.about)
        return bool(value.value)

    def knobs(self) -> list[tuple[int, int]]:
        knobs, count = (ctypes.c_int * 2)(0, 1), ctypes.c_size_t()  # elements per thread, FFTs per block
        status = load().cufftdxGetKnobInt64Size(self.handle, ctypes.c_size_t(2), knobs, ctypes.byref(count))
        check(status, "counting knobs", self.about)
        values = (Int64 * count.value)()
        status = load().cufftdxGetKnobInt64s(self.handle, ctypes.c_size_t(2), knobs, count, values)
        check(status, "reading knobs", self.about)
        return list(zip(values[::2], values[1::2], strict=True))


def is_supported(description: Description) -> bool:
    """Whether the library has an implementation. It also says yes to odd lengths that it then cannot build."""
    with _Descriptor(description) as descriptor:
        return descriptor.is_supported()


def knobs(description: Description) -> list[tuple[int, int]]:
    """Every (elements_per_thread, suggested ffts_per_block) that the library has tuned for this function."""
    with _Descriptor(description) as descriptor:
        return descriptor.knobs()


def traits(description: Description) -> dict:
    """All traits by name; those that only a block has are None for thread execution."""
    with _Descriptor(description) as d:
        block = description.execution == "Block"
        found = {name: d.integer(name) if block or name not in _BLOCK_ONLY else None for name in _TRAIT}
        found["block_dim"] = d.block_dim() if block else None
        found["value_type"] = d.value_type(_TRAIT_VALUE_TYPE)
        found["input_type"] = d.value_type(_TRAIT_INPUT_TYPE)
        found["output_type"] = d.value_type(_TRAIT_OUTPUT_TYPE)
        return found


def symbol(description: Description) -> str:
    """Name of the device function; known without compiling it."""
    with _Descriptor(description) as descriptor:
        return descriptor.symbol()


def code_of(about: object, target_sm: int, finalize: Callable[[Int64], int]) -> bytes:
    """LTO-IR for `target_sm` of what ``finalize(code)`` puts into a code object, which returns a status."""
    library, code = load(), Int64()
    check(library.commondxCreateCode(ctypes.byref(code)), "creating a code object", about)
    try:
        status = library.commondxSetCodeOptionInt64(code, _OPTION_TARGET_SM, Int64(target_sm * 10))
        check(status, f"setting the target sm_{target_sm}", about)
        status = library.commondxSetCodeOptionStr(code, _OPTION_NVRTC_ARGUMENTS, b"-gen-opt-lto")
        check(status, "setting the compiler's options", about)
        check(finalize(code), "compiling", about)
        size = ctypes.c_size_t()
        check(library.commondxGetCodeLTOIRSize(code, ctypes.byref(size)), "sizing the LTO-IR", about)
        out = ctypes.create_string_buffer(size.value)
        check(library.commondxGetCodeLTOIR(code, size, out), "reading the LTO-IR", about)
        return out.raw
    finally:
        library.commondxDestroyCode(code)


def ltoir(description: Description, target_sm: int) -> bytes:
    """Compile to LTO-IR for `target_sm` (90 for sm_90). Takes seconds; serialised inside a process by NVRTC."""
    with _Descriptor(description) as descriptor:
        return code_of(description, target_sm, lambda code: load().cufftdxFinalizeCode(code, descriptor.handle))
