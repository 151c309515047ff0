"""`devkernels.fft(...)`: one device FFT as an object that kernels call.

In: keywords (checked in devkernels/spec.py, completed in devkernels/traits.py). Out: a `DeviceFFT` with the traits of
cuFFTDx and three homes: on a GPU and ahead of time it is LTO-IR of libmathdx (device/numba_fft.py), in the simulator
it is NumPy (device/simulated.py). The kernel's text is the same in all three.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from devkernels import target, traits
from devkernels.errors import SpecError, UnsupportedSizeError
from devkernels.spec import FFTSpec, make_fft_spec, whole_number

_VALUE_DTYPES = {
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
    "complex32x2": np.dtype(np.uint64),  # four halves: re, re, im, im of two rows; see DeviceFFT.pack
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16x2": np.dtype(np.uint32),  # two halves: one sample of two rows
}


class Dim3(NamedTuple):
    """Extent of a block or a grid."""

    x: int
    y: int = 1
    z: int = 1


class Launch(NamedTuple):
    """What goes between the brackets of a launch: ``kernel[f.launch(rows=1000)](...)``."""

    grid: Dim3
    block: Dim3
    stream: object
    shared_memory_size: int


class DeviceFFT:
    """A device FFT; made by `devkernels.fft`, which documents it. Frozen, hashable, picklable; equal if the spec is."""

    def __init__(self, spec: FFTSpec):
        self._spec = spec
        self._traits = traits.raw_traits(spec)
        if target.simulating():
            from devkernels.device import simulated

            simulated.accept_empty_link()  # now: `cuda.jit(link=f.files)` looks up jit before it evaluates f.files

    # -- identity --------------------------------------------------------------------------------------------

    @property
    def spec(self) -> FFTSpec:
        """The completed, frozen description."""
        return self._spec

    @property
    def traits(self) -> traits.FFTTraits:
        """All traits in one frozen record."""
        return self._traits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceFFT) and other._spec == self._spec

    def __hash__(self) -> int:
        return hash(self._spec)

    def __repr__(self) -> str:
        text = f"<DeviceFFT {self._spec}"
        if self._spec.is_block:
            text += f", {self.elements_per_thread} elements per thread, {self.ffts_per_block} FFTs per block"
        return text + ">"

    def __reduce__(self):
        return DeviceFFT, (self._spec,)

    @property
    def _numba_type_(self):
        """Numba asks for this when it meets the object in a kernel; only then is its CUDA target imported."""
        from devkernels.device import numba_fft

        return numba_fft.DeviceFFTType(self)

    # -- traits ----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Points of the transform."""
        return self._spec.size

    @property
    def precision(self) -> type:
        """numpy.float16, numpy.float32 or numpy.float64."""
        return getattr(np, self._spec.precision)

    @property
    def fft_type(self) -> str:
        """``c2c``, ``r2c`` or ``c2r``."""
        return self._spec.fft_type

    @property
    def direction(self) -> str:
        """``forward`` (exponent -2*pi*i*n*k/N) or ``inverse`` (+)."""
        return self._spec.direction

    @property
    def execution(self) -> str:
        """``Block`` or ``Thread``."""
        return self._spec.execution

    @property
    def real_fft_options(self) -> dict | None:
        """``complex_layout`` and ``real_mode`` of r2c and c2r; None for c2c."""
        if self._spec.fft_type == "c2c":
            return None
        return {"complex_layout": self._spec.layout, "real_mode": self._spec.real_mode}

    @property
    def sm(self) -> target.Target:
        """The architecture whose traits these are."""
        return self._spec.target

    @property
    def value_type(self) -> np.dtype:
        """Dtype of `thread_data` and of shared memory; in float16 a 64-bit word (see `pack`)."""
        return _VALUE_DTYPES[self._traits.value_type]

    @property
    def input_type(self) -> np.dtype:
        """Dtype of one input element."""
        return _VALUE_DTYPES[self._traits.input_type]

    @property
    def output_type(self) -> np.dtype:
        """Dtype of one output element."""
        return _VALUE_DTYPES[self._traits.output_type]

    @property
    def storage_size(self) -> int:
        """Length of `thread_data`, in `value_type`."""
        return self._traits.storage_size

    @property
    def elements_per_thread(self) -> int:
        """Points that one thread works on."""
        return self._traits.elements_per_thread

    @property
    def elements_per_thread_values(self) -> tuple[int, ...]:
        """Every `elements_per_thread` that this transform can be built with."""
        if not self._spec.is_block:
            return (self.elements_per_thread,)
        return tuple(traits.elements_per_thread_values(self._spec))

    @property
    def stride(self) -> int:
        """Distance in the row between consecutive elements of one thread; also the threads of one FFT."""
        return self._traits.stride

    @property
    def ffts_per_block(self) -> int | None:
        """Rows of one block; None for thread execution."""
        return self._traits.ffts_per_block

    @property
    def suggested_ffts_per_block(self) -> int | None:
        """Rows per block that cuFFTDx suggests."""
        return self._traits.suggested_ffts_per_block

    @property
    def implicit_type_batching(self) -> int:
        """Rows in one value: 2 in float16, else 1."""
        return self._traits.implicit_type_batching

    @property
    def shared_memory_size(self) -> int | None:
        """Bytes of shared memory that one block needs for ``f(thread_data, shared_mem)``."""
        return self._traits.shared_memory_size

    @property
    def shared_io_size(self) -> int | None:
        """Bytes of shared memory that one block needs for ``f(shared_mem)``: the rows themselves, or the scratch."""
        if not self._spec.is_block:
            return None
        t = self._traits
        rows = t.ffts_per_block // t.implicit_type_batching
        row_bytes = max(t.input_length * self.input_type.itemsize, t.output_length * self.output_type.itemsize)
        return max(t.shared_memory_size, rows * row_bytes)

    @property
    def block_dim(self) -> Dim3 | None:
        """Threads of one block; x along the row, y over the rows."""
        return Dim3(*self._traits.block_dim) if self._traits.block_dim else None

    @property
    def input_length(self) -> int:
        """Elements of one input row."""
        return self._traits.input_length

    @property
    def output_length(self) -> int:
        """Elements of one output row."""
        return self._traits.output_length

    @property
    def input_elements_per_thread(self) -> int:
        """Input elements that one thread holds."""
        return self._traits.input_elements_per_thread

    @property
    def output_elements_per_thread(self) -> int:
        """Output elements that one thread holds."""
        return self._traits.output_elements_per_thread

    @property
    def scale(self) -> float:
        """What this transform followed by its inverse multiplies by: N, since neither direction is normalised."""
        return float(self._spec.size)

    @property
    def files(self) -> list:
        """Always empty: a call links its own code. Kept so that ``@cuda.jit(link=f.files)`` of published code runs."""
        return []

    def likely_requests(self, here: target.Target) -> list:
        """What a kernel for `here` that calls this object will link, if it calls it in the usual way."""
        from devkernels.device.code import FunctionRequest

        architecture = target.Target(here.major, here.minor)
        if self._spec.target != architecture:
            return []  # decided while the kernel is compiled (see numba_fft.retarget)
        return [FunctionRequest(traits.description(self._spec), architecture)]

    def inverse(self) -> DeviceFFT:
        """The transform in the other direction (c2r for r2c), with the same knobs; the pair multiplies by `scale`."""
        return DeviceFFT(self._spec.inverse())

    def launch(self, rows: int, stream: object = 0) -> Launch:
        """Grid, block, stream and shared memory for a kernel that transforms `rows` rows once."""
        if not self._spec.is_block:
            raise SpecError(
                "launch() needs execution='Block'; with thread execution the kernel's author chooses the block.",
                spec=self._spec,
            )
        rows = whole_number(rows, "rows")
        return Launch(Dim3(-(-rows // self.ffts_per_block)), self.block_dim, stream, self.shared_memory_size)

    # -- calls inside kernels: these bodies run in the simulator; on a GPU Numba compiles device/numba_fft.py ----

    def __call__(self, *arrays):
        """Transform inside a kernel: ``f(thread_data, shared_mem)``, ``f(thread_data)`` or ``f(shared_mem)``."""
        from devkernels.device import simulated

        simulated.call(self, *arrays)

    def load(self, x, row, thread_data):
        """Load row `row` of `x` into `thread_data` (collective; see `devkernels.fft`)."""
        from devkernels.device import simulated

        simulated.load(self, x, row, thread_data)

    def store(self, thread_data, y, row):
        """Store `thread_data` into row `row` of `y` (collective; see `devkernels.fft`)."""
        from devkernels.device import simulated

        simulated.store(self, thread_data, y, row)

    def index(self, i):
        """Position in the row (time or frequency) of this thread's element `i`."""
        from devkernels.device import simulated

        return simulated.index(self, i)

    def row(self):
        """The first row that this thread works on: rows are dealt out block by block."""
        from devkernels.device import simulated

        return simulated.row(self)

    def pack(self, first, second):
        """float16 only: the value that holds `first` (complex, row r) and `second` (row r + 1)."""
        from devkernels.device import simulated

        return simulated.pack(self, first, second)

    def unpack(self, value):
        """float16 only: the two complex64 numbers of a value, of rows r and r + 1."""
        from devkernels.device import simulated

        return simulated.unpack(self, value)


def fft(
    *,
    fft_type: str,
    size: int,
    precision: object,
    direction: str | None = None,
    execution: str = "Block",
    elements_per_thread: int | str | None = None,
    ffts_per_block: int | str | None = None,
    real_fft_options: dict | None = None,
    sm: object = None,
    compiler: str = "numba",
) -> DeviceFFT:
    """Make a device FFT that kernels call.

    Parameters
    ----------
    fft_type : {'c2c', 'r2c', 'c2r'}
        Complex to complex, real to complex, complex to real.
    size : int
        Points N of the transform.
    precision : numpy.float16, numpy.float32 or numpy.float64
        Of the arithmetic and of the data. float16 works on two rows at once.
    direction : {'forward', 'inverse'}, optional
        Needed for c2c; r2c is always forward and c2r inverse.
    execution : {'Block', 'Thread'}
        The threads of a block share each transform, or every thread does one of its own in registers.
    elements_per_thread, ffts_per_block : int or 'suggested', optional
        Points of one thread, and rows of one block. Left out, the library's default and its suggested value.
    real_fft_options : dict, optional
        ``complex_layout``: 'natural' (N//2 + 1 values), 'packed' (N/2 values, the real parts of frequencies 0 and
        N/2 in the first) or 'full' (N values). ``real_mode``: 'normal', or 'folded' (an N/2-point transform of
        pairs; powers of two in block execution).
    sm : Target, str or int, optional
        Architecture, as ``"sm_90"`` or 90; left out: the current device, or the one that is compiled for.
    compiler : {'numba'}
        Only Numba.

    Returns
    -------
    DeviceFFT
        With the traits of cuFFTDx by name, and these calls inside a kernel. All threads of a block must take part
        in a block transform, or whole rows of threads (one ``threadIdx.y``) stay out together by returning early.

        ``f(thread_data, shared_mem)``
            Block execution, data in registers: `thread_data` is a local array of `storage_size` values of
            `value_type`, `shared_mem` has `shared_memory_size` bytes. Element i of a thread is element
            ``threadIdx.x + i * stride`` of the row. Shared memory is free again after ``cuda.syncthreads()``.
        ``f(shared_mem)``
            Block execution, rows one after another in shared memory of `shared_io_size` bytes. Synchronise before
            the call and after it.
        ``f(thread_data)``
            Thread execution.
        ``f.load(x, row, thread_data)``, ``f.store(thread_data, y, row)``
            Move one row of a global array: `x` has shape (rows, length), complex or real as the transform's side
            asks (float16: complex rows have shape (rows, length, 2)). Rows outside the array, and elements beyond
            its length, load as zero and are not stored; elements beyond the transform's length are left out.
        ``f.index(i)``, ``f.row()``
            Position of element i in the row, and the thread's (first) row under `launch`.

    Raises
    ------
    SpecError
        An argument is invalid alone or with the others.
    UnsupportedSizeError
        No device function exists; the message names the nearest sizes that have one.
    ResourceError
        One block would need more threads or shared memory than the architecture has.

    Notes
    -----
    As in cuFFT, neither direction is normalised: a pair multiplies by `scale` = N. Transforms are cuFFTDx's
    (NVIDIA, through libmathdx); in the simulator they are numpy.fft's in the same precision.
    """
    if compiler != "numba":
        raise SpecError(f"compiler={compiler!r} is not supported; 'numba' is.")
    spec = make_fft_spec(
        fft_type=fft_type,
        size=size,
        precision=precision,
        direction=direction,
        execution=execution,
        real_fft_options=real_fft_options,
        sm=sm,
    )
    return DeviceFFT(traits.complete(spec, elements_per_thread, ffts_per_block))


def _size_query(precision, fft_type, sm, execution, real_fft_options) -> FFTSpec:
    direction = "inverse" if fft_type == "c2r" else "forward"
    return make_fft_spec(
        fft_type=fft_type,
        size=1,
        precision=precision,
        direction=direction,
        execution=execution,
        real_fft_options=real_fft_options,
        sm=sm,
    )


def supported_sizes(
    precision: object,
    fft_type: str = "c2c",
    sm: object = None,
    *,
    execution: str = "Block",
    real_fft_options: dict | None = None,
) -> list[int]:
    """List every size for which `devkernels.fft` has a device function, ascending.

    Asks libmathdx where it is installed and a stored table where it is not. Arguments as in `devkernels.fft`.
    """
    return traits.sizes(_size_query(precision, fft_type, sm, execution, real_fft_options))


def next_supported_size(
    n: int,
    precision: object,
    fft_type: str = "c2c",
    sm: object = None,
    *,
    execution: str = "Block",
    real_fft_options: dict | None = None,
) -> int:
    """Return the smallest supported size that is at least `n`.

    Raises
    ------
    UnsupportedSizeError
        If `n` is beyond the largest.
    """
    n = whole_number(n, "n")
    query = _size_query(precision, fft_type, sm, execution, real_fft_options)
    found = traits.next_size(query, n)
    if found is None:
        largest = traits.sizes(query)[-1]
        raise UnsupportedSizeError(
            f"n={n} is beyond the largest supported size, {largest}, for {query.fft_type} in {query.precision} on "
            f"{query.target} ({execution} execution).",
            spec=query,
        )
    return found


fft.supported_sizes = supported_sizes
fft.next_supported_size = next_supported_size
