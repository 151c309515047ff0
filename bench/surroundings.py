"""Where a measurement was made: GPU, driver, versions of packages, date and commit.

in: the machine, the installed packages, and git. out: plain values that go into every row. Importing this module needs
no GPU and no CuPy.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import pathlib
import platform
import subprocess

PACKAGES = (
    "devkernels", "numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "nvmath-python",
    "nvidia-libmathdx-cu12", "nvidia-libmathdx-cu13", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cufft",
    "nvidia-cufft-cu12", "cupy-cuda12x", "cupy-cuda13x", "torch", "scipy",
)  # fmt: skip


def commit() -> str:
    """Commit of the tree that is measured; ``-dirty`` where tracked files differ from it, ``unknown`` without git."""
    here = pathlib.Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", ":!bench/results"],
            cwd=here.parent, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-dirty" if changed else "")


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that bear on a measurement."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    if "devkernels" not in versions:  # run from a checkout
        from devkernels import __version__

        versions["devkernels"] = __version__
    return versions


def environment(commit_name: str | None = None) -> dict[str, object]:
    """GPU, driver, versions, date and commit: part of every row."""
    import cupy as cp

    device = cp.cuda.Device()
    properties = cp.cuda.runtime.getDeviceProperties(device.id)
    versions = package_versions()
    versions["cuda runtime"] = _dotted(cp.cuda.runtime.runtimeGetVersion())
    return {
        "gpu": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "driver": _driver_release(),
        "driver_cuda": _dotted(cp.cuda.runtime.driverGetVersion()),
        "l2_bytes": int(properties["l2CacheSize"]),
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit_name or commit(),
    }


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def _driver_release() -> str:
    """``580.95.05`` and the like; the CUDA version of the driver is a separate entry."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
