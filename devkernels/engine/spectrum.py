"""Which frequency a thread holds, on the device: for work on a spectrum that does care.

in: a `BlockPlan`. out: device functions over threads and places.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from devkernels.device.inline import device_function
from devkernels.engine import index
from devkernels.engine.plan import BlockPlan

_u = np.uint64  # unsigned: signed divisions round towards zero, at a cost


def _add(first: Callable, second: Callable) -> Callable:
    def both(value):
        return first(value) + second(value)

    return device_function(both)


def _digit(below: int, radix: int, weight: int) -> Callable:
    below, radix, weight = _u(below), _u(radix), _u(weight)

    def digit(value):
        return value // below % radix * weight

    return device_function(digit)


def unscramble(plan: BlockPlan) -> Callable:
    """Device function: frequency k_1 + R_1 k_2 + ... of the last stage's butterfly v = (k_1 ... k_{m-1})."""
    radices, products = plan.radices, index.prefix_products(plan.radices)
    found = None
    for s in range(len(radices) - 1):
        term = _digit(math.prod(radices[s + 1 : -1]), radices[s], products[s])
        found = term if found is None else _add(found, term)
    if found is None:

        def found(value):
            return value * _u(0)

        found = device_function(found)
    return found


def first_frequency(plan: BlockPlan) -> Callable:
    """Device function ``f(thread)``: frequency of the thread's slot 0, an unsigned number."""
    group, count = plan.groups[-1], plan.share(len(plan.radices)) // plan.radices[-1]
    group, held, frequency = _u(group), _u(group * count), unscramble(plan)

    def first(thread):
        thread = _u(thread)
        return frequency(thread // group * held + thread % group)

    return device_function(first)


def offsets(plan: BlockPlan) -> tuple[int, ...]:
    """What to add for the other slots; the plan's groups are such that it is the same for all threads."""
    frequencies = index.spectrum_index(plan.radices, plan.share(len(plan.radices)), plan.groups[-1])
    return tuple(int(k) for k in frequencies[0] - frequencies[0, 0])


def frequency_at(plan: BlockPlan) -> Callable:
    """Device function ``f(place)``: frequency that lies at a place of a spectrum in the engine's order."""
    radix, last = plan.radices[-1], len(plan.radices)
    count = plan.share(last) // radix
    group, held, step = _u(plan.groups[-1]), _u(plan.groups[-1] * count), _u(plan.size // radix)
    threads, count, frequency = _u(plan.threads_in(last)), _u(count), unscramble(plan)

    def at(place):
        place = _u(place)
        thread, slot = place % threads, place // threads
        return frequency(thread // group * held + slot % count * group + thread % group) + slot // count * step

    return device_function(at)


def each(plan: BlockPlan, function: Callable) -> Callable:
    """Device function ``f(data, thread)``: every slot's value X becomes ``function(X, k)``, k its frequency."""
    steps = [_one(slot, offset, function) for slot, offset in enumerate(offsets(plan))]
    while len(steps) > 1:  # a balanced tree: no loop that would have to be unrolled, no deep nesting
        steps = [_pair(*steps[i : i + 2]) for i in range(0, len(steps), 2)]
    run, first = steps[0], first_frequency(plan)

    def apply(data, thread):
        run(data, first(thread))

    return device_function(apply)


def _one(slot: int, offset: int, function: Callable) -> Callable:
    offset = _u(offset)

    def step(data, first):
        data[slot] = function(data[slot], np.int64(first + offset))

    return device_function(step)


def _pair(first: Callable, second: Callable | None = None) -> Callable:
    if second is None:
        return first

    def both(data, k):
        first(data, k)
        second(data, k)

    return device_function(both)
