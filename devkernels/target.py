"""Where kernels run or are compiled for: the simulator, a GPU, or an architecture named ahead of time.

In: `DEVKERNELS_TARGET` and what the machine has. Out: the process's `home()`, and `Target` values that know the
limits of an architecture. No CUDA library is imported here; a driver is looked for with the dynamic loader.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from devkernels import config
from devkernels.errors import TargetError

# Threads per block and registers per block are the same for all of these; shared memory is not.
# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_SHARED_PER_BLOCK = {
    (7, 5): 64 << 10, (8, 0): 163 << 10, (8, 6): 99 << 10, (8, 7): 163 << 10, (8, 9): 99 << 10,
    (9, 0): 227 << 10, (10, 0): 227 << 10, (10, 3): 227 << 10, (12, 0): 99 << 10, (12, 1): 99 << 10,
}  # fmt: skip
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
DEFAULT_ARCHITECTURE = "sm_90"  # what the simulator imitates, and ahead-of-time builds assume, when nothing is said


@dataclass(frozen=True, order=True)
class Target:
    """One architecture, as ``sm_90``; `arch_specific` is the ``a`` of ``sm_90a`` (wgmma and the like)."""

    major: int
    minor: int
    arch_specific: bool = False

    @classmethod
    def parse(cls, value: object) -> Target:
        """Accept a Target, ``"sm_90"``, ``"sm_90a"``, ``90``, ``(9, 0)`` or nvmath's ComputeCapability."""
        if isinstance(value, Target):
            target = value
        elif isinstance(value, str) and (match := re.fullmatch(r"sm_?(\d+)(\d)(a?)", value.strip().lower())):
            target = cls(int(match[1]), int(match[2]), bool(match[3]))
        elif isinstance(value, int) and not isinstance(value, bool):
            target = cls(value // 10, value % 10)
        elif isinstance(value, (tuple, list)) and len(value) in (2, 3) and all(isinstance(v, int) for v in value[:2]):
            target = cls(value[0], value[1], len(value) == 3 and value[2] == "a")
        else:
            raise TargetError(f"{value!r} is not an architecture; write it as 'sm_90', 90 or (9, 0).")
        if (target.major, target.minor) not in _SHARED_PER_BLOCK:
            known = ", ".join(f"sm_{a}{b}" for a, b in _SHARED_PER_BLOCK)
            raise TargetError(f"Architecture {target} is not supported; known are {known}.")
        return target

    @property
    def cc(self) -> tuple[int, int]:
        """Compute capability as Numba wants it."""
        return self.major, self.minor

    @property
    def number(self) -> int:
        """90 for ``sm_90``."""
        return self.major * 10 + self.minor

    @property
    def max_shared_bytes(self) -> int:
        """Most shared memory that one block may ask for, after opting in."""
        return _SHARED_PER_BLOCK[self.cc]

    max_threads_per_block = 1024
    max_registers_per_block = 65536
    max_registers_per_thread = 255

    def __str__(self) -> str:
        return f"sm_{self.number}{'a' if self.arch_specific else ''}"


def driver_present() -> bool:
    """Whether a CUDA driver that answers is installed. Does not initialise it (safe before a fork)."""
    return driver_version() is not None


@functools.cache
def driver_version() -> tuple[int, int] | None:
    """CUDA version of the installed driver, or None. The toolkit's stub library answers with an error: no driver."""
    try:
        library = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    version = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value <= 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


class Home(NamedTuple):
    """Where this process's kernels live: `kind` is ``sim``, ``gpu`` or ``aot``; `reason` says who decided."""

    kind: str
    reason: str
    architecture: Target | None = None


_home: Home | None = None


def _decide() -> Home:
    wish = config.target()
    simulator_asked = os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip() not in ("", "0")
    if wish == "sim":
        return Home("sim", "DEVKERNELS_TARGET=sim")
    if wish and wish != "gpu":
        try:
            return Home("aot", f"DEVKERNELS_TARGET={wish}", Target.parse(wish))
        except TargetError as error:
            raise TargetError(f"DEVKERNELS_TARGET={wish!r} is none of sim, gpu, sm_90 ... {error}") from None
    if wish == "gpu":
        if simulator_asked:
            raise TargetError(
                "DEVKERNELS_TARGET=gpu and NUMBA_ENABLE_CUDASIM=1 contradict each other; unset NUMBA_ENABLE_CUDASIM."
            )
        if driver_present():
            return Home("gpu", "DEVKERNELS_TARGET=gpu")
        return Home("aot", "DEVKERNELS_TARGET=gpu, and no driver: kernels can be compiled, not run")
    if simulator_asked:
        return Home("sim", "NUMBA_ENABLE_CUDASIM=1")
    if driver_present():
        return Home("gpu", "a CUDA driver is installed")
    return Home("sim", "no CUDA driver is installed")


def _numba_uses_simulator() -> bool | None:
    """What numba.cuda was imported as, or None if it has not been imported yet."""
    module = sys.modules.get("numba.cuda")
    if module is None or not hasattr(module, "jit"):
        return None
    return module.jit.__module__.startswith("numba.cuda.simulator")  # the package itself is loaded in either case


def select_home() -> Home:
    """Fix this process's home; called once, by ``import devkernels``. Later calls return the same answer."""
    global _home
    if _home is not None:
        return _home
    home = _decide()
    simulating = _numba_uses_simulator()
    if simulating is True and home.kind != "sim":
        raise TargetError(
            f"numba.cuda was imported as its simulator before devkernels, but this process should compile for a GPU "
            f"({home.reason}). Unset NUMBA_ENABLE_CUDASIM, or set DEVKERNELS_TARGET=sim."
        )
    if simulating is False and home.kind == "sim":
        raise TargetError(
            f"numba.cuda was imported for a GPU before devkernels, but this process should use the simulator "
            f"({home.reason}). Import devkernels before numba.cuda, or set NUMBA_ENABLE_CUDASIM=1; "
            f"to compile without a GPU set DEVKERNELS_TARGET=sm_90."
        )
    if home.kind == "sim":
        _enable_simulator()
        if home.reason == "no CUDA driver is installed" and not config.quiet() and not _command():
            print(
                "devkernels: no CUDA driver found; kernels run in Numba's simulator "
                "(DEVKERNELS_TARGET=sm_90 compiles for a GPU instead).",
                file=sys.stderr,
            )
    _home = home
    return home


def _command() -> bool:
    """Whether this process is the ``devkernels`` command, which runs no kernels and tells of homes itself."""
    return os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0] == "devkernels"


