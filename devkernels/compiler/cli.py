"""The ``devkernels`` command: ``build`` images, look after the ``cache``, tell what is there (``info``).

In: arguments of the command line. Out: files and text; the exit status is 1 for an error of ours, which is printed
without a traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from devkernels import cache, env_report, target
from devkernels._version import __version__
from devkernels.errors import DevkernelsError
from devkernels.target import Target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except DevkernelsError as error:
        print(f"devkernels: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="devkernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="compile kernels into image files, with or without a GPU")
    build.add_argument("factories", nargs="+", metavar="package.module:factory")
    build.add_argument("--target", action="append", metavar="sm_90", help="architecture; may be repeated")
    build.add_argument("-o", "--output", type=Path, default=Path("images"), metavar="FOLDER")
    build.add_argument("--quiet", action="store_true", help="no progress bar")
    build.set_defaults(run=_build)

    store = commands.add_parser("cache", help="look at, empty or shrink the cache of compiled code")
    actions = store.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("info", help="folder, limit and content").set_defaults(run=_cache_info)
    actions.add_parser("clear", help="delete everything").set_defaults(run=_cache_clear)
    prune = actions.add_parser("prune", help="delete what was used least recently")
    prune.add_argument("--limit-mb", type=int, metavar="MB", help="size to shrink to; default: the limit that is set")
    prune.set_defaults(run=_cache_prune)

    info = commands.add_parser("info", help="versions, driver, GPU, home and cache")
    info.add_argument("image", nargs="*", type=Path, help="tell what image files hold instead")
    info.set_defaults(run=_info)
    return parser


def _build(parsed: argparse.Namespace) -> int:
    from tqdm import tqdm

    from devkernels.compiler import build

    chosen = [Target.parse(name) for name in dict.fromkeys(parsed.target or [str(target.current_target())])]
    sys.path.insert(0, os.getcwd())  # as `python -m` does: factories often lie in the working folder
    guard = threading.Lock()
    with tqdm(total=0, unit="step", disable=parsed.quiet, desc="building") as bar:

        def progress(where: Target, content: tuple) -> None:
            what, value = content
            with guard:
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


def _cache_info(_: argparse.Namespace) -> int:
    state = cache.info()
    print(f"folder  {state.folder}")
    print(f"limit   {state.limit_bytes / 2**20:.0f} MB")
    print(f"used    {state.total_bytes / 2**20:.1f} MB")
    for kind, (number, size) in sorted(state.kinds.items()):
        print(f"  {kind:8s} {number:6d} entries {size / 2**20:10.1f} MB")
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
        status = env_report.main([])
        _cache_info(parsed)
        return status or 0
    from devkernels.compiler import image

    for path in parsed.image:
        for one in image.read(path):
            print(f"{path}: {one}")
            print(f"  {one.registers} registers, {one.local_bytes} bytes of local memory per thread; "
                  f"{one.shared_bytes} bytes of static shared memory; {len(one.cubin)} bytes of code")  # fmt: skip
            if one.max_threads is not None:
                print(f"  at most {one.max_threads} threads per block")
            if one.notes:
                print(f"  notes: {json.dumps(one.notes)}")
            built = ", ".join(v if name in v else f"{name} {v}" for name, v in one.versions.items() if v)
            print(f"  built with {built}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
