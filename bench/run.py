"""Run benchmarks: ``python bench/run.py spectral_filter [--select size=64] [--graph]``.

in: names of modules of this folder that have `CASES` and `set_up`. out: bench/results/<name>.json, and a line for
each measurement. Exit code 1 if a contender failed or was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from bench import harness, result_files  # noqa: E402 - the checkout comes first on the path


def available() -> list[str]:
    """Names of the benchmarks of this folder."""
    tools = {"__init__", "captured", "harness", "images", "report", "result_files", "run", "start", "surroundings"}
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in tools and not path.stem.startswith("_"))


def select(cases: list[dict[str, object]], wishes: list[str]) -> list[dict[str, object]]:
    """Cases that agree with all ``key=value`` wishes; several values of one key: any of them."""
    wanted: dict[str, set[str]] = {}
    for wish in wishes:
        key, separator, value = wish.partition("=")
        if not separator:
            raise SystemExit(f"--select {wish!r} is not key=value")
        wanted.setdefault(key, set()).add(value)
    return [case for case in cases if all(str(case.get(key)) in values for key, values in wanted.items())]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; none: list them")
    parser.add_argument("--list", action="store_true", help="list benchmarks and their cases; needs no GPU")
    parser.add_argument("--select", action="append", default=[], metavar="KEY=VALUE", help="only cases with this value")
    parser.add_argument("--graph", action="store_true", help="also replay CUDA graphs of ten launches")
    parser.add_argument("--rounds", type=int, default=harness.Effort.rounds, help="event pairs for each contender")
    parser.add_argument("--results", type=pathlib.Path, default=result_files.RESULTS, help="folder of the JSON files")
    parser.add_argument("--commit", help="commit to write into the rows where there is no git")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(available()):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(available())}")
    if options.list or not options.names:
        for name in options.names or available():
            print(name)
            for case in importlib.import_module(f"bench.{name}").CASES:
                print("   ", " ".join(f"{key}={value}" for key, value in case.items()))
        return 0
    failures = 0
    for name in options.names:
        module = importlib.import_module(f"bench.{name}")
        for library in getattr(module, "IMPORTS", ()):  # before the stream is chosen that it must use too
            with contextlib.suppress(ImportError):
                importlib.import_module(library)
        cases = select(list(module.CASES), options.select)
        if not cases:
            raise SystemExit(f"{name}: no case agrees with --select {' '.join(options.select)}")
        failures += harness.run_benchmark(
            name,
            cases,
            module.set_up,
            effort=harness.Effort(
                rounds=options.rounds,
                graph=options.graph or getattr(module, "GRAPH", False),
                held=getattr(module, "HELD", False),
                host_rounds=getattr(module, "HOST_ROUNDS", harness.Effort.host_rounds),
            ),
            folder=options.results,
            commit_name=options.commit,
        )
        print(f"{name}: wrote {result_files.results_path(name, options.results)}")
    if failures:
        print(f"{failures} contender(s) failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
