"""Kernel arguments that are device pipelines, ours or nvmath.device's: passed as the address of their storage.

In: a ``DevicePipeline`` (from ``suggest_device_pipeline``), or the Numba type of one. Out: a `Parameter` that names
exactly this kind of pipeline, and the way back to the Numba type. A kind of ours is a text that says all (devkernels/
pipeline_spec.py). One of nvmath's has a tile, a depth, and the shapes, strides and dtypes of its matrices, which its
code is compiled for; nvmath.device is only met where the program has imported it.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from devkernels.compiler.image import Parameter
from devkernels.errors import SpecError
from devkernels.pipeline_spec import WARPGROUP, PipelineSpec

_known: dict[str, weakref.ref] = {}  # name of a type -> a pipeline of this type; its Numba type would keep it alive


def is_pipeline(kind: type) -> bool:
    """Whether a class is a device pipeline of ours, what one is made of, or nvmath's DevicePipeline."""
    return _ours(kind) or (kind.__name__ == "DevicePipeline" and kind.__module__.startswith("nvmath.device"))


def _ours(kind: type) -> bool:
    return getattr(kind, "is_device_pipeline", False) is True


def for_architecture(parameters: tuple[Parameter, ...]) -> bool:
    """Whether a kernel with such parameters has instructions of one architecture only, such as sm_90a."""
    specs = (PipelineSpec.of(p.dtype) for p in parameters if p.kind == "pipeline")
    return any(spec is not None and spec.engine == WARPGROUP for spec in specs)


def parameter(name: str, pipeline: Any) -> Parameter:
    """The parameter that takes pipelines of this kind."""
    if _ours(type(pipeline)):
        spec = pipeline if isinstance(pipeline, PipelineSpec) else pipeline.spec
        return Parameter(name, "pipeline", spec.told())
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
    if (spec := PipelineSpec.of(described.dtype)) is not None:
        from devkernels.device import numba_pipeline

        return numba_pipeline.DevicePipelineType(spec)
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
    return pipeline.address if _ours(type(pipeline)) else int(pipeline._storage.handle)


def _numba_type(pipeline: Any) -> Any:
    return sys.modules["nvmath.device.cublasdx_numba"].DevicePipelineType(pipeline)
