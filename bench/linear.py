"""Linear layers with bias and activation against CuPy, nvmath and torch: ``python bench/linear.py [--quick]``.

in: the shapes (tokens, out, in) of `SHAPES`, float16.  out: bench/results/linear.json.

All peers of a case run in one process and take turns (see bench/harness.py). Rows of devkernels carry `plan_us` and
`autotune_ms`, the costs that are paid once. ``bindings alone`` is cublasLtMatmul through nvmath's bindings with ready
descriptors: the least that a call can cost the host. Errors are looked at on 64 rows of the result, in float64.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from bench import harness, result_files  # noqa: E402
from bench.harness import Contender, Setup  # noqa: E402
from bench.report import Table  # noqa: E402

GRAPH = True
# What the goals are about first, the longest last: a run that is cut short has measured what matters.
SHAPES = [(16384, 4096, 1024), (2048, 3072, 768), (256, 1024, 1024), (64, 512, 512), (4096, 3072, 768),
          (8192, 4096, 4096), (65536, 8192, 16384)]  # fmt: skip
CASES = [
    {"tokens": tokens, "out": out, "in": k, "activation": activation, "work": work}
    for tokens, out, k in SHAPES
    for work in ("forward", "forward+backward")
    for activation in ("relu", "gelu")
]
_FORWARD = {
    "cupy naive": "CuPy", "nvmath Matmul": "nvmath", "nvmath autotuned": "nvmath autotuned", "torch eager": "torch",
    "torch addmm_activation": "torch addmm", "torch.compile": "torch.compile", "bindings alone": "bindings",
    "FusedMatmul out=": "FusedMatmul out=", "FusedMatmul": "FusedMatmul", "fused_matmul out=": "fused_matmul out=",
    "torch function": "fused_linear", "torch module": "torch FusedLinear",
}  # fmt: skip
_BOTH = {"torch eager": "torch", "torch.compile": "torch.compile", "torch eager, graphed": "torch, graphed",
         "layer (CuPy)": "FusedLinear", "torch module": "torch FusedLinear",
         "torch module, recorded": "torch FusedLinear, recorded", "torch eager, one thread": "torch, one thread",
         "torch module, one thread": "torch FusedLinear, one thread",
         "torch module, recorded, one thread": "torch FusedLinear, recorded, one thread",
         "torch module, no extension": "torch FusedLinear, no extension"}  # fmt: skip
_BOTH_DEVICE = {name: _BOTH[name] for name in _BOTH if ", " not in name}
_BOTH_HOST = {**_BOTH, "autograd alone": "autograd alone"}
_COSTS = {
    "nvmath autotuned|plan_us": "nvmath plan, us", "nvmath autotuned|autotune_ms": "nvmath autotune, ms",
    "nvmath autotuned|host_us": "nvmath execute, us", "torch.compile|plan_us": "torch.compile first call, us",
    "FusedMatmul out=|plan_us": "plan, us", "FusedMatmul out=|autotune_ms": "autotune, ms",
    "FusedMatmul out=|host_us": "execute, us of host", "FusedMatmul out=|device_ms": "execute, ms of device",
}  # fmt: skip
_README = {name: _FORWARD[name] for name in ("cupy naive", "nvmath Matmul", "torch eager", "torch addmm_activation",
                                             "torch.compile", "FusedMatmul out=", "torch module")}  # fmt: skip
_DEVICE = "ms of device time (in a replayed CUDA graph; CuPy, which cannot be captured, and the largest as called)"
_ROWS = ("tokens", "out", "in", "activation")
TABLES = {
    "rate": Table(_ROWS, "device_tflops", _README, {"work": "forward"}, "Forward, TFLOP/s of device time."),
    "graph": Table(_ROWS, "device_ms", _FORWARD, {"work": "forward"}, f"Forward, {_DEVICE}."),
    "forward": Table(_ROWS, "ms", _FORWARD, {"work": "forward"}, "Forward, ms of one call, as called."),
    "host": Table(_ROWS, "host_us", _FORWARD, {"work": "forward"}, "Host cost of a forward call, microseconds."),
    "backward": Table(_ROWS, "ms", _BOTH, {"work": "forward+backward"}, "Forward and backward, ms as called."),
    "backward_host": Table(_ROWS, "host_us", _BOTH_HOST, {"work": "forward+backward"},
                           "Host cost of a forward and a backward call, microseconds."),
    "backward_graph": Table(_ROWS, "device_ms", _BOTH_DEVICE, {"work": "forward+backward"},
                            f"Forward and backward, {_DEVICE}."),
    "costs": Table(_ROWS, "host_us", _COSTS, {"work": "forward"},
                   "What is paid once (plan, autotune), and at each call (execute); the kernel is the tuned one."),
    "readme": Table(_ROWS, "device_ms", _README, {"work": "forward"},
                    f"Linear layer with bias and activation, float16, {_DEVICE}."),
}  # fmt: skip


def _torch_activation(activation):
    import torch

    return torch.relu if activation == "relu" else lambda z: torch.nn.functional.gelu(z, approximate="tanh")


def _plain(activation):
    import torch

    act = _torch_activation(activation)
    return lambda x, w, b: act(torch.nn.functional.linear(x, w, b))


def _compiled(case, *operands):
    """One compiled function for each case (none for dynamic shapes), and what its first call cost."""
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(_plain(case["activation"]), dynamic=False)
    start = time.perf_counter()
    compiled(*operands)
    return compiled, (time.perf_counter() - start) * 1e6


class _Data:
    """Operands of a case, shared by CuPy and torch, and the float64 reference on some rows."""

    def __init__(self, case, rows=64):
        import cupy as cp
        import numpy as np
        import torch

        m, n, k = case["tokens"], case["out"], case["in"]
        self.activation = case["activation"]
        random = cp.random.default_rng(7)
        draw = lambda *shape: random.standard_normal(shape, dtype="float32").astype("float16")  # noqa: E731
        self.x, self.w, self.b = draw(m, k), draw(n, k) / cp.float16(k**0.5), draw(n)
        self.dy = draw(m, n) if "backward" in case["work"] else None
        share = lambda a: None if a is None else torch.as_tensor(a, device="cuda")  # noqa: E731
        self.tx, self.tw, self.tb, self.tdy = (share(a) for a in (self.x, self.w, self.b, self.dy))
        self.rows = cp.asarray(np.unique(np.linspace(0, m - 1, rows).astype(int)))
        wide = self.w.astype("float64")
        self.columns = cp.asarray(np.unique(np.linspace(0, n - 1, 16).astype(int)))
        z = self.x[self.rows].astype("float64") @ wide.T + self.b.astype("float64")
        self.y, slope = self._activated(z)
        if self.dy is not None:
            self.dx = (self.dy[self.rows].astype("float64") * slope) @ wide
            whole = self.x.astype("float64")
            z = whole @ wide[self.columns].T + self.b[self.columns].astype("float64")
            dz = self.dy[:, self.columns].astype("float64") * self._activated(z)[1]
            self.dw, self.db = dz.T @ whole, dz.sum(0)
        self.flops = 2.0 * m * n * k
        self.moved = 2 * (m * k + n * k + m * n + n)

    def _activated(self, z):
        """Activation of z and its slope."""
        import cupy as cp

        if self.activation == "relu":
            return cp.maximum(z, 0), (z > 0).astype("float64")
        s = (2 / 3.141592653589793) ** 0.5
        t = cp.tanh(s * (z + 0.044715 * z**3))
        return 0.5 * z * (1 + t), 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * s * (1 + 3 * 0.044715 * z * z)

    def error(self, result, want, chosen):
        """Relative error of the chosen rows of a result."""
        import cupy as cp

        got = cp.asarray(result)[chosen].astype("float64")
        return float(cp.linalg.norm(got - want) / cp.linalg.norm(want))

    def forward_error(self, y):
        return self.error(y, self.y, self.rows)

    def backward_error(self, gradients):
        """The largest of the errors of input, weight and bias gradients."""
        dx, dw, db = gradients
        return max(self.error(dx, self.dx, self.rows), self.error(dw, self.dw, self.columns),
                   self.error(db, self.db, self.columns))  # fmt: skip


def _forward(case, data, with_compile) -> list[Contender]:
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
    act = _torch_activation(case["activation"])
    linear = torch.nn.functional.linear
    add("torch eager", lambda: act(linear(tx, tw, tb)))
    add("torch addmm_activation", lambda: torch._addmm_activation(tb, tx, tw.t(), use_gelu=not relu))
    if with_compile:
        compiled, cost = _compiled(case, tx, tw, tb)
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


def _both(case, data, with_compile) -> list[Contender]:
    import torch

    from devkernels.linear import FusedLinear
    from devkernels.linear import torch as ours_torch

    contenders: list[Contender] = []

    def add(name, run, check=True, capture=True, **extra):
        keep = {}

        def go():
            keep["gradients"] = run()

        graph = check and capture and not name.endswith((", graphed", ", recorded"))
        errors = (lambda: data.backward_error(keep["gradients"])) if check else None
        contenders.append(Contender(name, go, errors, 1e-2, graph=graph, extra=extra))

    tx = data.tx.detach().requires_grad_()
    tw, tb = data.tw.detach().requires_grad_(), data.tb.detach().requires_grad_()
    plain = _plain(case["activation"])
    ours_torch.build_extension()
    add("torch eager", lambda: torch.autograd.grad(plain(tx, tw, tb), (tx, tw, tb), data.tdy))
    if with_compile:
        compiled, cost = _compiled(case, tx, tw, tb)
        add("torch.compile", lambda: torch.autograd.grad(compiled(tx, tw, tb), (tx, tw, tb), data.tdy), plan_us=cost)
    module = ours_torch.FusedLinear(case["in"], case["out"], activation=case["activation"], device="meta")
    module.weight, module.bias = torch.nn.Parameter(tw.detach()), torch.nn.Parameter(tb.detach())
    start = time.perf_counter()
    told = module.autotune(tx, candidates=8 if data.flops > 1e13 else 32)
    costs = {"autotune_ms": (time.perf_counter() - start) * 1e3, "tuned_index": [t["best"] for t in told]}
    layer = FusedLinear(case["in"], 1, activation=case["activation"], dtype="float16", package_name="cupy")
    layer.out_features, layer.weight, layer.bias = case["out"], data.w, data.b

    def ours():
        layer.forward(data.x)
        return layer.backward(data.dy)

    leaves = (tx, module.weight, module.bias)
    step = lambda: torch.autograd.grad(module(tx), leaves, data.tdy)  # noqa: E731
    add("torch module", step, **costs)
    add("autograd alone", _autograd_alone(tx, tw, tb, data.tdy), check=False)
    if case["tokens"] <= 4096:  # graphs of forward and backward, for the one and the other
        # Parameters of their own: what a graph keeps of autograd's would make calls on another stream wait.
        sequence = torch.nn.Sequential(
            torch.nn.Linear(case["in"], case["out"], device="meta"), _Act(case["activation"])
        )
        twin = ours_torch.FusedLinear(case["in"], case["out"], activation=case["activation"], device="meta")
        for one in (sequence[0], twin):
            one.weight, one.bias = torch.nn.Parameter(tw.detach()), torch.nn.Parameter(tb.detach())
        add("torch eager, graphed", _graphed(sequence, tx, (tx, *sequence.parameters()), data.tdy))
        twin.record(tx, copy=False)
        recorded = lambda: torch.autograd.grad(twin(tx), (tx, twin.weight, twin.bias), data.tdy)  # noqa: E731
        add("torch module, recorded", recorded)
        add("torch module, one thread", _in_one_thread(step), capture=False)
        add("torch module, no extension", _without_extension(case, tx, tw, tb, data.tdy), capture=False)
        eager = lambda: torch.autograd.grad(plain(tx, tw, tb), (tx, tw, tb), data.tdy)  # noqa: E731
        add("torch eager, one thread", _in_one_thread(eager), capture=False)
        add("torch module, recorded, one thread", _in_one_thread(recorded), capture=False)
    add("layer (CuPy)", ours, **costs)
    return contenders


def _autograd_alone(x, weight, bias, dy):
    """A differentiable function of three tensors that computes nothing: what autograd itself costs the host."""
    import torch

    results = [torch.empty_like(t) for t in (dy, x, weight, bias)]

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            return results[0].detach()

        @staticmethod
        def backward(ctx, dy):
            return tuple(results[1:])

    apply = super(torch.autograd.Function, Nothing).apply  # as devkernels' own: without a look for functorch
    return lambda: torch.autograd.grad(apply(x, weight, bias), (x, weight, bias), dy)


def _in_one_thread(run):
    """The same with the backward pass in the calling thread: autograd else hands it to a thread of the device."""
    import torch

    def go():
        with torch.autograd.set_multithreading_enabled(False):
            return run()

    return go


def _without_extension(case, x, weight, bias, dy):
    """A module that has learned its step before the C++ was there: all of it runs in Python."""
    import torch

    from devkernels.linear import _torch_native
    from devkernels.linear import torch as ours_torch

    module = ours_torch.FusedLinear(case["in"], case["out"], activation=case["activation"], device="meta")
    module.weight, module.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
    step = lambda: torch.autograd.grad(module(x), (x, module.weight, module.bias), dy)  # noqa: E731
    there, _torch_native._loaded[:] = _torch_native._loaded[:], [None]
    for _ in range(4):
        step()
    _torch_native._loaded[:] = there
    return step


def _graphed(module, x, leaves, dy):
    """Forward and backward through torch.cuda.make_graphed_callables.

    Made while the case is set up: it empties torch's cache, and graphs that were captured without torch's knowledge
    would then replay on memory that is no longer theirs.
    """
    import torch

    twin = torch.cuda.make_graphed_callables(module, (x.detach().requires_grad_(),))  # replaces forward
    return lambda: torch.autograd.grad(twin(x), leaves, dy)


def _Act(activation):
    import torch

    return torch.nn.ReLU() if activation == "relu" else torch.nn.GELU("tanh")


def set_up(case: dict[str, object], with_compile: bool = True) -> Setup:
    """Contenders of one case."""
    data = _Data(case)
    if case["work"] == "forward":
        contenders = _forward(case, data, with_compile)
        return Setup(contenders, data.moved, data.flops, lambda: [f() for f in contenders[0].closing])
    return Setup(_both(case, data, with_compile), data.moved * 3, 3 * data.flops)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, no torch.compile")
    everything = [str(shape[0]) for shape in SHAPES]
    parser.add_argument("--compile", nargs="*", default=everything, metavar="TOKENS",
                        help="where torch.compile takes part (minutes in all); if not given, everywhere")  # fmt: skip
    parser.add_argument("--select", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--results", type=pathlib.Path, default=result_files.RESULTS)
    parser.add_argument("--commit")
    options = parser.parse_args(arguments)
    import torch  # noqa: F401 - the harness makes its stream current for torch if torch is there

    from bench.run import select

    failures = 0
    for case in select(CASES, options.select):
        large, both = case["tokens"] * case["out"] * case["in"] > 1e12, "backward" in case["work"]
        effort = harness.Effort(
            rounds=4 if large else 5 if options.quick else 11,
            host_launches=5 if large else 50, host_rounds=1 if large else 5 if both else 20, graph=not large,
        )  # fmt: skip
        with_compile = not options.quick and str(case["tokens"]) in options.compile
        failures += harness.run_benchmark(
            "linear", [case], functools.partial(set_up, with_compile=with_compile), effort=effort,
            folder=options.results, commit_name=options.commit,
        )  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
