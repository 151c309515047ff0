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

# Parts of this package, by how the paths of their files begin; all other files are its core. What writes machine code
# is the core, and those parts whose functions or objects a kernel refers to: an edit of the engine leaves products be.
# The host's part writes none: what a kernel takes from it is device code, which is in the key itself.
PARTS = {
    "engine": ("engine/",),
    "products": ("matrix/", "device/_matmul", "device/collectives", "device/matmul", "device/numba_matmul",
                 "device/numba_pipeline", "device/numba_tiles", "device/simulated_matmul", "device/tile",
                 "libmathdx/matmul", "matmul_", "pipeline_spec"),
    "host": ("env_report", "graphs", "kernels/", "launch/", "linear/"),
}  # fmt: skip
CORE, HOST = "core", "host"


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


def for_kernels() -> dict[str, str]:
    """`libraries`, with the core of devkernels only: the key of a kernel says itself which other parts it uses."""
    return libraries() | {"devkernels": f"{__version__}+{source_digest(CORE)}"}


def part_of(module: str) -> str:
    """The part of this package that a module belongs to, by its dotted name."""
    path = module.removeprefix("devkernels").lstrip(".").replace(".", "/")
    for part, beginnings in PARTS.items():
        if any(path.startswith(beginning) or path + "/" == beginning for beginning in beginnings):
            return part
    return CORE


def source_digest(part: str | None = None) -> str:
    """Digest of this package's own Python files, or of one part's: an edited checkout never meets its older kernels."""
    return _source_digests()[part or ""]


@functools.cache
def _source_digests() -> dict[str, str]:
    root = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(".py")]
    states = {part: hashlib.sha256() for part in ("", CORE, *PARTS)}
    for path in sorted(paths):
        name = path[len(root) :]
        with open(path, "rb", buffering=0) as file:  # without pathlib: a third of the time, in every process
            content = name.encode() + b"\0" + file.read() + b"\0"
        module = name.removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__")
        for part in ("", part_of(module)):
            states[part].update(content)
    return {part: state.hexdigest() for part, state in states.items()}


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
