"""The ``devkernels`` command: ``build`` images, look after the ``cache``, tell what is there (``info``).

In: arguments of the command line. Out: files and text; the exit status is 1 for an error of ours, which is printed
without a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devkernels import cache, env_report, target
from devkernels._version import __version__
from devkernels.errors import DevkernelsError
from devkernels.target import Target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if not hasattr(parsed, "run"):  # no command, or `cache` without an action
        parsed.helper.print_help(sys.stderr)
        return 2
    try:
        return parsed.run(parsed)
    except DevkernelsError as error:
        print(f"devkernels: {error}", file=sys.stderr)
        return 1


_WHAT = "Build images of kernels, look after the cache of compiled code, tell what is there."
_BUILD = """\
A factory is a function without arguments. It returns a kernel that has a signature, (kernel, signature),
(kernel, signature, notes), what a make_... function of devkernels returns, or a list or a dict (by file name) of such.
Each kernel becomes one file, NAME.dkimage, with the code of every target.

  devkernels build mypackage.kernels:filters --target sm_80 --target sm_90 -o mypackage/images

Programs load them with devkernels.load_image(file), ready kernels with devkernels.use_images(folder)."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="devkernels", description=_WHAT)
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(helper=parser)
    commands = parser.add_subparsers(metavar="COMMAND")

    told = "compile kernels into image files, with or without a GPU"
    build = commands.add_parser(
        "build", help=told, description=told, epilog=_BUILD, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    build.add_argument("factories", nargs="+", metavar="package.module:factory", help="what returns the kernels")
    build.add_argument("--target", action="append", metavar="sm_90", help="architecture; may be repeated; default: "
                       "that of the GPU, else DEVKERNELS_TARGET, else sm_90")  # fmt: skip
    build.add_argument("-o", "--output", type=Path, default=Path("images"), metavar="FOLDER",
                       help="where the files go; default: images")  # fmt: skip
    build.add_argument("--quiet", action="store_true", help="no progress bar")
    build.set_defaults(run=_build)

    store = commands.add_parser("cache", help="look at, empty or shrink the cache of compiled code")
    store.set_defaults(helper=store)
    actions = store.add_subparsers(metavar="ACTION")
    actions.add_parser("info", help="folder, limit and content").set_defaults(run=_cache_info)
    actions.add_parser("clear", help="delete everything").set_defaults(run=_cache_clear)
    prune = actions.add_parser("prune", help="delete what was used least recently")
    prune.add_argument("--limit-mb", type=_megabytes, metavar="MB",
                       help="size to shrink to; default: DEVKERNELS_CACHE_LIMIT_MB, else 1024")  # fmt: skip
    prune.set_defaults(run=_cache_prune)

    info = commands.add_parser("info", help="versions, driver, GPU, home and cache; or what image files hold")
    info.add_argument("image", nargs="*", type=Path, help="image files to tell of instead")
    info.set_defaults(run=_info)
    return parser


def _megabytes(text: str) -> int:
    number = int(text) if text.isdigit() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of megabytes >= 0")
    return number


def _build(parsed: argparse.Namespace) -> int:
    from tqdm import tqdm

    from devkernels.compiler import build

    chosen = [Target.parse(name) for name in dict.fromkeys(parsed.target or [str(target.current_target())])]
    sys.path.insert(0, os.getcwd())  # as `python -m` does: factories often lie in the working folder
    guard = threading.Lock()
    with contextlib.ExitStack() as closing:
        bar: Any = None

        def progress(where: Target, content: tuple) -> None:
            nonlocal bar
            what, value = content
            with guard:
                if bar is None:  # from the first news on: an error before it stands alone
                    bar = closing.enter_context(tqdm(total=0, unit="step", disable=parsed.quiet, desc="building"))
                if what == "total":  # kernels
                    bar.total += value
                    bar.refresh()
                    return
                bar.set_postfix_str(f"{value} for {where}", refresh=False)
                if what == "begun":  # a device function that some kernel needs
                    bar.total += 1
                    bar.refresh()
                else:
                    bar.update()

        written = build.build(parsed.factories, chosen, parsed.output, progress)
    for path in written:
        print(path)
    return 0


_KINDS = {
    "kernel": "kernels, as machine code", "ltoir": "device functions, as LTO-IR", "lazy": "where ready kernels are",
    "nvmath": "functions and sizes for nvmath.device", "torch": "the C++ extension for torch",
    "traits": "traits of device functions",
}  # fmt: skip


def _cache_info(_: argparse.Namespace) -> int:
    state = cache.info()
    print(f"folder  {state.folder}")
    print(f"limit   {state.limit_bytes / 2**20:.0f} MB")
    print(f"used    {state.total_bytes / 2**20:.1f} MB")
    for kind, (number, size) in sorted(state.kinds.items()):
        print(f"  {kind:8s} {number:6d} entries {size / 2**20:10.1f} MB  {_KINDS.get(kind, '')}".rstrip())
    return 0


def _cache_clear(_: argparse.Namespace) -> int:
    print(f"{cache.clear()} entries deleted from {cache.folder()}")
    return 0


def _cache_prune(parsed: argparse.Namespace) -> int:
    limit = None if parsed.limit_mb is None else parsed.limit_mb << 20
    print(f"{cache.prune(limit)} entries deleted from {cache.folder()}")
    return 0


def _info(parsed: argparse.Namespace) -> int:
    if not parsed.image:
        return env_report.main([]) or 0
    from devkernels.compiler import image

    for path in parsed.image:
        for one in image.read(path):
            print(f"{path}: {one}")
            print(f"  {one.registers} registers, {one.local_bytes} bytes of local memory per thread; "
                  f"{one.shared_bytes} bytes of static shared memory; {len(one.cubin)} bytes of code")  # fmt: skip
            if one.max_threads is not None:
                print(f"  at most {one.max_threads} threads per block")
            if one.content:
                print("  a ready kernel, which devkernels.use_images finds")
            if one.notes:
                print(f"  notes: {json.dumps(one.notes)}")
            built = ", ".join(v if name in v else f"{name} {v}" for name, v in one.versions.items() if v)
            print(f"  built with {built}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
