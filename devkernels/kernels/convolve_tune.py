"""Measuring how images, and rows with long filters, are convolved fastest on this GPU: once, and kept in the cache.

in: what is convolved; a GPU with CuPy. out: the axes' plans and the choice of columns of an `FFTConvolve2D`,
or the split and the widths of memory accesses of a `FourStep`. Each candidate is compared with the present choice's
result before it is timed.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from devkernels import cache
from devkernels.canonical import digest
from devkernels.engine import choose, tune
from devkernels.engine.choose import Choice
from devkernels.engine.plan_search import make_plan
from devkernels.errors import MissingDependencyError, SpecError, TargetError
from devkernels.kernels import convolve_plan
from devkernels.kernels.convolve_plan import COMPUTE, RowPlan, word_bytes
from devkernels.kernels.convolve_plan2d import AxisPlan, axis_variants
from devkernels.target import Target, current_target, home
from devkernels.tolerance import fft_bound

_KIND = "plan"
_FORMAT = 1  # of what is kept
_BYTES = 1 << 28  # of what is convolved: more than the L2 of any GPU that is supported
_MOST = 24
_FINAL, _TURNS = 3, 9  # how many are measured once more, and how often


def _device() -> tuple[Any, Callable]:
    """CuPy, and a function that times a launch in milliseconds."""
    if home().kind != "gpu":
        raise TargetError(f"tune=True measures plans on a GPU; this process has none ({home().reason}).")
    try:
        import cupy
    except ImportError:
        raise MissingDependencyError("tune=True needs CuPy; install devkernels[cu12] or devkernels[cu13].") from None
    return cupy, lambda run, rounds: tune._milliseconds(cupy, run, rounds)


def _fastest(title: str, candidates: list, make: Callable, rows: tuple, taps: tuple, dtype: str, points: int) -> Any:
    """Time ``make(candidate)(x, spectra=..., out=...)`` for all candidates, with a progress bar; return the fastest."""
    xp, milliseconds = _device()
    from tqdm import tqdm

    rng, real = np.random.default_rng(), dtype.startswith("complex")

    def random(shape: tuple) -> Any:
        values = rng.standard_normal((*shape[:-1], shape[-1] * (1 + real)), dtype=np.float32)
        return xp.asarray(values.view(np.complex64) if real else values).astype(dtype)

    x, h, want, timed = xp.empty(rows, dtype), random(taps), None, []
    x[:] = random(rows[1:])
    bound = fft_bound(COMPUTE[dtype], points, 2) + (fft_bound("float16", 2) if dtype == "float16" else 0)
    out = xp.empty_like(x, shape=(rows[0], *make(candidates[0])(x[:1], h).shape[1:]))
    with tqdm(candidates, desc=title, unit="plan") as progress:
        for candidate in progress:
            try:
                plan = make(candidate)
                spectra = plan.prepare(h)
                out.fill(np.nan)
                plan(x, spectra=spectra, out=out)
            except (SpecError, RuntimeError):  # a block too large for this GPU: not a candidate here
                if not timed:
                    raise
                continue
            got = out[-1].astype(np.complex128)
            want = got if want is None else want
            error = float(xp.linalg.norm((got - want).ravel()) / xp.linalg.norm(want.ravel()))
            if not error <= 2 * bound:
                wrong = f"the candidate {candidate} gives wrong results (relative error {error:.1e})"
                if not timed:
                    raise TargetError(f"{wrong}.")
                warnings.warn(f"{wrong}; it is left out; please report it.", RuntimeWarning, stacklevel=2)
                continue

            def run(plan: Any = plan, spectra: Any = spectra) -> None:
                plan(x, spectra=spectra, out=out)

            timed.append((milliseconds(run, 3), len(timed), candidate, run))
            progress.set_postfix_str(f"best {min(t for t, *_ in timed):.4f} ms")
    # The same kernel varies by some per cent from one moment to the next: the first ones once more, taking turns.
    final = sorted(timed, key=lambda found: found[:2])[:_FINAL]
    samples = [[milliseconds(run, 1) for *_, run in final] for _ in range(_TURNS)]
    return final[int(np.argmin(np.median(samples, axis=0)))][2]


def _kept(name: str, *of: Any) -> tuple[str, dict | None]:
    key = digest(name, *of, str(current_target()), _FORMAT)
    data = cache.get(_KIND, key)
    return key, None if data is None else json.loads(data)


# -- images ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Images:
    """How images are convolved: the plans of both axes, and the transform along columns (None: the usual)."""

    plans: tuple[AxisPlan, AxisPlan]
    columns: Choice | None = None


def images(shape: tuple[int, int], taps: tuple[int, int], dtype: str, mode: str) -> Images:
    """The fastest way for images of a shape, from the cache, or measured now.

    Raises
    ------
    TargetError, MissingDependencyError
        There is no GPU, or no CuPy, and the cache has no answer for this architecture.
    SpecError, UnsupportedSizeError
        As without tuning.
    """
    variants = [axis_variants(n, k, dtype, mode, along) for n, k, along in zip(shape, taps, (False, True), strict=True)]
    key, kept = _kept("images", shape, taps, dtype, mode)
    if kept is not None:
        columns = kept["columns"] and Choice(**{**kept["columns"], "radices": tuple(kept["columns"]["radices"])})
        return Images(tuple(AxisPlan(**plan) for plan in kept["plans"]), columns)
    from devkernels.kernels.convolver2d import FFTConvolve2D

    count = max(2, min(64, _BYTES // (shape[0] * shape[1] * np.dtype(dtype).itemsize)))
    best = _fastest(
        f"images of {shape[0]} x {shape[1]} with {taps[0]} x {taps[1]}, {dtype}", image_candidates(variants, dtype),
        lambda found: FFTConvolve2D(found.plans, dtype, mode, columns=found.columns),
        (count, *shape), taps, dtype, 4 * shape[0] * shape[1],
    )  # fmt: skip
    cache.put(_KIND, key, json.dumps(dataclasses.asdict(best)).encode())
    return best


def image_candidates(variants: list[list[AxisPlan]], dtype: str) -> list[Images]:
    """Ways worth measuring, the present one first: transforms of both axes, then of columns."""
    words = word_bytes(COMPUTE[dtype])
    downs, acrosses = variants
    pairs = [(down, across) for down in downs for across in acrosses]
    found = [Images((down, across)) for down, across in pairs]
    for down in downs:
        across = next((a for a in acrosses if a.segments > 1) if down.segments > 1 else iter(acrosses), acrosses[0])
        found += [Images((down, across), choice) for choice in _column_choices(down, words)]
    return found[:_MOST]


def _column_choices(axis: AxisPlan, words: int) -> list[Choice]:
    """Transforms along columns: radices, columns of a block, registers."""
    present = choose.COLUMNS.get((axis.size, words)) or choose.choose(axis.size, words)
    kinds = [(present.radices, present.elements, present.pairs)]
    kinds += [(c.radices, c.elements, c.pairs) for c in tune.candidates(axis.size, words)[:12]]
    found: list[Choice] = []
    for radices, elements, pairs in dict.fromkeys(kinds):
        threads = axis.size // elements * axis.segments
        for columns in (8, 4):
            for limit in (64, 80, 96, 128):
                blocks = Target.max_registers_per_block // (threads * columns * limit)
                least = elements * words // 4 * 1.6  # data, and what else there is
                choice = Choice(radices, elements, columns, limit, pairs=pairs)
                if limit < least or blocks < 1 or threads * columns > 1024 or not _fits(choice, axis, words):
                    continue
                found.append(choice)
                break
        if len(found) >= 8:
            break
    return found


def _fits(choice: Choice, axis: AxisPlan, words: int) -> bool:
    try:
        plan = make_plan(
            choice.radices, choice.elements, choice.rows * axis.segments, words, columns=True, pairs=choice.pairs
        )
    except SpecError:
        return False
    return plan.shared_bytes <= choose.MAX_SHARED


# -- long filters ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Long:
    """How rows go through four-step transforms: points along columns, bytes of neighbours there and back."""

    columns: int
    lines: tuple[int, int] | None = None


def four_step(plan: RowPlan, dtype: str, mode: str) -> Long:
    """The fastest split of a four-step transform, from the cache, or measured now; errors as in `images`."""
    key, kept = _kept("four-step", dataclasses.asdict(plan), dtype)
    if kept is not None:
        return Long(kept["columns"], kept["lines"] and tuple(kept["lines"]))
    from devkernels.kernels.convolver import FFTConvolve

    def make(found: Long) -> FFTConvolve:
        return FFTConvolve(dataclasses.replace(plan, columns=found.columns), dtype, mode, lines=found.lines)

    count = max(1, min(64, _BYTES // (plan.length * np.dtype(dtype).itemsize)))
    best = _fastest(
        f"four-step transforms of {plan.size} points, {dtype}", long_candidates(plan), make, (count, plan.length),
        (plan.taps,), dtype, 4 * plan.size,
    )  # fmt: skip
    cache.put(_KIND, key, json.dumps(dataclasses.asdict(best)).encode())
    return best


def long_candidates(plan: RowPlan) -> list[Long]:
    """Splits that are estimated to be nearly as good as the present one, which comes first, and widths of accesses."""
    splits = [
        plan.columns,
        *(c for c, _ in convolve_plan.ranked_factors(plan.size, plan.precision) if c != plan.columns),
    ]
    widths = ((64, 64), (128, 64), (128, 128), (256, 128)) if plan.precision == "float32" else ((128, 128), (256, 256))
    return [Long(columns) for columns in splits[:5]] + [Long(plan.columns, lines) for lines in widths]
