"""Device FFT collectives in NumPy, for Numba's CUDA simulator.

In: a `DeviceFFT` and the arrays of one simulated thread. Out: the same data as on a GPU, in the same places. The
threads of a row meet at two barriers: each leaves its elements on a table, one transforms, each takes its share. Rows
of global arrays are the business of devkernels/device/simulated_rows.py.
"""

from __future__ import annotations

import functools
import threading

import numpy as np

from devkernels.device.sides import row_length, side_kind
from devkernels.errors import ArgumentError, ArgumentTypeError, TargetError

_meeting = threading.Lock()
_ONLY_HALF = "{} is for precision float16; other values are plain complex numbers."


def thread_here():
    """The simulated CUDA thread that runs this."""
    thread = threading.current_thread()
    if not hasattr(thread, "threadIdx"):
        raise TargetError(
            "a device function was called outside a kernel; call it inside a function decorated with @cuda.jit "
            "or @devkernels.kernel."
        )
    return thread


def index(fft, i):
    """See DeviceFFT.index."""
    return thread_here().threadIdx.x + i * fft.stride if fft.spec.is_block else i


def row(fft):
    """See DeviceFFT.row."""
    thread = thread_here()
    if not fft.spec.is_block:
        raise ArgumentError("row() needs execution='Block'.", spec=fft.spec)
    return thread.blockIdx.x * fft.ffts_per_block + thread.threadIdx.y * fft.implicit_type_batching


@functools.cache
def accept_empty_link() -> None:
    """Let the simulator's ``cuda.jit`` take ``link=[]``, which has nothing to link; it refuses every list otherwise."""
    from numba import cuda

    simulated_jit = cuda.jit

    @functools.wraps(simulated_jit)
    def jit(*arguments, link=None, **options):
        return simulated_jit(*arguments, link=link or None, **options)

    cuda.jit = jit


# -- values and rows --------------------------------------------------------------------------------------------


def complex_dtype(fft) -> type:
    """The complex type that holds the transform's numbers here."""
    return np.complex128 if fft.spec.precision == "float64" else np.complex64


def _round(fft, values: np.ndarray) -> np.ndarray:
    """Round to the transform's precision; float16 has no complex dtype, so halves are kept as complex64."""
    if fft.spec.precision != "float16":
        return values.astype(complex_dtype(fft))
    with np.errstate(over="ignore"):
        halves = values.astype(np.complex64).view(np.float32).astype(np.float16)
    return halves.astype(np.float32).view(np.complex64)


def pack(fft, first, second):
    """See DeviceFFT.pack."""
    if fft.spec.precision != "float16":
        raise ArgumentTypeError(
            "pack() is for precision float16; other values are plain complex numbers.", spec=fft.spec
        )
    with np.errstate(over="ignore"):
        halves = np.array([first.real, second.real, first.imag, second.imag]).astype(np.float16)
    return halves.view(np.uint64)[0]


def unpack(fft, value):
    """See DeviceFFT.unpack."""
    if fft.spec.precision != "float16":
        raise ArgumentTypeError(
            "unpack() is for precision float16; other values are plain complex numbers.", spec=fft.spec
        )
    h = np.array([value], dtype=np.uint64).view(np.float16).astype(np.float32)
    return np.complex64(complex(h[0], h[2])), np.complex64(complex(h[1], h[3]))


def check_thread_data(fft, thread_data) -> None:
    """Raise an ArgumentError unless `thread_data` can be a thread's array."""
    if np.dtype(thread_data.dtype) != fft.value_type or np.ndim(thread_data) != 1:
        raise ArgumentTypeError(
            f"thread_data has dtype {thread_data.dtype} and {np.ndim(thread_data)} axes; make it "
            f"cuda.local.array(f.storage_size, f.value_type), which is {fft.value_type} here.",
            spec=fft.spec,
        )
    if len(thread_data) < fft.storage_size:
        raise ArgumentError(
            f"thread_data has {len(thread_data)} values; this transform needs storage_size = {fft.storage_size}.",
            spec=fft.spec,
        )


def columns(fft, side: str):
    """(slot, position) of this thread's elements on one side."""
    first, step = (thread_here().threadIdx.x, fft.stride) if fft.spec.is_block else (0, 1)
    return enumerate(range(first, row_length(fft, side), step))


def get(fft, thread_data, side: str, slot: int) -> np.ndarray:
    """The element in `slot` for each row that shares the value: complex, or two reals as one complex if folded."""
    if side_kind(fft, side) == "real":
        kind = {"float16": np.float16, "float32": np.float32, "float64": np.float64}[fft.spec.precision]
        lanes = fft.implicit_type_batching
        return np.asarray(thread_data).view(kind)[slot * lanes : (slot + 1) * lanes].astype(complex_dtype(fft))
    value = thread_data[slot]
    return np.array(unpack(fft, value) if fft.spec.precision == "float16" else [value], dtype=complex_dtype(fft))


def put(fft, thread_data, side: str, slot: int, values: np.ndarray) -> None:
    """Counterpart of `get`."""
    if side_kind(fft, side) == "real":
        kind = {"float16": np.float16, "float32": np.float32, "float64": np.float64}[fft.spec.precision]
        lanes = fft.implicit_type_batching
        with np.errstate(over="ignore"):
            np.asarray(thread_data).view(kind)[slot * lanes : (slot + 1) * lanes] = values.real.astype(kind)
    else:
        thread_data[slot] = pack(fft, *values) if fft.spec.precision == "float16" else values[0]


# -- the transform itself ---------------------------------------------------------------------------------------


