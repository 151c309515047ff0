"""What a plan remembers of calls: never a stale address, number or stream, and no array is kept alive."""

import gc
import weakref

import numpy as np
import pytest

import devkernels
from devkernels.errors import ArgumentError
from tests.matmul_cases import integers

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

KINDS = [
    ("float16", (64, 72, 40), "warpgroup"), ("float16", (33, 35, 37), "tensor"), ("float32", (40, 50, 60), "staged"),
    ("int8", (30, 31, 33), "portable"),
]  # fmt: skip


def drawn(rng, m, n, k, dtype):
    return (cupy.asarray(integers(rng, s, dtype)) for s in ((m, k), (k, n)))


def wanted(a, b, dtype):
    wide = "i4" if dtype == "int8" else "f4"
    return (a.astype(wide) @ b.astype(wide)).astype("i4" if dtype == "int8" else dtype)


@pytest.mark.parametrize(("dtype", "size", "path"), KINDS)
def test_repeated_calls(dtype, size, path, rng):
    """Same arrays, new contents, new arrays, other factors, a result that is made: all in turn, twice."""
    plan = devkernels.make_gemm(dtype)
    a, b = drawn(rng, *size, dtype)
    assert f"\n{path}:" in plan.describe(a, b)
    out = cupy.zeros(size[:2], wanted(a, b, dtype).dtype)
    for _ in range(2):
        for x, y in ((a, b), tuple(drawn(rng, *size, dtype)), (a, b)):
            for alpha in (1, 2):
                out.fill(77)
                assert plan(x, y, alpha=alpha, out=out) is out
                assert bool(cupy.array_equal(out, alpha * wanted(x, y, dtype)))
                assert bool(cupy.array_equal(plan(x, y, alpha=alpha), out))
        a += a.dtype.type(1)
    c = cupy.asarray(integers(rng, size[:2], out.dtype))
    for beta in (1, 2, 0):
        assert bool(cupy.array_equal(plan(a, b, c, beta=beta), wanted(a, b, dtype) + beta * c))


def test_numbers_of_the_epilogue(rng):
    a, b = drawn(rng, 40, 48, 16, "float32")
    plan = devkernels.make_gemm("float32", epilogue=lambda acc, row, column, shift: acc + shift)
    for shift in (1.0, 2.0, 1.0, 3):
        assert bool(cupy.array_equal(plan(a, b, extra=(shift,)), a @ b + shift))


def test_streams(rng):
    """Neither the stream of an earlier call nor that of another library."""
    a, b = (torch.as_tensor(integers(rng, s, "f2")).cuda() for s in ((512, 256), (256, 512)))
    out = torch.zeros(512, 512, device="cuda", dtype=torch.float16)
    plan = devkernels.make_gemm("float16")
    want = (a.float() @ b.float()).half()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams * 2:
        with torch.cuda.stream(stream):
            out.zero_()
            plan(a, b, out=out)
            assert torch.equal(out, want)
    for stream in streams[1:]:
        out.zero_()
        torch.cuda.synchronize()
        plan(a, b, out=out, stream=stream)
        stream.synchronize()
        assert torch.equal(out, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(a, b, out=out)
    out.zero_()
    graph.replay()
    assert torch.equal(out, want)


def test_no_array_is_kept_alive(rng):
    class Array(cupy.ndarray):
        """One that can be watched."""

    a, b = drawn(rng, 64, 64, 64, "float16")
    a = a.view(Array)
    plan = devkernels.make_gemm("float16")
    for _ in range(3):
        plan(a, b)
    seen = weakref.ref(a)
    del a
    gc.collect()
    assert seen() is None


def test_refused_the_second_time_as_the_first(rng):
    plan = devkernels.make_gemm("float32")
    a, b = drawn(rng, 8, 8, 8, "float32")
    plan(a, b)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="out overlaps a"):
            plan(a, b, out=a)
        x = torch.ones(8, 8, device="cuda", requires_grad=True)
        with torch.no_grad():
            plan(x, x)
        with pytest.raises(ArgumentError, match="requires a gradient"):
            plan(x, x)


@pytest.mark.parametrize(("dtype", "size"), [("float16", (640, 512, 256)), ("float32", (300, 256, 64))])
def test_tuned(dtype, size, rng):
    """Measured once; the second plan finds it in the cache. An operand that is the result is left alone meanwhile."""
    a, b = drawn(rng, *size, dtype)
    plan = devkernels.make_gemm(dtype, epilogue="residual", tune=True)
    residual = cupy.asarray(integers(rng, size[:2], dtype))
    want = (a.astype("f4") @ b.astype("f4") + residual.astype("f4")).astype(dtype)
    out = residual.copy()
    assert plan(a, b, extra=(out,), out=out) is out
    assert bool(cupy.array_equal(out, want))
    assert bool(cupy.array_equal(plan(a, b, extra=(residual,)), want))
    (found,) = plan._knobs.values()
    again = devkernels.make_gemm(dtype, epilogue="residual", tune=True)
    assert bool(cupy.array_equal(again(a, b, extra=(residual,)), want))
    assert list(again._knobs.values()) == [found]


@pytest.mark.parametrize(("dtype", "size", "path"), KINDS)
def test_bound(dtype, size, path, rng):
    plan = devkernels.make_gemm(dtype)
    a, b = drawn(rng, *size, dtype)
    out = cupy.zeros(size[:2], wanted(a, b, dtype).dtype)
    run = plan.bind(a, b, out=out)
    for _ in range(2):
        out.fill(77)
        a += a.dtype.type(1)
        run()
        assert bool(cupy.array_equal(out, wanted(a, b, dtype)))
    host, there = np.ones((4, 4), dtype), np.zeros((4, 4), out.dtype)
    again = plan.bind(host, host, out=there)
    there[...] = 0
    again()
    assert (there == 4).all()
