"""cuBLASLt's bindings, its handle for each device, and one workspace for each stream.

in: a package, a device, a stream.  out: handles and pointers. The only importer of nvmath's bindings in this package.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from devkernels.errors import MissingDependencyError
from devkernels.linear.arrays import Arrays

# As much as torch reserves on Hopper. The size is fixed: CUDA graphs keep the address they were captured with.
WORKSPACE_BYTES = 32 << 20
_MAX_WORKSPACES = 64


@functools.cache
def bindings():
    """Import nvmath's bindings of cuBLASLt."""
    try:
        from nvmath.bindings import cublasLt
    except ImportError as error:
        raise MissingDependencyError(
            f"nvmath-python is needed for products on the GPU ({error}); pip install 'devkernels[cu12]' or [cu13]."
        ) from error
    return cublasLt


@functools.cache
def library_version() -> int:
    """Version of the loaded cuBLASLt."""
    return int(bindings().get_version())


_handles: dict[int, int] = {}
_handle_lock = threading.Lock()
_workspaces: dict[tuple[str, int], dict[int, int]] = {}
_workspace_memory: list[object] = []
_release_hooks: list[Callable[[], None]] = []


def handle(arrays: Arrays, device: int) -> int:
    with _handle_lock:
        if device not in _handles:
            with arrays.on(device):
                _handles[device] = bindings().create()
        return _handles[device]


def spaces(arrays: Arrays, device: int) -> dict[int, int]:
    """Stream -> pointer of its workspace, for the arrays of one package on one device."""
    return _workspaces.setdefault((arrays.name, device), {})


def reserve(arrays: Arrays, device: int, stream: int) -> tuple[int, object]:
    """Pointer of the workspace of a stream: products on two streams may overlap and must not share one."""
    known = spaces(arrays, device)
    with _handle_lock:
        if stream in known:
            return known[stream], None
        memory = arrays.empty((WORKSPACE_BYTES,), "uint8", device, stream or None)
        pointer = arrays.pointer(memory)
        if len(known) < _MAX_WORKSPACES:  # beyond that, memory of this one call; the pool is stream-ordered
            known[stream] = pointer
            _workspace_memory.append(memory)
        return pointer, memory


def when_released(forget: Callable[[], None]) -> None:
    """Have a function called by `release_workspaces`: whoever keeps pointers of them forgets these."""
    _release_hooks.append(forget)


def release_workspaces() -> None:
    """Give all workspaces back. CUDA graphs that were captured with them must not be replayed afterwards."""
    for forget in _release_hooks:
        forget()
    with _handle_lock:
        for known in _workspaces.values():
            known.clear()
        _workspace_memory.clear()
