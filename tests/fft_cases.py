"""Device FFT cases that the simulator tier and the GPU tier share: one kernel text, one way to judge it.

in: a `DeviceFFT` and the array namespace of the home. out: the relative error of one launch and its bound.
"""

import numpy as np
from numba import cuda

import devkernels
from devkernels import reference
from devkernels.tolerance import fft_bound, relative_error


def options(layout, mode):
    return {"complex_layout": layout, "real_mode": mode}


def make(size, precision="float32", fft_type="c2c", direction="forward", layout=None, mode="normal", **more):
    """A device FFT from short words; `direction` only counts for c2c."""
    if fft_type == "c2c":
        more["direction"] = direction
    elif layout is not None:
        more["real_fft_options"] = options(layout, mode)
    return devkernels.fft(fft_type=fft_type, size=size, precision=getattr(np, precision), **more)


def rows_kernel(f):
    """Load a row, transform it, store it: for block and thread execution."""
    inside = f
    storage, value_type, batch = f.storage_size, f.value_type, f.implicit_type_batching
    if f.spec.is_block:

        def transform_rows(x, y):
            thread_data = cuda.local.array(storage, value_type)
            shared_mem = cuda.shared.array(0, value_type)
            row = inside.row()
            inside.load(x, row, thread_data)
            inside(thread_data, shared_mem)
            inside.store(thread_data, y, row)
    else:

        def transform_rows(x, y):
            thread_data = cuda.local.array(storage, value_type)
            row = cuda.grid(1) * batch
            inside.load(x, row, thread_data)
            inside(thread_data)
            inside.store(thread_data, y, row)

    threads = int(np.prod(f.block_dim)) if f.spec.is_block else None
    return devkernels.kernel(transform_rows, launch_bounds=threads)


def launch_of(f, rows):
    if f.spec.is_block:
        return f.launch(rows=rows)
    threads = 4
    return -(-rows // (threads * f.implicit_type_batching)), threads


def _stored_complex(values, precision):
    if precision == "float16":
        return np.stack([values.real, values.imag], axis=-1).astype(np.float16)
    return values.astype(np.complex128 if precision == "float64" else np.complex64)


def _wide(stored, real):
    """Stored rows as float64 or complex128."""
    if stored.dtype == np.float16 and not real:
        return stored[..., 0].astype(np.float64) + 1j * stored[..., 1].astype(np.float64)
    return stored.astype(np.float64 if real else np.complex128)


def random_rows(f, rows, rng, length=None):
    """Random rows for the input side of `f`; spectra of c2r belong to real signals."""
    spec, length = f.spec, length or (f.size if f.fft_type == "r2c" else f.input_length)
    if f.fft_type == "r2c":
        return rng.standard_normal((rows, length)).astype(spec.precision)
    if f.fft_type == "c2c":
        values = rng.standard_normal((rows, length)) + 1j * rng.standard_normal((rows, length))
    else:
        half = np.fft.rfft(rng.standard_normal((rows, f.size))) / np.sqrt(f.size)
        values = reference.pack_spectrum(half, spec.layout, f.size)
        values = np.pad(values, ((0, 0), (0, max(0, length - values.shape[1]))), constant_values=7.0)[:, :length]
    return _stored_complex(values, spec.precision)


def poisoned_output(f, rows, length=None):
    """Rows of NaN for the output side."""
    spec, real = f.spec, f.fft_type == "c2r"
    shape = (rows, length or (f.size if real else f.output_length))
    if spec.precision == "float16":
        return np.full(shape if real else (*shape, 2), np.nan, dtype=np.float16)
    kind = {("float32", True): "f4", ("float32", False): "c8", ("float64", True): "f8", ("float64", False): "c16"}
    return np.full(shape, np.nan, dtype=kind[spec.precision, real])


def check(f, rows, rng, xp=np, in_length=None, out_length=None, kernel=None, view=None):
    """Launch once on random rows and compare; returns (error, bound). Asserts that the input is unchanged.

    `xp` makes arrays of the home (NumPy or CuPy); `view` may turn the stored input into another view of it.
    """
    x = random_rows(f, rows, rng, in_length)
    y = poisoned_output(f, rows, out_length)
    there, back = xp.asarray(x), xp.asarray(y)
    there = there if view is None else view(there)
    before = there.copy()
    (kernel or rows_kernel(f))[launch_of(f, rows)](there, back)
    if xp is not np:
        assert bool(xp.array_equal(there, before))
        back, there = xp.asnumpy(back), xp.asnumpy(there)
    else:
        assert np.array_equal(there, before)
    got = _wide(np.asarray(back), f.fft_type == "c2r")
    source = _wide(np.asarray(there), f.fft_type == "r2c")
    want = reference.device_fft(source, fft_type=f.fft_type, size=f.size, direction=f.direction, layout=f.spec.layout)
    kept = min(got.shape[1], want.shape[1])
    assert np.isnan(got[:, kept:]).all(), "elements beyond the transform were written"
    return relative_error(got[:, :kept], want[:, :kept]), fft_bound(f.spec.precision, f.size)
