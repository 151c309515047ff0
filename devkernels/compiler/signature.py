"""Signatures of kernels as plain parameters, without Numba where they are written as plain text.

In: text such as ``"void(complex64[:,::1], UniTuple(float32, 2), int32)"``, Numba signatures, tuples of Numba types or
of `Parameter`. Out: a `Signature`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from devkernels.compiler.image import Parameter
from devkernels.errors import SpecError

_SCALARS = {f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64", "complex64": "complex64",
    "complex128": "complex128", "boolean": "bool",
}  # fmt: skip
_ARGUMENT = re.compile(
    r"\s*(?:UniTuple\(\s*(?P<item>\w+)\s*,\s*(?P<count>\d+)\s*\)|(?P<scalar>\w+)\s*(?:\[(?P<axes>[:\s,1]*)\])?)\s*(?:,|$)"
)


@dataclass(frozen=True)
class Signature:
    """What a kernel takes. `exact` names Numba's types where `parameters` do not say all (read-only arrays ...)."""

    parameters: tuple[Parameter, ...]
    exact: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.parameters))


def resolve(function: Callable, given: Any) -> Signature:
    """Understand a signature in any of its forms, and give its parameters the names that the function gives them.

    Raises
    ------
    SpecError
        It is not understood, does not fit the function, or has a type that cannot be passed at a launch.
    """
    if isinstance(given, tuple) and given and all(isinstance(part, Parameter) for part in given):
        return Signature(_named(function, given))
    if isinstance(given, str) and (parsed := parse(given)) is not None:
        return Signature(_named(function, parsed))
    from devkernels.compiler import frontend

    types = frontend.normalize(given)
    parameters = tuple(map(frontend.parameter, _names(function, types), types))
    told = tuple(str(kind) for kind in types)
    again = tuple(str(frontend.numba_type(parameter)) for parameter in parameters)
    return Signature(parameters, () if told == again else told)


def parse(text: str) -> tuple[Parameter, ...] | None:
    """Parameters of a plain signature, without names; None for anything that Numba should have a look at."""
    match = re.fullmatch(r"\s*(?:void|none)?\s*\((?P<arguments>.*)\)\s*", text, re.DOTALL)
    if match is None:
        return None
    rest, found = match["arguments"].strip(), []
    while rest:
        argument = _ARGUMENT.match(rest)
        if argument is None:
            return None
        parameter = _uniform_tuple(argument) if argument["item"] else _array_or_scalar(argument)
        if parameter is None:
            return None
        found.append(parameter)
        rest = rest[argument.end() :].strip()
    return tuple(found)


def _uniform_tuple(argument: re.Match) -> Parameter | None:
    if argument["item"] not in _SCALARS:
        return None
    return Parameter("", "tuple", items=(Parameter("", "scalar", _SCALARS[argument["item"]]),) * int(argument["count"]))


def _array_or_scalar(argument: re.Match) -> Parameter | None:
    if argument["scalar"] not in _SCALARS:
        return None
    dtype = _SCALARS[argument["scalar"]]
    if argument["axes"] is None:
        return Parameter("", "scalar", dtype)
    axes = re.sub(r"\s", "", argument["axes"]).split(",")
    plain = len(axes) - sum(axis == ":" for axis in axes)
    if plain == 0:
        return Parameter("", "array", dtype, len(axes), "A")
    if plain == 1 and axes[-1] == "::1":
        return Parameter("", "array", dtype, len(axes), "C")
    if plain == 1 and axes[0] == "::1":
        return Parameter("", "array", dtype, len(axes), "F")
    return None


def _named(function: Callable, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    return tuple(map(_rename, parameters, _names(function, parameters)))


def _names(function: Callable, types: tuple) -> list[str]:
    names = list(inspect.signature(function).parameters)
    if len(names) != len(types):
        raise SpecError(
            f"Kernel {function.__name__} has {len(names)} parameters ({', '.join(names)}), but its signature has "
            f"{len(types)}: {', '.join(map(str, types))}.",
            spec=types,
        )
    return names


def _rename(parameter: Parameter, name: str) -> Parameter:
    items = tuple(_rename(item, f"{name}[{i}]") for i, item in enumerate(parameter.items))
    return replace(parameter, name=name, items=items)
