"""Pipelined device products, prologues, mixed dtypes, chains and tuned plans: ``python bench/run.py matmul --graph``.

in: the cases of `CASES`.  out: bench/results/matmul.json.

The kernel around a pipelined `devkernels.matmul` is written as a user would write one; its peer is cuBLASLt, autotuned.
torch does what it has: an elementwise kernel and a product, a conversion and a product, a product, GELU and a product.
Errors are looked at on 64 rows of the result, in float64.
"""

from __future__ import annotations

import numpy as np

from bench.gemm import _cublaslt
from bench.harness import Contender, Setup
from bench.report import Table

GRAPH = True
IMPORTS = ("torch",)
_TILE, _BAND = (128, 256, 64), 8
CASES = [
    *(
        {"work": "pipeline", "m": n, "n": n, "k": n, "dtype": "float16", "out": "float32", "b": "rows"}
        for n in (8192, 4096)
    ),
    *(
        {"work": "prologue", "m": n, "n": n, "k": n, "dtype": dtype}
        for n, dtype in ((4096, "float16"), (2048, "float32"))
    ),
    *(
        {"work": "mixed", "m": 2048, "n": 2048, "k": 2048, "a": a, "b": b}
        for a, b in (("float16", "float32"), ("float16", "bfloat16"))
    ),
    *(
        {"work": "chain", "m": m, "k": k, "n": n, "p": p, "batch": batch, "first": first}
        for m, k, n, p, batch, first in (
            (16384, 256, 256, 256, 0, "gelu_tanh"), (16384, 512, 512, 512, 0, "gelu_tanh"),
            (512, 64, 512, 64, 64, "none"),
        )
    ),
    *(
        {"work": "tune", "m": m, "n": n, "k": k, "dtype": dtype}
        for m, n, k, dtype in (
            (1000, 1000, 1000, "float16"), (1536, 1536, 1536, "float16"), (8192, 8192, 1024, "float16"),
            (1000, 1000, 1000, "float32"),
        )
    ),
]  # fmt: skip
TABLES = {
    "pipeline": Table(
        ("m", "n", "k"), "device_tflops",
        {"cuBLASLt": "cuBLASLt, autotuned", "devkernels.gemm": "devkernels.gemm",
         "devkernels.matmul": "devkernels.matmul in one's own kernel"},
        {"work": "pipeline"}, "float16 in, float32 out, TFLOP/s of device time.",
    ),
    "prologue": Table(
        ("m", "n", "k", "dtype"), "device_ms", {"torch": "torch, two kernels", "devkernels": "devkernels.gemm"},
        {"work": "prologue"}, "A function on every element of a, ms of device time.",
    ),
    "mixed": Table(
        ("m", "n", "k", "a", "b"), "device_ms", {"torch": "torch, converted", "devkernels": "devkernels.gemm"},
        {"work": "mixed"}, "Operands of two dtypes, ms of device time.",
    ),
    "chain": Table(
        ("m", "k", "n", "p", "batch", "first"), "device_ms",
        {"torch": "torch", "two products": "two of make_gemm", "devkernels": "make_gemm_chain"},
        {"work": "chain"}, "Two products with a function between them, float16, ms of device time.",
    ),
    "tune": Table(
        ("m", "n", "k", "dtype"), "device_ms", {"torch": "torch", "devkernels": "by the rules", "tuned": "tune=True"},
        {"work": "tune"}, "Plans by the rules and measured ones, ms of device time.",
    ),
}  # fmt: skip


def _draw(*shape, dtype="float16", scale=1.0):
    import torch

    generator = torch.Generator(device="cuda").manual_seed(sum(shape))
    return (torch.randn(*shape, device="cuda", generator=generator) * scale).to(getattr(torch, dtype))


def _checks(want):
    """Function that compares the first 64 rows of a result."""
    return lambda out: lambda: float((out[..., :64, :].double() - want).norm() / want.norm())


def _new(*shape, dtype):
    import torch

    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def set_up(case):
    """Contenders of one case."""
    return _SET_UPS[case["work"]](case)


def tile_kernel(mm):
    """Product of whole matrices: a tile a block, down bands of rows, for the L2 cache."""
    from devkernels import cuda, kernel

    share, dtype, (m, n, _), band, byte = mm.accumulator_size, mm.c_value_type, mm.size, _BAND, np.dtype("u1")

    @kernel(launch_bounds=mm.block_size)
    def product(pipeline, y, across):
        sums = cuda.local.array(share, dtype)
        mm.clear(sums)
        group = cuda.blockIdx.x // (band * across)
        rest = cuda.blockIdx.x - group * band * across
        j = rest // band
        i = group * band + rest - j * band
        pipeline.get_tile(cuda.shared.array(0, byte), i, j).execute(sums)
        mm.store_accumulator(sums, y, i * m, j * n)

    return product


