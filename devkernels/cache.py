"""Compiled code kept in memory and on disk: built once, verified on every read, bounded in size.

In: a `kind` (``"ltoir"``, ``"cubin"`` ...), a `key` (from `digest`) and a function that builds the bytes.
Out: the bytes. An entry on disk is one file; its checksum covers kind, key and content, so that a truncated, altered
or exchanged file is never believed but built again. No CUDA library, NumPy or Numba is imported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devkernels import config
from devkernels.canonical import digest
from devkernels.errors import ArgumentError, DevkernelsWarning, JitDisabledError

__all__ = ["CacheInfo", "clear", "counts", "digest", "folder", "forget", "get", "get_or_build", "info", "prune", "put"]

_MAGIC = b"devkernels cache 1\n"
_HEADER_BYTES = len(_MAGIC) + 32
_SUFFIX = ".bin"
_NAME = re.compile(r"[0-9A-Za-z_.-]{1,200}")
_MEMORY_LIMIT = 256 << 20
_LOCK_TIMEOUT_S = 900.0  # longer than any build seen (165 s); then go on unlocked: two builds, but no deadlock

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
        with _process_lock(kind, key):
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
    if len(data) + _HEADER_BYTES > config.cache_limit_bytes():
        return
    try:
        path = _path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.parent / f".aside-{os.getpid()}-{os.urandom(8).hex()}"
        # not tempfile.mkstemp, whose files nobody else may read: many users may share a cache
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + _checksum(kind, key, data) + data)
            os.replace(aside, path)  # atomic: a reader sees the old file, the new one or none
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
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


def count(kind: str, event: str, number: int = 1) -> None:
    """Add to the counters that `counts` reports."""
    with _guard:
        _counts[kind, event] += number


# ---------------------------------------------------------------- the disk


@dataclass(frozen=True)
class CacheInfo:
    """What the disk cache holds: its folder, limit in bytes, and (files, bytes) for each kind."""

    folder: Path
    limit_bytes: int
    kinds: dict[str, tuple[int, int]]

    @property
    def total_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, size in self.kinds.values())


def folder() -> Path:
    """``DEVKERNELS_CACHE_DIR``, or else the platform's cache folder of this user."""
    chosen = config.cache_dir()
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("devkernels")


def info() -> CacheInfo:
    """Count what is on disk, without reading it."""
    kinds: dict[str, tuple[int, int]] = {}
    for path, status in _entries():
        number, size = kinds.get(path.parent.name, (0, 0))
        kinds[path.parent.name] = (number + 1, size + status.st_size)
    return CacheInfo(folder(), config.cache_limit_bytes(), kinds)


def clear() -> int:
    """Delete every entry, in memory and on disk; return the number of files deleted."""
    forget()
    deleted = 0
    for path, _ in _entries(everything=True):
        with contextlib.suppress(OSError):
            path.unlink()
            deleted += path.suffix == _SUFFIX
    return deleted


def prune(limit_bytes: int | None = None) -> int:
    """Delete what was used least recently until the disk cache is within its limit; return the files deleted.

    A prune that has to delete goes down to 9/10 of the limit, so that not every write has to.
    """
    limit = config.cache_limit_bytes() if limit_bytes is None else limit_bytes
    entries = list(_entries())
    total = sum(status.st_size for _, status in entries)
    if total <= limit:
        return 0
    deleted = 0
    for path, status in sorted(entries, key=lambda entry: entry[1].st_mtime_ns):
        with contextlib.suppress(OSError):
            path.unlink()
            total -= status.st_size
            deleted += 1
        if total <= limit * 0.9:
            break
    _sweep()
    return deleted


def _time_to_prune(written: int) -> bool:
    """Whether enough has been written to count what is on disk again: the first time, then every 64th of the limit."""
    global _unpruned
    with _guard:
        _unpruned += written
        if _unpruned < config.cache_limit_bytes() / 64:
            return False
        _unpruned = 0.0
        return True


def _sweep(age_s: float = 86400.0) -> None:
    """Delete locks and half-written files that a day has passed over: their owners are gone."""
    for path, status in _entries(everything=True):
        if path.suffix != _SUFFIX and time.time() - status.st_mtime > age_s:
            with contextlib.suppress(OSError):
                path.unlink()


def _entries(everything: bool = False) -> Iterator[tuple[Path, os.stat_result]]:
    """All entries on disk; with `everything`, locks and half-written files too (only files of this module's naming)."""
    with contextlib.suppress(OSError):
        for kind in sorted((folder() / "v1").iterdir()):
            with contextlib.suppress(OSError):
                for path in sorted(kind.iterdir()):
                    ours = path.suffix == ".lock" or path.name.startswith(".aside-")
                    if path.suffix == _SUFFIX or (everything and ours):
                        with contextlib.suppress(OSError):
                            yield path, path.stat()


def _path(kind: str, key: str) -> Path:
    return folder() / "v1" / kind / (key + _SUFFIX)


def _read(kind: str, key: str) -> bytes | None:
    path = _path(kind, key)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _warn_once("read", f"The cache file {path} cannot be read ({error}); its code is compiled again.")
        return None
    data = content[_HEADER_BYTES:]
    if content[:_HEADER_BYTES] != _MAGIC + _checksum(kind, key, data):
        count(kind, "rejected")
        return None  # the rebuilt entry will replace it
    with contextlib.suppress(OSError):
        os.utime(path)  # modification time serves as time of last use; access times are often switched off
    return data


def _checksum(kind: str, key: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{kind}\0{key}\0".encode() + data).digest()


@contextlib.contextmanager
def _process_lock(kind: str, key: str) -> Iterator[None]:
    import filelock

    path = _path(kind, key).with_suffix(".lock")
    lock = filelock.FileLock(path, thread_local=False)
    # Where nothing can be written there is no lock: at worst two processes build the same, and `put` warns.
    with contextlib.suppress(OSError, NotImplementedError, filelock.Timeout):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        lock.release()


# ---------------------------------------------------------------- small things


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
