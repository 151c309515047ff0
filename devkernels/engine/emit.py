"""Device code of the engine's inner steps: butterflies and moves between registers and memory, fully unrolled.

in: compile-time constants (radix, slots, offsets, tables). out: functions to call in a kernel; on the GPU they are
Numba intrinsics that write the straight-line instructions themselves (so nothing hangs on a loop being unrolled, and
a complex number moves in one access); in the simulator they are plain Python with the same meaning.

All take the thread's local array first. Index arguments are element indices and never negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from devkernels.engine.networks import Network, Product, twiddles_used
from devkernels.target import simulating


@dataclass(frozen=True)
class TwiddleTable:
    """Twiddles ``exp(sign 2 pi i (p (row + offset) / order + rest))`` of one stage, a row per value of its index.

    `frequencies` holds the row's numerator: a digit-scrambled frequency (forward) or a time index (inverse).
    """

    radix: int
    sign: int
    order: int
    frequencies: tuple[float, ...]
    rotated: bool
    common: float = 0.0  # if not 0: each row also holds exp(sign 2 pi i row common / order), a factor of all elements

    def keys(self) -> tuple[tuple[int, Fraction], ...]:
        """What each row holds, in order; power 0 is the common factor."""
        common = ((0, Fraction(0)),) if self.common else ()
        return common + twiddles_used(self.radix, self.sign, self.rotated)

    def values(self) -> np.ndarray:
        """complex128 (rows, keys)."""
        row = np.asarray(self.frequencies, dtype=np.float64)[:, None]
        power = np.array([float(p) for p, _ in self.keys()])
        rest = np.array([float(r) for _, r in self.keys()])
        power = np.where(power == 0, self.common, power)
        return np.exp(2j * math.pi * (self.sign * ((row * power) % self.order) / self.order + rest))


@dataclass(frozen=True)
class ButterflySpec:
    """All butterflies that one thread does in one stage."""

    slots: tuple[tuple[int, ...], ...]  # per butterfly, the local slots of its elements
    sign: int
    table: TwiddleTable | None = None
    row_steps: tuple[int, ...] = ()  # per butterfly, what to add to the thread's table row
    base: complex | None = None  # constant twiddle base, instead of a table
    filtered: bool = False  # elements are multiplied by a second local array first
    real_input: bool = False  # imaginary parts are zero on entry
    weights: tuple[complex, ...] | None = None  # constants that multiply the outputs of each butterfly


def weighted(network: Network, values, weights):
    """The values times constants."""
    if weights is None:
        return values
    return [v if w == 1 else network.multiply((w.real, w.imag), v) for v, w in zip(values, weights, strict=True)]


def butterflies(spec: ButterflySpec, dtype: np.dtype):
    """Function ``f(data, row)``, or ``f(data, factors, row)`` if filtered, transforming `data` in place."""
    return _simulated_butterflies(spec) if simulating() else _emitted().butterflies(spec, dtype)


@dataclass(frozen=True)
class Move:
    """A thread's move between its local array and memory: slot e lies `offsets[e]` elements after the base.

    `dtype` is that of the local array (complex). `memory` may be that, or complex32 (an array of float16 with a last
    axis of 2), or real: then `part` says which part of the complex numbers moves; loads leave the other part alone.
    With `masked` the function takes a position and a limit more: only elements with 0 <= position + offset < limit (as
    32-bit numbers) move. Others are read as zero (or left alone with `keep`), or not written. With `adds` a store adds
    to what memory holds. `cache` is how often the data is used: "once", it takes no place in the L1 cache, or
    "often", it stays there if it can (unmasked moves only). With `pairs` the base is even, and two elements side by
    side of which the first has an even offset move in one 16-byte access (complex64 in unmasked moves only). Of a
    masked move, slots in the range `inside` are known to lie inside, those out of the range `within` (if given)
    outside.
    """

    offsets: tuple[int, ...]
    dtype: str
    memory: str = ""
    part: str = "both"
    masked: bool = False
    keep: bool = False
    adds: bool = False
    cache: str = ""
    pairs: bool = False
    inside: tuple[int, int] = (0, 0)
    within: tuple[int, int] | None = None

    def lies(self, slot: int) -> bool | None:
        """Whether a slot lies inside; None where that must be asked."""
        if not self.masked or self.inside[0] <= slot < self.inside[1]:
            return True
        return None if self.within is None or self.within[0] <= slot < self.within[1] else False

    def accesses(self) -> tuple[tuple[int, ...], ...]:
        """Slots that move together: two where `pairs` allows it, else one."""
        if (
            not self.pairs
            or self.masked
            or self.adds
            or self.dtype != "complex64"
            or self.memory not in ("", "complex64")
        ):
            return tuple((slot,) for slot in range(len(self.offsets)))
        slot_at = {offset: slot for slot, offset in enumerate(self.offsets)}
        found = []
        for slot, offset in enumerate(self.offsets):
            partner = slot_at.get(offset ^ 1)
            if partner is None:
                found.append((slot,))
            elif offset % 2 == 0:
                found.append((slot, partner))
        return tuple(found)


Spans = tuple[tuple[int, int], tuple[int, int] | None]  # `inside` and `within` of a `Move`
UNKNOWN: Spans = ((0, 0), None)


def spans(offsets: tuple[int, ...], threads: int, start: int, length: int) -> Spans:
    """What is known of a move of which slot e of a thread has position ``thread - start + offsets[e]`` of `length`."""
    first = [offset - start for offset in offsets]
    inside = [slot for slot, low in enumerate(first) if low >= 0 and low + threads <= length]
    within = [slot for slot, low in enumerate(first) if low + threads > 0 and low < length]
    known = [(slots[0], slots[-1] + 1) if slots else (0, 0) for slots in (inside, within)]
    return known[0], known[1]


def common(known: tuple[Spans, ...]) -> Spans:
    """What is known of a move if any of these may be true."""
    inside = max(first for (first, _), _ in known), min(last for (_, last), _ in known)
    within = [span for _, span in known]
    spread = None if None in within else (min(first for first, _ in within), max(last for _, last in within))
    return (inside if inside[0] < inside[1] else (0, 0)), spread


def gather(move: Move):
    """Function ``f(data, memory, base[, position, limit])``: ``data[e] = memory[base + offsets[e]]``."""
    return _simulated_gather(move) if simulating() else _emitted().mover(move, store=False)


def scatter(move: Move):
    """Function ``f(data, memory, base[, position, limit])``: ``memory[base + offsets[e]] = data[e]``."""
    return _simulated_scatter(move) if simulating() else _emitted().mover(move, store=True)


def _emitted():
    from devkernels.engine import intrinsics

    return intrinsics


def _simulated_butterflies(spec: ButterflySpec):
    from devkernels.engine.networks import FloatArithmetic

    keys = spec.table.keys() if spec.table else ()
    values = spec.table.values() if spec.table else None
    ops = FloatArithmetic()

    def run(data, factors, row):
        for number, slots in enumerate(spec.slots):
            power = None
            if values is not None:
                known = dict(zip(keys, values[int(row) + spec.row_steps[number]], strict=True))

                def power(p, rest, known=known):
                    w = known.get((p, rest))
                    return None if w is None else (float(w.real), float(w.imag))

            elif spec.base is not None:

                def power(p, rest):
                    w = spec.base**p
                    return None if rest else (w.real, w.imag)

            inputs = []
            for slot in slots:
                value = (float(data[slot].real), None if spec.real_input else float(data[slot].imag))
                if factors is not None:
                    value = Product((float(factors[slot].real), float(factors[slot].imag)), value)
                inputs.append(value)
            if spec.table is not None and spec.table.common:
                inputs = [Product(power(0, Fraction(0)), value) for value in inputs]
            network = Network(ops, spec.sign, power)
            outputs = weighted(network, network.dft(inputs), spec.weights)
            for slot, (re, im) in zip(slots, outputs, strict=True):
                data[slot] = complex(0.0 if re is None else re, 0.0 if im is None else im)

    if spec.filtered:
        return run

    def plain(data, row):
        run(data, None, row)

    return plain


def _parts(value, part):
    return value if part == "both" else getattr(value, part)


class _Halves:
    """Pairs of float16 as complex numbers."""

    def __init__(self, memory):
        self.memory = memory

    def __getitem__(self, place):
        return complex(self.memory[place, 0], self.memory[place, 1])

    def __setitem__(self, place, value):
        self.memory[place, 0], self.memory[place, 1] = value.real, value.imag


def _view(move: Move, memory):
    return _Halves(memory) if move.memory == "complex32" else memory


def _simulated_gather(move: Move):
    def run(data, memory, base, position, limit):
        memory = _view(move, memory)
        for slot, offset in enumerate(move.offsets):
            inside = move.lies(slot)
            if inside is None:
                inside = 0 <= int(position) + offset < int(limit)
            if move.keep and not inside:
                continue
            value = memory[int(base) + offset] if inside else 0.0
            if move.part == "real":
                value = complex(value, data[slot].imag)
            elif move.part == "imag":
                value = complex(data[slot].real, value)
            data[slot] = value

    return run if move.masked else _unmasked(run)


def _simulated_scatter(move: Move):
    def run(data, memory, base, position, limit):
        memory = _view(move, memory)
        for slot, offset in enumerate(move.offsets):
            inside = move.lies(slot)
            if inside or (inside is None and 0 <= int(position) + offset < int(limit)):
                value = _parts(data[slot], move.part)
                memory[int(base) + offset] = value + memory[int(base) + offset] if move.adds else value

    return run if move.masked else _unmasked(run)


def _unmasked(run):
    def all_of_them(data, memory, base):
        run(data, memory, base, 0, 1 << 62)

    return all_of_them
