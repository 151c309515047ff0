"""Where everything lies: index maps of the order-free block transform.

in: the radices and the elements per thread. out: NumPy arrays of positions, addresses and frequencies.

For radices R_1 ... R_m, N their product, P_s = R_1 ... R_s and T_s = N / P_s, stage s consists of N / R_s butterflies.
Butterfly v = K T_s + t has K = (k_1 ... k_{s-1}), most significant digit first, and t < T_s; its input j is element
t + j T_s of sub-transform K, its output k belongs to sub-transform (K, k). In place, both are *position*
K T_{s-1} + (j or k) T_s + t. A thread holds E elements and does c = E / R_s butterflies
v = (tx div g) g c + i g + tx mod g, i < c, where the plan chooses a g for each stage such that sub-transforms stay with
neighbouring threads: from the second exchange on a warp's barrier is enough. Element j of butterfly i is in local slot
i + j c: before the first stage, where g = T = N / E, slot e holds x[tx + e T]. With g = 1 there, a thread holds c
neighbours c tx ... c tx + c - 1, and what lies multiples of c T after them.
"""

from __future__ import annotations

import math

import numpy as np


def prefix_products(radices: tuple[int, ...]) -> list[int]:
    """P_0 = 1, P_1, ... P_m = N."""
    products = [1]
    for radix in radices:
        products.append(products[-1] * radix)
    return products


def slots(radix: int, elements: int) -> tuple[tuple[int, ...], ...]:
    """Local slots of the elements of each butterfly of a thread."""
    count = elements // radix
    return tuple(tuple(i + j * count for j in range(radix)) for i in range(count))


def butterfly(thread, number: int, group: int, count: int):
    """Which butterfly v a thread does as its `number`-th of `count`."""
    return (thread // group) * (group * count) + number * group + thread % group


def positions(radices: tuple[int, ...], elements: int, stage: int, group: int) -> np.ndarray:
    """Position (T, E) of what each thread's slots hold in `stage` (1-based), on entry and on exit."""
    products = prefix_products(radices)
    size, radix = products[-1], radices[stage - 1]
    threads, span = size // elements, size // products[stage]
    place = np.empty((threads, elements), dtype=np.int64)
    thread = np.arange(threads)
    for i, held in enumerate(slots(radix, elements)):
        upper, lower = np.divmod(butterfly(thread, i, group, elements // radix), span)
        for j, slot in enumerate(held):
            place[:, slot] = upper * (span * radix) + j * span + lower
    return place


def groups(radices: tuple[int, ...], elements: int, stage: int, neighbours: bool = False) -> list[int]:
    """The g of a stage for which a thread's elements differ by constants in every digit: no arithmetic per element."""
    products = prefix_products(radices)
    threads = products[-1] // elements
    found = []
    for group in range(threads, 0, -1):
        if threads % group or (stage == 1 and group != (1 if neighbours else threads)):
            continue
        place = positions(radices, elements, stage, group)
        if all((d - d[:, :1] == d[:1] - d[0, 0]).all() for d in digits(radices, place)):
            found.append(group)
    return found


def scrambled(radices: tuple[int, ...], stage: int) -> np.ndarray:
    """Frequency k_1 + R_1 k_2 + ... of each K = (k_1 ... k_stage), most significant digit first: P_stage values."""
    frequency = np.zeros(1, dtype=np.int64)
    weight = 1
    for radix in radices[:stage]:
        frequency = (frequency[:, None] + weight * np.arange(radix)[None, :]).reshape(-1)
        weight *= radix
    return frequency


def digits(radices: tuple[int, ...], position: np.ndarray) -> list[np.ndarray]:
    """Mixed-radix digits of positions, most significant first."""
    out = []
    rest = np.asarray(position)
    for radix in reversed(radices):
        out.append(rest % radix)
        rest = rest // radix
    return out[::-1]


def address(radices: tuple[int, ...], strides: tuple[int, ...], position: np.ndarray) -> np.ndarray:
    """Word of shared memory where a layout with one stride per digit keeps a position."""
    return sum(d * s for d, s in zip(digits(radices, position), strides, strict=True))


def spectrum_index(radices: tuple[int, ...], elements: int, group: int) -> np.ndarray:
    """Frequency (T, E) that slot e of thread tx holds after the forward transform; `group` is the last stage's."""
    return scrambled(radices, len(radices))[positions(radices, elements, len(radices), group)]


def is_length(value: int) -> bool:
    """Whether a length has prime factors up to 31 only."""
    rest = value
    for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31):
        while rest % prime == 0:
            rest //= prime
    return rest == 1 and value >= 1


def common_elements(radices: tuple[int, ...]) -> int:
    """Least number of elements per thread for these radices."""
    return math.lcm(*radices)
