"""CUDA graphs whose memory stays theirs, with stand-ins for CuPy and torch that note who allocates when."""

import contextlib
import gc
import sys
import types
import weakref

import pytest

from devkernels import graphs

_POOLS = weakref.WeakSet()


class _Pool:
    def __init__(self):
        _POOLS.add(self)

    def malloc(self, size):
        raise AssertionError("nothing is allocated here")


class _Graph:
    def __init__(self, said):
        self.said = said

    def capture_begin(self, capture_error_mode):
        assert capture_error_mode == "relaxed"
        self.said.append("begin")

    def capture_end(self):
        self.said.append("end")

    def replay(self):
        self.said.append("launch")


@pytest.fixture
def world(monkeypatch):
    """The allocator in use, and what was said to the libraries."""
    current, said = {}, []

    @contextlib.contextmanager
    def using_allocator(malloc):
        current["cupy"] = malloc.__self__
        try:
            yield
        finally:
            del current["cupy"]

    stream = types.SimpleNamespace(
        synchronize=lambda: said.append("wait"),
        begin_capture=lambda: said.append("begin"),
        end_capture=lambda: (
            said.append("end")
            or types.SimpleNamespace(launch=lambda on: said.append("launch") if on is stream else None)
        ),
    )
    cupy, torch = types.ModuleType("cupy"), types.ModuleType("torch")
    cupy.cuda = types.SimpleNamespace(
        MemoryPool=_Pool, using_allocator=using_allocator, get_current_stream=lambda: stream
    )
    torch.cuda = types.SimpleNamespace(CUDAGraph=lambda: _Graph(said), current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return current, said


WAYS = {
    "cupy": graphs.with_cupy,
    "torch": graphs.with_torch,
    "both": lambda run, times: graphs.with_torch(run, times, cupy_too=True),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_captured_calls_keep_their_memory(world, way):
    current, said = world
    seen = []
    replay = WAYS[way](lambda: seen.append((current.get("cupy"), "begin" in said)), 3)
    assert [inside for _, inside in seen] == [False, True, True, True]
    assert (said, current) == (["wait", "begin", "end"], {})
    assert len({pool for pool, _ in seen}) == 1
    assert (seen[0][0] is None) is (way == "torch")
    replay()
    assert said[-1] == "launch"
    seen.clear()
    gc.collect()
    assert len(_POOLS) == (way != "torch")
    del replay
    gc.collect()
    assert len(_POOLS) == 0


@pytest.mark.parametrize("way", list(WAYS))
def test_an_error_ends_the_capture(world, way):
    current, said = world

    def run():
        if "begin" in said:
            raise ValueError("cannot be captured")

    with pytest.raises(ValueError, match="cannot be captured"):
        WAYS[way](run, 3)
    assert (said, current) == (["wait", "begin", "end"], {})
