"""`@devkernels.kernel` and images on a GPU: all kinds of arrays, scalars and streams; limits, graphs, threads."""

import threading

import cupy as cp
import numpy as np
import pytest
from numba import cuda, float32, float64

import devkernels
from devkernels.errors import (
    ArgumentError,
    ArgumentTypeError,
    DevkernelsError,
    ResourceError,
)
from devkernels.launch import driver, limits

torch = pytest.importorskip("torch")

N = 1000
BLOCK = 128
GRID = -(-N // BLOCK)


@devkernels.kernel(signature="void(float32[::1], float32[::1], float32, int32)")
def axpy(x, y, a, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + float32(1)


@devkernels.kernel
def flexible(x, y, a):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = a * x[i]


@devkernels.kernel(signature="void(complex64[:,::1], complex64[:,:], complex64[::1,:], boolean, complex64, int64)")
def layouts(c, a, f, negate, factor, shift):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        value = factor * a[i, j] + f[i, j] + shift
        c[i, j] = -value if negate else value


def data(rng, shape=N, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def nan(shape=N, dtype=np.float32):
    return cp.full(shape, np.nan, dtype=dtype)


def assert_axpy(y, x, a):
    """y is a * x + 1, rounded at most twice (a fused multiply-add rounds once)."""
    y, product = np.asarray(y, np.float64), np.float64(np.float32(a)) * np.asarray(x, np.float64)
    assert not np.isnan(y).any()
    assert (np.abs(y - (product + 1)) <= 2.0**-24 * (2 * np.abs(product) + 1)).all()


class Interface:
    """An array of a library that nobody has heard of; it may say which stream writes it."""

    def __init__(self, array, stream=None):
        self.array, self.stream = array, stream

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, "stream": self.stream}


class OnlyDLPack:
    """The same, with DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def numba_array(array):
    return cuda.as_cuda_array(array)


def torch_array(array):
    return torch.as_tensor(array, device="cuda")


@pytest.mark.parametrize(
    "wrap", [lambda a: a, torch_array, numba_array, Interface, OnlyDLPack],
    ids=["cupy", "torch", "numba", "interface", "dlpack"],
)  # fmt: skip
@pytest.mark.parametrize("bound", [False, True])
def test_arrays_of_every_library(rng, wrap, bound):
    x, y = data(rng), nan()
    source = cp.asarray(x)
    cp.cuda.Device().synchronize()
    launch = axpy[GRID, BLOCK]
    if bound:
        launch.bind(wrap(source), wrap(y), 2.5, N)()
    else:
        launch(wrap(source), wrap(y), 2.5, N)
    cp.cuda.Device().synchronize()
    assert_axpy(cp.asnumpy(y), x, 2.5)
    np.testing.assert_array_equal(cp.asnumpy(source), x)


@pytest.mark.parametrize("a", [2, 2.5, np.float32(2.5), np.float64(2.5), np.int64(3), True])
@pytest.mark.parametrize("n", [N, np.int32(N), np.uint8(200), 0])
def test_scalars_by_the_signature(rng, a, n):
    x, y = data(rng), nan()
    axpy[GRID, BLOCK](cp.asarray(x), y, a, n)
    got = cp.asnumpy(y)
    assert_axpy(got[:n], x[:n], a)
    assert np.isnan(got[n:]).all()


@pytest.mark.parametrize("negate", [False, True, np.bool_(True)])
def test_layouts_strides_complex_and_boolean(rng, negate):
    shape, factor, shift = (37, 21), 1.5 - 2j, -3
    a = (rng.standard_normal((37, 42)) + 1j * rng.standard_normal((37, 42))).astype(np.complex64)
    f = np.asfortranarray((rng.standard_normal(shape) + 1j).astype(np.complex64))
    c = nan(shape, np.complex64)
    layouts[(2, 2), (32, 16)](c, cp.asarray(a)[:, ::2], cp.asarray(f, order="F"), negate, factor, shift)
    want = (-1 if negate else 1) * (factor * a[:, ::2].astype(complex) + f + shift)
    assert np.linalg.norm(cp.asnumpy(c) - want) <= 1e-6 * np.linalg.norm(want)
    t = torch.full(shape, float("nan"), dtype=torch.complex64, device="cuda")
    strided, fortran = torch_array(a)[:, ::2], torch_array(np.ascontiguousarray(f.T)).T
    layouts[(2, 2), (32, 16)](t, strided, fortran, bool(negate), factor, shift)
    assert np.linalg.norm(t.cpu().numpy() - want) <= 1e-6 * np.linalg.norm(want)


def test_tuples_and_small_types(rng):
    @devkernels.kernel(signature="void(int8, UniTuple(float32, 2), float16[::1], uint16, float64[::1], float16)")
    def mixed(k, pair, h, u, out, half):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = k + pair[0] * float64(h[i]) + pair[1] + u + float64(half)

    h, out = cp.asarray(data(rng, 64, np.float16)), nan(64, np.float64)
    mixed[1, 64](-5, (0.5, 2), h, 65535, out, np.float16(0.25))
    want = -5 + 0.5 * cp.asnumpy(h).astype(np.float64) + 2 + 65535 + 0.25
    np.testing.assert_allclose(cp.asnumpy(out), want, rtol=1e-6)


def test_inferred_signatures(rng):
    for dtype, factor in ((np.float32, 2.0), (np.float64, 2.0), (np.int32, 3), (np.complex64, 1j)):
        x = (10 * rng.standard_normal(N)).astype(dtype)
        y = cp.zeros(N, dtype)
        flexible[GRID, BLOCK](cp.asarray(x), y, factor)
        np.testing.assert_allclose(cp.asnumpy(y), (factor * x).astype(dtype), rtol=1e-6)
    x = data(rng, 2 * N)
    y = nan()
    flexible[GRID, BLOCK](cp.asarray(x)[::2], y, 2.0)  # another layout: another kernel
    np.testing.assert_allclose(cp.asnumpy(y), 2 * x[::2], rtol=1e-6)


def test_integers_stay_integers_after_a_call_with_floats():
    @devkernels.kernel
    def keep(out, value):
        out[0] = value

    out = cp.zeros(1, np.int64)
    keep[1, 1](out, 1.0)
    keep[1, 1](out, 2**53 + 1)  # as a double it would lose its last bit
    assert int(out[0]) == 2**53 + 1


BAD = [
    ("dtype", lambda x, y: (x.astype(np.float64), y, 1, N), ArgumentTypeError, "argument x has dtype float64"),
    ("rank", lambda x, y: (x, y.reshape(2, -1), 1, N), ArgumentError, "argument y has 2 dimensions"),
    ("layout", lambda x, y: (x, y[::2], 1, N), ArgumentError, "argument y is not contiguous in C order"),
    ("host", lambda x, y: (cp.asnumpy(x), y, 1, N), ArgumentTypeError, "argument x must be .*numpy.ndarray"),
    ("list", lambda x, y: (x, [0.0] * N, 1, N), ArgumentTypeError, "argument y must be"),
    ("none", lambda x, y: (x, None, 1, N), ArgumentTypeError, "argument y must be"),
    ("torch on the host", lambda x, y: (torch.zeros(N), y, 1, N), ArgumentTypeError, "argument x must be .*host"),
    ("torch dtype", lambda x, y: (torch_array(x).double(), y, 1, N), ArgumentTypeError, "argument x has dtype"),
    ("misaligned", lambda x, y: (cp.ndarray(N - 1, np.float32, x.data + 2), y, 1, N - 1), ArgumentError, "address"),
    ("float for int", lambda x, y: (x, y, 1, 2.5), ArgumentTypeError, "argument n must be an int32"),
    ("complex for float", lambda x, y: (x, y, 1j, N), ArgumentTypeError, "argument a must be"),
    ("text", lambda x, y: (x, y, "1", N), ArgumentTypeError, "argument a must be"),
    ("device scalar", lambda x, y: (x, y, x[0], N), ArgumentTypeError, "argument a must be"),
    ("too large", lambda x, y: (x, y, 1, 2**31), ArgumentError, "argument n=2147483648 does not fit"),
    ("too few", lambda x, y: (x, y, 1), ArgumentTypeError, "takes 4 arguments"),
    ("too many", lambda x, y: (x, y, 1, N, N), ArgumentTypeError, "takes 4 arguments"),
]  # fmt: skip


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("name", "make", "kind", "message"), BAD, ids=[case[0] for case in BAD])
def test_bad_arguments_are_refused_and_nothing_is_written(rng, warm, name, make, kind, message):
    x, y = cp.asarray(data(rng)), nan()
    launch = axpy[(GRID + 1 + warm, 1), BLOCK]
    if warm:
        launch(x, nan(), 1, N)
    arguments = make(x, y)
    with pytest.raises(kind, match=message):
        launch(*arguments)
    with pytest.raises(kind, match=message):
        launch.bind(*arguments)
    assert bool(cp.isnan(y).all())


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ((1,), ArgumentTypeError, "grid, block"),
        ((0, 1), ArgumentError, "at least 1"),
        ((1, (1, 2, 3, 4)), ArgumentError, "one to three"),
        ((1.5, 1), ArgumentTypeError, "integer"),
        ((1, 1025), ResourceError, "1024"),
        ((1, (1, 1, 65)), ResourceError, "64"),
        (((1, 65536), 1), ResourceError, "65535"),
        ((1, (32, 33)), ResourceError, "1056 threads"),
        ((1, 32, "stream"), ArgumentTypeError, "stream"),
        ((1, 32, 0, -1), ArgumentError, "negative"),
    ],
)
def test_bad_configurations(key, kind, message):
    x = nan()
    with pytest.raises(kind, match=message):
        axpy[key](x, x, 1, N)


def make_register_hog():
    @devkernels.kernel(signature="void(float64[::1], float64[::1], int32)")
    def hog(x, y, n):
        kept = cuda.local.array(48, float64)
        i = cuda.grid(1)
        for k in range(48):
            kept[k] = x[(i + k * 7) % 1024]
        for _ in range(n):
            for k in range(48):
                kept[k] = kept[k] * kept[(k + 1) % 48] + 1.0
        total = 0.0
        for k in range(48):
            total += kept[k]
        y[i] = total

    return hog


def test_too_many_registers_are_said_before_the_launch():
    hog = make_register_hog()
    x, y = cp.ones(1024), nan(1024, np.float64)
    image = hog.compile()
    assert image.registers > 64
    fits = limits.max_threads(image.registers)
    with pytest.raises(ResourceError, match=f"{image.registers} registers each.*Launch at most {fits}"):
        hog[1, 1024](x, y, 1)
    assert bool(cp.isnan(y).all())
    hog[1, fits](x, y, 1)
    assert not bool(cp.isnan(y[:fits]).any())


def test_launch_bounds_are_said_before_the_launch():
    @devkernels.kernel(signature="void(float32[::1])", launch_bounds=64)
    def bounded(x):
        x[cuda.grid(1)] = 1

    x = nan()
    with pytest.raises(ResourceError, match="launch_bounds=64"):
        bounded[1, 65](x)
    bounded[1, 64](x)
    assert int(cp.isnan(x).sum()) == N - 64


def test_large_dynamic_shared_memory_is_opted_in_to(rng):
    @devkernels.kernel(signature="void(float32[::1], float32[::1], int32)")
    def reverse(x, y, n):
        shared = cuda.shared.array(0, float32)
        own = cuda.shared.array(256, float32)
        t = cuda.threadIdx.x
        own[t % 256] = 0
        for i in range(t, n, cuda.blockDim.x):
            shared[i] = x[i]
        cuda.syncthreads()
        for i in range(t, n, cuda.blockDim.x):
            y[i] = shared[n - 1 - i] + own[0]

    most = driver.max_shared_bytes(0)
    static = reverse.compile().shared_bytes
    assert static == 1024
    n = (most - static) // 4
    x, y = cp.asarray(data(rng, n)), nan(n)
    reverse[1, 512, 0, 4 * n](x, y, n)
    np.testing.assert_array_equal(cp.asnumpy(y), cp.asnumpy(x)[::-1])
    with pytest.raises(ResourceError, match=f"at most {most - static} dynamic bytes fit"):
        reverse[1, 512, 0, 4 * n + 4](x, y, n)


def test_resource_numbers_equal_the_drivers():
    @devkernels.kernel(signature="void(float32[::1], int32)")
    def spills(x, n):
        table = cuda.local.array(200, float32)
        shared = cuda.shared.array(300, float32)
        for k in range(200):
            table[(k * n) % 200] = x[k]
        shared[cuda.threadIdx.x % 300] = table[n % 200]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = shared[(n + cuda.threadIdx.x) % 300]

    for kernel in (axpy, layouts, spills, make_register_hog()):
        image = kernel.compile()
        function = driver.Function(image.cubin, image.symbol, 0)
        assert function.registers == image.registers
        assert function.local_bytes == image.local_bytes
        if image.shared_bytes:  # without any, the driver reports what the system reserves
            assert function.static_shared_bytes == image.shared_bytes
        assert function.max_threads == limits.max_threads(image.registers)
    assert spills.compile().local_bytes > 0


def test_grid_synchronisation(rng):
    @devkernels.kernel(signature="void(int32[::1], int32[::1])")
    def rotate(x, y):
        i = cuda.grid(1)
        x[i] = i
        cuda.cg.this_grid().sync()
        y[i] = x[(i + cuda.blockDim.x) % x.shape[0]]

    blocks = 64
    x, y = cp.full(blocks * 64, -1, np.int32), cp.full(blocks * 64, -1, np.int32)
    rotate[blocks, 64](x, y)
    np.testing.assert_array_equal(cp.asnumpy(y), np.roll(np.arange(blocks * 64), -64))
    with pytest.raises(ResourceError, match="must run at once"):
        rotate[10**6, 64](x, y)


STREAMS = {
    "cupy": lambda: cp.cuda.Stream(non_blocking=True),
    "torch": lambda: torch.cuda.Stream(),
    "numba": lambda: cuda.stream(),
    "integer": lambda: cp.cuda.Stream(non_blocking=True),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_explicit_streams(rng, kind):
    stream = STREAMS[kind]()
    given = stream.ptr if kind == "integer" else stream
    x, y = cp.asarray(data(rng)), nan()
    cp.cuda.Device().synchronize()
    axpy[GRID, BLOCK, given](x, y, 2, N)
    stream.synchronize()
    assert_axpy(cp.asnumpy(y), cp.asnumpy(x), 2)


def test_cuda_core_stream(rng):
    core = pytest.importorskip("cuda.core")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    x, y = cp.asarray(data(rng)), nan()
    cp.cuda.Device().synchronize()
    axpy[GRID, BLOCK, stream](x, y, 2, N)
    stream.sync()
    assert_axpy(cp.asnumpy(y), cp.asnumpy(x), 2)


@pytest.mark.parametrize("bound", [False, True])
def test_cupy_graph_shows_that_the_current_stream_is_used(rng, bound):
    """What is captured has gone to CuPy's current stream, and nowhere else."""
    x, y = cp.asarray(data(rng)), nan()
    axpy[GRID, BLOCK](x, nan(), 2, N)
    launch = axpy[GRID, BLOCK].bind(x, y, 2, N) if bound else lambda: axpy[GRID, BLOCK](x, y, 2, N)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        launch()
        graph = stream.end_capture()
    cp.cuda.Device().synchronize()
    assert bool(cp.isnan(y).all())
    graph.launch(stream)
    stream.synchronize()
    assert_axpy(cp.asnumpy(y), cp.asnumpy(x), 2)


def fresh_kernel():
    """A kernel that no other test has loaded."""

    @devkernels.kernel(signature="void(float32[::1], float32[::1], float32, int32)")
    def axpy_of_its_own(x, y, a, n):
        shared = cuda.shared.array(0, float32)
        i = cuda.grid(1)
        if i < n:
            shared[cuda.threadIdx.x] = a * x[i]
            y[i] = shared[cuda.threadIdx.x] + float32(1)

    return axpy_of_its_own


@pytest.mark.parametrize("shared", [4 * BLOCK, 100 << 10])
def test_first_launch_of_all_inside_a_capture_of_cupy(rng, shared):
    """The kernel is compiled, loaded, and opts in to its shared memory while the stream is captured."""
    x, y = cp.asarray(data(rng)), nan()
    kernel = fresh_kernel()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        kernel[GRID, BLOCK, None, shared](x, y, 2, N)
        graph = stream.end_capture()
    cp.cuda.Device().synchronize()
    assert bool(cp.isnan(y).all())
    graph.launch(stream)
    stream.synchronize()
    assert_axpy(cp.asnumpy(y), cp.asnumpy(x), 2)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_first_launch_of_all_inside_a_capture_of_torch(rng, mode):
    """Even where the capture forbids the whole process what it calls unsafe."""
    x = torch_array(data(rng))
    y = torch.full((N,), float("nan"), device="cuda")
    kernel = fresh_kernel()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        kernel[GRID, BLOCK, None, 100 << 10](x, y, 2, N)
    torch.cuda.synchronize()
    assert bool(torch.isnan(y).all())
    graph.replay()
    torch.cuda.synchronize()
    assert_axpy(y.cpu().numpy(), x.cpu().numpy(), 2)


@pytest.mark.parametrize("bound", [False, True])
def test_torch_graph_shows_that_the_current_stream_is_used(rng, bound):
    x = torch_array(data(rng))
    y = torch.full((N,), float("nan"), device="cuda")
    axpy[GRID, BLOCK](x, y.clone(), 2, N)
    launch = axpy[GRID, BLOCK].bind(x, y, 2, N) if bound else lambda: axpy[GRID, BLOCK](x, y, 2, N)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    torch.cuda.synchronize()
    assert bool(torch.isnan(y).all())
    graph.replay()
    torch.cuda.synchronize()
    assert_axpy(y.cpu().numpy(), x.cpu().numpy(), 2)


def numba_on(array, stream):
    """An array of Numba that says which stream writes it."""
    return cuda.as_cuda_array(Interface(array, stream), sync=False)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("wrap", [Interface, numba_on], ids=["interface", "numba"])
def test_waits_for_the_stream_that_an_array_names(bound, wrap):
    """A slow producer on one stream, our launch on another."""
    producer, consumer = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    size = 1 << 26
    x, y = cp.zeros(size, np.float32), nan(size)
    cp.cuda.Device().synchronize()
    with producer:
        for _ in range(20):
            x += 1
    if bound:
        launch = axpy[-(-size // BLOCK), BLOCK, consumer].bind(wrap(x, producer.ptr), y, 1, size)
        launch()
        with producer:
            for _ in range(20):
                x += 1
            x -= 20
        launch()
    else:
        axpy[-(-size // BLOCK), BLOCK, consumer](wrap(x, producer.ptr), y, 1, size)
    consumer.synchronize()
    assert bool((y == 21).all())


@pytest.mark.parametrize("bound", [False, True])
def test_arrays_of_numba_are_launched_on_the_stream_that_they_name(bound):
    """Each launch reads what a slow producer has put on that stream before it, also when the short way is taken."""
    stream, size = cp.cuda.Stream(non_blocking=True), 1 << 26
    x, results = cp.zeros(size, np.float32), [nan(size) for _ in range(3)]
    cp.cuda.Device().synchronize()
    launch = axpy[-(-size // BLOCK), BLOCK]
    source = numba_on(x, stream.ptr)
    runs = [(source, numba_on(y, stream.ptr), 1, size) for y in results]
    if bound:
        runs = [launch.bind(*values) for values in runs]
    for run in runs:
        with stream:
            for _ in range(20):
                x += 1
        run() if bound else launch(*run)
    stream.synchronize()
    assert [float(y.min()) for y in results] == [float(y.max()) for y in results] == [21, 41, 61]


def test_lazily_conjugated_tensors_are_refused():
    t = torch.ones((4, 4), dtype=torch.complex64, device="cuda")
    with pytest.raises(ArgumentError, match="resolve_conj"):
        layouts[1, (4, 4)](t.conj(), t, t.T, False, 1, 0)


@pytest.mark.parametrize("warm", [False, True])
def test_lazily_negated_tensors_are_refused(warm):
    x = torch.ones(N, device="cuda")
    launch = axpy[GRID + 3, BLOCK]
    if warm:
        launch(x, x.clone(), 1, N)
    with pytest.raises(ArgumentError, match="resolve_neg"):
        launch(torch._neg_view(x), x.clone(), 1, N)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_shapes_libraries_and_streams_may_change_from_call_to_call(rng, library):
    """One configuration for everything: what was remembered of the last call must not leak into the next."""
    wrap = torch_array if library == "torch" else cp.asarray
    launch = flexible[GRID, BLOCK]
    for n in (N, 17, N, 999, 1, 17):
        x, y = data(rng, n), cp.full(n, np.nan, np.float32)
        launch(wrap(x), wrap(y) if library == "torch" else y, 3.0)
        np.testing.assert_array_equal(cp.asnumpy(y), np.float32(3) * x)
        other = cp.full(n, np.nan, np.float32)
        launch(cp.asarray(x)[::1], other, 3.0)
        launch(torch_array(x), torch_array(other), 3.0)
        np.testing.assert_array_equal(cp.asnumpy(other), np.float32(3) * x)


def test_configurations_with_stream_objects_are_found_again(rng):
    stream = cp.cuda.Stream(non_blocking=True)
    assert axpy[GRID, BLOCK, stream] is axpy[GRID, BLOCK, stream] is axpy[GRID, BLOCK, stream.ptr]
    x, y = cp.asarray(data(rng)), nan()
    cp.cuda.Device().synchronize()
    for _ in range(3):
        axpy[GRID, BLOCK, stream](x, y, 2, N)
    stream.synchronize()
    assert_axpy(cp.asnumpy(y), cp.asnumpy(x), 2)


def test_other_threads(rng):
    """Threads without a context of their own; each launches with its own arguments at the same time."""
    sources = [data(rng) for _ in range(8)]
    outputs = [nan() for _ in sources]
    inputs = [cp.asarray(x) for x in sources]
    launch = axpy[GRID, BLOCK]
    cp.cuda.Device().synchronize()
    failures = []

    def work(k):
        try:
            for _ in range(200):
                launch(inputs[k], outputs[k], k, N)
        except DevkernelsError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cp.cuda.Device().synchronize()
    assert failures == []
    for k, x in enumerate(sources):
        assert_axpy(cp.asnumpy(outputs[k]), x, k)


def test_arrays_may_be_dropped_after_the_launch(rng):
    out = nan()
    for k in range(50):
        axpy[GRID, BLOCK](cp.full(N, k, np.float32), out, 1, N)
    assert bool((out == 50).all())


def test_bound_arguments_keep_their_arrays(rng):
    x = data(rng)
    out = nan()
    bound = axpy.bind(cp.asarray(x), out, 2, N)[GRID, BLOCK]
    for _ in range(10):  # would reuse the memory of the source if nobody held it
        cp.full(N, np.nan, np.float32)
    bound()
    assert_axpy(cp.asnumpy(out), x, 2)


def test_kernels_without_arrays():
    @devkernels.kernel(signature="void(int32)")
    def nothing(n):
        pass

    nothing[1, 1](2**31 - 1)
    nothing[1, 1].bind(7)()
    cp.cuda.Device().synchronize()
