"""The one seam to numba-cuda: a Python kernel becomes LTO-IR. A second front end would be a file beside this one.

In: a function, a signature, a target. Out: a `Lowered`: LTO-IR, entry symbol, and what must be linked to
it. Works without a GPU and without a driver: Numba asks the current device for its compute capability in one place,
which is answered from `devkernels.target.compiling_for` while this thread compiles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from devkernels import target as targets
from devkernels.compiler import nvmath_functions, pipelines
from devkernels.compiler.image import Parameter
from devkernels.errors import CompileError, SpecError, TargetError
from devkernels.target import Target, compile_for, compiling_for

_architecture: Target | None = None  # the one that this process's device functions have been compiled for


@dataclass(frozen=True)
class Lowered:
    """A kernel before linking. `linked` holds Numba's linking objects: LinkableCode, or paths of files."""

    ltoir: bytes
    symbol: str
    linked: tuple[object, ...]
    cooperative: bool


def architecture() -> Target | None:
    """The architecture that this process compiles for; None before its first compilation.

    Numba keeps compiled device functions by their argument types alone, so that one process can serve one architecture;
    kernels for another are compiled by a worker process (`devkernels.compiler.worker`).
    """
    if _architecture is not None:
        return _architecture
    here = targets.home()
    if here.kind == "gpu":
        return targets.current_target()  # @cuda.jit in this process compiles for the device
    return here.architecture


def normalize(signature: object) -> tuple:
    """The argument types of a signature, which may be text, a Numba signature, or a tuple of types."""
    from numba.core import errors, types
    from numba.cuda.core import sigutils  # knows Numba's types, and those of CUDA such as bfloat16

    if isinstance(signature, (list, tuple)):
        signature = tuple(part._numba_type_ if pipelines.is_pipeline(type(part)) else part for part in signature)
    try:
        arguments, result = sigutils.normalize_signature(signature)
    except (TypeError, ValueError, NameError, AttributeError, SyntaxError, errors.NumbaError) as error:
        raise SpecError(
            f"{signature!r} is not a signature ({error}); write it as 'void(complex64[:,::1], int32)' or as a tuple "
            f"of Numba types.",
            spec=signature,
        ) from error
    if result not in (None, types.void):
        raise SpecError(f"A kernel returns nothing, but its signature {signature} says {result}.", spec=signature)
    return tuple(arguments)


def parameter(name: str, kind: Any) -> Parameter:
    """What the launcher must know of a parameter of a Numba type."""
    from numba.core import types

    if isinstance(kind, types.Array):
        return Parameter(name, "array", _dtype(name, kind.dtype), kind.ndim, kind.layout)
    if pipelines.is_pipeline(type(getattr(kind, "pipeline", None))):
        return pipelines.parameter(name, kind.pipeline)
    if isinstance(kind, types.BaseTuple):
        return Parameter(name, "tuple", items=tuple(parameter(f"{name}[{i}]", item) for i, item in enumerate(kind)))
    return Parameter(name, "scalar", _dtype(name, kind))


def numba_type(described: Parameter) -> Any:
    """The Numba type of a parameter, the counterpart of `parameter`."""
    from numba import types
    from numba.cuda.types import bfloat16

    if described.kind == "tuple":
        return types.Tuple([numba_type(item) for item in described.items])
    if described.kind == "pipeline":
        return pipelines.numba_type(described)
    special = {"bool": types.boolean, "bfloat16": bfloat16}
    scalar = special.get(described.dtype) or getattr(types, described.dtype, None)
    if scalar is None:
        raise SpecError(f"Parameter {described.name} has dtype {described.dtype}, which Numba does not know.")
    return types.Array(scalar, described.ndim, described.layout) if described.kind == "array" else scalar


def _dtype(name: str, kind: Any) -> str:
    from numba.core import types

    if isinstance(kind, types.Boolean):
        return "bool"
    if isinstance(kind, (types.Integer, types.Float, types.Complex)):
        return str(kind)
    if str(kind) == "__nv_bfloat16":
        return "bfloat16"
    raise SpecError(
        f"Parameter {name} has type {kind}, which the launcher does not know; it takes arrays and "
        f"scalars of integers, floats, complex numbers and booleans, and tuples of these. @cuda.jit takes others.",
        spec=kind,
    )


def lower(
    function: Callable, arguments: tuple, target: Target, *, fastmath: bool, lineinfo: bool, opt: bool,
    launch_bounds: int | tuple[int, ...] | None,
) -> Lowered:  # fmt: skip
    """Compile `function` to LTO-IR for `target`.

    Raises
    ------
    CompileError
        Numba refuses the kernel; the message is Numba's.
    TargetError
        This process is the simulator's, or compiles for another architecture already.
    """
    from numba.core import errors
    from numba.cuda import compiler
    from numba.cuda.cudadrv.error import NvvmError

    if compiler is None or not hasattr(compiler, "_compile_pyfunc_with_fixup"):
        raise TargetError("This process runs Numba's simulator, which cannot compile; set DEVKERNELS_TARGET=sm_90.")
    cc = (*target.cc, "a") if target.arch_specific else target.cc
    nvmath_functions.keep_nvmath_functions()
    try:
        with _numba_compiles_for(target):
            library, _ = compiler._compile_pyfunc_with_fixup(
                function, arguments, device=False, abi="numba", cc=cc, lto=True, debug=False, opt=opt,
                fastmath=fastmath, lineinfo=lineinfo, launch_bounds=launch_bounds,
            )  # fmt: skip
            ltoir = bytes(library.get_ltoir(cc=cc))
            linked = list(library._linking_files)
            if "numba_attempt_nocopy_reshape" in library.get_llvm_str():
                linked.append(_numba_file("reshape_funcs.cu"))
            if library.use_cooperative:
                linked.append(_device_runtime())
            return Lowered(ltoir, library._entry_name, tuple(linked), bool(library.use_cooperative))
    except (errors.NumbaError, NvvmError, TypeError, NotImplementedError) as error:
        raise CompileError(
            f"Kernel {function.__name__}({', '.join(map(str, arguments))}) does not compile for {target}:\n{error}",
            spec=arguments,
        ) from error


@contextlib.contextmanager
def _numba_compiles_for(target: Target) -> Iterator[None]:
    """Let Numba's question for the current device's capability be answered with `target`, in this thread only."""
    global _architecture
    from numba.cuda import dispatcher
    from numba.cuda.core.compiler_lock import global_compiler_lock

    with global_compiler_lock, compile_for(target):  # the lock that Numba's own compilations hold
        current = architecture()
        if current is not None and current.cc != target.cc:
            raise TargetError(
                f"This process compiles for {current}; Numba keeps device functions per process, so that "
                f"{target} needs another process."
            )
        _architecture = current if current is not None else target
        asked = dispatcher.get_current_device

        def get_current_device() -> object:
            own = compiling_for()
            return asked() if own is None else _Device(own.cc)

        dispatcher.get_current_device = get_current_device
        try:
            yield
        finally:
            dispatcher.get_current_device = asked


@dataclass(frozen=True)
class _Device:
    """All that Numba's compiler wants to know of a device."""

    compute_capability: tuple[int, int]


def _numba_file(name: str) -> str:
    from pathlib import Path

    from numba.cuda import dispatcher

    return str(Path(dispatcher.__file__).parent / name)


def _device_runtime() -> str:
    from numba.cuda.cudadrv.libs import get_cudalib

    return get_cudalib("cudadevrt", static=True)
