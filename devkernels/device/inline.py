"""Device functions that are always inlined, the same in a compiled kernel and in the simulator."""

from __future__ import annotations

from collections.abc import Callable

from devkernels.target import simulating


def device_function(function: Callable) -> Callable:
    """Make `function` callable inside kernels and have it inlined there.

    Parameters
    ----------
    function : callable
        A plain Python function, or one that is decorated with ``@cuda.jit(device=True)`` already (returned as it is).

    Returns
    -------
    callable
        On a GPU and ahead of time a forcibly inlined device function; in the simulator the simulated one.
    """
    from numba import cuda

    if hasattr(function, "py_func") or hasattr(function, "fn"):
        return function
    if simulating():
        return cuda.jit(device=True)(function)
    return cuda.jit(device=True, forceinline=True)(function)
