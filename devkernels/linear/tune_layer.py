"""Tuning of all the products that a layer takes.

in: an input, weight and bias of a layer.  out: reports of what was measured; the choices are kept (see `tuned`).
"""

from __future__ import annotations

from devkernels.linear.epilog import Epilog
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
    return reports
