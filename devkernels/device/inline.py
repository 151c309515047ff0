"""Device functions that are always inlined, the same in a compiled kernel and in the simulator."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from devkernels.target import simulating


class DeviceFunction:
    """A forcibly inlined device function; Numba is imported only when a kernel that calls it is compiled."""

    targetoptions = {"device": True, "forceinline": True}  # noqa: RUF012 - as on Numba's own device functions; constant

    def __init__(self, function: types.FunctionType):
        self.py_func = function
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__
        self._jitted: Any = None

    @property
    def _numba_type_(self) -> Any:
        """What Numba's compiler takes this object for."""
        if self._jitted is None:
            from numba import cuda

            self._jitted = cuda.jit(**self.targetoptions)(self.py_func)
        return self._jitted._numba_type_

    def __reduce__(self):
        return device_function, (self.py_func,)

    def __repr__(self) -> str:
        return f"<device function {self.__module__}.{self.__name__}>"


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
    if hasattr(function, "py_func") or hasattr(function, "fn"):
        return function
    if simulating():
        from numba import cuda

        return cuda.jit(device=True)(function)
    return DeviceFunction(function)
