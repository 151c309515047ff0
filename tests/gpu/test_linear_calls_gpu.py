"""devkernels.linear on a GPU: planned calls, autotune, streams, graphs, threads, memory, wrong calls, 8-bit floats."""

import threading

import numpy as np
import pytest

from devkernels import cache
from devkernels.errors import ArgumentError, DeviceMismatchError, DevkernelsError, SpecError
from devkernels.linear import (
    FusedMatmul,
    clear_plans,
    fused_matmul,
    plan_cache_info,
)
from devkernels.linear.arrays import package
from devkernels.tolerance import relative_error
from tests.gpu.linear_device import (
    HAVE,
    Device,
    bound,
    gpu,
    make,
    needs_nvmath,
    own_cache,
    own_error,
)
from tests.unit.linear_support import forward_reference

pytestmark = needs_nvmath
__all__ = ["gpu", "own_cache"]  # fixtures


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_lean_execute_and_reset(gpu, rng, dtype):
    m, n, k = 256, 128, 64
    a, b, bias = (make(gpu, rng, s, dtype) for s in ((m, k), (k, n), (n,)))
    with FusedMatmul(a, b, epilog="GELU_BIAS", bias=bias, compute_type="32f") as mm:
        mm.plan()
        assert mm._lean is not None
        for _ in range(3):
            a, bias = make(gpu, rng, (m, k), dtype), make(gpu, rng, (n,), dtype)
            mm.reset_operands(a, bias=bias)
            want, z, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="gelu")
            limit = 2 * bound(dtype, k) * np.linalg.norm(parts) + np.linalg.norm(own_error(z, dtype))
            out = gpu.nan((m, n), dtype)
            for got in (mm.execute(), mm.execute(out=out)):
                assert np.linalg.norm(gpu.get(got) - want) <= limit
            whole = gpu.nan((m, n + 4), dtype)
            mm.execute(out=whole[:, :n])
            assert np.linalg.norm(gpu.get(whole)[:, :n] - want) <= limit


def test_autotune(gpu, rng):
    a, b, bias = (make(gpu, rng, s, "float16") for s in ((512, 256), (256, 384), (384,)))
    with FusedMatmul(a, b, epilog="RELU_AUX_BIAS", bias=bias) as mm:
        report = mm.plan().autotune(candidates=8)
        assert report["best"] is not None
        assert report["candidates"] >= 1
        want, z, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="relu")
        y, extra = mm.execute()
        assert np.linalg.norm(gpu.get(y) - want) <= 2 * bound("float16", 256) * np.linalg.norm(parts)
        assert ((gpu.get(extra["relu_aux"].unpack()) == (z > 0)) | (abs(z) < 1e-2)).all()
        chosen = mm._prepared.plan.lt.algorithm
    clear_plans()
    cache.forget()
    with FusedMatmul(a, b, epilog="RELU_AUX_BIAS", bias=bias) as mm:  # as another process would: from the disk
        assert mm.plan()._prepared.plan.lt.algorithm == chosen


def test_captured_calls_write_to_nobody_elses_memory(gpu, rng):
    """What the tuner captures allocates masks and results; a replay must not find them given to others."""
    x, w = make(gpu, rng, (256, 128), "float16"), make(gpu, rng, (128, 512), "float16")
    arrays = package(gpu.package)
    kept = {}

    def run():
        kept["last"] = fused_matmul(x, w, activation="gelu", aux=True)

    replay = arrays.captured(run, 4)
    y, _ = kept.pop("last")
    gpu.sync()
    held = [gpu.nan((256, 512), "float16") for _ in range(16)]
    for _ in range(2):
        y[...] = float("nan")
        replay()
        gpu.sync()
        want, z, parts = forward_reference(gpu.get(x), gpu.get(w), activation="gelu")
        limit = 2 * bound("float16", 128) * np.linalg.norm(parts) + np.linalg.norm(own_error(z, "float16"))
        assert np.linalg.norm(gpu.get(y) - want) <= limit
        assert all(np.isnan(gpu.get(a)).all() for a in held)


