"""Convolution along rows: one fused kernel against what people use, and against a copy of the same bytes.

in: cases. out: contenders for bench/harness.py. Works:

- ``circular``: complex rows, one filter for all, its spectrum given; the floor is a copy of x. Peers as in
  bench/spectral_filter.py, of which ``nvmath callback`` is the strongest.
- ``lengths``: the same for lengths with 3 and 5 for factors.
- ``causal``: real rows (batch, channels, length), one filter per channel, the first `length` samples of the linear
  convolution; the filters' spectra given. Peer: torch's zero-padded rfft, product, irfft.
- ``images``: real images with one filter; peers: torch's rfft2 (zero-padded to a fast length for "same") and
  cupyx.scipy.signal.fftconvolve ("same").
- ``overlap``: long real rows with a short filter, "same". Peer: cupyx.scipy.signal.oaconvolve.
"""

from __future__ import annotations

import numpy as np

from bench.harness import Contender, Setup
from bench.report import Table
from bench.spectral_filter import _cufft_plan, _idiom, _isnan_anywhere, _nvmath_callback

IMPORTS = ("torch",)
TOTAL = 1 << 30  # bytes of x: far more than any L2
HOST_ROUNDS = 1
HELD = True
SIZES = (64, 128, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
LENGTHS = (360, 480, 600, 640, 720, 800, 960, 1200, 1280, 1440, 1500, 1920, 2400, 2560, 3000, 3600, 3840, 4800, 5120,
           9600, 10240, 12288)  # fmt: skip
DOUBLE = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
CAUSAL = ("64x768x256", "64x768x512", "64x768x1024", "64x768x2048", "64x768x4096", "16x768x8192", "16x256x16384")
CASES = (
    [{"work": "causal", "dtype": "float32", "shape": shape} for shape in CAUSAL]
    + [{"work": "causal", "dtype": "float16", "shape": "64x768x1024"}]
    + [
        {"work": "images", "dtype": "float32", "shape": "64x1024x1024", "mode": "circular", "taps": 1024},
        {"work": "images", "dtype": "float32", "shape": "16x1024x1024", "mode": "same", "taps": 63},
    ]
    + [{"work": "overlap", "dtype": "float32", "shape": "64x1048576", "taps": taps} for taps in (511, 63, 4095)]
    + [{"work": "circular", "dtype": "complex64", "size": size} for size in SIZES]
    + [{"work": "circular", "dtype": "complex128", "size": size} for size in DOUBLE]
    + [{"work": "lengths", "dtype": "complex64", "size": size} for size in LENGTHS]
)
_PEERS = {"nvmath callback": "nvmath callback", "cuFFT plan": "cuFFT plan", "CuPy idiom": "CuPy idiom"}
TABLES = {
    "circular": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **_PEERS},
        where={"work": "circular", "dtype": "complex64"},
        note="Circular convolution of complex64 rows, time as a multiple of a copy of the same bytes.",
    ),
    "lengths": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", **_PEERS},
        where={"work": "lengths"},
        note="The same for lengths that are no power of two.",
    ),
    "double": Table(
        rows=("size",),
        columns={"devkernels": "devkernels", "cuFFT plan": "cuFFT plan", "CuPy idiom": "CuPy idiom"},
        where={"work": "circular", "dtype": "complex128"},
        note="The same for complex128.",
    ),
    "causal": Table(
        rows=("shape", "dtype"),
        columns={"devkernels": "devkernels", "torch": "torch rfft / irfft"},
        where={"work": "causal"},
        note="Causal convolution (batch, channels, length), a filter per channel, time in copies of the same bytes.",
    ),
    "overlap": Table(
        rows=("shape", "taps"),
        columns={"devkernels": "devkernels", "cupyx": "cupyx oaconvolve"},
        where={"work": "overlap"},
        note='Long float32 rows, mode "same", time as a multiple of a copy of the same bytes.',
    ),
    "images": Table(
        rows=("shape", "mode", "taps"),
        columns={"devkernels": "devkernels", "torch": "torch rfft2 / irfft2", "cupyx": "cupyx fftconvolve"},
        where={"work": "images"},
        note="Float32 images with one filter, time as a multiple of a copy of the same bytes.",
    ),
}


def set_up(case):
    return {"circular": _circular, "lengths": _circular, "causal": _causal, "overlap": _overlap, "images": _images}[
        case["work"]
    ](case)


