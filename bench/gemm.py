"""Products of matrices against cuBLASLt (autotuned) and torch: ``python bench/run.py gemm``.

in: the shapes of `CASES`.  out: bench/results/gemm.json.

The peer of a fused epilogue is cuBLASLt followed by one elementwise kernel, written in CUDA C++ with 16-byte accesses;
cuBLASLt itself is nvmath's Matmul, autotuned. Rows of devkernels carry `compile_s`, the time of the first call in a
process whose cache was empty, and `path`, the main loop. Errors are looked at on 64 rows of the result, in float64.
"""

from __future__ import annotations

import time

from bench.harness import Contender, Setup
from bench.report import Table

GRAPH = True
IMPORTS = ("torch",)
_PLAIN = [(4096, 4096, 4096), (2048, 2048, 2048), (16384, 4096, 1024), (3000, 3000, 3000), (1024, 1024, 1024),
          (1000, 1000, 1000), (512, 512, 512)]  # fmt: skip
_FUSED = [(16384, 4096, 1024), (8192, 8192, 1024), (8192, 4096, 4096)]
_BATCHED = [(65536, 8, "float32"), (65536, 16, "float32"), (65536, 16, "float16"), (65536, 32, "float16"),
            (256, 256, "complex64")]  # fmt: skip
_LARGE = {"work": "plain", "m": 8192, "n": 8192, "k": 8192}
CASES = [
    {**_LARGE, "dtype": "float16", "out": "float16", "b": "rows"},
    {**_LARGE, "dtype": "float16", "out": "float32", "b": "rows"},
    *(
        {"work": "bias+silu+residual", "m": m, "n": n, "k": k, "dtype": "float16", "out": "float16", "b": "rows"}
        for m, n, k in _FUSED
    ),
    *(
        {"work": "batch", "batch": batch, "m": n, "n": n, "k": n, "dtype": dtype, "out": dtype, "b": "rows"}
        for batch, n, dtype in _BATCHED
    ),
    *(
        {"work": "plain", "m": m, "n": n, "k": k, "dtype": "float16", "out": "float16", "b": "rows"}
        for m, n, k in _PLAIN
    ),
    {**_LARGE, "dtype": "float16", "out": "float16", "b": "columns"},
    {**_LARGE, "dtype": "bfloat16", "out": "bfloat16", "b": "rows"},
    {"work": "plain", "m": 4096, "n": 4095, "k": 4095, "dtype": "float16", "out": "float16", "b": "rows"},
    *(
        {"work": "plain", "m": n, "n": n, "k": n, "dtype": dtype, "out": dtype, "b": "rows"}
        for n, dtype in ((4096, "float32"), (2048, "float64"), (2048, "complex64"), (1024, "complex128"))
    ),
    {"work": "plain", "m": 4096, "n": 4096, "k": 4096, "dtype": "float32", "out": "float32", "b": "rows", "tf32": 3},
    {"work": "plain", "m": 4096, "n": 4096, "k": 4096, "dtype": "float32", "out": "float32", "b": "columns", "tf32": 1},
    {"work": "plain", "m": 8192, "n": 8192, "k": 8192, "dtype": "int8", "out": "int32", "b": "columns"},
    {"work": "calls", "m": 256, "n": 256, "k": 256, "dtype": "float16", "out": "float16", "b": "rows"},
]
_USUAL = {"complex64": 3}  # what make_gemm does if nothing is said
CASES = [
    {**case, "tf32": case.get("tf32", _USUAL.get(case["dtype"], 0))} if case["work"] == "plain" else case
    for case in CASES
]
_ROWS = ("work", "m", "n", "k", "dtype", "out", "b", "tf32")
_PEERS = {"cuBLASLt": "cuBLASLt, autotuned", "torch": "torch", "devkernels": "devkernels.gemm"}
_FUSED_PEERS = {"cuBLASLt + elementwise": "cuBLASLt + one elementwise kernel", "devkernels": "devkernels.gemm"}
TABLES = {
    "plain": Table(_ROWS[1:], "device_tflops", _PEERS, {"work": "plain"}, "Products, TFLOP/s of device time."),
    "fused": Table(_ROWS[1:4], "device_ms", _FUSED_PEERS, {"work": "bias+silu+residual"},
                   "Product with bias, SiLU and residual, float16, ms of device time."),
    "batch": Table(("batch", "m", "dtype"), "device_ms", {"torch": "torch.bmm", "devkernels": "devkernels.gemm"},
                   {"work": "batch"}, "Small square products, ms of device time."),
    "calls": Table(("m", "n", "k", "dtype"), "host_us", None, {"work": "calls"}, "Host microseconds of a call."),
}  # fmt: skip

