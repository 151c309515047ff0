"""Checks of single values that a caller passes.

In: a value and the name of its argument. Out: the value as it will be used, or a `SpecError` that names both.
"""

from __future__ import annotations

import operator

from devkernels.errors import SpecError


def kind_of(value: object) -> str:
    """What messages call the class of a value: ``list``, ``numpy.ndarray``, ``None``."""
    if value is None:
        return "None"
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def whole_number(value: object, argument: str, least: int = 1) -> int:
    """Return `value` as an int of at least `least`; bool and fractions are refused."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise SpecError(f"{argument}={value!r} must be a whole number >= {least}.")
    return number


def one_of(value: object, argument: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is among `choices`."""
    if value not in choices:
        raise SpecError(f"{argument}={value!r} is not one of {', '.join(map(repr, choices))}.")
    return value
