"""The code that a kernel links: device functions from libmathdx, Numba's own CUDA sources, the user's files.

In: Numba's linking objects, as they gather while a kernel is lowered. Out: (kind, content) pairs for the linker. What
the cache lacks is built at the same time, each function in a worker process: NVRTC serialises inside one process.

A device function object hands Numba a subclass of ``numba.cuda.LTOIR`` with three more attributes: ``key`` (text, equal
for equal code), ``request`` (picklable: an object with ``build()``, or a tuple of a function and its arguments, that
gives the LTO-IR without importing Numba) and ``build()``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from devkernels import cache, config, versions
from devkernels.canonical import digest
from devkernels.compiler.link import kind_of_file
from devkernels.errors import CompileError, DevkernelsError
from devkernels.target import Target

KIND = "ltoir"


def start(objects: list[Any], target: Target) -> dict[str, Future]:
    """Begin to build, in worker processes, what these device objects will most likely link: by key.

    The front end takes seconds before it comes to ask for them. A wrong guess costs processor time, nothing else.
    """
    requests = {request.key: request for one in objects for request in one.likely_requests(target)}
    missing = [key for key in requests if cache.get(KIND, key) is None]
    if not missing or config.disable_jit():
        return {}
    pool = ThreadPoolExecutor(max_workers=min(len(missing), processors()))
    started = {key: pool.submit(_build_apart, key, requests[key]) for key in missing}
    pool.shutdown(wait=False)  # it ends by itself when all is built
    return started


def gather(
    linked: tuple[object, ...], target: Target, started: dict[str, Future] | None = None
) -> list[tuple[str, bytes]]:
    """Content of everything that is linked to a kernel, once each, in a stable order; `started` is `start`'s answer."""
    ours: dict[str, Any] = {}
    others: dict[str, tuple[str, bytes]] = {}
    for code in linked:
        if hasattr(code, "key") and hasattr(code, "request"):
            key, request = _for_target(code, target)
            ours.setdefault(key, request)
        else:
            kind, content = _other(code, target)
            others.setdefault(digest(kind, content), (kind, content))
    for key in ours:
        if started and key in started:
            started[key].result()
    built = build_all(ours)
    return [("ltoir", built[key]) for key in sorted(built)] + [others[key] for key in sorted(others)]


def _for_target(code: Any, target: Target) -> tuple[str, Any]:
    """Key and request of a function; Numba may have kept one for sm_90a where sm_90 is compiled, which cannot link."""
    wanted = getattr(code.request, "target", target)
    if not wanted.arch_specific or wanted == target or wanted.cc != target.cc:
        return code.key, code.request
    request = dataclasses.replace(code.request, target=target)
    return request.key, request


def build_all(requests: dict[str, Any]) -> dict[str, bytes]:
    """LTO-IR for every key: from the cache, or built by worker processes, or here if there is only one to build."""
    found = {key: cache.get(KIND, key) for key in requests}
    missing = [key for key, data in found.items() if data is None]
    if len(missing) > 1 and not config.disable_jit():
        with ThreadPoolExecutor(max_workers=min(len(missing), processors())) as pool:
            apart = {key: pool.submit(_build_apart, key, requests[key]) for key in missing[1:]}
            found[missing[0]] = build(missing[0], requests[missing[0]])
            found |= {key: future.result() for key, future in apart.items()}
    else:
        found |= {key: build(key, requests[key]) for key in missing}
    return found


_listener: Callable[[str, str], None] | None = None


@contextlib.contextmanager
def telling(listener: Callable[[str, str], None]) -> Iterator[None]:
    """Within this block, `listener` is called with ("begun" or "done", name) for each function that is built."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextlib.contextmanager
def _told(request: Any) -> Iterator[None]:
    name, listener = str(getattr(request, "symbol", "function")), _listener
    if listener is not None:
        listener("begun", name)
    yield
    if listener is not None:
        listener("done", name)


def build(key: str, request: Any) -> bytes:
    """Build one function in this process, unless the cache has it by now."""

    def now() -> bytes:
        with _told(request):
            return fulfil(request)

    return cache.get_or_build(KIND, key, now, spec=request)


def fulfil(request: Any) -> bytes:
    """Do what a request says: an object's ``build()``, or a function with its arguments."""
    if hasattr(request, "build"):
        return request.build()
    function, *arguments = request
    return function(*arguments)


