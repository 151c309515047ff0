"""``python -m devkernels.linear.build_extension``: build the C++ extension for torch, once for each version of torch.

in: nothing.  out: the extension in the cache, where `devkernels.linear.torch` finds it; the exit status is 1 for an
error of ours, which is printed without a traceback.
"""

from __future__ import annotations

import sys

from devkernels import cache
from devkernels.errors import DevkernelsError


def main() -> int:
    """Build; return the exit status."""
    try:
        from devkernels.linear.torch import build_extension
    except ImportError as error:
        print(f"devkernels: torch is needed ({error}); pip install 'devkernels[torch]'.", file=sys.stderr)
        return 1
    try:
        build_extension()
    except DevkernelsError as error:
        print(f"devkernels: {error}", file=sys.stderr)
        return 1
    print(f"The extension is in {cache.folder()}; processes with this torch and Python find it there.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
