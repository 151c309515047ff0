"""What the public convolutions take beside ready operands: lists, other dtypes, axes anywhere, nothing at all.

in: operands and axes as scipy.signal takes them. out: `Operands`, of one supported dtype with the axes at the end, and
how to make the caller's result of theirs.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.kernels import arrays
from devkernels.kernels.convolve_plan import COMPUTE, MODES
from devkernels.kernels.convolve_views import converted, moved

_NUMBERS = (bool, int, float, complex, np.generic)


class Operands(NamedTuple):
    """Operands whose last `count` axes are convolved, and what is to be done to the result.

    `places` are the axes, counted from the end, to which the last ones go back; None if they are there. `whole` is the
    integer dtype to which results are rounded, or None.
    """

    first: Any
    second: Any
    count: int
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtype: str
    places: tuple[int, ...] | None
    whole: str | None

    @property
    def lasts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Samples along the convolved axes, of both."""
        return self.shapes[0][-self.count :], self.shapes[1][-self.count :]

    @property
    def plain(self) -> bool:
        """Whether the convolution's result is the caller's."""
        return self.places is None and self.whole is None

    def placed(self, result: Any) -> Any:
        """The result with its axes where the caller's are."""
        if self.places is None:
            return result
        return arrays.cast(moved(result, range(-self.count, 0), self.places), self.dtype)

    def finished(self, result: Any) -> Any:
        """The caller's result."""
        return self.placed(result) if self.whole is None else converted(self.placed(result).round(), self.whole)


def operands(in1: Any, in2: Any, mode: str, axes: Any, whole: bool = False) -> Operands:
    """Read the arguments of a convolution; with `whole`, those of integers give integers.

    Raises
    ------
    ArgumentError, ArgumentTypeError, SpecError
        They do not fit each other, or nothing here does that.
    """
    if mode not in MODES:
        raise SpecError(f"mode={mode!r} must be one of {', '.join(MODES)}.")
    in1, in2 = as_array(in1), as_array(in2)
    first, second = (arrays.describe(a, n, gradients=True) for a, n in ((in1, "in1"), (in2, "in2")))
    arrays.check_same_device(first, second, ("in1", "in2"))
    dims, more = len(first.shape), len(second.shape)
    if not dims or not more:
        raise ArgumentError(
            f"in1 has shape {first.shape} and in2 {second.shape}: both need at least one axis; a single number can be "
            f"given shape (1,)."
        )
    dtype, integer = first.dtype, None
    if dtype != second.dtype or dtype not in COMPUTE:
        dtype, integer = _common(first, second, whole)
        in1, in2 = (converted(a, dtype) if s.dtype != dtype else a for a, s in ((in1, first), (in2, second)))
    places = _axes(axes, dims)
    count = len(places)
    own = places
    if more < -places[0]:
        if more != count:
            raise SpecError(f"in2 has shape {second.shape}: no axes {places} (counted from the end).")
        own = tuple(range(-count, 0))  # a filter with no other axes than those that are convolved
    last = tuple(range(-count, 0))
    in1 = in1 if places == last else moved(in1, places, last)
    in2 = in2 if own == last else moved(in2, own, last)
    return Operands(
        in1, in2, count, (tuple(in1.shape), tuple(in2.shape)), dtype, None if places == last else places,
        integer,
    )  # fmt: skip


def numbers(in1: Any, in2: Any) -> bool:
    """Whether two operands have no axes, so that their product is their convolution."""
    return not any(isinstance(a, (list, tuple)) or getattr(a, "ndim", not isinstance(a, _NUMBERS)) for a in (in1, in2))


def as_array(array: Any) -> Any:
    """Lists, numbers and the like as NumPy arrays; lazy tensors of torch as plain ones."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.resolve_conj().resolve_neg() if array.is_conj() or array.is_neg() else array
    if isinstance(array, (list, tuple, *_NUMBERS)):
        try:
            return np.asarray(array)
        except ValueError as error:
            raise ArgumentTypeError(f"a nested list does not make an array: {error}") from None
    return array


def _common(first: arrays.Described, second: arrays.Described, whole: bool) -> tuple[str, str | None]:
    """The dtype in which two arrays meet, and with `whole` that of a result of integers.

    Integers count as float64 in a convolution, as in SciPy, whose correlation gives the dtype in which NumPy's arrays
    meet.
    """
    kinds = []
    for seen, name in ((first, "in1"), (second, "in2")):
        try:
            kind = np.dtype(seen.dtype)
        except TypeError:  # one of torch's own
            kind = np.dtype(object)
        if kind.name not in COMPUTE and kind.kind not in "iub":
            raise ArgumentTypeError(
                f"{name} has dtype {seen.dtype}; convert it to one of {', '.join(COMPUTE)} (integers count as float64)."
            )
        kinds.append(kind)
    met, double = np.result_type(*kinds), np.dtype(np.float64)
    if met.kind in "iub":
        return double.name, met.name if whole else None
    return (met if whole else np.result_type(*(double if kind.kind in "iub" else kind for kind in kinds))).name, None


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    """The convolved axes, counted from the end, in order."""
    if axes is None:
        return (-1,)
    try:
        given = tuple(int(axis) for axis in (axes if np.iterable(axes) else (axes,)))
        exact = all(a == b for a, b in zip(given, axes if np.iterable(axes) else (axes,), strict=True))
    except (TypeError, ValueError):
        exact = False
    if not exact:
        raise SpecError(f"axes={axes!r} must be a whole number, or two of them.")
    if any(not -ndim <= axis < ndim for axis in given):
        raise SpecError(f"axes={axes!r} do not exist: in1 has {ndim}.")
    found = tuple(sorted(axis - ndim if axis >= 0 else axis for axis in given))
    if len(set(found)) < len(found):
        raise SpecError(f"axes={axes!r} must be different from each other.")
    if len(found) not in (1, 2):
        raise SpecError(f"axes={axes!r} is not supported: one axis (-1 is the last), or two.")
    return found