def _build_apart(key: str, request: Any) -> bytes:
    with _told(request):
        data, counts = run_worker(("function", key, request))
    for event, number in counts.items():
        cache.count(KIND, event, number)
    cache.remember(KIND, key, data)
    return data


def run_worker(
    job: tuple, environment: dict[str, str] | None = None, progress: Callable[[Any], None] | None = None
) -> Any:
    """Run one job in a fresh Python process and return its answer; an error there is raised here.

    `environment` adds variables; `progress` is called with whatever the job reports on its way.
    """
    try:
        payload = pickle.dumps((sys.path, pickle.dumps(job)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CompileError(f"A worker process cannot be told what to build: {error}") from error
    command = [sys.executable, "-m", "devkernels.compiler.worker"]
    with (
        tempfile.TemporaryFile() as messages,  # not a pipe: nobody would empty it while answers are read
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages,
                         env=_child_environment() | (environment or {})) as process,
    ):  # fmt: skip
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended already, and its messages say why
                process.stdin.write(payload)
                process.stdin.close()
            while True:
                state, answer = pickle.load(process.stdout)
                if state != "progress":
                    break
                if progress is not None:
                    progress(answer)
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, ValueError, TypeError) as error:
            status = process.wait()
            messages.seek(0)
            tail = messages.read().decode(errors="replace").strip()[-2000:]
            raise CompileError(f"A worker process ended with status {status} and no answer:\n{tail}") from error
        except BaseException:
            process.kill()
            raise
    if state == "done":
        return answer
    if isinstance(answer, DevkernelsError):
        raise answer
    raise CompileError(f"A worker process failed:\n{answer}")


def _child_environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    package = str(Path(__file__).resolve().parents[2])
    path = [package, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return environment | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), "DEVKERNELS_QUIET": "1"}


def processors() -> int:
    """How many processes are worth running at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _other(code: object, target: Target) -> tuple[str, bytes]:
    """Content of a linking object that is not ours: a path, or one of Numba's LinkableCode classes."""
    if isinstance(code, (str, os.PathLike)):
        path = os.fspath(code)
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise CompileError(f"The file {path} that a kernel links cannot be read: {error}.") from error
        if path.endswith(".cu"):
            return "ltoir", _compile_source(content.decode(), os.path.basename(path), target)
        return kind_of_file(path), content
    data = code.data
    content = data.encode() if isinstance(data, str) else bytes(data)
    if code.kind == "cu":
        return "ltoir", _compile_source(content.decode(), code.name, target)
    kind = {"LTOIR": "ltoir", "PTXSource": "ptx", "Cubin": "cubin", "Fatbin": "fatbin", "Object": "object",
            "Archive": "archive"}  # fmt: skip
    for cls in type(code).__mro__:
        if cls.__name__ in kind:
            return kind[cls.__name__], content
    raise CompileError(f"Do not know how to link {code!r}.")


def _compile_source(source: str, name: str, target: Target) -> bytes:
    """CUDA C++ to LTO-IR; Numba links such text for float16 arithmetic, users for their own functions."""

    def compile_now() -> bytes:
        from numba.cuda.cudadrv import nvrtc

        cc = (*target.cc, "a") if target.arch_specific else target.cc
        code, _ = nvrtc.compile(source, name, cc, ltoir=True)
        return bytes(code.code)

    key = digest("cuda source", source, name, str(target), versions.for_functions())
    return cache.get_or_build(KIND, key, compile_now, spec=f"CUDA source {name} for {target}")
