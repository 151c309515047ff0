"""Building image files: factories x targets -> one file per kernel, holding every target.

In: names of factories, as ``package.module:factory``, and architectures. Out: files that `devkernels.load_image` reads.
Each target is compiled by a worker process of its own, on any machine.

A factory takes no arguments and returns a kernel that has a signature, a tuple ``(kernel, signature)`` or
``(kernel, signature, notes)``, or a list, or a dict by name, of such. An object with a method ``image_sources()`` that
returns any of these will do too: ready kernels have it. Names in a dict go before those of the kernels of its values.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from devkernels.checks import kind_of
from devkernels.compiler import functions, image
from devkernels.compiler.image import KernelImage
from devkernels.errors import DevkernelsError, SpecError
from devkernels.target import Target, compile_for

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def build(
    factories: list[str], targets: list[Target], folder: Path, progress: Callable[[Target, tuple], None] | None = None
) -> list[Path]:
    """Build every kernel of `factories` for every target; return the files written.

    `progress` is called with (target, ("total", number)), (target, ("kernel", name)), and for each device function that
    is not in the cache (target, ("begun" or "done", name)); from several threads.
    """

    def one(target: Target) -> list[tuple[str, bytes]]:
        return functions.run_worker(
            ("factories", factories, str(target)),
            {"DEVKERNELS_TARGET": str(target)},
            None if progress is None else lambda content: progress(target, content),
        )

    with ThreadPoolExecutor(max_workers=min(len(targets), functions.processors())) as pool:
        answers = list(pool.map(one, targets))
    by_name: dict[str, list[KernelImage]] = {}
    for answer in answers:
        for name, data in answer:
            by_name.setdefault(name, []).extend(image.unpack(data))
    return [image.write(images, folder / f"{name}{image.SUFFIX}") for name, images in sorted(by_name.items())]


def serve(report: Callable[[tuple], None], factories: list[str], target: str) -> list[tuple[str, bytes]]:
    """The worker's half: make the kernels for one target and compile them."""
    from devkernels.compiler.kernel import compile as compile_kernel

    where = Target.parse(target)
    with compile_for(where):  # device objects that are made without an architecture take this one
        sources = [source for factory in factories for source in _all_sources(factory)]
        names = [name for name, *_ in sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(
                f"Several kernels are named {', '.join(twice)}; return a dict from the factory, whose names "
                f"go before theirs: {{'scores': ..., 'values': ...}}."
            )
        report(("total", len(sources)))
        built = []
        for name, kernel, signature, notes in sources:
            with functions.telling(lambda *told: report(told)):
                built.append((name, image.pack([compile_kernel(kernel, signature, where, notes=notes)])))
            report(("kernel", name))
    return built


def _all_sources(factory: str) -> list[tuple]:
    found = list(_sources(call(factory), factory))
    if not found:
        raise SpecError(
            f"The factory {factory} returned nothing to build: an empty list or dict, or a product whose epilogue "
            f"takes arguments of its own; say what they are: return product.image_sources(extra='float32[::1], ...').",
            spec=factory,
        )
    return found


def call(factory: str) -> Any:
    """Import ``package.module:factory`` and call it."""
    module_name, colon, path = factory.partition(":")
    if not colon or not module_name or not path:
        raise SpecError(f"{factory!r} is no factory; write it as package.module:factory.", spec=factory)
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"The factory {factory} cannot be found: {error}.", spec=factory) from error
    if hasattr(found, "compile_options"):  # the name of a kernel itself
        return found
    try:
        return found()
    except DevkernelsError:
        raise
    except TypeError as error:
        raise SpecError(f"The factory {factory} cannot be called without arguments: {error}.", spec=factory) from error


def _sources(made: Any, origin: str, name: str | None = None) -> Iterator[tuple[str, Any, object, dict | None]]:
    """(name, kernel, signature or None, notes or None) of whatever a factory has returned."""
    if hasattr(made, "image_sources"):
        yield from _sources(made.image_sources(), origin, name)
    elif isinstance(made, dict):
        for key, item in made.items():
            yield from _sources(item, origin, str(key) if name is None else f"{name}_{key}")
    elif isinstance(made, tuple) and 2 <= len(made) <= 3 and hasattr(made[0], "__name__"):
        kernel, signature, *rest = made
        yield _named(name, kernel, origin), kernel, signature, rest[0] if rest else None
    elif isinstance(made, (list, tuple)):
        for item in made:
            yield from _sources(item, origin)
    elif hasattr(made, "compile_options") or hasattr(made, "__code__"):
        yield _named(name, made, origin), made, None, None
    else:
        raise SpecError(
            f"The factory {origin} returned a {kind_of(made)}; it must return a "
            f"kernel with a signature, (kernel, signature), (kernel, signature, notes), or a list or dict of such.",
            spec=origin,
        )


def _named(name: str | None, kernel: Any, origin: str) -> str:
    chosen = kernel.__name__ if name is None else name
    if not _NAME.fullmatch(chosen) or chosen.startswith("."):
        raise SpecError(f"{origin}: {chosen!r} cannot name a file; use letters, digits, '_', '-' and '.'.")
    return chosen
