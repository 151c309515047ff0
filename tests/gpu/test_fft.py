"""Device FFT objects on a GPU: sizes, layouts, precisions, batches, knobs and both APIs against float64."""

import numpy as np
import pytest
from numba import cuda

import devkernels
from tests import fft_cases
from tests.fft_cases import check, make

cupy = pytest.importorskip("cupy")

SPREAD = [81, 96, 100, 125, 128, 169, 216, 256, 343, 512, 625, 1000, 1024, 1331, 1728, 2048, 2187, 4096, 6561, 8192,
          10000, 16384]  # fmt: skip


@pytest.mark.parametrize("size", range(2, 65))
def test_every_small_c2c_size(size, rng):
    """Both directions in one kernel, which halves what has to be compiled."""
    forward = make(size)
    inverse = forward.inverse()
    storage, value_type = forward.storage_size, forward.value_type

    @devkernels.kernel
    def both(x, y, z):
        thread_data = cuda.local.array(storage, value_type)
        shared_mem = cuda.shared.array(0, value_type)
        row = forward.row()
        forward.load(x, row, thread_data)
        forward(thread_data, shared_mem)
        forward.store(thread_data, y, row)
        cuda.syncthreads()
        inverse.load(x, row, thread_data)
        inverse(thread_data, shared_mem)
        inverse.store(thread_data, z, row)

    x = fft_cases.random_rows(forward, 33, rng)
    there, y, z = cupy.asarray(x), *(cupy.asarray(fft_cases.poisoned_output(f, 33)) for f in (forward, inverse))
    both[forward.launch(rows=33)](there, y, z)
    assert bool(cupy.array_equal(there, cupy.asarray(x)))
    wide, bound = x.astype(np.complex128), devkernels.tolerance.fft_bound("float32", size)
    assert devkernels.tolerance.relative_error(y.get(), np.fft.fft(wide)) < bound
    assert devkernels.tolerance.relative_error(z.get(), np.fft.ifft(wide) * size) < bound


@pytest.mark.parametrize("size", [*SPREAD, 32768])
def test_larger_c2c_sizes(size, rng):
    error, bound = check(make(size), 33, rng, cupy)
    assert error < bound


@pytest.mark.parametrize("precision", ["float16", "float64"])
@pytest.mark.parametrize("size", [2, 3, 8, 15, 31, 32, 64, 100, 128, 512, 1000, 1024, 4096])
def test_other_precisions(size, precision, rng):
    error, bound = check(make(size, precision), 33, rng, cupy)
    assert error < bound


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
@pytest.mark.parametrize("layout", ["natural", "packed", "full"])
@pytest.mark.parametrize(("mode", "size"), [("normal", 16), ("normal", 96), ("normal", 1000), ("folded", 8),
                                            ("folded", 128), ("folded", 2048)])  # fmt: skip
def test_real_layouts(precision, fft_type, layout, mode, size, rng):
    error, bound = check(make(size, precision, fft_type, layout=layout, mode=mode), 33, rng, cupy)
    assert error < bound


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
@pytest.mark.parametrize("size", [3, 5, 15, 125, 2187])
def test_odd_real_sizes(fft_type, size, rng):
    error, bound = check(make(size, "float32", fft_type), 33, rng, cupy)
    assert error < bound


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fft_type", ["c2c", "r2c", "c2r"])
@pytest.mark.parametrize("size", [2, 7, 16, 32])
def test_thread_execution(precision, fft_type, size, rng):
    error, bound = check(make(size, precision, fft_type, execution="Thread"), 33, rng, cupy)
    assert error < bound


@pytest.mark.parametrize("rows", [1, 33, 1000])
@pytest.mark.parametrize("ffts_per_block", [1, None, 3])
@pytest.mark.parametrize("size", [32, 512])
def test_batches_and_rows_per_block(rows, ffts_per_block, size, rng):
    error, bound = check(make(size, ffts_per_block=ffts_per_block), rows, rng, cupy)
    assert error < bound


@pytest.mark.parametrize("elements_per_thread", [2, 4, 8, 16, 32])
def test_elements_per_thread(elements_per_thread, rng):
    error, bound = check(make(128, elements_per_thread=elements_per_thread), 33, rng, cupy)
    assert error < bound


