"""What a program pays before its first correct result: ``python bench/start.py [--repeats 5] [--results FOLDER]``.

in: programs (a user's kernel with two FFTs; the ready spectral filter), each run as a whole process in several ways:
through nvmath.device and numba.cuda as published (nothing is kept between processes), through devkernels with an empty
cache, with a full cache, and from an image. out: rows of bench/results/start.json; `ms` is the whole process, from its
start to its end; `first_result_ms` up to the moment when the result is known to be right; `stages_ms` says where the
time goes; `builds` counts what was compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent.parent)]

SIZE, ROWS = 256, 1000
CASES: list[dict[str, object]] = []  # nothing for bench/run.py: whole processes are not timed with events


class Clock:
    """Stages of a process; the first includes the start of Python, which began at the time in the environment."""

    def __init__(self):
        self.stages: dict[str, float] = {}
        self.start = self.last = float(os.environ["BENCH_STARTED"])

    def mark(self, stage: str) -> None:
        now = time.time()
        self.stages[stage] = round(1e3 * (now - self.last), 1)
        self.last = now

    def report(self, error: float, bound: float, builds: int) -> None:
        first = round(1e3 * (time.time() - self.start), 1)
        assert error <= bound, f"error {error}"
        print(json.dumps({"first_result_ms": first, "stages_ms": self.stages, "error": error, "builds": builds}))


def _data(cp):
    import numpy as np

    rng = np.random.default_rng()
    x = (rng.standard_normal((ROWS, SIZE)) + 1j * rng.standard_normal((ROWS, SIZE))).astype(np.complex64)
    h = (rng.standard_normal(SIZE) + 1j * rng.standard_normal(SIZE)).astype(np.complex64)
    want = np.fft.ifft(np.fft.fft(x[:50].astype(complex)) * h)
    return cp.asarray(x), cp.asarray(h), cp.full((ROWS, SIZE), np.nan, np.complex64), want


def _error(y, want, scale=1.0):
    import numpy as np

    got = y[:50].get() / scale
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def two_fft_nvmath() -> None:
    """The published way."""
    clock = Clock()
    clock.mark("python")
    import cupy as cp

    x, h, y, want = _data(cp)
    clock.mark("cupy and data")
    import numpy as np
    from numba import cuda
    from nvmath.device import FFT

    clock.mark("import numba, nvmath")
    options = dict(fft_type="c2c", size=SIZE, precision=np.float32, execution="Block")
    forward, inverse = FFT(direction="forward", **options), FFT(direction="inverse", **options)
    storage, stride, ept, fpb = (
        forward.storage_size,
        forward.stride,
        forward.elements_per_thread,
        forward.ffts_per_block,
    )
    value_type = forward.value_type
    shared_size = max(forward.shared_memory_size, inverse.shared_memory_size)
    block = forward.block_dim

    @cuda.jit
    def convolve(x, h, y):
        thread_data = cuda.local.array(storage, value_type)
        shared = cuda.shared.array(0, value_type)
        row = cuda.blockIdx.x * fpb + cuda.threadIdx.y
        if row >= x.shape[0]:
            return
        for i in range(ept):
            thread_data[i] = x[row, cuda.threadIdx.x + i * stride]
        forward(thread_data, shared)
        for i in range(ept):
            thread_data[i] = thread_data[i] * h[cuda.threadIdx.x + i * stride]
        inverse(thread_data, shared)
        for i in range(ept):
            y[row, cuda.threadIdx.x + i * stride] = thread_data[i]

    clock.mark("device functions")
    convolve[-(-ROWS // fpb), tuple(block), 0, shared_size](x, h, y)
    cp.cuda.Device().synchronize()
    clock.mark("compile and launch")
    clock.report(_error(y, want, SIZE), 1e-5, -1)


def two_fft_devkernels() -> None:
    """The same kernel text through devkernels."""
    clock = Clock()
    clock.mark("python")
    import cupy as cp

    x, h, y, want = _data(cp)
    clock.mark("cupy and data")
    from numba import complex64, cuda

    clock.mark("import numba")
    import numpy as np

    import devkernels
    from devkernels import cache

    clock.mark("import devkernels")
    forward = devkernels.fft(fft_type="c2c", size=SIZE, precision=np.float32, direction="forward")
    inverse = forward.inverse()
    storage = forward.storage_size

    @devkernels.kernel
    def convolve(x, h, y):
        thread_data = cuda.local.array(storage, complex64)
        shared = cuda.shared.array(0, complex64)
        row = forward.row()
        forward.load(x, row, thread_data)
        forward(thread_data, shared)
        for i in range(storage):
            thread_data[i] = thread_data[i] * h[forward.index(i)]
        cuda.syncthreads()
        inverse(thread_data, shared)
        inverse.store(thread_data, y, row)

    clock.mark("device functions")
    convolve[forward.launch(rows=ROWS)](x, h, y)
    cp.cuda.Device().synchronize()
    clock.mark("compile or load, and launch")
    clock.report(_error(y, want, SIZE), 1e-5, cache.counts()["builds"])
    if path := os.environ.get("BENCH_IMAGE"):
        plan = forward.launch(rows=ROWS)
        notes = {"grid": list(plan[0]), "block": list(plan[1]), "shared": plan[3]}
        signature = "void(complex64[:,::1], complex64[::1], complex64[:,::1])"
        devkernels.compile(convolve, signature, notes=notes).save(path)


def two_fft_image() -> None:
    """The same kernel from an image file: no compiler, no Numba."""
    clock = Clock()
    clock.mark("python")
    import cupy as cp

    x, h, y, want = _data(cp)
    clock.mark("cupy and data")
    import devkernels

    kernel = devkernels.load_image(os.environ["BENCH_IMAGE"])
    clock.mark("import devkernels, read image")
    notes = kernel.image.notes
    kernel[notes["grid"], notes["block"], None, notes["shared"]](x, h, y)
    cp.cuda.Device().synchronize()
    clock.mark("load and launch")
    assert "numba" not in sys.modules
    clock.report(_error(y, want, SIZE), 1e-5, 0)


def filter_devkernels() -> None:
    """The ready spectral filter."""
    clock = Clock()
    clock.mark("python")
    import cupy as cp

    x, h, y, want = _data(cp)
    clock.mark("cupy and data")
    import devkernels
    from devkernels import cache

    clock.mark("import devkernels")
    y = devkernels.spectral_filter(x, h)
    cp.cuda.Device().synchronize()
    clock.mark("filter")
    clock.report(_error(y, want), 1e-5, cache.counts()["builds"])


def floor() -> None:
    """What any CuPy program pays: the interpreter, CuPy, a context, the data, one small kernel of CuPy's own."""
    clock = Clock()
    clock.mark("python")
    import cupy as cp

    x, h, y, want = _data(cp)
    clock.mark("cupy and data")
    y[...] = cp.fft.ifft(cp.fft.fft(x) * h)
    cp.cuda.Device().synchronize()
    clock.mark("cupy.fft")
    clock.report(_error(y, want), 1e-5, 0)


