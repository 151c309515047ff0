"""One small launch of each convolution kernel, and compute-sanitizer's word on them; not collected by pytest.

python tests/gpu/sanitize_convolve.py                      run the kernels and check their results
python tests/gpu/sanitize_convolve.py --check RESULT.json  the same under memcheck, racecheck and synccheck
"""

import argparse
import dataclasses
import json
import pathlib
import re
import subprocess
import sys

TOOLS = ("memcheck", "racecheck", "synccheck")
ROWS = [
    # x, h, mode, dtype: block barriers and warp barriers, tails, two rows at a time, masks, wrapping
    ((3, 64), (64,), "circular", "complex64"),
    ((3, 512), (512,), "circular", "complex64"),
    ((3, 2048), (2048,), "circular", "complex64"),
    ((3, 4096), (4096,), "circular", "complex64"),
    ((140, 16384), (16384,), "circular", "complex64"),  # more rows than multiprocessors: fetched ahead
    ((3, 2048), (2048,), "circular", "complex128"),
    ((5, 1536), (100,), "circular", "float32"),
    ((5, 256), (256,), "circular", "float32"),
    ((9, 640), (640,), "circular", "complex64"),  # stages of different numbers of threads
    ((9, 480), (480,), "circular", "float32"),
    ((3, 1440), (1440,), "circular", "complex64"),
    ((2, 3, 3072), (3, 3072), "causal", "float32"),
    ((2, 3, 4096), (3, 4096), "causal", "float32"),
    ((2, 3, 1000), (3, 1000), "full", "float32"),
    ((2, 1000), (1000,), "causal", "float16"),
    ((2, 8192), (8192,), "causal", "float32"),
    ((2, 5000), (63,), "same", "float32"),
    ((2, 997), (31,), "circular", "complex64"),
    # four-step: one half, two halves, segments, rows that begin with their own end
    ((2, 16384), (17000,), "same", "float32"),
    ((1, 40000), (13000,), "same", "float32"),
    ((1, 17011), (17011,), "circular", "complex64"),
    ((1, 9000), (9000,), "full", "float64"),
]
IMAGES = [
    ((3, 33, 70), (5, 6), "same", "float32"),
    ((3, 64, 64), (64, 64), "circular", "float32"),
    ((2, 37, 41), (9, 7), "circular", "complex64"),
    ((3, 1100, 30), (9, 5), "same", "float32"),  # columns in two segments, rows in two
    ((2, 30, 1100), (5, 9), "same", "complex64"),
]


def operands(cp, rng, x_shape, h_shape, dtype):
    def random(shape):
        values = rng.standard_normal(shape)
        if dtype.startswith("c"):
            values = values + 1j * rng.standard_normal(shape)
        return cp.asarray(values.astype(dtype))

    return random(x_shape), random(h_shape)


