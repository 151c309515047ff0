"""devkernels.linear on a GPU, with CuPy and torch: every epilog against float64, streams, graphs, threads, fp8."""

import functools
import importlib.util
import itertools
import threading

import numpy as np
import pytest

from devkernels import cache
from devkernels.errors import ArgumentError, DeviceMismatchError, DevkernelsError, SpecError
from devkernels.linear import (
    Epilog,
    FusedLinear,
    FusedMatmul,
    FusedMLP,
    clear_plans,
    fused_matmul,
    plan_cache_info,
)
from devkernels.tolerance import gelu_error, product_bound, relative_error, unit_roundoff
from tests.unit.linear_bounds import check_mlp
from tests.unit.linear_support import forward_reference, gelu_slope

HAVE = {name: importlib.util.find_spec(name) is not None for name in ("cupy", "torch", "ml_dtypes", "nvmath")}
pytestmark = pytest.mark.skipif(not HAVE["nvmath"], reason="needs nvmath-python (extra cu12 or cu13)")
PACKAGES = [pytest.param(p, marks=pytest.mark.skipif(not HAVE[p], reason=f"needs {p}")) for p in ("cupy", "torch")]
KINDS = ["float16", "bfloat16", "float32", "tf32", "float64", "complex64"]
SHAPES = [(5, 7, 3), (1, 30, 8), (64, 136, 72), (33, 257, 130), (7, 1, 5), (3, 30, 1)]


class Device:
    """Moves arrays to the GPU and back, for one package."""

    def __init__(self, package):
        self.package = package
        self.xp = importlib.import_module(package)

    def put(self, x, dtype=None):
        dtype = dtype or x.dtype.name
        if self.package == "torch":
            return self.xp.from_numpy(np.ascontiguousarray(x)).to("cuda").to(getattr(self.xp, dtype))
        if dtype == "bfloat16":
            import ml_dtypes

            return self.xp.asarray(x).astype(ml_dtypes.bfloat16)
        return self.xp.asarray(x).astype(dtype)

    def get(self, x):
        if self.package == "torch":
            x = x.detach().cpu()
            return x.numpy() if x.dtype in (self.xp.uint8, self.xp.bool) else (
                x.to(self.xp.complex128 if x.is_complex() else self.xp.float64).numpy())  # fmt: skip
        kind = x.dtype
        if kind.name == "bfloat16":
            return self.xp.asnumpy(x.astype("float32")).astype(float)
        host = self.xp.asnumpy(x)
        return host.astype(np.complex128) if kind.kind == "c" else host.astype(float) if kind.kind == "f" else host

    def nan(self, shape, dtype):
        return self.put(np.full(shape, np.nan, "complex64" if dtype.startswith("complex") else "float32"), dtype)

    def turn(self, x):
        return x.swapaxes(-1, -2)

    def sync(self):
        (self.xp.cuda.synchronize if self.package == "torch" else self.xp.cuda.runtime.deviceSynchronize)()


@pytest.fixture(params=PACKAGES)
def gpu(request):
    return Device(request.param)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))


def dtype_of(kind):
    return "float32" if kind == "tf32" else kind


def bound(kind, k):
    store = {"complex64": "float32"}.get(dtype_of(kind), dtype_of(kind))
    # tf32 rounds each operand to 11 bits before multiplying.
    return product_bound(accumulate(kind), store, k) + (2 * unit_roundoff("float16") if kind == "tf32" else 0.0)


def accumulate(kind):
    return "float64" if kind == "float64" else "float32"


def own_error(z, kind, *, derivative=False):
    """Bound on the error of cuBLASLt's GELU (or its derivative) at z, from that of the tanh that it uses."""
    if accumulate(kind) == "float64":
        return gelu_error(z, "float64", derivative=derivative)
    tanh_instruction = pytest.importorskip("tests.gpu.tanh_instruction", reason="needs CuPy")
    return gelu_error(z, "float32", derivative=derivative, tanh=tanh_instruction.error())


def exact_tanh(v):
    """Error of CUDA's tanhf: two units in the last place (CUDA C++ Programming Guide)."""
    return 2.0**-22 * abs(np.tanh(v))


