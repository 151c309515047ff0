"""Device FFT objects in Numba's simulator: every layout, mask, API and trait that a kernel can see."""

import numpy as np
import pytest
from numba import cuda

import devkernels
from devkernels.errors import ArgumentError, ArgumentTypeError, TargetError
from tests import fft_cases
from tests.fft_cases import check, make


@pytest.mark.parametrize("size", [*range(2, 17), 25, 32, 49, 64])
@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_c2c_sizes(size, direction, rng):
    error, bound = check(make(size, direction=direction, ffts_per_block=1), 2, rng)
    assert error < bound


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
@pytest.mark.parametrize("layout", ["natural", "packed", "full"])
@pytest.mark.parametrize("mode", ["normal", "folded"])
def test_real_layouts(precision, fft_type, layout, mode, rng):
    f = make(16, precision, fft_type, layout=layout, mode=mode, elements_per_thread=4 if mode == "normal" else 8,
             ffts_per_block=2)  # fmt: skip
    error, bound = check(f, 5, rng)
    assert error < bound


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
@pytest.mark.parametrize("layout", ["natural", "full"])
@pytest.mark.parametrize("size", [3, 5, 15])
def test_odd_real_sizes(fft_type, layout, size, rng):
    error, bound = check(make(size, "float64", fft_type, layout=layout, ffts_per_block=1), 3, rng)
    assert error < bound


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fft_type", ["c2c", "r2c", "c2r"])
def test_thread_execution(precision, fft_type, rng):
    error, bound = check(make(12, precision, fft_type, execution="Thread"), 7, rng)
    assert error < bound


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("ffts_per_block", [1, 3, None])
def test_batches_and_their_tails(rows, ffts_per_block, rng):
    error, bound = check(make(8, ffts_per_block=ffts_per_block, elements_per_thread=8), rows, rng)
    assert error < bound


@pytest.mark.parametrize("in_length", [1, 7, 13, 20])
@pytest.mark.parametrize("out_length", [5, 16, 19])
def test_short_rows_are_padded_and_long_ones_cropped(in_length, out_length, rng):
    error, bound = check(make(16, elements_per_thread=4), 2, rng, in_length=in_length, out_length=out_length)
    assert error < bound


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
def test_odd_rows_in_folded_mode(fft_type, rng):
    f = make(16, "float32", fft_type, layout="natural", mode="folded", elements_per_thread=8)
    lengths = {"in_length": 13} if fft_type == "r2c" else {"out_length": 13}
    error, bound = check(f, 3, rng, **lengths)
    assert error < bound


def test_rows_of_a_wider_array(rng):
    error, bound = check(make(8, elements_per_thread=4), 3, rng, in_length=20, view=lambda x: x[:, 5:13])
    assert error < bound


@pytest.mark.parametrize("fft_type", ["c2c", "r2c", "c2r"])
def test_shared_memory_api(fft_type, rng):
    size, per_block = 16, 3
    f = make(size, "float32", fft_type, ffts_per_block=per_block, elements_per_thread=4)
    value_type, threads = f.value_type, f.block_dim.x * f.block_dim.y
    row_words = f.input_length * f.input_type.itemsize // 4
    out_words = f.output_length * f.output_type.itemsize // 4

    @cuda.jit
    def transform(x, y):
        shared_mem = cuda.shared.array(0, value_type)
        words = shared_mem.view(np.float32)
        t = cuda.threadIdx.x + cuda.threadIdx.y * f.stride
        for i in range(t, per_block * row_words, threads):
            words[i] = x[i]
        cuda.syncthreads()
        f(shared_mem)
        cuda.syncthreads()
        for i in range(t, per_block * out_words, threads):
            y[i] = words[i]

    x = fft_cases.random_rows(f, per_block, rng)
    y = fft_cases.poisoned_output(f, per_block)
    transform[1, f.block_dim, 0, f.shared_io_size](x.view(np.float32).reshape(-1), y.view(np.float32).reshape(-1))
    want = devkernels.reference.device_fft(x, fft_type=fft_type, size=size)
    assert devkernels.tolerance.relative_error(y, want) < devkernels.tolerance.fft_bound("float32", size)


def test_forward_and_inverse_multiply_by_scale(rng):
    forward = make(16, elements_per_thread=4)
    inverse = forward.inverse()
    storage, value_type = forward.storage_size, forward.value_type

    @cuda.jit(link=forward.files + inverse.files)
    def both(x):
        thread_data = cuda.local.array(shape=(storage,), dtype=value_type)
        shared_mem = cuda.shared.array(shape=(0,), dtype=value_type)
        forward.load(x, forward.row(), thread_data)
        forward(thread_data, shared_mem)
        inverse(thread_data, shared_mem)
        inverse.store(thread_data, x, inverse.row())

    x = fft_cases.random_rows(forward, 4, rng)
    y = x.copy()
    both[forward.launch(rows=4)](y)
    assert forward.scale == 16.0
    assert devkernels.tolerance.relative_error(y, forward.scale * x.astype(np.complex128)) < 1e-6


def test_traits_inside_a_kernel(rng):
    f = make(16, "float32", "r2c", elements_per_thread=4, ffts_per_block=2)

    @cuda.jit
    def read(out):
        out[0], out[1], out[2] = f.size, f.stride, f.elements_per_thread
        out[3], out[4], out[5] = f.ffts_per_block, f.input_length, f.output_length
        out[6], out[7] = f.storage_size, f.index(3)

    out = np.full(8, -1)
    read[1, 1](out)
    assert out.tolist() == [16, 4, 4, 2, 16, 9, 4, 12]


def test_packed_values_round_trip(rng):
    f = make(8, "float16")
    values = rng.standard_normal(4).astype(np.float16).astype(np.float32)
    first, second = np.complex64(complex(*values[:2])), np.complex64(complex(*values[2:]))

    @cuda.jit
    def there_and_back(words, numbers):
        words[0] = f.pack(numbers[0], numbers[1])
        numbers[2], numbers[3] = f.unpack(words[0])

    words, numbers = np.zeros(1, np.uint64), np.array([first, second, np.nan, np.nan], np.complex64)
    there_and_back[1, 1](words, numbers)
    assert numbers[2:].tolist() == [first, second]
    assert words.view(np.float16).tolist() == [first.real, second.real, first.imag, second.imag]


def test_wrong_uses_are_said_in_words(rng):
    f, thread = make(8), make(8, execution="Thread")
    with pytest.raises(TargetError, match="outside a kernel"):
        f(np.zeros(8, np.complex64), np.zeros(8, np.complex64))

    @cuda.jit
    def wrong_dtype(x):
        f.load(x, 0, cuda.local.array(8, np.dtype("f8")))

    @cuda.jit
    def too_short(x):
        f.load(x, 0, cuda.local.array(1, np.dtype("c8")))

    @cuda.jit
    def wrong_rows(x):
        f.load(x, 0, cuda.local.array(8, np.dtype("c8")))

    @cuda.jit
    def too_many(x):
        thread(cuda.local.array(8, np.dtype("c8")), x)

    for kernel, x, error, word in (
        (wrong_dtype, np.ones((1, 8), "c8"), ArgumentTypeError, "thread_data"),
        (too_short, np.ones((1, 8), "c8"), ArgumentError, "storage_size"),
        (wrong_rows, np.ones((1, 8), "f4"), ArgumentTypeError, "complex64"),
        (too_many, np.ones((1, 8), "c8"), ArgumentError, "f\\(thread_data\\)"),
    ):
        # The simulator rebuilds an exception from its text alone, so the kind of error survives and its spec does not.
        with pytest.raises(error, match=word):
            kernel[1, 1](x)
