"""Times contenders against each other on a GPU, fairly, and keeps the results as files.

in: a benchmark module with `CASES` (dicts of plain values) and ``set_up(case) -> Setup``.
out: bench/results/<name>.json, one row for each case and contender, written after each case so that a run that
is cut short loses only the case it was in.

How it measures, and why:

- All contenders of a case take turns in one run: a clock that drifts drifts for all of them.
- Ten launches between two CUDA events, so that the gap between two launches is not taken for kernel time. What a
  launch costs the host is measured on its own (`host_us`). Where the host is the slower of the two, `ms` is the
  host's time; `graph_ms` (a CUDA graph of the same ten launches, replayed) is then the time of the kernels.
- Benchmarks that say ``HELD = True`` let a waiting kernel keep the GPU busy until the ten launches are in its queue, so
  that `ms` is the device's time (``"held": true``). Without, the first launch after a wait adds 50 to 150 microseconds
  to the ten: 20 to 30 % where a kernel takes 40 microseconds, and more on a busy host.
- ``copy`` moves the same bytes from one buffer to another: the floor of whatever must read its input and write its
  output once. `times_copy` is a contender's median over the median of the copy of its own run.
- Data larger than the L2 cache, or the row says ``"in_l2": true``.
- Each contender shows that it is right (`Contender.check`) before it is timed; a wrong one is not timed.

Importing this module needs no GPU and no CuPy.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.result_files import RESULTS, merge_rows
from bench.surroundings import environment
from devkernels import graphs

LAUNCHES = 10  # between two events


@dataclass
class Contender:
    """One way of doing the work of a case.

    `run` puts one execution on CuPy's current stream (torch's current stream is set to the same one) and does not
    wait. `check` is called after one `run` and a wait, and returns the relative error against a float64 reference;
    the contender is refused if that is more than `bound`. `graph` says whether the work may be captured in a CUDA
    graph. What stands in `extra` goes into the row (registers, tile sizes, algorithm numbers ...).
    """

    name: str
    run: Callable[[], object]
    check: Callable[[], float] | None = None
    bound: float = 1e-5
    graph: bool = True
    extra: dict[str, object] = field(default_factory=dict)


@dataclass
class Setup:
    """What `set_up(case)` hands over: the contenders and the bytes that the work must read plus write."""

    contenders: Sequence[Contender]
    moved_bytes: int
    flops: float = 0.0
    close: Callable[[], None] | None = None


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int = 15
    host_launches: int = 50
    host_rounds: int = 3
    graph: bool = False
    held: bool = False


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """20, 50 and 80 percentiles of `samples`, by linear interpolation."""
    ordered = sorted(samples)
    result = {}
    for percent in (20, 50, 80):
        position = (len(ordered) - 1) * percent / 100
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        result[f"p{percent}"] = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return result


@contextlib.contextmanager
def bench_stream() -> Iterator[object]:
    """A stream that is current for CuPy, and for torch where a benchmark has imported it."""
    import cupy as cp

    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(cp.cuda.Stream(non_blocking=True))
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)))
        yield stream


def copy_contender(moved_bytes: int) -> Contender:
    """The reference: one device-to-device copy that reads and writes `moved_bytes` in all."""
    import cupy as cp

    count = max(moved_bytes // 8, 1)  # float32 values: half the bytes are read, half written
    source = cp.random.standard_normal(count, dtype=cp.float32)
    target = cp.full_like(source, cp.nan)
    return Contender("copy", lambda: cp.copyto(target, source), lambda: float((target != source).any()), 0.0)


_HOLD = """
extern "C" __global__ void hold(long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
}
"""
_MOST_HELD = 20_000_000  # nanoseconds


@functools.cache
def _holder():
    import cupy as cp

    return cp.RawKernel(_HOLD, "hold")


def _held_for(run: Callable[[], object], stream: object) -> int:
    """Nanoseconds that the host may need to launch ten times, after a wait and on a bad day."""
    stream.synchronize()
    begin = time.perf_counter_ns()
    run()
    run()
    return min(_MOST_HELD, 200_000 + LAUNCHES * (time.perf_counter_ns() - begin))


def _milliseconds(run: Callable[[], object], launches: int, held_for: int = 0) -> float:
    import cupy as cp

    start, stop = cp.cuda.Event(), cp.cuda.Event()
    if held_for:
        import numpy as np

        _holder()((1,), (1,), (np.int64(held_for),))
    start.record()
    for _ in range(launches):
        run()
    stop.record()
    stop.synchronize()
    return cp.cuda.get_elapsed_time(start, stop) / launches


def _captured(run: Callable[[], object]) -> Callable[[], None]:
    """Replay of `LAUNCHES` calls, in which CuPy's and (where it is imported) torch's memory stays the graph's."""
    if "torch" in sys.modules:
        return graphs.with_torch(run, LAUNCHES, cupy_too=True)
    return graphs.with_cupy(run, LAUNCHES)


