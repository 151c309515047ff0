"""``python -m devkernels.env_report``: what is installed, which home this process uses and why, and what is missing.

in: the environment. out: a page of text, or JSON with ``--json``; ``--extra`` prints only the name of the extra that
fits this machine's driver (``cu13``, ``cu12`` or nothing), which is how ``make`` chooses.

Needs nothing but Python: whatever is absent is reported as absent.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import platform
import re
import sys
from dataclasses import dataclass

from devkernels import cache, config
from devkernels._version import __version__
from devkernels.errors import DevkernelsError
from devkernels.target import driver_version, home

BASE = ("numpy", "numba", "numba-cuda")
PACKAGES = (
    *BASE, "llvmlite", "cuda-core", "cuda-bindings", "cuda-pathfinder", "nvidia-libmathdx-cu12",
    "nvidia-libmathdx-cu13", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12", "nvmath-python", "cupy-cuda12x", "cupy-cuda13x", "torch", "scipy",
)  # fmt: skip
TOOLCHAIN = ("nvrtc", "nvvm", "nvJitLink")  # what compiling needs besides libmathdx, from wheels or a CUDA toolkit
MATHDX = ("nvidia-libmathdx-cu12", "nvidia-libmathdx-cu13")
CUPY = ("cupy-cuda12x", "cupy-cuda13x")


@dataclass(frozen=True)
class HomeState:
    """Whether kernels can live in one home: what it still lacks, and the command that helps."""

    name: str
    lacks: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def ready(self) -> bool:
        """True where nothing is lacking."""
        return not self.lacks


def installed() -> dict[str, str | None]:
    """Version of each package that matters, None where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def toolchain() -> dict[str, str | None]:
    """Where each CUDA compiler library lies, None where the loader does not find it."""
    found: dict[str, str | None] = dict.fromkeys(TOOLCHAIN)
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return found
    for name in TOOLCHAIN:
        try:
            found[name] = load_nvidia_dynamic_lib(name.lower() if name != "nvJitLink" else name).abs_path
        except (DynamicLibNotFoundError, RuntimeError, OSError):
            continue
    return found


def gpus() -> list[dict[str, object]]:
    """Name, architecture and memory of each GPU, asked from the driver itself; empty where there is none."""
    if driver_version() is None:
        return []
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    devices = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
        status = [
            driver.cuDeviceGet(ctypes.byref(device), index),
            driver.cuDeviceGetName(name, 256, device),
            driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device),  # compute capability, major
            driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device),  # and minor
            driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
        ]
        if not any(status):
            architecture = f"sm_{major.value}{minor.value}"
            devices.append({"name": name.value.decode(), "architecture": architecture, "bytes": memory.value})
    return devices


def fitting_extra() -> str:
    """The extra for this machine's driver: ``cu13``, ``cu12``, or nothing where there is no (such) driver."""
    version = driver_version()
    if version is None or version < (12, 0):
        return ""
    return "cu13" if version >= (13, 0) else "cu12"


def homes(versions: dict[str, str | None], libraries: dict[str, str | None]) -> list[HomeState]:
    """State of the three homes, from what is installed."""
    base = tuple(name for name in BASE if versions[name] is None)
    simulator = HomeState("simulator", base, "pip install devkernels" if base else "")
    compiling = tuple(name for name in TOOLCHAIN if libraries[name] is None)
    if not any(versions[name] for name in MATHDX):
        compiling = ("libmathdx", *compiling)
    extra = fitting_extra() or "aot"
    ahead = HomeState("ahead of time", base + compiling, f'pip install "devkernels[{extra}]"')
    running: tuple[str, ...] = base + compiling
    remedy = f'pip install "devkernels[{extra}]"'
    if driver_version() is None:
        running = (*running, "a CUDA driver")
        remedy = 'a machine with an NVIDIA driver (CUDA 12 or newer), then pip install "devkernels[cu12]" or [cu13]'
    elif not fitting_extra():
        running = (*running, "a CUDA driver of version 12 or newer")
        remedy = "a newer NVIDIA driver"
    elif not gpus():
        running = (*running, "a GPU that the driver can see")
        remedy = "look at CUDA_VISIBLE_DEVICES, and at the container's GPU settings"
    return [simulator, _settled(ahead), _settled(HomeState("GPU", running, remedy))]


def _settled(state: HomeState) -> HomeState:
    return state if state.lacks else HomeState(state.name)


