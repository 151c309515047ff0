"""Cache keys of kernels: everything that could change the machine code, and nothing that depends on the process.

In: a Python function. Out: a description that `devkernels.canonical` can hash: bytecode, source text, defaults, and the
values of all globals and closure variables that the code names, followed into other functions, modules and classes;
and the sources of those parts of this package that take part in compiling what the function refers to.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from devkernels import versions
from devkernels.canonical import encode
from devkernels.errors import DevkernelsError

# Their versions are in every key, so that a name in them says all.
_NVMATH_OBJECTS = {"nvmath.device.cufftdx.FFT", "nvmath.device.cublasdx.Matmul"}
_VERSIONED = {"numba", "numba_cuda", "llvmlite", "numpy", "nvmath", "cuda", "devkernels", "builtins"}


class UnstableError(DevkernelsError):
    """Something that a kernel refers to has no content that could be hashed."""


def function_key(function: Callable, also: Iterable[str] = ()) -> str:
    """Digest of a kernel's content, and of the parts of this package that it refers to, or that `also` names.

    Raises
    ------
    UnstableError
        A value that the kernel refers to cannot be described; the message names it.
    """
    walk = _Walk()
    content = walk.function(function)
    parts = sorted((walk.parts | set(also)) - {versions.CORE, versions.HOST})
    return hashlib.sha256(content + encode([(part, versions.source_digest(part)) for part in parts])).hexdigest()


def device_objects(function: Callable) -> list[Any]:
    """The device objects that a kernel refers to, directly or through functions that it calls."""
    walk = _Walk()
    with contextlib.suppress(UnstableError):  # what was found until then will do
        walk.function(function)
    return walk.objects


class _Walk:
    """One traversal; a function met again (recursion, or two ways to it) is written as a reference to the first."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self.objects: list[Any] = []
        self.parts: set[str] = set()  # of this package, as `devkernels.versions` names them
        self._keep: list[object] = []  # ids are only unique among living objects

    def function(self, function: Any) -> bytes:
        if id(function) in self._seen:
            return encode(("seen", self._seen[id(function)]))
        self._seen[id(function)] = len(self._seen)
        self._keep.append(function)
        self._meet(function.__module__)
        names = sorted(_names(function.__code__))  # attributes among them
        loaded = sorted(_globals(function.__code__))
        scope = function.__globals__
        closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        values = []
        for name in loaded:
            if name in scope:
                values.append((name, self._named(scope[name], names, name)))
        for name, cell in closure.items():
            try:
                content = cell.cell_contents
            except ValueError:  # an empty cell: a name that is bound later, and cannot be compiled now
                values.append((name, b"empty"))
            else:
                values.append((name, self._named(content, names, name)))
        return encode(
            ("function", _code(function.__code__), _source(function), self.value(function.__defaults__),
             self.value(function.__kwdefaults__), values),
            self._other,
        )  # fmt: skip

    def _named(self, value: object, names: list[str], label: str) -> bytes:
        """A value that code refers to by name; `names` are all names of the code, attributes among them."""
        try:
            if isinstance(value, type):
                self._meet(value.__module__)
            elif isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "devkernels":
                self.parts.update(versions.PARTS)  # code may say module.attribute, which is not followed here
            if isinstance(value, (types.ModuleType, type)) and not _versioned(value):
                # code may say module.attribute or Class.attribute: whatever it could mean is part of the key
                if id(value) in self._seen:
                    return encode(("seen", self._seen[id(value)]))
                self._seen[id(value)] = len(self._seen)
                self._keep.append(value)
                inside = [
                    (name, self._named(inspect.getattr_static(value, name), names, f"{label}.{name}"))
                    for name in names
                    if name in vars(value)
                ]
                return encode(("namespace", value.__name__, inside))
            return self.value(value)
        except UnstableError as error:
            raise UnstableError(f"{label}: {error}") from error

    def value(self, value: object) -> bytes:
        return encode(value, self._other)

    def _meet(self, module: object) -> None:
        """Note the part of this package that a module belongs to, if it does."""
        if str(module).partition(".")[0] == "devkernels":
            self.parts.add(versions.part_of(str(module)))

    def _other(self, value: Any) -> object:
        """Describe a value that is no plain data; called by `encode`."""
        if value is Ellipsis:
            return ("ellipsis",)
        if isinstance(value, types.ModuleType):
            return ("module", value.__name__)
        if isinstance(value, (staticmethod, classmethod)):
            return ("method", self.function(value.__func__))
        if isinstance(value, functools.partial):
            return ("partial", self.value(value.func), self.value(value.args), self.value(value.keywords))
        if isinstance(getattr(value, "py_func", None), types.FunctionType):  # a dispatcher of cuda.jit or njit
            return ("jit", self.function(value.py_func), self._options(value))
        if isinstance(getattr(value, "_defn", None), types.FunctionType):  # numba's @intrinsic
            return ("intrinsic", self.function(value._defn))
        if isinstance(value, types.FunctionType):
            self._meet(value.__module__)
            if _versioned(value) and not _ours(value):
                return ("library", value.__module__, value.__qualname__)
            # a plain function can only be called from a kernel through an @overload, most likely in its own file
            return ("function", self.function(value), _file_digest(value.__code__.co_filename))
        if _versioned(type(value)):
            return self._library_value(value)
        if hasattr(value, "spec"):  # a device function object
            return ("device object", type(value).__qualname__, self.value(value.spec))
        raise UnstableError(f"a {type(value).__module__}.{type(value).__qualname__} has no stable content")

    def _options(self, dispatcher: Any) -> object:
        options = dict(getattr(dispatcher, "targetoptions", {}))
        links = [self._link(item) for item in options.pop("link", None) or ()]
        return ({str(key): str(option) for key, option in options.items()}, links)

    def _link(self, item: Any) -> object:
        if isinstance(item, str):
            return ("file", item, _file_digest(item))
        if hasattr(item, "key"):
            return ("code", item.key)
        return ("code", type(item).__name__, item.data)

    def _library_value(self, value: Any) -> object:
        """An instance of a library's class: Numba types, NumPy functions, declared device functions."""
        cls = f"{type(value).__module__}.{type(value).__qualname__}"
        self._meet(type(value).__module__)
        spec = getattr(value, "spec", None)
        if spec is not None and type(value).__module__.partition(".")[0] == "devkernels":
            if hasattr(value, "likely_requests"):
                self.objects.append(value)
            return ("device object", cls, self.value(spec))
        if cls in _NVMATH_OBJECTS:  # by what they were made of; what they have worked out since follows from it
            made_of = {k: v for k, v in vars(value).items() if not _worked_out(value, k)}
            return ("device object", cls, self.value(made_of))
        if hasattr(value, "key") and hasattr(value, "mangling_args"):  # numba.core.types.Type
            return ("numba type", cls, str(value))
        if isinstance(value, types.BuiltinFunctionType) or hasattr(value, "__qualname__"):
            return ("library", str(getattr(value, "__module__", "")), value.__qualname__)
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "__name__"):
            return ("library", "numpy", value.__name__)
        raise UnstableError(f"a {cls} has no stable content")


