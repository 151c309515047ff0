"""Kernels that are made only when they must be compiled: a program whose kernels are in the cache never imports Numba.

in: a function that makes a kernel of plain arguments. out: a `LazyKernel`, which launches like that kernel.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from devkernels import cache, config, versions
from devkernels import target as targets
from devkernels.canonical import digest
from devkernels.compiler import keys, shipped
from devkernels.compiler.image import KernelImage, unpack
from devkernels.compiler.kernel import KIND, Options, compile_function, kernel_key, needing_compilers, target_of
from devkernels.errors import ArgumentTypeError, JitDisabledError, MissingDependencyError
from devkernels.launch import driver
from devkernels.launch.jit import Kernel
from devkernels.launch.launcher import Launcher, common_device
from devkernels.target import Target

_MOST_TOLD = 300  # characters of what a kernel is made of, in messages
_POINTERS = "lazy"  # kind of cache entries: which kernel a lazy one came to


class LazyKernel(Kernel):
    """A kernel made of `make` and `arguments` when it is first needed; launches and compiles like `Kernel`.

    The arguments and the version of this package (which includes its text) say all about the kernel, so that its image
    can be found without the kernel.
    """

    def __init__(self, make: Callable, arguments: tuple):
        self.make, self.arguments = make, arguments
        self.signature = None
        self.__name__, self.__doc__, self.__module__ = make.__name__, make.__doc__, make.__module__
        self._launchers: dict[Any, Launcher] = {}
        self._launches: dict[Any, Any] = {}

    def __reduce__(self):
        return _again, (self.__module__, self.__name__, self.arguments)

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel itself."""
        return self.make(*self.arguments)

    @property
    def py_func(self) -> Callable:
        """Its Python function."""
        return self.kernel.py_func

    @property
    def compile_options(self) -> Options:
        """How it is compiled."""
        return self.kernel.compile_options

    def __getitem__(self, key: Any) -> Any:
        """Choose grid, block, and optionally stream and bytes of dynamic shared memory."""
        return self.kernel[key] if targets.simulating() else super().__getitem__(key)

    def simulated(self) -> Any:
        """The function as Numba's simulator runs it."""
        return self.kernel.simulated()

    @functools.cached_property
    def content(self) -> str | None:
        """Digest of all that the kernel is made of; None where a function of the caller's cannot be described."""
        try:
            content = keys._Walk().value(self.arguments)
        except keys.UnstableError:
            return None
        return digest("lazy kernel", self.make.__module__, self.make.__qualname__, content)

    def __str__(self) -> str:
        made_of = ", ".join(map(str, self.arguments))
        return f"{self.__name__}({made_of if len(made_of) <= _MOST_TOLD else made_of[:_MOST_TOLD] + ' ...'})"

    def image(self, parameters: tuple, target: Target) -> KernelImage:
        """The compiled kernel: from an image that is in use, from the cache, or compiled now."""
        found = self.content and shipped.find(self.content, parameters, target)
        if found:
            return found
        key = self.content and digest(self.content, parameters, str(target), versions.libraries())
        if key is not None:
            pointer = cache.get(_POINTERS, key)
            data = cache.get(KIND, pointer.decode()) if pointer else None
            if data is not None:
                return unpack(data)[0]
        from devkernels.compiler.signature import resolve

        spec = f"kernel {self} of ({', '.join(map(str, parameters))}) for {target}"
        try:
            with needing_compilers(spec):
                image = compile_function(self.py_func, parameters, target, self.compile_options)
        except (JitDisabledError, MissingDependencyError) as error:
            if not config.disable_jit():
                raise
            raise cache.jit_disabled(spec, spec, shipped.told(self.content or "")) from error
        if key is not None:
            options = self.compile_options
            where = target_of(target, options)
            name = kernel_key(self.py_func, resolve(self.py_func, parameters), where, options)
            cache.put(_POINTERS, key, name.encode())
        return image

    def launcher(self, values: tuple) -> Launcher:
        """The compiled kernel for these arguments, compiled now if need be."""
        names = [f"argument {number}" for number in range(len(values))]
        parameters = tuple(map(self._type_of, names, values))
        found = self._launchers.get(parameters)
        if found is None:
            device = common_device(self.__name__, names, values)
            image = self.image(parameters, driver.architecture(device))
            if len(image.parameters) != len(values):
                raise ArgumentTypeError(f"Kernel {self.__name__} takes {len(image.parameters)} arguments.", spec=self)

            def image_for(device: int) -> KernelImage:
                return self.image(parameters, driver.architecture(device))

            found = self._launchers[parameters] = Launcher(image, True, image_for, device)
        return found


def lazy_kernel(make: Callable) -> Callable[..., LazyKernel]:
    """Let a function that makes a kernel of hashable arguments give a `LazyKernel`, the same for the same arguments."""

    @functools.wraps(make)
    @functools.lru_cache(maxsize=512)
    def made(*arguments: Any) -> LazyKernel:
        return LazyKernel(make, arguments)

    return made


def _again(module: str, name: str, arguments: tuple) -> LazyKernel:
    return getattr(importlib.import_module(module), name)(*arguments)
