"""The engine's device functions in Numba's simulator: each code path once, on small transforms."""

import numpy as np
import pytest
from numba import cuda

from devkernels.engine import emit
from devkernels.engine.block_fft import block_fft as public_block_fft
from devkernels.tolerance import fft_bound, relative_error

pytestmark = pytest.mark.sim


def block_fft(radices, elements, rows, dtype, offset=0.0, **options):
    return public_block_fft(
        int(np.prod(radices)), dtype, radices=radices, elements_per_thread=elements, ffts_per_block=rows,
        frequency_offset=offset, **options,
    )  # fmt: skip


def launch(fft, x, h=None, real=False, count=None):
    """Forward (and filtered inverse, if h) of the rows of x."""
    elements, stride, dtype = fft.elements_per_thread, fft.stride, fft.dtype
    rows, per_block = len(x), fft.ffts_per_block
    offsets = tuple(e * stride for e in range(elements))
    part = {"memory": x.dtype.name, "part": "real"} if real else {}
    load = emit.gather(emit.Move(offsets, dtype.name, masked=count is not None, **part))
    store = emit.scatter(emit.Move(offsets, dtype.name, masked=count is not None, **part))
    load_filter = emit.gather(emit.Move(offsets, dtype.name))
    store_spectrum = emit.scatter(emit.Move(offsets, dtype.name))
    forward, filter_inverse = fft.forward, fft.filter_inverse
    length = x.shape[1]

    @cuda.jit
    def kernel(x, h, out):
        data = cuda.local.array(elements, dtype)
        factors = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        row = cuda.blockIdx.x * per_block + cuda.threadIdx.y
        base = min(row, rows - 1) * length + cuda.threadIdx.x
        if count is not None:
            load(data, x, base, cuda.threadIdx.x, length)
        else:
            load(data, x, base)
        forward(data, shared)
        if h is None:
            if row < rows:
                store_spectrum(data, out, base)
            return
        load_filter(factors, h, cuda.threadIdx.x)
        filter_inverse(data, factors, shared)
        if row < rows:
            if count is not None:
                store(data, out, base, cuda.threadIdx.x, length)
            else:
                store(data, out, base)

    out = np.full(x.shape, np.nan, dtype=x.dtype if h is not None else dtype)
    blocks = -(-rows // per_block)
    kernel[blocks, fft.block_dim, 0, fft.shared_memory_size](x.reshape(-1), h, out.reshape(-1))
    return out


@pytest.mark.parametrize(
    ("radices", "elements", "rows", "dtype"),
    [((8,), 8, 4, "complex64"), ((4, 4), 4, 2, "complex64"), ((8, 4), 8, 2, "complex128"),
     ((4, 4, 2), 4, 1, "complex64"), ((6, 3), 6, 3, "complex64"), ((10, 5), 10, 1, "complex64")],
)  # fmt: skip
@pytest.mark.parametrize("rotated", [False, True])
def test_forward_and_filter_inverse(radices, elements, rows, dtype, rotated, rng):
    fft = block_fft(radices, elements, rows, dtype, rotated=rotated)
    n, batch = fft.size, rows + 1  # a tail: the last block is not full
    x = (rng.standard_normal((batch, n)) + 1j * rng.standard_normal((batch, n))).astype(dtype)
    spectrum = launch(fft, x)
    order = fft.spectrum_index.T.reshape(-1)
    want = np.fft.fft(x.astype(np.complex128))
    assert relative_error(spectrum, want[:, order]) < fft_bound(dtype, n)
    h = rng.standard_normal(n) + 1j * rng.standard_normal(n)
    got = launch(fft, x, fft.order_filter(np.fft.fft(h) / n).astype(dtype))
    assert relative_error(got, np.fft.ifft(want * np.fft.fft(h))) < fft_bound(dtype, n, 2)


@pytest.mark.parametrize(("radices", "elements", "length"), [((4, 4), 4, 16), ((8, 4), 8, 27), ((4, 2, 2), 4, 16)])
def test_right_angle_gives_the_causal_convolution(radices, elements, length, rng):
    fft = block_fft(radices, elements, 2, "complex64", offset=-0.25, real_input=True)
    n = fft.size
    x = rng.standard_normal((3, length)).astype(np.float32)
    h = rng.standard_normal(length)
    weights = np.exp(1j * np.pi * np.arange(n) / (2 * n))
    padded = np.zeros(n)
    padded[:length] = h
    ordered = fft.order_filter(np.fft.fft(padded * weights) / n).astype(np.complex64)
    got = launch(fft, x, ordered, real=True, count=True)
    want = np.array([np.convolve(row.astype(np.float64), h)[:length] for row in x])
    assert relative_error(got, want) < fft_bound("float32", n, 2)
