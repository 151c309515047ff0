"""`compile`: a Python kernel, a signature and a target become a `KernelImage`, once.

In: the function as it would be given to ``@cuda.jit``. Out: an image, from memory, from disk, or built here; for
another architecture than this process compiles for, and from the simulator, built by a worker process.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from devkernels import cache, versions
from devkernels import target as targets
from devkernels.canonical import digest
from devkernels.compiler import pipelines
from devkernels.compiler.image import KernelImage, pack, unpack
from devkernels.errors import DevkernelsError, DevkernelsWarning, MissingDependencyError, SpecError
from devkernels.target import Target

if TYPE_CHECKING:
    from devkernels.compiler.signature import Signature

KIND = "kernel"


@dataclass(frozen=True)
class Options:
    """How a kernel is compiled; see `devkernels.kernel`."""

    launch_bounds: int | tuple[int, ...] | None = None
    max_registers: int | None = None
    fastmath: bool = False
    lineinfo: bool = False
    opt: bool = True
    arch_specific: bool = False  # compiled for sm_90a where the target is sm_90, and so on

    def __post_init__(self):
        bounds = self.launch_bounds
        parts = bounds if isinstance(bounds, tuple) else (bounds,)
        if bounds is not None and not (1 <= len(parts) <= 3 and all(type(p) is int and p > 0 for p in parts)):
            raise SpecError(
                f"launch_bounds={bounds!r} is not understood; give the most threads per block, or a tuple (threads per "
                f"block, blocks per multiprocessor, blocks per cluster).",
                spec=self,
            )
        if bounds is not None and parts[0] > Target.max_threads_per_block:
            raise SpecError(
                f"launch_bounds={bounds!r} asks for {parts[0]} threads per block; there are at most "
                f"{Target.max_threads_per_block}.",
                spec=self,
            )
        registers = self.max_registers
        if registers is not None and not (type(registers) is int and 16 <= registers <= 255):
            raise SpecError(f"max_registers={registers!r} is not understood; give a number from 16 to 255.", spec=self)


def compile(
    kernel: Callable, signature: object = None, target: object = None, *, notes: dict | None = None, **options: Any
) -> KernelImage:
    """Compile a kernel for one architecture, with or without a GPU.

    Parameters
    ----------
    kernel : callable
        A Python function, one decorated with ``@devkernels.kernel``, or one decorated with ``@cuda.jit``.
    signature : str, numba signature or tuple of numba types, optional
        Argument types, such as ``"void(complex64[:,::1], int32)"``. May be left out if the decorator has one.
    target : str, int, tuple or Target, optional
        Architecture, such as ``"sm_90"``. Default: the current device's, else ``DEVKERNELS_TARGET``, else sm_90.
    notes : dict, optional
        Kept in the image as it is (JSON types only), for a program's own use, such as the block shape.
    **options
        ``launch_bounds``, ``max_registers``, ``fastmath``, ``lineinfo``, ``opt``: as in `devkernels.kernel`, whose
        values they replace.

    Returns
    -------
    KernelImage

    Raises
    ------
    CompileError
        The kernel, or a function that it calls, cannot be compiled or linked.
    JitDisabledError
        ``DEVKERNELS_DISABLE_JIT`` is set and the image is not in the cache.
    TargetError
        The architecture is unknown, or a worker process is needed and the kernel cannot be sent to one.
    SpecError
        The signature or an option is not understood.
    """
    function, own_options, own_signature = unwrap(kernel)
    chosen = Options(**(asdict(own_options) | options)) if options else own_options
    signature = own_signature if signature is None else signature
    if signature is None:
        raise SpecError(f"Kernel {function.__name__} needs a signature to be compiled ahead of a launch.")
    where = targets.current_target() if target is None else Target.parse(target)
    image = compile_function(function, signature, where, chosen, notes)
    content = getattr(kernel, "content", None)  # of a ready kernel
    return replace(image, content=content) if content else image


def unwrap(kernel: Any) -> tuple[Callable, Options, object]:
    """Function, options and signature of whatever `compile` accepts."""
    if hasattr(kernel, "compile_options"):  # @devkernels.kernel
        return kernel.py_func, kernel.compile_options, kernel.signature
    function = getattr(kernel, "py_func", None) or getattr(kernel, "fn", None) or kernel
    given = getattr(kernel, "targetoptions", {})  # @cuda.jit
    names = ("launch_bounds", "max_registers", "fastmath", "lineinfo", "opt")
    options = Options(**{name: given[name] for name in names if given.get(name) is not None})
    if not callable(function) or not hasattr(function, "__code__"):
        raise SpecError(f"{kernel!r} is not a kernel; give a Python function.", spec=kernel)
    return function, options, None


def compile_function(
    function: Callable, signature: object, target: Target, options: Options, notes: dict | None = None
) -> KernelImage:
    """`compile` with everything decided. Numba is imported only if the image is not in the cache."""
    from devkernels.compiler.signature import resolve

    target = target_of(target, options)
    if targets.simulating():  # its functions are not those that a compiler would see
        return _compile_elsewhere(function, signature, target, options, notes)
    resolved = resolve(function, signature)
    if not options.arch_specific and pipelines.for_architecture(resolved.parameters):
        options = replace(options, arch_specific=True)
        target = target_of(target, options)
    key = kernel_key(function, resolved, target, options, notes)
    data = cache.get(KIND, key)
    if data is not None:
        return unpack(data)[0]
    from devkernels.compiler import frontend

    own = frontend.architecture()
    if own is not None and own.cc != target.cc:
        return _compile_elsewhere(function, signature, target, options, notes)

    def build() -> bytes:
        return pack([_build(function, signature, resolved, target, options, notes)])

    spec = f"kernel {function.__name__}({resolved}) for {target}"
    with needing_compilers(spec):
        return unpack(cache.get_or_build(KIND, key, build, spec=spec))[0]


def target_of(target: Target, options: Options) -> Target:
    """What is compiled for where `target` is asked for: ``sm_90a`` for a kernel that needs it."""
    return replace(target, arch_specific=True) if options.arch_specific and not target.arch_specific else target


def _compile_elsewhere(*what: Any) -> KernelImage:
    from devkernels.compiler import remote  # with what starts processes; what is in the cache needs none of it

    return remote.compile_elsewhere(*what)


@contextlib.contextmanager
def needing_compilers(spec: str) -> Iterator[None]:
    """Say in words that something must be compiled where a compiler is not installed."""
    try:
        yield
    except DevkernelsError:
        raise
    except Exception as error:
        not_found = type(error).__name__ == "DynamicLibNotFoundError"  # of cuda.pathfinder
        if not (isinstance(error, ImportError) or not_found):
            raise
        told = str(error).partition("\n")[0]
        raise MissingDependencyError(
            f"{spec} is neither in the cache nor in an image, and a library that would compile it is missing ({told}). "
            f"Install devkernels[cu12], [cu13] or [aot], or bring it as an image.",
            spec=spec,
        ) from error


def kernel_key(
    function: Callable, signature: Signature, target: Target, options: Options, notes: dict | None = None
) -> str:
    """Name of a kernel in the cache."""
    from devkernels.compiler import keys

    try:
        pipeline = any(parameter.kind == "pipeline" for parameter in signature.parameters)
        content = keys.function_key(function, ["products"] if pipeline else ())
    except keys.UnstableError as error:
        content = _process_key(function)
        warnings.warn(
            f"Kernel {function.__name__} refers to something without stable content ({error}), so that it is compiled "
            f"again in every process. Pass it as an argument, or give its class a method __cache_key__().",
            DevkernelsWarning,
            stacklevel=5,
        )
    return digest(
        "kernel", function.__name__, content, signature, str(target), options, notes or {}, versions.for_kernels()
    )


_process_keys: dict[int, tuple[Callable, str]] = {}


def _process_key(function: Callable) -> str:
    import secrets

    if id(function) not in _process_keys:  # the function is kept, so that its id stays its own
        _process_keys[id(function)] = (function, secrets.token_hex(16))
    return _process_keys[id(function)][1]


def _build(
    function: Callable, given: object, signature: Signature, target: Target, options: Options, notes: dict | None
) -> KernelImage:
    from devkernels.compiler import frontend, functions, keys, link, nvmath_functions

    started = functions.start(keys.device_objects(function), target)  # before Numba is imported, which takes a second
    if signature.exact:
        arguments = frontend.normalize(given)
    else:
        arguments = tuple(map(frontend.numba_type, signature.parameters))
    lowered = frontend.lower(
        function, arguments, target, fastmath=options.fastmath, lineinfo=options.lineinfo, opt=options.opt,
        launch_bounds=options.launch_bounds,
    )  # fmt: skip
    codes = [("ltoir", lowered.ltoir), *functions.gather(lowered.linked, target, started)]
    target = nvmath_functions.link_target((content for _, content in codes), target)
    cubin = link.link(codes, target, name=function.__name__, max_registers=options.max_registers,
                      lineinfo=options.lineinfo)  # fmt: skip
    return KernelImage.of(cubin, lowered.symbol, function.__name__, target, signature.parameters, lowered.cooperative,
                          notes, versions.libraries())  # fmt: skip
