"""Linear layers with bias and activation against CuPy, nvmath and torch: ``python bench/linear.py [--quick]``.

in: the shapes (tokens, out, in) of `SHAPES`, float16.  out: bench/results/linear.json.

All peers of a case run in one process and take turns (see bench/harness.py). Rows of devkernels carry `plan_us` and
`autotune_ms`, the costs that are paid once. ``bindings alone`` is cublasLtMatmul through nvmath's bindings with ready
descriptors: the least that a call can cost the host. Errors are looked at on 64 rows of the result, in float64.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from bench import harness, result_files  # noqa: E402
from bench._linear_backward import forward_and_backward  # noqa: E402
from bench._linear_data import Data  # noqa: E402
from bench._linear_forward import forward  # noqa: E402
from bench.harness import Setup  # noqa: E402
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


def set_up(case: dict[str, object], with_compile: bool = True) -> Setup:
    """Contenders of one case."""
    data = Data(case)
    if case["work"] == "forward":
        contenders = forward(case, data, with_compile)
        return Setup(contenders, data.moved, data.flops, lambda: [f() for f in contenders[0].closing])
    return Setup(forward_and_backward(case, data, with_compile), data.moved * 3, 3 * data.flops)


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
