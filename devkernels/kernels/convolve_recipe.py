"""What is left of a convolution's call once arrays like these have been checked: a few look-ups and the launches.

in: a checked call on device arrays. out: a `Recipe`, found again by all that the checks depended on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from devkernels.kernels import arrays

_MOST = 256


@dataclass(frozen=True)
class Recipe:
    """The launches of one kind of call: each with the numbers that follow its arrays."""

    shape: tuple[int, ...]
    dtype: str
    rows: tuple  # (launch, numbers) for each part of the filter
    filters: tuple  # the same for what transforms the filter; empty where spectra are given
    spectrum: tuple[int, str]  # elements and dtype of each part's spectra
    bytes: tuple[int, int]  # of the rows and of the result
    kept: list  # what a CUDA graph that is captured must not lose

    def run(self, x: Any, h: Any, spectra: Any, out: Any, extra: Any) -> Any:
        """Do the call for arrays with the recipe's fingerprints."""
        result = arrays.empty(x, self.shape, self.dtype) if out is None else out
        parts = spectra.data if h is None else self._transform(h)
        flat, y, more = x.reshape(-1), result.reshape(-1), 0 if extra is None else extra.reshape(-1)
        for (launch, numbers), part in zip(self.rows, parts, strict=True):
            launch(flat, part, y, *numbers, more)
        return result

    def _transform(self, h: Any) -> list:
        flat, parts = h.reshape(-1), []
        for launch, numbers in self.filters:
            part = arrays.temporary(self.kept, h, self.spectrum[:1], self.spectrum[1])
            launch(flat, part, *numbers)
            parts.append(part)
        return parts


class Recipes:
    """Recipes of one planned convolution."""

    def __init__(self):
        self._known: dict[tuple, Recipe] = {}

    def find(self, key: tuple | None, x: Any, out: Any) -> Recipe | None:
        """The recipe for a key, unless these arrays share memory: that is no property of either, so it is looked at."""
        found = self._known.get(key) if key is not None else None
        if found is None or out is None:
            return found
        first, second = _address(x), _address(out)
        apart = first + found.bytes[0] <= second or second + found.bytes[1] <= first
        return found if apart else None

    def keep(self, key: tuple, recipe: Recipe) -> None:
        """Remember what was found out."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = recipe


def _address(array: Any) -> int:
    return array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr


def key_of(x: Any, h: Any, spectra: Any, out: Any, extra: Any = None) -> tuple | None:
    """What the checks of a call depend on, or None if its arrays must be looked at in full."""
    marks = []
    for array in (x, h, out, extra):
        if array is None:
            marks.append(None)
            continue
        known = arrays.known(array)
        if known is None or not known.mark.contiguous:
            return None
        marks.append(known.mark)
    return (*marks, None if spectra is None else spectra.batch)
