"""CUDA graphs of a contender's calls, with memory that stays theirs.

in: a function, a CuPy stream. out: a function that replays the graph. What a call allocates while it is captured must
not go back to its library while the graph may be replayed: torch, which does not know of the capture, would hand it to
others, or to the driver when its cache is emptied (as ``torch.cuda.make_graphed_callables`` does). So both libraries
allocate from pools that live as long as the graph.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable


@contextlib.contextmanager
def _own_memory(keep: list[object]):
    """Let CuPy and torch allocate from new pools, which are put into `keep`."""
    import cupy

    with contextlib.ExitStack() as stack:
        pool = cupy.cuda.MemoryPool()
        keep.append(pool)
        stack.enter_context(cupy.cuda.using_allocator(pool.malloc))
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch.cuda, "use_mem_pool"):
            theirs = torch.cuda.MemPool()
            keep.append(theirs)
            stack.enter_context(torch.cuda.use_mem_pool(theirs))
        yield


def capture(run: Callable[[], object], stream: object, launches: int) -> Callable[[], object]:
    """Capture that many calls; the first, outside the graph, lets the pools grow where allocating is harmless."""
    keep: list[object] = []
    with _own_memory(keep):
        run()
        stream.synchronize()
        stream.begin_capture()
        try:
            for _ in range(launches):
                run()
        finally:
            graph = stream.end_capture()

    def replay() -> None:
        graph.launch(stream)

    replay.memory = keep
    return replay
