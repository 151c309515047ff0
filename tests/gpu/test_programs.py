"""Whole programs on a GPU: device functions in kernels, images without a compiler, second processes."""

import os
import subprocess
import sys

import cupy as cp
import numpy as np
import pytest
from numba import cuda

import devkernels
from bench._image_factory import two_ffts
from devkernels import cache
from devkernels.errors import ImageError, JitDisabledError
from devkernels.launch import driver
from tests.ready_factories import READY


def nan(shape, dtype=np.float32):
    return cp.full(shape, np.nan, dtype=dtype)


def data(rng, shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("how", ["devkernels", "numba"])
def test_device_functions_through_both_decorators(rng, how):
    rows, size = 33, 256
    forward, function = two_ffts(size)
    x = (rng.standard_normal((rows, size)) + 1j * rng.standard_normal((rows, size))).astype(np.complex64)
    h = (rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(np.complex64)
    y = nan((rows, size), np.complex64)
    kernel = devkernels.kernel(function) if how == "devkernels" else cuda.jit(function)
    kernel[forward.launch(rows=rows)](cp.asarray(x), cp.asarray(h), y)
    want = size * np.fft.ifft(np.fft.fft(x.astype(complex)) * h)
    assert np.linalg.norm(cp.asnumpy(y) - want) <= 1e-6 * np.linalg.norm(want)


def run(code, *arguments, timeout=300, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1"} | environment,
        capture_output=True, text=True, check=False, timeout=timeout,
    )  # fmt: skip


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "numba_cuda", "llvmlite", "nvmath", "libmathdx"}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
"""


def test_image_in_a_process_without_any_compiler(rng, tmp_path):
    forward, function = two_ffts(128)
    image = devkernels.compile(
        function, "void(complex64[:,::1], complex64[::1], complex64[:,::1])",
        notes={"launch": [list(part) if isinstance(part, tuple) else part for part in forward.launch(rows=50)]},
    )  # fmt: skip
    path = image.save(tmp_path / "conv.dkimage")
    np.savez(tmp_path / "data.npz", x=data(rng, (50, 256)).view(np.complex64), h=data(rng, 256).view(np.complex64))
    code = (
        BLOCKED
        + f"""
import cupy as cp, numpy as np, devkernels
stored = np.load({str(tmp_path / "data.npz")!r})
x, h = stored["x"], stored["h"]
k = devkernels.load_image({str(path)!r})
grid, block, _, shared = k.image.notes["launch"]
y = cp.full_like(cp.asarray(x), np.nan)
k[grid, block, None, shared](cp.asarray(x), cp.asarray(h), y)
want = 128 * np.fft.ifft(np.fft.fft(x.astype(complex)) * h)
error = np.linalg.norm(cp.asnumpy(y) - want) / np.linalg.norm(want)
assert error < 1e-6, error
assert not [n for n in ("numba", "llvmlite", "nvmath") if n in sys.modules]
print("fine", k.image.registers)
"""
    )
    result = run(code)
    assert result.stdout == f"fine {image.registers}\n", result.stderr


def test_image_for_another_architecture(tmp_path):
    def double(x):
        x[cuda.grid(1)] *= 2

    image = devkernels.compile(double, "void(float32[::1])", "sm_80" if driver.architecture(0).major != 8 else "sm_90")
    with pytest.raises(ImageError, match="--target"):
        devkernels.load_image(image.save(tmp_path / "other.dkimage"))


SECOND = """
import sys, cupy as cp, numpy as np
import devkernels
from devkernels import cache
from bench._image_factory import two_ffts
forward, function = two_ffts(64)
kernel = devkernels.kernel(function)
x = cp.random.standard_normal((4, 128)).astype(np.float32).view(np.complex64)
h, y = x[0].copy(), cp.full_like(x, np.nan)
kernel[forward.launch(rows=4)](x, h, y)
want = 64 * cp.fft.ifft(cp.fft.fft(x) * h)
assert float(cp.linalg.norm(y - want) / cp.linalg.norm(want)) < 1e-5
print(cache.counts()["builds"])
"""


def test_second_process_compiles_nothing(tmp_path):
    environment = {"DEVKERNELS_CACHE_DIR": str(tmp_path / "cache")}
    first = run(SECOND, **environment)
    assert first.returncode == 0, first.stderr
    assert int(first.stdout) == 3  # two device functions and the kernel
    second = run(SECOND, DEVKERNELS_DISABLE_JIT="1", **environment)
    assert second.returncode == 0, second.stderr
    assert int(second.stdout) == 0


def test_sixteen_processes_at_once_compile_each_function_once(tmp_path):
    """All start on an empty cache; two device functions and the kernel are built by one of them each."""
    environment = os.environ | {
        "PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1", "DEVKERNELS_CACHE_DIR": str(tmp_path)}  # fmt: skip
    code = SECOND.replace("print(", "print(cache.counts('ltoir')['builds'], cache.counts('kernel')['builds'], ")
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(16)
    ]  # fmt: skip
    answers = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * 16, [error[-500:] for _, error in answers]
    functions, kernels, all_builds = zip(*(map(int, out.split()) for out, _ in answers), strict=True)
    assert (sum(functions), sum(kernels), sum(all_builds)) == (2, 1, 3)


def test_disabled_jit_names_the_kernel(monkeypatch):
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")

    @devkernels.kernel
    def never_seen_before(x, salt):
        x[cuda.grid(1)] = salt + 424242

    before = cache.counts()["builds"]
    with pytest.raises(JitDisabledError, match="kernel never_seen_before") as caught:
        never_seen_before[1, 32](nan(32), 1)
    assert "never_seen_before" in str(caught.value.spec)
    assert cache.counts()["builds"] == before


WARM = """
import sys, cupy as cp, numpy as np
import devkernels
from devkernels import cache, cuda

forward = devkernels.fft(fft_type="c2c", size=64, precision=np.float32, direction="forward")
storage, value_type = forward.storage_size, forward.value_type

@devkernels.kernel
def transform(x, y):
    thread_data = cuda.local.array(storage, value_type)
    shared = cuda.shared.array(0, value_type)
    row = forward.row()
    forward.load(x, row, thread_data)
    forward(thread_data, shared)
    forward.store(thread_data, y, row)

x = cp.random.standard_normal((5, 128)).astype(np.float32).view(np.complex64)
y = cp.full_like(x, np.nan)
transform[forward.launch(rows=5)](x, y)
assert float(cp.linalg.norm(y - cp.fft.fft(x)) / cp.linalg.norm(y)) < 1e-5
z = devkernels.spectral_filter(x, cp.ones(64, np.complex64))
assert float(cp.linalg.norm(z - x) / cp.linalg.norm(x)) < 1e-5
rows, taps = np.random.default_rng().standard_normal((3, 500)).astype(np.float32), np.arange(1, 20, dtype=np.float32)
full = devkernels.fftconvolve(cp.asarray(rows), cp.asarray(taps))
want = np.stack([np.convolve(row.astype(float), taps) for row in rows])
assert np.linalg.norm(cp.asnumpy(full) - want) / np.linalg.norm(want) < 1e-5
for dtype in (np.float16, np.float32):  # small integers: exact
    a, b = (np.random.default_rng().integers(-3, 4, shape).astype(dtype) for shape in ((64, 96), (96, 128)))
    np.testing.assert_array_equal(cp.asnumpy(devkernels.gemm(cp.asarray(a), cp.asarray(b))), a.astype(float) @ b)
print(cache.counts()["builds"], *[name for name in ("numba", "llvmlite", "nvmath") if name in sys.modules])
"""


def test_a_warm_program_imports_no_compiler(tmp_path):
    environment = {"DEVKERNELS_CACHE_DIR": str(tmp_path)}
    first = run(WARM, **environment)
    assert first.returncode == 0, first.stderr
    assert int(first.stdout.split()[0]) > 0
    second = run(WARM, DEVKERNELS_DISABLE_JIT="1", **environment)
    assert second.returncode == 0, second.stderr
    assert second.stdout.split() == ["0"]


NVMATH = """
import cupy as cp, numpy as np
import devkernels
from devkernels import cache, cuda
from nvmath.device import FFT, float32x2, float32x2_type

fft = FFT(fft_type="c2c", size=64, precision=np.float32, direction="forward", execution="Block", ffts_per_block=1)
storage, stride, count = fft.storage_size, fft.stride, fft.elements_per_thread

@devkernels.kernel
def transform(x, y):
    thread_data = cuda.local.array(storage, float32x2_type)
    shared = cuda.shared.array(0, float32x2_type)
    row = cuda.blockIdx.x
    for i in range(count):
        a = x[row, cuda.threadIdx.x + i * stride]
        thread_data[i] = float32x2(a.real, a.imag)
    fft.execute(thread_data, shared)
    for i in range(count):
        y[row, cuda.threadIdx.x + i * stride] = complex(thread_data[i].x, thread_data[i].y)

x = cp.random.standard_normal((5, 128)).astype(np.float32).view(np.complex64)
y = cp.full_like(x, np.nan)
transform[5, tuple(fft.block_dim), None, fft.shared_memory_size](x, y)
assert float(cp.linalg.norm(y - cp.fft.fft(x)) / cp.linalg.norm(y)) < 1e-5
print(cache.counts()["builds"])
"""


def test_kernels_with_nvmaths_own_objects_are_kept_too(tmp_path):
    pytest.importorskip("nvmath")
    environment = {"DEVKERNELS_CACHE_DIR": str(tmp_path)}
    first = run(NVMATH, **environment)
    assert first.returncode == 0, first.stderr
    assert int(first.stdout.split()[-1]) == 2  # the transform and the kernel
    second = run(NVMATH, DEVKERNELS_DISABLE_JIT="1", **environment)
    assert second.returncode == 0, second.stderr
    assert second.stdout.split()[-1] == "0"


FUNCTIONS = """
import sys, cupy as cp, numpy as np
from nvmath.device import FFT, float32x2, float32x2_type
import devkernels
from devkernels import cache, cuda

fft = FFT(fft_type="c2c", size=64, precision=np.float32, direction="forward", execution="Block", ffts_per_block=1)
storage, stride, count = fft.storage_size, fft.stride, fft.elements_per_thread


def transform(factor):
    @devkernels.kernel
    def kernel(x, y):
        thread_data = cuda.local.array(storage, float32x2_type)
        shared = cuda.shared.array(0, float32x2_type)
        row = cuda.blockIdx.x
        for i in range(count):
            a = x[row, cuda.threadIdx.x + i * stride]
            thread_data[i] = float32x2(factor * a.real, factor * a.imag)
        fft.execute(thread_data, shared)
        for i in range(count):
            y[row, cuda.threadIdx.x + i * stride] = complex(thread_data[i].x, thread_data[i].y)

    return kernel


x = cp.random.standard_normal((5, 128)).astype(np.float32).view(np.complex64)
for factor in map(np.float32, sys.argv[1:]):
    y = cp.full_like(x, np.nan)
    transform(factor)[5, tuple(fft.block_dim), None, fft.shared_memory_size](x, y)
    assert float(cp.linalg.norm(y - factor * cp.fft.fft(x)) / cp.linalg.norm(y)) < 1e-5
print(cache.counts("nvmath")["builds"], cache.counts("kernel")["builds"])
"""


PRODUCT = """
import sys, cupy as cp, numpy as np
from nvmath.device import Matmul
import devkernels
from devkernels import cache, cuda

N, AREA = 32, 32 * 32
mm = Matmul(
    size=(N, N, N), precision=(np.float32,) * 3, data_type="real", arrangement=("row_major",) * 3, execution="Block",
    block_size=128,
)


def product(factor):
    @devkernels.kernel(launch_bounds=128)
    def kernel(a, b, c):
        left = cuda.shared.array(AREA, np.float32, alignment=16)
        right = cuda.shared.array(AREA, np.float32, alignment=16)
        result = cuda.shared.array(AREA, np.float32, alignment=16)
        for i in range(cuda.threadIdx.x, AREA, cuda.blockDim.x):
            left[i], right[i], result[i] = a[i], b[i], 0
        cuda.syncthreads()
        mm.execute(factor, left, right, 0.0, result)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, AREA, cuda.blockDim.x):
            c[i] = result[i]

    return kernel


