"""`block_fft(...)`: a block transform as an object with device functions, for fused spectral kernels.

in: length and precision, and knobs if wanted. out: a `BlockFFT`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.checks import whole_number
from devkernels.device.inline import device_function
from devkernels.device.shape import Dim3, Launch
from devkernels.engine import choose, emit, index, spectrum
from devkernels.engine.plan import BlockPlan
from devkernels.engine.plan_search import make_plan
from devkernels.errors import SpecError


@dataclass(frozen=True)
class BlockFFT:
    """A block transform whose spectrum stays in the order in which the threads hold it; made by `block_fft`.

    Attributes
    ----------
    plan : BlockPlan
        Radices, threads, exchanges; ``plan.describe()`` says it in words.
    dtype : numpy.dtype
        complex64 or complex128, of the thread's local array.
    max_registers : int or None
        Registers that a thread should have, where the plan was measured with a limit.
    streamed : bool
        `load` and `store` take no place in the L1 cache, `load_filter` keeps it.
    ahead : bool
        Rows are best fetched ahead (`devkernels.engine.ahead`).
    """

    plan: BlockPlan
    dtype: np.dtype
    frequency_offset: float = 0.0
    real_input: bool = False
    rotated: bool = False
    max_registers: int | None = None
    streamed: bool = False
    ahead: bool = False

    @property
    def size(self) -> int:
        """Length of a row."""
        return self.plan.size

    @property
    def elements_per_thread(self) -> int:
        """Length of the thread's local array."""
        return self.plan.elements

    @property
    def stride(self) -> int:
        """Slot e of thread tx is row element ``tx + e * stride``."""
        return self.plan.threads

    @property
    def block_dim(self) -> Dim3:
        """Thread block: x runs along a row, y over the rows of a block."""
        return Dim3(*self.plan.block_dim)

    @property
    def ffts_per_block(self) -> int:
        """Rows that a block transforms."""
        return self.plan.rows

    @property
    def shared_memory_size(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return self.plan.shared_bytes

    @property
    def offsets(self) -> tuple[int, ...]:
        """Row elements from a thread's first to each of its slots."""
        return self._offsets(1)

    def _offsets(self, stage: int) -> tuple[int, ...]:
        width, step = self.plan.width, self.plan.threads_in(stage)
        return tuple(e // width * width * step + e % width for e in range(self.plan.share(stage)))

    @property
    def uneven(self) -> bool:
        """Whether stages take different numbers of threads: `devkernels.engine.uneven` says who has what."""
        return self.plan.uneven

    @property
    def rows_cache(self) -> str:
        """How rows are moved: see `devkernels.engine.emit.Move`."""
        return "once" if self.streamed else ""

    @property
    def kernel_options(self) -> dict[str, int]:
        """What to give `devkernels.kernel` for this plan: ``@devkernels.kernel(**f.kernel_options)``.

        Either launch bounds or a number of registers: given both, the assembler goes by the bounds and takes fewer.
        """
        if self.max_registers is not None:
            return {"max_registers": self.max_registers}
        return {"launch_bounds": math.prod(self.block_dim)}

    def launch(self, rows: int, stream: object = 0) -> Launch:
        """Grid, block, stream and shared memory for a kernel that transforms `rows` rows once."""
        rows = whole_number(rows, "rows")
        return Launch(Dim3(-(-rows // self.ffts_per_block)), self.block_dim, stream, self.shared_memory_size)

    @functools.cached_property
    def spectrum_index(self) -> np.ndarray:
        """Frequency (stride, elements_per_thread) in slot e of thread tx after `forward`."""
        return index.spectrum_index(self.plan.radices, self.plan.share(len(self.plan.radices)), self.plan.groups[-1])

    def order_filter(self, spectrum: np.ndarray) -> np.ndarray:
        """Natural-order spectra (..., size) in the engine's order: slot e of thread tx reads ``[tx + e * stride]``."""
        spectrum = np.asarray(spectrum)
        if spectrum.shape[-1:] != (self.size,):
            raise SpecError(f"The spectrum has shape {spectrum.shape}; its last axis must be {self.size}.", spec=self)
        width = self.plan.width
        held = self.spectrum_index.reshape(self.plan.threads_in(len(self.plan.radices)), -1, width)
        return np.ascontiguousarray(spectrum[..., held.transpose(1, 0, 2).reshape(-1)])

    @functools.cached_property
    def forward(self):
        """Device function ``forward(data, shared)``."""
        return self._make(-1, real_input=self.real_input)

    @functools.cached_property
    def inverse(self):
        """Device function ``inverse(data, shared)``."""
        return self._make(1)

    @functools.cached_property
    def filter_inverse(self):
        """Device function ``filter_inverse(data, factors, shared)``."""
        return self._make(1, filtered=True)

    @functools.cached_property
    def frequency(self):
        """Device function ``frequency(thread)``: `spectrum_index` of slot 0; `frequency_offsets` has the others."""
        return spectrum.first_frequency(self.plan)

    @property
    def frequency_offsets(self) -> tuple[int, ...]:
        """Frequencies from a thread's slot 0 to each of its slots, the same for all threads."""
        return spectrum.offsets(self.plan)

    def each_frequency(self, function: Callable) -> Callable:
        """Device function ``f(data, thread)`` that puts a spectrum through your ``function(X, k)``, k the frequency."""
        return spectrum.each(self.plan, device_function(function))

    @functools.cached_property
    def load(self):
        """Device function ``load(data, memory, base)``: a thread's share of a complex row that starts at base - tx."""
        return emit.gather(self._move(self.rows_cache))

    @functools.cached_property
    def load_filter(self):
        """Device function as `load`, for what many rows read: it stays in the L1 cache."""
        load = emit.gather(self._move("often" if self.streamed else "", len(self.plan.radices)))
        if not self.uneven:
            return load
        from devkernels.engine import uneven

        return uneven.of_spectra(self.plan, load)

    @functools.cached_property
    def store_spectrum(self):
        """Device function as `store`, by the threads that hold a spectrum."""
        return emit.scatter(self._move(self.rows_cache, len(self.plan.radices)))

    @functools.cached_property
    def store(self):
        """Device function ``store(data, memory, base)``: the reverse of `load`."""
        return emit.scatter(self._move(self.rows_cache))

    def _move(self, cache: str, stage: int = 1) -> emit.Move:
        return emit.Move(self._offsets(stage), self.dtype.name, cache=cache, pairs=self.plan.neighbours)

    def _make(self, sign, filtered=False, **options):
        from devkernels.engine import stages

        run = stages.compose(
            self.plan, self.dtype, sign, offset=self.frequency_offset, rotated=self.rotated, filtered=filtered,
            **options,
        )  # fmt: skip
        return stages.bind(self.plan, run, filtered)


def _complex_dtype(precision: object) -> np.dtype:
    try:
        name = np.dtype(precision).name
    except TypeError:
        name = str(precision)
    found = {"float32": "complex64", "complex64": "complex64", "float64": "complex128", "complex128": "complex128"}
    if name not in found:
        raise SpecError(
            f"precision={precision!r} must be float32 or float64 (half-precision rows are computed in float32)."
        )
    return np.dtype(found[name])


def block_fft(
    size: int,
    precision: object = "float32",
    *,
    radices: tuple[int, ...] | None = None,
    elements_per_thread: int | None = None,
    ffts_per_block: int | None = None,
    frequency_offset: float = 0.0,
    real_input: bool = False,
    rotated: bool = False,
    columns: bool = False,
    pairs: bool = False,
    neighbours: bool = False,
    uneven: bool = False,
    tune: bool = False,
) -> BlockFFT:
    """Make device functions that transform rows with the threads of a block, for fused spectral kernels.

    The forward transform leaves the spectrum in the order in which its last stage computes it, the inverse takes it so:
    work on a spectrum seldom cares for its order, and each direction saves one exchange between threads. Where it does
    care, ``f.each_frequency(function)`` makes a device function of ``function(X, k)``.

    In a kernel that runs with ``f.launch(rows=...)``, or a block ``f.block_dim`` and ``f.shared_memory_size`` bytes::

        data = cuda.local.array(f.elements_per_thread, f.dtype)
        shared = cuda.shared.array(0, f.dtype)
        row = blockIdx.x * f.ffts_per_block + threadIdx.y
        # slot e of thread tx = threadIdx.x is element tx + e * f.stride of the row
        f.load(data, x_flat, row * f.size + tx)    # one 8- or 16-byte access per element; or fill `data` yourself
        f.forward(data, shared)                    # slot e is now frequency f.spectrum_index[tx, e], unnormalised
        f.inverse(data, shared)                    # slot e is now size * x[tx + e * f.stride]
        f.filter_inverse(data, factors, shared)    # inverse of data * factors; factors: a second local array
        f.store(data, y_flat, row * f.size + tx)

    All threads of the block must call `forward` and the inverses, with valid or zero data (threads without a row too:
    they pass the barriers). From a `forward` to an inverse, and from an inverse to the next `forward`, no barrier is
    needed: every thread first overwrites only what it has read itself. Two calls in the same direction on the same
    shared memory need ``cuda.syncthreads()`` between them, and so does any other use of it before or after.

    Parameters
    ----------
    size : int
        Length: a product of radices from 2 to 32, up to 16384 (complex64) or 8192 (complex128).
    precision : dtype or str
        float32 or float64.
    radices : tuple of int, optional
        Factors of the stages, in order; by default from a table of measured choices, or estimated.
    elements_per_thread : int, optional
        A multiple of every radix; needs `radices`. Default: their least common multiple.
    ffts_per_block : int, optional
        Rows per block.
    frequency_offset : float
        The transform is taken at frequencies k + offset: ``sum_n x_n exp(-2 pi i n (k + offset) / size)``; the inverse
        undoes it. -0.25 makes products of spectra right-angle convolutions: with real rows, the real part of the
        inverse holds the first `size` values of the linear convolution and the imaginary part the others.
    real_input : bool
        `forward` takes rows whose imaginary parts are zero, and ignores these.
    columns : bool
        For transforms along an axis that is not the last: threadIdx.x runs over the `ffts_per_block` transforms of the
        block, which should be neighbours in memory, and threadIdx.y along the transform.
    pairs : bool
        Elements pass shared memory two at a time where a thread holds neighbours: fewer instructions, but for most
        lengths the layouts are larger. Plans from the table know whether it helps.
    neighbours : bool
        Where the table says that it helps, slots are pairs of neighbours: slot e of thread tx is element
        ``2 tx + f.offsets[e]`` of a row, and rows begin at multiples of 16 bytes. Otherwise ``f.plan.width`` is 1, and
        all is as above.
    uneven : bool
        Where the table says that it helps, stages take different numbers of threads (``f.uneven``), and rows and
        spectra are not held by the threads named above: for kernels that ask `devkernels.engine.uneven` who has what.
    tune : bool
        Measure plans on this GPU (once; the best is kept in the cache) instead of taking one from the table.
    rotated : bool
        Larger twiddle tables, fewer instructions.

    Returns
    -------
    BlockFFT

    Raises
    ------
    UnsupportedSizeError
        The length has no plan; the message names the next that has.
    SpecError
        A knob does not fit.

    Notes
    -----
    Forward then inverse multiplies by `size`. Twiddle factors come before each butterfly and are folded into its fused
    multiply-adds (`devkernels.engine.networks`); exchanges through shared memory have no bank conflicts for the usual
    lengths, and only the first needs a block barrier.
    """
    size = whole_number(size, "size")
    dtype = _complex_dtype(precision)
    limit, streamed, ahead, held = None, False, False, False
    if radices is None:
        if elements_per_thread is not None:
            raise SpecError("elements_per_thread needs radices: give both, or neither.")
        found = choose.uneven(size, dtype.itemsize) if uneven and not tune else None
        if tune:
            from devkernels.engine.tune import tuned

            found = tuned(size, dtype, uneven)
        found = found or (choose.choose_real if real_input else choose.choose)(size, dtype.itemsize)
        radices, elements_per_thread, limit = found.radices, found.elements, found.max_registers
        rows, streamed, pairs, ahead = found.rows, found.streamed, pairs or found.pairs, found.ahead
        held = neighbours and found.neighbours
    else:
        radices = tuple(radices)
        if index.prefix_products(radices)[-1] != size:
            raise SpecError(f"radices={radices} multiply to {index.prefix_products(radices)[-1]}, not to size={size}.")
        elements_per_thread = elements_per_thread or index.common_elements(radices)
        rows = choose.rows_for(size, elements_per_thread, dtype.itemsize)
    rows = rows if ffts_per_block is None else whole_number(ffts_per_block, "ffts_per_block")
    knobs = float(frequency_offset), real_input, rotated, limit, columns, streamed, pairs, ahead, held
    return _cached(radices, elements_per_thread, rows, dtype, *knobs)


@functools.lru_cache(maxsize=512)
def _cached(
    radices, elements, rows, dtype, offset=0.0, real_input=False, rotated=False, limit=None, columns=False,
    streamed=False, pairs=False, ahead=False, neighbours=False,
) -> BlockFFT:  # fmt: skip
    plan = make_plan(radices, elements, rows, dtype.itemsize, columns, pairs, neighbours)
    return BlockFFT(plan, dtype, offset, real_input, rotated, limit, streamed, ahead)
