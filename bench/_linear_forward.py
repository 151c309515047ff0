"""Forward contenders of bench/linear.py.

in: a case and its data.  out: contenders, ours and others.
"""

from __future__ import annotations

import ctypes
import time

from bench._linear_data import compiled_layer, torch_activation
from bench.harness import Contender


def forward(case, data, with_compile) -> list[Contender]:
    import cupy as cp
    import nvmath
    import torch

    from devkernels.linear import FusedMatmul, fused_matmul
    from devkernels.linear.torch import FusedLinear, fused_linear

    relu = case["activation"] == "relu"
    x, w, b = data.x, data.w, data.b
    epilog = "RELU_BIAS" if relu else "GELU_BIAS"
    contenders: list[Contender] = []
    closing = []

    def add(name, run, **extra):
        keep = {}

        def go():
            keep["result"] = run()

        contenders.append(Contender(name, go, lambda: data.forward_error(keep["result"]), 4e-3, extra=extra))

    def naive():
        z = x @ w.T + b
        if relu:
            return cp.maximum(z, 0)
        s = cp.float16(0.7978845608)
        return cp.float16(0.5) * z * (cp.float16(1) + cp.tanh(s * (z + cp.float16(0.044715) * z * z * z)))

    add("cupy naive", naive)
    advanced = nvmath.linalg.advanced
    theirs = advanced.Matmul(w, x.T)
    theirs.plan(epilog=advanced.MatmulEpilog[epilog], epilog_inputs={"bias": b})
    closing.append(theirs.free)
    add("nvmath Matmul", lambda: theirs.execute().T)
    tuned = advanced.Matmul(w, x.T)
    start = time.perf_counter()
    tuned.plan(epilog=advanced.MatmulEpilog[epilog], epilog_inputs={"bias": b})
    costs = {"plan_us": (time.perf_counter() - start) * 1e6}
    start = time.perf_counter()
    tuned.autotune(iterations=2 if data.flops > 1e13 else 5)
    costs["autotune_ms"] = (time.perf_counter() - start) * 1e3
    closing.append(tuned.free)
    add("nvmath autotuned", lambda: tuned.execute().T, **costs)

    start = time.perf_counter()
    ours = FusedMatmul(x, w.T, epilog=epilog, bias=b).plan()
    plan_us = (time.perf_counter() - start) * 1e6
    start = time.perf_counter()
    told = ours.autotune(candidates=8 if data.flops > 1e13 else 32)
    costs = {"plan_us": plan_us, "autotune_ms": (time.perf_counter() - start) * 1e3, "tuned_index": told["best"]}
    closing.append(ours.free)
    out = cp.empty((case["tokens"], case["out"]), "float16")
    add("bindings alone", _bindings_alone(ours, out))
    add("FusedMatmul out=", lambda: ours.execute(out=out), **costs)
    add("FusedMatmul", ours.execute, **costs)
    add("fused_matmul out=", lambda: fused_matmul(x, w.T, bias=b, activation=case["activation"], out=out))

    tx, tw, tb = data.tx, data.tw, data.tb
    act = torch_activation(case["activation"])
    linear = torch.nn.functional.linear
    add("torch eager", lambda: act(linear(tx, tw, tb)))
    add("torch addmm_activation", lambda: torch._addmm_activation(tb, tx, tw.t(), use_gelu=not relu))
    if with_compile:
        compiled, cost = compiled_layer(case, tx, tw, tb)
        add("torch.compile", lambda: compiled(tx, tw, tb), plan_us=cost)
    module = FusedLinear(case["in"], case["out"], activation=case["activation"], device="meta")
    module.weight, module.bias = torch.nn.Parameter(tw, False), torch.nn.Parameter(tb, False)
    add("torch function", lambda: fused_linear(tx, tw, tb, case["activation"]))
    add("torch module", lambda: module(tx))
    contenders[0].closing = closing
    return contenders


def _bindings_alone(ours, out):
    from nvmath.bindings import cublasLt

    lt, matmul = ours._prepared.lean, cublasLt.matmul
    a, b = ours._lean._a, ours._lean._b
    ours.execute(out=out)
    size = 32 << 20 if lt.workspace_bytes else 0
    import cupy as cp

    from devkernels.linear import _workspace

    space = 0
    if size:
        space = _workspace.spaces(lt.arrays, lt.device)[cp.cuda.get_current_stream().ptr]
    fixed = (lt._handle, lt._descriptor, ctypes.addressof(lt._alpha), b, lt._b, a, lt._a, ctypes.addressof(lt._beta), 0,
             lt._c, out.data.ptr, lt._d, ctypes.addressof(lt._algorithm), space, size,
             cp.cuda.get_current_stream().ptr)  # fmt: skip

    def run():
        matmul(*fixed)
        return out

    return run
