"""A process's home is chosen once, by what is there and what is asked, and Numba must agree with it."""

import os
import pathlib
import subprocess
import sys

import pytest

from devkernels.errors import TargetError
from devkernels.target import Target, driver_version

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMULATED = "from numba import cuda; print(cuda.jit.__module__.startswith('numba.cuda.simulator'))"


def python(code, **variables):
    """Run `code` in a new process with no other DEVKERNELS_* and NUMBA_* variables: exit code, stdout, stderr."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DEVKERNELS_", "NUMBA_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **variables}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_import_is_light_and_imports_no_cuda():
    code, out, err = python(
        # cuda-bindings 12 loads the namespace package `cuda` when Python starts, hence the difference
        "import sys; before = set(sys.modules); import devkernels; new = set(sys.modules) - before; "
        "print(sorted({'numpy', 'numba', 'cuda', 'cuda.bindings', 'nvmath', 'cupy', 'torch', 'scipy'} & new)); "
        "print(len(new))"
    )
    assert code == 0, err
    heavy, count = out.splitlines()
    assert heavy == "[]"
    assert int(count) < 150


@pytest.mark.skipif(driver_version() is not None, reason="this machine has a CUDA driver")
def test_without_a_driver_the_simulator_is_chosen_with_one_line():
    code, out, err = python("import devkernels; " + SIMULATED)
    assert (code, out) == (0, "True"), err
    assert len(err.strip().splitlines()) == 1
    assert "DEVKERNELS_TARGET=sm_90" in err
    assert python("import devkernels", DEVKERNELS_QUIET="1")[2] == ""
    assert python("import sys; sys.argv = ['/usr/bin/devkernels', 'info']; import devkernels")[2] == ""  # the command


@pytest.mark.parametrize(("wish", "simulated"), [("sim", "True"), ("sm_90", "False"), ("sm_120", "False")])
def test_the_wish_decides(wish, simulated):
    code, out, err = python("import devkernels; " + SIMULATED, DEVKERNELS_TARGET=wish)
    assert (code, out) == (0, simulated), err


def test_numba_may_be_imported_first_when_it_agrees():
    assert python("import numba.cuda, devkernels", DEVKERNELS_TARGET="sm_90")[0] == 0
    assert python("import numba.cuda, devkernels", NUMBA_ENABLE_CUDASIM="1")[0] == 0
    code, out, err = python("import numba, devkernels; " + SIMULATED, DEVKERNELS_TARGET="sim")
    assert (code, out) == (0, "True"), err


def test_numba_imported_first_for_the_wrong_home_is_an_error_that_names_the_variable():
    code, _, err = python("import numba.cuda, devkernels", DEVKERNELS_TARGET="sim")
    assert code != 0
    assert "NUMBA_ENABLE_CUDASIM=1" in err
    code, _, err = python("import numba.cuda, devkernels", NUMBA_ENABLE_CUDASIM="1", DEVKERNELS_TARGET="sm_90")
    assert code != 0
    assert "Unset NUMBA_ENABLE_CUDASIM" in err


@pytest.mark.parametrize("wish", ["hopper", "sm_13", "90"])
def test_an_unknown_wish_is_an_error(wish):
    code, _, err = python("import devkernels", DEVKERNELS_TARGET=wish)
    assert code != 0
    assert wish in err
    assert "TargetError" in err


@pytest.mark.parametrize("value", ["sm_90", "sm90", 90, (9, 0), Target(9, 0)])
def test_architectures_are_read(value):
    assert Target.parse(value) == Target(9, 0)
    assert str(Target.parse(value)) == "sm_90"


@pytest.mark.parametrize("value", ["", "sm_", "sm_99", 9, None, True, (9,), 9.0])
def test_what_is_no_architecture_is_refused(value):
    with pytest.raises(TargetError):
        Target.parse(value)
