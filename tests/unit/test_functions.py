"""Building what a kernel links: each function once, several at the same time in workers, errors brought home."""

import dataclasses
import sys

import pytest

from devkernels import cache
from devkernels.compiler import functions
from devkernels.errors import CompileError, JitDisabledError, SpecError
from devkernels.target import Target

MODULE = """
import os
from devkernels.errors import SpecError

def build(name, folder):
    with open(os.path.join(folder, "log"), "a") as file:
        file.write(name + "\\n")
    print("noise on stdout that must not end up in the answer")
    return f"{name} {os.getpid()}".encode()

def refuse(name):
    raise SpecError(f"{name} is refused", spec=("a", name))

def crash():
    os._exit(7)

def stumble():
    return 1 // 0

class Request:
    def __init__(self, name, folder):
        self.name, self.folder = name, folder
    def build(self):
        return build(self.name, self.folder)
"""


@pytest.fixture(autouse=True)
def stand_ins(tmp_path, monkeypatch):
    (tmp_path / "stand_ins_of_the_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DEVKERNELS_DISABLE_JIT", raising=False)
    monkeypatch.setattr(cache, "_counts", type(cache._counts)())
    cache.forget()
    import stand_ins_of_the_test

    yield stand_ins_of_the_test
    cache.forget()
    sys.modules.pop("stand_ins_of_the_test")


def log(tmp_path):
    return sorted((tmp_path / "log").read_text().split())


def test_several_are_built_at_once_and_only_once(stand_ins, tmp_path):
    requests = {f"k{i}": (stand_ins.build, f"f{i}", str(tmp_path)) for i in range(3)}
    requests["k3"] = stand_ins.Request("f3", str(tmp_path))
    built = functions.build_all(requests)
    names, processes = zip(*(data.decode().split() for data in built.values()), strict=True)
    assert names == ("f0", "f1", "f2", "f3")
    assert len(set(processes)) == 4  # one here, each other one in a process of its own
    assert log(tmp_path) == ["f0", "f1", "f2", "f3"]
    assert cache.counts("ltoir")["builds"] == 4
    assert functions.build_all(requests) == built
    cache.forget()
    assert functions.build_all(requests) == built
    assert log(tmp_path) == ["f0", "f1", "f2", "f3"]
    assert cache.counts("ltoir")["builds"] == 4


def test_a_listener_is_told_of_what_is_built(stand_ins, tmp_path):
    told = []
    requests = {name: stand_ins.Request(name, str(tmp_path)) for name in "abc"}
    with functions.telling(lambda *what: told.append(what)):
        functions.build_all(requests)
        functions.build_all(requests)  # all are there: nothing to tell
    functions.build_all({"d": stand_ins.Request("d", str(tmp_path))})
    assert sorted(told) == [("begun", "function")] * 3 + [("done", "function")] * 3


def test_one_is_built_here(stand_ins, tmp_path):
    import os

    assert functions.build_all({"k": (stand_ins.build, "f", str(tmp_path))}) == {"k": f"f {os.getpid()}".encode()}


def test_errors_of_workers_arrive_as_they_are(stand_ins, tmp_path):
    good = (stand_ins.build, "f", str(tmp_path))
    with pytest.raises(SpecError, match="bad is refused") as caught:
        functions.build_all({"a": good, "b": (stand_ins.refuse, "bad")})
    assert caught.value.spec == ("a", "bad")
    with pytest.raises(CompileError, match=r"(?s)worker process failed.*ZeroDivisionError"):
        functions.build_all({"c": good, "d": (stand_ins.stumble,)})
    with pytest.raises(CompileError, match="status 7 and no answer"):
        functions.build_all({"e": good, "f": (stand_ins.crash,)})
    with pytest.raises(CompileError, match="cannot be told"):
        functions.build_all({"g": good, "h": (lambda: b"",)})


def test_disabled_jit_names_what_is_missing(stand_ins, tmp_path, monkeypatch):
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    request = stand_ins.Request("f", str(tmp_path))
    for requests in ({"a": request}, {"a": request, "b": request}):
        with pytest.raises(JitDisabledError) as caught:
            functions.build_all(requests)
        assert caught.value.spec is request
    assert not (tmp_path / "log").exists()


class Ours:
    def __init__(self, key, request):
        self.key, self.request = key, request


class Cubin:
    kind, name = None, "cubin"

    def __init__(self, data):
        self.data = data


def test_equal_functions_are_linked_once_in_a_stable_order(stand_ins, tmp_path):
    def ours(key):
        return Ours(key, (stand_ins.build, key, str(tmp_path)))

    library = tmp_path / "runtime.a"
    library.write_bytes(b"archive")
    linked = (ours("b"), Cubin(b"code"), ours("a"), str(library), ours("b"), Cubin(b"code"))
    found = functions.gather(linked, Target(9, 0))
    assert [kind for kind, _ in found[:2]] == ["ltoir", "ltoir"]
    assert [content.split()[0] for _, content in found[:2]] == [b"a", b"b"]
    assert sorted(found[2:]) == [("archive", b"archive"), ("cubin", b"code")]
    assert functions.gather(tuple(reversed(linked)), Target(9, 0)) == found
    assert log(tmp_path) == ["a", "b"]


@pytest.mark.parametrize(("name", "message"), [("missing.ltoir", "cannot be read"), ("code.xyz", "how to link")])
def test_files_that_cannot_be_linked(tmp_path, name, message):
    (tmp_path / "code.xyz").write_bytes(b"")
    with pytest.raises(CompileError, match=message):
        functions.gather((str(tmp_path / name),), Target(9, 0))


def test_functions_follow_the_variant_of_the_architecture():
    """Numba keeps device functions: one that was first used for sm_90 may turn up in a kernel for sm_90a."""

    @dataclasses.dataclass(frozen=True)
    class Request:
        target: Target

        @property
        def key(self):
            return f"f.{self.target}"

        def build(self):
            return str(self.target).encode()

    plain, special = Target(9, 0), Target(9, 0, True)
    kept = Ours("f.sm_90a", Request(special))
    assert functions.gather((kept,), special) == [("ltoir", b"sm_90a")]
    assert functions.gather((kept,), plain) == [("ltoir", b"sm_90")]
    assert functions.gather((Ours("f.sm_90", Request(plain)),), special) == [("ltoir", b"sm_90")]  # links there too


def test_likely_functions_are_begun_early(stand_ins, tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Likely:
        names: tuple

        def likely_requests(self, target):
            return [stand_ins.Request(name, str(tmp_path)) for name in self.names]

    stand_ins.Request.key = property(lambda self: self.name)
    started = functions.start([Likely(("a", "b")), Likely(("b",))], Target(9, 0))
    assert sorted(started) == ["a", "b"]
    linked = tuple(Ours(name, stand_ins.Request(name, str(tmp_path))) for name in "abc")
    found = functions.gather(linked, Target(9, 0), started)
    assert [content.split()[0] for _, content in found] == [b"a", b"b", b"c"]
    assert log(tmp_path) == ["a", "b", "c"]
    assert functions.start([Likely(("a", "b"))], Target(9, 0)) == {}
    assert cache.counts("ltoir")["builds"] == 3
