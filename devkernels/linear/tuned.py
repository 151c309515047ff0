"""Which algorithm a product uses: measured before on such a GPU with such a library, else cuBLASLt's heuristic.

in: an `LtMatmul`.  out: the same with its algorithm chosen. `measure` times the candidates and keeps the winner on disk
(`devkernels.cache`, kind "autotune"), so that later processes on the same kind of GPU start with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from devkernels import cache
from devkernels.linear import _workspace
from devkernels.linear._cublaslt import LtMatmul

_KIND = "autotune"
_ALGORITHM_BYTES = 64
_SHORT_MS, _CAPTURED = 0.1, 20
_CLOSE, _FINALISTS, _LONG_MS = 1.05, 6, 5.0


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


def measure(lt: LtMatmul, run: Callable[[], None], *, candidates: int = 32, rounds: int = 5) -> dict[str, object]:
    """Time the heuristic's candidates on real operands, taking turns; keep, store and report the fastest.

    All candidates run `rounds` times; those that came within a few percent of the fastest run three times as often
    again, since among them one measurement's noise decides. Products of many milliseconds run fewer times.

    Parameters
    ----------
    run : callable
        Puts one product on the current stream with the algorithm that `lt` uses at that moment.

    Returns
    -------
    dict
        ``milliseconds`` of each candidate (None where it failed), the index of the ``best``, and how many were tried.
    """
    found = lt.candidates(candidates)
    before = (lt.algorithm, lt.workspace_bytes)
    calls = [_prepared(lt, run, one) for one in found]
    samples: list[list[float]] = [[] for _ in found]
    able = [i for i, call in enumerate(calls) if call is not None]
    able = _take_turns(lt, found, calls, samples, able, 1)
    again = 3
    if able and min(samples[i][0] for i in able) > _LONG_MS:
        rounds, again = min(rounds, 2), 1
    able = _take_turns(lt, found, calls, samples, able, rounds - 1)
    if not able:
        lt.use(*before)
        return {"milliseconds": [None] * len(found), "best": None, "candidates": len(found)}
    middle = lambda i: statistics.median(samples[i])  # noqa: E731
    limit = min(middle(i) for i in able) * _CLOSE
    close = sorted((i for i in able if middle(i) <= limit), key=middle)[:_FINALISTS]
    if len(close) > 1:
        close = _take_turns(lt, found, calls, samples, close, again * rounds) or close
    best = min(close, key=middle)
    algorithm = found[best]["algo"].tobytes()
    lt.use(algorithm, int(found[best]["workspace_size"]))
    cache.put(_KIND, key(lt), algorithm)
    times = [middle(i) if samples[i] else None for i in range(len(found))]
    return {"milliseconds": times, "best": best, "candidates": len(found)}


def _prepared(lt: LtMatmul, run: Callable[[], None], one) -> tuple[Callable[[], object], int] | None:
    """What to time for a candidate, and how many products that is; None where it fails.

    Where a launch takes the host longer than the device, a CUDA graph of many products is timed.
    """
    try:
        lt.use(one["algo"].tobytes(), int(one["workspace_size"]))
        run()  # first use loads the kernel
        if lt.arrays.milliseconds(run, lt.device) < _SHORT_MS:
            return lt.arrays.captured(run, _CAPTURED), _CAPTURED
    except Exception:  # noqa: BLE001 - a candidate that cannot run is no candidate
        return None
    return run, 1


def _take_turns(lt: LtMatmul, found, calls, samples: list[list[float]], which: list[int], rounds: int) -> list[int]:
    """Time candidates one after another, `rounds` times; returns those that did not fail."""
    able = list(which)
    for _ in range(rounds):
        for index in list(able):
            call, count = calls[index]
            try:
                lt.use(found[index]["algo"].tobytes(), int(found[index]["workspace_size"]))
                samples[index].append(lt.arrays.milliseconds(call, lt.device) / count)
            except Exception:  # noqa: BLE001 - as above
                samples[index].clear()
                able.remove(index)
    return able
