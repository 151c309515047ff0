"""Linking: LTO-IR of a kernel and of the functions it calls becomes one cubin, through nvJitLink.

In: bytes of LTO-IR, and libraries or objects that Numba asks for. Out: a cubin with everything unused left out.
"""

from __future__ import annotations

from pathlib import Path

from devkernels.errors import CompileError, MissingDependencyError
from devkernels.target import Target

_FROM_KIND = {"ltoir": "from_ltoir", "ptx": "from_ptx", "cubin": "from_cubin", "fatbin": "from_fatbin",
              "object": "from_object", "archive": "from_library"}  # fmt: skip
_KIND_OF_SUFFIX = {".ltoir": "ltoir", ".ptx": "ptx", ".cubin": "cubin", ".fatbin": "fatbin", ".o": "object",
                   ".a": "archive", ".lib": "archive"}  # fmt: skip


def link(codes: list[tuple[str, bytes]], target: Target, *, name: str, max_registers: int | None = None,
         lineinfo: bool = False) -> bytes:  # fmt: skip
    """Link (kind, content) pairs into a cubin for `target`.

    Unused code and variables are dropped: cuFFTDx brings megabytes of tables of which a kernel uses a fraction.
    """
    try:
        from cuda.core import Linker, LinkerOptions, ObjectCode
    except ImportError as error:
        raise MissingDependencyError(
            f"Linking needs cuda-core; install devkernels[cu12], [cu13] or [aot]. ({error})"
        ) from error
    options = LinkerOptions(
        name=name, arch=str(target), link_time_optimization=True, optimize_unused_variables=True,
        max_register_count=max_registers, lineinfo=lineinfo or None,
    )  # fmt: skip
    try:
        parts = [getattr(ObjectCode, _FROM_KIND[kind])(content) for kind, content in codes]
        return bytes(Linker(*parts, options=options).link("cubin").code)
    except Exception as error:  # cuda.core raises private types; all mean: not linked
        raise CompileError(f"Linking kernel {name} for {target} failed: {error}") from error


def kind_of_file(path: str) -> str:
    """The kind of linker input that a file is, from its name."""
    suffix = Path(path).suffix
    if suffix not in _KIND_OF_SUFFIX:
        raise CompileError(f"Do not know how to link {path}; files end in {', '.join(_KIND_OF_SUFFIX)} or .cu.")
    return _KIND_OF_SUFFIX[suffix]
