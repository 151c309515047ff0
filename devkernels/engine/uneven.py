"""Who does what in plans whose stages take different numbers of threads.

in: a `BlockPlan`. out: device functions. Lengths such as 480 = 20 * 24 leave no number of elements that every
radix divides, but for so many that registers are short; so a stage takes as many threads as it has butterflies. Threads
are numbered through all rows of a block, and those that a stage does not need wait (whole warps where that can be).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine.plan import BlockPlan
from devkernels.lazy import cuda

NOBODY = np.int64(1 << 40)  # number of a row that there is not: threads that load nothing are given it


def line_of(plan: BlockPlan, stage: int = 1) -> Callable:
    """Device function ``f() -> (thread, line)``: the thread's number among those of its row in a stage, the row's."""
    count, rows = np.uint32(plan.threads_in(stage)), plan.rows

    def of_rows():
        thread = np.uint32(cuda.threadIdx.x)
        row = np.int64(thread // count)
        line = np.int64(cuda.blockIdx.x) * rows + row
        return np.int64(thread % count), line if row < rows else NOBODY

    return device_function(of_rows)


def row_of(plan: BlockPlan) -> Callable:
    """Device function ``f()``: the row of a block of which a thread loads a part; of any plan."""
    count = np.uint32(plan.threads_in(1))

    def of_uneven():
        return np.int64(np.uint32(cuda.threadIdx.x) // count)

    def of_rows():
        return np.int64(cuda.threadIdx.y)

    return device_function(of_uneven if plan.uneven else of_rows)


def by_those_that_load(plan: BlockPlan, move: Callable, masked: bool) -> Callable:
    """A move of rows, ``f(data, memory, base[, position, limit])``, by the threads that have a part of them."""
    last = plan.rows * plan.threads_in(1)
    if last == plan.block_dim[0]:
        return move

    def run(data, memory, base):
        if np.int64(cuda.threadIdx.x) < last:
            move(data, memory, base)

    def run_masked(data, memory, base, position, limit):
        if np.int64(cuda.threadIdx.x) < last:
            move(data, memory, base, position, limit)

    return device_function(run_masked if masked else run)


def samples_of_those_that_load(plan: BlockPlan, step: Callable) -> Callable:
    """A step ``f(data, where, position, length, extra)`` by the threads that have a part of a row; of any plan."""
    last = plan.rows * plan.threads_in(1)
    if not plan.uneven or last == plan.block_dim[0]:
        return step

    def run(data, where, position, length, extra):
        if np.int64(cuda.threadIdx.x) < last:
            step(data, where, position, length, extra)

    return device_function(run)


def of_spectra(plan: BlockPlan, move: Callable) -> Callable:
    """A move ``f(data, memory, base)`` of spectra; `base` is for the thread's number among those that load rows."""
    first, count = np.uint32(plan.threads_in(1)), np.uint32(plan.threads_in(len(plan.radices)))
    last = np.uint32(plan.rows) * count

    def run(data, memory, base):
        thread = np.uint32(cuda.threadIdx.x)
        if thread < last:
            move(data, memory, base + np.int64(thread % count) - np.int64(thread % first))

    return device_function(run)