a, b = (np.random.default_rng().integers(-4, 5, (N, N)).astype(np.float32) for _ in range(2))
for factor in map(np.float32, sys.argv[1:]):
    c = cp.full(AREA, np.nan, np.float32)
    product(factor)[1, 128](cp.asarray(a.reshape(-1)), cp.asarray(b.reshape(-1)), c)
    np.testing.assert_array_equal(cp.asnumpy(c).reshape(N, N), factor * (a @ b))  # small integers: exact
print(cache.counts("nvmath")["builds"], cache.counts("kernel")["builds"])
"""


@pytest.mark.parametrize("program", [FUNCTIONS, PRODUCT], ids=["FFT", "Matmul"])
def test_functions_of_nvmath_are_compiled_once_for_all_kernels(tmp_path, program):
    """Two kernels in one process, and a third kernel in another process, call the same function of the library."""
    pytest.importorskip("nvmath")
    environment = {"DEVKERNELS_CACHE_DIR": str(tmp_path)}
    for factors, builds in (("1 2", "1 2"), ("3", "0 1"), ("1 2 3", "0 0")):
        result = run(program, *factors.split(), **environment)
        assert result.returncode == 0, result.stderr
        assert result.stdout.split() == builds.split(), (factors, result.stdout)


PIPELINE = """
import sys, time, cupy as cp, numpy as np
import nvmath.device
from nvmath.device import Matmul
from nvmath.device.common import make_tensor
from nvmath.device.cublasdx_backend import MAX_ALIGNMENT
import devkernels
from devkernels import cache, cuda

