"""SciPy's own tests of fftconvolve, oaconvolve and correlate, run against ours through tests/scipy_adapter.py."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("scipy")
TESTS = pathlib.Path(__file__).resolve().parents[1]


def test_scipys_tests_of_convolution_pass(tmp_path):
    module = "scipy.signal.tests.test_signaltools"
    chosen = "(FFTConvolve or OAConvolve or AllFreq or TestCorrelate) and not 2d"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", module, "-q", "-k", chosen, "-p", "scipy_adapter",
         "-c", os.devnull, "-p", "no:cacheprovider"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    calls = re.search(r"adapter calls: \{'devkernels': (\d+), 'scipy': (\d+)\}", run.stdout)
    assert calls, run.stdout[-3000:] + run.stderr[-2000:]
    assert run.returncode == 0, run.stdout[-6000:]
    assert int(calls[1]) > 1000  # nothing vacuous: ours were called
    assert int(calls[1]) > 20 * int(calls[2])
