"""What all tests share: tiers chosen by this process's home, seeds that can be repeated, poisoned outputs, a summary.

in: the home of this process (`devkernels.target.home`). out: fixtures `rng`, `empty`, `own_cache`, `built`; markers
sim, aot and gpu by folder; one skip with its reason for a folder whose tests need another home; ``--summary PATH``.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import zlib

import pytest

os.environ.setdefault("DEVKERNELS_QUIET", "1")
# Tests launch small grids on purpose; warnings are errors here, and Numba warns of each of them.
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")

from devkernels.target import home

HERE = pathlib.Path(__file__).parent
NEEDS = {
    "sim": "the simulator: DEVKERNELS_TARGET=sim",
    "aot": "a process that compiles ahead of time: DEVKERNELS_TARGET=sm_90",
    "gpu": "a GPU and its driver: DEVKERNELS_TARGET=gpu",
}


def tier_of(path: pathlib.Path) -> str | None:
    """``sim``, ``aot`` or ``gpu`` for files in the folders of these names; None for tests that any home can run."""
    try:
        first = path.relative_to(HERE).parts[:1]
    except ValueError:
        return None
    return first[0] if first and first[0] in NEEDS else None


def misfit(tier: str) -> str | None:
    """Why tests of `tier` cannot run in this process, or None where they can."""
    here = home()
    if here.kind == tier:
        return None
    return f"needs {NEEDS[tier]} (this process: {here.kind}, {here.reason})"


class _LeftOut(pytest.Item):
    """Stands for a folder whose tests need another home: one skip that says why."""

    def __init__(self, *, reason: str, **kwargs: object):
        super().__init__(**kwargs)
        self.reason = reason

    def runtest(self) -> None:
        pytest.skip(self.reason)

    def reportinfo(self) -> tuple[pathlib.Path, None, str]:
        return self.path, 0, self.name


class _LeftOutFolder(pytest.Directory):
    def collect(self) -> list[pytest.Item]:
        tier = tier_of(self.path)
        item = _LeftOut.from_parent(self, name=f"{tier}-tier", reason=misfit(tier))
        item.add_marker(tier)
        return [item]


def pytest_collect_directory(path: pathlib.Path, parent: pytest.Collector) -> pytest.Collector | None:
    tier = tier_of(path)
    if tier is not None and misfit(tier) is not None:
        return _LeftOutFolder.from_parent(parent, path=path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = tier_of(item.path)
        if tier is not None and item.get_closest_marker(tier) is None:
            item.add_marker(tier)
        for name in NEEDS:
            if item.get_closest_marker(name) is not None and (reason := misfit(name)) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of all random inputs; a new one each run otherwise")
    parser.addoption("--cupy-source", metavar="PATH", help="CuPy's source distribution, or its folder: run its tests")
    parser.addoption("--summary", metavar="PATH", help="write counts, GPU, versions and date of this run as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:  # set here so that the workers of pytest-xdist inherit it
        config.option.seed = secrets.randbelow(2**31)


def pytest_report_header(config: pytest.Config) -> str:
    here = home()
    return f"devkernels: home {here.kind} ({here.reason}); --seed {config.option.seed}"


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache on disk and in memory, whose counts begin at zero, in a process that may compile."""
    from devkernels import cache

    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DEVKERNELS_DISABLE_JIT", raising=False)
    monkeypatch.setattr(cache, "_counts", type(cache._counts)())
    cache.forget()
    yield
    cache.forget()


@pytest.fixture
def rng(request: pytest.FixtureRequest):
    """A random generator of this test's own: other data each run, the same again with the seed that is printed."""
    import numpy as np

    seed = request.config.option.seed
    request.node.add_report_section("setup", "seed", f"random inputs: repeat with --seed {seed}")
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture(scope="session")
def extension_folder(tmp_path_factory) -> str:
    """The cache that `built` is in, one for all processes of a run."""
    return str(tmp_path_factory.getbasetemp().parent / "extension")


@pytest.fixture(scope="session")
def built(extension_folder):
    """The extension for torch; built once."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    from devkernels.linear import _torch_native

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVKERNELS_CACHE_DIR", extension_folder)
        patch.setattr(_torch_native, "_loaded", [])
        _torch_native.build()
        return _torch_native.extension()


@pytest.fixture
def empty():
    """``empty(shape, dtype, xp=numpy)``: an output in which every value that stays unwritten shows."""
    import numpy as np

    def make(shape: object, dtype: object, xp: object = np):
        kind = np.dtype(dtype)
        return xp.full(shape, np.nan if kind.kind in "fc" else np.iinfo(kind).min, dtype=kind)

    return make


def _gpu_line() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [part.strip() for part in lines[0].split(",")] if lines else []


def _summary(config: pytest.Config, stats: dict, exit_status: int) -> dict[str, object]:
    from bench.surroundings import commit, package_versions

    outcomes = ("passed", "failed", "error", "skipped", "deselected", "xfailed", "xpassed")
    gpu, driver, capability = (*_gpu_line(), None, None, None)[:3]
    left_out = {}
    for report in stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        left_out[reason] = left_out.get(reason, 0) + 1
    folders: dict[str, int] = {}
    for report in stats.get("passed", []):
        if report.when == "call":
            file = report.nodeid.partition("::")[0]
            folders[file] = folders.get(file, 0) + 1
    return {
        "counts": {name: len(stats.get(name, [])) for name in outcomes},
        "passed_by_file": dict(sorted(folders.items())),
        "skipped_because": left_out,
        "failed": [report.nodeid for report in (*stats.get("failed", []), *stats.get("error", []))],
        "exit_status": int(exit_status),
        "home": home().kind,
        "gpu": gpu,
        "driver": driver,
        "compute_capability": capability,
        "versions": package_versions(),
        "seed": config.option.seed,
        "markers": config.option.markexpr,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": os.environ.get("COMMIT") or commit(),
    }


def pytest_terminal_summary(terminalreporter: object, exitstatus: int, config: pytest.Config) -> None:
    path = config.option.summary
    if path:
        target = pathlib.Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(_summary(config, terminalreporter.stats, exitstatus), indent=1) + "\n")
        terminalreporter.write_line(f"summary written to {path}")
