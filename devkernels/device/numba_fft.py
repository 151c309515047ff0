"""Typing and lowering of DeviceFFT in Numba's CUDA target: what `f(...)`, `f.load` and the traits mean in a kernel.

In: a `DeviceFFT` met by Numba as a global or closure value. Out: calls into libmathdx's LTO-IR, and inlined loops.
Imported only when a kernel is compiled for a GPU (DeviceFFT._numba_type_).
"""

from __future__ import annotations

from dataclasses import replace

from numba import types
from numba.core.errors import TypingError
from numba.cuda.extending import overload_method

from devkernels import fft_sizes, target, traits
from devkernels.device import _intrinsics, rows, rows_half
from devkernels.device.code import FunctionRequest, linkable
from devkernels.device.numba_objects import INLINE, DeviceObjectType, absent, compiled_for, refresh, register
from devkernels.device.sides import row_type
from devkernels.errors import TargetError

_VALUE = {"complex64": types.complex64, "complex128": types.complex128, "complex32x2": types.uint64}


class DeviceFFTType(DeviceObjectType):
    """Numba type of one DeviceFFT."""

    def __init__(self, fft):
        self.fft = fft
        super().__init__(fft)


_INTEGER_TRAITS = (
    "size", "storage_size", "elements_per_thread", "stride", "ffts_per_block", "suggested_ffts_per_block",
    "implicit_type_batching", "shared_memory_size", "shared_io_size", "input_length", "output_length",
    "input_elements_per_thread", "output_elements_per_thread", "scale",
)  # fmt: skip


def _trait(fft_value, name: str):
    value = getattr(fft_value.fft, name)
    if value is None:
        raise TypingError(f"{name} of the {fft_value.fft.spec} is None: it has no blocks.")
    return value


register(DeviceFFTType, (*_INTEGER_TRAITS, "value_type", "input_type", "output_type"), _trait)


# -- calls ---------------------------------------------------------------------------------------------------------


def retarget(spec, here: target.Target):
    """The same function for another architecture, if its traits are the same there; else a TargetError."""
    if spec.target == here:
        return spec
    moved = replace(spec, target=here)
    if not fft_sizes.is_supported(moved) or traits.raw_traits(moved) != traits.raw_traits(spec):
        ours, theirs = traits.raw_traits(spec), traits.raw_traits(moved) if fft_sizes.is_supported(moved) else None
        differing = [] if theirs is None else [n for n in vars(ours) if getattr(ours, n) != getattr(theirs, n)]
        # The suggestion is no property of the function; the block that was built with it is.
        if theirs is None or differing != ["suggested_ffts_per_block"]:
            detail = "does not exist there" if theirs is None else f"has another {', '.join(differing)} there"
            raise TargetError(
                f"the {spec} was built for {spec.target} and is compiled for {here}, where it {detail}; "
                f"build it with sm='{here}', or in a factory that devkernels build calls once per target.",
                spec=spec,
            )
    return moved


def _code_finder(fft, api: str):
    def find():
        here = compiled_for()
        return linkable(FunctionRequest(fft_sizes.description(retarget(fft.spec, here), api), here))

    return find


def _check_values(fft, array, name: str) -> None:
    wanted = _VALUE[fft.traits.value_type]
    if not isinstance(array, types.Array) or array.dtype != wanted:
        found = array.dtype if isinstance(array, types.Array) else array
        raise TypingError(
            f"{name} of the {fft.spec} must be an array of {wanted}, not {found}: make it with "
            f"cuda.local.array or cuda.shared.array and dtype=f.value_type."
        )


@overload_method(DeviceFFTType, "__call__", jit_options=INLINE)
def _call(f, first, second=None):
    fft = f.fft
    if fft.spec.is_block and not absent(second):
        _check_values(fft, first, "thread_data")
        if not isinstance(second, types.Array):
            raise TypingError(f"shared_mem must be a shared-memory array, not {second}.")
        run = _intrinsics.make_call(_code_finder(fft, "register"), 2)

        def in_registers(f, first, second=None):
            run(first, second)

        return in_registers
    if not absent(second):
        raise TypingError(f"the {fft.spec} takes f(thread_data); it uses no shared memory.")
    _check_values(fft, first, "shared_mem" if fft.spec.is_block else "thread_data")
    run = _intrinsics.make_call(_code_finder(fft, "shared" if fft.spec.is_block else "register"), 1)

    def in_place(f, first, second=None):
        run(first)

    return in_place


# -- collectives ---------------------------------------------------------------------------------------------------


def _check_rows(fft, array, side: str, name: str) -> None:
    dtype, axes = row_type(fft, side)
    if not isinstance(array, types.Array) or str(array.dtype) != str(dtype) or array.ndim != axes:
        shape = "(rows, length)" if axes == 2 else "(rows, length, 2)"
        raise TypingError(f"{name} must be a {dtype} array of shape {shape} for the {fft.spec}, not {array}.")
    if array.layout == "F":
        raise TypingError(f"{name} is in column order; its last axis must be contiguous (numpy.ascontiguousarray).")


def _moves(fft):
    """The module whose loops move this transform's rows."""
    return rows_half if fft.spec.precision == "float16" else rows


@overload_method(DeviceFFTType, "load", jit_options=INLINE)
def _load(f, x, row, thread_data):
    fft = f.fft
    _check_rows(fft, x, "input", "x")
    _check_values(fft, thread_data, "thread_data")
    body = _moves(fft).make_load(fft, strided=x.layout != "C")

    def load(f, x, row, thread_data):
        body(x, row, thread_data)

    return load


@overload_method(DeviceFFTType, "store", jit_options=INLINE)
def _store(f, thread_data, y, row):
    fft = f.fft
    _check_rows(fft, y, "output", "y")
    _check_values(fft, thread_data, "thread_data")
    body = _moves(fft).make_store(fft, strided=y.layout != "C")

    def store(f, thread_data, y, row):
        body(thread_data, y, row)

    return store


@overload_method(DeviceFFTType, "index", jit_options=INLINE)
def _index(f, i):
    return rows.make_index(f.fft)


@overload_method(DeviceFFTType, "row", jit_options=INLINE)
def _row(f):
    if not f.fft.spec.is_block:
        raise TypingError("row() needs execution='Block'.")
    return rows.make_row(f.fft)


@overload_method(DeviceFFTType, "pack", jit_options=INLINE)
def _pack(f, first, second):
    if f.fft.spec.precision != "float16":
        raise TypingError("pack() is for precision float16; other values are plain complex numbers.")
    return rows_half.make_pack()


@overload_method(DeviceFFTType, "unpack", jit_options=INLINE)
def _unpack(f, value):
    if f.fft.spec.precision != "float16":
        raise TypingError("unpack() is for precision float16; other values are plain complex numbers.")
    return rows_half.make_unpack()


refresh()
