"""A stable digest of plain values: equal content, equal digest, in every process and on every machine.

In: nested tuples, lists, dicts, sets, numbers, strings, bytes, enums, dataclasses, NumPy arrays and dtypes, classes,
and objects with a ``__cache_key__()`` method. Out: a hexadecimal digest. Anything else is refused, since hashing an
address or a lossy repr would give one key to two meanings. Functions are the business of `devkernels.compiler.keys`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import struct
import sys
from collections.abc import Callable, Mapping

from devkernels.errors import ArgumentTypeError


def digest(*parts: object) -> str:
    """SHA-256, in hexadecimal, of the content of `parts`. Type matters: 1, 1.0, True and ``"1"`` differ."""
    return hashlib.sha256(encode(parts)).hexdigest()


def encode(value: object, other: Callable[[object], object] | None = None) -> bytes:
    """Injective encoding of `value`; `other` turns values unknown here into known ones (or raises TypeError)."""
    if value is None or isinstance(value, bool):
        return _tagged(b"k", repr(value).encode())
    if isinstance(value, enum.Enum):
        return _tagged(b"e", _name(type(value)), value.name.encode())
    if hasattr(type(value), "__cache_key__"):
        return _tagged(b"o", _name(type(value)), encode(value.__cache_key__(), other))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _encode_array(numpy, value, other)
    if numpy is not None and isinstance(value, numpy.dtype):
        return _tagged(b"y", repr(value.descr if value.fields else value.str).encode())
    if isinstance(value, int):
        return _tagged(b"i", str(int(value)).encode())
    if isinstance(value, float):
        return _tagged(b"f", struct.pack("<d", value))
    if isinstance(value, complex):
        return _tagged(b"c", struct.pack("<dd", value.real, value.imag))
    if isinstance(value, str):
        return _tagged(b"s", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _tagged(b"b", bytes(value))
    if isinstance(value, (tuple, list)):
        name = b"tuple" if isinstance(value, tuple) else b"list"
        return _tagged(b"t", name, *(encode(item, other) for item in value))
    if isinstance(value, (set, frozenset)):
        return _tagged(b"u", *sorted(encode(item, other) for item in value))
    if isinstance(value, Mapping):
        pairs = sorted((encode(key, other), encode(item, other)) for key, item in value.items())
        return _tagged(b"d", *(part for pair in pairs for part in pair))
    if isinstance(value, type):
        return _tagged(b"T", _name(value))
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _tagged(b"D", _name(type(value)), encode(fields, other))
    if other is not None:
        return _tagged(b"x", encode(other(value), other))
    raise ArgumentTypeError(
        f"{type(value).__module__}.{type(value).__qualname__} object {value!r:.80} has no stable digest."
    )


def _encode_array(numpy, value, other) -> bytes:
    if value.dtype.hasobject:
        return _tagged(b"a", b"object", repr(value.shape).encode(), encode(value.tolist(), other))
    kind = b"array" if isinstance(value, numpy.ndarray) else b"scalar"
    content = numpy.ascontiguousarray(value).tobytes()
    return _tagged(b"a", kind, encode(value.dtype), repr(value.shape).encode(), content)


def _tagged(tag: bytes, *parts: bytes) -> bytes:
    """Tag, then each part with its length in front: no two different lists of parts give the same bytes."""
    return tag + b"".join(struct.pack("<Q", len(part)) + part for part in (b"%d" % len(parts), *parts))


def _name(cls: type) -> bytes:
    return f"{cls.__module__}.{cls.__qualname__}".encode()
