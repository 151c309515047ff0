"""The cache's folder: one file per entry, written whole or not at all, verified on every read, bounded in size.

In: a `kind` and a `key`, both valid as names of files, and bytes. Out: the bytes, if the file is what it should be: its
checksum covers kind, key and content. What cannot be read or written is an OSError, which `devkernels.cache` reports.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from devkernels import config

_MAGIC = b"devkernels cache 1\n"
HEADER_BYTES = len(_MAGIC) + 32
_SUFFIX = ".bin"
_LOCK_TIMEOUT_S = 900.0  # longer than any build seen (165 s); then go on unlocked: two builds, but no deadlock


class DamagedError(Exception):
    """A file is not what was written; never leaves the cache."""


class CacheInfo(NamedTuple):
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


def path_of(kind: str, key: str) -> Path:
    """The file of an entry."""
    return folder() / "v1" / kind / (key + _SUFFIX)


def read(kind: str, key: str) -> bytes | None:
    """The bytes of an entry, or None if there is none.

    Raises
    ------
    DamagedError
        The file is truncated, altered, or another entry's.
    """
    path = path_of(kind, key)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    data = content[HEADER_BYTES:]
    if content[:HEADER_BYTES] != _MAGIC + _checksum(kind, key, data):
        raise DamagedError
    with contextlib.suppress(OSError):
        os.utime(path)  # modification time serves as time of last use; access times are often switched off
    return data


def write(kind: str, key: str, data: bytes) -> None:
    """Write an entry aside and rename it: a reader sees the old file, the new one or none."""
    path = path_of(kind, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".aside-{os.getpid()}-{os.urandom(8).hex()}"
    # not tempfile.mkstemp, whose files nobody else may read: many users may share a cache
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _checksum(kind, key, data) + data)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def _checksum(kind: str, key: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{kind}\0{key}\0".encode() + data).digest()


@contextlib.contextmanager
def lock(kind: str, key: str) -> Iterator[None]:
    """Keep other processes from building the same entry meanwhile.

    Where nothing can be written there is no lock: at worst two processes build the same.
    """
    import filelock

    path = path_of(kind, key).with_suffix(".lock")
    held = filelock.FileLock(path, thread_local=False)
    with contextlib.suppress(OSError, NotImplementedError, filelock.Timeout):
        path.parent.mkdir(parents=True, exist_ok=True)
        held.acquire(timeout=_LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        held.release()


# ---------------------------------------------------------------- all entries


def info() -> CacheInfo:
    """Count what is on disk, without reading it."""
    kinds: dict[str, tuple[int, int]] = {}
    for path, status in _entries():
        number, size = kinds.get(path.parent.name, (0, 0))
        kinds[path.parent.name] = (number + 1, size + status.st_size)
    return CacheInfo(folder(), config.cache_limit_bytes(), kinds)


def delete_all() -> int:
    """Delete every entry, lock and half-written file; return the number of entries deleted."""
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