def main():
    import cupy as cp
    import numpy as np

    import devkernels
    from devkernels.kernels import convolve_long, convolve_plan, convolver2d
    from devkernels.kernels.convolve_plan2d import axis_plans
    from devkernels.kernels.convolver import FFTConvolve
    from tests.convolution_cases import bound, error, reference

    rng, ran = np.random.default_rng(0), 0
    for x_shape, h_shape, mode, dtype in ROWS:
        x, h = operands(cp, rng, x_shape, h_shape, dtype)
        y, (a, b) = devkernels.fftconvolve(x, h, mode).get(), (x.get(), h.get())
        assert error(y, reference(a, b, mode), a, b, mode) < bound(dtype, 1 << 17), (x_shape, mode, dtype)
        ran += 1
    within = convolve_long._SPECTRA_IN_L2
    convolve_long._SPECTRA_IN_L2 = 0  # page rows of all plates one after the other
    x, h = operands(cp, rng, (3, 16384), (16384,), "complex64")
    plan = FFTConvolve(
        convolve_plan.plan_rows("circular", 16384, 16384, "complex64", "four-step"), "complex64", "circular"
    )
    y, (a, b) = plan(x, h).get(), (x.get(), h.get())
    assert error(y, reference(a, b, "circular"), a, b, "circular") < bound("complex64", 1 << 15)
    convolve_long._SPECTRA_IN_L2 = within
    ran += 1
    for mode, method in (("same", "overlap"), ("full", None), ("circular", None)):  # functions that read an array

        def gate(value, row, position, extra):
            return value * extra[row * 300 + position]

        def divide(value, row, position, extra):
            return value / (2 + extra[position])

        x, h = operands(cp, rng, (3, 300), (50,), "float32")
        extra = cp.asarray(rng.uniform(1, 2, 900).astype("float32"))
        rows = convolve_plan.plan_rows(mode, 300, 50, "float32", method)
        y = FFTConvolve(rows, "float32", mode, gate, divide)(x, h, extra=extra).get()
        a, b, more = x.get() * extra.get().reshape(3, 300), h.get(), extra.get()
        want = reference(a, b, mode)
        assert error(y, want / (2 + more[: want.shape[-1]]), a, b, mode) < bound("float32", 1024)
        ran += 1
    for size in (64, 1536):  # a row that is not finite, kept from its neighbour
        x, h = operands(cp, rng, (5, size), (size,), "float32")
        x[1, 3] = cp.nan
        y = devkernels.fftconvolve(x, h, "circular")
        assert not bool(cp.isnan(y[cp.asarray([0, 2, 3, 4])]).any())
        ran += 1
    for mode, length, taps in (("same", 300, 90), ("circular", 100, 90)):  # as with filters of millions of samples
        plan = dataclasses.replace(
            convolve_plan.plan_rows(mode, length, taps, "float32", "overlap"), method="overlap", size=128,
            part_limit=64, wraps=mode == "circular",
        )  # fmt: skip
        x, h = operands(cp, rng, (2, length), (taps,), "float32")
        y, (a, b) = FFTConvolve(plan, "float32", mode)(x, h).get(), (x.get(), h.get())
        assert error(y, reference(a, b, mode), a, b, mode) < bound("float32", 256)
        ran += 1
    for x_shape, h_shape, mode, dtype in IMAGES:
        x, h = operands(cp, rng, x_shape, h_shape, dtype)
        x[0, 1, 2] = cp.nan
        y = devkernels.fftconvolve(x, h, mode, axes=(-2, -1))
        assert not bool(cp.isnan(y[1:]).any()), (x_shape, mode)
        spoilt = cp.isnan(y[0])  # all of it, or of complex images the segments that meet it
        assert bool(spoilt.any() if dtype == "complex64" else spoilt.all()), (x_shape, mode)
        ran += 1
    limit, convolver2d._HALVED = convolver2d._HALVED, 1  # one real image as two halves
    plan = convolver2d.FFTConvolve2D(axis_plans((70, 40), (5, 6), "float32", "same"), "float32", "same")
    assert plan._in_halves is not None
    x, h = operands(cp, rng, (1, 70, 40), (5, 6), "float32")
    want = convolver2d.FFTConvolve2D(plan.plans, "float32", "same")(x, spectra=plan.prepare(h))
    assert float(cp.linalg.norm((plan(x, h) - want).ravel()) / cp.linalg.norm(want.ravel())) < bound("float32", 1 << 13)
    convolver2d._HALVED = limit
    ran += 1
    cp.cuda.Device().synchronize()
    print(f"{ran} cases ran")


def check(path, commit):
    from bench.surroundings import environment

    results = {}
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, __file__]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", run.stdout)
        cases = re.search(r"(\d+) cases ran", run.stdout)
        results[tool] = {
            "exit_status": run.returncode, "summary": summary, "cases": int(cases[1]) if cases else 0,
            "tail": [] if run.returncode == 0 else (run.stdout + run.stderr).splitlines()[-60:],
        }  # fmt: skip
        print(tool, run.returncode, summary, flush=True)
        pathlib.Path(path).write_text(
            json.dumps({"environment": environment(commit), "tools": results}, indent=1) + "\n"
        )
    return 1 if any(result["exit_status"] for result in results.values()) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", metavar="RESULT.json")
    parser.add_argument("--commit", help="of the tree that is checked, where git cannot say")
    given = parser.parse_args()
    sys.exit(check(given.check, given.commit) if given.check else main())
