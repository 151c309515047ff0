"""Typing and lowering of DeviceMatmul in Numba's CUDA target: calls, fragments, tiles, traits.

In: a `DeviceMatmul` met by Numba as a global or closure value. Out: calls into libmathdx's LTO-IR, and inlined loops.
Imported only when a kernel is compiled for a GPU (DeviceMatmul._numba_type_).
"""

from __future__ import annotations

from dataclasses import replace

from numba import types
from numba.core.errors import TypingError
from numba.cuda.extending import overload_method

from devkernels import matmul_traits, pipeline_spec
from devkernels.device import _matmul_calls as calls
from devkernels.device import tiles
from devkernels.device.code import linkable
from devkernels.device.matmul_code import MatmulRequest
from devkernels.device.numba_objects import INLINE, DeviceObjectType, absent, compiled_for, refresh, register
from devkernels.errors import TargetError


class DeviceMatmulType(DeviceObjectType):
    """Numba type of one DeviceMatmul."""

    def __init__(self, mm):
        self.mm = mm
        super().__init__(mm)


def _trait(mm_value, name: str):
    value = getattr(mm_value.mm, name)
    return tuple(value) if isinstance(value, tuple) else value  # named tuples are types of their own to Numba


_TRAITS = (
    "size", "a_dim", "b_dim", "c_dim", "a_size", "b_size", "c_size", "leading_dimension", "alignment", "block_dim",
    "block_size", "with_pipeline", "max_threads_per_block", "shared_memory_size", "shared_memory_size_ab",
    "accumulator_size", "a_value_type", "b_value_type", "c_value_type",
)  # fmt: skip
register(DeviceMatmulType, _TRAITS, _trait)


# -- calls -------------------------------------------------------------------------------------------------------------


def _code_finder(mm, api: str):
    """Function that finds the code of a product for the architecture that is compiled for."""

    def find():
        here, spec = compiled_for(), mm.spec
        moved = spec if spec.target == here else replace(spec, target=here)
        same = api != "fragment" or matmul_traits.fragment_size(moved, False) == mm.accumulator_size
        if moved.shared_bytes(2) > here.max_shared_bytes or not same:
            why = "does not fit shared memory" if same else "has another accumulator"
            raise TargetError(
                f"the {spec} was built for {spec.target} and is compiled for {here}, where it {why}; build it with "
                f"sm='{here}'.",
                spec=spec,
            )
        form = matmul_traits.fragment_api(moved) if api == "fragment" else api
        return linkable(MatmulRequest(matmul_traits.description(moved, form), here))

    return find