def conflicts(versions: dict[str, str | None]) -> list[str]:
    """Combinations of packages that are known not to work together, in words."""
    found = []
    if versions["numpy"] and _numbers(versions["numpy"]) >= (2, 5):
        found.append('numpy 2.5 and newer break numba-cuda 0.30: pip install "numpy<2.5"')
    for pair in (MATHDX, CUPY):
        if all(versions[name] for name in pair):
            found.append(f"{pair[0]} and {pair[1]} are both installed: uninstall one")
    cupy_major = 12 if versions[CUPY[0]] else 13 if versions[CUPY[1]] else None
    version = driver_version()
    if cupy_major and version and version[0] < cupy_major:
        found.append(f"CuPy is built for CUDA {cupy_major}, the driver is for {_dotted(version)}: install cupy-cuda12x")
    bindings = versions["cuda-bindings"]
    if bindings:
        for name in MATHDX:
            if versions[name] and _numbers(bindings)[0] != int(name[-2:]):
                found.append(f"{name} beside cuda-bindings {bindings}: both should be of one CUDA version")
    return found


def cache_state() -> str:
    """Where compiled code is kept, and how much of it."""
    try:
        state = cache.info()
    except (ImportError, OSError, DevkernelsError) as error:
        return f"not usable ({error})"
    return f"{state.folder}, {state.total_bytes / 2**20:.1f} of at most {state.limit_bytes / 2**20:.0f} MB"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"


def collect() -> dict[str, object]:
    """Everything the report says, as plain values."""
    versions, libraries, here = installed(), toolchain(), home()
    return {
        "devkernels": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "home": here.kind,
        "home_reason": here.reason,
        "architecture": str(here.architecture) if here.architecture else None,
        "driver_cuda": _dotted(driver_version()),
        "gpus": gpus(),
        "packages": versions,
        "toolchain": libraries,
        "homes": [
            {"name": state.name, "ready": state.ready, "lacks": list(state.lacks), "remedy": state.remedy}
            for state in homes(versions, libraries)
        ],
        "conflicts": conflicts(versions),
        "cache": cache_state(),
        "jit": not config.disable_jit(),
    }


def render(report: dict) -> str:
    """The report as text."""
    packages = [f"{name} {version}" for name, version in report["packages"].items() if version]
    absent = [name for name, version in report["packages"].items() if not version]
    named = {"sim": "simulator", "aot": "ahead of time", "gpu": "GPU"}[report["home"]]
    devices = [f"{gpu['name']} ({gpu['architecture']}, {gpu['bytes'] / 2**30:.0f} GiB)" for gpu in report["gpus"]]
    lines = [
        ("devkernels", f"{report['devkernels']}, Python {report['python']}, {report['system']}"),
        ("home in use", f"{named}{' for ' + report['architecture'] if report['architecture'] else ''}"),
        ("because", report["home_reason"]),
        ("CUDA driver", f"for CUDA {report['driver_cuda']}" if report["driver_cuda"] else "none"),
        ("GPUs", ", ".join(devices) or "none"),
        ("installed", ", ".join(packages) or "none of the packages that matter"),
        ("not installed", ", ".join(absent) or "-"),
        ("compilers", ", ".join(f"{name}: {path or 'not found'}" for name, path in report["toolchain"].items())),
        ("cache", report["cache"] + ("" if report["jit"] else "; DEVKERNELS_DISABLE_JIT is set")),
    ]
    text = [f"{label:14s} {value}" for label, value in lines]
    text.append("\nHomes of kernels")
    for state in report["homes"]:
        if state["ready"]:
            text.append(f"  {state['name']:14s} ready")
        else:
            text.append(f"  {state['name']:14s} lacks {', '.join(state['lacks'])}; {state['remedy']}")
    for conflict in report["conflicts"]:
        text.append(f"\nconflict: {conflict}")
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> int:
    """Print the report. Exit code 1 where packages are known not to work together."""
    parser = argparse.ArgumentParser(prog="python -m devkernels.env_report", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--extra", action="store_true", help="print only the extra that fits the driver")
    options = parser.parse_args(arguments)
    if options.extra:
        print(fitting_extra())
        return 0
    report = collect()
    print(json.dumps(report, indent=1) if options.json else render(report))
    return 1 if report["conflicts"] else 0


if __name__ == "__main__":
    sys.exit(main())