def make(gpu, rng, shape, kind):
    x = rng.standard_normal(shape)
    if kind == "complex64":
        x = x + 1j * rng.standard_normal(shape)
    dtype = dtype_of(kind)
    if dtype == "bfloat16" and gpu.package == "cupy" and not HAVE["ml_dtypes"]:
        pytest.skip("CuPy's bfloat16 needs ml_dtypes")
    return gpu.put(x, dtype)


def options(kind):
    return {"compute_type": "tf32"} if kind == "tf32" else {"compute_type": "32f"} if kind == "float32" else {}


@pytest.mark.parametrize(
    ("kind", "activation"), [*itertools.product(KINDS[:-1], [None, "relu", "gelu"]), ("complex64", None)]
)
@pytest.mark.parametrize("axis", [None, "n", "m1"])
def test_forward(gpu, rng, kind, activation, axis):
    for (m, n, k), aux in itertools.product(SHAPES, [False, True] if activation else [False]):
        a, b = make(gpu, rng, (m, k), kind), make(gpu, rng, (n, k), kind)
        bias = None if axis is None else make(gpu, rng, {"n": (n,), "m1": (m, 1)}[axis], kind)
        want, z, parts = forward_reference(gpu.get(a), gpu.get(b).T, activation=activation,
                                    bias=0.0 if bias is None else gpu.get(bias))  # fmt: skip
        out = gpu.nan((m, n), dtype_of(kind))
        got = fused_matmul(a, b.T, bias=bias, activation=activation, aux=aux, out=out, **options(kind))
        mask = got[1] if aux else None
        limit = 2 * bound(kind, k) * np.linalg.norm(parts)
        own = np.linalg.norm(own_error(z, kind)) if activation == "gelu" else 0.0
        assert np.linalg.norm(gpu.get(out) - want) <= limit + own
        if mask is None:
            continue
        told = gpu.get(mask.unpack())
        if activation == "relu":
            sure = abs(z) > 4 * bound(kind, k) * parts
            assert ((told == (z > 0)) | ~sure).all()
            assert ((told == (gpu.get(out) > 0)) | ~sure).all()
        else:
            assert np.linalg.norm(told - z) <= limit


@pytest.mark.skipif(not HAVE["cupy"], reason="needs cupy")
def test_the_tanh_instruction_keeps_its_promise():
    from tests.gpu import tanh_instruction

    table, relative = tanh_instruction.measured()
    assert 2.0**-24 < relative <= 2.0**-11
    assert table.max() <= 2.0**-11
    assert (table > 0).any()