def _enable_simulator() -> None:
    """Make a later ``import numba.cuda`` give the simulator in this process."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    numba_config = sys.modules.get("numba.core.config")
    if numba_config is not None:  # numba itself is imported already and has read the environment
        numba_config.ENABLE_CUDASIM = 1


def home() -> Home:
    """The home of this process: simulator, GPU, or compiling ahead of time."""
    return select_home()


def simulating() -> bool:
    """Whether kernels of this process run in Numba's simulator."""
    return home().kind == "sim"


_compiling_for: contextvars.ContextVar[Target | None] = contextvars.ContextVar("devkernels_target", default=None)


@contextlib.contextmanager
def compile_for(target: Target) -> Iterator[Target]:
    """Within this block, what this thread compiles is for `target`, whatever device is current."""
    token = _compiling_for.set(target)
    try:
        yield target
    finally:
        _compiling_for.reset(token)


def compiling_for() -> Target | None:
    """The architecture of the compilation that this thread is in, or None outside of one."""
    return _compiling_for.get()


def current_target() -> Target:
    """The architecture to build for when the caller names none.

    That of the compilation in progress, else the current device's, else the home's, else sm_90.
    """
    if (target := compiling_for()) is not None:
        return target
    here = home()
    if here.architecture is not None:
        return here.architecture
    if here.kind == "gpu":
        return _device_architecture(_current_device())
    return Target.parse(DEFAULT_ARCHITECTURE)


def _current_device() -> int:
    """Handle of the device whose context is current in this thread, else of the first device."""
    library, device = ctypes.CDLL(_DRIVER), ctypes.c_int()
    if library.cuCtxGetDevice(ctypes.byref(device)) == 0:
        return device.value
    if library.cuInit(0) != 0 or library.cuDeviceGet(ctypes.byref(device), 0) != 0:
        raise TargetError("The CUDA driver finds no GPU; DEVKERNELS_TARGET=sm_90 compiles for one, =sim needs none.")
    return device.value


@functools.cache
def _device_architecture(device: int) -> Target:
    library, parts = ctypes.CDLL(_DRIVER), []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        parts.append(value.value)
    return Target.parse(tuple(parts))
