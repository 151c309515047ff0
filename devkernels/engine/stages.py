"""Device functions of a planned block transform, composed of butterflies and exchanges.

in: a `BlockPlan`. out: `forward(data, shared)` and `inverse(data, shared)`, `filter_inverse(data, factors, shared)`.
Each is a chain of closures over compile-time constants, composed pairwise and inlined: no generated text.
"""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import emit, index
from devkernels.engine.plan import BlockPlan
from devkernels.lazy import cuda
from devkernels.target import simulating

_u = np.uint64  # unsigned indices: signed ones cost a wrap-around test per access


def barrier(scope: str | None) -> Callable:
    """Device function ``f()`` that waits for the warp, for the block, or for nothing."""
    if scope is None:

        def wait():
            return None
    elif scope == "warp" and not simulating():

        def wait():
            cuda.syncwarp()
    else:

        def wait():
            cuda.syncthreads()

    return device_function(wait)


def chain(first: Callable, second: Callable) -> Callable:
    """One step after another; a step is ``f(data, factors, shared, thread, start)``."""

    def both(data, factors, shared, thread, start):
        first(data, factors, shared, thread, start)
        second(data, factors, shared, thread, start)

    return device_function(both)


def word_of(plan: BlockPlan, stage: int, strides: tuple[int, ...]) -> Callable:
    """Device function: word where the layout `strides` keeps the thread's first element in `stage`."""
    radix = plan.radices[stage - 1]
    span = plan.size // index.prefix_products(plan.radices)[stage]
    group, held = _u(plan.groups[stage - 1]), _u(plan.groups[stage - 1] * (plan.share(stage) // radix))
    below, block = _u(span), _u(span * radix)
    # Word = position + one pad for each digit boundary passed; those below zero last, for the numbers have no sign.
    units = [int(np.prod(plan.radices[d + 1 :], dtype=np.int64)) for d in range(len(plan.radices))]
    pads = [s - n * r for s, n, r in zip(strides, strides[1:], plan.radices[1:], strict=False)]
    padded = sorted(((unit, pad) for unit, pad in zip(units, pads, strict=False) if pad), key=lambda step: step[1] < 0)

    def position(thread):
        first = (thread // group) * held + thread % group
        return (first // below) * block + first % below

    word = device_function(position)
    place = word
    for unit, pad in padded:
        word = _with_pad(word, place, _u(unit), _u(abs(pad)), pad < 0)
    return word


def _with_pad(word, place, unit, pad, less):
    def padded(thread):
        return word(thread) + (place(thread) // unit) * pad

    def narrowed(thread):
        return word(thread) - (place(thread) // unit) * pad

    return device_function(narrowed if less else padded)


def offsets_of(plan: BlockPlan, stage: int, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Words from the thread's first element to each of its slots."""
    place = index.positions(plan.radices, plan.share(stage), stage, plan.groups[stage - 1])[0]
    words = index.address(plan.radices, strides, place)
    return tuple(int(w - words[0]) for w in words)


def exchange(plan: BlockPlan, stage: int, dtype: np.dtype, forward: bool) -> Callable:
    """Step: pass the row through shared memory between stages `stage` and `stage` + 1."""
    this = plan.exchanges[stage - 1]
    if forward:
        source, target, reuse = stage, stage + 1, this.reuse_barrier
        pairs = this.pairs
    else:
        source, target = stage + 1, stage
        pairs = this.pairs[::-1]
        reuse = plan.exchanges[stage].reuse_barrier if stage < len(plan.exchanges) else None
    write = emit.scatter(emit.Move(offsets_of(plan, source, this.strides), dtype.name, pairs=pairs[0]))
    read = emit.gather(emit.Move(offsets_of(plan, target, this.strides), dtype.name, pairs=pairs[1]))
    write_word, read_word = word_of(plan, source, this.strides), word_of(plan, target, this.strides)
    before, between = barrier(reuse), barrier(this.barrier)

    def write_share(data, factors, shared, thread, start):
        write(data, shared, start + write_word(thread))

    def read_share(data, factors, shared, thread, start):
        read(data, shared, start + read_word(thread))

    write_step, read_step = placed(plan, source, write_share), placed(plan, target, read_share)

    def step(data, factors, shared, thread, start):
        before()
        write_step(data, factors, shared, thread, start)
        between()
        read_step(data, factors, shared, thread, start)

    return device_function(step)


def placed(plan: BlockPlan, stage: int, step: Callable) -> Callable:
    """A step of `stage` as it is, or in an uneven plan by those threads of the block that have part in the stage.

    Such a step takes the thread's number in its block; there may be more of them than the stage needs.
    """
    step = device_function(step)
    if not plan.uneven:
        return step
    count, words, last = _u(plan.threads_in(stage)), _u(plan.row_words), _u(plan.rows * plan.threads_in(stage))

    def run(data, factors, shared, thread, start):
        if thread < last:
            step(data, factors, shared, thread % count, thread // count * words)

    def run_all(data, factors, shared, thread, start):
        step(data, factors, shared, thread % count, thread // count * words)

    return device_function(run_all if last == plan.block_dim[0] else run)


def _stage_indices(plan: BlockPlan, stage: int, upper: bool) -> tuple[Callable, tuple[int, ...]]:
    """Device function for K (or t) of the thread's first butterfly, and what the others add to it."""
    radix = plan.radices[stage - 1]
    count = plan.share(stage) // radix
    span = plan.size // index.prefix_products(plan.radices)[stage]
    g = plan.groups[stage - 1]
    firsts = [divmod(index.butterfly(0, i, g, count), span)[0 if upper else 1] for i in range(count)]
    group, held, below = _u(g), _u(g * count), _u(span)
    if upper:

        def row(thread):
            return ((thread // group) * held + thread % group) // below
    else:

        def row(thread):
            return ((thread // group) * held + thread % group) % below

    return device_function(row), tuple(f - firsts[0] for f in firsts)


def _divided(row: Callable, count: int) -> Callable:
    count = _u(count)

    def divided(thread):
        return row(thread) // count

    return device_function(divided)


def transform(
    plan: BlockPlan, stage: int, dtype: np.dtype, sign: int, *, offset: float = 0.0, rotated: bool = False,
    filtered: bool = False, real_input: bool = False,
) -> Callable:  # fmt: skip
    """Step: the butterflies of `stage`, with the twiddles that belong before them."""
    radices, radix = plan.radices, plan.radices[stage - 1]
    products = index.prefix_products(radices)
    slots = index.slots(radix, plan.share(stage))
    table, row, steps, base, weights, common = None, None, (), None, None, False
    if sign < 0 and stage > 1:
        order = products[stage]
        frequencies = tuple(float(f) + offset for f in index.scrambled(radices, stage - 1))
        table = emit.TwiddleTable(radix, sign, order, frequencies, rotated)
        row, steps = _stage_indices(plan, stage, upper=True)
    elif sign < 0 and offset:
        base = cmath.exp(2j * math.pi * sign * offset / radix)
    elif sign > 0 and stage < len(radices):
        order = plan.size // products[stage - 1]
        times = tuple(float(t) for t in range(order // radix))
        common, count, span = bool(offset) and stage == 1, plan.share(stage) // radix, order // radix
        row, steps = _stage_indices(plan, stage, upper=False)
        if plan.groups[stage - 1] == 1 and count > 1 and span % count == 0:
            # A thread's butterflies are neighbours: their rows lie apart, so that those of neighbouring threads adjoin.
            times = tuple(float(t) for i in range(count) for t in range(i, span, count))
            row, steps = _divided(row, count), tuple(i * (span // count) for i in range(count))
        table = emit.TwiddleTable(radix, sign, order, times, rotated, common=offset if common else 0.0)
    if sign > 0 and stage == 1 and offset:
        weights = tuple(cmath.exp(2j * math.pi * j * offset / radix) for j in range(radix))
    spec = emit.ButterflySpec(
        slots, sign, table, steps, base=base, filtered=filtered, real_input=real_input, weights=weights
    )
    run = emit.butterflies(spec, dtype)
    if row is None:

        def row(thread):
            return thread

        row = device_function(row)

    if filtered:

        def step(data, factors, shared, thread, start):
            run(data, factors, row(thread))
    else:

        def step(data, factors, shared, thread, start):
            run(data, row(thread))

    return placed(plan, stage, step)


def steps(plan: BlockPlan, dtype: np.dtype, sign: int, **options) -> list[Callable]:
    """A whole transform as its steps in order: butterflies and exchanges by turns."""
    count = len(plan.radices)
    real_input, filtered = options.pop("real_input", False), options.pop("filtered", False)
    if sign < 0:
        found = [transform(plan, 1, dtype, sign, real_input=real_input, **options)]
        for stage in range(2, count + 1):
            found += [exchange(plan, stage - 1, dtype, forward=True), transform(plan, stage, dtype, sign, **options)]
    else:
        found = [transform(plan, count, dtype, sign, filtered=filtered, **options)]
        for stage in range(count - 1, 0, -1):
            found += [exchange(plan, stage, dtype, forward=False), transform(plan, stage, dtype, sign, **options)]
    return found


def compose(plan: BlockPlan, dtype: np.dtype, sign: int, **options) -> Callable:
    """Whole transform as ``f(data, factors, shared, thread, start)``."""
    return functools.reduce(chain, steps(plan, dtype, sign, **options))


def _thread():
    return _u(cuda.threadIdx.x)


def _row():
    return _u(cuda.threadIdx.y)


def _only_row():
    return _u(0)


def bind(plan: BlockPlan, run: Callable, filtered: bool) -> Callable:
    """Give a composed transform the signature of kernels: ``f(data, shared)`` or ``f(data, factors, shared)``."""
    words, thread, row = _u(plan.row_words), device_function(_thread), device_function(_row)
    if plan.columns:
        thread, row = row, thread
    if plan.rows == 1 or plan.uneven:
        row = device_function(_only_row)

    if filtered:

        def call(data, factors, shared):
            run(data, factors, shared, thread(), row() * words)
    else:

        def call(data, shared):
            run(data, data, shared, thread(), row() * words)

    return device_function(call)