started = time.perf_counter()
devkernels.keep_nvmath_functions()
M, N, K, TILE_M, TILE_N, TILE_K = 256, 384, 128, 128, 128, 32
salt = int(sys.argv[1])  # another kernel for each, with the same results
mm = Matmul(
    size=(TILE_M, TILE_N, TILE_K), precision=(np.float16, np.float16, np.float32), data_type="real",
    arrangement=("row_major", "col_major", "row_major"), alignment=MAX_ALIGNMENT, execution="Block", block_size=128,
    with_pipeline=True, enable_input_streaming=True,
)
rng = np.random.default_rng()
a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((M, K), (N, K)))


@devkernels.kernel(launch_bounds=128)
def gemm(c, pipeline):
    shared = cuda.shared.array(shape=(0,), dtype=np.byte, alignment=pipeline.buffer_alignment)
    i, j = cuda.blockIdx.x, cuda.blockIdx.y
    tile = make_tensor(c[i * TILE_M : (i + 1) * TILE_M, j * TILE_N : (j + 1) * TILE_N], mm.get_layout_gmem_c(N))
    products = pipeline.get_tile(shared, i, j)
    accumulator = mm.suggest_accumulator()
    products.execute(accumulator)
    if accumulator.is_thread_active() and c.shape[1] > salt:
        accumulator.partition_and_copy(accumulator.get_results(), tile)
    products._del()


