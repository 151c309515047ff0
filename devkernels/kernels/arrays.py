"""Arrays of NumPy, CuPy and torch as a ready kernel sees them: rows along the last axis, and results of the same kind.

In: a caller's array. Out: its library, dtype name, device, a view of it as (rows, length), and new arrays like it.
CuPy and torch are touched only if the caller's program has imported them. Nothing of the caller's is ever changed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from devkernels import target
from devkernels.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, MissingDependencyError, TargetError
from devkernels.launch import streams
from devkernels.libraries import library_of as library
from devkernels.libraries import on_stream as on_stream_of


@dataclass(frozen=True)
class Described:
    """What can be said of an array without its library; strides are in bytes."""

    library: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str  # "host", or "cuda:0" and the like
    pointer: int
    itemsize: int

    @property
    def span(self) -> tuple[int, int]:
        """First byte and one past the last."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(r for r in reach if r < 0)
        high = sum(r for r in reach if r > 0)
        return self.pointer + low, self.pointer + high + self.itemsize


def describe(array: Any, name: str, gradients: bool = False) -> Described:
    """Read an array's library, dtype, shape, strides, device and address.

    Tensors that require gradients are refused, unless the caller says that it records `gradients`.
    """
    kind = library(array, name)
    if kind == "torch":
        if array.layout is not sys.modules["torch"].strided:
            raise ArgumentTypeError(f"{name} is a {array.layout} tensor; pass a dense one.", spec=name)
        if array.requires_grad and not gradients and sys.modules["torch"].is_grad_enabled():
            raise ArgumentError(
                f"{name} requires a gradient, which this kernel does not record; pass {name}.detach(), or call it "
                f"under torch.no_grad().",
                spec=name,
            )
        if array.is_conj() or array.is_neg():
            raise ArgumentError(
                f"{name} is a lazy conjugate or negation; pass {name}.resolve_conj().resolve_neg().", spec=name
            )
        size = array.element_size()
        strides = tuple(s * size for s in array.stride())
        device = "host" if array.device.type == "cpu" else f"{array.device.type}:{array.device.index}"
        dtype = str(array.dtype).removeprefix("torch.")
        return Described(kind, dtype, tuple(array.shape), strides, device, array.data_ptr(), size)
    device = "host" if kind == "numpy" else f"cuda:{array.device.id}"
    pointer = array.ctypes.data if kind == "numpy" else array.data.ptr
    return Described(kind, array.dtype.name, array.shape, array.strides, device, pointer, array.dtype.itemsize)


class Fingerprint(NamedTuple):
    """All of a device array that checks depend on, but for where its memory is; equal ones pass the same checks."""

    library: str
    dtype: Any
    shape: tuple[int, ...]
    device: int
    contiguous: bool
    misalignment: int


class Known(NamedTuple):
    """A device array's `Fingerprint` and, for arrays without gaps, the bytes that it takes."""

    mark: Fingerprint
    start: int
    stop: int


def known(array: Any) -> Known | None:
    """Return what checks need of a device array, cheaply, or None if the array must be looked at in full."""
    kind = type(array)
    if kind.__module__ == "cupy" or kind.__module__.startswith("cupy."):
        data = array.data
        start, contiguous = data.ptr, array.flags.c_contiguous
        mark = Fingerprint("cupy", array.dtype, array.shape, data.device_id, contiguous, start % 16)
        return Known(mark, start, start + array.nbytes)
    if kind.__module__ != "torch" or not array.is_cuda or array.requires_grad or array.is_conj() or array.is_neg():
        return None
    start, contiguous = array.data_ptr(), array.is_contiguous()
    mark = Fingerprint("torch", array.dtype, array.shape, array.get_device(), contiguous, start % 16)
    return Known(mark, start, start + array.nbytes)


def check_same_device(first: Described, second: Described, names: tuple[str, str]) -> None:
    """Raise DeviceMismatchError unless two arrays can take part in one launch."""
    if first.library != second.library:
        raise DeviceMismatchError(
            f"{names[0]} is an array of {first.library} and {names[1]} one of {second.library}; "
            f"pass both of one library.",
            spec=names,
        )
    if first.device != second.device:
        raise DeviceMismatchError(
            f"{names[0]} is on {first.device} and {names[1]} on {second.device}; move one of them.", spec=names
        )


def check_result(out: Any, seen: Described, shape: tuple[int, ...], dtype: str, spec: object) -> Described:
    """Raise unless `out` can take a result of this shape and dtype beside the array `seen`; return what it is like.

    Whether the two may overlap is the caller's to say.
    """
    mine = describe(out, "out")
    check_same_device(seen, mine, ("x", "out"))
    if mine.dtype != dtype or mine.shape != shape:
        raise ArgumentError(
            f"out has shape {mine.shape} and dtype {mine.dtype}; it must have {shape} and {dtype}.", spec=spec
        )
    expected = np.cumprod((mine.itemsize, *shape[:0:-1]))[::-1]
    if any(n > 1 and s != e for n, s, e in zip(shape, mine.strides, expected, strict=True)):
        raise ArgumentError("out is not contiguous; pass an array in C order.", spec=spec)
    return mine


def check_extra(extra: Any, wanted: bool, seen: Described, spec: object) -> dict[str, Any]:
    """The flat array that the caller's functions take besides, by its name, or nothing; raise where it does not fit."""
    if (extra is None) is wanted:
        raise ArgumentError(
            "the prologue or epilogue takes an array: pass extra=." if wanted
            else "extra is for a prologue or epilogue that takes it as its last argument; there is none.", spec=spec,
        )  # fmt: skip
    if extra is None:
        return {}
    mine = describe(extra, "extra")
    check_same_device(seen, mine, ("x", "extra"))
    return {"extra": cast(extra, mine.dtype).reshape(-1)}


