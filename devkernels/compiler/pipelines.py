"""Kernel arguments that are device pipelines of nvmath.device: passed as the address of their storage.

In: a ``DevicePipeline`` (from ``Matmul.suggest_device_pipeline``), or the Numba type of one. Out: a `Parameter` that
names exactly this kind of pipeline (tile, depth, and the shapes, strides and dtypes of its matrices, which its code is
compiled for), and the way back to the Numba type. nvmath.device is only met where the program has imported it.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from devkernels.compiler.image import Parameter
from devkernels.errors import SpecError

_known: dict[str, weakref.ref] = {}  # name of a type -> a pipeline of this type; its Numba type would keep it alive


def is_pipeline(kind: type) -> bool:
    """Whether a class is nvmath's DevicePipeline."""
    return kind.__name__ == "DevicePipeline" and kind.__module__.startswith("nvmath.device")


def parameter(name: str, pipeline: Any) -> Parameter:
    """The parameter that takes pipelines of this kind."""
    told = str(_numba_type(pipeline))
    _known[told] = weakref.ref(pipeline)
    return Parameter(name, "pipeline", told)


def numba_type(described: Parameter) -> Any:
    """The Numba type of a pipeline that `parameter` has described.

    Raises
    ------
    SpecError
        That pipeline is gone, or was made by another process.
    """
    reference = _known.get(described.dtype)
    pipeline = None if reference is None else reference()
    if pipeline is None:
        raise SpecError(
            f"Parameter {described.name} takes a pipeline that this process does not have; kernels with pipelines are "
            f"compiled where their pipelines are: {described.dtype}.",
            spec=described,
        )
    return _numba_type(pipeline)


def address(pipeline: Any) -> int:
    """What the kernel takes for it."""
    return int(pipeline._storage.handle)


def _numba_type(pipeline: Any) -> Any:
    return sys.modules["nvmath.device.cublasdx_numba"].DevicePipelineType(pipeline)
