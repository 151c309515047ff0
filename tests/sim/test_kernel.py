"""`@devkernels.kernel` in the simulator: the same launches and the same checks as on a GPU."""

import numpy as np
import pytest
from numba import cuda as numba_cuda

import devkernels
from devkernels import cuda
from devkernels.errors import ArgumentError, ArgumentTypeError, ResourceError

N = 20


@cuda.jit(device=True)
def twice(value):
    return value + value * (cuda.threadIdx.x * 0 + 1)


def text(x, y, a, n):
    shared = cuda.shared.array(32, np.float32)
    i = cuda.grid(1)
    if i < n:
        shared[cuda.threadIdx.x] = twice(x[i])
    cuda.syncthreads()
    if i < n:
        y[i] = a * shared[cuda.threadIdx.x]


def text_of_numba(x, y, a, n):
    i = numba_cuda.grid(1)
    if i < n:
        y[i] = 2 * a * x[i]


SIGNATURE = "void(float32[::1], float32[::1], float32, int32)"


@pytest.mark.parametrize("function", [text, text_of_numba])
@pytest.mark.parametrize("signature", [None, SIGNATURE])
@pytest.mark.parametrize("way", ["call", "bind arguments first", "bind configuration first"])
def test_launches(rng, empty, function, signature, way):
    kernel = devkernels.kernel(function, signature=signature)
    x, y = rng.standard_normal(N).astype(np.float32), empty(N, np.float32)
    source = x.copy()
    if way == "call":
        kernel[2, 16](x, y, np.float32(3), N)
    elif way == "bind arguments first":
        kernel.bind(x, y, np.float32(3), N)[2, 16]()
    else:
        kernel[2, 16].bind(x, y, np.float32(3), N)()
    np.testing.assert_allclose(y, 6 * x, rtol=1e-6)
    np.testing.assert_array_equal(x, source)


def test_decorator_forms_keep_the_function():
    @devkernels.kernel
    def bare(x):
        """Its own text."""

    @devkernels.kernel(launch_bounds=64)
    def with_options(x):
        pass

    assert bare.__doc__ == "Its own text."
    assert bare.__name__ == "bare"
    assert with_options.compile_options.launch_bounds == 64
    assert "bare" in repr(bare)
    with pytest.raises(ArgumentError, match=r"bare\[grid, block\]"):
        bare(1)


def test_launch_of_a_device_object(rng, empty):
    f = devkernels.fft(fft_type="c2c", size=16, precision=np.float32, direction="forward", ffts_per_block=2)
    storage, value_type = f.storage_size, f.value_type

    @devkernels.kernel
    def transform(x, y):
        thread_data = cuda.local.array(storage, value_type)
        shared = cuda.shared.array(0, value_type)
        row = f.row()
        f.load(x, row, thread_data)
        f(thread_data, shared)
        f.store(thread_data, y, row)

    x = (rng.standard_normal((3, 16)) + 1j * rng.standard_normal((3, 16))).astype(np.complex64)
    y = empty((3, 16), np.complex64)
    transform[f.launch(rows=3)](x, y)
    assert np.linalg.norm(y - np.fft.fft(x)) <= 1e-6 * np.linalg.norm(y)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda x, y: (x.astype(np.float64), y, 1, N), ArgumentTypeError, "argument x has dtype float64"),
        (lambda x, y: (x.reshape(4, 5), y, 1, N), ArgumentError, "argument x has 2 dimensions"),
        (lambda x, y: (np.zeros(2 * N, np.float32)[::2], y, 1, N), ArgumentError, "not contiguous in C order"),
        (lambda x, y: (list(x), y, 1, N), ArgumentTypeError, "argument x must be a 1-D float32 array"),
        (lambda x, y: (x, y, 1j, N), ArgumentTypeError, "argument a must be a float32"),
        (lambda x, y: (x, y, 1, 1.5), ArgumentTypeError, "argument n must be an int32"),
        (lambda x, y: (x, y, 1, 2**40), ArgumentError, "does not fit int32"),
        (lambda x, y: (x, y, 1), ArgumentTypeError, "takes 4 arguments"),
    ],
)
def test_bad_arguments(rng, empty, make, kind, message):
    kernel = devkernels.kernel(text, signature=SIGNATURE)
    y = empty(N, np.float32)
    with pytest.raises(kind, match=message):
        kernel[2, 16](*make(rng.standard_normal(N).astype(np.float32), y))
    assert np.isnan(y).all()


def test_bad_arguments_without_a_signature(rng):
    kernel = devkernels.kernel(text)
    for bad in ([1.0], "text", None, object()):
        with pytest.raises(ArgumentTypeError, match="argument x is a"):
            kernel[1, 32](bad, np.zeros(N, np.float32), 1, N)


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [((1, 65), ResourceError, "launch_bounds=64"), ((1, 1025), ResourceError, "1024"),
     ((0, 1), ArgumentError, "least 1"),
     ((1, 32, 0, 228 << 10), ResourceError, "232448 bytes"), (8, ArgumentTypeError, "grid, block")],
)  # fmt: skip
def test_bad_configurations(key, kind, message):
    kernel = devkernels.kernel(text, launch_bounds=64)
    with pytest.raises(kind, match=message):
        kernel[key]
