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


def measure(lt: LtMatmul, run: Callable[[], None], *, candidates: int = 16, rounds: int = 5) -> dict[str, object]:
    """Time the heuristic's candidates on real operands, taking turns; keep, store and report the fastest.

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
    samples: list[list[float]] = [[] for _ in found]
    # Where a launch takes the host longer than the device, what is timed is a CUDA graph of many.
    calls: list[tuple[Callable[[], object], int] | None] = [None] * len(found)
    for turn in range(rounds + 1):
        for index, one in enumerate(found):
            try:
                if turn == 0:
                    lt.use(one["algo"].tobytes(), int(one["workspace_size"]))
                    run()  # first use loads the kernel
                    if lt.arrays.milliseconds(run, lt.device) < _SHORT_MS:
                        calls[index] = lt.arrays.captured(run, _CAPTURED), _CAPTURED
                    else:
                        calls[index] = run, 1
                elif calls[index] is not None:
                    call, count = calls[index]
                    lt.use(one["algo"].tobytes(), int(one["workspace_size"]))
                    samples[index].append(lt.arrays.milliseconds(call, lt.device) / count)
            except Exception:  # noqa: BLE001 - a candidate that cannot run is no candidate
                calls[index] = None
    times = [statistics.median(s) if s and calls[i] is not None else None for i, s in enumerate(samples)]
    able = [i for i, t in enumerate(times) if t is not None]
    if not able:
        lt.use(*before)
        return {"milliseconds": times, "best": None, "candidates": len(found)}
    best = min(able, key=lambda i: times[i])
    algorithm = found[best]["algo"].tobytes()
    lt.use(algorithm, int(found[best]["workspace_size"]))
    cache.put(_KIND, key(lt), algorithm)
    return {"milliseconds": times, "best": best, "candidates": len(found)}