def _host_microseconds(run: Callable[[], object], stream: object, launches: int) -> float:
    stream.synchronize()
    begin = time.perf_counter()
    for _ in range(launches):  # far fewer than a launch queue holds, so the host never waits
        run()
    return (time.perf_counter() - begin) / launches * 1e6


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def measure(setup: Setup, stream: object, effort: Effort) -> list[dict[str, object]]:
    """Check all contenders of a case, then time those that are right, taking turns. Returns one dict for each."""
    contenders = [copy_contender(setup.moved_bytes), *setup.contenders]
    rows: list[dict[str, object]] = []
    able: list[tuple[Contender, dict[str, object], list[float], list[float], Callable[[], object] | None]] = []
    held: dict[str, int] = {}
    for contender in contenders:
        row: dict[str, object] = {"contender": contender.name, **contender.extra}
        rows.append(row)
        replay = None
        try:
            contender.run()
            stream.synchronize()
            if contender.check is not None:
                row["error"] = contender.check()
                if not row["error"] <= contender.bound:
                    row["failed"] = f"relative error {row['error']:.3g} is more than {contender.bound:.3g}"
                    continue
            for _ in range(2):
                contender.run()
            held[contender.name] = _held_for(contender.run, stream) if effort.held else 0
            stream.synchronize()
        except Exception as error:  # noqa: BLE001 - one contender that fails must not end the others
            row["failed"] = _reason(error)
            continue
        if effort.graph and contender.graph:
            try:
                replay = _captured(contender.run)
                replay()
                stream.synchronize()
            except Exception as error:  # noqa: BLE001 - a library may refuse to be captured; the row says so
                row["graph_failed"], replay = _reason(error), None
        able.append((contender, row, [], [], replay))
    # Another order in each round: who comes after a contender that has heated the GPU up runs at a lower clock.
    shuffled = random.Random(effort.rounds)
    for _ in range(effort.rounds):
        for contender, _, samples, replayed, replay in shuffled.sample(able, len(able)):
            samples.append(_milliseconds(contender.run, LAUNCHES, held[contender.name]))
            if replay is not None:
                replayed.append(_milliseconds(replay, 1) / LAUNCHES)
    host: dict[str, list[float]] = {contender.name: [] for contender, *_ in able}
    for turn in range(effort.host_rounds):
        for contender, *_ in able[turn % max(len(able), 1) :] + able[: turn % max(len(able), 1)]:
            host[contender.name].append(_host_microseconds(contender.run, stream, effort.host_launches))
    stream.synchronize()
    reference = next((statistics.median(s) for c, _, s, _, _ in able if c.name == "copy"), None)
    for contender, row, samples, replayed, _ in able:
        row["ms"] = percentiles(samples)
        if effort.held:
            row["held"] = True
        median = row["ms"]["p50"]
        row["gb_per_s"] = setup.moved_bytes / median / 1e6
        if setup.flops:
            row["tflops"] = setup.flops / median / 1e9
        if reference:
            row["times_copy"] = median / reference
        row["host_us"] = statistics.median(host[contender.name])
        row["host_us_percentiles"] = percentiles(host[contender.name])
        if replayed:
            row["graph_ms"] = percentiles(replayed)
    return rows


def run_benchmark(
    name: str,
    cases: Sequence[dict[str, object]],
    set_up: Callable[[dict[str, object]], Setup],
    *,
    effort: Effort = Effort(),
    folder: pathlib.Path = RESULTS,
    commit_name: str | None = None,
) -> int:
    """Run all `cases`; returns how many contenders failed (each is a row with ``failed``)."""
    import cupy as cp
    from tqdm import tqdm

    surroundings = environment(commit_name)
    failures = 0
    with tqdm(cases, desc=name, unit="case", file=sys.stderr) as progress:
        for case in progress:
            progress.set_postfix_str(" ".join(f"{key}={value}" for key, value in case.items()))
            setup = None
            try:
                with bench_stream() as stream:
                    setup = set_up(case)
                    stream.synchronize()
                    rows = measure(setup, stream, effort)
                    shared = {"in_l2": setup.moved_bytes < 2 * surroundings["l2_bytes"], "bytes": setup.moved_bytes}
            except Exception as error:  # noqa: BLE001 - a case that cannot be set up must not end the others
                rows, shared = [{"contender": "(set-up)", "failed": _reason(error)}], {}
            finally:
                if setup is not None and setup.close is not None:
                    setup.close()
                del setup
                cp.get_default_memory_pool().free_all_blocks()
            surroundings["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            merge_rows(name, [{"case": case, **row, **shared, **surroundings} for row in rows], folder)
            for row in rows:
                tqdm.write(_line(case, row))
                failures += "failed" in row
    return failures


def _line(case: dict[str, object], row: dict[str, object]) -> str:
    label = " ".join(f"{key}={value}" for key, value in case.items())
    if "failed" in row:
        return f"{label:32s} {row['contender']:24s} FAILED: {row['failed']}"
    error = f" error {row['error']:.1e}" if "error" in row else ""
    times = f" {row['times_copy']:6.2f} copies" if "times_copy" in row else ""
    return f"{label:32s} {row['contender']:24s} {row['ms']['p50']:9.4f} ms{times} host {row['host_us']:7.1f} us{error}"
