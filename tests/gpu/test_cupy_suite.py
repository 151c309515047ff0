"""CuPy's own tests of convolution and correlation by transforms, run against ours through tests/cupy_adapter.py.

CuPy's wheels hold no tests; its source distribution does. To get it, of the version that is installed:
CUPY_INSTALL_USE_STUB=1 pip download --no-deps --no-binary cupy cupy==VERSION
"""

import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

from tests.scipy_adapter import calls

pytest.importorskip("cupy")
pytest.importorskip("scipy")
ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = "tests/cupyx_tests/scipy_tests/signal_tests/test_signaltools.py"


@pytest.fixture
def module(request, tmp_path):
    """CuPy's test module, as a file of its own."""
    source = request.config.getoption("--cupy-source")
    if source is None:
        pytest.skip("CuPy's tests are in its source distribution only: --cupy-source cupy-VERSION.tar.gz")
    source = pathlib.Path(source)
    if source.is_dir():
        text = (source / MODULE).read_bytes()
    else:
        with tarfile.open(source) as archive:
            (name,) = (name for name in archive.getnames() if name.endswith(MODULE))
            text = archive.extractfile(name).read()
    path = tmp_path / "test_signaltools.py"
    path.write_bytes(text)
    return path


def test_cupys_tests_of_convolution_pass(module):
    # TestConvolveCorrelate is of method "direct", which is CuPy's own; the 2D classes are of convolve2d, which we lack.
    chosen = "TestFFTConvolve or TestOAConvolve"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(module), "-q", "-k", chosen, "-p", "tests.cupy_adapter",
         "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:benchmark", "-n", "10", "--dist", "worksteal"],
        cwd=module.parent, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    ours, theirs = calls(module.parent)
    assert ours > 2000  # nothing vacuous: ours were called
    assert ours > 2 * theirs
    print(f"{ours} calls of devkernels, {theirs} of CuPy")
