"""Measuring products: which cut of the work is fastest on this GPU for given shapes and orders.

In: a `GemmSpec` and arrays on a GPU. Out: `Knobs`, kept in the cache, like all plans, under the architecture's name.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels import cache, target
from devkernels.canonical import digest
from devkernels.errors import DevkernelsError
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import STAGED, WARPGROUP, GemmSpec, Matrix, Route
from devkernels.launch import driver, streams

_KIND, _FORMAT = "plan", 2
_LAUNCHES, _TURNS = 5, 9


@dataclasses.dataclass(frozen=True)
class Knobs:
    """What may be chosen of a main loop; None leaves it to the rules."""

    stages: int | None = None  # of the ring of slices in shared memory
    band: int | None = None  # rows of tiles that are worked on together (warpgroup)
    rows: int | None = None  # of a tile (warpgroup)
    columns: int | None = None
    small: bool | None = None  # tiles with half the rows and columns (staged)

    def of(self, tiling: Any) -> Any:
        """The tiling with what was chosen."""
        chosen = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return dataclasses.replace(tiling, **chosen) if chosen else tiling


USUAL = Knobs()


def candidates(route: Route) -> list[Knobs]:
    """Choices worth measuring, that of the rules first."""
    if route.path == WARPGROUP:
        large = [Knobs(stages, band, 128, 128) for stages in (4, 6) for band in (8, 16, 32)]
        return [USUAL, *large, *(Knobs(6, 16, rows, columns) for rows, columns in ((128, 64), (64, 128), (64, 64)))]
    if route.path == STAGED:
        return [USUAL, *(Knobs(stages, small=small) for stages in (3, 4) for small in (False, True))]
    return [USUAL]


def key_of(spec: GemmSpec, route: Route, a: Matrix, b: Matrix, d: Matrix, has_c: bool) -> str:
    """What a choice depends on: dtypes, names of the steps, shapes and orders, the architecture."""
    matrices = [(x.batch, x.rows, x.columns, x.along_rows, x.aligned(), x.strides[0] == 0) for x in (a, b, d)]
    kinds = (spec.a_dtype, spec.b_dtype, spec.out_dtype, spec.accumulate, spec.tf32)
    steps = tuple(step.name for step in spec.steps)
    return digest("gemm", kinds, steps, matrices, has_c, route.path, str(target.current_target()), _FORMAT)


def known(key: str) -> Knobs | None:
    """What the cache says, without a measurement."""
    kept = cache.get(_KIND, key)
    return None if kept is None else Knobs(**json.loads(kept))


def capturing(like: Any, stream: Any) -> bool:
    """Whether a CUDA graph is being captured where a launch on arrays like this one would go."""
    kind = arrays.library(like, "a")
    with arrays.on_stream(like, stream):
        current = streams.current_torch(like.get_device()) if kind == "torch" else streams.current_cupy()
        return driver.capturing(current())


def tuned(key: str, route: Route, like: Any, launch: Callable[[Knobs], Callable[[], None]]) -> Knobs:
    """The fastest choice: from the cache, or measured now. ``launch(knobs)`` gives a function that multiplies once."""
    found = candidates(route)
    if len(found) == 1:
        return found[0]
    if (kept := known(key)) is not None:
        return kept
    best = _measure(found, like, launch)
    cache.put(_KIND, key, json.dumps(dataclasses.asdict(best)).encode())
    return best


def _measure(found: list[Knobs], like: Any, launch: Callable[[Knobs], Callable[[], None]]) -> Knobs:
    from tqdm import tqdm

    runs = []
    with tqdm(found, desc="products", unit="plan") as progress:
        for knobs in progress:
            try:
                run = launch(knobs)
                run()
            except DevkernelsError:  # does not fit this GPU: not a candidate here
                continue
            runs.append((knobs, run))
    milliseconds = _timer(like)
    # The same kernel varies by some per cent from one moment to the next, so they take turns.
    samples = [[milliseconds(run) for _, run in runs] for _ in range(_TURNS)]
    return runs[int(np.argmin(np.median(samples, axis=0)))][0]


def _timer(like: Any) -> Callable[[Callable[[], None]], float]:
    """Function that gives the milliseconds of a launch, on the current stream of an array's library."""
    if arrays.library(like, "a") == "torch":
        cuda = sys.modules["torch"].cuda

        def event() -> Any:
            return cuda.Event(enable_timing=True)

        elapsed = cuda.Event.elapsed_time
    else:
        cuda = sys.modules["cupy"].cuda
        event, elapsed = cuda.Event, cuda.get_elapsed_time

    def milliseconds(run: Callable[[], None]) -> float:
        start, stop = event(), event()
        start.record()
        for _ in range(_LAUNCHES):
            run()
        stop.record()
        stop.synchronize()
        return elapsed(start, stop) / _LAUNCHES

    return milliseconds
