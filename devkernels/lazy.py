"""`devkernels.cuda`: Numba's ``cuda`` without the half second that importing Numba takes, until something needs it.

In: attribute accesses, as on ``numba.cuda``. Out: Numba's own attributes. A program whose kernels are all in the cache
and are written with ``from devkernels import cuda`` never imports Numba. Inside a simulated kernel the attributes are
those of the simulated device.
"""

from __future__ import annotations

from typing import Any

from devkernels import target


class LazyCuda:
    """Stands for the module ``numba.cuda``, in kernels of ``@devkernels.kernel`` and of ``@cuda.jit`` alike."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy, pickle, inspect and the like try their luck; Numba's module has none of it
            raise AttributeError(name)
        from numba import cuda

        if target.simulating():
            from numba.cuda.simulator.kernel import _get_kernel_context

            running = _get_kernel_context()
            if running is not None:
                return getattr(running, name)
        return getattr(cuda, name)

    @property
    def _numba_type_(self) -> Any:
        """What Numba's compiler takes this object for: the module itself."""
        from numba import cuda, types

        return types.Module(cuda)

    def __cache_key__(self) -> str:
        return "numba.cuda"

    def __reduce__(self) -> str:
        return "cuda"

    def __repr__(self) -> str:
        return "<numba.cuda, imported when needed>"


cuda = LazyCuda()
