"""Convolution with filters as long as the rows: four-step transforms against torch's and CuPy's padded transforms.

in: cases. out: contenders for bench/harness.py. Works:

- ``causal``: real rows with one filter, the first `length` samples; peer: torch, by transforms of twice the length.
- ``circular``: complex rows whose length is a power of two; peers: torch's fft, product, ifft; CuPy's.
- ``overlap``: long real rows with filters of tens of thousands of samples, "same"; peers: torch, cupyx's oaconvolve.

Filters are transformed beforehand in all of them but cupyx's. The floor is a copy of the rows.
"""

from __future__ import annotations

import numpy as np

from bench.harness import Contender, Setup
from bench.report import Table

IMPORTS = ("torch",)
TOTAL = 1 << 28  # bytes of x
LENGTHS = (1 << 15, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
CASES = (
    [{"work": "causal", "dtype": "float32", "length": length, "taps": length} for length in LENGTHS]
    + [{"work": "circular", "dtype": "complex64", "length": length, "taps": length} for length in LENGTHS]
    + [{"work": "causal", "dtype": "float64", "length": 1 << 20, "taps": 1 << 20}]
    + [{"work": "causal", "dtype": "float32", "length": 300000, "taps": 300000}]
    + [{"work": "overlap", "dtype": "float32", "length": 1 << 20, "taps": taps} for taps in (16000, 50000, 200000)]
)
_COLUMNS = {"devkernels": "devkernels", "torch": "torch", "CuPy": "CuPy", "cupyx": "cupyx oaconvolve"}
TABLES = {
    "long": Table(
        rows=("work", "dtype", "length", "taps"),
        columns=_COLUMNS,
        where={},
        note="Rows of 256 MiB with one filter: time as a multiple of a copy of the rows.",
    ),
}


def set_up(case):
    import cupy as cp
    import torch
    from cupyx.scipy import signal

    import devkernels
    from devkernels.tolerance import fft_bound

    dtype, length, taps, work = np.dtype(case["dtype"]), case["length"], case["taps"], case["work"]
    rows = max(1, TOTAL // dtype.itemsize // length)
    kind = getattr(torch, case["dtype"])
    x, h = torch.randn(rows, length, device="cuda", dtype=kind), torch.randn(taps, device="cuda", dtype=kind)
    mode = "same" if work == "overlap" else work
    start = (taps - 1) // 2 if work == "overlap" else 0
    points = length if work == "circular" else 1 << (length + taps - 2).bit_length()
    there, back = (torch.fft.fft, torch.fft.ifft) if dtype.kind == "c" else (torch.fft.rfft, torch.fft.irfft)
    plan = devkernels.make_fftconvolve(length, taps, dtype.name, mode)
    spectra, out = plan.prepare(h), torch.full_like(x, float("nan"))
    h_f, result = there(h, n=points), {}

    def by_torch():
        result["torch"] = back(there(x, n=points) * h_f, n=points)[..., start : start + length]

    def by_cupyx():
        result["cupyx"] = signal.oaconvolve(cp.asarray(x), cp.asarray(h)[None], "same", axes=-1)

    def by_cupy():
        result["CuPy"] = cp.fft.ifft(cp.fft.fft(cp.asarray(x)) * cp.asarray(h_f))

    wide = torch.complex128 if dtype.kind == "c" else torch.float64
    want = back(there(x[-1].to(wide), n=points) * there(h.to(wide), n=points), n=points)[start : start + length]

    def error(got):
        got = torch.as_tensor(got, device="cuda")
        if bool(torch.isnan(got).any()):
            return float("nan")
        return float((got[-1].to(wide) - want).norm() / want.norm())

    bound = fft_bound(dtype, 2 * length, 2)
    contenders = [
        Contender("devkernels", lambda: plan(x, spectra=spectra, out=out), lambda: error(out), bound,
                  extra={"plan": plan.describe().splitlines()[0], "work_bytes": plan.work_bytes(rows)}),
        Contender("torch", by_torch, lambda: error(result["torch"]), bound, graph=False),
    ]  # fmt: skip
    if work == "circular":
        contenders.append(Contender("CuPy", by_cupy, lambda: error(result["CuPy"]), bound, graph=False))
    if work == "overlap":
        contenders.append(Contender("cupyx", by_cupyx, lambda: error(result["cupyx"]), bound, graph=False))

    def close():
        result.clear()
        torch.cuda.empty_cache()
        cp.get_default_memory_pool().free_all_blocks()

    return Setup(contenders, moved_bytes=2 * dtype.itemsize * x.numel(), close=close)
