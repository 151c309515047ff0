"""A process that builds and answers: ``python -m devkernels.compiler.worker``.

In (stdin): a pickled (sys.path, job). Out (stdout): pickled pairs: ("progress", anything) as often as the job reports,
then ("done", answer) or ("failed", error). Jobs are a device function, a kernel for an architecture that the asking
process cannot compile for (`devkernels.compiler.remote`), or all kernels of factories (`devkernels.compiler.build`).
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable

from devkernels.errors import DevkernelsError


def _function(_: Callable, key: str, request: object) -> tuple[bytes, dict[str, int]]:
    from devkernels import cache
    from devkernels.compiler import functions

    data = functions.build(key, request)
    return data, dict(cache.counts(functions.KIND))


def _kernel(_: Callable, payload: bytes) -> tuple[bytes, dict]:
    from devkernels import cache
    from devkernels.compiler.image import pack
    from devkernels.compiler.kernel import compile_function

    image = compile_function(*pickle.loads(payload))
    return pack([image]), cache.every_count()


def _factories(report: Callable, names: list[str], target: str) -> list:
    from devkernels.compiler import build

    return build.serve(report, names, target)


_JOBS = {"function": _function, "kernel": _kernel, "factories": _factories}


def main() -> None:
    """Serve one job."""
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not end up inside the answer

    def send(state: str, content: object) -> None:
        try:
            message = pickle.dumps((state, content))
        except (pickle.PicklingError, TypeError, AttributeError):  # an error that holds something unpicklable
            message = pickle.dumps((state, str(content)))
        stdout.write(message)
        stdout.flush()

    try:
        paths, job = pickle.loads(stdin.read())  # two pickles: reading the job may import from the paths
        sys.path.extend(path for path in paths if path not in sys.path)
        name, *arguments = pickle.loads(job)
        send("done", _JOBS[name](lambda content: send("progress", content), *arguments))
    except DevkernelsError as error:
        send("failed", error)
    except BaseException:  # noqa: BLE001 - a worker must answer, whatever happened
        send("failed", traceback.format_exc())
    stdout.close()


if __name__ == "__main__":
    main()
