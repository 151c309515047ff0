"""Which library an array is of, and what streams are, with stand-ins for the libraries."""

import contextlib
import ctypes
import sys
import types

import numpy as np
import pytest

from devkernels.errors import ArgumentTypeError
from devkernels.launch import streams
from devkernels.libraries import library_of, on_stream, stream_handle


class _Stream:
    """A stream of cuda.core: known by the protocol alone."""

    def __cuda_stream__(self):
        return 0, 77


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (5, 5),
        (types.SimpleNamespace(ptr=9), 9),
        (types.SimpleNamespace(ptr=0), 0),
        (types.SimpleNamespace(cuda_stream=11), 11),
        (_Stream(), 77),
        (types.SimpleNamespace(__cuda_stream__=(0, 13)), 13),
        (types.SimpleNamespace(handle=ctypes.c_void_p(21)), 21),
        (types.SimpleNamespace(handle=ctypes.c_void_p(0)), 0),
    ],
)
def test_handles_of_streams(stream, handle):
    assert stream_handle(stream) == handle
    if isinstance(stream, int):
        assert streams.handle(stream) == (handle or None)  # 0 is how Numba writes "none given"
    else:
        assert streams.handle(stream) == (handle or streams.LEGACY_DEFAULT)


@pytest.mark.parametrize("stream", ["a stream", 1.5, True, -3, object()])
def test_what_is_no_stream_is_refused(stream):
    with pytest.raises(ArgumentTypeError, match="stream"):
        stream_handle(stream)


def test_arrays_have_a_library(monkeypatch):
    cupy, torch = types.ModuleType("cupy"), types.ModuleType("torch")
    cupy.ndarray, torch.Tensor = type("ndarray", (), {}), type("Tensor", (), {})
    for module in (cupy, torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    derived = type("Parameter", (torch.Tensor,), {})
    for array, library in ((np.zeros(3), "numpy"), (cupy.ndarray(), "cupy"), (derived(), "torch")):
        assert library_of(array, "x") == library
        assert library_of(array, "x") == library
    with pytest.raises(ArgumentTypeError, match=r"weights is a list"):
        library_of([1.0], "weights")


@pytest.mark.parametrize("new", [True, False])
def test_streams_become_current(monkeypatch, new):
    made = []

    class Stream(contextlib.nullcontext):
        pass

    cupy, torch = types.ModuleType("cupy"), types.ModuleType("torch")
    cupy.cuda = types.SimpleNamespace(
        Stream=Stream, ExternalStream=lambda handle, device: made.append((handle, device))
    )
    if new:
        Stream.from_external = staticmethod(lambda held: made.append(held.__cuda_stream__()))
    torch.cuda = types.SimpleNamespace(
        ExternalStream=lambda handle, device: (handle, device), stream=lambda stream: made.append(stream)
    )
    for module in (cupy, torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    own = Stream()
    assert on_stream("cupy", own, 1) is own
    on_stream("cupy", 40, 1)
    on_stream("torch", types.SimpleNamespace(cuda_stream=41), 2)
    assert made == [(0, 40) if new else (40, 1), (41, "cuda:2")]
    with on_stream("numpy", 5, -1):
        pass
