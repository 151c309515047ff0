"""Which algorithm a product uses: measured before on such a GPU with such a library, else cuBLASLt's heuristic.

in: an `LtMatmul`.  out: the same with its algorithm chosen. `measure` times the candidates and keeps the winner on disk
(`devkernels.cache`, kind "autotune"), so that later processes on the same kind of GPU start with it.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable

from devkernels import cache
from devkernels.linear import _variants, _workspace
from devkernels.linear._cublaslt import LtMatmul

_KIND = "autotune"
_ALGORITHM_BYTES = 64
_SHORT_MS, _CAPTURED = 0.1, 20
_CLOSE, _FINALISTS, _AROUND, _HOPELESS, _LONG_MS = 1.05, 6, 2, 1.25, 5.0
# Bursts: so long that the clock settles at what an algorithm's power allows, and so many. Who is not faster than the
# heuristic's first choice by so much is not taken: that is within what bursts of one algorithm differ by.
_BURST_MS, _BURSTS, _WORTH = 4.0, 5, 0.99


def key(lt: LtMatmul) -> str:
    """Digest of all that the choice depends on: spec, epilog, alignment, GPU, library version."""
    gpu = lt.arrays.device_name(lt.device)
    return cache.digest(repr(lt.spec), lt.epilog.name, lt.alignment, gpu, _workspace.library_version())


def choose(lt: LtMatmul) -> None:
    """Use the stored winner if there is one that this library accepts, else the heuristic's first."""
    stored = cache.get(_KIND, key(lt))
    if stored is not None and len(stored) == _ALGORITHM_BYTES:
        need = lt.accepts(stored)
        if need is None:  # the check is stricter than the heuristic; what that one offers is fine
            need = next(
                (int(one["workspace_size"]) for one in lt.candidates(32) if one["algo"].tobytes() == stored), None
            )
        if need is not None:
            lt.use(stored, need)
            return
    best = lt.candidates(1)[0]
    lt.use(best["algo"].tobytes(), int(best["workspace_size"]))


def measure(lt: LtMatmul, run: Callable[[], None], right: Callable[[], bool], *, candidates: int = 32, rounds: int = 5,
            search: bool = True) -> dict[str, object]:  # fmt: skip
    """Time algorithms on real operands, taking turns; keep, store and report the fastest.

    The heuristic's candidates run `rounds` times each; with `search`, so do variants of the fastest (see `_variants`).
    Those that came within a few percent of the fastest then run in bursts of some milliseconds, since among them the
    noise of one measurement decides, and the clock at which a GPU can go on with an algorithm. The heuristic's first
    choice is taken where it is level with the fastest. Products of many milliseconds run fewer times.

    Parameters
    ----------
    run : callable
        Puts one product on the current stream with the algorithm that `lt` uses at that moment.
    right : callable
        Whether what `run` has computed last is what the heuristic's first choice computed. An algorithm that the
        heuristic has not named is taken only if it is.

    Returns
    -------
    dict
        ``milliseconds`` of each algorithm (None where it failed), the index of the ``best``, how many the heuristic
        had (``heuristic``, they come first) and how many were tried (``candidates``).
    """
    before = (lt.algorithm, lt.workspace_bytes)
    race = _Race(lt, run)
    offered = [(one["algo"].tobytes(), int(one["workspace_size"])) for one in lt.candidates(candidates)]
    race.turns(race.enter(offered), 1)
    long = bool(race.able) and race.time(race.fastest()[0]) > _LONG_MS
    if long:
        rounds = min(rounds, 2)
    race.turns(race.able, rounds - 1)
    if search and race.able:
        race.turns(race.enter(_variants.of_the_plain_product(lt)), rounds)
        _search(race, long)
    best = None
    while best is None and race.able:
        close = race.finalists()
        if not close:
            break
        if len(close) > 1:
            race.bursts(close, _BURSTS)
        for index in race.order(close):
            if index < len(offered) or race.check(index, right):
                best = index
                break
    report = {"milliseconds": [race.time(i) for i in range(len(race.choices))], "best": best,
              "heuristic": len(offered), "candidates": len(race.choices)}  # fmt: skip
    if best is None:
        lt.use(*before)
        return report
    lt.use(*race.choices[best])
    cache.put(_KIND, key(lt), race.choices[best][0])
    return report


def _search(race: _Race, long: bool) -> None:
    """Try variants around the fastest: schedules, tiles, the schedules of those tiles. Long products are tried less."""
    schedules, tiles, order = _variants.other_schedules, _variants.other_tiles, _variants.other_order
    for vary in (_variants.other_ways,) if long else (schedules, tiles, schedules, order):
        for index in race.fastest()[: 1 if long else _AROUND]:
            race.turns(race.enter(vary(race.lt, race.choices[index][0])), 2)


