"""SciPy's own tests of fftconvolve, oaconvolve and correlate, run against ours through tests/scipy_adapter.py."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.scipy_adapter import calls

pytest.importorskip("scipy")
TESTS = pathlib.Path(__file__).resolve().parents[1]


def test_scipys_tests_of_convolution_pass(tmp_path):
    module = "scipy.signal.tests.test_signaltools"
    chosen = "(FFTConvolve or OAConvolve or AllFreq or TestCorrelate) and not 2d"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", module, "-q", "-k", chosen, "-p", "scipy_adapter",
         "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:benchmark", "-n", "8", "--dist", "worksteal"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    ours, theirs = calls(tmp_path)
    assert ours > 10000  # nothing vacuous: ours were called
    assert ours > 20 * theirs