PROGRAMS = {
    "two-FFT kernel": {
        "nvmath.device + numba.cuda": ("two_fft_nvmath", "none"),
        "devkernels, empty cache": ("two_fft_devkernels", "empty"),
        "devkernels, full cache": ("two_fft_devkernels", "full"),
        "devkernels, image": ("two_fft_image", "full"),
    },
    "spectral filter": {
        "cupy.fft": ("floor", "none"),
        "devkernels, empty cache": ("filter_devkernels", "empty"),
        "devkernels, full cache": ("filter_devkernels", "full"),
    },
}


def run(child: str, cache: str, image: str) -> dict[str, object]:
    """Run one child process; return what it measured, with `ms` for all of it."""
    environment = os.environ | {"DEVKERNELS_CACHE_DIR": cache, "BENCH_IMAGE": image, "DEVKERNELS_QUIET": "1"}
    started = time.time()
    done = subprocess.run(
        [sys.executable, str(HERE), "--child", child], env=environment | {"BENCH_STARTED": repr(started)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    total = round(1e3 * (time.time() - started), 1)
    if done.returncode:
        return {"failed": " ".join(done.stderr.split())[-400:]}
    return {"ms": total, **json.loads(done.stdout.strip().splitlines()[-1])}


def main() -> int:
    """Measure all programs, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=5, help="processes with a full cache; half as many with none")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--commit", help="commit to write into the rows where there is no git")
    parser.add_argument("--program", action="append", choices=list(PROGRAMS))
    options = parser.parse_args()
    if options.child:
        globals()[options.child]()
        return 0
    from bench import harness

    surroundings, failures = harness.environment(options.commit), 0
    for program in options.program or PROGRAMS:
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            image = f"{folder}/kernel.dkimage"
            run(PROGRAMS[program]["devkernels, empty cache"][0], f"{folder}/full", image)  # fills cache and page cache
            for contender, (child, state) in PROGRAMS[program].items():
                repeats = options.repeats if state == "full" else max(options.repeats // 2, 1)
                runs = []
                for repeat in range(repeats):
                    runs.append(
                        run(child, f"{folder}/{'full' if state == 'full' else f'empty-{contender}-{repeat}'}", image)
                    )
                failed = next((one for one in runs if "failed" in one), None)
                row = {"case": {"program": program}, "contender": contender, **surroundings, "processes": repeats}
                if failed is not None:
                    row["failed"], failures = failed["failed"], failures + 1
                else:
                    for key in ("ms", "first_result_ms"):
                        row[key] = harness.percentiles([one[key] for one in runs])
                    middle = sorted(runs, key=lambda one: one["ms"])[len(runs) // 2]
                    row |= {key: middle[key] for key in ("stages_ms", "error", "builds")}
                rows.append(row)
                print(json.dumps({key: row.get(key) for key in ("case", "contender", "ms", "first_result_ms",
                                                                "stages_ms", "builds", "failed")}), flush=True)  # fmt: skip
        folder_of_results = options.results or harness.RESULTS
        print(harness.merge_rows("start", rows, folder_of_results))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
