"""Which of two ways is faster for a layer, as `autotune` measured it.

in: shapes.  out: yes or no, from memory or from disk; no where nothing was measured.
"""

from __future__ import annotations

from devkernels import cache
from devkernels.linear import _workspace
from devkernels.linear.arrays import CPU, Arrays
from devkernels.linear.bounded import Bounded

_KIND = "autotune"


class Answers:
    """The answers to one question, by shape, dtype, device and library version.

    Parameters
    ----------
    question : str
        What is asked; part of the name on disk.
    """

    def __init__(self, question: str):
        self._question, self._known = question, Bounded(512)

    def _digest(self, arrays: Arrays, device: int, *about: object) -> str:
        return cache.digest(self._question, *about, arrays.device_name(device), _workspace.library_version())

    def of(self, arrays: Arrays, device: int, *about: object) -> bool:
        """Return the answer for a device; `about` are dtype, tokens, outputs, inputs, and what else it depends on."""
        if device == CPU:
            return False
        key = (device, *about)
        answer = self._known.get(key)
        if answer is None:
            answer = self._known.keep(key, cache.get(_KIND, self._digest(arrays, device, *about)) == b"yes")
        return answer

    def put(self, answer: bool, arrays: Arrays, device: int, *about: object) -> None:
        """Store what was measured."""
        self._known.keep((device, *about), answer)
        cache.put(_KIND, self._digest(arrays, device, *about), b"yes" if answer else b"no")

    def forget(self) -> None:
        """Ask the disk again."""
        self._known.clear()
