"""What a cubin says about its kernels: registers, memory, parameter layout. No GPU and no CUDA library needed.

In: the bytes of a cubin (an ELF file). Out: one `KernelResources` per kernel. The numbers are those that
``cuobjdump -res-usage`` prints and the driver reports; the attributes are those of NVIDIA's ``.nv.info`` sections
(names as nvdisasm and cuobjdump print them).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from devkernels.errors import ImageError

_EM_CUDA = 190
# Attribute codes of .nv.info; each entry is (format byte, attribute byte, 2 bytes of value or size).
_FORMAT_SIZED = 4
_MAX_THREADS, _PARAM_CBANK, _FRAME_SIZE, _MIN_STACK_SIZE, _KPARAM_INFO, _REGCOUNT = 0x05, 0x0A, 0x11, 0x12, 0x17, 0x2F


@dataclass(frozen=True)
class KernelResources:
    """Resource use of one kernel, per thread or (shared memory) per block, in bytes and registers."""

    symbol: str
    registers: int
    local_bytes: int
    shared_bytes: int
    max_threads: int | None
    parameters: tuple[tuple[int, int], ...]  # (offset, size) in order
    parameter_base: int = 0  # where parameters begin in their bank of constant memory


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    size: int
    content: bytes
    info: int


def kernels(cubin: bytes) -> list[KernelResources]:
    """Read every kernel of a cubin.

    Raises
    ------
    ImageError
        The bytes are not a readable cubin.
    """
    try:
        return _kernels(cubin)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise ImageError(f"The cubin cannot be read: {error}.") from error


def _kernels(cubin: bytes) -> list[KernelResources]:
    sections = _sections(cubin)
    by_name = {section.name: section for section in sections}
    symbols = _symbol_names(by_name[".symtab"].content, by_name[".strtab"].content) if ".symtab" in by_name else []
    registers: dict[str, int] = {}
    stack: dict[str, int] = {}
    for attribute, value in _attributes(by_name[".nv.info"].content if ".nv.info" in by_name else b""):
        if attribute in (_REGCOUNT, _FRAME_SIZE, _MIN_STACK_SIZE):
            index, number = struct.unpack_from("<II", value)
            table = registers if attribute == _REGCOUNT else stack
            table[symbols[index]] = max(number, table.get(symbols[index], 0))
    found = []
    for name in by_name:
        if not name.startswith(".nv.info."):
            continue
        symbol = name.removeprefix(".nv.info.")
        parameters: dict[int, tuple[int, int]] = {}
        max_threads, base = None, 0
        for attribute, value in _attributes(by_name[name].content):
            if attribute == _KPARAM_INFO:
                # 32 bits of index, 16 of ordinal, 16 of offset, then flags with the size in the top 14 bits
                _, ordinal, offset, flags = struct.unpack_from("<IHHI", value)
                parameters[ordinal] = (offset, flags >> 18)
            elif attribute == _PARAM_CBANK:
                base = struct.unpack_from("<IHH", value)[1]
            elif attribute == _MAX_THREADS:
                x, y, z = struct.unpack_from("<III", value)
                max_threads = x * y * z
        shared = by_name.get(f".nv.shared.{symbol}")
        found.append(
            KernelResources(
                symbol=symbol,
                registers=registers.get(symbol, 0),
                local_bytes=stack.get(symbol, 0),
                shared_bytes=shared.size if shared else 0,
                max_threads=max_threads,
                parameters=tuple(parameters[ordinal] for ordinal in sorted(parameters)),
                parameter_base=base,
            )
        )
    return found


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ImageError("The cubin cannot be read: it does not begin as a 64-bit ELF file.")
    machine = struct.unpack_from("<H", cubin, 18)[0]
    if machine != _EM_CUDA:
        raise ImageError(f"The cubin cannot be read: its machine number is {machine}, not that of CUDA.")
    table = struct.unpack_from("<Q", cubin, 40)[0]
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    raw = []
    for i in range(count):
        name, kind, _, _, offset, size, _, info = struct.unpack_from("<IIQQQQII", cubin, table + i * entry_size)
        content = b"" if kind == 8 else cubin[offset : offset + size]  # 8: NOBITS, such as shared memory
        if kind != 8 and len(content) != size:
            raise ImageError("The cubin cannot be read: it ends too early.")
        raw.append((name, kind, size, content, info))
    names = raw[names_index][3]
    return [_Section(_text(names, name), kind, size, content, info) for name, kind, size, content, info in raw]


def _symbol_names(table: bytes, strings: bytes) -> list[str]:
    return [_text(strings, struct.unpack_from("<I", table, offset)[0]) for offset in range(0, len(table), 24)]


def _text(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode()


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 4 <= len(content):
        kind, attribute, size = struct.unpack_from("<BBH", content, position)
        position += 4
        if kind == _FORMAT_SIZED:
            yield attribute, content[position : position + size]
            position += size
