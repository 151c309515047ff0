"""Compiled code kept in memory and on disk: built once, verified on every read, bounded in size.

In: a `kind` (``"ltoir"``, ``"cubin"`` ...), a `key` (from `digest`) and a function that builds the bytes.
Out: the bytes. A truncated, altered or exchanged file (`devkernels.cache_disk`) is never believed but built again. No
CUDA library, NumPy or Numba is imported here.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable

from devkernels import cache_disk, config
from devkernels.cache_disk import CacheInfo, folder, info, prune
from devkernels.canonical import digest
from devkernels.errors import ArgumentError, DevkernelsWarning, JitDisabledError

__all__ = ["CacheInfo", "clear", "counts", "digest", "folder", "forget", "get", "get_or_build", "info", "prune", "put"]

_NAME = re.compile(r"[0-9A-Za-z_.-]{1,200}")
_MEMORY_LIMIT = 256 << 20

_memory: OrderedDict[tuple[str, str], bytes] = OrderedDict()
_memory_bytes = 0
_guard = threading.RLock()
_building: dict[tuple[str, str], threading.Lock] = {}
_counts: Counter[tuple[str, str]] = Counter()
_warned: set[str] = set()
_unpruned = float("inf")  # bytes written since the last prune


# ---------------------------------------------------------------- the public calls


def get_or_build(kind: str, key: str, build: Callable[[], bytes], *, spec: object = None) -> bytes:
    """Return the bytes stored under (`kind`, `key`), building and storing them first if need be.

    Of many threads and processes that ask at once, one builds and the others wait for it. An unusable disk
    (read-only, full) is reported once as a `DevkernelsWarning`; the bytes are then kept in memory only.

    Raises
    ------
    JitDisabledError
        If the bytes are nowhere and ``DEVKERNELS_DISABLE_JIT`` is set; `spec` says what was missing.
    """
    data = get(kind, key)
    if data is not None:
        return data
    with _guard:
        own_lock = _building.setdefault((kind, key), threading.Lock())
    with own_lock:
        data = get(kind, key)  # another thread may have built it meanwhile
        if data is not None:
            return data
        if config.disable_jit():
            raise jit_disabled(_describe(kind, key, spec), spec)
        with cache_disk.lock(kind, key):
            data = get(kind, key)  # or another process
            if data is not None:
                return data
            data = bytes(build())
            count(kind, "builds")
            put(kind, key, data)
    with _guard:
        _building.pop((kind, key), None)
    return data


def jit_disabled(what: str, spec: object, hint: str = "") -> JitDisabledError:
    """The error for something that must not be compiled now."""
    return JitDisabledError(
        f"{what} would have to be compiled, but DEVKERNELS_DISABLE_JIT is set.{hint} Add it to the images that are "
        f"built ahead of time, or unset DEVKERNELS_DISABLE_JIT.",
        spec=spec,
    )


def get(kind: str, key: str) -> bytes | None:
    """Return what is stored in memory or (verified) on disk, or None."""
    _check_name(kind, key)
    with _guard:
        data = _memory.get((kind, key))
        if data is not None:
            _memory.move_to_end((kind, key))
            _counts[kind, "memory_hits"] += 1
            return data
    data = _read(kind, key)
    if data is not None:
        count(kind, "disk_hits")
        remember(kind, key, data)
    return data


def put(kind: str, key: str, data: bytes) -> None:
    """Store `data` in memory and on disk, then drop what was used least recently beyond the size limit."""
    _check_name(kind, key)
    remember(kind, key, data)
    if len(data) + cache_disk.HEADER_BYTES > config.cache_limit_bytes():
        return
    try:
        cache_disk.write(kind, key, data)
    except OSError as error:
        count(kind, "write_failures")
        _warn_once("write", f"Compiled code cannot be kept in {folder()} ({error}); it is kept in memory only. "
                            f"Set DEVKERNELS_CACHE_DIR to a folder that can be written.")  # fmt: skip
        return
    if _time_to_prune(len(data)):
        prune()


def remember(kind: str, key: str, data: bytes) -> None:
    """Put bytes that are already on disk (a worker process built them) into this process's memory."""
    global _memory_bytes
    with _guard:
        _memory_bytes += len(data) - len(_memory.pop((kind, key), b""))
        _memory[kind, key] = data
        while _memory_bytes > _MEMORY_LIMIT and len(_memory) > 1:
            _memory_bytes -= len(_memory.popitem(last=False)[1])


def forget() -> None:
    """Drop the memory store; the disk keeps what it has."""
    global _memory_bytes
    with _guard:
        _memory.clear()
        _memory_bytes = 0


def counts(kind: str | None = None) -> Counter[str]:
    """Events of this process: ``memory_hits``, ``disk_hits``, ``builds``, ``rejected``, ``write_failures``.

    Builds that worker processes did on behalf of this one are included.
    """
    with _guard:
        total: Counter[str] = Counter()
        for (one, event), number in _counts.items():
            if kind is None or one == kind:
                total[event] += number
        return total


def every_count() -> dict[tuple[str, str], int]:
    """The same events, each with its kind: what a worker process tells the process that it worked for."""
    with _guard:
        return dict(_counts)


def count(kind: str, event: str, number: int = 1) -> None:
    """Add to the counters that `counts` reports."""
    with _guard:
        _counts[kind, event] += number


def clear() -> int:
    """Delete every entry, in memory and on disk; return the number of files deleted."""
    forget()
    return cache_disk.delete_all()


# ---------------------------------------------------------------- small things


def _read(kind: str, key: str) -> bytes | None:
    try:
        return cache_disk.read(kind, key)
    except cache_disk.DamagedError:
        count(kind, "rejected")  # the rebuilt entry will replace it
    except OSError as error:
        path = cache_disk.path_of(kind, key)
        _warn_once("read", f"The cache file {path} cannot be read ({error}); its code is compiled again.")
    return None


def _time_to_prune(written: int) -> bool:
    """Whether enough has been written to count what is on disk again: the first time, then every 64th of the limit."""
    global _unpruned
    with _guard:
        _unpruned += written
        if _unpruned < config.cache_limit_bytes() / 64:
            return False
        _unpruned = 0.0
        return True


def _check_name(kind: str, key: str) -> None:
    for name in (kind, key):
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise ArgumentError(
                f"{name!r} cannot name a cache entry: letters, digits, '_', '-' and '.' can (see `digest`)."
            )


def _describe(kind: str, key: str, spec: object) -> str:
    return f"{spec}" if spec is not None else f"{kind} {key[:16]}"


def _warn_once(topic: str, message: str) -> None:
    with _guard:
        if topic in _warned:
            return
        _warned.add(topic)
    warnings.warn(message, DevkernelsWarning, stacklevel=4)
