"""What a program pays before its first correct result: ``python bench/start.py [--repeats 5] [--results FOLDER]``.

in: programs (a user's kernel with two FFTs; the ready spectral filter), each run as a whole process in several ways:
through nvmath.device and numba.cuda as published (nothing is kept between processes), through devkernels with an empty
cache, with a full cache, and from an image; and the floor, a program that imports the same array library, makes a
context, and copies the same data there and back. out: rows of bench/results/start.json; `first_result_ms` runs from the
start of the process to the moment when the result is known to be right, `ms` to its end; `stages_ms` says where the
time XX
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

from bench.report import Table  # noqa: E402 - the checkout comes first on the path

TABLES = {
    "start": Table(
        rows=("program",),
        metric="first_result_s",
        note="Seconds from the start of a process to its first correct result.",
    )
}


PROGRAMS = {
    "two-FFT kernel": {
        "nvmath.device + numba.cuda": ("two_fft_nvmath", "none"),
        "devkernels, empty cache": ("two_fft_devkernels", "empty"),
        "devkernels, full cache": ("two_fft_devkernels", "full"),
        "devkernels, image": ("two_fft_image", "full"),
        "floor": ("floor", "full"),
    },
    "two-FFT kernel, no CuPy": {
        "devkernels, empty cache": ("two_fft_devkernels", "empty", "bindings"),
        "devkernels, full cache": ("two_fft_devkernels", "full", "bindings"),
        "devkernels, image": ("two_fft_image", "full", "bindings"),
        "floor": ("floor", "full", "bindings"),
    },
    "spectral filter": {
        "cupy.fft": ("cupy_fft", "full"),
        "devkernels, empty cache": ("filter_devkernels", "empty"),
        "devkernels, full cache": ("filter_devkernels", "full"),
        "floor": ("floor", "full"),
    },
}


def run(child: str, cache: str, image: str, bytecode: str, arrays: str = "cupy") -> dict[str, object]:
    """Run one child process; return what it measured, with `ms` for all of it."""
    environment = os.environ | {
        "DEVKERNELS_CACHE_DIR": cache,
        "BENCH_IMAGE": image,
        "DEVKERNELS_QUIET": "1",
        "BENCH_ARRAYS": arrays,
        "PYTHONPYCACHEPREFIX": bytecode,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.time()
    command = [sys.executable, str(HERE.parent / "_start_programs.py"), child]
    environment |= {"BENCH_STARTED": repr(started)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    total = round(1e3 * (time.time() - started), 1)
    if done.returncode:
        return {"failed": " ".join(done.stderr.split())[-400:]}
    return {"ms": total, **json.loads(done.stdout.strip().splitlines()[-1])}


def main() -> int:
    """Measure all programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="processes with a full cache")
    parser.add_argument("--cold-repeats", type=int, default=2, help="processes that compile")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--commit", help="commit to write into the rows where there is no git")
    parser.add_argument("--warm", action="store_true", help="leave out what compiles")
    parser.add_argument("--program", action="append", choices=list(PROGRAMS))
    options = parser.parse_args()
    from bench import harness, result_files
    from bench.surroundings import environment

    surroundings, failures = environment(options.commit), 0
    for program in options.program or PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(program, folder, options.repeats, 0 if options.warm else options.cold_repeats)
        rows = []
        for contender, runs in measured.items():
            row = {"case": {"program": program}, "contender": contender, **surroundings, "processes": len(runs)}
            failed = next((one for one in runs if "failed" in one), None)
            if failed is not None:
                row["failed"], failures = failed["failed"], failures + 1
            else:
                for key in ("ms", "first_result_ms"):
                    row[key] = harness.percentiles([one[key] for one in runs])
                middle = sorted(runs, key=lambda one: one["first_result_ms"])[len(runs) // 2]
                row |= {key: middle[key] for key in ("stages_ms", "error", "builds", "numba_imported")}
            rows.append(row)
            shown = ("case", "contender", "ms", "first_result_ms", "stages_ms", "builds", "failed")
            print(json.dumps({key: row.get(key) for key in shown}), flush=True)
        print(result_files.merge_rows("start", rows, options.results or result_files.RESULTS))
    return 1 if failures else 0


def measure(program: str, folder: str, repeats: int, cold_repeats: int) -> dict[str, list[dict]]:
    """What the processes of a program measured, by contender; those that start warm take turns."""
    image, bytecode = f"{folder}/kernel.dkimage", f"{folder}/bytecode"
    filling, _, *arrays = PROGRAMS[program]["devkernels, empty cache"]
    run(filling, f"{folder}/full", image, bytecode, *arrays)  # fills the cache, and writes the image
    measured: dict[str, list[dict]] = {contender: [] for contender in PROGRAMS[program]}
    for turn in range(repeats + 1):
        for contender, (child, state, *arrays) in PROGRAMS[program].items():
            if state == "full":
                found = run(child, f"{folder}/full", image if "image" in child else "", bytecode, *arrays)
                if turn or "failed" in found:  # the first turn writes the bytecode of what is imported
                    measured[contender].append(found)
            elif turn < cold_repeats:
                measured[contender].append(run(child, f"{folder}/{child}-{turn}", "", bytecode, *arrays))
    return {contender: runs for contender, runs in measured.items() if runs}


if __name__ == "__main__":
    sys.exit(main())
