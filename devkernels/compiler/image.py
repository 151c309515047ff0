"""Compiled kernels as data: `KernelImage`, and files that hold one kernel for one or more architectures.

In: cubins and what the launcher must know of them. Out: bytes or files, and back. Imports neither Numba nor libmathdx
nor NumPy: a program that only launches images needs none of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devkernels._version import __version__
from devkernels.errors import CompileError, ImageError
from devkernels.target import Target

SUFFIX = ".dkimage"
_FORMAT = 1
_MAGIC = b"devkernels image "
RESERVED_SHARED = 1 << 10  # per block, since compute capability 9.0, for the system's own use
_BYTES = {"bool": 1, "float16": 2, "bfloat16": 2}


def itemsize(dtype: str) -> int:
    """Bytes of one value of `dtype`, a NumPy name or ``bfloat16``."""
    if dtype not in _BYTES:
        bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
        if not bits.isdigit():
            raise ImageError(f"Unknown dtype {dtype!r}.")
        _BYTES[dtype] = int(bits) // 8
    return _BYTES[dtype]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: an array (dtype, rank, layout C, F or A), a scalar, or a tuple of such.

    The kind ``pipeline`` is a device pipeline, whose Numba type (nvmath.device's) or spec (ours) stands in `dtype`.
    """

    name: str
    kind: str
    dtype: str = ""
    ndim: int = 0
    layout: str = ""
    items: tuple[Parameter, ...] = ()

    def slots(self) -> list[int]:
        """Sizes of the machine words that Numba's calling convention passes for it, in order.

        An array is seven words and more: two owners (null), items, bytes per item, address, shape, strides. A complex
        number is two floats.
        """
        if self.kind == "array":
            return [8] * (5 + 2 * self.ndim)
        if self.kind == "tuple":
            return [size for item in self.items for size in item.slots()]
        if self.kind == "pipeline":
            return [8]
        size = itemsize(self.dtype)
        return [size // 2] * 2 if self.dtype.startswith("complex") else [size]

    def __str__(self) -> str:
        if self.kind == "tuple":
            return f"({', '.join(map(str, self.items))})"
        if self.kind in ("scalar", "pipeline"):
            return self.dtype
        return f"{self.ndim}-D {self.dtype} array{'' if self.layout == 'A' else f' in {self.layout} order'}"


def _parameter(record: dict) -> Parameter:
    return Parameter(**{**record, "items": tuple(_parameter(item) for item in record.get("items", ()))})


def _record(parameter: Parameter) -> dict:
    record = {key: value for key, value in vars(parameter).items() if value}
    if parameter.items:
        record["items"] = [_record(item) for item in parameter.items]
    return record


@dataclass(frozen=True)
class KernelImage:
    """One kernel for one architecture, ready to load.

    Attributes
    ----------
    name : str
        Name of the Python function.
    cubin : bytes
        The machine code.
    symbol : str
        Name of the kernel inside the cubin.
    target : Target
        Architecture that the code is for.
    registers : int
        Registers per thread.
    local_bytes : int
        Local memory per thread, in bytes; more than 0 means spills or local arrays.
    shared_bytes : int
        Static shared memory per block, in bytes; dynamic shared memory is given at the launch.
    max_threads : int or None
        Most threads per block, from ``launch_bounds``.
    parameters : tuple of Parameter
        What a launch must pass.
    cooperative : bool
        Whether the kernel synchronises its whole grid.
    notes : dict
        Anything else that a program wants to keep with the kernel, such as block shape; only JSON types.
    versions : dict
        Versions of the libraries that compiled it.
    content : str
        Of a ready kernel, what it is made of, by which `devkernels.use_images` finds it; else empty.
    """

    name: str
    cubin: bytes = field(repr=False)
    symbol: str = field(repr=False)
    target: Target
    registers: int
    local_bytes: int
    shared_bytes: int
    max_threads: int | None
    parameters: tuple[Parameter, ...]
    cooperative: bool = False
    notes: dict[str, Any] = field(default_factory=dict, compare=False)
    versions: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    content: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(
        cls, cubin: bytes, symbol: str, name: str, target: Target, parameters: tuple[Parameter, ...],
        cooperative: bool = False, notes: dict | None = None, versions: dict | None = None,
    ) -> KernelImage:  # fmt: skip
        """Make an image of a fresh cubin; resource use and parameter layout are read from the cubin itself."""
        from devkernels.compiler import elf

        found = {kernel.symbol: kernel for kernel in elf.kernels(cubin)}
        if symbol not in found:
            raise CompileError(f"The cubin of {name} has no kernel {symbol}; it has {sorted(found)}.")
        kernel = found[symbol]
        reserved = RESERVED_SHARED if target.major >= 9 else 0  # counted in the section, not in what a block may have
        expected = tuple(layout(parameters))
        if kernel.parameters != expected:
            raise CompileError(
                f"Kernel {name} takes its parameters as (offset, size) {kernel.parameters}, but the launcher would "
                f"pass {expected}; Numba's calling convention has changed."
            )
        return cls(
            name, cubin, symbol, target, kernel.registers, kernel.local_bytes, max(kernel.shared_bytes - reserved, 0),
            kernel.max_threads,
            parameters, cooperative, dict(notes or {}), dict(versions or {}),
        )  # fmt: skip

    def save(self, path: str | os.PathLike) -> Path:
        """Write this image to a file that `devkernels.load_image` reads; return its path."""
        return write([self], path)

    def __str__(self) -> str:
        arguments = ", ".join(f"{parameter.name}: {parameter}" for parameter in self.parameters)
        return f"{self.name}({arguments}) for {self.target}"


def layout(parameters: tuple[Parameter, ...]) -> list[tuple[int, int]]:
    """(offset, size) of every word that a launch passes: each is aligned to its own size."""
    words, position = [], 0
    for parameter in parameters:
        for size in parameter.slots():
            position = -(-position // size) * size
            words.append((position, size))
            position += size
    return words


def pack(images: list[KernelImage]) -> bytes:
    """Serialise one kernel, compiled for one or more architectures."""
    if not images or len({image.target for image in images}) != len(images):
        raise ImageError("An image file holds at least one architecture, and each one once.")
    entries = []
    for image in images:
        entry = {key: value for key, value in vars(image).items() if key not in ("cubin", "parameters", "target")}
        entry |= {"target": str(image.target), "size": len(image.cubin)}
        entry["parameters"] = [_record(parameter) for parameter in image.parameters]
        entries.append(entry)
    header = json.dumps({"devkernels": __version__, "kernels": entries}, sort_keys=True).encode()
    body = struct.pack("<Q", len(header)) + header + b"".join(image.cubin for image in images)
    return _MAGIC + b"%d\n" % _FORMAT + hashlib.sha256(body).digest() + body


def unpack(content: bytes, origin: str = "image") -> list[KernelImage]:
    """Read what `pack` wrote.

    Raises
    ------
    ImageError
        It is no image, of another format version, or damaged.
    """
    line, newline, _ = content[:64].partition(b"\n")
    if not line.startswith(_MAGIC) or not newline:
        raise ImageError(f"{origin} is not a kernel image of devkernels.")
    version = line[len(_MAGIC) :].decode(errors="replace")
    if version != str(_FORMAT):
        raise ImageError(
            f"{origin} has image format {version}; devkernels {__version__} reads format {_FORMAT}. Build it again "
            f"with this version, or install the version that built it."
        )
    start = len(line) + 1
    checksum, body = content[start : start + 32], content[start + 32 :]
    if hashlib.sha256(body).digest() != checksum:
        raise ImageError(f"{origin} is damaged: its checksum does not match. Copy or build it again.")
    size = struct.unpack_from("<Q", body)[0]
    header = json.loads(body[8 : 8 + size])
    images, position = [], 8 + size
    for entry in header["kernels"]:
        if unknown := entry.keys() - KernelImage.__dataclass_fields__.keys() - {"size"}:
            raise ImageError(
                f"{origin} was built by devkernels {header['devkernels']} and says {', '.join(sorted(unknown))} of its "
                f"kernel, which devkernels {__version__} does not know. Build it again with this version, or install "
                f"the version that built it."
            )
        cubin = body[position : position + entry.pop("size")]
        position += len(cubin)
        entry["target"] = Target.parse(entry["target"])
        entry["parameters"] = tuple(_parameter(record) for record in entry["parameters"])
        images.append(KernelImage(cubin=cubin, **entry))
    return images


def write(images: list[KernelImage], path: str | os.PathLike) -> Path:
    """Write an image file in one step: it is there whole, or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        aside.write_bytes(pack(images))
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def read(path: str | os.PathLike) -> list[KernelImage]:
    """Read an image file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ImageError(f"The kernel image {os.fspath(path)} cannot be read: {error}.") from error
    return unpack(content, os.fspath(path))


def choose(images: list[KernelImage], device: Target, origin: str = "image") -> KernelImage:
    """The image that runs on `device`: same major architecture, the highest minor that is not above it.

    Code for ``sm_90a`` and the like runs on exactly that architecture and is preferred there.
    """
    fitting = [
        image
        for image in images
        if (image.target.cc == device.cc if image.target.arch_specific else
            image.target.major == device.major and image.target.minor <= device.minor)
    ]  # fmt: skip
    if not fitting:
        there = ", ".join(str(image.target) for image in images)
        raise ImageError(
            f"{origin} holds kernel {images[0].name} for {there}, but the device is {device}. Build it with "
            f"--target {device}.",
            spec=device,
        )
    return max(fitting, key=lambda image: (image.target.minor, image.target.arch_specific))
