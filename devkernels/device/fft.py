"""`devkernels.fft(...)`: one device FFT as an object that kernels call, and which sizes there are.

In: keywords (checked in devkernels/spec.py, completed in devkernels/traits.py). Out: a `DeviceFFT`
(device/fft_object.py). The kernel's text is the same on a GPU, ahead of time and in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, cast

from devkernels import fft_sizes, traits
from devkernels.checks import whole_number
from devkernels.device.fft_object import DeviceFFT
from devkernels.device.shape import Dim3, Launch
from devkernels.errors import SpecError, UnsupportedSizeError
from devkernels.spec import FFTSpec, make_fft_spec

__all__ = ["DeviceFFT", "Dim3", "Launch", "fft", "next_supported_size", "supported_sizes"]


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
    return fft_sizes.sizes(_size_query(precision, fft_type, sm, execution, real_fft_options))


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
    found = fft_sizes.next_size(query, n)
    if found is None:
        largest = fft_sizes.sizes(query)[-1]
        raise UnsupportedSizeError(
            f"n={n} is beyond the largest supported size, {largest}, for {query.fft_type} in {query.precision} on "
            f"{query.target} ({execution} execution).",
            spec=query,
        )
    return found


_P = ParamSpec("_P")

if TYPE_CHECKING:

    class _WithSizes(Generic[_P]):
        """What `fft` is to a type checker: a function with two more as its attributes."""

        supported_sizes = staticmethod(supported_sizes)
        next_supported_size = staticmethod(next_supported_size)

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceFFT: ...


def _with_sizes(function: Callable[_P, DeviceFFT]) -> _WithSizes[_P]:
    given: Any = function
    given.supported_sizes, given.next_supported_size = supported_sizes, next_supported_size
    return cast("_WithSizes[_P]", function)


@_with_sizes
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
