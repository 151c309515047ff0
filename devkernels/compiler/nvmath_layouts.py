"""Sizes of nvmath.device's tensors and pipelines from the cache: libmathdx runs a compiler to find each of them.

In: the module ``nvmath.bindings.mathdx``. Out: the same module, where finalizing a tensor or a pipeline is put off
until something about it is asked that the cache does not know. What one is, is told by the calls that made it, down to
the operators of its product; its name in symbols, and the code of functions that take it, are the same either way.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

from devkernels import cache, versions
from devkernels.canonical import digest

KIND = "nvmath"
# Calls that make something: what, and which arguments (by position) are things made before.
_MAKERS: dict[str, tuple[str, dict[int, str]]] = {
    "create_descriptor": ("descriptor", {}),
    "create_tensor": ("tensor", {0: "descriptor"}),
    "create_tensor_strided": ("tensor", {}),
    "make_tensor_like": ("tensor", {0: "tensor"}),
    "create_device_pipeline": ("pipeline", {0: "descriptor", 4: "tensor", 5: "tensor"}),
    "create_tile_pipeline": ("pipeline", {0: "descriptor", 2: "pipeline"}),
}
_SETTERS = {  # calls that change it afterwards
    "set_operator_int64": "descriptor", "set_operator_int64s": "descriptor", "set_option_str": "descriptor",
    "set_tensor_option_int64": "tensor",
}  # fmt: skip
_NUMBERS = {  # what can be asked, and how many numbers each is
    "tensor": {"UID": 1, "LOGICAL_SIZE": 1, "STORAGE_BYTES": 1, "ALIGNMENT_BYTES": 1},
    "pipeline": {"STORAGE_BYTES": 1, "STORAGE_ALIGNMENT_BYTES": 1, "BUFFER_SIZE": 1, "BUFFER_ALIGNMENT_BYTES": 1,
                 "BLOCK_DIM": 3},
}  # fmt: skip

Name = tuple[str, int]  # what it is, and its handle


class Layouts:
    """The calls of libmathdx's binding that make, finalize and ask tensors and pipelines, with the cache between."""

    def __init__(self, mathdx: Any, replace: Callable[[str, Callable], None]):
        self._mathdx = mathdx
        self._told: dict[Name, tuple] = {}  # how it was made, in plain values
        self._open: dict[Name, Callable[[], None]] = {}  # finalized in name only: what would do it
        self._numbers: dict[Name, dict[int, list[int]]] = {}  # of those that the cache answers for
        self._original = {
            name: getattr(mathdx, f"cublasdx_get_{name}", None)
            for name in ("tensor_trait_int64", "pipeline_trait_int64", "pipeline_trait_int64s")
        }
        for name, (kind, arguments) in _MAKERS.items():
            replace(f"cublasdx_{name}", self._made(name, kind, arguments))
        for name, kind in _SETTERS.items():
            replace(f"cublasdx_{name}", self._set(name, kind))
        for name in dir(mathdx):
            if name.startswith("cublasdx_set_") and name.removeprefix("cublasdx_") not in _SETTERS:
                replace(name, self._set_unknown)
        replace("cublasdx_destroy_descriptor", self._destroyed("descriptor"))
        for kind in _NUMBERS:
            replace(f"cublasdx_destroy_{kind}", self._destroyed(kind))
            replace(f"cublasdx_finalize_{kind}s", self._finalized(kind))
            replace(f"cublasdx_get_{kind}_trait_int64", self._asked(kind))
            replace(f"cublasdx_get_{kind}_trait_int64s", self._asked(kind))
            replace(f"cublasdx_get_{kind}_trait_str_size", self._asked_of_the_library(kind))
            replace(f"cublasdx_get_{kind}_trait_str", self._asked_of_the_library(kind))

    def settle(self) -> bool:
        """Finalize all that was put off; whether there was anything."""
        waiting = list(self._open)
        for name in waiting:
            self._settle(name)
        return bool(waiting)

    def _settle(self, name: Name) -> None:
        finalize = self._open.pop(name, None)
        if finalize is not None:
            finalize()

    def _made(self, call: str, kind: str, made_before: dict[int, str]) -> Callable:
        def made(original: Callable, *arguments: Any) -> int:
            handle = original(*arguments)
            self._forget((kind, handle))  # the handle may be that of something that is gone
            told = [
                self._told.get((made_before[position], value)) if position in made_before else _plain(value)
                for position, value in enumerate(arguments)
            ]
            if None not in told:  # else made of something from before our time, of which nothing is known
                self._told[kind, handle] = (call, *told)
            return handle

        return made

    def _set(self, call: str, kind: str) -> Callable:
        def set_(original: Callable, handle: int, *arguments: Any) -> None:
            original(handle, *arguments)
            if (kind, handle) in self._told:
                self._told[kind, handle] += ((call, *map(_plain, arguments)),)

        return set_

    def _set_unknown(self, original: Callable, handle: int, *arguments: Any) -> None:
        """A call of a later version: whatever it changes is no longer known, and not put off."""
        for kind in ("descriptor", *_NUMBERS):
            self._told.pop((kind, handle), None)
        original(handle, *arguments)

    def _destroyed(self, kind: str) -> Callable:
        def destroyed(original: Callable, handle: int) -> None:
            self._forget((kind, handle))
            original(handle)

        return destroyed

    def _forget(self, name: Name) -> None:
        for known in (self._told, self._open, self._numbers):
            known.pop(name, None)

    def _finalized(self, kind: str) -> Callable:
        def finalized(original: Callable, count: int, handles: list[int]) -> None:
            now = [handle for handle in handles if (kind, handle) not in self._told]
            for handle in handles:
                if handle not in now:
                    self._open[kind, handle] = lambda handle=handle: original(1, [handle])
            if now:
                original(len(now), now)

        return finalized

    def _asked(self, kind: str) -> Callable:
        def asked(original: Callable, handle: int, trait: int, *place: int) -> int | None:
            name = (kind, handle)
            if name in self._open and name not in self._numbers:
                self._numbers[name] = self._find(name)
            numbers = self._numbers.get(name, {}).get(int(trait))
            if numbers is None:
                self._settle(name)
                return original(handle, trait, *place)
            if not place:
                return numbers[0]
            count, address = place
            (ctypes.c_int64 * count).from_address(address)[:] = numbers[:count]
            return None

        return asked

    def _asked_of_the_library(self, kind: str) -> Callable:
        def asked(original: Callable, handle: int, *arguments: Any) -> Any:
            self._settle((kind, handle))
            return original(handle, *arguments)

        return asked

    def _find(self, name: Name) -> dict[int, list[int]]:
        """All that can be asked of a tensor or pipeline: from the cache, or from the library and kept."""
        kind, told = name[0], self._told[name]
        traits = getattr(self._mathdx, f"Cublasdx{kind.capitalize()}Trait")
        wanted = {int(getattr(traits, trait)): number for trait, number in _NUMBERS[kind].items()}

        def build() -> bytes:
            self._settle(name)
            return json.dumps({trait: self._read(name, trait, number) for trait, number in wanted.items()}).encode()

        known = versions.for_functions() | {"nvmath": versions.libraries()["nvmath"]}
        key = digest("nvmath layout", told, known)
        data = cache.get_or_build(KIND, key, build, spec=f"{kind} layout {told[0]} of nvmath.device")
        found = {int(trait): numbers for trait, numbers in json.loads(data).items() if numbers}
        if kind == "tensor":  # the library counts them in each process; this is the same in all, and its own
            found[int(traits.UID)] = [int(key[:15], 16)]
        return found

    def _read(self, name: Name, trait: int, number: int) -> list[int]:
        kind, handle = name
        try:
            if number == 1:
                return [int(self._original[f"{kind}_trait_int64"](handle, trait))]
            values = (ctypes.c_int64 * number)()
            self._original[f"{kind}_trait_int64s"](handle, trait, number, ctypes.addressof(values))
            return list(values)
        except self._mathdx.LibMathDxError:  # not every one has everything
            return []


def _plain(value: Any) -> Any:
    """A number of the binding's enumerations as a plain one; lists as tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return int(value) if hasattr(value, "__index__") else str(value)