@pytest.mark.skipif(not HAVE["cupy"], reason="needs cupy")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gelu_is_made_of_the_tanh_instruction(dtype):
    """Every kernel that is offered computes what the model does, but for the order of a few roundings."""
    import cupy

    from tests.gpu import tanh_instruction

    if dtype == "float16":
        x = np.arange(65536, dtype=np.uint16).view(np.float16)
        x = x[np.isfinite(x) & (abs(x) < 64)]
    else:
        x = np.linspace(-10, 10, 40960, dtype=dtype)
    x = x[: len(x) // 1024 * 1024]
    a, b = np.zeros((len(x), 64), dtype), np.zeros((64, 128), dtype)
    a[:, 0], b[0] = x, 1
    want, want_slope = tanh_instruction.model(x.astype("f4"))
    u, store = 2.0**-24, unit_roundoff(dtype)
    # Seven roundings move v by 7 u |v| at most, and one piece of the instruction's table meets the next with a step,
    # so the model is given the same freedom by asking it at v's neighbours: a few units in the last place of x.
    near = [tanh_instruction.model((x * (1 + step * u)).astype("f4")) for step in range(-8, 9, 2)]
    low, high = (f([n[0] for n in near], axis=0) for f in (np.min, np.max))
    low_slope, high_slope = (f([n[1] for n in near], axis=0) for f in (np.min, np.max))
    a, b = cupy.asarray(a), cupy.asarray(b)
    options = {"compute_type": "32f"} if dtype == "float32" else {}
    _, aux = fused_matmul(a, b, activation="gelu", aux=True, **options)
    ones = cupy.zeros_like(a)
    ones[:, 0] = 1
    for left, epilog, inputs, bounds in (
        (a, "GELU", {}, (want, low, high)),
        (ones, "DGELU", {"gelu_aux": aux}, (want_slope, low_slope, high_slope)),
    ):
        with FusedMatmul(left, b, epilog=epilog, epilog_inputs=inputs, **options) as mm:
            lt = mm.plan()._prepared.plan.lt
            for one in lt.candidates(8):
                lt.use(one["algo"].tobytes(), int(one["workspace_size"]))
                mm._bind()
                got = cupy.asnumpy(mm.execute()[:, 0]).astype(float)
                middle, least, most = bounds
                slack = 16 * u * np.maximum(abs(x.astype(float)), 1) * np.maximum(abs(middle), 1)
                slack = slack + store * abs(middle) + (2.0**-25 if dtype == "float16" else 0.0)
                assert (got >= least - slack).all()
                assert (got <= most + slack).all()


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("epilog", ["DRELU", "DRELU_BGRAD", "DGELU", "DGELU_BGRAD"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_backward(gpu, rng, kind, epilog, batch):
    activation = "relu" if "RELU" in epilog else "gelu"
    for m, n, k in SHAPES:
        x, w = make(gpu, rng, (*batch, m, k), kind), make(gpu, rng, (*batch, k, n), kind)
        _, mask = fused_matmul(x, w, activation=activation, aux=True, **options(kind))
        kept = gpu.get(mask.unpack())
        slope = kept.astype(float) if activation == "relu" else gelu_slope(kept)
        g, v = make(gpu, rng, (*batch, m, k), kind), make(gpu, rng, (*batch, k, n), kind)
        product = gpu.get(g) @ gpu.get(v)
        mm = FusedMatmul(g, v, epilog=epilog, epilog_inputs={f"{activation}_aux": mask}, allow_unfused=True,
                         **options(kind)).plan()  # fmt: skip
        got = mm.execute()
        got, extra = got if "BGRAD" in epilog else (got, {})
        limit = 3 * bound(kind, k)
        own = abs(product) * own_error(kept, kind, derivative=True) if activation == "gelu" else np.zeros_like(product)
        assert np.linalg.norm(gpu.get(got) - product * slope) <= limit * np.linalg.norm(product) + np.linalg.norm(own)
        if extra:
            sums = gpu.get(extra[epilog.lower()])
            want = (product * slope).sum(-2)
            assert sums.shape == want.shape
            size = np.linalg.norm(abs(product).sum(-2))
            assert np.linalg.norm(sums - want) <= limit * size + np.linalg.norm(own.sum(-2))


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize(("t_a", "t_b"), [(x, y) for x in (False, True) for y in (False, True)])
def test_gradients_of_the_operands(gpu, rng, kind, t_a, t_b):
    for m, n, k in [(30, 20, 65), (128, 64, 256), (5, 3, 1)]:
        a = gpu.turn(make(gpu, rng, (k, m), kind)) if t_a else make(gpu, rng, (m, k), kind)
        b = gpu.turn(make(gpu, rng, (n, k), kind)) if t_b else make(gpu, rng, (k, n), kind)
        for epilog, axis, source in (("BGRADA", 1, a), ("BGRADB", 0, b)):
            mm = FusedMatmul(a, b, epilog=epilog, allow_unfused=True, **options(kind)).plan()
            out, extra = mm.execute()
            assert relative_error(gpu.get(out), gpu.get(a) @ gpu.get(b)) <= 2 * bound(kind, k)
            want, size = gpu.get(source).sum(axis), np.linalg.norm(abs(gpu.get(source)).sum(axis))
            assert np.linalg.norm(gpu.get(extra[epilog.lower()]) - want) <= 2 * bound(kind, k) * size


@pytest.mark.parametrize(("t_a", "t_b"), [(x, y) for x in (False, True) for y in (False, True)])
@pytest.mark.parametrize("lead", [((), ()), ((4,), (4,)), ((2, 3), ()), ((), (2, 3))])
def test_views_batches_and_parts(gpu, rng, t_a, t_b, lead):
    m, n, k = 24, 40, 16
    a = make(gpu, rng, (*lead[0], k, m) if t_a else (*lead[0], m, k), "float16")
    b = make(gpu, rng, (*lead[1], n, k) if t_b else (*lead[1], k, n), "float16")
    a, b = gpu.turn(a) if t_a else a, gpu.turn(b) if t_b else b
    bias = make(gpu, rng, (n,), "float16")
    want, _, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="relu")
    whole = gpu.nan((*want.shape[:-1], n + 8), "float16")
    fused_matmul(a, b, bias=bias, activation="relu", out=whole[..., :n])
    got = gpu.get(whole)
    assert np.linalg.norm(got[..., :n] - want) <= 2 * bound("float16", k) * np.linalg.norm(parts)
    assert np.isnan(got[..., n:]).all()
    one_off = fused_matmul(a[..., 1:, :], b[..., 1:], bias=bias[1:])  # pointers that are aligned to 2 bytes only
    want, _z, parts = forward_reference(gpu.get(a)[..., 1:, :], gpu.get(b)[..., 1:], bias=gpu.get(bias)[1:])
    assert np.linalg.norm(gpu.get(one_off) - want) <= 2 * bound("float16", k) * np.linalg.norm(parts)


@pytest.mark.parametrize("beta", [None, 0.5])
@pytest.mark.parametrize("axis", [None, "n", "m1"])
def test_c_alpha_beta(gpu, rng, beta, axis):
    m, n, k = 24, 40, 16
    a, b, c = (make(gpu, rng, s, "float32") for s in ((m, k), (k, n), (m, n)))
    bias = None if axis is None else make(gpu, rng, {"n": (n,), "m1": (m, 1)}[axis], "float32")
    weights = {"alpha": -1.5, "beta": 1.0 if beta is None else beta}
    host_bias = 0.0 if bias is None else gpu.get(bias)
    want, _, parts = forward_reference(gpu.get(a), gpu.get(b), c=gpu.get(c), bias=host_bias, **weights)
    got = fused_matmul(a, b, c=c, alpha=-1.5, beta=beta, bias=bias, compute_type="32f")
    assert np.linalg.norm(gpu.get(got) - want) / np.linalg.norm(parts) <= 3 * bound("float32", k)
    assert fused_matmul(a, b, c=c, alpha=-1.5, beta=beta, bias=bias, out=c, compute_type="32f") is c
    assert np.linalg.norm(gpu.get(c) - want) / np.linalg.norm(parts) <= 3 * bound("float32", k)


def test_the_published_examples(gpu, rng):
    m, n, k = 1024, 512, 2048
    a, b, bias = (make(gpu, rng, s, "float16") for s in ((m, k), (k, n), (m, 1)))
    mm = FusedMatmul(a, b, allow_unfused=True)
    mm.plan(epilog="RELU_BIAS", epilog_inputs={"bias": bias}, options={"compute_type": "COMPUTE_32F_FAST_16F"})
    want, _, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="relu")
    assert np.linalg.norm(gpu.get(mm.execute()) - want) <= 2 * bound("float16", k) * np.linalg.norm(parts)
    mm.free()
    a, b, bias = (make(gpu, rng, s, "float32") for s in ((m, k), (k, n), (1, n)))
    mm = FusedMatmul(a, b, options={"compute_type": "COMPUTE_32F_FAST_16F"})
    mm.plan(epilog="RELU_BIAS", epilog_inputs={"bias": bias})
    want, _z, parts = forward_reference(gpu.get(a), gpu.get(b), bias=gpu.get(bias), activation="relu")
    limit = 2 * (product_bound("float32", "float32", k) + 2 * unit_roundoff("float16"))
    assert np.linalg.norm(gpu.get(mm.execute()) - want) <= limit * np.linalg.norm(parts)
    mm.free()


def test_nvmath_enumerators_are_understood(gpu, rng):
    from nvmath.linalg.advanced import MatmulEpilog

    assert {e.name: int(e) for e in MatmulEpilog} == {e.name: int(e) for e in Epilog}
    a, b = make(gpu, rng, (8, 16), "float16"), make(gpu, rng, (16, 8), "float16")
    mm = FusedMatmul(a, b).plan(epilog=MatmulEpilog.RELU)
    assert mm.fused
    assert gpu.get(mm.execute()).min() >= 0


def test_relu_of_zero_minus_zero_and_nan(gpu):
    """The corner cases of the mask and of ReLU are what the NumPy meaning says."""
    a = gpu.put(np.array([[0.0], [-0.0], [1.0], [-1.0], [np.inf], [-np.inf], [np.nan]], "float32"))
    b = gpu.put(np.ones((1, 8), "float32"))
    out, mask = fused_matmul(a, b, activation="relu", aux=True)
    host, host_mask = fused_matmul(gpu.get(a).astype("f4"), np.ones((1, 8), "f4"), activation="relu", aux=True)
    assert np.array_equal(gpu.get(out), host, equal_nan=True)
    assert np.array_equal(gpu.get(mask.unpack()), host_mask.unpack())
    assert np.array_equal(gpu.get(mask.raw())[:, :1], host_mask.raw()[:, :1])


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


@pytest.mark.skipif(not HAVE["cupy"], reason="needs cupy")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mlp_element_by_element(rng, activation, dtype):
    import cupy

    for sizes in ([16, 64, 30, 8], [256, 512, 264, 8], [1, 30, 1, 5], [8, 1, 3]):
        mlp = FusedMLP(sizes, activation=activation, dtype=dtype, package_name="cupy", seed=int(rng.integers(2**31)))
        for lead in ((1,), (17,), (2, 65)):
            x, dy = rng.standard_normal((*lead, sizes[0])), rng.standard_normal((*lead, sizes[-1]))
            x, dy = cupy.asarray(x.astype(dtype)), cupy.asarray(dy.astype(dtype))
            own = functools.partial(own_error, kind=dtype)
            check_mlp(mlp, activation, dtype, x, dy, lambda a: cupy.asnumpy(a).astype(float), own)


@pytest.mark.skipif(not HAVE["cupy"], reason="needs cupy")
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_single_layer_backward(rng, activation):
    import cupy

    ours = FusedLinear(48, 30, activation=activation, dtype="float32", package_name="cupy", compute_type="32f")
    host = FusedLinear(48, 30, activation=activation, dtype="float64")
    host.weight, host.bias = (cupy.asnumpy(p).astype(float) for p in (ours.weight, ours.bias))
    for turn in range(4):  # from the second time on, and again after a new weight, the short way is taken
        if turn == 2:
            host.weight = host.weight * -2
            ours.weight = cupy.asarray(host.weight.astype("f4"))
        x, dy = rng.standard_normal((2, 9, 48)).astype("f4"), rng.standard_normal((2, 9, 30)).astype("f4")
        wide, flat = x.reshape(-1, 48).astype(float), abs(dy.reshape(-1, 30).astype(float))
        z = wide @ host.weight.T + host.bias
        own = own_error(z, "float32") if activation == "gelu" else np.zeros_like(z)
        y, want = ours.forward(cupy.asarray(x)), host.forward(x.astype(float))
        assert np.linalg.norm(cupy.asnumpy(y) - want) <= 1e-5 * np.linalg.norm(want) + np.linalg.norm(own)
        # The derivative is this package's own, in which tanh is exact to the last places.
        own = flat * (gelu_error(z, "float32", derivative=True, tanh=exact_tanh) if activation == "gelu" else 0.0)
        spread = (own @ abs(host.weight), own.T @ abs(wide), own.sum(0))
        gradients = ours.backward(cupy.asarray(dy)), host.backward(dy.astype(float))
        for one, other, off in zip(*gradients, spread, strict=True):
            assert one.shape == other.shape
            assert np.linalg.norm(cupy.asnumpy(one) - other) <= 1e-5 * np.linalg.norm(other) + np.linalg.norm(off)
    (call,) = ours._calls.values()
    assert call.backward is not None
