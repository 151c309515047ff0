"""Rows that are copied into shared memory while the block still works on the row before: sm_90 and later.

in: a `BlockFFT` of one row per block. out: `Areas`, where everything lies, and device functions. The first part of the
next row comes into an area of its own as soon as the present row has left it, the rest into the exchanges' words once
the last of them has been read: a whole row would not fit beside them. The rest is brought into the L2 cache with the
first part, so that it is near when its place is free. The copies are asynchronous, by the multiprocessor's copy engine;
one thread starts them, barriers in shared memory tell when they have arrived (PTX ISA, sections on cp.async.bulk and
mbarrier).

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
    """Shared memory of a block, in words of one complex number: a row's first part, the exchanges, two barriers."""

    early: int
    exchange: int
    barriers: tuple[int, int]
    words: int


@dataclass(frozen=True)
class Copies:
    """Device functions of copies into shared memory.

    ``start(shared, barrier)`` before all else, then a block barrier; ``fetch_first(shared, place, barrier, memory,
    source)`` by one thread: the first part of a row, or with `fetch_rest` the rest, from memory[source];
    ``prepare(memory, source)`` brings the rest into the L2 cache; ``wait(shared, barrier, turn)``: the copy of that
    number (from 0) on this barrier has arrived.
    """

    start: Callable
    fetch_first: Callable
    fetch_rest: Callable
    prepare: Callable
    wait: Callable


def areas(fft: BlockFFT) -> Areas:
    """Where a row's first part, the exchanges and the barriers lie: as large a part as the resident blocks let it be."""
    plan = fft.plan
    words, slots = plan.row_words + plan.row_words % 2, plan.elements // plan.width
    room = _SHARED // _resident(fft) - _RESERVED - (words + 2) * plan.word_bytes
    chunk = plan.threads * plan.width
    early = chunk * max(slots // 2, min(slots - 1, room // (chunk * plan.word_bytes)))
    return Areas(early, early, (early + words, early + words + 1), early + words + 2)


def suits(fft: BlockFFT) -> bool:
    """Whether the rows of a transform can be fetched ahead at all."""
    plan = fft.plan
    even = plan.elements // plan.width % 2 == 0 and plan.threads * plan.width * plan.word_bytes % 16 == 0
    return plan.rows == 1 and not plan.columns and len(plan.radices) > 1 and even and plan.row_words >= plan.size // 2


def _resident(fft: BlockFFT) -> int:
    """Blocks that a multiprocessor holds by registers, and by shared memory if they fetch half a row ahead."""
    plan = fft.plan
    shared = (plan.row_words + plan.size // 2 + 4) * plan.word_bytes + _RESERVED
    return max(1, min(_SHARED // shared, _REGISTERS // ((fft.max_registers or 128) * plan.threads)))


def blocks(fft: BlockFFT) -> int:
    """Blocks that a multiprocessor holds, by shared memory and registers."""
    shared = areas(fft).words * fft.plan.word_bytes + _RESERVED
    return max(1, min(_SHARED // shared, _REGISTERS // ((fft.max_registers or 128) * fft.plan.threads)))


def take(fft: BlockFFT) -> tuple[Callable, Callable]:
    """Device functions ``f(data, shared, thread)``: a thread's elements of a row's first part, and of the rest."""
    where, found = areas(fft), []
    for first in (True, False):
        slots = tuple(e for e, offset in enumerate(fft.offsets) if (offset < where.early) == first)
        offsets = tuple(fft.offsets[e] - (0 if first else where.early - where.exchange) for e in slots)
        move = emit.Move(offsets, fft.dtype.name, pairs=fft.plan.neighbours, first=slots[0])
        found.append(emit.gather(move))
    return found[0], found[1]


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
    """The functions of `Copies` for the parts of a transform's rows."""
    early = areas(fft).early
    counts = early, fft.size - early
    return _simulated(*counts) if simulating() else _emitted(*(count * fft.plan.word_bytes for count in counts))


def _simulated(early: int, late: int) -> Copies:
    def start(shared, barrier):
        shared[barrier] = 0

    def fetching(count):
        def fetch(shared, place, barrier, memory, source):
            for k in range(count):
                shared[int(place) + k] = memory[int(source) + k]
            shared[barrier] = shared[barrier] + 1

        return fetch

    def prepare(memory, source):
        return None

    def wait(shared, barrier, turn):
        while shared[barrier].real <= turn:
            time.sleep(0)

    return Copies(start, fetching(early), fetching(late), prepare, wait)


def _emitted(early: int, late: int) -> Copies:
    from devkernels.engine import bulk

    def start(shared, barrier):
        bulk.barrier_init(shared, barrier)

    def fetching(size):
        bytes_ = np.uint32(size)

        def fetch(shared, place, barrier, memory, source):
            bulk.fetch(shared, place, barrier, memory, source, bytes_)

        return device_function(fetch)

    rest = np.uint32(late)

    def prepare(memory, source):
        bulk.prepare(memory, source, rest)

    def wait(shared, barrier, turn):
        bulk.wait(shared, barrier, np.uint32(turn & 1))

    return Copies(
        device_function(start), fetching(early), fetching(late), device_function(prepare), device_function(wait)
    )