on_gpu = cp.full((M, N), np.nan, np.float32)
pipeline = mm.suggest_device_pipeline(2, cp.asarray(a), cp.asarray(b).T)
launch = gemm[(M // TILE_M, N // TILE_N), tuple(pipeline.block_dim), None, pipeline.buffer_size]
launch(on_gpu, pipeline)
want = a.astype(np.float64) @ b.T.astype(np.float64)  # small integers: exact in any order
np.testing.assert_array_equal(cp.asnumpy(on_gpu), want)
print(f"{time.perf_counter() - started:.1f} s", cache.counts("nvmath"), cache.counts("kernel"), file=sys.stderr)
print(cache.counts("nvmath")["builds"], cache.counts("kernel")["builds"])
"""


def test_pipelined_products_compile_each_function_once(tmp_path):
    """A kernel that takes a DevicePipeline; then another kernel; then both forbidden to compile anything."""
    pytest.importorskip("nvmath")
    environment = {"DEVKERNELS_CACHE_DIR": str(tmp_path)}
    first = run(PIPELINE, "1", timeout=900, **environment)  # a dozen compilations of libmathdx, one after the other
    assert first.returncode == 0, first.stderr
    print("empty cache:", first.stderr.splitlines()[-1])
    functions, kernels = map(int, first.stdout.split())
    assert (functions > 3, kernels) == (True, 1)  # nvmath asks for each several times
    for salt, disabled, builds in (("2", "0", "0 1"), ("1", "1", "0 0"), ("2", "1", "0 0")):
        later = run(PIPELINE, salt, timeout=900, DEVKERNELS_DISABLE_JIT=disabled, **environment)
        assert later.returncode == 0, later.stderr
        assert later.stdout.split() == builds.split(), (later.stdout, later.stderr)
        print("full cache:", later.stderr.splitlines()[-1])


SHIPPED = (
    BLOCKED
    + READY
    + """
import cupy as cp, numpy as np, devkernels
from devkernels import cache, reference

sys.path.insert(0, sys.argv[1] + "/..")
from ready_of_the_test import added, chain  # an image with a function of the user's is found by the function's text

devkernels.use_images(sys.argv[1])
rng = np.random.default_rng()

def wave(*shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

def real(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)

def error(got, want):
    got = cp.asnumpy(got).astype(want.dtype)
    return np.linalg.norm(got - want) / np.linalg.norm(want)

x = wave(5, 64)
for h in (wave(64), real(64), wave(5, 64)):  # the last: one H for each row
    assert error(filters()(cp.asarray(x), cp.asarray(h)), np.fft.ifft(np.fft.fft(x.astype(complex)) * h)) < 1e-6
assert error(devkernels.spectral_filter(cp.asarray(x), cp.ones(64, np.complex64)), x.astype(complex)) < 1e-6
rows = real(2, 3, 256)
for taps in (real(256), real(3, 256)):
    every = np.broadcast_to(taps, rows.shape)
    want = np.stack([[np.convolve(rows[b, c].astype(float), every[b, c])[:256] for c in range(3)] for b in range(2)])
    assert error(causal()(cp.asarray(rows), cp.asarray(taps)), want) < 1e-6
a, bias = real(256, 128, dtype=np.float16), real(64, dtype=np.float16)
for b in (real(128, 64, dtype=np.float16), real(64, 128, dtype=np.float16).T):
    there = cp.asarray(b) if b.flags.c_contiguous else cp.asarray(b.T).T
    sums = a.astype(float) @ b.astype(float) + bias
    assert error(product()(cp.asarray(a), there, extra=(cp.asarray(bias),)), sums / (1 + np.exp(-sums))) < 2e-3
a, b = real(2048, 1280), real(1280, 2048)
assert error(plain()(cp.asarray(a), cp.asarray(b)), a.astype(float) @ b.astype(float)) < 1e-6
a, b = real(64, 32), real(32, 64)  # few tiles
assert error(plain()(cp.asarray(a), cp.asarray(b)), a.astype(float) @ b.astype(float)) < 1e-6

def half(*shape):
    return real(*shape, dtype=np.float16)

def there(x):
    return cp.asarray(x) if x.flags.c_contiguous else cp.asarray(x.T).T

g, r, c = devkernels.make_gemm("float16", epilogue="residual"), half(256, 64), real(256, 64)
for a, b in ((half(256, 128), half(128, 64)), (half(256, 128), half(64, 128).T)):
    want = a.astype(float) @ b.astype(float) + r
    assert error(g(cp.asarray(a), there(b), extra=(cp.asarray(r),)), want) < 2e-3
    assert error(g(cp.asarray(a), there(b), cp.asarray(c), beta=2.0, extra=(cp.asarray(r),)), want + 2.0 * c) < 2e-3
a, b, weights = real(256, 128), real(128, 64), real(256)
got = devkernels.make_gemm("float32", epilogue=added)(cp.asarray(a), cp.asarray(b), extra=(cp.asarray(weights), 0.5))
assert error(got, (a.astype(float) @ b.astype(float)) * weights[:, None] + 0.5) < 1e-6
a, bias = half(512, 64), half(256)
for b, c in ((half(64, 256), half(256, 32)), (half(256, 64).T, half(32, 256).T)):
    b, c = (x / np.float16(8) for x in (b, c))
    sums = a.astype(float) @ b.astype(float) + bias
    want = (sums / (1 + np.exp(-sums))).astype(np.float16).astype(float) @ c.astype(float)
    assert error(chain()(cp.asarray(a), there(b), there(c), extra=(cp.asarray(bias),)), want) < 3e-3
print(cache.counts()["builds"], *[name for name in ("numba", "llvmlite", "nvmath") if name in sys.modules])
"""
)


def test_ready_kernels_from_images_in_a_process_without_any_compiler(tmp_path):
    """What a library ships: images that its own factories made, no compiler, compiling forbidden, an empty cache."""
    (tmp_path / "ready_of_the_test.py").write_text(READY)
    names = [f"ready_of_the_test:{name}" for name in ("filters", "causal", "product", "plain", "products")]
    build = ["-m", "devkernels.compiler.cli", "build", *names, "--quiet", "-o", str(tmp_path / "images"),
             "--target", str(driver.architecture(0))]  # fmt: skip
    built = subprocess.run(
        [sys.executable, *build], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_CACHE_DIR": str(tmp_path / "build")},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    environment = {"DEVKERNELS_CACHE_DIR": str(tmp_path / "cache"), "DEVKERNELS_DISABLE_JIT": "1"}
    result = run(SHIPPED, str(tmp_path / "images"), **environment)
    assert result.stdout == "0\n", result.stderr
