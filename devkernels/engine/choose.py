"""Which plan for which length: a table of measured choices, and an estimate for all other lengths.

in: a length and the bytes of a complex number. out: a `Choice` of radices, elements per thread, rows per block and a
register limit.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from devkernels.engine import index, networks
from devkernels.engine.plan import BlockPlan
from devkernels.engine.plan_search import make_plan
from devkernels.errors import SpecError, UnsupportedSizeError
from devkernels.target import Target, current_target

FORMAT = 3  # of choices that are kept on disk
MAX_SHARED = 227 << 10  # of sm_90; a block on smaller architectures is refused at its launch, in words


@dataclass(frozen=True)
class Choice:
    """Knobs of a plan."""

    radices: tuple[int, ...]
    elements: int | tuple[int, ...]  # per thread; in uneven plans of each stage
    rows: int
    max_registers: int | None = None
    streamed: bool = False  # rows pass the L1 cache by, in and out, and leave it to filters and twiddles
    pairs: bool = False  # elements pass shared memory two at a time
    neighbours: bool = False  # slots are pairs of neighbours, for kernels that can take them so
    ahead: bool = False  # circular rows are fetched ahead, by few blocks with many rows each


# By architecture, then (length, bytes of a complex number); other architectures take the table of DEFAULT. Measured on
# one H200 with circular convolutions of 1 GiB (bench/results/engine_plans.json). Fewer warps with more registers often
# win: loads are issued earlier, and fewer rows are open in memory at a time.
DEFAULT = "sm_90"
TUNED: dict[str, dict[tuple[int, int], Choice]] = {"sm_90": {
    (64, 8): Choice((8, 8), 8, 32),
    (128, 8): Choice((16, 8), 16, 4, 80),
    (192, 8): Choice((12, 4, 4), 12, 8, 64),
    (256, 8): Choice((16, 16), 16, 8, 80),
    (320, 8): Choice((20, 4, 4), 20, 8, 96),
    (384, 8): Choice((24, 4, 4), 24, 8, 96),
    (480, 8): Choice((20, 12, 2), 60, 8, 168),
    (512, 8): Choice((16, 32), 32, 8, 112, pairs=True, neighbours=True),
    (768, 8): Choice((12, 8, 8), 24, 1, 96, True),
    (960, 8): Choice((20, 12, 4), 60, 4, 168),
    (1000, 8): Choice((10, 10, 10), 10, 2, 56),
    (1024, 8): Choice((32, 32), 32, 4, 128),
    (1152, 8): Choice((12, 12, 8), 24, 2, 96),
    (1280, 8): Choice((20, 8, 8), 40, 1, 128),
    (1536, 8): Choice((24, 8, 8), 24, 1, 96),
    (2048, 8): Choice((16, 8, 16), 32, 1, 128, pairs=True),
    (2304, 8): Choice((24, 24, 4), 24, 1, 80),
    (2560, 8): Choice((40, 8, 8), 40, 1, 128),
    (3072, 8): Choice((24, 8, 16), 48, 1, 168),
    (4096, 8): Choice((16, 16, 16), 32, 1, 128, True, pairs=True),
    (6144, 8): Choice((24, 16, 16), 48, 1, 168),
    (8192, 8): Choice((16, 16, 32), 32, 1, 128, pairs=True),
    (12288, 8): Choice((48, 16, 16), 48, 1, 168),
    (16384, 8): Choice((16, 32, 32), 32, 1, 128, True, pairs=True, neighbours=True, ahead=True),
    (64, 16): Choice((8, 8), 8, 16),
    (128, 16): Choice((16, 8), 16, 8, 128),
    (256, 16): Choice((16, 16), 16, 8),
    (512, 16): Choice((8, 8, 8), 8, 2),
    (1024, 16): Choice((16, 8, 8), 16, 1, 128, True),
    (2048, 16): Choice((16, 8, 16), 16, 1, 128, True),
    (4096, 16): Choice((16, 16, 16), 16, 1, 128),
}}  # fmt: skip


# Of columns, which a block takes several of: the fastest plan of a row may hold too much (rows here are columns).
COLUMNS: dict[tuple[int, int], Choice] = {
    (576, 8): Choice((24, 24), 24, 8, 80),
    (1024, 8): Choice((16, 8, 8), 16, 8, 64, pairs=True),
    (1152, 8): Choice((12, 12, 8), 24, 8, 80),
}


# Of real rows in the real parts: a thread moves 4 bytes at a time, and the filter is another for each channel.
REAL: dict[tuple[int, int], Choice] = {
    (256, 8): Choice((16, 16), 16, 8, 80, True),
    (1024, 8): Choice((32, 32), 32, 4, 128, True),
    (2048, 8): Choice((16, 8, 16), 32, 1, 128, True, pairs=True),
    (8192, 8): Choice((16, 16, 32), 32, 1, 128, True, pairs=True),
}


# Of rows whose kernels can take stages of different numbers of threads: no number of elements fits all radices of such
# lengths, but for so many that registers and instruction cache are short.
UNEVEN: dict[tuple[int, int], Choice] = {
    (360, 8): Choice((18, 20), (18, 20), 6, 96),
    (480, 8): Choice((15, 32), (30, 32), 4, 112),
    (600, 8): Choice((25, 24), (25, 24), 5, 128),
    (640, 8): Choice((20, 32), (20, 32), 4, 128, pairs=True),
    (720, 8): Choice((18, 8, 5), (18, 16, 15), 2, 96),
    (800, 8): Choice((25, 32), (25, 32), 4, 128),
    (960, 8): Choice((30, 32), (30, 32), 2, 128, pairs=True),
    (1200, 8): Choice((10, 10, 12), (10, 10, 12), 1, 64, True, pairs=True),
    (1280, 8): Choice((10, 16, 8), (10, 16, 16), 2, 64, True),
    (1440, 8): Choice((12, 10, 12), (12, 10, 12), 1, 64, True),
    (1500, 8): Choice((30, 25, 2), (30, 25, 30), 2, 128),
    (1920, 8): Choice((15, 8, 16), (15, 16, 16), 1, 72, True, pairs=True),
    (2400, 8): Choice((15, 10, 16), (15, 20, 16), 1, 80, True, pairs=True),
    (2560, 8): Choice((10, 16, 16), (10, 16, 16), 1, 64, True),
    (3000, 8): Choice((25, 24, 5), (25, 24, 25), 1, 128),
    (3072, 8): Choice((12, 16, 16), (12, 16, 16), 1, 64, True),
    (3600, 8): Choice((15, 15, 16), (15, 15, 16), 1, 72),
    (3840, 8): Choice((15, 16, 16), (15, 16, 16), 1, 64, True),
    (4800, 8): Choice((30, 32, 5), (30, 32, 30), 1, 128),
    (5120, 8): Choice((20, 16, 16), (20, 16, 16), 1, 96, True),
    (9600, 8): Choice((20, 20, 24), (20, 20, 24), 1, 96),
    (10240, 8): Choice((20, 16, 32), (20, 32, 32), 1, 128, pairs=True),
    (12288, 8): Choice((24, 32, 16), (24, 32, 32), 1, 128, pairs=True),
}  # fmt: skip


def uneven(size: int, word_bytes: int) -> Choice | None:
    """The measured choice of a length whose stages take different numbers of threads, None where there is none."""
    return UNEVEN.get((size, word_bytes))


def choose_real(size: int, word_bytes: int) -> Choice:
    """`choose` for real rows in the real parts of complex ones."""
    return REAL.get((size, word_bytes)) or choose(size, word_bytes)


def measured(size: int, word_bytes: int) -> Choice | None:
    """The measured choice for a length on this process's architecture, None where there is none."""
    table = TUNED.get(str(current_target()), TUNED[DEFAULT])
    return table.get((size, word_bytes))


