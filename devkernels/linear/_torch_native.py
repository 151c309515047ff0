"""The C++ of layers in training (folder `native`): built once with torch's own tools, kept on disk, found again later.

in: nothing, or the wish to build it.  out: the module `devkernels_native`, or None where it has not been built.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from devkernels import cache
from devkernels.errors import CompileError, DevkernelsWarning
from devkernels.linear import _cuda, _kernels, _workspace
from devkernels.linear.arrays import package

_NAME, _KIND = "devkernels_native", "torch"
_ARRAYS = package("torch")


def _sources() -> list[Path]:
    return sorted((Path(__file__).parent / "native").iterdir())


def _key() -> str:
    text = [source.read_text() for source in _sources() if source.suffix in (".h", ".cpp")]
    return cache.digest(text, torch.__version__, sysconfig.get_config_var("SOABI") or sys.version, platform.machine())


@contextlib.contextmanager
def _with_ninja() -> Iterator[None]:
    """Have programs of this environment found, also where it is not activated: ninja may be one of them."""
    before = os.environ.get("PATH", os.defpath)
    if shutil.which("ninja") is None:
        os.environ["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), before))
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _compile() -> bytes:
    """Compile by ``torch.utils.cpp_extension``; return the library's bytes."""
    from torch.utils import cpp_extension

    sources = [str(source) for source in _sources() if source.suffix == ".cpp"]
    with tempfile.TemporaryDirectory(prefix="devkernels-") as folder, _with_ninja():
        try:
            built = cpp_extension.load(_NAME, sources, build_directory=folder, extra_cflags=["-O2"], with_cuda=False)
        except (RuntimeError, OSError, ImportError) as error:
            raise CompileError(
                f"torch.utils.cpp_extension cannot build the extension: {error}. It wants a C++ compiler and ninja "
                f"(pip install ninja). Without the extension the layers work as well, with more time on the host."
            ) from error
        return Path(built.__file__).read_bytes()


def _load(code: bytes):
    """Import a module from the bytes of its library."""
    with tempfile.TemporaryDirectory(prefix="devkernels-") as folder:
        path = Path(folder) / (_NAME + importlib.machinery.EXTENSION_SUFFIXES[-1])
        path.write_bytes(code)
        loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(_NAME, loader))
        loader.exec_module(module)
    module.use_places(_places, _cuda.enter)
    _workspace.when_released(module.forget_places)
    return module


def _places(device: int, stream: int) -> tuple[int, int] | None:
    """Workspace and counters of a stream, for the C++; None where there are more streams than are kept."""
    pointer, _ = _workspace.reserve(_ARRAYS, device, stream)
    if stream not in _workspace.spaces(_ARRAYS, device):
        return None
    return pointer, _kernels.counters(_ARRAYS, device, stream)


_loaded: list[object] = []


def extension():
    """Return the module, if it was built before (in this process or another), else None."""
    if not _loaded:
        _loaded.append(_found())
    return _loaded[0]


def _found():
    code = cache.get(_KIND, _key())
    if code is None:
        return None
    try:
        return _load(code)
    except (ImportError, OSError) as error:  # built for another system's libraries; Python does the same
        warnings.warn(f"The extension for torch in {cache.folder()} cannot be loaded ({error}); layers train without "
                      f"it. Empty the cache (`devkernels cache clear`) and build it anew.",
                      DevkernelsWarning, stacklevel=2)  # fmt: skip
        return None


def build() -> None:
    """Build the extension where it is not there yet.

    Raises
    ------
    CompileError
        There is no C++ compiler or no ninja, or they refuse.
    JitDisabledError
        DEVKERNELS_DISABLE_JIT is set, and it has not been built before.
    """
    if not _loaded or _loaded[0] is None:
        module = _load(cache.get_or_build(_KIND, _key(), _compile, spec=f"the extension for torch {torch.__version__}"))
        _loaded[:] = [module]


@functools.cache
def functions() -> tuple[int, int] | None:
    """Addresses of cublasLtMatmul and cublasLtMatmulDescSetAttribute as nvmath's bindings have them, or None."""
    _workspace.library_version()  # loads the library
    try:
        from nvmath.bindings._internal import cublasLt

        names = "__cublasLtMatmul", "__cublasLtMatmulDescSetAttribute"
        matmul, put = (int(cublasLt._inspect_function_pointer(name)) for name in names)
    except (ImportError, AttributeError, KeyError, RuntimeError):  # not part of nvmath's public interface
        return None
    return (matmul, put) if matmul and put else None
