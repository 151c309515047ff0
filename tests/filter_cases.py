"""Data of the spectral filter's tests, in the simulator and on a GPU alike."""

# dtype of the samples -> dtype of a complex H
FILTER_DTYPE = {"float16": "complex64", "float32": "complex64", "complex64": "complex64", "float64": "complex128",
                "complex128": "complex128"}  # fmt: skip


def random(rng, shape, dtype):
    """Normally distributed samples."""
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def bins(n, dtype):
    """Frequencies of n samples."""
    return n // 2 + 1 if dtype.startswith("float") else n