def _refusing(name, reason):
    def refuse():
        raise reason

    return Contender(name, refuse)


def _describe(plan):
    return {"plan": plan.describe().splitlines()[0], "max_registers": plan.fft.max_registers}


def _circular(case):
    import cupy as cp

    import devkernels
    from devkernels.tolerance import fft_bound, relative_error

    size, dtype = case["size"], np.dtype(case["dtype"])
    real = np.float32 if dtype == np.complex64 else np.float64
    x = cp.random.default_rng().standard_normal((TOTAL // dtype.itemsize // size, 2 * size), dtype=real).view(dtype)
    h = np.random.default_rng().standard_normal((2, size)).T.copy().view(np.complex128)[:, 0]
    response = cp.asarray(np.fft.fft(h).astype(dtype))
    scaled = response / real(size)
    bound = fft_bound(dtype, size, transforms=2)
    rows = np.unique(np.concatenate([[0, x.shape[0] - 1], np.random.default_rng().integers(x.shape[0], size=8)]))
    contenders, closers = [], []

    def add(name, make, **extra):
        try:
            run, get_result = make()
        except Exception as error:  # noqa: BLE001 - any peer may be missing or refuse the size
            contenders.append(_refusing(name, error))
            return

        def check():
            result = get_result()
            if _isnan_anywhere(result):
                return float("nan")
            want = np.fft.ifft(np.fft.fft(x[rows].get().astype(np.complex128)) * np.fft.fft(h))
            return relative_error(result[rows].get(), want)

        contenders.append(Contender(name, run, check, bound, extra=extra))

    plan = devkernels.make_fftconvolve(size, size, dtype.name, "circular")

    def ours():
        y = cp.full_like(x, cp.nan)
        spectra = plan.prepare(cp.asarray(h.astype(dtype)))
        return lambda: plan(x, spectra=spectra, out=y), lambda: y

    def callback():
        run, get_result, close = _nvmath_callback(x, cp.full_like(x, cp.nan), scaled, size)
        closers.append(close)
        return run, get_result

    add("devkernels", ours, **_describe(plan))
    if dtype == np.complex64:
        add("nvmath callback", callback)
        add("cuFFT plan", lambda: _cufft_plan(x, cp.full_like(x, cp.nan), scaled, size))
    add("CuPy idiom", lambda: _idiom(x, response, size))
    return Setup(contenders, moved_bytes=2 * x.nbytes, close=lambda: [close() for close in closers])


def _causal(case):
    import torch

    import devkernels
    from devkernels.tolerance import fft_bound

    batch, channels, length = map(int, case["shape"].split("x"))
    dtype = getattr(torch, case["dtype"])
    x = torch.randn(batch, channels, length, device="cuda").to(dtype)
    h = torch.randn(channels, length, device="cuda").to(dtype)
    plan = devkernels.make_fftconvolve(length, length, case["dtype"], "causal")
    spectra, out = plan.prepare(h), torch.full_like(x, float("nan"))
    few = [0, channels // 2, channels - 1]
    h_f = torch.fft.rfft(h.float(), n=2 * length)
    result = {}

    def torch_way():
        result["y"] = torch.fft.irfft(torch.fft.rfft(x.float(), n=2 * length) * h_f, n=2 * length)[..., :length]

    def error(got):
        if bool(torch.isnan(got).any()):
            return float("nan")
        rows, filters = x[:, few].double(), h[few].double()
        want = torch.fft.irfft(torch.fft.rfft(rows, n=2 * length) * torch.fft.rfft(filters, n=2 * length), n=2 * length)
        want = want[..., :length]
        return float((got[:, few].double() - want).norm() / want.norm())

    bound = fft_bound("float32", 2 * length, 2) + (2e-3 if case["dtype"] == "float16" else 0)
    contenders = [
        Contender("devkernels", lambda: plan(x, spectra=spectra, out=out), lambda: error(out), bound,
                  extra=_describe(plan)),
        Contender("torch", torch_way, lambda: error(result["y"]), bound, graph=False),
    ]  # fmt: skip

    def close():
        result.clear()
        torch.cuda.empty_cache()

    return Setup(contenders, moved_bytes=2 * x.element_size() * x.numel(), close=close)


def _overlap(case):
    import cupy as cp
    from cupyx.scipy import signal

    import devkernels
    from devkernels.tolerance import fft_bound, relative_error

    rows, length = map(int, case["shape"].split("x"))
    taps = case["taps"]
    generator = cp.random.default_rng()
    x = generator.standard_normal((rows, length), dtype=cp.float32)
    h = generator.standard_normal((taps,), dtype=cp.float32)
    plan = devkernels.make_fftconvolve(length, taps, "float32", "same", method="overlap")
    spectra, out = plan.prepare(h), cp.full_like(x, cp.nan)
    result = {}

    def peer():
        result["y"] = signal.oaconvolve(x, h[None], "same", axes=-1)

    def error(got):
        if bool(cp.isnan(got).any()):
            return float("nan")
        from scipy import signal as on_host

        want = on_host.oaconvolve(x[-1].get().astype(np.float64), h.get().astype(np.float64), "same")
        return relative_error(got[-1].get(), want)

    bound = fft_bound("float32", 8192, 2)
    contenders = [
        Contender("devkernels", lambda: plan(x, spectra=spectra, out=out), lambda: error(out), bound,
                  extra=_describe(plan)),
        Contender("cupyx", peer, lambda: error(result["y"]), bound, graph=False),
    ]  # fmt: skip
    return Setup(contenders, moved_bytes=2 * x.nbytes, close=result.clear)


def _images(case):
    import cupy as cp
    import torch

    from devkernels.kernels.fftconvolve2d import FFTConvolve2D, make_fftconvolve2d
    from devkernels.tolerance import fft_bound, relative_error

    count, height, width = map(int, case["shape"].split("x"))
    taps, mode = case["taps"], case["mode"]
    generator = cp.random.default_rng()
    x = generator.standard_normal((count, height, width), dtype=cp.float32)
    h = generator.standard_normal((taps, taps), dtype=cp.float32)
    plan = make_fftconvolve2d((height, width), (taps, taps), "float32", mode)
    spectra, out, result = plan.prepare(h), cp.full_like(x, cp.nan), {}
    contenders = []

    def error(got):
        if bool(cp.isnan(got).any()):
            return float("nan")
        last = x[-1].astype(cp.float64)
        shape = (height, width) if mode == "circular" else (height + taps - 1, width + taps - 1)
        want = cp.fft.irfft2(cp.fft.rfft2(last, shape) * cp.fft.rfft2(h.astype(cp.float64), shape), shape)
        if mode == "same":
            first = (taps - 1) // 2
            want = want[first : first + height, first : first + width]
        return relative_error(got[-1].get(), want.get())

    bound = fft_bound("float32", height * width, 2)
    extra = {"plan": repr(plan)}
    contenders.append(
        Contender("devkernels", lambda: plan(x, spectra=spectra, out=out), lambda: error(out), bound, extra=extra)
    )
    for limit in (32,):  # MiB between the kernels, which the L2 cache may keep; usually all images at once
        other = FFTConvolve2D(plan.plans, "float32", mode)
        other.work_limit = limit << 20
        contenders.append(
            Contender(f"devkernels, {limit} MiB", lambda other=other: other(x, spectra=spectra, out=out),
                      lambda: error(out), bound)
        )  # fmt: skip
    there, first = torch.as_tensor(x, device="cuda"), 0 if mode == "circular" else (taps - 1) // 2
    padded = (height, width)
    if mode == "same":
        from scipy.fft import next_fast_len

        padded = tuple(32 * next_fast_len(-(-(n + taps - 1) // 32), real=True) for n in (height, width))
    spectrum = torch.fft.rfft2(torch.as_tensor(h, device="cuda"), s=padded)

    def torch_way():
        whole = torch.fft.irfft2(torch.fft.rfft2(there, s=padded) * spectrum, s=padded)
        result["torch"] = whole[:, first : first + height, first : first + width]

    def torch_error():
        return error(cp.from_dlpack(result["torch"].contiguous()))

    contenders.append(Contender("torch", torch_way, torch_error, bound, graph=False))
    if mode == "same":
        from cupyx.scipy import signal

        def cupyx_way():
            result["y"] = signal.fftconvolve(x, h[None], "same", axes=(1, 2))

        contenders.append(Contender("cupyx", cupyx_way, lambda: error(result["y"]), bound, graph=False))

    def close():
        result.clear()
        torch.cuda.empty_cache()

    return Setup(contenders, moved_bytes=2 * x.nbytes, close=close)
