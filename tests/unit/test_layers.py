"""The architecture as a test: which module may import which, and who may touch which library."""

import ast
import builtins
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "devkernels"

# Lowest first. A module may import from its own room and from rooms before it, never from one after it.
ROOMS = (
    (
        "ground",
        (
            "_version",
            "checks",
            "errors",
            "config",
            "target",
            "tolerance",
            "canonical",
            "cache",
            "cache_disk",
            "reference",
            "versions",
            "lazy",
            "graphs",
            "libraries",
            "env_report",
        ),
    ),
    ("spec", ("spec", "matmul_spec", "pipeline_spec")),
    ("traits", ("libmathdx", "fft_sizes", "traits", "matmul_traits")),
    ("device", ("device", "matrix")),  # a product's inner steps serve collectives, and are made of them
    ("compiler", ("compiler",)),
    ("launch", ("launch",)),
    ("engine", ("engine", "matrix.tensor_map")),
    ("kernels", ("kernels",)),
    ("linear", ("linear",)),
)
# An object's method that makes another kind of object, which launches: the one arrow against the list.
UPWARD = {("device.matmul_object", "kernels.device_pipeline")}
LINEAR_MAY_USE = {"ground", "linear"}  # the host-side line stands beside the device-side one, not on it

# Library -> the only places that may import it (or, for libmathdx, load it).
OWNERS = {
    "nvmath": ("linear",),
    "cuda.core": ("compiler", "launch", "linear"),
    "cuda.bindings": ("compiler", "launch", "linear"),
    "libmathdx": ("libmathdx",),
}


def modules():
    """Every module of the package: dotted name inside it -> parsed source."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(), filename=str(path))
    return found


MODULES = modules()


def within(name, place):
    return name == place or name.startswith(place + ".")


def room_of(name):
    """The room of a module: the longest listed place that holds it."""
    matches = [
        (len(place), number, room)
        for number, (room, places) in enumerate(ROOMS)
        for place in places
        if within(name, place)
    ]
    if not matches:
        return None, None
    _, number, room = max(matches)
    return number, room


def imports(name, tree):
    """Absolute dotted names of all that a module imports, anywhere in it (lazy imports are arrows too)."""
    is_package = (PACKAGE / name.replace(".", "/") / "__init__.py").exists()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["devkernels", *(name.split(".") if name else [])]
                parts = parts[: len(parts) - node.level + (1 if is_package or not name else 0)]
                base = ".".join([*parts, base]) if base else ".".join(parts)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def own_imports(name, tree):
    """Modules of this package that `name` imports."""
    for full in imports(name, tree):
        if full.startswith("devkernels.") and (short := full.removeprefix("devkernels.")) in MODULES:
            yield short


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_every_module_has_a_room(name):
    assert room_of(name)[1] is not None, f"devkernels/{name} stands in no room of ROOMS"


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_up_the_list(name):
    number, room = room_of(name)
    for other in own_imports(name, MODULES[name]):
        other_number, other_room = room_of(other)
        assert None not in (room, other_room), f"devkernels.{name} or devkernels.{other} stands in no room of ROOMS"
        allowed = other_room in LINEAR_MAY_USE if room == "linear" else other_number <= number
        allowed = allowed or (name, other) in UPWARD
        assert allowed, f"devkernels.{name} ({room}) imports devkernels.{other} ({other_room})"
        assert room == "linear" or other_room != "linear", f"devkernels.{name} imports the linear room"


@pytest.mark.parametrize("name", list(MODULES))
def test_libraries_have_owners(name):
    for full in imports(name, MODULES[name]):
        for library, owners in OWNERS.items():
            if within(full, library):
                assert any(within(name, owner) for owner in owners), f"devkernels.{name} imports {full}"


@pytest.mark.parametrize("name", list(MODULES))
def test_only_one_module_loads_libmathdx(name):
    """Loading goes by the file's name or by the loader's short name; naming the wheel in a message is no loading."""
    if within(name, OWNERS["libmathdx"][0]):
        return
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            loads = node.value == "mathdx" or "libmathdx.so" in node.value
            assert not loads, f"devkernels.{name}:{node.lineno} names the library file of libmathdx"


@pytest.mark.parametrize("name", list(MODULES))
def test_only_config_reads_our_variables(name):
    if name == "config":
        return
    for node in ast.walk(MODULES[name]):
        reads_environment = (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"os.environ.get", "os.getenv", "environ.get", "getenv"}
        ) or (isinstance(node, ast.Subscript) and ast.unparse(node.value) in {"os.environ", "environ"})
        if reads_environment:
            assert "DEVKERNELS_" not in ast.unparse(node), f"devkernels.{name} reads {ast.unparse(node)}"


@pytest.mark.parametrize("name", list(MODULES))
def test_errors_are_ours(name):
    """What is raised is a DevkernelsError, so that one `except` catches all; protocols of Python are exempt."""
    protocol = {"AttributeError", "StopIteration", "SystemExit", "KeyboardInterrupt", "NotImplementedError"}
    builtin = {
        key for key, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            assert ast.unparse(raised) not in builtin - protocol, f"devkernels.{name}:{node.lineno} raises a built-in"


def test_no_eval_and_no_bare_except():
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"devkernels.{name}:{node.lineno} has a bare except"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, f"devkernels.{name}:{node.lineno} calls {node.func.id}"


def test_modules_say_what_comes_in_and_out():
    for name, tree in MODULES.items():
        text = ast.get_docstring(tree)
        assert text, f"devkernels.{name} has no docstring"


def test_the_walk_sees_what_it_should():
    """The checks above are worth something only if arrows are found: these are known to exist."""
    assert "errors" in set(own_imports("config", MODULES["config"]))
    tree = ast.parse("from . import errors\nfrom .target import Target\nimport nvmath.fft as f\n")
    found = set(imports("config", tree))
    assert {"devkernels.errors", "devkernels.target", "nvmath.fft"} <= found
    assert room_of("device.anything") == (3, "device")
    assert room_of("spec") == (1, "spec")
    assert room_of("specification") == (None, None)
