"""Images that a program brings along: ready kernels are looked for in them before anything is compiled.

In: image files, or folders of them. Out: for a kernel that is described by what it is made of, the image that takes
certain arguments on a certain architecture. Imports neither Numba nor libmathdx nor NumPy.
"""

from __future__ import annotations

import os
from pathlib import Path

from devkernels import versions
from devkernels.compiler import image as images
from devkernels.compiler.image import KernelImage, Parameter
from devkernels.errors import ImageError
from devkernels.target import Target

_held: dict[str, list[KernelImage]] = {}  # what a kernel is made of (`LazyKernel.content`) -> its images
_read: dict[Path, tuple[int, int]] = {}  # files that have been read, with time and size


def use_images(*paths: str | os.PathLike) -> int:
    """Let ready kernels (`spectral_filter`, `fftconvolve`, `gemm` ...) take their code from image files.

    For libraries that ship images, built by ``devkernels build`` from the same ``make_...`` calls. What they hold is
    launched without Numba, llvmlite, nvmath or libmathdx, which then need not be installed; what they lack is compiled,
    or raises `JitDisabledError` with ``DEVKERNELS_DISABLE_JIT=1``. Kernels of your own are loaded by `load_image`.

    Parameters
    ----------
    *paths : path
        Image files, or folders, of which every ``*.dkimage`` is taken.

    Returns
    -------
    int
        How many images of ready kernels are in use now; one for each kernel and architecture.

    Raises
    ------
    ImageError
        A path does not exist, a file is damaged, or it was built from another version of devkernels, whose kernels may
        take other arguments. Nothing of that call is in use then.
    """
    files = [file for path in paths for file in _files(Path(path))]
    found = []
    for file in files:
        status = file.stat()
        if _read.get(file) != (status.st_mtime_ns, status.st_size):
            found.append((file, (status.st_mtime_ns, status.st_size), _ready(file)))
    for file, mark, ready in found:
        _read[file] = mark
        for image in ready:
            _held.setdefault(image.content, []).insert(0, image)  # what was read last goes first
    return sum(map(len, _held.values()))


def forget() -> None:
    """Use no images any more."""
    _held.clear()
    _read.clear()


def find(content: str, parameters: tuple[Parameter, ...], target: Target) -> KernelImage | None:
    """The image of a kernel that takes such arguments on `target`, or None."""
    fitting = [
        image
        for image in _held.get(content, ())
        if len(image.parameters) == len(parameters) and all(map(_takes, image.parameters, parameters))
    ]
    try:
        return images.choose(fitting, target) if fitting else None
    except ImageError:  # for other architectures only
        return None


def told(content: str) -> str:
    """In words, what the images in use hold of a kernel, if they hold it at all."""
    held = "; ".join(map(str, _held.get(content, ())))
    return f" The images in use hold it as {held}." if held else ""


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ImageError(f"There is no image file or folder {path}.")
    return sorted(path.resolve().glob(f"*{images.SUFFIX}")) if path.is_dir() else [path.resolve()]


def _ready(file: Path) -> list[KernelImage]:
    """Images of ready kernels in a file."""
    ready = [image for image in images.read(file) if image.content]
    here = versions.libraries()["devkernels"]
    for image in ready:
        there = image.versions.get("devkernels", "an unknown version")
        if there != here:
            raise ImageError(
                f"{file} holds {image.name} of devkernels {there}; this is {here}, whose kernels may differ. Build it "
                f"again with this version, or install the version that built it.",
                spec=image,
            )
    return ready


def _takes(parameter: Parameter, given: Parameter) -> bool:
    """Whether a compiled parameter takes arguments of another description; names do not matter."""
    if (parameter.kind, parameter.dtype, parameter.ndim) != (given.kind, given.dtype, given.ndim):
        return False
    if parameter.layout not in ("A", given.layout) or len(parameter.items) != len(given.items):
        return False
    return all(map(_takes, parameter.items, given.items))