@pytest.mark.parametrize(("precision", "fft_type", "mode"), [
    ("float32", "c2c", "normal"), ("float64", "c2c", "normal"), ("float16", "c2c", "normal"),
    ("float32", "r2c", "normal"), ("float32", "r2c", "folded"), ("float32", "c2r", "folded"),
    ("float16", "r2c", "folded"), ("float16", "c2r", "normal"),
])  # fmt: skip
@pytest.mark.parametrize(("in_length", "out_length"), [(1, 200), (77, 65), (127, 31), (201, 64)])
def test_masks(precision, fft_type, mode, in_length, out_length, rng):
    layout = None if fft_type == "c2c" else "natural"
    f = make(128, precision, fft_type, layout=layout, mode=mode)
    error, bound = check(f, 5, rng, cupy, in_length=in_length, out_length=out_length)
    assert error < bound


@pytest.mark.parametrize(("fft_type", "mode"), [("c2c", "normal"), ("r2c", "normal"), ("r2c", "folded")])
def test_views_with_gaps(fft_type, mode, rng):
    f = make(64, "float32", fft_type, layout=None if fft_type == "c2c" else "natural", mode=mode)
    for view in (lambda x: x[:, 5:69], lambda x: x[::-1, 3:67], lambda x: x[:, ::3]):
        error, bound = check(f, 9, rng, cupy, in_length=200, view=view)
        assert error < bound


@pytest.mark.parametrize("fft_type", ["c2c", "r2c", "c2r"])
def test_shared_memory_api(fft_type, rng):
    size, per_block = 128, 3
    f = make(size, "float32", fft_type, ffts_per_block=per_block)
    value_type, threads, stride = f.value_type, f.block_dim.x * f.block_dim.y, f.stride
    in_words = f.input_length * f.input_type.itemsize // 4
    out_words = f.output_length * f.output_type.itemsize // 4

    @devkernels.kernel
    def transform(x, y):
        shared_mem = cuda.shared.array(0, value_type)
        words = cuda.shared.array(0, np.float32)  # the same memory
        t = cuda.threadIdx.x + cuda.threadIdx.y * stride
        for i in range(t, per_block * in_words, threads):
            words[i] = x[i]
        cuda.syncthreads()
        f(shared_mem)
        cuda.syncthreads()
        for i in range(t, per_block * out_words, threads):
            y[i] = words[i]

    x = fft_cases.random_rows(f, per_block, rng)
    y = cupy.asarray(fft_cases.poisoned_output(f, per_block))
    transform[1, f.block_dim, 0, f.shared_io_size](
        cupy.asarray(x).view(cupy.float32).reshape(-1), y.view(cupy.float32).reshape(-1)
    )
    want = devkernels.reference.device_fft(x, fft_type=fft_type, size=size)
    assert devkernels.tolerance.relative_error(y.get(), want) < devkernels.tolerance.fft_bound("float32", size)


def test_packed_values_round_trip(rng):
    f = make(8, "float16")

    @devkernels.kernel
    def halve(words):
        i = cuda.grid(1)
        if i < words.size:
            first, second = f.unpack(words[i])
            words[i] = f.pack(first * np.float32(0.5), second * np.float32(2))

    halves = rng.standard_normal(4000).astype(np.float16)
    words = cupy.asarray(halves).view(cupy.uint64)
    halve[8, 128](words)
    want = halves.reshape(-1, 2, 2) * np.array([0.5, 2], np.float16)
    assert np.array_equal(words.view(cupy.float16).get().reshape(-1, 2, 2), want)


def test_numba_links_equal_objects_once(rng):
    size = 128
    forward, twin = make(size, ffts_per_block=2), make(size, ffts_per_block=2)
    inverse = forward.inverse()
    storage, value_type = forward.storage_size, forward.value_type

    @cuda.jit(link=forward.files + twin.files + inverse.files)
    def thrice(x):
        thread_data = cuda.local.array(shape=(storage,), dtype=value_type)
        shared_mem = cuda.shared.array(shape=(0,), dtype=value_type)
        row = cuda.blockIdx.x * forward.ffts_per_block + cuda.threadIdx.y
        if row >= x.shape[0]:
            return
        for i in range(forward.elements_per_thread):
            thread_data[i] = x[row, cuda.threadIdx.x + i * forward.stride]
        forward(thread_data, shared_mem)
        inverse(thread_data, shared_mem)
        twin(thread_data, shared_mem)
        for i in range(forward.elements_per_thread):
            x[row, cuda.threadIdx.x + i * forward.stride] = thread_data[i]

    x = fft_cases.random_rows(forward, 7, rng)
    there = cuda.to_device(x)
    thrice[4, forward.block_dim, 0, forward.shared_memory_size](there)
    want = np.fft.fft(x.astype(np.complex128)) * size
    got = there.copy_to_host()
    assert devkernels.tolerance.relative_error(got, want) < devkernels.tolerance.fft_bound("float32", size, 3)