def test_two_streams_and_threads(gpu, rng):
    w = make(gpu, rng, (384, 256), "float16")
    jobs = [(make(gpu, rng, (64, 384), "float16"), make(gpu, rng, (256,), "float16")) for _ in range(6)]
    wants = [gpu.get(x) @ gpu.get(w) + gpu.get(bias) for x, bias in jobs]
    gpu.sync()
    wrong = []

    def work(index):
        x, bias = jobs[index]
        stream = gpu.xp.cuda.Stream() if gpu.package == "torch" else gpu.xp.cuda.Stream(non_blocking=True)
        with gpu.xp.cuda.stream(stream) if gpu.package == "torch" else stream:
            results = [fused_matmul(x, w, bias=bias) for _ in range(30)]
            stream.synchronize()
            wrong.extend(1 for r in results if not relative_error(gpu.get(r), wants[index]) <= 4e-3)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cuda_graph(gpu, rng):
    x, w, bias = (make(gpu, rng, s, "float16") for s in ((256, 1024), (1024, 512), (512,)))
    out = gpu.nan((256, 512), "float16")
    mm = FusedMatmul(x, w, epilog="RELU_BIAS", bias=bias).plan()
    if gpu.package == "torch":
        mm.execute(out=out)
        gpu.sync()
        graph = gpu.xp.cuda.CUDAGraph()
        with gpu.xp.cuda.graph(graph):
            mm.execute(out=out)
        replay = graph.replay
    else:
        stream = gpu.xp.cuda.Stream(non_blocking=True)
        with stream:
            mm.execute(out=out)
            stream.begin_capture()
            mm.execute(out=out)
            graph = stream.end_capture()
        replay = lambda: (graph.launch(stream), stream.synchronize())  # noqa: E731
    for _ in range(2):
        x[...] = make(gpu, rng, (256, 1024), "float16")
        out[...] = float("nan")
        gpu.sync()
        replay()
        gpu.sync()
        want, _z, parts = forward_reference(gpu.get(x), gpu.get(w), bias=gpu.get(bias), activation="relu")
        assert np.linalg.norm(gpu.get(out) - want) <= 2 * bound("float16", 1024) * np.linalg.norm(parts)


def test_explicit_stream(gpu, rng):
    x, w = make(gpu, rng, (256, 1024), "float16"), make(gpu, rng, (1024, 512), "float16")
    gpu.sync()
    stream = gpu.xp.cuda.Stream() if gpu.package == "torch" else gpu.xp.cuda.Stream(non_blocking=True)
    out = fused_matmul(x, w, stream=stream)
    stream.synchronize()
    assert relative_error(gpu.get(out), gpu.get(x) @ gpu.get(w)) <= bound("float16", 1024)


def test_many_shapes_keep_memory_bounded(gpu):
    rows = gpu.put(np.ones((2100, 8), "float16"))
    w = gpu.put(np.ones((8, 16), "float16"))
    bias = gpu.put(np.zeros(16, "float16"))
    used = gpu.xp.cuda.memory_allocated if gpu.package == "torch" else gpu.xp.get_default_memory_pool().used_bytes
    for m in range(1, 2001):
        fused_matmul(rows[:m], w, bias=bias, activation="relu", aux=True)
        if m == 1000:
            gpu.sync()
            before = used()
    gpu.sync()
    assert used() <= before
    info = plan_cache_info()
    assert info["kept"] <= info["limit"]
    assert info["dropped"] >= 1000
    assert (gpu.get(fused_matmul(rows[:1000], w)) == 8).all()


