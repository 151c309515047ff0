"""Rows that are copied into shared memory while the block still works on the row before: sm_90 and later.

in: a `BlockFFT` of one row per block. out: `Areas`, where everything lies, and device functions. Half of the next row
comes into an area of its own as soon as the present row has left it, the other half into the exchanges' words once the
last of them has been read: a whole row would not fit beside them. The copies are asynchronous, by the multiprocessor's
copy engine; one thread starts them, barriers in shared memory tell when they have arrived (PTX ISA, sections on
cp.async.bulk and mbarrier).

In the simulator the thread that starts a copy does it, and a barrier's word counts copies.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import emit
from devkernels.engine.block_fft import BlockFFT
from devkernels.target import simulating

_RESERVED = 1 << 10  # of shared memory, for each block
_SHARED = 228 << 10  # of a multiprocessor of sm_90
_REGISTERS = 1 << 16


@dataclass(frozen=True)
class Areas:
    """Shared memory of a block, in words of one complex number: a half row, the exchanges, two barriers."""

    half: int
    exchange: int
    barriers: tuple[int, int]
    words: int


@dataclass(frozen=True)
class Copies:
    """Device functions of copies into shared memory.

    ``start(shared, barrier)`` before all else, then a block barrier; ``fetch(shared, place, barrier, memory, source)``
    by one thread: a half row from memory[source]; ``wait(shared, barrier, turn)``: the copy of that number (from 0) on
    this barrier has arrived.
    """

    start: Callable
    fetch: Callable
    wait: Callable


def areas(fft: BlockFFT) -> Areas:
    """Where a half row, the exchanges and the barriers lie."""
    half, words = fft.size // 2, fft.plan.row_words + fft.plan.row_words % 2
    return Areas(half, half, (half + words, half + words + 1), half + words + 2)


def suits(fft: BlockFFT) -> bool:
    """Whether the rows of a transform can be fetched ahead at all."""
    plan = fft.plan
    even = plan.elements % 2 == 0 and plan.size // 2 * plan.word_bytes % 16 == 0
    return plan.rows == 1 and not plan.columns and len(plan.radices) > 1 and even and plan.row_words >= plan.size // 2


def blocks(fft: BlockFFT) -> int:
    """Blocks that a multiprocessor holds, by shared memory and registers."""
    shared = areas(fft).words * fft.plan.word_bytes + _RESERVED
    return max(1, min(_SHARED // shared, _REGISTERS // ((fft.max_registers or 128) * fft.plan.threads)))


def take(fft: BlockFFT) -> Callable:
    """Device function ``f(data, shared, thread)``: a thread's elements of the row that has arrived."""
    where = areas(fft)
    offsets = tuple(o if o < where.half else o - where.half + where.exchange for o in fft.offsets)
    return emit.gather(emit.Move(offsets, fft.dtype.name, pairs=fft.plan.neighbours))


@dataclass(frozen=True)
class Parts:
    """A transform there and back, cut where rows are fetched: each is ``f(data, factors, shared, thread, start)``."""

    first: Callable  # forward, before anything is exchanged
    forward: Callable  # the rest of it
    back: Callable  # product with the factors and inverse, up to the last exchange
    last: Callable


def parts(fft: BlockFFT) -> Parts:
    """Cut a transform in parts."""
    from devkernels.engine import stages  # with Numba, which a launch of a kernel from the cache does without

    options = dict(offset=fft.frequency_offset, rotated=fft.rotated)
    there = stages.steps(fft.plan, fft.dtype, -1, real_input=fft.real_input, **options)
    back = stages.steps(fft.plan, fft.dtype, 1, filtered=True, **options)
    join = functools.partial(functools.reduce, stages.chain)
    return Parts(there[0], join(there[1:]), join(back[:-1]), back[-1])


def copies(fft: BlockFFT) -> Copies:
    """The functions of `Copies` for half rows of a transform."""
    count = fft.size // 2
    return _simulated(count) if simulating() else _emitted(count * fft.plan.word_bytes)


def _simulated(count: int) -> Copies:
    def start(shared, barrier):
        shared[barrier] = 0

    def fetch(shared, place, barrier, memory, source):
        for k in range(count):
            shared[int(place) + k] = memory[int(source) + k]
        shared[barrier] = shared[barrier] + 1

    def wait(shared, barrier, turn):
        while shared[barrier].real <= turn:
            time.sleep(0)

    return Copies(start, fetch, wait)


def _emitted(size: int) -> Copies:
    from devkernels.engine import bulk

    bytes_ = np.uint32(size)

    def start(shared, barrier):
        bulk.barrier_init(shared, barrier)

    def fetch(shared, place, barrier, memory, source):
        bulk.fetch(shared, place, barrier, memory, source, bytes_)

    def wait(shared, barrier, turn):
        bulk.wait(shared, barrier, np.uint32(turn & 1))

    return Copies(device_function(start), device_function(fetch), device_function(wait))
