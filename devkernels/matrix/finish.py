"""Finishing a tile on a GPU, eight elements of a row at a time: alpha, c, the steps of the epilogue, and the store.

In: a `Finish` (dtypes, which arrays allow 16-byte accesses) and the steps. Out: the function that
devkernels/matrix/warpgroup.py calls with 32 values of a @ b, spread as `Finish.spread` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.device.inline import device_function
from devkernels.lazy import cuda
from devkernels.matrix import steps as chains
from devkernels.matrix.memory_sizes import EIGHTS, SINGLES, Spread

LINE = 128  # bytes of a line of the L2 cache
COUNT = 32  # values of a thread at a time


@dataclass(frozen=True)
class Operand:
    """An array that the end of a tile reads or writes. `wide`: eight elements of a row are one aligned access."""

    dtype: str
    wide: bool
    batched: bool = False


@dataclass(frozen=True)
class Finish:
    """What the end of a tile depends on, beside the steps."""

    d: Operand
    c: Operand | None
    extra: tuple[Operand, ...] = ()  # of the steps that have an operand
    by_eights: bool = False  # the columns are a multiple of eight; wide accesses need it
    whole: bool = False  # the sums are the bits of int32, and so is d: they are scaled and stored

    @property
    def spread(self) -> Spread:
        """Where a thread's values belong."""
        return EIGHTS if self.by_eights else SINGLES


def make_finish(plan: Finish, steps: tuple[chains.Step, ...]) -> Callable:
    """Return ``finish(values, batch, row, column, rows, columns, alpha, beta, c, d, extra)``, a device function."""
    if plan.whole:
        return _make_whole(plan)
    load_c = _loader(plan.c, "matrix", plan.spread) if plan.c is not None else None
    run = _chain(plan, steps)
    store, has_c, one = _storer(plan.d, plan.spread), plan.c is not None, np.int32(1)
    span = np.int32(8 if plan.by_eights else 1)  # the last so many columns are read instead of what is outside

    def finish(values, batch, row, column, rows, columns, alpha, beta, c, d, extra):
        last_row, last_column = np.int32(rows) - one, np.int32(columns) - one
        own_row, own_column = np.int32(row), np.int32(column)
        inner_row, inner_column = min(own_row, last_row), min(own_column, np.int32(columns) - span)
        for i in range(COUNT):
            values[i] *= alpha
        if has_c:
            others = cuda.local.array(COUNT, np.float32)
            load_c(others, c, batch, inner_row, inner_column, last_row, last_column)
            for i in range(COUNT):
                values[i] += beta * others[i]
        run(values, batch, inner_row, inner_column, last_row, last_column, extra)
        store(values, d, batch, own_row, own_column, last_row, last_column)

    return device_function(finish)


def _make_whole(plan: Finish) -> Callable:
    from devkernels.matrix import ptx

    scale, store, one = ptx.make_integers(COUNT, True), _storer(plan.d, plan.spread), np.int32(1)

    def finish(values, batch, row, column, rows, columns, alpha, beta, c, d, extra):
        scale(values, alpha)
        store(values, d, batch, np.int32(row), np.int32(column), np.int32(rows) - one, np.int32(columns) - one)

    return device_function(finish)


def make_prepare(plan: Finish, steps: tuple[chains.Step, ...]) -> Callable:
    """Return ``prepare(batch, row, column, rows, columns, c, extra)``: fetch what `finish` will read into the L2 cache.

    For one row of a tile of 128 columns; matrices whose rows are contiguous only. The epilogue then waits for the cache
    and not for the memory behind it.
    """
    run = device_function(lambda batch, row, column, rows, columns, c, extra: None)
    if plan.c is not None and plan.c.wide:
        fetch_c = _fetcher(plan.c)
        run = device_function(lambda batch, row, column, rows, columns, c, extra:
                              fetch_c(c, batch, row, column, rows, columns))  # fmt: skip
    for step in steps:
        if step.axes == "matrix" and plan.extra[step.operand].wide:
            run = _then_fetch(run, _fetcher(plan.extra[step.operand]), step.operand)
    return run


def _then_fetch(first: Callable, fetch: Callable, position: int) -> Callable:
    def both(batch, row, column, rows, columns, c, extra):
        first(batch, row, column, rows, columns, c, extra)
        fetch(extra[position], batch, row, column, rows, columns)

    return device_function(both)