def overlap(first: Described, second: Described) -> bool:
    """Whether the memory spans of two arrays intersect without being the same array."""
    if (first.pointer, first.shape, first.strides) == (second.pointer, second.shape, second.strides):
        return False
    return intersect(first, second)


def intersect(first: Described, second: Described) -> bool:
    """Whether the memory spans of two arrays have bytes in common."""
    (a, b), (c, d) = first.span, second.span
    return first.device == second.device and a < d and c < b


def as_rows(array: Any, tail: int, name: str, copy: bool) -> Any:
    """View of (..., length[, 2]) as (rows, length[, 2]); `tail` counts the axes that stay.

    Leading axes that cannot be merged without moving data are copied if `copy`, else refused.
    """
    shape = tuple(array.shape)
    wanted = (int(np.prod(shape[: len(shape) - tail], dtype=np.int64)), *shape[len(shape) - tail :])
    if shape == wanted:
        return array
    if library(array, name) == "torch":
        try:
            return array.view(wanted)
        except RuntimeError:
            rows = array.reshape(wanted)
    else:
        rows = array.reshape(wanted)
        mine = describe(array, name).span
        theirs = describe(rows, name).span
        if mine[0] <= theirs[0] and theirs[1] <= mine[1]:
            return rows
    if not copy:
        raise ArgumentError(
            f"{name} has shape {shape} with leading axes that do not lie evenly in memory; pass a contiguous array.",
            spec=name,
        )
    return rows


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """New uninitialised array of `like`'s library and device, C-contiguous."""
    kind = library(like, "x")
    if kind == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if kind == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype=dtype)
    return np.empty(shape, dtype=dtype)


@contextlib.contextmanager
def on_stream(like: Any, stream: Any) -> Iterator[None]:
    """Make a stream current for the library of an array on a GPU.

    Launches go there then, and temporary arrays are allocated and freed in its order.
    """
    handle = streams.handle(stream)
    kind = library(like, "x")
    if handle is None or kind == "numpy" or (kind == "torch" and not like.is_cuda):
        yield
    else:
        given = handle if isinstance(stream, int) else stream
        with on_stream_of(kind, given, like.device.id if kind == "cupy" else like.get_device()):
            yield


def temporary(kept: list, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """`empty`, for memory that only the launches to come will need.

    CuPy's pool gives it to others when it is dropped, in the order of the stream. A CUDA graph that is being captured
    would write to it later still, so that it is put on the list `kept` then, for as long as the list lives. (torch
    gives its graphs memory of their own.)
    """
    array = empty(like, shape, dtype)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        cuda = cupy.cuda
        if cuda.runtime.streamIsCapturing(cuda.get_current_stream().ptr):
            kept.append(array)
    return array


def constant(like: Any, values: np.ndarray) -> Any:
    """An array of `like`'s library and device with the content of a host array, ready for any stream."""
    kind = library(like, "x")
    if kind == "torch":
        torch = sys.modules["torch"]
        array = torch.from_numpy(values).to(like.device)
        if array.is_cuda:
            torch.cuda.current_stream(array.device).synchronize()
        return array
    if kind == "cupy":
        cupy = sys.modules["cupy"]
        with like.device:
            array = cupy.asarray(values)
            cupy.cuda.get_current_stream().synchronize()
        return array
    return values


def cast(array: Any, dtype: str) -> Any:
    """The array in another dtype, C-contiguous; itself if it is so already."""
    if library(array, "array") == "torch":
        return array.to(getattr(sys.modules["torch"], dtype)).contiguous()
    return (np if isinstance(array, np.ndarray) else sys.modules["cupy"]).ascontiguousarray(array, dtype=dtype)


def run_where_kernels_live(arrays: dict[str, Any], launch: Callable[..., None], outputs: tuple[str, ...]) -> None:
    """Call ``launch(**arrays)`` on arrays that this process's kernels can reach.

    Device arrays go as they are. Host arrays are the simulator's own; where kernels run on a GPU they are copied
    there and the arrays named in `outputs` are copied back, synchronously.
    """
    here = target.home()
    on_host = all(describe(a, n).device == "host" for n, a in arrays.items())
    if here.kind == "aot":
        raise TargetError(
            f"this process only compiles ({here.reason}); run kernels in the simulator (DEVKERNELS_TARGET=sim), "
            f"or on a GPU."
        )
    if here.kind == "sim":
        if not on_host:
            raise TargetError("this process runs kernels in the simulator, which cannot reach arrays on a GPU.")
        launch(**{n: a.numpy() if library(a, n) == "torch" else a for n, a in arrays.items()})
        return
    if not on_host:
        launch(**arrays)
        return
    try:
        import cupy
    except ImportError:
        raise MissingDependencyError(
            "arrays on the host need CuPy to be taken to the GPU; install devkernels[cu12] or devkernels[cu13]."
        ) from None
    host = {n: a.numpy() if library(a, n) == "torch" else a for n, a in arrays.items()}
    there = {n: cupy.empty(a.shape, a.dtype) if n in outputs else cupy.asarray(a) for n, a in host.items()}
    launch(**there)
    for name in outputs:
        host[name][...] = there[name].get()