def factor_lists(size: int, most: int = 4) -> list[tuple[int, ...]]:
    """All ways to write `size` as an unordered product of up to `most` radices from 2 to 32, largest first."""
    found: list[tuple[int, ...]] = []

    def extend(rest: int, limit: int, chosen: tuple[int, ...]) -> None:
        if rest == 1:
            found.append(chosen)
            return
        if len(chosen) == most:
            return
        for radix in range(min(rest, limit), 1, -1):
            if rest % radix == 0:
                extend(rest // radix, radix, (*chosen, radix))

    extend(size, 32, ())
    return found


def estimate(size: int, radices: tuple[int, ...], elements: int, word_bytes: int) -> float:
    """Instructions per element there and back, with a fine for threads that are too fat or too few."""
    operations = 2 * sum(networks.operations(r, s > 0) / r for s, r in enumerate(radices))
    moves = 4 * (len(radices) - 1) * (word_bytes // 8)
    threads = size // elements
    fat = max(0, elements * word_bytes / 8 - 20) * 0.25
    few = 6 if threads < 8 else 0
    return operations + moves + fat + few


def rows_for(size: int, elements: int, word_bytes: int) -> int:
    """Rows per block: about four warps, whole ones if that is near, in less than 48 KB of shared memory."""
    threads = size // elements
    most = max(1, min(1024 // threads, (40 << 10) // (size * word_bytes)))
    rows = min(most, max(1, 128 // threads))
    return next((r for r in range(rows, min(most, 2 * rows) + 1) if threads * r % 32 == 0), rows)


def choose(size: int, word_bytes: int) -> Choice:
    """The plan for a length.

    Raises
    ------
    UnsupportedSizeError
        No plan; the message names the next length that has one.
    """
    found = measured(size, word_bytes) or _estimated(size, word_bytes)
    if found is None:
        above = next_size(size + 1, word_bytes)
        hint = f"the next length that has one is {above}" if above else f"the longest is {largest(word_bytes)}"
        raise UnsupportedSizeError(f"There is no block transform of length {size} ({word_bytes} bytes each); {hint}.")
    return found


@functools.lru_cache(maxsize=4096)
def _estimated(size: int, word_bytes: int) -> Choice | None:
    if size < 2 or not index.is_length(size) or size > largest(word_bytes):
        return None
    candidates = []
    most_elements = 40 if word_bytes == 8 else 20
    for radices in factor_lists(size):
        least = math.lcm(*radices)
        # Lengths such as 3 * 5 * 2**k need 60: two factors that no radix can be without are many registers.
        for elements in range(least, max(most_elements, least if least * word_bytes <= 512 else 0) + 1, least):
            threads = size // elements
            if size % elements == 0 and threads <= Target.max_threads_per_block // 2:
                candidates.append((estimate(size, radices, elements, word_bytes), radices, elements))
    candidates.sort()
    for _, radices, elements in candidates[:12]:
        rows = rows_for(size, elements, word_bytes)
        best: tuple[float, int, tuple[int, ...]] | None = None
        orders = sorted(set(itertools.permutations(radices)), reverse=True)
        for number, order in enumerate(orders[:6]):
            try:
                plan = make_plan(order, elements, rows, word_bytes)
            except SpecError:
                continue
            cost = sum(e.conflicts + (e.barrier == "block") for e in plan.exchanges)
            if plan.shared_bytes <= MAX_SHARED and (best is None or (cost, number) < best[:2]):
                best = cost, number, order
        if best is not None:
            return Choice(best[2], elements, rows)
    return None


def largest(word_bytes: int) -> int:
    """The longest length."""
    return 16384 if word_bytes == 8 else 8192


def next_size(size: int, word_bytes: int) -> int | None:
    """The least length >= `size` that has a plan; None beyond the largest."""
    for candidate in range(size, largest(word_bytes) + 1):
        if _smooth(candidate) and (measured(candidate, word_bytes) or _estimated(candidate, word_bytes)) is not None:
            return candidate
    return None


def _smooth(value: int) -> bool:
    for prime in (2, 3, 5, 7):
        while value % prime == 0:
            value //= prime
    return value == 1


def plan_for(size: int, word_bytes: int) -> tuple[BlockPlan, int | None]:
    """Plan and register limit for a length."""
    choice = choose(size, word_bytes)
    plan = make_plan(choice.radices, choice.elements, choice.rows, word_bytes, pairs=choice.pairs)
    return plan, choice.max_registers
