"""Tuning of all that a layer takes: its products, what it keeps, and how it goes back through its activation.

in: an input, weight and bias of a layer.  out: reports of what was measured; the choices are kept (see `tuned`, `kept`,
`joined`).
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from contextlib import ExitStack

from devkernels.errors import DevkernelsError
from devkernels.linear import activations, elementwise, joined, kept
from devkernels.linear.arrays import CPU, arrays_of
from devkernels.linear.epilog import Epilog
from devkernels.linear.stateful import FusedMatmul

_ROUNDS, _LONG_MS, _SHORT_MS = 9, 5.0, 0.1


def autotune(x, weight, bias, activation: str | None, *, compute_type=None, backward: bool = True,
             candidates: int = 32) -> list[dict[str, object]]:  # fmt: skip
    """Time the candidates of every product that a layer takes for an input (tokens, in_features); keep the fastest.

    Returns
    -------
    list of dict
        One report for each product, with its ``spec``; with an activation, a last one on the ways through a training
        step.
    """
    inputs = {} if bias is None else {"bias": bias}
    reports = []
    with ExitStack() as stack:

        def tuned(a, b, epilog, given) -> FusedMatmul:
            product = stack.enter_context(
                FusedMatmul(a, b, epilog=epilog, epilog_inputs=given, compute_type=compute_type, allow_unfused=True)
            )
            report = product.plan().autotune(candidates=candidates)
            reports.append({"spec": str(product.spec), **report})
            return product

        plain = tuned(x, weight.T, Epilog.of(activation, bias=bias is not None, aux=False), inputs)
        if backward:
            masked = None
            if activation:
                masked = tuned(x, weight.T, Epilog.of(activation, bias=bias is not None, aux=True), inputs)
            y = plain.execute()
            # With an activation, the pass that goes through it sums up the bias gradient; else the product does.
            over_tokens = Epilog.BGRADA if bias is not None and activation is None else Epilog.DEFAULT
            gradient = tuned(y.T, x, over_tokens, {})
            tuned(y, weight, Epilog.DEFAULT, {})
            if activation:
                reports += _Steps(x, weight, bias, activation, y, plain, masked, gradient).choose()
    return reports


class _Steps:
    """Ways through a training step of a layer, without what they have in common (the input's gradient)."""

    def __init__(self, x, weight, bias, activation: str, y, plain: FusedMatmul, masked: FusedMatmul,
                 gradient: FusedMatmul):  # fmt: skip
        self.arrays = arrays_of(x)
        told = self.arrays.describe(x)
        self.device, self.dtype, (self.tokens, self.k), self.n = told.device, told.dtype, told.shape, weight.shape[0]
        self.x, self.weight, self.bias, self.y = x, weight, bias, y
        self.gradient = gradient._prepared.lean
        # What is kept -> (the forward product, where it lies, its distance from row to row). First what cuBLASLt keeps,
        # by which what our own kernel makes is judged.
        self.kinds = {}
        if activation == "relu":
            self.kinds["relu"] = plain._prepared.lean, y, self.n
        if masked._prepared.lean is not None:
            data = next(iter(masked.execute()[1].values())).raw_data()
            self.kinds["relu_aux" if activation == "relu" else "gelu"] = masked._prepared.lean, data, data.shape[-1]
        own = None
        if activation == "gelu" and self.device != CPU:
            own = kept.slope_kernel(self.arrays, self.tokens, self.n, self.k, self.dtype, self.device)
        if own is not None:
            self.kinds["gelu_slope"] = own, self.arrays.empty((self.tokens, self.n), self.dtype, self.device), self.n

    def choose(self) -> list[dict[str, object]]:
        """Time the ways in turns, and keep what is fastest."""
        arrays, at = self.arrays, self.arrays.pointer
        if self.device == CPU or self.gradient is None or any(lt is None for lt, _, _ in self.kinds.values()):
            return []
        operands = (self.x, self.y, *(data for _, data, _ in self.kinds.values()))
        if any(at(array) & 255 for array in operands):
            return []
        with arrays.on(self.device):
            ways = {}
            for kind in self.kinds:
                ways |= self._ways(kind)
            if not ways:
                return []
            for kind in self.kinds:
                if (kind, True) in ways and not self._alike(ways[kind, False], ways[kind, True]):
                    del ways[kind, True]
            slopes = [way for way in ways if way[0] == "gelu_slope"]
            if slopes and not (("gelu", False) in ways and self._alike(ways["gelu", False], ways["gelu_slope", False])):
                ways = {way: run for way, run in ways.items() if way not in slopes}
            times = dict(zip(ways, _in_turns(arrays, self.device, list(ways.values())), strict=True))
        best = min(times, key=times.__getitem__)
        about = arrays, self.device, self.dtype, self.tokens, self.n, self.k
        for kind in self.kinds:
            if (kind, True) in times and (kind, False) in times:
                joined.remember(*about, kind, times[kind, True] < times[kind, False])
        if "relu" in self.kinds:
            kept.remember(arrays, self.tokens, self.n, self.k, self.dtype, self.device, best[0] == "relu_aux")
        if "gelu_slope" in self.kinds:
            kept.remember_slope(arrays, self.tokens, self.n, self.k, self.dtype, self.device, best[0] == "gelu_slope")
        names = [f"keeps {kind}, {'one kernel' if one else 'pass and product'}" for kind, one in ways]
        return [{"spec": "ways through a training step", "ways": names, "milliseconds": list(times.values()),
                 "best": list(ways).index(best)}]  # fmt: skip

    def _ways(self, kind: str) -> dict[tuple[str, bool], Callable[[], tuple]]:
        """For something kept, the two ways: pass and product, and both in one kernel."""
        arrays, at = self.arrays, self.arrays.pointer
        forward, data, ld = self.kinds[kind]
        shape = arrays, self.device, self.dtype, self.tokens, self.n
        there = activations.on_device(*shape, ld, kind, 0)
        if there is None:
            return {}
        through, new_dz, new_db = there
        one = joined.kernel_for(*shape, self.k, kind, ld)
        held = new_dz(), new_db(), arrays.empty((self.n, self.k), self.dtype, self.device), new_dz()
        dz, db, dw, out = (at(array) for array in held)
        x, dy, kept_at, weight = at(self.x), at(self.y), at(data), at(self.weight)
        bias, aux = 0 if self.bias is None else at(self.bias), 0 if kind == "relu" else kept_at

        def run(alone: bool) -> tuple:
            stream = arrays.stream(self.device)
            forward.launch(x, weight, 0, out, bias, aux, stream)
            if alone:
                one.launch(dy, kept_at, x, dz, db, dw, stream)
            else:
                through.launch(dy, kept_at, dz, db, stream)
                self.gradient.launch(dz, x, 0, dw, 0, 0, stream)
            return held

        ways = {(kind, False): functools.partial(run, False)}
        if one is not None:
            ways[kind, True] = functools.partial(run, True)
        return ways

    def _alike(self, one: Callable[[], tuple], other: Callable[[], tuple]) -> bool:
        """Whether two ways compute the same, but for rounding. They write to the same arrays."""
        kept_of_one = [elementwise.copy(self.arrays, array) for array in one()]
        try:
            found = other()
        except DevkernelsError:  # a device that cannot launch it
            return False
        return all(elementwise.alike(self.arrays, *pair) for pair in zip(found, kept_of_one, strict=True))


def _in_turns(arrays, device: int, runs: list[Callable[[], object]]) -> list[float]:
    """Milliseconds of each run, the median of some rounds in which they take turns."""
    calls, rounds = [], _ROUNDS
    for run in runs:
        run()
        once = arrays.milliseconds(run, device)
        count = 20 if once < _SHORT_MS else 3
        if once > _LONG_MS:
            calls.append((run, 1))
            rounds = 3
        else:
            calls.append((arrays.captured(run, count), count))
    samples = [[arrays.milliseconds(call, device) / count for call, count in calls] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*samples, strict=True)]
