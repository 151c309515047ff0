"""`devkernels.cache`: built once, verified on read, bounded, safe under many processes, harmless on a bad disk."""

import os
import random
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import pytest

from devkernels import cache
from devkernels.errors import DevkernelsError, DevkernelsWarning, JitDisabledError


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DEVKERNELS_DISABLE_JIT", raising=False)
    monkeypatch.setattr(cache, "_counts", type(cache._counts)())
    monkeypatch.setattr(cache, "_warned", set())
    cache.forget()
    yield tmp_path / "cache"
    cache.forget()


def entry(kind, key):
    return cache.folder() / "v1" / kind / f"{key}.bin"


def never():
    raise AssertionError("built again")


def test_built_once_then_from_memory_then_from_disk():
    data = secrets.token_bytes(1000)
    assert cache.get_or_build("test", "k", lambda: data) == data
    assert cache.get_or_build("test", "k", never) == data
    cache.forget()
    assert cache.get_or_build("test", "k", never) == data
    assert cache.counts("test") == {"builds": 1, "memory_hits": 1, "disk_hits": 1}
    assert cache.counts("another") == {}


def test_kinds_and_keys_are_apart():
    for kind, key in (("a", "x"), ("a", "y"), ("b", "x")):
        cache.put(kind, key, f"{kind}{key}".encode())
    cache.forget()
    assert [cache.get(*name) for name in (("a", "x"), ("a", "y"), ("b", "x"))] == [b"ax", b"ay", b"bx"]
    assert cache.get("b", "y") is None


@pytest.mark.parametrize("key", ["", "../x", "a/b", ".hidden", "a" * 201, "ü"])
def test_names_that_leave_the_folder_are_refused(key):
    with pytest.raises(ValueError, match="cannot name a cache entry"):
        cache.get("test", key)


def test_a_build_that_fails_leaves_nothing_and_can_be_repeated():
    with pytest.raises(ZeroDivisionError):
        cache.get_or_build("test", "k", lambda: 1 // 0)
    assert cache.get_or_build("test", "k", lambda: b"now") == b"now"


def test_threads_build_once():
    calls = []

    def build():
        calls.append(1)
        time.sleep(0.05)
        return b"data"

    results = []
    threads = [
        threading.Thread(target=lambda: results.append(cache.get_or_build("test", "k", build))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"data"] * 8
    assert len(calls) == 1


def test_sixteen_processes_on_an_empty_cache_build_each_function_once(own_folder, tmp_path):
    log = tmp_path / "log"
    code = f"""
import os, sys, time
from devkernels import cache
def build(key):
    def run():
        with open({str(log)!r}, "a") as file:
            file.write(key + "\\n")
        time.sleep(0.1)
        return key.encode() * 1000
    return run
time.sleep(max(0.0, float(sys.argv[1]) - time.time()))  # all at the same moment
for key in ("one", "two", "three"):
    assert cache.get_or_build("test", key, build(key)) == key.encode() * 1000
print(cache.counts("test")["builds"])
"""
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1"}
    start = str(time.time() + 2.0)
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code, start], env=environment, stdout=subprocess.PIPE)
        for _ in range(16)
    ]
    builds = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 16
    assert sum(builds) == 3
    assert sorted(log.read_text().split()) == ["one", "three", "two"]


def test_damaged_and_exchanged_files_are_never_loaded(own_folder):
    """200 cases of truncated, extended, bit-flipped, zeroed, exchanged and foreign files."""
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    contents = {f"k{i}": rng.randbytes(rng.choice((0, 1, 31, 32, 500, 4096))) for i in range(8)}
    for case in range(200):
        if case == 0:
            for key, data in contents.items():
                cache.put("test", key, data)
                cache.put("other", key, rng.randbytes(64))
        victim = rng.choice(sorted(contents))
        path = entry("test", victim)
        good = path.read_bytes()
        how = rng.choice(["truncate", "extend", "flip", "zero", "exchange", "other kind", "garbage", "empty"])
        if how == "truncate":
            bad = good[: rng.randrange(len(good))]
        elif how == "extend":
            bad = good + rng.randbytes(rng.randint(1, 50))
        elif how == "flip":
            position = rng.randrange(len(good))
            bad = good[:position] + bytes([good[position] ^ (1 << rng.randrange(8))]) + good[position + 1 :]
        elif how == "zero":
            bad = bytes(len(good))
        elif how == "exchange":
            bad = entry("test", rng.choice(sorted(set(contents) - {victim}))).read_bytes()
        elif how == "other kind":
            bad = entry("other", victim).read_bytes()
        else:
            bad = rng.randbytes(len(good)) if how == "garbage" else b""
        path.write_bytes(bad)
        cache.forget()
        before = cache.counts("test")
        message = f"seed {seed}, case {case}, {how}"
        assert cache.get("test", victim) is None, message
        assert cache.get_or_build("test", victim, lambda v=victim: contents[v]) == contents[victim], message
        after = cache.counts("test")
        assert after["builds"] - before["builds"] == 1, message
        assert after["rejected"] > before["rejected"], message
        cache.forget()
        assert cache.get_or_build("test", victim, never) == contents[victim], message  # repaired on disk