def transform(fft, values: np.ndarray) -> np.ndarray:
    """Transform one row as the device function does: element order and layouts of both sides, no scaling."""
    spec, n = fft.spec, fft.size
    wide = values.astype(np.complex128)
    with np.errstate(all="ignore"):  # NaN and overflow pass silently on a GPU
        return _round(fft, _transform_wide(spec, n, wide))


def _transform_wide(spec, n: int, wide: np.ndarray) -> np.ndarray:
    if spec.fft_type == "c2c":
        out = np.fft.fft(wide) if spec.direction == "forward" else np.fft.ifft(wide) * n
    elif spec.fft_type == "r2c":
        samples = wide.view(np.float64) if spec.real_mode == "folded" else wide.real
        half = np.fft.rfft(samples)
        if spec.layout == "packed":
            out = half[:-1].copy()
            out[0] = complex(half[0].real, half[-1].real)
        else:
            out = half if spec.layout == "natural" else np.fft.fft(samples)
    else:
        half = wide[: n // 2 + 1]
        if spec.layout == "packed":
            half = np.append(wide, wide[0].imag)
            half[0] = wide[0].real
        samples = np.fft.irfft(half, n) * n
        out = samples.view(np.complex128) if spec.real_mode == "folded" else samples.astype(np.complex128)
    return out


def call(fft, *arrays) -> None:
    """Run ``f(...)``; see devkernels.fft for the forms."""
    if not fft.spec.is_block:
        if len(arrays) != 1:
            raise ArgumentError(f"a thread FFT takes f(thread_data); got {len(arrays)} arrays.", spec=fft.spec)
        _thread_fft(fft, arrays[0])
    elif len(arrays) == 1:
        _shared_fft(fft, arrays[0])
    elif len(arrays) == 2:
        _register_fft(fft, arrays[0])
    else:
        raise ArgumentError(
            f"a block FFT takes f(thread_data, shared_mem) or f(shared_mem); got {len(arrays)} arrays.", spec=fft.spec
        )


def _thread_fft(fft, thread_data) -> None:
    check_thread_data(fft, thread_data)
    batch = fft.implicit_type_batching
    rows = np.zeros((batch, fft.input_length), dtype=complex_dtype(fft))
    for k in range(fft.input_length):
        rows[:, k] = get(fft, thread_data, "input", k)
    out = np.array([transform(fft, r) for r in rows])
    for k in range(fft.output_length):
        put(fft, thread_data, "output", k, out[:, k])


class _Table:
    """Where the threads of a block leave their elements for one collective call."""

    def __init__(self):
        self.input: dict[int, np.ndarray] = {}
        self.output: dict[int, np.ndarray] = {}


def _table(thread) -> _Table:
    """The table of this thread's next collective call; every thread of the block counts its own calls."""
    number = thread.__dict__.get("_devkernels_calls", 0)
    thread._devkernels_calls = number + 1
    with _meeting:
        tables = thread._manager.__dict__.setdefault("_devkernels_tables", {})
        tables.pop(number - 2, None)  # everyone has left the call before the last
        return tables.setdefault(number, _Table())


def _register_fft(fft, thread_data) -> None:
    check_thread_data(fft, thread_data)
    thread = thread_here()
    table, y = _table(thread), thread.threadIdx.y
    with _meeting:
        rows = table.input.setdefault(
            y, np.zeros((fft.implicit_type_batching, fft.input_length), dtype=complex_dtype(fft))
        )
    for slot, k in columns(fft, "input"):
        rows[:, k] = get(fft, thread_data, "input", slot)
    thread.syncthreads()
    if thread.threadIdx.x == 0:
        table.output[y] = np.array([transform(fft, r) for r in rows])
    thread.syncthreads()
    # Slots past the end of the row hold something on a GPU, too; NumPy would warn of arithmetic on what is there now.
    thread_data[: fft.storage_size] = 0
    for slot, k in columns(fft, "output"):
        put(fft, thread_data, "output", slot, table.output[y][:, k])


def _shared_fft(fft, shared_mem) -> None:
    thread = thread_here()
    if np.asarray(shared_mem).nbytes < fft.shared_io_size:
        raise ArgumentError(
            f"shared_mem has {np.asarray(shared_mem).nbytes} bytes; f(shared_mem) needs shared_io_size = "
            f"{fft.shared_io_size}.",
            spec=fft.spec,
        )
    thread.syncthreads()
    if thread.threadIdx.x == 0 and thread.threadIdx.y == 0:
        memory = np.asarray(shared_mem)
        value = memory.view(fft.value_type) if memory.dtype != fft.value_type else memory
        groups = fft.ffts_per_block // fft.implicit_type_batching
        batch, results = fft.implicit_type_batching, []
        for g in range(groups):
            source = _row_view(fft, value, "input", g)
            rows = np.array([get(fft, source, "input", k) for k in range(fft.input_length)]).T
            results.append([transform(fft, rows[b]) for b in range(batch)])
        for g in range(groups):
            sink = _row_view(fft, value, "output", g)
            for k in range(fft.output_length):
                put(fft, sink, "output", k, np.array([results[g][b][k] for b in range(batch)]))
    thread.syncthreads()


def _row_view(fft, value: np.ndarray, side: str, group: int) -> np.ndarray:
    """Row `group` of shared memory, as values that `get` and `put` understand."""
    kind = fft.input_type if side == "input" else fft.output_type
    row_bytes = row_length(fft, side) * kind.itemsize
    raw = value.view(np.uint8)[group * row_bytes :]
    return raw[: len(raw) // value.itemsize * value.itemsize].view(value.dtype)
