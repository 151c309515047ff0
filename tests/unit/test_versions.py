"""Versions in cache keys: those that Python's own metadata reports, found without asking it."""

import ast
import importlib.metadata
import pathlib
import sys

import devkernels
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


PACKAGE = pathlib.Path(devkernels.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        path.read_text()
    )
    for path in PACKAGE.rglob("*.py")
}
# What the core imports of other parts where a kernel's key names them: pipelines are parameters (kernel_key), and the
# package's names are gathered in one module, whose attributes the key counts as all parts.
GATES = {"devkernels", "devkernels.compiler.pipelines", "devkernels.compiler.cli"}


def test_every_part_has_modules():
    parts = {versions.part_of(name) for name in MODULES}
    assert parts == {versions.CORE, *versions.PARTS}
    told = {"devkernels.engine.emit": "engine", "devkernels.matrix": "products", "devkernels.matmul_spec": "products",
            "devkernels.device.matmul_object": "products", "devkernels.device.fft": "core", "devkernels": "core",
            "devkernels.libmathdx": "core", "devkernels.linear.torch": "host"}  # fmt: skip
    assert {name: versions.part_of(name) for name in told} == told


def test_parts_that_a_key_does_not_name_take_no_part_in_compiling():
    """The core must not lead into another part unseen, nor one of those parts into another."""
    for name, tree in MODULES.items():
        part = versions.part_of(name)
        if part == versions.HOST or name in GATES:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "devkernels":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    met = versions.part_of(full if full in MODULES else node.module)
                    launches = met == versions.HOST and name in LAUNCHING
                    assert met in (versions.CORE, part) or launches, f"{name}:{node.lineno} imports {node.module}"


LAUNCHING = {"devkernels.engine.tune", "devkernels.matrix.tensor_map", "devkernels.device.matmul_object"}


def test_the_hosts_part_writes_no_machine_code():
    writing = {"intrinsic", "overload", "overload_method", "overload_attribute", "lower_builtin", "type_callable"}
    for name, tree in MODULES.items():
        if versions.part_of(name) == versions.HOST:
            named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            # typing.overload is for type checkers; Numba's is meant.
            named |= {node.attr for node in ast.walk(tree)
                      if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) != "typing"}  # fmt: skip
            assert not (named & writing), name
            assert "llvmlite" not in {getattr(node, "module", None) for node in ast.walk(tree)}, name
