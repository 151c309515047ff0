"""Find the heartbeats in a real electrocardiogram: a matched filter, normalised inside its own kernel.

Usage: python examples/find_beats.py [--window 0.2] [--output out/find_beats.png]

The electrocardiogram (1024 samples, 360 Hz) is the one that PyWavelets ships. One of its beats is sought in all of it:
how alike the beat and each stretch of the signal are is their correlation over the norms of both. Two kernels do that:

1. the energy of each stretch, a sum of squares: a convolution with ones whose `prologue` squares each sample as it is
   loaded;
2. the correlation, whose `epilogue` divides each sample, as it is stored, by the root of the energy that the first
   kernel left (`extra`).

On a GPU, or in Numba's simulator without one. Prints where it ran, the error against SciPy in float64, the beats and
the heart rate, and draws them. Exit code 1 if an error is above its bound.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys

import devkernels  # first: it chooses the simulator where there is no driver

import numpy as np
import pywt
from scipy import signal

from devkernels.target import current_target, home
from devkernels.tolerance import fft_bound, relative_error

SAMPLING_HZ = 360.0  # of pywt.data.ecg()
ALIKE = 0.85  # a stretch so much like the beat is one
LEAST = 1e-3  # of the highest energy: stretches with less are no beats, and their direction is noise


def square(value, row, position):
    """Prologue: energy of a sample."""
    return value * value


def normalise(value, row, position, extra):
    """Epilogue: a correlation over the norm of the stretch that it is of."""
    return value / math.sqrt(extra[position])


def likeness(ecg: np.ndarray, beat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Energy of each stretch, and its likeness with the beat, centred, in two kernels."""
    length, taps = len(ecg), len(beat)
    ones = np.ones(taps, "float32")
    energy = devkernels.make_fftconvolve(length, taps, "float32", "same", prologue=square)(ecg, ones)
    energy = np.maximum(energy, energy.max() * np.float32(LEAST))
    match = devkernels.make_fftconvolve(length, taps, "float32", "same", epilogue=normalise)
    template = beat[::-1] / np.linalg.norm(beat)  # reversed: a correlation
    return energy, match(ecg, template, extra=energy)


def with_scipy(ecg: np.ndarray, beat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same in float64: what the kernels are held against."""
    ecg, beat = ecg.astype(np.float64), beat.astype(np.float64)
    energy = signal.fftconvolve(ecg**2, np.ones(len(beat)), "same")
    energy = np.maximum(energy, energy.max() * LEAST)
    return energy, signal.fftconvolve(ecg, beat[::-1] / np.linalg.norm(beat), "same") / np.sqrt(energy)


def draw(path: pathlib.Path, ecg: np.ndarray, alike: np.ndarray, beats: np.ndarray) -> None:
    """The signal with its beats, and how alike each stretch is, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seconds = np.arange(len(ecg)) / SAMPLING_HZ
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 5), layout="constrained")
    above.plot(seconds, ecg, linewidth=0.8)
    above.plot(seconds[beats], ecg[beats], "o")
    above.set_title("electrocardiogram and its beats")
    below.plot(seconds, alike, linewidth=0.8)
    below.axhline(ALIKE, color="grey", linewidth=0.8)
    below.set_title("likeness with one of them")
    below.set_xlabel("s")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the example; returns 0 if all errors are within their bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=float, default=0.2, help="seconds of the beat (default: 0.2)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("out/find_beats.png"))
    options = parser.parse_args(arguments)
    if home().kind == "aot":
        parser.error(f"this process only compiles ({home().reason}); unset DEVKERNELS_TARGET to run")
    print(f"target: {current_target()}, {'on a GPU' if home().kind == 'gpu' else 'in the simulator'} ({home().reason})")

    ecg = np.asarray(pywt.data.ecg(), dtype=np.float64)
    half = int(options.window * SAMPLING_HZ / 2)
    if not 4 <= half <= len(ecg) // 8:
        parser.error(f"--window {options.window} is not between 0.03 and {len(ecg) / 4 / SAMPLING_HZ:.1f} seconds")
    ecg = (ecg - np.median(ecg)).astype("float32")
    middle = half + int(np.abs(ecg[half:-half]).argmax())
    beat = ecg[middle - half : middle + half + 1]

    energy, alike = likeness(ecg, beat)
    want_energy, want_alike = with_scipy(ecg, beat)
    right = True
    # A transform's error is relative to all of its result, so the second kernel's is looked for in the correlation:
    # where the energy is low, the division enlarges it.
    correlation, want_correlation = alike * np.sqrt(energy), want_alike * np.sqrt(want_energy)
    for name, got, want in (("energy", energy, want_energy), ("correlation", correlation, want_correlation)):
        error, bound = relative_error(got, want), fft_bound("float32", 2 * len(ecg), transforms=2)
        right = right and error <= bound
        print(f"{name}: error against SciPy {error:.2e} (bound {bound:.2e})")
    beats, _ = signal.find_peaks(alike, height=ALIKE, distance=int(0.25 * SAMPLING_HZ))
    print(f"{len(beats)} beats at {', '.join(f'{b / SAMPLING_HZ:.2f}' for b in beats)} s")
    if len(beats) > 1:
        print(f"heart rate {60 * SAMPLING_HZ / np.diff(beats).mean():.0f} per minute")
    draw(options.output, ecg, alike, beats)
    print(f"drawn: {options.output}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