def _fetcher(operand: Operand) -> Callable:
    from devkernels.matrix import ptx, tile

    prefetch_line, address, item, zero = ptx.prefetch_line, ptx.address, tile.ITEM[operand.dtype], np.uint64(0)
    batched, step = operand.batched, LINE // item
    lines = 128 // step

    def fetch(array, batch, row, column, rows, columns):
        if np.int32(row) < np.int32(rows):
            pitch = np.uint64(array.strides[1] if batched else array.strides[0])
            place = address(array) + np.uint64(row) * pitch + np.uint64(column * item)
            place += np.uint64(batch * array.strides[0]) if batched else zero
            for i in range(lines):
                if np.int32(column) + i * step < np.int32(columns):
                    prefetch_line(place + np.uint64(i * LINE))

    return device_function(fetch)


# -- steps -------------------------------------------------------------------------------------------------------------


def _chain(plan: Finish, steps: tuple[chains.Step, ...]) -> Callable:
    run = device_function(lambda values, batch, row, column, last_row, last_column, extra: None)
    for step in steps:
        run = _then(run, device_function(_step(plan, step)))
    return run


def _then(first: Callable, second: Callable) -> Callable:
    def both(values, batch, row, column, last_row, last_column, extra):
        first(values, batch, row, column, last_row, last_column, extra)
        second(values, batch, row, column, last_row, last_column, extra)

    return device_function(both)


def _step(plan: Finish, step: chains.Step) -> Callable:
    from devkernels.matrix import tile

    if step.operand is not None:
        return _operand_step(plan, step)
    map_all = tile.make_map_all(plan.spread, step.function is not None)
    if step.function is None:
        function = chains.function_of(step.name, np.float32)
    else:
        function = device_function(step.function)
    if step.name == "function":

        def with_all(values, batch, row, column, last_row, last_column, extra):
            map_all(function, values, row, column, last_row, last_column, extra)

        return with_all

    def alone(values, batch, row, column, last_row, last_column, extra):
        map_all(function, values, row, column, last_row, last_column, ())

    return alone


def _operand_step(plan: Finish, step: chains.Step) -> Callable:
    axes, operation = chains.OPERANDS[step.name]
    position, load = step.operand, _loader(plan.extra[step.operand], axes, plan.spread)
    add = operation == "add"

    def with_operand(values, batch, row, column, last_row, last_column, extra):
        others = cuda.local.array(COUNT, np.float32)
        load(others, extra[position], batch, row, column, last_row, last_column)
        for i in range(COUNT):
            if add:
                values[i] += others[i]
            else:
                values[i] *= others[i]

    return with_operand


# -- memory ------------------------------------------------------------------------------------------------------------


def _loader(operand: Operand, axes: str, spread: Spread) -> Callable:
    """Device function ``load(others, array, batch, row, column, last_row, last_column)``: 32 values in float32."""
    from devkernels.matrix import elements, ptx, tile

    if not operand.wide or axes == "row":
        return elements.make_gather(axes, operand.batched, spread)
    load8 = tile.make_load8(operand.dtype, axes == "matrix")
    address, item, zero = ptx.address, tile.ITEM[operand.dtype], np.uint64(0)
    batched = operand.batched
    if axes == "column":
        copy8 = tile.make_repeat8(COUNT)

        def load_columns(others, array, batch, row, column, last_row, last_column):
            load8(others, 0, address(array) + np.uint64(column * item))
            copy8(others)

        return device_function(load_columns)

    def load_matrix(others, array, batch, row, column, last_row, last_column):
        pitch = np.uint64(array.strides[1] if batched else array.strides[0])
        place = address(array) + np.uint64(column * item) + (np.uint64(batch * array.strides[0]) if batched else zero)
        load8(others, 0, place + np.uint64(row) * pitch)
        load8(others, 8, place + np.uint64(min(row + 4, last_row)) * pitch)
        load8(others, 16, place + np.uint64(min(row + 8, last_row)) * pitch)
        load8(others, 24, place + np.uint64(min(row + 12, last_row)) * pitch)

    return device_function(load_matrix)


def _storer(operand: Operand, spread: Spread) -> Callable:
    """Device function ``store(values, d, batch, row, column, last_row, last_column)``; what is outside is left out."""
    from devkernels.matrix import elements, ptx, tile

    if not operand.wide:
        return elements.make_scatter(operand.dtype, spread)
    store8, address, item = tile.make_store8(operand.dtype), ptx.address, tile.ITEM[operand.dtype]

    def store(values, d, batch, row, column, last_row, last_column):
        if column <= last_column:
            pitch = np.uint64(d.strides[1])
            place = address(d) + np.uint64(batch * d.strides[0]) + np.uint64(row) * pitch + np.uint64(column * item)
            if row <= last_row:
                store8(values, 0, place)
            if row + 4 <= last_row:
                store8(values, 8, place + np.uint64(4) * pitch)
            if row + 8 <= last_row:
                store8(values, 16, place + np.uint64(8) * pitch)
            if row + 12 <= last_row:
                store8(values, 24, place + np.uint64(12) * pitch)

    return device_function(store)
