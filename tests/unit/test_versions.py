"""Versions in cache keys: those that Python's own metadata reports, found without asking it."""

import importlib.metadata
import sys

from devkernels import versions


def test_same_as_importlib_metadata():
    installed = versions._installed()
    for name in ("numpy", "numba", "numba-cuda", "llvmlite", "pytest"):
        assert installed[name] == importlib.metadata.version(name)
    found = versions.libraries()
    assert found["numpy"] == f"numpy {importlib.metadata.version('numpy')}"
    for role, names in versions._PACKAGES.items():
        for name in names:
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                assert f"{name} " not in found[role] + " "
            else:
                assert f"{name} {version}" in found[role].split(", ")


def test_packages_without_a_folder_are_asked_for(monkeypatch):
    assert versions._version("numpy", {}) == importlib.metadata.version("numpy")
    assert versions._version("nvidia-nvvm", {}) == ""


def test_first_on_the_path_wins(tmp_path, monkeypatch):
    for number, version in enumerate(("1.0", "2.0")):
        (tmp_path / str(number) / f"Some_Package-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "0"), str(tmp_path / "1"), str(tmp_path / "missing")])
    assert versions._installed() == {"some-package": "1.0"}


def test_toolkit_is_told_by_its_version_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "version.json").write_text('{"cuda": "13.0"}')
    first = versions._toolkit()
    assert str(tmp_path) in first
    (tmp_path / "version.json").write_text('{"cuda": "13.1"}')
    assert versions._toolkit() != first


def test_source_digest_is_of_this_package():
    assert len(versions.source_digest()) == 64
    assert versions.source_digest()[:16] in versions.libraries()["devkernels"]