def _worked_out(value: object, name: str) -> bool:
    return isinstance(inspect.getattr_static(type(value), name, None), functools.cached_property)


def _names(code: types.CodeType) -> set[str]:
    """All global and attribute names that the code, and code nested in it, mentions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


@functools.lru_cache(maxsize=4096)
def _globals(code: types.CodeType) -> frozenset[str]:
    """The names that the code, and code nested in it, loads from its globals; attributes of other things are not."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals(constant)
    return frozenset(names)


def _code(code: types.CodeType) -> object:
    constants = tuple(
        _code(constant) if isinstance(constant, types.CodeType) else constant for constant in code.co_consts
    )
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
            code.co_argcount, code.co_kwonlyargcount, code.co_flags)  # fmt: skip


def _source(function: types.FunctionType) -> str:
    """The lines that the function's code comes from; `inspect.getsource`, without parsing what is known to parse."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)  # none if made by exec: the bytecode has to do
    return "".join(lines[code.co_firstlineno - 1 : _last_line(code)])


def _last_line(code: types.CodeType) -> int:
    own = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max([own, *(_last_line(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))])


def _file_digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _ours(function: types.FunctionType) -> bool:
    """Functions of this package are followed: many are made by factories and differ in what they close over."""
    return str(function.__module__).partition(".")[0] == "devkernels"


def _versioned(value: Any) -> bool:
    """Whether a module, class or function belongs to the standard library or to a library whose version is known."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, type) or hasattr(value, "__module__"):
        name = str(value.__module__)
    else:
        return False
    top = name.partition(".")[0]
    return top in _VERSIONED or (top in sys.stdlib_module_names and top != "__main__")
