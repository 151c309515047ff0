"""`DeviceFFT`: the object that kernels call, with the traits of cuFFTDx.

In: a completed `FFTSpec`. Out: traits, launch configurations, and calls in three homes: on a GPU and ahead of time it
is LTO-IR of libmathdx (device/numba_fft.py), in the simulator it is NumPy (device/simulated.py).
"""

from __future__ import annotations

import numpy as np

from devkernels import fft_sizes, target, traits
from devkernels.checks import whole_number
from devkernels.device.shape import Dim3, Launch
from devkernels.errors import SpecError
from devkernels.spec import FFTSpec

_VALUE_DTYPES = {
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
    "complex32x2": np.dtype(np.uint64),  # four halves: re, re, im, im of two rows; see DeviceFFT.pack
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16x2": np.dtype(np.uint32),  # two halves: one sample of two rows
}


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
        return [FunctionRequest(fft_sizes.description(self._spec), architecture)]

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
        from devkernels.device import simulated_rows

        simulated_rows.load(self, x, row, thread_data)

    def store(self, thread_data, y, row):
        """Store `thread_data` into row `row` of `y` (collective; see `devkernels.fft`)."""
        from devkernels.device import simulated_rows

        simulated_rows.store(self, thread_data, y, row)

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
