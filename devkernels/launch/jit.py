"""`@devkernels.kernel`: a Python kernel that is compiled for its arguments on first use and launched by `Launcher`.

In: a function as it would be given to ``@cuda.jit``. Out: a `Kernel`. In the simulator the same object runs the
simulated kernel after the same checks of configuration and arguments.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

from devkernels import target as targets
from devkernels.checks import kind_of
from devkernels.compiler import pipelines
from devkernels.compiler.image import KernelImage, Parameter
from devkernels.compiler.kernel import Options, compile_function
from devkernels.compiler.kernel import compile as compile_kernel
from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError, TargetError
from devkernels.launch import arguments, arrays, driver, limits, simulated, streams
from devkernels.launch.launcher import Bound, Launch, Launcher, common_device

_REMEMBERED_CONFIGURATIONS = 256


@typing.overload
def kernel(
    function: Callable[..., object],
    *,
    signature: object = None,
    launch_bounds: int | tuple[int, ...] | None = None,
    max_registers: int | None = None,
    fastmath: bool = False,
    lineinfo: bool = False,
    opt: bool = True,
) -> Kernel: ...


@typing.overload
def kernel(
    function: None = None,
    *,
    signature: object = None,
    launch_bounds: int | tuple[int, ...] | None = None,
    max_registers: int | None = None,
    fastmath: bool = False,
    lineinfo: bool = False,
    opt: bool = True,
) -> Callable[[Callable[..., object]], Kernel]: ...


def kernel(
    function: Callable | None = None,
    *,
    signature: object = None,
    launch_bounds: int | tuple[int, ...] | None = None,
    max_registers: int | None = None,
    fastmath: bool = False,
    lineinfo: bool = False,
    opt: bool = True,
) -> Kernel | Callable[[Callable[..., object]], Kernel]:
    """Make a GPU kernel of a Python function; the function's text is that of a ``@cuda.jit`` kernel.

    Used bare, ``@devkernels.kernel``, or with options, ``@devkernels.kernel(launch_bounds=256)``.

    Parameters
    ----------
    function : callable
        The kernel.
    signature : str, numba signature or tuple of numba types, optional
        Argument types, such as ``"void(complex64[:,::1], int32)"``. Without one, the kernel is compiled for the types
        of the arguments of each launch (contiguous arrays as such; Python numbers as int64, float64, complex128).
    launch_bounds : int or tuple of int, optional
        Most threads per block, fewest blocks per multiprocessor, most blocks per cluster. The compiler then uses no
        more registers than such blocks can have.
    max_registers : int, optional
        Most registers per thread, whatever that spills.
    fastmath, lineinfo, opt : bool
        As in ``@cuda.jit``.

    Returns
    -------
    Kernel
        Launch it with ``k[grid, block, stream, shared](*arguments)`` or ``k[f.launch(rows=...)](*arguments)``; for
        repeated launches ``k[grid, block].bind(*arguments)`` gives a callable that only makes the driver's call.

    Raises
    ------
    SpecError
        An option is not understood.

    Examples
    --------
    >>> @devkernels.kernel
    ... def scale(x, a):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= a
    >>> scale[8, 128](array, 2.0)
    """
    options = Options(launch_bounds, max_registers, fastmath, lineinfo, opt)
    if function is None:
        return lambda function: Kernel(function, options, signature)
    return Kernel(function, options, signature)


class Kernel:
    """A Python kernel; made by `devkernels.kernel`, which documents it.

    Attributes
    ----------
    py_func : callable
        The Python function.
    signature : object
        What was given as signature, or None.
    compile_options : Options
        How it is compiled.
    """

    def __init__(self, function: Callable, options: Options, signature: object = None):
        function = getattr(function, "py_func", None) or getattr(function, "fn", None) or function
        if not inspect.isfunction(function):
            raise SpecError(f"{function!r} is not a kernel; decorate a Python function.", spec=function)
        self.py_func, self.compile_options, self.signature = function, options, signature
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__
        self.__wrapped__ = function
        self._names = list(inspect.signature(function).parameters)
        self._launchers: dict[Any, Launcher] = {}
        self._launches: dict[Any, Any] = {}
        self._simulated: Any = None
        if "nvmath" in sys.modules:  # before the pipelines are made that it is launched with
            from devkernels.compiler import nvmath_functions

            nvmath_functions.keep_nvmath_functions()

    def __reduce__(self):
        return Kernel, (self.py_func, self.compile_options, self.signature)

    def __repr__(self) -> str:
        return f"<devkernels.kernel {self.__module__}.{self.__name__}>"

    def __call__(self, *_: Any) -> None:
        """Say how a kernel is launched; it cannot be called without a configuration."""
        raise ArgumentError(f"Kernel {self.__name__} needs a configuration: {self.__name__}[grid, block](...).")

    def __getitem__(self, key: Any) -> KernelLaunch | simulated.SimulatedLaunch:
        """Choose grid, block, and optionally stream and bytes of dynamic shared memory."""
        try:
            return self._launches[key]
        except (KeyError, TypeError):
            pass
        make = simulated.SimulatedLaunch if targets.simulating() else KernelLaunch
        key = key if targets.simulating() else streams.plain(key)
        try:
            if key in self._launches:
                return self._launches[key]
        except TypeError:  # grid or block given as a list
            return make(self, key)
        launch = make(self, key)
        if len(self._launches) >= _REMEMBERED_CONFIGURATIONS:
            self._launches.clear()
        if not targets.simulating() or len(key) < 3 or isinstance(key[2], (int, type(None))):  # keep no stream alive
            self._launches[key] = launch
        return launch

    def bind(self, *values: Any) -> Bound:
        """Fix the arguments first: ``k.bind(*arguments)[grid, block]()``."""
        return Bound(self, values)

    def compile(self, signature: object = None, target: object = None, notes: dict | None = None) -> KernelImage:
        """Compile ahead of a launch; see `devkernels.compile`."""
        return compile_kernel(self, signature, target, notes=notes)

    def launcher(self, values: tuple) -> Launcher:
        """The compiled kernel for these arguments, compiled now if need be."""
        if len(values) != len(self._names):
            raise ArgumentTypeError(
                f"Kernel {self.__name__} takes {len(self._names)} arguments ({', '.join(self._names)}), "
                f"not {len(values)}.",
                spec=self,
            )
        signature = None if self.signature is not None else tuple(map(self._type_of, self._names, values))
        found = self._launchers.get(signature)
        if found is None:
            given = self.signature if signature is None else signature

            def image_for(device: int) -> KernelImage:
                return compile_function(self.py_func, given, driver.architecture(device), self.compile_options)

            device = common_device(self.__name__, self._names, values)
            found = self._launchers[signature] = Launcher(image_for(device), signature is not None, image_for, device)
        return found

    def simulated(self) -> Any:
        """The function as Numba's simulator runs it."""
        if self._simulated is None:
            from numba import cuda

            self._simulated = cuda.jit(self.py_func)
        return self._simulated

    def _type_of(self, name: str, value: Any) -> Parameter:
        if isinstance(value, tuple):
            return Parameter(name, "tuple", items=tuple(self._type_of(f"{name}[{i}]", v) for i, v in enumerate(value)))
        scalar = arguments.inferred(type(value))
        if scalar is not None:
            return Parameter(name, "scalar", scalar)
        if pipelines.is_pipeline(type(value)):
            return pipelines.parameter(name, value)
        described = arrays.describe(value)
        if described is None:
            raise ArgumentTypeError(
                f"Kernel {self.__name__}: argument {name} is a {kind_of(value)}; "
                f"pass an array on the GPU (CuPy, torch, Numba, or anything with __cuda_array_interface__ or DLPack), "
                f"a number, or a tuple of such.",
                spec=self,
            )
        dtype, ndim, layout, _ = described
        return Parameter(name, "array", dtype, ndim, layout)


class KernelLaunch:
    """A kernel with its configuration chosen; finds the compiled kernel for the arguments of each call."""

    def __init__(self, owner: Kernel, key: Any):
        if targets.home().kind == "aot":
            raise TargetError(
                f"Kernel {owner.__name__} cannot be launched: this process only compiles ({targets.home().reason}). "
                f"Use devkernels.compile here, or unset DEVKERNELS_TARGET."
            )
        self._owner, self._key = owner, key
        limits.check_shape(*limits.configuration(key)[:2], owner.__name__)
        self._last: Launch | None = None

    def __call__(self, *values: Any) -> None:
        """Check the arguments, compile the kernel if it is new for their types, and launch."""
        if self._last is not None:
            try:
                self._last.fire(values)
                return
            except ArgumentError:  # perhaps only of other types than last time; nothing has been launched
                if self._owner.signature is not None:
                    raise
        launch = self._owner.launcher(values)[self._key]
        launch(*values)
        self._last = launch

    def bind(self, *values: Any) -> Any:
        """Check the arguments once, for any number of launches with them; the arrays are kept alive."""
        return self._owner.launcher(values)[self._key].bind(*values)