_ELEMENTWISE = r"""
#include <cuda_fp16.h>
extern "C" __global__ void finish(const int4* x, const int4* bias, const int4* residual, int4* y, int eighths) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < eighths; i += gridDim.x * blockDim.x) {
    long at = (long)blockIdx.y * eighths + i;
    int4 a = x[at], b = bias[i], c = residual[at], out;
    const __half2 *pa = (const __half2*)&a, *pb = (const __half2*)&b, *pc = (const __half2*)&c;
    __half2* po = (__half2*)&out;
    for (int e = 0; e < 4; e++) {
      float2 u = __half22float2(pa[e]), v = __half22float2(pb[e]), w = __half22float2(pc[e]);
      u.x += v.x;
      u.y += v.y;
      u.x = __fdividef(u.x, 1.f + __expf(-u.x)) + w.x;
      u.y = __fdividef(u.y, 1.f + __expf(-u.y)) + w.y;
      po[e] = __float22half2_rn(u);
    }
    y[at] = out;
  }
}
"""


def set_up(case):
    """Contenders of one case."""
    import cupy as cp
    import nvmath
    import torch

    import devkernels

    m, n, k, batch = case["m"], case["n"], case["k"], case.get("batch")
    dtype, result = getattr(torch, case["dtype"]), getattr(torch, case["out"])
    generator = torch.Generator(device="cuda").manual_seed(7)
    lead = (batch,) if batch else ()

    def draw(*shape):
        if dtype == torch.int8:
            return torch.randint(-128, 128, shape, device="cuda", dtype=dtype, generator=generator)
        if dtype.is_complex:
            return torch.randn(*shape, device="cuda", dtype=dtype, generator=generator)
        return torch.randn(*shape, device="cuda", generator=generator).to(dtype)

    wide = torch.complex128 if dtype.is_complex else torch.float64

    a, b = draw(*lead, m, k), draw(*lead, k, n)
    if case["b"] == "columns":
        b = b.t().contiguous().t()
    chosen = torch.linspace(0, m - 1, 64, device="cuda").long().unique()
    pick = slice(0, 64) if batch else chosen
    want = a[pick].to(wide) @ (b[pick] if batch else b).to(wide)
    fused = case["work"] == "bias+silu+residual"
    if fused:
        bias, residual = draw(n), draw(m, n)
        z = 0.05 * want + bias.double()
        want = z * torch.sigmoid(z) + residual[chosen].double()
    rounding = {
        "float16": 2.0**-11,
        "bfloat16": 2.0**-8,
        "float32": 2.0**-24,
        "float64": 2.0**-53,
        "complex64": 2.0**-24,
        "complex128": 2.0**-53,
        "int32": 0.0,
    }
    single = rounding["float64" if case["dtype"] in ("float64", "complex128") else "float32"]
    bound = 0.0 if dtype == torch.int8 else 2 * rounding[case["out"]] + single * (4 + 2 * k**0.5)
    bound = 2.0**-9 if case.get("tf32") == 1 else bound

    def outputs():
        poison = float("nan") if result.is_floating_point or result.is_complex else 77
        return torch.full((*lead, m, n), poison, device="cuda", dtype=result)

    def check(out):
        return lambda: float((out[pick].to(wide) - want).norm() / want.norm())

    epilogue = ("bias", "silu", "residual") if fused else None
    extra = (bias, residual) if fused else ()
    alpha = 0.05 if fused else 1.0
    plan = devkernels.make_gemm(case["dtype"], out_dtype=case["out"], epilogue=epilogue, tf32=case.get("tf32"))
    ours = outputs()
    start = time.perf_counter()
    plan(a, b, alpha=alpha, extra=extra, out=ours)
    torch.cuda.synchronize()
    costs = {
        "compile_s": round(time.perf_counter() - start, 2),
        "path": plan.describe(a, b).splitlines()[1].split(":")[0],
    }
    contenders = [
        Contender("devkernels", lambda: plan(a, b, alpha=alpha, extra=extra, out=ours), check(ours), bound, extra=costs)
    ]
    theirs, last = outputs(), outputs()
    torch.backends.cuda.matmul.allow_tf32 = case.get("tf32") == 1
    if case["work"] == "calls":
        contenders += _calls(devkernels, plan, a, b, ours, check, bound)
    if dtype == torch.int8:
        contenders.append(Contender("torch", lambda: torch._int_mm(a, b, out=theirs), check(theirs), 0.0))
    elif not fused and case["dtype"] == case["out"]:
        product = torch.bmm if batch else torch.mm
        torch_bound = bound if case["dtype"] != "float32" or case.get("tf32") == 1 else 1e-5
        contenders.append(Contender("torch", lambda: product(a, b, out=theirs), check(theirs), torch_bound))
    lt = case["out"] in ("float16", "float32", "float64") and case["dtype"] != "bfloat16" and not case.get("tf32")
    if not batch and lt and case["work"] != "calls":
        contenders.append(
            _cublaslt(nvmath, cp, a, b, case, alpha, (bias, residual, last) if fused else None, check, bound)
        )
    item = a.element_size()
    moved = a.numel() * item + b.numel() * item + ours.numel() * ours.element_size() * (2 if fused else 1)
    return Setup(contenders, moved, flops=(8.0 if dtype.is_complex else 2.0) * m * n * k * (batch or 1))


