"""CUDA graphs of a function's calls, with memory that stays theirs.

in: a function that puts work on the current stream, and how many calls of it to capture.  out: a `Replay`.

What a call allocates while it is captured must not go back to its library while the graph may be replayed: the library
would give it to others, whom the replay then overwrites, or to the driver, where the replay finds nothing any more.
torch keeps memory for its graphs by itself, whichever thread allocates, but only for captures that it begins; CuPy does
not, so that the calls allocate from a pool that lives as long as the graph.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


class Replay:
    """Puts the captured calls on the library's current stream; holds their graph and their memory.

    Attributes
    ----------
    result : object
        What the last captured call returned: arrays of the graph's memory, which each replay writes again.
    """

    __slots__ = ("launch", "memory", "result")

    def __init__(self, launch: Callable[[], object], memory: list[object], result: object):
        self.launch, self.memory, self.result = launch, memory, result

    def __call__(self) -> None:
        """Launch the graph."""
        self.launch()


@contextlib.contextmanager
def _cupy_memory(keep: list[object]) -> Iterator[None]:
    """Let CuPy allocate from a new pool, which is put into `keep`."""
    cuda = sys.modules["cupy"].cuda
    pool = cuda.MemoryPool()
    keep.append(pool)
    with cuda.using_allocator(pool.malloc):
        yield


def with_cupy(run: Callable[[], object], times: int) -> Replay:
    """Capture `times` calls on CuPy's current stream, which must not be the default one.

    One more call before, outside the graph, lets the pool grow where allocating is harmless. The calls must not
    allocate from torch; for those there is `with_torch`.
    """
    cuda = sys.modules["cupy"].cuda
    stream = cuda.get_current_stream()
    memory: list[object] = []
    result = None
    with _cupy_memory(memory):
        run()
        stream.synchronize()
        stream.begin_capture()
        try:
            for _ in range(times):
                result = run()
        finally:
            graph = stream.end_capture()
    return Replay(lambda: graph.launch(cuda.get_current_stream()), memory, result)


def with_torch(run: Callable[[], object], times: int, *, cupy_too: bool = False, nodes: bool = False) -> Replay:
    """Capture `times` calls on torch's current stream, which must not be the default one.

    ``torch.cuda.graph()`` would empty the caches of the allocator, and collect Python's garbage, each time.

    Parameters
    ----------
    cupy_too : bool
        Whether the calls may allocate from CuPy as well (whose current stream must then be the same one).
    nodes : bool
        Whether the graph is kept beside what is launched (``raw_cuda_graph``), for who wants to change its nodes.
    """
    cuda = sys.modules["torch"].cuda
    graph = cuda.CUDAGraph(keep_graph=True) if nodes else cuda.CUDAGraph()
    memory: list[object] = [graph]
    result = None
    with _cupy_memory(memory) if cupy_too else contextlib.nullcontext():
        run()
        cuda.current_stream().synchronize()
        # "relaxed" as CuPy's captures: CuPy's pool may grow while torch's allocator looks on.
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            for _ in range(times):
                result = run()
        finally:
            graph.capture_end()
        if nodes:
            graph.instantiate()
    return Replay(graph.replay, memory, result)
