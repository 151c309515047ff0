"""The array libraries of a program: which one an array is of, and how to work on a stream with it.

in: arrays of NumPy, CuPy and torch; streams of CuPy, torch, Numba and cuda.core.  out: names, handles, contexts.
A library is touched only if the program has imported it, which its arrays and streams show.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from devkernels.checks import kind_of
from devkernels.errors import ArgumentTypeError

_CLASSES = {"numpy": "ndarray", "cupy": "ndarray", "torch": "Tensor"}
_by_type: dict[type, str] = {}


def library_of(array: Any, name: str) -> str:
    """``numpy``, ``cupy`` or ``torch``, also for classes derived from theirs; `name` is the argument's.

    Raises
    ------
    ArgumentTypeError
        It is an array of none of them.
    """
    kind = type(array)
    found = _by_type.get(kind)
    if found is not None:
        return found
    for library, class_name in _CLASSES.items():
        module = sys.modules.get(library)
        if module is not None and isinstance(array, getattr(module, class_name, ())):
            return _by_type.setdefault(kind, library)
    raise ArgumentTypeError(f"{name} is a {kind_of(array)}; pass an array of NumPy, CuPy or torch.", spec=name)


def stream_handle(stream: Any) -> int:
    """Integer that the driver knows a stream by; 0 is the default stream.

    Raises
    ------
    ArgumentTypeError
        It is no stream, nor the handle of one.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise ArgumentTypeError(f"stream={stream} is not the handle of a stream.")
        return stream
    for attribute in ("ptr", "cuda_stream"):  # CuPy; torch
        value = getattr(stream, attribute, None)
        if isinstance(value, int):
            return value
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    if getattr(stream, "handle", None) is not None:  # Numba and cuda.core
        value = stream.handle
        return int(getattr(value, "value", value) or 0)
    raise ArgumentTypeError(
        f"stream is a {kind_of(stream)}; give a stream of CuPy, torch, Numba or "
        f"cuda.core, its handle as an integer, or None for the current stream of the arrays' library."
    )


class _Handle:
    """A stream that is known by its handle only, with the protocol of CUDA streams."""

    def __init__(self, handle: int):
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def on_stream(library: str, stream: Any, device: int) -> contextlib.AbstractContextManager:
    """Context in which a stream of a GPU is `library`'s current one: launches go there, memory is its own.

    Parameters
    ----------
    stream : object
        A stream, or its handle.
    """
    if library == "cupy":
        cuda = sys.modules["cupy"].cuda
        if isinstance(stream, cuda.Stream):
            return stream
        handle = stream_handle(stream)
        if hasattr(cuda.Stream, "from_external"):  # CuPy 14, where ExternalStream is deprecated
            return cuda.Stream.from_external(_Handle(handle))
        return cuda.ExternalStream(handle, device)
    if library == "torch":
        cuda = sys.modules["torch"].cuda
        return cuda.stream(cuda.ExternalStream(stream_handle(stream), device=f"cuda:{device}"))
    return contextlib.nullcontext()
