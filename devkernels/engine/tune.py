"""Measuring plans: which radices, rows per block and register limit are fastest on this GPU.

in: a length and a precision, a GPU with CuPy. out: a `Choice`, kept in the cache under the architecture's name.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import warnings
from typing import Any

import numpy as np

from devkernels import cache
from devkernels.canonical import digest
from devkernels.engine import choose
from devkernels.engine.choose import Choice
from devkernels.engine.plan_search import make_plan
from devkernels.errors import DevkernelsError, MissingDependencyError, SpecError, TargetError, UnsupportedSizeError
from devkernels.target import Target, current_target, home

_KIND = "plan"
_BYTES = 1 << 28  # read, and as much written: more than the L2 of any GPU that is supported
_MOST = 32
_FINAL, _TURNS = 4, 15  # how many are measured once more, and how often
_UNEVEN = 8  # plans whose stages take different numbers of threads, at most, each with a register limit and without


class _WrongResult(TargetError):
    """What a plan computes is not what it should."""


def candidates(size: int, word_bytes: int, uneven: bool = False) -> list[Choice]:
    """Plans worth measuring, the present choice first; with `uneven` also those whose stages differ in threads."""
    found = _even_candidates(size, word_bytes)
    return list(dict.fromkeys(_uneven_candidates(size, word_bytes) + found)) if uneven else found


def _uneven_candidates(size: int, word_bytes: int) -> list[Choice]:
    """The table's choice first, then the likeliest."""
    present, ranked = choose.uneven(size, word_bytes), []
    most = 32 if word_bytes == 8 else 24
    for radices in choose.factor_lists(size, 3):
        wide = max(radices)
        if len(radices) < 2 or wide > most:
            continue
        # A thread has one butterfly of a stage, or as many as make it about as many elements as the widest stage has.
        for number, order in enumerate(_orders(radices)):
            for shares in dict.fromkeys((order, tuple(r * max(1, wide // r) for r in order))):
                threads = max(size // share for share in shares)
                idle = sum(threads * share / size for share in shares) / len(shares)  # 1 where all always work
                if len(set(shares)) > 1 and threads <= 1024 and not any(size % share for share in shares):
                    cost = choose.estimate(size, order, wide, word_bytes) * (0.5 + 0.5 * idle)
                    ranked.append((cost, number, order, shares, threads))
    found = [] if present is None else [present]
    likely = (
        Choice(radices, shares, max(1, min(128 // threads, (40 << 10) // (size * word_bytes))))
        for _, _, radices, shares, threads in sorted(ranked)
    )
    for single in itertools.islice((choice for choice in likely if _fits(choice, word_bytes)), _UNEVEN):
        wide = max(single.elements) * word_bytes // 8
        limit = 64 if wide <= 16 else 96 if wide <= 24 else 128
        paired = dataclasses.replace(single, pairs=True)
        for choice in (single, paired) if word_bytes == 8 and _fits(paired, word_bytes) else (single,):
            found += [dataclasses.replace(choice, max_registers=limit), choice]
    return list(dict.fromkeys(found))


def _even_candidates(size: int, word_bytes: int) -> list[Choice]:
    present = choose.choose(size, word_bytes)
    found = [present, dataclasses.replace(present, streamed=not present.streamed)]
    if word_bytes == 8:
        found.append(dataclasses.replace(present, pairs=not present.pairs, neighbours=False))
    top = 48 if word_bytes == 8 else 24
    ranked = []
    for radices in choose.factor_lists(size):
        least = choose.index.common_elements(radices)
        for elements in range(least, top + 1, least):
            if size % elements == 0 and size // elements <= 1024:
                cost = choose.estimate(size, radices, elements, word_bytes)
                ranked += [(cost, number, order, elements) for number, order in enumerate(_orders(radices))]
    for _, _, radices, elements in sorted(ranked)[:12]:
        threads = size // elements
        usual = choose.rows_for(size, elements, word_bytes)
        for rows in sorted({usual, max(1, usual // 2)}):
            # What the compiler likes, and as many as let 32, 16 or 12 warps run on a multiprocessor.
            for limit in (None, 64 if elements * word_bytes <= 128 else 128 if elements * word_bytes <= 320 else 168):
                choice = Choice(radices, elements, rows, limit)
                fits = threads * rows * (limit or 64) <= Target.max_registers_per_block and threads * rows <= 1024
                if fits and choice not in found and _fits(choice, word_bytes):
                    found.append(choice)
    return found[:_MOST]


def _orders(radices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The orders that were best for some length: largest first, largest last, largest in the middle."""
    down = tuple(sorted(radices, reverse=True))
    middle = (*down[1::2][::-1], *down[::2]) if len(down) > 2 else down
    return list(dict.fromkeys((down, down[::-1], middle)))


def _fits(choice: Choice, word_bytes: int) -> bool:
    try:
        plan = make_plan(choice.radices, choice.elements, choice.rows, word_bytes, pairs=choice.pairs)
    except SpecError:
        return False
    return plan.shared_bytes <= choose.MAX_SHARED


def tuned(size: int, dtype: np.dtype, uneven: bool = False) -> Choice:
    """The fastest plan for rows of `size` on this GPU: from the cache, or measured now; `uneven` as for `candidates`.

    Raises
    ------
    TargetError, MissingDependencyError
        There is no GPU, or no CuPy, and the cache has no answer for this architecture.
    UnsupportedSizeError
        The length has no plan.
    """
    choose.choose(size, dtype.itemsize)  # refuses lengths without plans
    key = digest("plan", size, dtype.name, str(current_target()), choose.FORMAT, *(["uneven"] if uneven else []))
    kept = cache.get(_KIND, key)
    if kept is not None:
        record = json.loads(kept)
        return Choice(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})
    best = measure(size, dtype, uneven)
    cache.put(_KIND, key, json.dumps(dataclasses.asdict(best)).encode())
    return best


def measure(size: int, dtype: np.dtype, uneven: bool = False) -> Choice:
    """Time all candidates in one run, with a progress bar; each is checked before it is timed."""
    if home().kind != "gpu":
        raise TargetError(f"tune=True measures plans on a GPU; this process has none ({home().reason}).")
    try:
        import cupy
    except ImportError:
        raise MissingDependencyError("tune=True needs CuPy; install devkernels[cu12] or devkernels[cu13].") from None
    from tqdm import tqdm

    rows = max(1, _BYTES // dtype.itemsize // size)
    real = np.float32 if dtype == np.complex64 else np.float64
    x = cupy.random.standard_normal((rows, 2 * size), dtype=real).view(dtype)
    out, timed = cupy.full_like(x, cupy.nan), []
    with tqdm(candidates(size, dtype.itemsize, uneven), desc=f"plans for {size} {dtype.name}", unit="plan") as progress:
        for choice in progress:
            try:
                run = _launch(cupy, choice, dtype, x, out)
                timed.append((_milliseconds(cupy, run, 3), choice, run))
            except _WrongResult as error:
                warnings.warn(f"{error} It is left out; please report it.", RuntimeWarning, stacklevel=2)
                continue
            except (DevkernelsError, RuntimeError):  # a block too large for this GPU: not a candidate here
                continue
            progress.set_postfix_str(f"best {min(t for t, *_ in timed):.4f} ms")
    if not timed:
        raise UnsupportedSizeError(f"No plan for {size} {dtype.name} runs on this GPU.")
    # The same kernel varies by some per cent from one moment to the next: the first ones once more, taking turns.
    final = sorted(timed, key=lambda found: found[0])[:_FINAL]
    samples = [[_milliseconds(cupy, run, 1) for _, _, run in final] for _ in range(_TURNS)]
    return final[int(np.argmin(np.median(samples, axis=0)))][1]


def planned(choice: Choice, dtype: np.dtype) -> Any:
    """The block transform of a choice."""
    from devkernels.engine.block_fft import _cached

    return _cached(
        choice.radices, choice.elements, choice.rows, dtype, limit=choice.max_registers, streamed=choice.streamed,
        pairs=choice.pairs, neighbours=choice.neighbours,
    )  # fmt: skip


def _launch(cupy: Any, choice: Choice, dtype: np.dtype, x: Any, out: Any) -> Any:
    """A launch of a choice's kernel, checked."""
    fft = planned(choice, dtype)
    ones = cupy.full(fft.size, 1 / fft.size, dtype)
    out.fill(cupy.nan)
    run = round_trip_kernel(fft)[fft.launch(rows=len(x))].bind(x.reshape(-1), ones, out.reshape(-1), len(x))
    run()
    error = float(cupy.linalg.norm(out[-64:] - x[-64:]) / cupy.linalg.norm(x[-64:]))
    if not error < 1e-5:
        raise _WrongResult(f"The plan {choice} gives wrong results (relative error {error:.1e}).")
    return run


def _milliseconds(cupy: Any, run: Any, rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(5):
            run()
        stop.record()
        stop.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, stop) / 5)
    return sorted(samples)[rounds // 2]


def round_trip_kernel(fft: Any) -> Any:
    """Kernel ``f(x, factors, y, rows)``: what is measured, a filter on each row."""
    from devkernels.device.inline import device_function
    from devkernels.engine import uneven
    from devkernels.launch.jit import kernel
    from devkernels.lazy import cuda

    load, load_filter, store = fft.load, fft.load_filter, fft.store
    forward, filter_inverse = fft.forward, fft.filter_inverse
    elements, dtype, per_block, size = fft.elements_per_thread, fft.dtype, fft.ffts_per_block, fft.size
    width = fft.plan.width

    def of_rows():
        return np.int64(cuda.threadIdx.x) * width, np.int64(cuda.blockIdx.x) * per_block + np.int64(cuda.threadIdx.y)

    if fft.uneven:
        here, load = uneven.line_of(fft.plan), uneven.by_those_that_load(fft.plan, load, masked=False)
    else:
        here = device_function(of_rows)

    def round_trip(x, factors, y, rows):
        data = cuda.local.array(elements, dtype)
        held = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        thread, row = here()
        load(data, x, min(row, rows - 1) * size + thread)
        forward(data, shared)
        load_filter(held, factors, thread)
        filter_inverse(data, held, shared)
        if row < rows:
            store(data, y, row * size + thread)

    return kernel(round_trip, **fft.kernel_options)