def test_what_the_device_lacks(gpu, rng):
    """No fused kernel adds a bias to complex numbers: said before a launch, or done in steps on request."""
    a, b, bias = (make(gpu, rng, s, "complex64") for s in ((8, 16), (16, 24), (24,)))
    with pytest.raises(SpecError, match="allow_unfused"):
        FusedMatmul(a, b, epilog="BIAS", bias=bias).plan()
    mm = FusedMatmul(a, b, epilog="BIAS", bias=bias, allow_unfused=True).plan()
    assert not mm.fused
    want, _, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias))
    assert np.linalg.norm(gpu.get(mm.execute()) - want) <= 2 * bound("complex64", 16) * np.linalg.norm(parts)


def test_wrong_calls_on_the_device(gpu, rng):
    a, b = make(gpu, rng, (8, 16), "float16"), make(gpu, rng, (16, 8), "float16")
    out = gpu.nan((8, 8), "float16")
    host_b = np.ones((16, 8), "float16")
    for error, arguments in (
        (DevkernelsError, dict(b=host_b)),
        (ArgumentError, dict(b=b, bias=make(gpu, rng, (9,), "float16"))),
        (ArgumentError, dict(b=b, alpha=float("nan"))),
        (SpecError, dict(b=b, compute_type="64f")),
    ):
        with pytest.raises(error):
            fused_matmul(a, out=out, **arguments)
    if gpu.package == "torch":
        with pytest.raises(DeviceMismatchError):
            fused_matmul(a, b.cpu(), out=out)
    assert np.isnan(gpu.get(out)).all()
    _, mask = fused_matmul(a, b, activation="relu", aux=True)
    _, elsewhere = fused_matmul(np.ones((8, 16), "f2"), host_b, activation="relu", aux=True)
    with pytest.raises(DeviceMismatchError):
        FusedMatmul(a, b, epilog="DRELU", epilog_inputs={"relu_aux": elsewhere}).plan()
    if gpu.package == "torch":
        mask._buffer.data.zero_()
        with pytest.raises(ArgumentError, match="modified"):
            FusedMatmul(a, b, epilog="DRELU", epilog_inputs={"relu_aux": mask}).plan()


@pytest.mark.skipif(not HAVE["torch"], reason="8-bit floats come with torch")
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("second", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("store", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_fp8(rng, scaled, second, store):
    import torch

    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("8-bit floats need compute capability 8.9")
    gpu = Device("torch")
    a = torch.from_numpy(rng.standard_normal((64, 128)).astype("f4")).cuda().to(torch.float8_e4m3fn)
    w = torch.from_numpy(rng.standard_normal((96, 128)).astype("f4")).cuda().to(getattr(torch, second))
    eight_bits = store.startswith("float8")
    scales = dict(scale_a=0.5, scale_b=torch.tensor([4.0], device="cuda")) if scaled else {}
    if eight_bits and scaled:
        scales["scale_out"] = 0.125
    bias = None if eight_bits or store == "float32" else gpu.put(rng.standard_normal(96), store)
    got = fused_matmul(a, w.T, bias=bias, activation="relu" if bias is not None else None, out_dtype=store, **scales)
    exact = lambda t: t.float().cpu().numpy().astype(float)  # noqa: E731
    want, _z, parts = forward_reference(exact(a), exact(w).T, alpha=2.0 if scaled else 1.0,
                                        bias=0.0 if bias is None else exact(bias),
                                        activation=None if bias is None else "relu")  # fmt: skip
    want, parts = (v * scales.get("scale_out", 1.0) for v in (want, parts))
    assert got.dtype == getattr(torch, store)
    # Products of 8-bit floats are added with 14 bits of mantissa on Hopper; float8_e4m3fn rounds at 2^-4.
    limit = (0.0 if eight_bits else bound(store, 128)) + 2.0**-12
    assert np.linalg.norm(exact(got) - want) <= limit * np.linalg.norm(parts) + (
        2.0**-4 * np.linalg.norm(want) if eight_bits else 0.0
    )
    with pytest.raises(SpecError, match="16"):
        fused_matmul(a[:, :120].contiguous(), w[:, :120].contiguous().T)
