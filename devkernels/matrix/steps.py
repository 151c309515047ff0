"""Ready epilogues by name, and chains of them with functions of the user's.

In: a name, a function ``f(acc, row, column, *extra)``, or a sequence of such. Out: a tuple of `Step`, and from it one
device function for single elements, the same on a GPU and in the simulator. devkernels/matrix/finish.py has the forms
for eight elements at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devkernels.device.inline import device_function
from devkernels.errors import SpecError
from devkernels.target import simulating

# Name -> (which elements of its operand an element of the result meets, what it does with it).
OPERANDS = {
    "bias": ("column", "add"), "row_bias": ("row", "add"), "residual": ("matrix", "add"),
    "column_scale": ("column", "multiply"), "row_scale": ("row", "multiply"), "multiply": ("matrix", "multiply"),
}  # fmt: skip
FUNCTIONS = ("relu", "gelu", "gelu_tanh", "silu", "int8")
_GELU_SCALE, _GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715


@dataclass(frozen=True)
class Step:
    """One step: a ready one by `name`, or the user's `function` with `count` arguments of `extra` (None: all)."""

    name: str
    operand: int | None = None  # index in extra
    function: Callable | None = None

    @property
    def axes(self) -> str | None:
        """Which axes of the result its operand has: column, row, matrix; None without one."""
        return OPERANDS[self.name][0] if self.name in OPERANDS else None


def make_steps(epilogue: object) -> tuple[Step, ...]:
    """Read an epilogue as the caller wrote it.

    Raises
    ------
    SpecError
        A name is unknown, or something is neither a name nor a function.
    """
    if epilogue is None:
        return ()
    parts = tuple(epilogue) if isinstance(epilogue, (tuple, list)) else (epilogue,)
    steps, operand = [], 0
    for part in parts:
        if isinstance(part, str) and part in OPERANDS:
            steps.append(Step(part, operand))
            operand += 1
        elif isinstance(part, str) and part in FUNCTIONS:
            steps.append(Step(part))
        elif is_function(part):
            steps.append(Step("function", None, part))
        else:
            raise SpecError(
                f"epilogue={part!r} is neither a function f(acc, row, column, *extra) nor one of "
                f"{', '.join([*OPERANDS, *FUNCTIONS])}."
            )
    if operand and any(step.function is not None for step in steps) and len(steps) > 1:
        # a function would have to say which of the extra arguments are its own
        steps = [step if step.function is None else Step("function_alone", None, step.function) for step in steps]
    return tuple(steps)


def is_function(value: object) -> bool:
    """Whether a value is a function for kernels: of Python, or a device function already."""
    return not isinstance(value, str) and (callable(value) or hasattr(value, "py_func"))


def operands_of(steps: tuple[Step, ...]) -> list[Step]:
    """The steps that have an operand, in the order of `extra`."""
    return [step for step in steps if step.operand is not None]


def takes_all(steps: tuple[Step, ...]) -> bool:
    """Whether a function of the user's is given all of `extra`."""
    return any(step.name == "function" for step in steps)


# -- the functions of one number ---------------------------------------------------------------------------------------


def _exact_gelu(kind: type) -> Callable:
    half, one, root = kind(0.5), kind(1), kind(math.sqrt(0.5))
    return lambda x: kind(half * x * (one + kind(math.erf(x * root))))


def _logistic(kind: type, compiled: bool) -> Callable:
    """X -> 1 / (1 + exp(-x)); for compiled float32 by two instructions, with an error of 2**-21 or so."""
    one = kind(1)
    if compiled and kind is np.float32:
        from devkernels.matrix.ptx import exp2_fast, reciprocal_fast

        scale = np.float32(-math.log2(math.e))
        return lambda x: reciprocal_fast(one + exp2_fast(x * scale))
    most = kind(700.0 if kind is np.float64 else 88.0)
    return lambda x: one / (one + kind(math.exp(min(-x, most))))


def function_of(name: str, kind: type) -> Callable:
    """Device function ``f(x)`` of a ready step, computing in `kind` (numpy.float32 or numpy.float64)."""
    if name == "relu":
        zero = kind(0)
        # NaN stays NaN
        return device_function(lambda x: zero if x < zero else x)
    if name == "gelu":
        return device_function(_exact_gelu(kind))
    if name == "int8":
        low, high = kind(-128), kind(127)
        return device_function(lambda x: kind(round(min(max(x, low), high))))
    logistic = device_function(_logistic(kind, not simulating()))
    if name == "silu":
        return device_function(lambda x: x * logistic(x))
    two, cubic = kind(2 * _GELU_SCALE), kind(_GELU_CUBIC)  # (1 + tanh y) / 2 is the logistic function of 2 y
    return device_function(lambda x: x * logistic(two * (x + cubic * x * x * x)))


# -- one element -------------------------------------------------------------------------------------------------------


def _operand_step(step: Step, kind: type, batched: bool) -> Callable:
    position, (axes, operation) = step.operand, OPERANDS[step.name]
    if axes == "column":
        read = device_function(lambda operand, batch, row, column: kind(operand[column]))
    elif axes == "row":
        read = device_function(lambda operand, batch, row, column: kind(operand[row]))
    elif batched:
        read = device_function(lambda operand, batch, row, column: kind(operand[batch, row, column]))
    else:
        read = device_function(lambda operand, batch, row, column: kind(operand[row, column]))
    if operation == "add":
        return lambda acc, batch, row, column, extra: acc + read(extra[position], batch, row, column)
    return lambda acc, batch, row, column, extra: acc * read(extra[position], batch, row, column)


def _element_step(step: Step, kind: type, batched: bool) -> Callable:
    if step.operand is not None:
        return _operand_step(step, kind, batched)
    if step.function is None:
        f = function_of(step.name, kind)
        return lambda acc, batch, row, column, extra: f(acc)
    function = device_function(step.function)
    if step.name == "function":
        return lambda acc, batch, row, column, extra: function(acc, row, column, *extra)
    return lambda acc, batch, row, column, extra: function(acc, row, column)


def element_function(steps: tuple[Step, ...], kind: type, batched: tuple[bool, ...] = ()) -> Callable:
    """Device function ``f(acc, batch, row, column, extra)`` of a whole chain.

    `batched` says for each of `extra` whether it has a batch axis (matrices only).
    """
    run = device_function(lambda acc, batch, row, column, extra: acc)
    for step in steps:
        own = bool(step.operand is not None and len(batched) > step.operand and batched[step.operand])
        run = _then(run, device_function(_element_step(step, kind, own)))
    return run


def _then(first: Callable, second: Callable) -> Callable:
    return device_function(
        lambda acc, batch, row, column, extra: second(first(acc, batch, row, column, extra), batch, row, column, extra)
    )
