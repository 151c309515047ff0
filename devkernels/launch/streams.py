"""Streams of every library as the integer that the driver wants.

In: a stream of CuPy, torch, Numba, cuda.core or an integer; or an array, for its library's current stream. Libraries
are touched only if the program has imported them already.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from devkernels.libraries import stream_handle

LEGACY_DEFAULT = 1  # CU_STREAM_LEGACY: the default stream, said explicitly


def handle(stream: Any) -> int | None:
    """Integer handle of a stream; None (current stream of the arrays' library) for None and for 0.

    Numba writes "no stream given" as 0, and so does every launch configuration made for both; the legacy default stream
    is 1 (CU_STREAM_LEGACY) when it is really meant.
    """
    if stream is None:
        return None
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream_handle(stream) or None
    return stream_handle(stream) or LEGACY_DEFAULT


def plain(key: Any) -> Any:
    """A launch configuration with its stream as an integer, so that it can be remembered without keeping the stream."""
    if isinstance(key, tuple) and len(key) > 2 and not isinstance(key[2], (int, type(None))):
        return (*key[:2], handle(key[2]), *key[3:])
    return key


def current_cupy() -> Callable[[], int]:
    """A function that gives CuPy's current stream in this thread."""
    from cupy.cuda import get_current_stream

    return lambda: get_current_stream().ptr


def current_torch(device: int) -> Callable[[], int]:
    """A function that gives torch's current stream of a device in this thread."""
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None:
        return lambda: torch.cuda.current_stream(device).cuda_stream
    return functools.partial(raw, device)