class _Race:
    """Algorithms of one product, timed in turns."""

    def __init__(self, lt: LtMatmul, run: Callable[[], None]):
        self.lt, self.run = lt, run
        self.choices: list[_variants.Choice] = []
        self.able: list[int] = []
        self._calls: list[tuple[Callable[[], object], int]] = []
        self._samples: list[list[float]] = []
        self._bursts: dict[int, list[float]] = {}

    def enter(self, choices: list[_variants.Choice]) -> list[int]:
        """Let more algorithms take part; returns the indices of those that are new, can run and have a chance."""
        known = {algorithm for algorithm, _ in self.choices}
        first = len(self.choices)
        for choice in choices:
            if choice[0] not in known:
                known.add(choice[0])
                self.choices.append(choice)
                self._samples.append([])
                call = self._prepared(choice)
                self._calls.append(call)
                if call is not None:
                    self.able.append(len(self.choices) - 1)
        return [i for i in self.able if i >= first]

    def _prepared(self, choice: _variants.Choice) -> tuple[Callable[[], object], int] | None:
        """What to time for an algorithm, and how many products that is; None where it fails, or is far too slow.

        Where a launch takes the host longer than the device, a CUDA graph of many products is timed.
        """
        lt = self.lt
        try:
            lt.use(*choice)
            self.run()  # first use loads the kernel
            once = lt.arrays.milliseconds(self.run, lt.device)
            if once < _SHORT_MS:
                return lt.arrays.captured(self.run, _CAPTURED), _CAPTURED
        except Exception:  # noqa: BLE001 - an algorithm that cannot run is no candidate
            return None
        best = self.fastest()
        if best and once > _HOPELESS * self.time(best[0]):
            self._samples[-1].append(once)
            return None
        return self.run, 1

    def check(self, index: int, right: Callable[[], bool]) -> bool:
        """Whether an algorithm computes what it should; if not, it takes part no more."""
        try:
            self.lt.use(*self.choices[index])
            self.run()
            if right():
                return True
        except Exception:  # noqa: BLE001 - as above
            pass
        self._fail(index)
        return False

    def turns(self, which: list[int], rounds: int) -> None:
        """Time algorithms one after another, `rounds` times; those that fail are able no more."""
        lt = self.lt
        for _ in range(rounds):
            for index in [i for i in which if i in self.able]:
                call, count = self._calls[index]
                try:
                    lt.use(*self.choices[index])
                    self._samples[index].append(lt.arrays.milliseconds(call, lt.device) / count)
                except Exception:  # noqa: BLE001 - as above
                    self._fail(index)

    def bursts(self, which: list[int], rounds: int) -> None:
        """Time algorithms in bursts, in another order each time; what single runs took no longer counts."""
        lt, shuffled = self.lt, random.Random(rounds)
        for index in which:
            self._bursts.setdefault(index, [])
        for _ in range(rounds):
            for index in shuffled.sample(which, len(which)):
                call, count = self._calls[index]
                times = max(2, round(_BURST_MS / (count * self.time(index))))
                try:
                    lt.use(*self.choices[index])
                    call()  # the one before leaves its clock behind
                    taken = lt.arrays.milliseconds(functools.partial(_repeat, call, times), lt.device)
                    self._bursts[index].append(taken / (count * times))
                except Exception:  # noqa: BLE001 - as above
                    self._fail(index)

    def order(self, which: list[int]) -> list[int]:
        """Those of them that can run and are fast, the one to take first: the heuristic's choice if it is level."""
        order = sorted((i for i in which if i in self.able), key=self.time)
        order = [i for i in order if self.time(i) <= self.time(order[0]) * _CLOSE]
        if 0 in order and self.time(order[0]) > _WORTH * self.time(0):
            order.remove(0)
            order.insert(0, 0)
        return order

    def _fail(self, index: int) -> None:
        """Let an algorithm take part no more."""
        self._samples[index].clear()
        self._bursts.pop(index, None)
        if index in self.able:
            self.able.remove(index)

    def time(self, index: int) -> float | None:
        """Median of what was measured, in bursts if there were any."""
        samples = self._bursts.get(index) or self._samples[index]
        return statistics.median(samples) if samples else None

    def fastest(self) -> list[int]:
        """Those within a few percent of the fastest, the fastest first."""
        timed = sorted((i for i in self.able if self._samples[i]), key=self.time)
        return [i for i in timed if self.time(i) <= self.time(timed[0]) * _CLOSE][:_FINALISTS]

    def finalists(self) -> list[int]:
        """The fastest, and the heuristic's first choice."""
        close = self.fastest()
        return close if 0 in close or 0 not in self.able or not self._samples[0] else [*close, 0]


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()