def _calls(devkernels, plan, a, b, out, check, bound):
    """Other ways of making the same call."""
    made = {}

    def new(function):
        def run():
            made["out"] = function(a, b)

        return run

    found = [
        ("devkernels, new result", new(plan), lambda: check(made["out"])()),
        ("devkernels.gemm", lambda: devkernels.gemm(a, b, out=out), check(out)),
        ("devkernels, bound", plan.bind(a, b, out=out), check(out)),
    ]
    return [Contender(name, run, checked, bound) for name, run, checked in found]


def _cublaslt(nvmath, cp, a, b, case, alpha, fused, check, bound):
    import torch

    advanced = nvmath.linalg.advanced
    kinds = {"float16": advanced.MatmulComputeType.COMPUTE_32F, "float32": advanced.MatmulComputeType.COMPUTE_32F,
             "float64": advanced.MatmulComputeType.COMPUTE_64F}  # fmt: skip
    options = {"compute_type": kinds[case["dtype"]]}
    if case["out"] != case["dtype"]:
        options["result_type"] = nvmath.CudaDataType.CUDA_R_32F
    mm = advanced.Matmul(a, b, alpha=alpha, options=options)
    mm.plan()
    mm.autotune(iterations=3)
    found = {}

    def product():
        found["out"] = mm.execute()

    if fused is None:
        return Contender("cuBLASLt", product, lambda: check(found["out"])(), bound)
    bias, residual, last = fused
    kernel = cp.RawKernel(_ELEMENTWISE, "finish")
    n8 = case["n"] // 8
    views = [cp.from_dlpack(x) for x in (bias, residual, last)]

    def both():
        product()
        kernel((-(-n8 // 256), case["m"]), (256,), (cp.from_dlpack(found["out"]), *views, cp.int32(n8)))

    torch.cuda.synchronize()
    # the product is rounded to float16 before the epilogue
    return Contender("cuBLASLt + elementwise", both, check(last), 2 * bound, graph=True)
