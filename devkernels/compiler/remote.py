"""Compiling in a worker process: for the simulator, which has no compiler, and for a second architecture.

In: a kernel and what to compile it for. Out: its `KernelImage`. The kernel travels by cloudpickle; functions that the
simulator has wrapped arrive as ``@cuda.jit`` functions. The other half is in `devkernels.compiler.worker`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from devkernels import cache
from devkernels.compiler import functions
from devkernels.compiler.image import KernelImage, unpack
from devkernels.errors import TargetError
from devkernels.target import Target


def compile_elsewhere(
    function: Callable, signature: object, target: Target, options: Any, notes: dict | None
) -> KernelImage:
    """Have a fresh process compile `function` for `target`.

    Raises
    ------
    TargetError
        The kernel refers to something that cannot be sent to another process.
    """
    try:
        payload = _dump((function, signature, target, options, notes))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(
            f"Kernel {function.__name__} must be compiled for {target} by another process, but cannot be sent there "
            f"({error}). Start this program with DEVKERNELS_TARGET={target}, so that it compiles for {target} itself.",
            spec=target,
        ) from error
    data, counts = functions.run_worker(("kernel", payload), {"DEVKERNELS_TARGET": str(target)})
    for (kind, event), number in counts.items():
        cache.count(kind, event, number)
    return unpack(data)[0]


def _dump(value: object) -> bytes:
    from numba.cuda.cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        def reducer_override(self, obj: Any) -> Any:
            if type(obj).__name__ == "FakeCUDAKernel" and type(obj).__module__.startswith("numba.cuda.simulator"):
                return _jit, (obj.fn, obj._device, obj._fastmath)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def _jit(function: Callable, device: bool, fastmath: bool) -> Any:
    """What a function wrapped by the simulator is in a process that compiles."""
    from numba import cuda

    return cuda.jit(function, device=device, fastmath=fastmath)