def test_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setenv("DEVKERNELS_CACHE_LIMIT_MB", "1")
    block = 100 << 10
    for i in range(10):
        cache.put("test", f"k{i}", bytes([i]) * block)
        os.utime(entry("test", f"k{i}"), ns=(i, i))
    cache.forget()
    assert cache.get("test", "k0") is not None  # used: now the youngest
    cache.put("test", "k10", b"x" * block)  # 1.07 MB: beyond the limit
    cache.forget()
    kept = [i for i in range(11) if cache.get("test", f"k{i}") is not None]
    assert 0 in kept
    assert 10 in kept
    assert 1 not in kept
    assert cache.info().total_bytes <= 1 << 20


def test_entry_larger_than_the_limit_stays_in_memory_only(monkeypatch):
    monkeypatch.setenv("DEVKERNELS_CACHE_LIMIT_MB", "0")
    cache.put("test", "k", b"data")
    assert cache.get("test", "k") == b"data"
    assert cache.info().kinds == {}


def test_info_clear_and_prune(own_folder):
    cache.put("a", "x", b"12")
    cache.put("a", "y", b"1234")
    cache.put("b", "x", b"")
    (own_folder / "v1" / "a" / "somebody-elses.txt").write_text("keep me")
    info = cache.info()
    assert info.folder == own_folder
    assert {kind: number for kind, (number, _) in info.kinds.items()} == {"a": 2, "b": 1}
    assert cache.prune(10**9) == 0
    assert cache.prune(0) == 3
    cache.put("a", "x", b"12")
    assert cache.clear() == 1
    assert cache.info().kinds == {}
    assert cache.get("a", "x") is None
    assert (own_folder / "v1" / "a" / "somebody-elses.txt").read_text() == "keep me"


def test_disabled_jit_reads_but_does_not_build(monkeypatch):
    cache.put("test", "there", b"data")
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    cache.forget()
    assert cache.get_or_build("test", "there", never) == b"data"
    with pytest.raises(JitDisabledError, match="fft of 256 points would have to be compiled") as caught:
        cache.get_or_build("test", "missing", never, spec="fft of 256 points")
    assert caught.value.spec == "fft of 256 points"
    assert isinstance(caught.value, DevkernelsError)


def test_unusable_folder_warns_once_and_goes_on(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")  # also fails for root, who may write anywhere
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(blocked / "cache"))
    with pytest.warns(DevkernelsWarning, match="DEVKERNELS_CACHE_DIR"):
        assert cache.get_or_build("test", "k", lambda: b"data") == b"data"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get_or_build("test", "k", never) == b"data"
        assert cache.get_or_build("test", "l", lambda: b"more") == b"more"
    assert cache.counts("test")["write_failures"] == 2


def test_full_disk_leaves_no_partial_file(monkeypatch, own_folder):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(DevkernelsWarning, match="No space left"):
        assert cache.get_or_build("test", "k", lambda: b"data") == b"data"
    assert [p.name for p in (own_folder / "v1" / "test").iterdir() if not p.name.endswith(".lock")] == []


IN_A_PROCESS_OF_ITS_OWN = """
import os, resource, sys, warnings
import filelock
from devkernels import cache
if sys.argv[1] == "read-only":
    if os.getuid() == 0:  # who may write anywhere
        os.setgid(65534)
        os.setuid(65534)
else:  # a disk that takes a thousand bytes and no more
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    kept = cache.get("test", "before")
    for key in ("one", "two"):
        assert cache.get_or_build("test", key, lambda: b"x" * 5000) == b"x" * 5000
        assert cache.get_or_build("test", key, lambda: 1 / 0) == b"x" * 5000  # in memory
assert kept == b"data", kept
assert [str(one.category.__name__) for one in seen] == ["DevkernelsWarning"], [str(one.message) for one in seen]
assert "DEVKERNELS_CACHE_DIR" in str(seen[0].message)
print(cache.counts("test")["write_failures"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs user ids and limits of POSIX")
@pytest.mark.parametrize("disk", ["read-only", "full"])
def test_a_disk_that_takes_nothing_is_read_and_told_once(monkeypatch, disk):
    with tempfile.TemporaryDirectory() as place:  # not pytest's folder, which others may not enter
        folder = os.path.join(place, "cache")
        monkeypatch.setenv("DEVKERNELS_CACHE_DIR", folder)
        cache.put("test", "before", b"data")
        os.chmod(place, 0o755)
        os.chmod(os.path.join(folder, "v1", "test"), 0o555 if disk == "read-only" else 0o755)
        result = subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, disk],
            env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1"},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert result.stdout == "2\n", result.stderr
        left = sorted(os.listdir(os.path.join(folder, "v1", "test")))
        assert [name for name in left if not name.endswith(".lock")] == ["before.bin"]
        os.chmod(os.path.join(folder, "v1", "test"), 0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="needs permissions of POSIX")
def test_others_may_read_what_the_umask_lets_them():
    before = os.umask(0o022)
    try:
        cache.put("test", "k", b"data")
    finally:
        os.umask(before)
    assert entry("test", "k").stat().st_mode & 0o777 == 0o644


def test_importing_it_imports_no_heavy_library():
    code = (
        # cuda-bindings 12 loads the namespace package `cuda` when Python starts, hence the difference
        "import sys; before = set(sys.modules); import devkernels.cache; new = set(sys.modules) - before\n"
        "print([n for n in ('numpy', 'numba', 'llvmlite', 'cuda', 'filelock', 'platformdirs') if n in new])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1"},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert result.stdout.strip() == "[]"
