"""Tuning of all the products that a layer takes.

in: an input, weight and bias of a layer.  out: reports of what was measured; the choices are kept (see `tuned`).
"""

from __future__ import annotations

import functools
import statistics

from devkernels.linear import activations, kept
from devkernels.linear.arrays import CPU, arrays_of
from devkernels.linear.epilog import Epilog, relu_mask_bytes
from devkernels.linear.stateful import FusedMatmul


def autotune(x, weight, bias, activation: str | None, *, compute_type=None, backward: bool = True,
             candidates: int = 32) -> list[dict[str, object]]:  # fmt: skip
    """Time the candidates of every product that a layer takes for an input (tokens, in_features); keep the fastest.

    Returns
    -------
    list of dict
        One report for each product, with its ``spec``.
    """
    inputs = {} if bias is None else {"bias": bias}
    forward = [Epilog.of(activation, bias=bias is not None, aux=False)]
    if backward and activation:
        forward.append(Epilog.of(activation, bias=bias is not None, aux=True))
    # With an activation, the pass that goes through it sums up the bias gradient; else the product does.
    over_tokens = Epilog.BGRADA if bias is not None and activation is None else Epilog.DEFAULT
    jobs = [(x, weight.T, epilog, inputs) for epilog in forward]
    if backward:
        y = FusedMatmul(x, weight.T, epilog=forward[0], epilog_inputs=inputs, compute_type=compute_type,
                        allow_unfused=True).plan().execute()  # fmt: skip
        jobs += [(y.T, x, over_tokens, {}), (y, weight, Epilog.DEFAULT, {})]
    reports = []
    for a, b, epilog, given in jobs:
        with FusedMatmul(a, b, epilog=epilog, epilog_inputs=given, compute_type=compute_type, allow_unfused=True) as mm:
            report = mm.plan().autotune(candidates=candidates)
            reports.append({"spec": str(mm.spec), **report})
    if backward and activation == "relu":
        reports += _relu_keeps(x, weight, reports[0], reports[1])
    return reports


def _relu_keeps(x, weight, plain: dict, with_mask: dict) -> list[dict[str, object]]:
    """Measure which is faster together with its pass backward: to keep the result, or to make a mask."""
    arrays = arrays_of(x)
    told, (n, k) = arrays.describe(x), weight.shape
    if told.device == CPU or plain["best"] is None or with_mask["best"] is None:
        return []
    tokens, dtype, device = told.shape[0], told.dtype, told.device
    times = []
    with arrays.on(device):
        for report, kind, ld in ((plain, "relu", n), (with_mask, "relu_aux", relu_mask_bytes(n))):
            found = activations.on_device(arrays, device, dtype, tokens, n, ld, kind, 0)
            if found is None:
                return []
            kernel, new_dz, new_db = found
            data = new_dz() if kind == "relu" else arrays.empty((tokens, ld), "uint8", device)
            held = (new_dz(), data, new_dz(), new_db())
            pointers = [arrays.pointer(array) for array in held]
            run = functools.partial(_on_the_current_stream, kernel, arrays, device, pointers)
            run()
            call, count = arrays.captured(run, 20), 20
            samples = [arrays.milliseconds(call, device) / count for _ in range(9)]
            del held
            times.append(report["milliseconds"][report["best"]] + statistics.median(samples))
    mask = times[1] < times[0]
    kept.remember(arrays, tokens, n, k, dtype, device, mask)
    return [{"spec": "what ReLU keeps: its result, or a mask", "milliseconds": times, "best": int(mask)}]


def _on_the_current_stream(kernel, arrays, device: int, pointers: list[int]) -> None:
    kernel.launch(*pointers, arrays.stream(device))
