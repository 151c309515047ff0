"""Fixtures of the tests that any home can run."""

import shutil

import pytest


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The extension for torch; built once for all processes of a run."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    from devkernels.linear import _torch_native

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path_factory.getbasetemp().parent / "extension"))
        patch.setattr(_torch_native, "_loaded", [])
        _torch_native.build()
        return _torch_native.extension()
