"""Plans of the engine's block transform: the kernel alone, launched directly, against a copy of the same bytes.

in: cases of one transform length. out: contenders for bench/harness.py. ``engine`` is the plan that
`devkernels.block_fft` takes for the length; other contenders are other plans, by radices, elements per thread, rows per
block and register limit. ``causal`` cases are the right-angle kernel with a filter per channel, beside torch's
zero-padded transforms.
"""

from __future__ import annotations

import numpy as np

from bench import fftconvolve
from bench.harness import Contender, Setup
from bench.report import Table

IMPORTS, HOST_ROUNDS, HELD = fftconvolve.IMPORTS, 1, True
SIZES = (64, 128, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384)
CASES = (
    [{"work": "circular", "dtype": "complex64", "size": size} for size in SIZES]
    + [{"work": "circular", "dtype": "complex128", "size": size} for size in (64, 256, 512, 1024, 2048)]
    + [{"work": "causal", "dtype": "float32", "shape": shape} for shape in fftconvolve.CAUSAL]
)
TABLES = {
    "circular": Table(
        rows=("size",),
        metric="of_copy",
        columns={"engine": "engine"},
        where={"work": "circular", "dtype": "complex64"},
        note="Circular convolution of complex64 rows, one filter: speed as a fraction of a copy of the same bytes.",
    ),
    "double": Table(
        rows=("size",),
        metric="of_copy",
        columns={"engine": "engine"},
        where={"work": "circular", "dtype": "complex128"},
        note="The same for complex128.",
    ),
    "causal": Table(
        rows=("shape",),
        columns={"engine": "engine", "torch": "torch rfft / irfft"},
        where={"work": "causal"},
        note="Causal convolution (batch, channels, length), float32, a filter per channel: time in copies.",
    ),
}


def set_up(case):
    if case["work"] == "causal":
        setup = fftconvolve.set_up(case)
        for contender in setup.contenders:
            contender.name = "engine" if contender.name == "devkernels" else contender.name
        return setup
    return _circular(case)


def _circular(case):
    import cupy as cp

    from devkernels.engine import tune
    from devkernels.tolerance import fft_bound, relative_error

    size, dtype = case["size"], np.dtype(case["dtype"])
    real = np.float32 if dtype == np.complex64 else np.float64
    rows = fftconvolve.TOTAL // dtype.itemsize // size
    x = cp.random.default_rng().standard_normal((rows, 2 * size), dtype=real).view(dtype)
    h = np.random.default_rng().standard_normal((2, size)).T.copy().view(np.complex128)[:, 0]
    contenders = []
    for number, choice in enumerate(tune.candidates(size, dtype.itemsize)[:4]):
        fft = tune.planned(choice, dtype)
        y = cp.full_like(x, cp.nan)
        spectrum = cp.asarray(fft.order_filter(np.fft.fft(h) / size).astype(dtype))
        kernel = tune.round_trip_kernel(fft)
        run = kernel[fft.launch(rows=rows)].bind(x.reshape(-1), spectrum, y.reshape(-1), rows)

        def check(y=y):
            want = np.fft.ifft(np.fft.fft(x[-8:].get().astype(np.complex128)) * np.fft.fft(h))
            return relative_error(y[-8:].get(), want)

        name = "engine" if number == 0 else str(choice)
        contenders.append(Contender(name, run, check, fft_bound(dtype, size, 2), extra={"plan": str(choice)}))
    return Setup(contenders, moved_bytes=2 * x.nbytes)
