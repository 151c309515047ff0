"""Plans of block transforms, as the rest of the engine reads them.

in: the outcome of the search in `plan_search`. out: a frozen `BlockPlan`: radices, threads, exchanges and barriers.
"""

from __future__ import annotations

from dataclasses import dataclass

from devkernels.engine import networks


@dataclass(frozen=True)
class Exchange:
    """One pass of a row through shared memory, after stage `stage` going forward and before it going back.

    `strides` are words per digit of the position. `barrier` must stand between its writes and its reads, and
    `reuse_barrier` before its writes when it follows the exchange before (forward; mirrored in the inverse): None
    where every thread overwrites only what it has read itself, "warp" or "block" else. `pairs` says for each of the two
    stages whether its elements move two at a time, in 16 bytes.
    """

    stage: int
    strides: tuple[int, ...]
    barrier: str | None
    reuse_barrier: str | None
    conflicts: float  # shared-memory passes per access, 1.0 is free of conflicts
    pairs: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class BlockPlan:
    """How one thread block transforms `rows` rows of `size` complex numbers in shared memory and registers."""

    size: int
    radices: tuple[int, ...]
    elements: int
    rows: int
    word_bytes: int
    groups: tuple[int, ...]
    exchanges: tuple[Exchange, ...]
    row_words: int
    columns: bool = False  # threadIdx.x runs over the rows of a block: for transforms along columns of memory
    neighbours: bool = False  # a thread's elements are pairs of neighbours in memory too
    shares: tuple[int, ...] = ()  # uneven plans: elements per thread of each stage, of which `elements` is the most

    @property
    def uneven(self) -> bool:
        """Whether stages take different numbers of threads; a thread's row is then not threadIdx.y."""
        return bool(self.shares)

    def share(self, stage: int) -> int:
        """Elements that a thread of this stage holds."""
        return self.shares[stage - 1] if self.shares else self.elements

    def threads_in(self, stage: int) -> int:
        """Threads per row in a stage."""
        return self.size // self.share(stage)

    @property
    def width(self) -> int:
        """Neighbours in memory that a thread holds: its first element is this times the thread's number."""
        return 2 if self.neighbours else 1

    @property
    def threads(self) -> int:
        """Threads per row: those that load it."""
        return self.threads_in(1)

    @property
    def block_dim(self) -> tuple[int, int, int]:
        """Shape of the thread block: threads of a row, rows; the other way round for columns.

        With uneven stages threads are numbered along x, through all rows.
        """
        if self.uneven:
            return (self.rows * max(self.size // share for share in self.shares), 1, 1)
        return (self.rows, self.threads, 1) if self.columns else (self.threads, self.rows, 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.rows * self.row_words * self.word_bytes

    def operations(self, rotated: bool = False) -> float:
        """Floating-point instructions per element, forward and inverse, without the filter."""
        total = sum(networks.operations(r, s > 0, rotated) / r for s, r in enumerate(self.radices))
        return total + sum(networks.operations(r, s > 0, rotated) / r for s, r in enumerate(self.radices[::-1]))

    def _threads_in_words(self) -> str:
        if not self.uneven:
            return f"{self.threads} threads of {self.elements} elements"
        each = [f"{self.size // share} of {share}" for share in self.shares]
        return f"threads of so many elements in each stage: {', '.join(each)};"

    def describe(self) -> str:
        """Say the plan in words."""
        lines = [
            f"{self.size} = {' * '.join(map(str, self.radices))}; {self._threads_in_words()} "
            f"per row, {self.rows} rows per block; {self.shared_bytes} bytes of shared memory; about "
            f"{self.operations():.1f} floating-point instructions per element both ways"
        ]
        for exchange in self.exchanges:
            lines.append(
                f"  exchange {exchange.stage}: strides {exchange.strides}, barrier {exchange.barrier}, before reuse "
                f"{exchange.reuse_barrier}, {exchange.conflicts:.2f} passes per access"
                + ("" if not any(exchange.pairs) else f", 16 bytes at a time in {sum(exchange.pairs)} of 2 stages")
            )
        return "\n".join(lines)
