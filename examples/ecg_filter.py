"""Clean a real electrocardiogram and smooth a real photograph with fused frequency-domain filters.

Usage: python examples/ecg_filter.py [--tile 64] [--output out/ecg_filter.png]

The electrocardiogram (1024 samples, 360 Hz) and the photograph are the ones that PyWavelets ships. The filter takes
baseline wander (below 0.7 Hz) and mains hum (60 Hz) out of the first, and low-passes a tile of the second by rows,
then by columns. Both are y = ifft(fft(x) * H), one kernel each: on a GPU, or in Numba's simulator without one.
Prints where it ran, the error against SciPy in float64, and the time, and draws before and after.
Exit code 1 if an error is above its bound.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import devkernels  # first: it chooses the simulator where there is no driver

import numpy as np
import pywt
import scipy.fft
from tqdm import tqdm

from devkernels.target import current_target, home
from devkernels.tolerance import fft_bound, relative_error

SAMPLING_HZ = 360.0  # of pywt.data.ecg()
WANDER_HZ, HUM_HZ, HUM_WIDTH_HZ = 0.7, 60.0, 1.0
CUTOFF = 0.12  # of the photograph's low-pass, in cycles per pixel
BANDS_HZ = {"below 0.5 Hz": (0.0, 0.5), "1 to 40 Hz": (1.0, 40.0), "59 to 61 Hz": (59.0, 61.0)}


def mirrored(x: np.ndarray) -> np.ndarray:
    """Each row followed by itself backwards: periodic without a jump, so that nothing wraps around as an edge."""
    return np.concatenate([x, x[..., ::-1]], axis=-1)


def ecg_response(length: int) -> np.ndarray:
    """Real response that stops baseline wander and a narrow band around the mains frequency."""
    frequency = np.fft.rfftfreq(length, 1 / SAMPLING_HZ)
    high_pass = 1 - np.exp(-0.5 * (frequency / WANDER_HZ) ** 2)
    notch = 1 - np.exp(-0.5 * ((frequency - HUM_HZ) / HUM_WIDTH_HZ) ** 2)
    return high_pass * notch


def low_pass_response(length: int) -> np.ndarray:
    """Gaussian low-pass, half its height at the cutoff."""
    return np.exp(-np.log(2.0) * (np.fft.rfftfreq(length) / CUTOFF) ** 2)


def with_scipy(x: np.ndarray, response: np.ndarray) -> np.ndarray:
    """The same filter in float64: what the kernels are held against."""
    return scipy.fft.irfft(scipy.fft.rfft(x.astype(np.float64)) * response, x.shape[-1])


def with_devkernels(rows: np.ndarray, response: np.ndarray, strip: int, progress: tqdm) -> np.ndarray:
    """Filter rows, a strip at a time, so that the progress bar moves in the simulator."""
    rows, response = rows.astype(np.float32), response.astype(np.complex64)
    parts = []
    for start in range(0, len(rows), strip):
        parts.append(devkernels.spectral_filter(rows[start : start + strip], response))
        progress.update(len(parts[-1]))
    return np.concatenate(parts)


def smooth(tile: np.ndarray, filter_rows) -> np.ndarray:
    """Low-pass along the rows, then along the columns, each mirrored at its ends."""
    for _ in range(2):  # rows, then (transposed) columns; the second turn transposes back
        side = tile.shape[-1]
        tile = np.ascontiguousarray(filter_rows(mirrored(tile), low_pass_response(2 * side))[:, :side].T)
    return tile


def decibels(x: np.ndarray, low: float, high: float) -> float:
    """Mean power of a band."""
    power = np.abs(np.fft.rfft(mirrored(x))) ** 2
    frequency = np.fft.rfftfreq(2 * len(x), 1 / SAMPLING_HZ)
    return float(10 * np.log10(power[(frequency >= low) & (frequency < high)].mean()))


def draw(path: pathlib.Path, before: np.ndarray, after: np.ndarray, tile: np.ndarray, smoothed: np.ndarray) -> None:
    """Before and after, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplot_mosaic(
        [["before", "before", "tile"], ["after", "after", "smoothed"]], figsize=(12, 6), layout="constrained"
    )
    seconds = np.arange(len(before)) / SAMPLING_HZ
    for name, signal, title in (
        ("before", before, "electrocardiogram as recorded"),
        ("after", after, "without baseline wander and 60 Hz hum"),
    ):
        axes[name].plot(seconds, signal, linewidth=0.8)
        axes[name].set_title(title)
        axes[name].set_xlabel("s")
        axes[name].grid(alpha=0.3)
    for name, picture, title in (("tile", tile, "photograph"), ("smoothed", smoothed, "low-passed")):
        axes[name].imshow(picture, cmap="gray", vmin=0, vmax=255)
        axes[name].set_title(title)
        axes[name].axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the example; returns 0 if all errors are within their bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tile", type=int, help="side of the photograph's tile (default: 64, on a GPU 512)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("out/ecg_filter.png"))
    options = parser.parse_args(arguments)
    on_gpu = home().kind == "gpu"
    if home().kind == "aot":
        parser.error(f"this process only compiles ({home().reason}); unset DEVKERNELS_TARGET to run")
    side = options.tile or (512 if on_gpu else 64)
    print(f"target: {current_target()}, {'on a GPU' if on_gpu else 'in the simulator'} ({home().reason})")

    ecg = np.asarray(pywt.data.ecg(), dtype=np.float64)
    photograph = np.asarray(pywt.data.camera(), dtype=np.float64)
    if not 8 <= side <= min(photograph.shape):
        parser.error(f"--tile {side} is not between 8 and {min(photograph.shape)}")
    top = min(100, photograph.shape[0] - side)
    left = min(210, photograph.shape[1] - side)
    tile = photograph[top : top + side, left : left + side]

    response = ecg_response(2 * len(ecg))
    strip = side if on_gpu else 8
    with tqdm(total=1 + 2 * side, unit="row", desc="filtering", file=sys.stderr) as progress:
        begin = time.perf_counter()
        cleaned = with_devkernels(mirrored(ecg)[None], response, 1, progress)[0, : len(ecg)]
        middle = time.perf_counter()
        smoothed = smooth(tile, lambda rows, h: with_devkernels(rows, h, strip, progress))
        end = time.perf_counter()

    ecg_bound = fft_bound("float32", 2 * len(ecg), transforms=2)
    tile_bound = fft_bound("float32", 2 * side, transforms=4)  # along the rows and along the columns
    results = [
        ("electrocardiogram", cleaned, with_scipy(mirrored(ecg), response)[: len(ecg)], ecg_bound, middle - begin),
        (f"{side} x {side} photograph", smoothed, smooth(tile, with_scipy), tile_bound, end - middle),
    ]
    right = True
    for name, got, want, bound, seconds in results:
        error = relative_error(got, want)
        right = right and error <= bound
        print(f"{name}: error against SciPy {error:.2e} (bound {bound:.2e}), {seconds:.2f} s, compiling included")
    for name, band in BANDS_HZ.items():
        print(f"  {name:13s} {decibels(ecg, *band):6.1f} dB before, {decibels(cleaned, *band):6.1f} dB after")
    draw(options.output, ecg, cleaned, tile, smoothed)
    print(f"before and after: {options.output}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