def _pipeline(case):
    import cupy as cp
    import nvmath
    import torch

    import devkernels

    n = case["n"]
    a, b = _draw(n, n), _draw(n, n)
    check, bound = _checks(a[:64].double() @ b.double()), 2.0**-23 + 2.0**-24 * (4 + 2 * n**0.5)
    ours, plain = _new(n, n, dtype=torch.float32), _new(n, n, dtype=torch.float32)
    mm = devkernels.matmul(size=_TILE, precision=(np.float16, np.float16, np.float32), with_pipeline=True)
    pipeline, product, across = mm.suggest_device_pipeline(None, a, b), tile_kernel(mm), n // _TILE[1]
    launch = product[n // _TILE[0] * across, mm.block_dim, None, pipeline.buffer_size]
    plan = devkernels.make_gemm("float16", out_dtype="float32")
    contenders = [
        Contender("devkernels.matmul", lambda: launch(pipeline, ours, across), check(ours), bound,
                  extra={"pipeline": pipeline.describe()}),
        Contender("devkernels.gemm", lambda: plan(a, b, out=plain), check(plain), bound),
        _cublaslt(nvmath, cp, a, b, case, 1.0, None, check, bound),
    ]  # fmt: skip
    return Setup(contenders, a.numel() * 4 + ours.numel() * 4, flops=2.0 * n**3)


def _half(x, row, column):
    return x * np.float32(0.5)


def _prologue(case):
    import torch

    import devkernels

    m, n, k, dtype = (case[name] for name in ("m", "n", "k", "dtype"))
    a, b = _draw(m, k, dtype=dtype), _draw(k, n, dtype=dtype)
    check, bound = _checks(0.5 * (a[:64].double() @ b.double())), 2.0**-9 if dtype == "float16" else 1e-5
    ours, theirs = (_new(m, n, dtype=a.dtype) for _ in range(2))
    plan = devkernels.make_gemm(dtype, prologue_a=_half)
    contenders = [
        Contender("devkernels", lambda: plan(a, b, out=ours), check(ours), bound),
        Contender("torch", lambda: torch.mm(a * 0.5, b, out=theirs), check(theirs), bound),
    ]
    return Setup(contenders, (a.numel() + b.numel() + ours.numel()) * a.element_size(), flops=2.0 * m * n * k)


def _mixed(case):
    import torch

    import devkernels

    m, n, k = (case[name] for name in "mnk")
    a, b = _draw(m, k, dtype=case["a"]), _draw(k, n, dtype=case["b"])
    check, ours = _checks(a[:64].double() @ b.double()), _new(m, n, dtype=torch.float32)
    plan, theirs = devkernels.make_gemm((case["a"], case["b"]), out_dtype="float32"), _new(m, n, dtype=torch.float32)
    contenders = [
        Contender("devkernels", lambda: plan(a, b, out=ours), check(ours), 1e-5),
        Contender("torch", lambda: torch.mm(a.float(), b.float(), out=theirs), check(theirs), 1e-5),
    ]
    return Setup(contenders, a.numel() * 2 + b.numel() * b.element_size() + m * n * 4, flops=2.0 * m * n * k)


def _chain(case):
    import torch

    import devkernels

    m, k, n, p, batch = (case[name] for name in ("m", "k", "n", "p", "batch"))
    lead, first = (batch,) if batch else (), None if case["first"] == "none" else case["first"]
    a, b, c = _draw(*lead, m, k), _draw(*lead, k, n, scale=k**-0.5), _draw(*lead, n, p, scale=n**-0.5)

    def function(x):
        return torch.nn.functional.gelu(x, approximate="tanh") if first else x

    check = _checks(function(a[..., :64, :].double() @ b.double()) @ c.double())
    ours, apart, theirs = (_new(*lead, m, p, dtype=torch.float16) for _ in range(3))
    between = _new(*lead, m, n, dtype=torch.float16)
    chain = devkernels.make_gemm_chain("float16", first=first)
    one, two = devkernels.make_gemm("float16", epilogue=first), devkernels.make_gemm("float16")

    def both():
        one(a, b, out=between)
        two(between, c, out=apart)

    contenders = [
        Contender("devkernels", lambda: chain(a, b, c, out=ours), check(ours), 2e-3),
        Contender("two products", both, check(apart), 2e-3),
        Contender("torch", lambda: torch.matmul(function(torch.matmul(a, b)), c, out=theirs), check(theirs), 4e-3),
    ]
    moved = 2 * (a.numel() + b.numel() + c.numel() + ours.numel())
    return Setup(contenders, moved, flops=2.0 * m * n * (k + p) * (batch or 1))


def _tune(case):
    import torch

    import devkernels

    m, n, k, dtype = (case[name] for name in ("m", "n", "k", "dtype"))
    a, b = _draw(m, k, dtype=dtype), _draw(k, n, dtype=dtype)
    check, bound = _checks(a[:64].double() @ b.double()), 2.0**-9 if dtype == "float16" else 1e-5
    ours, tuned, theirs = (_new(m, n, dtype=a.dtype) for _ in range(3))
    plan, measured = devkernels.make_gemm(dtype), devkernels.make_gemm(dtype, tune=True)
    measured(a, b, out=tuned)
    contenders = [
        Contender("devkernels", lambda: plan(a, b, out=ours), check(ours), bound),
        Contender("tuned", lambda: measured(a, b, out=tuned), check(tuned), bound),
        Contender("torch", lambda: torch.mm(a, b, out=theirs), check(theirs), bound),
    ]
    return Setup(contenders, (a.numel() + b.numel() + ours.numel()) * a.element_size(), flops=2.0 * m * n * k)


_SET_UPS = {"pipeline": _pipeline, "prologue": _prologue, "mixed": _mixed, "chain": _chain, "tune": _tune}