def _places(mm):
    """How places of an accumulator's elements are found: by rule where warpgroups multiply, else by the library."""
    if mm.spec.with_pipeline and pipeline_spec.engine(mm.spec) == pipeline_spec.WARPGROUP:
        return calls.GroupPlaces(mm.size[1], mm.size[0] * 128 // mm.block_size)
    return calls.LibraryPlaces(_code_finder(mm, "fragment"))


def _check_matrix(mm, array, which: int, name: str) -> None:
    wanted = mm.spec.value_types[which]
    if not isinstance(array, types.Array) or str(array.dtype) != wanted or array.layout == "A":
        raise TypingError(
            f"{name} of the {mm.spec} must be a contiguous array of {wanted}, not {array}: make it with "
            f"cuda.shared.array and dtype=mm.{'abc'[which]}_value_type."
        )


def _check_fragment(mm, array) -> None:
    wanted = mm.spec.value_types[2]
    if not isinstance(array, types.Array) or str(array.dtype) != wanted:
        raise TypingError(
            f"the accumulator of the {mm.spec} must be cuda.local.array(mm.accumulator_size, mm.c_value_type), an "
            f"array of {wanted}, not {array}."
        )


@overload_method(DeviceMatmulType, "__call__", jit_options=INLINE)
def _call(f, first, second, third, fourth=None, fifth=None, sixth=None, seventh=None, eighth=None):
    mm = f.mm
    if mm.spec.with_pipeline:
        raise TypingError(f"the {mm.spec} multiplies through mm.suggest_device_pipeline(depth, a, b) only.")
    if absent(fourth):
        _check_matrix(mm, first, 0, "a")
        _check_matrix(mm, second, 1, "b")
        _check_fragment(mm, third)
        accumulate = calls.make_accumulate(_code_finder(mm, "fragment"))

        def in_registers(f, first, second, third, fourth=None, fifth=None, sixth=None, seventh=None, eighth=None):
            accumulate(first, second, third)

        return in_registers
    if absent(fifth):
        raise TypingError("a product takes mm(alpha, a, b, beta, c), mm(alpha, a, lda, b, ldb, beta, c, ldc) or mm(a, "
                          "b, accumulator).")  # fmt: skip
    if absent(sixth):
        for which, (array, name) in enumerate(((second, "a"), (third, "b"), (fifth, "c"))):
            _check_matrix(mm, array, which, name)
        multiply = calls.make_multiply(_code_finder(mm, "shared"), mm.spec.value_types[2], False)

        def in_shared(f, first, second, third, fourth=None, fifth=None, sixth=None, seventh=None, eighth=None):
            multiply(first, second, third, fourth, fifth)

        return in_shared
    for which, (array, name) in enumerate(((second, "a"), (fourth, "b"), (seventh, "c"))):
        _check_matrix(mm, array, which, name)
    multiply = calls.make_multiply(_code_finder(mm, "leading_dimensions"), mm.spec.value_types[2], True)

    def in_shared_with_gaps(f, first, second, third, fourth=None, fifth=None, sixth=None, seventh=None, eighth=None):
        multiply(first, second, third, fourth, fifth, sixth, seventh, eighth)

    return in_shared_with_gaps


# -- accumulators ------------------------------------------------------------------------------------------------------


@overload_method(DeviceMatmulType, "clear", jit_options=INLINE)
def _clear(f, accumulator):
    _check_fragment(f.mm, accumulator)
    clear = calls.make_clear(f.mm.accumulator_size)
    return lambda f, accumulator: clear(accumulator)


def _check_global(mm, array, which: int) -> None:
    if not isinstance(array, types.Array) or array.ndim != 2 or str(array.dtype) != mm.spec.value_types[which]:
        raise TypingError(
            f"a tile of {'abc'[which]} of the {mm.spec} is moved from or to a 2-D array of "
            f"{mm.spec.value_types[which]}, not {array}."
        )


@overload_method(DeviceMatmulType, "load_accumulator", jit_options=INLINE)
def _load_accumulator(f, x, row, column, accumulator):
    _check_global(f.mm, x, 2)
    _check_fragment(f.mm, accumulator)
    move = calls.make_move(_places(f.mm), f.mm.accumulator_size, False)
    return lambda f, x, row, column, accumulator: move(x, row, column, accumulator)


@overload_method(DeviceMatmulType, "store_accumulator", jit_options=INLINE)
def _store_accumulator(f, accumulator, y, row, column):
    _check_global(f.mm, y, 2)
    _check_fragment(f.mm, accumulator)
    move = calls.make_move(_places(f.mm), f.mm.accumulator_size, True)
    return lambda f, accumulator, y, row, column: move(y, row, column, accumulator)


@overload_method(DeviceMatmulType, "position", jit_options=INLINE)
def _position(f, i):
    return calls.make_position(_places(f.mm))


@overload_method(DeviceMatmulType, "holds", jit_options=INLINE)
def _holds(f, i):
    return calls.make_holds(_places(f.mm))


# -- tiles -------------------------------------------------------------------------------------------------------------


def _placed_load(mm, which: int, letter: str, x):
    """Load into a layout of the library's: its own copies of whole tiles, and element by element at the edges."""
    find, rows = _code_finder(mm, "fragment"), mm.spec.row_order[which]
    axis = 1 if rows else 0
    wide = mm.spec.alignment[which] if tiles.axis_of(x) == axis else None
    copy = calls.make_copy_tile(find, letter, axis) if wide is not None else None
    index = calls.make_index(find, letter)
    return tiles.make_placed(mm.tile_of(which), index, copy, tiles.axis_of(x), False, wide)


def _register_tile(letter: str, which: int) -> None:
    @overload_method(DeviceMatmulType, f"load_{letter}", jit_options=INLINE)
    def load(f, x, row, column, tile):
        _check_global(f.mm, x, which)
        _check_matrix(f.mm, tile, which, letter)
        if f.mm.spec.layout != "plain" and which < 2:
            body = _placed_load(f.mm, which, letter, x)
        else:
            body = tiles.make_load(f.mm.tile_of(which), tiles.axis_of(x))
        return lambda f, x, row, column, tile: body(x, row, column, tile)

    @overload_method(DeviceMatmulType, f"store_{letter}", jit_options=INLINE)
    def store(f, tile, y, row, column):
        _check_global(f.mm, y, which)
        _check_matrix(f.mm, tile, which, letter)
        if f.mm.spec.layout != "plain" and which < 2:
            index = calls.make_index(_code_finder(f.mm, "fragment"), letter)
            body = tiles.make_placed(f.mm.tile_of(which), index, None, tiles.axis_of(y), True)
        else:
            body = tiles.make_store(f.mm.tile_of(which), tiles.axis_of(y))
        return lambda f, tile, y, row, column: body(y, row, column, tile)


for _which, _letter in enumerate("abc"):
    _register_tile(_letter, _which)

refresh()
