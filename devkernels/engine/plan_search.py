"""The search for a plan: exchange layouts without bank conflicts, and the least barriers.

in: radices, elements per thread, rows per block, precision. out: a `BlockPlan`. Everything here is decided by
counting: a layout is tried on the addresses that the threads will use, a barrier is what the readers and writers of
each word of shared memory need.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from devkernels.engine import index
from devkernels.engine.plan import BlockPlan, Exchange
from devkernels.errors import SpecError

WARP = 32


def bank_passes(addresses: np.ndarray, word_bytes: int) -> np.ndarray:
    """Mean passes that shared memory needs for accesses by warps of 32 lanes (last axis), 1.0 being the least.

    A warp's access of 8-byte words goes in two halves of 16 lanes, of 16-byte words in four quarters; the lanes of a
    part are served at once unless they want different words of the same bank.
    """
    part = 128 // word_bytes
    lanes = np.asarray(addresses)
    lacking = -lanes.shape[-1] % part
    if lacking:
        lanes = np.concatenate([lanes, np.repeat(lanes[..., -1:], lacking, axis=-1)], axis=-1)
    groups = np.sort(lanes.reshape(-1, part), axis=1)
    fresh = np.ones(groups.shape, dtype=bool)
    fresh[:, 1:] = groups[:, 1:] != groups[:, :-1]
    wanted = (np.arange(len(groups))[:, None] * part + groups % part)[fresh]
    passes = np.bincount(wanted, minlength=len(groups) * part).reshape(len(groups), part).max(axis=1)
    return passes.reshape(*lanes.shape[:-1], -1).mean(axis=-1)


class _Builder:
    """Search for one plan's groups and layouts."""

    def __init__(self, radices, shares, rows, word_bytes, columns=False, pairs=False, neighbours=False):
        self.columns, self.pairs, self.neighbours = columns, pairs, neighbours
        self.radices, self.shares, self.rows, self.word_bytes = radices, shares, rows, word_bytes
        self.size = index.prefix_products(radices)[-1]
        self.count = len(radices)
        self.counts = {s: self.size // share for s, share in enumerate(shares, start=1)}  # threads per row
        self.threads = self.counts[1]
        self.lanes = 128 // word_bytes
        self.options = {s: index.groups(radices, shares[s - 1], s, neighbours) for s in range(1, self.count + 1)}
        for stage, found in self.options.items():
            if not found:
                raise SpecError(
                    f"No plan for {self.size} = {' * '.join(map(str, radices))} with {shares[stage - 1]} elements per "
                    f"thread: "
                    f"stage {stage} would need address arithmetic per element; take other radices, or reorder them."
                )

    @functools.cache  # noqa: B019 - lives as long as this short search
    def place(self, stage, group):
        return index.positions(self.radices, self.shares[stage - 1], stage, group)

    @functools.cache  # noqa: B019
    def first_digits(self, stage, group):
        return np.stack(index.digits(self.radices, self.place(stage, group)[:, 0]))

    @functools.cache  # noqa: B019
    def paired(self, stage, group) -> bool:
        """Whether a thread's elements are pairs of neighbours, the first of each in an even place."""
        if not self.pairs:
            return False
        place = self.place(stage, group)
        offsets = set((place[0] - place[0, 0]).tolist())
        return not (place[:, 0] % 2).any() and all(offset ^ 1 in offsets for offset in offsets)

    def passes(self, layouts, stage, group) -> np.ndarray:
        """Passes per access of this stage's exchange, for each layout; the same for every slot of a thread."""
        words = np.asarray(layouts) @ self.first_digits(stage, group)
        rows = self.rows if self.columns else min(self.rows, max(1, -(-WARP // self.counts[stage])))
        starts = np.array([self.row_words(self.words(strides)) for strides in layouts])
        words = words[:, None, :] + (np.arange(rows)[None, :] * starts[:, None])[:, :, None]
        if self.columns:  # neighbouring lanes are neighbouring rows
            words = words.transpose(0, 2, 1)
        words = words.reshape(len(layouts), -1)[:, :256]
        if self.paired(stage, group):
            return bank_passes(words // 2, 2 * self.word_bytes)
        return bank_passes(words, self.word_bytes)

    def costs(self, layouts, stage, group) -> np.ndarray:
        """`passes`, and a fine where pairs are wanted but not to be had: so many more instructions."""
        return self.passes(layouts, stage, group) + (0.5 if self.pairs and not self.paired(stage, group) else 0.0)

    def strides(self, pads) -> tuple[int, ...]:
        out = [1]
        for radix, pad in zip(self.radices[:0:-1], pads[::-1], strict=True):
            out.append(out[-1] * radix + pad)
        return tuple(out[::-1])

    def words(self, strides) -> int:
        return 1 + sum((r - 1) * s for r, s in zip(self.radices, strides, strict=True))

    def row_words(self, words: int) -> int:
        """Words between the rows of a block: shifted so that rows that share a half-warp use other banks."""
        if self.pairs:
            half, lanes = -(-words // 2), self.lanes // 2
            if self.columns:
                return 2 * (half + (max(1, lanes // self.rows) - half) % lanes)
            if self.rows == 1 or self.threads >= self.lanes:
                return 2 * half
            return 2 * (half + (-(-self.threads // 2) - half) % lanes)
        if self.columns:
            return words + (max(1, self.lanes // self.rows) - words) % self.lanes
        if self.rows == 1 or self.threads >= self.lanes:
            return words
        return words + (self.threads - words) % self.lanes

    def position_scope(self, stage, groups) -> str | None:
        """Barrier between stages `stage` and `stage` + 1: who holds a position before and after."""
        owner = np.empty((2, self.size), dtype=np.int64)
        for side, s in enumerate((stage, stage + 1)):
            owner[side, self.place(s, groups[s - 1])] = np.arange(self.counts[s])[:, None]
        return self.scope(owner, (self.counts[stage], self.counts[stage + 1]))

    def scope(self, owners, threads) -> str | None:
        rows = np.arange(self.rows)[:, None]
        if self.columns:
            a, b = (who[None, :] * self.rows + rows for who in owners)
        else:
            a, b = (who[None, :] + rows * count for who, count in zip(owners, threads, strict=True))
        if (a == b).all():
            return None
        return "warp" if (a // WARP == b // WARP).all() else "block"

    def reuse_scope(self, stage, before, after, group, row_words) -> str | None:
        """Barrier before `stage` writes in layout `after` over what it has read in layout `before`."""
        owners = []
        for strides in (before, after):
            who = np.full(row_words, -1, dtype=np.int64)
            who[index.address(self.radices, strides, self.place(stage, group))] = np.arange(self.counts[stage])[:, None]
            owners.append(who)
        both = (owners[0] >= 0) & (owners[1] >= 0)
        return self.scope((owners[0][both], owners[1][both]), (self.counts[stage],) * 2)

    def group_choices(self):
        """Groups of all stages, those with the fewest block barriers only."""
        ranked: dict[int, list[tuple[int, ...]]] = {}
        for choice in itertools.product(*(self.options[s] for s in range(1, self.count + 1))):
            blocks = sum(self.position_scope(s, choice) == "block" for s in range(1, self.count))
            ranked.setdefault(blocks, []).append(choice)
        return sorted(ranked[min(ranked)], key=lambda choice: -self.paired_sides(choice))

    def paired_sides(self, groups) -> int:
        """Of the two sides of each exchange, those that move pairs."""
        return sum(self.paired(e, groups[e - 1]) for s in range(1, self.count) for e in (s, s + 1))

    def shared_layouts(self):
        """Strides to try for all exchanges together, smallest first."""
        limit = self.lanes + 1
        pads = (
            range(0, limit, 2 if self.pairs else 1) if self.count <= 3 else (0, 1, 2, 4, 8)[:: 2 if self.pairs else 1]
        )
        return sorted({self.strides(p) for p in itertools.product(pads, repeat=self.count - 1)}, key=self.words)

    def layouts(self, stage, prefix):
        """Strides for the exchange after `stage`; digits before it keep the strides `prefix`.

        So each sub-transform stays within the words that it has had, and its threads wait for no others.
        """
        found = []
        for pad in range(0, self.lanes + 1, 2 if self.pairs else 1):
            inner = self.strides((0,) * (stage - 1) + (pad,) + (0,) * (self.count - 1 - stage))[stage - 1 :]
            if (
                not prefix
                or 1 + sum((r - 1) * s for r, s in zip(self.radices[stage - 1 :], inner, strict=True)) <= prefix[-1]
            ):
                found.append(prefix + inner)
        return found

    def best(self, layouts, groups, ends):
        """(cost, strides) of the layout with the fewest passes, the first of these; None without layouts."""
        if not layouts:
            return None
        costs = sum(self.costs(layouts, e, groups[e - 1]) for e in ends) / len(ends)
        number = int(np.argmin(costs))
        return float(costs[number]), layouts[number]

    def choose(self):
        """(groups, strides per exchange): fewest block barriers, then bank conflicts, then any barriers."""
        stages = list(range(1, self.count))
        choices = self.group_choices()
        best, least = None, 1.0
        if self.pairs:
            least += 0.5 * (1 - max(map(self.paired_sides, choices)) / (2 * len(stages)))
        # A layout shared by all exchanges lets every thread write where it has just read: no barrier before.
        layouts = self.shared_layouts()
        for groups in choices[:16]:
            cost, strides = self.best(layouts, groups, [e for s in stages for e in (s, s + 1)])
            if best is None or cost < best[0]:
                best = cost, groups, [strides] * len(stages)
            if cost <= least:
                return best[1:]
        if self.count != 3:  # two stages have one exchange; four are rare, and their search would be long
            return best[1:]
        # Else every exchange its own, confined to the words of its sub-transform.
        firsts = self.layouts_first()
        for groups in choices[:16]:
            costs = (self.costs(firsts, 1, groups[0]) + self.costs(firsts, 2, groups[1])) / 2
            for number in np.argsort(costs, kind="stable")[:64]:
                first = firsts[number]
                inner = self.best(self.layouts(2, first[:1]), groups, (2, 3))
                if inner is not None and (best is None or (costs[number] + inner[0]) / 2 < best[0] - 1e-9):
                    best = (costs[number] + inner[0]) / 2, groups, [first, inner[1]]
                    if best[0] <= least:
                        return best[1:]
        return best[1:]

    def layouts_first(self):
        """Strides for the first exchange, smallest first."""
        rest = (0,) * (self.count - 3)
        step = 2 if self.pairs else 1
        pads = itertools.product(range(0, 2 * self.lanes + 1, step), range(0, self.lanes + 1, step))
        return sorted({self.strides((p, q, *rest)) for p, q in pads}, key=self.words)

    def build(self) -> BlockPlan:
        common = (self.size, self.radices, max(self.shares), self.rows, self.word_bytes)
        shares = self.shares if len(set(self.shares)) > 1 else ()
        if self.count == 1:
            return BlockPlan(*common, (self.options[1][0],), (), 0, self.columns, self.neighbours)
        groups, layout = self.choose()
        row_words = self.row_words(max(self.words(strides) for strides in layout))
        exchanges = []
        for s, strides in enumerate(layout, start=1):
            reuse = None
            if s > 1:
                reuse = self.reuse_scope(s, layout[s - 2], strides, groups[s - 1], row_words)
            cost = float(sum(self.passes([strides], e, groups[e - 1])[0] for e in (s, s + 1)) / 2)
            pairs = tuple(self.paired(e, groups[e - 1]) for e in (s, s + 1))
            exchanges.append(Exchange(s, strides, self.position_scope(s, groups), reuse, cost, pairs))
        return BlockPlan(*common, groups, tuple(exchanges), row_words, self.columns, self.neighbours, shares)


@functools.lru_cache(maxsize=4096)
def make_plan(
    radices: tuple[int, ...], elements: int | tuple[int, ...], rows: int = 1, word_bytes: int = 8,
    columns: bool = False, pairs: bool = False, neighbours: bool = False,
) -> BlockPlan:  # fmt: skip
    """Plan for given radices.

    Parameters
    ----------
    radices : tuple of int
        2 to 64 each (beyond 32 registers are short); their product is the length.
    elements : int or tuple of int
        Elements per thread, a multiple of every radix; or of each stage, a multiple of its radix.
    rows : int
        Rows per block.
    word_bytes : int
        8 for complex64, 16 for complex128.
    columns : bool
        The rows of a block are neighbouring columns of memory, and threadIdx.x runs over them.
    pairs : bool
        Where a thread holds neighbours, they pass shared memory two at a time (complex64 only, last radix even).
    neighbours : bool
        A thread's elements are to be pairs of neighbours in memory: twice as many as the first radix, with `pairs`.
    """
    pairs = pairs and word_bytes == 8 and radices[-1] % 2 == 0
    shares = tuple(elements) if isinstance(elements, tuple) else (elements,) * len(radices)
    if neighbours and not (pairs and elements == 2 * radices[0] and len(radices) > 1):
        raise SpecError(f"Neighbours need pairs, and {elements} elements to be twice the first radix of {radices}.")
    if not radices or any(not 2 <= r <= 64 for r in radices):
        raise SpecError(f"Radices {radices} must be numbers from 2 to 64.")
    if len(shares) != len(radices) or any(share % r for share, r in zip(shares, radices, strict=True)):
        raise SpecError(f"{elements} elements per thread are not a multiple of every radix of {radices}.")
    size = index.prefix_products(radices)[-1]
    if any(size % share for share in shares):
        raise SpecError(f"{elements} elements per thread do not divide the length {size} of radices {radices}.")
    if columns and len(set(shares)) > 1:
        raise SpecError("Columns take as many threads in every stage.")
    return _Builder(tuple(radices), shares, rows, word_bytes, columns, pairs, neighbours).build()
