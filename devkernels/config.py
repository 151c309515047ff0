"""The only reader of DEVKERNELS_* environment variables.

Each function reads its variable when called, so that tests and programs can change it; only the home
(`DEVKERNELS_TARGET`) is fixed once, by `devkernels.target`, because Numba fixes it at import.
"""

from __future__ import annotations

import os

from devkernels.errors import DevkernelsError

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


def _flag(name: str) -> bool:
    text = os.environ.get(name, "").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise DevkernelsError(f"{name}={os.environ[name]!r} is not a switch; use {name}=1 or {name}=0.")


def target() -> str:
    """``DEVKERNELS_TARGET``: ``sim``, ``gpu`` or ``sm_90`` and the like; empty means: choose by what is there."""
    return os.environ.get("DEVKERNELS_TARGET", "").strip().lower()


def disable_jit() -> bool:
    """``DEVKERNELS_DISABLE_JIT=1``: compiling raises `JitDisabledError`; images and caches still load."""
    return _flag("DEVKERNELS_DISABLE_JIT")


def cache_dir() -> str | None:
    """``DEVKERNELS_CACHE_DIR``: where compiled code is kept; None means the platform's user cache folder."""
    return os.environ.get("DEVKERNELS_CACHE_DIR") or None


def cache_limit_bytes() -> int:
    """``DEVKERNELS_CACHE_LIMIT_MB`` (1024): the disk cache drops what was used least recently beyond this."""
    text = os.environ.get("DEVKERNELS_CACHE_LIMIT_MB", "1024")
    try:
        megabytes = int(text)
    except ValueError:
        megabytes = -1
    if megabytes < 0:
        raise DevkernelsError(f"DEVKERNELS_CACHE_LIMIT_MB={text!r} is not a whole number of megabytes >= 0.")
    return megabytes << 20


def quiet() -> bool:
    """``DEVKERNELS_QUIET=1``: no notice on stderr about the home in use."""
    return _flag("DEVKERNELS_QUIET")
