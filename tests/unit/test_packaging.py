"""What the package reads at run time is in the wheel, and the version is stated once."""

import fnmatch
import pathlib
import tomllib

import devkernels

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_data_files_are_packaged():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["devkernels"]
    package = ROOT / "devkernels"
    data = [path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]
    assert data
    for path in data:
        name = path.relative_to(package).as_posix()
        assert any(fnmatch.fnmatch(name, pattern.replace("**/", "*")) for pattern in patterns), f"{name} is left out"


def test_every_folder_with_code_is_a_package():
    for path in (ROOT / "devkernels").rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py and would be left out"


def test_version_is_stated_once():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "devkernels._version.__version__"
    assert devkernels.__version__ == devkernels._version.__version__


def test_pins_say_why():
    """NumPy's cap has its reason beside it: whoever lifts it must know what it was for."""
    text = (ROOT / "pyproject.toml").read_text()
    line = text[: text.index('"numpy>=')].splitlines()[-2]
    assert "row_stack" in line
