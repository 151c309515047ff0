"""Public names: all there, all documented, the same for people, for `dir` and for type checkers."""

import ast
import importlib
import inspect
import os
import pathlib
import pickle
import subprocess
import sys
import typing

import pytest

import devkernels
from devkernels import errors

SOURCE = pathlib.Path(devkernels.__file__).read_text()
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("name", devkernels.__all__)
def test_public_names_resolve_and_are_documented(name):
    value = getattr(devkernels, name)
    assert name in dir(devkernels)
    if name != "__version__":
        assert inspect.getdoc(value), f"devkernels.{name} has no docstring"
        assert getattr(devkernels, name) is value


def test_type_checkers_see_the_same_names():
    tree = ast.parse(SOURCE)
    guarded = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    ]
    seen = {
        alias.asname or alias.name
        for block in guarded
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(devkernels.__all__) - {"__version__"}


def test_type_checkers_see_what_decorating_a_kernel_gives():
    """Bare or with options, and the same options both times."""
    bare, with_options = map(inspect.signature, typing.get_overloads(devkernels.kernel))
    real = inspect.signature(devkernels.kernel)
    assert bare.return_annotation == "Kernel"
    assert with_options.return_annotation == "Callable[[Callable[..., object]], Kernel]"
    for seen in (bare, with_options):
        assert list(seen.parameters) == list(real.parameters)
        for name in list(real.parameters)[1:]:
            assert seen.parameters[name] == real.parameters[name]


def test_lazy_names_come_from_the_module_that_the_table_says():
    for name, module in devkernels._PUBLIC.items():
        assert getattr(importlib.import_module(module), name) is getattr(devkernels, name)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = devkernels.no_such_thing


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, errors.DevkernelsError)])
def test_errors_carry_their_spec_and_have_one_root(kind):
    error = kind("size 97 is too large; use 98", spec=("c2c", 97))
    assert isinstance(error, errors.DevkernelsError)
    assert error.spec == ("c2c", 97)
    assert kind("nothing in particular").spec is None
    assert inspect.getdoc(kind)
    builtin = [base for base in kind.__mro__ if base.__module__ == "builtins" and base not in (object, BaseException)]
    assert kind is errors.DevkernelsError or len(builtin) > 1, f"{kind.__name__} should also be a built-in exception"
    again = pickle.loads(pickle.dumps(error))  # errors cross process borders in parallel tests and worker pools
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.spec == error.spec


def test_every_kind_of_error_is_a_devkernels_error():
    strays = [kind for kind in KINDS if not issubclass(kind, (errors.DevkernelsError, Warning))]
    assert strays == []


def test_no_public_name_brings_a_compiler():
    """A program whose kernels are in the cache, or in images, imports neither Numba nor llvmlite nor nvmath."""
    code = (
        "import sys, devkernels\n"
        "for name in devkernels.__all__:\n"
        "    getattr(devkernels, name)\n"
        "    assert not {'numba', 'llvmlite', 'nvmath', 'cuda.core'} & set(sys.modules), name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1", "DEVKERNELS_TARGET": "sm_90"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
