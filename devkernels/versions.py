"""Which libraries would compile here: a part of every cache key, read without importing or loading any of them.

In: the metadata of installed packages, and of a toolkit that provides what no package does. Out: plain dicts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path

from devkernels._version import __version__

# Role -> distributions that can fill it. All that are installed count: which one is loaded is decided later.
_PACKAGES = {
    "numba": ("numba",),
    "numba-cuda": ("numba-cuda",),
    "llvmlite": ("llvmlite",),
    "numpy": ("numpy",),
    "nvmath": ("nvmath-python",),
    "cuda-core": ("cuda-core",),
    "libmathdx": ("nvidia-libmathdx-cu12", "nvidia-libmathdx-cu13"),
    "nvrtc": ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"),
    "nvvm": ("nvidia-cuda-nvcc-cu12", "nvidia-nvvm"),
    "nvjitlink": ("nvidia-nvjitlink-cu12", "nvidia-nvjitlink"),
}
_NEVER_ABSENT = ("numba", "numba-cuda", "llvmlite", "numpy")
_FROM_TOOLKIT = ("nvrtc", "nvvm", "nvjitlink")
FOR_FUNCTIONS = ("devkernels", "libmathdx", "nvrtc")  # what the LTO-IR of a library function depends on


@functools.cache
def libraries() -> dict[str, str]:
    """Versions of everything that takes part in compiling; an empty string for what is not installed."""
    installed = _installed()
    found = {"devkernels": f"{__version__}+{source_digest()[:16]}", "python": ".".join(map(str, sys.version_info[:3]))}
    for role, names in _PACKAGES.items():
        found[role] = ", ".join(f"{name} {version}" for name in names if (version := _version(name, installed)))
    if any(not found[role] for role in _FROM_TOOLKIT):
        found["toolkit"] = _toolkit()
    return found


def _installed() -> dict[str, str]:
    """Version by normal name of every installed package, from the names of their folders alone.

    Thirty times as fast as asking importlib.metadata for each, which counts in a program that compiles nothing.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                package, _, version = name.removesuffix(".dist-info").rpartition("-")
                found.setdefault(package.replace("_", "-").lower(), version)
    return found


def _version(name: str, installed: dict[str, str]) -> str:
    if name in installed or name not in _NEVER_ABSENT:
        return installed.get(name, "")
    from importlib.metadata import PackageNotFoundError, version  # installed in a way that leaves no such folder

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def for_functions() -> dict[str, str]:
    """Those versions that the LTO-IR of a device function depends on, whatever kernel calls it.

    The source of devkernels is left out (its version stays in): a function is described by its request alone.
    """
    chosen = {role: libraries().get(role, "") for role in (*FOR_FUNCTIONS, "toolkit")}
    return chosen | {"devkernels": __version__}


@functools.cache
def source_digest() -> str:
    """Digest of this package's own Python files, so that an edited checkout never meets its older kernels."""
    root = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(".py")]
    state = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb", buffering=0) as file:  # without pathlib: a third of the time, in every process
            state.update(path[len(root) :].encode() + b"\0" + file.read() + b"\0")
    return state.hexdigest()


def _toolkit() -> str:
    """Identity of a CUDA toolkit that is installed as a whole: its version file, where one is found."""
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if not folder:
            continue
        for name in ("version.json", "version.txt"):
            try:
                content = (Path(folder) / name).read_bytes()
            except OSError:
                continue
            return f"{Path(folder).resolve()} {hashlib.sha256(content).hexdigest()[:16]}"
    return ""
