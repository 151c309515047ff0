"""What Numba is told of every device object, whatever it does: its type, its traits, and where its calls are lowered.

In: the Numba type of a kind of object, and the names of its traits. Out: nothing; Numba's registries know the kind.
Imported only when a kernel is compiled for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numba import types
from numba.cuda.cudaimpl import lower, lower_constant
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import core_models, overload_attribute, register_model

from devkernels import target

INLINE = {"forceinline": True}


class DeviceObjectType(types.Type):
    """Numba type of one device object; every spec is a type of its own, so that kernels compile for it."""

    def __init__(self, made: Any):
        super().__init__(f"{type(made).__name__}({made.spec!r})")


class _Opaque(core_models.OpaqueModel):
    """Takes no space: all is known when the kernel is compiled."""


def register(kind: type[DeviceObjectType], names: Iterable[str], trait: Callable[[Any, str], Any]) -> None:
    """Make a kind of device object known: as a constant without content, with traits, and callable.

    Its calls are the method ``__call__`` that an overload gives it. `trait` says what a trait of a Numba type is worth.
    """
    register_model(kind)(_Opaque)
    lower_constant(kind)(lambda context, builder, object_type, value: context.get_dummy_value())
    for name in names:
        _register_trait(kind, name, trait)

    @lower(kind, kind, types.VarArg(types.Any))
    def lower_call(context, builder, signature, arguments):
        # Typing finds `__call__` through its overload; lowering looks for the type itself, so send it there.
        return context.get_function((kind, "__call__"), signature)(builder, arguments)


def _register_trait(kind: type, name: str, trait: Callable) -> None:
    @overload_attribute(kind, name, inline="always")
    def attribute(object_value):
        value = trait(object_value, name)
        return lambda object_value: value


def refresh() -> None:
    """Let Numba see what has been registered: kinds are met while a kernel is typed, after it read its registries."""
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


def compiled_for() -> target.Target:
    """The architecture of the compilation under way."""
    found = target.compiling_for() or target.current_target()
    return target.Target(found.major, found.minor)


def absent(argument: Any) -> bool:
    """Whether an optional argument has been left out."""
    return argument is None or argument == types.none or isinstance(argument, types.Omitted)
