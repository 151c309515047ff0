"""The extension for torch as a library: what it refuses, how it is built and found."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch (extra torch)", allow_module_level=True)

from devkernels import cache
from devkernels.compiler import cli
from devkernels.errors import CompileError, DevkernelsWarning, JitDisabledError
from devkernels.linear import _torch_native
from devkernels.linear import build_extension as command
from devkernels.linear.torch import build_extension


def test_bad_words_are_refused(built):
    plan = built.Plan
    like = (None,) * 10
    for words, like_, error in (
        ((0, 256, 0, 0), like[:9], "ten tensors"), ((3, 256, 0, 0), like, "unknown words"),
        ((0, 256, 0, 0, 1), like, "more words"), ((0, 256, 1), like, "range"),
        ((0, 256, 1, 9, 7), like, "no such launch"),
        ((0, 256, 1, 0, 7, *range(12), 0, 0, 0, 0, 12, 0), like, "no such slot"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=error):
            plan(words, like_, (), None)
    with pytest.raises(OverflowError):
        plan((0, 256, -1), like, (), None)
    with pytest.raises(TypeError, match="tensor or None"):
        plan((0, 256, 0, 0), (3,) * 10, (), None)
    for like_ in ((None,) * 4, (None,) * 6):
        with pytest.raises(RuntimeError, match="to be like"):
            built.Replay((0, 0), like_, (), None)


def test_it_is_found_again_and_built_only_when_asked(monkeypatch, tmp_path, built):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_torch_native, "_loaded", [])
    monkeypatch.setattr(_torch_native, "_compile", lambda: pytest.fail("nobody asked for it"))
    cache.forget()
    assert _torch_native.extension() is None
    cache.put("torch", _torch_native._key(), b"no library")
    monkeypatch.setattr(_torch_native, "_loaded", [])
    with pytest.warns(DevkernelsWarning, match="cannot be loaded"):
        assert _torch_native.extension() is None


def test_what_cannot_be_built_is_an_error_in_words(monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_torch_native, "_loaded", [])
    cache.forget()
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    with pytest.raises(JitDisabledError, match="extension for torch"):
        build_extension()
    monkeypatch.delenv("DEVKERNELS_DISABLE_JIT")
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.raises(CompileError, match=r"wants a C\+\+ compiler and ninja"):
        build_extension()


def test_the_command(monkeypatch, tmp_path, capsys):
    code = b"the library"
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_torch_native, "_loaded", [])
    monkeypatch.setattr(_torch_native, "_compile", lambda: code)
    loaded = []
    monkeypatch.setattr(_torch_native, "_load", lambda code: loaded.append(code) or loaded)
    cache.forget()
    assert command.main() == 0
    assert str(tmp_path) in capsys.readouterr().out
    monkeypatch.setattr(_torch_native, "_loaded", [])
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path / "other"))
    cache.forget()
    assert command.main() == 1
    assert "DEVKERNELS_DISABLE_JIT" in capsys.readouterr().err
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    assert loaded == [code]
    assert cli.main(["cache", "info"]) == 0
    assert "the C++ extension for torch" in capsys.readouterr().out
