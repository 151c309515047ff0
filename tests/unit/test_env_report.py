"""The report works with anything missing, and says what is missing."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from devkernels import env_report
from devkernels.target import driver_version

NOTHING = dict.fromkeys(env_report.PACKAGES)
BASE = {**NOTHING, "numpy": "2.4.6", "numba": "0.68.1", "numba-cuda": "0.30.4"}
COMPILERS = dict.fromkeys(env_report.TOOLCHAIN, "/somewhere")
NO_COMPILERS = dict.fromkeys(env_report.TOOLCHAIN)


@pytest.fixture
def driver(monkeypatch):
    """Pretend a driver of some version, and the GPUs that it sees."""

    def pretend(version, gpus=()):
        monkeypatch.setattr(env_report, "driver_version", lambda: version)
        monkeypatch.setattr(env_report, "gpus", lambda: list(gpus))

    return pretend


def states(versions, libraries):
    return {state.name: state for state in env_report.homes(versions, libraries)}


def test_nothing_installed(driver):
    driver(None)
    found = states(NOTHING, NO_COMPILERS)
    assert found["simulator"].lacks == ("numpy", "numba", "numba-cuda")
    assert "libmathdx" in found["ahead of time"].lacks
    assert "[aot]" in found["ahead of time"].remedy
    assert "a CUDA driver" in found["GPU"].lacks


def test_base_install_has_the_simulator_only(driver):
    driver(None)
    found = states(BASE, NO_COMPILERS)
    assert found["simulator"].ready
    assert not found["ahead of time"].ready
    assert not found["GPU"].ready


def test_aot_install_compiles_but_does_not_run(driver):
    driver(None)
    found = states({**BASE, "nvidia-libmathdx-cu12": "0.3.1.9"}, COMPILERS)
    assert found["ahead of time"].ready
    assert found["GPU"].lacks == ("a CUDA driver",)


@pytest.mark.parametrize(("version", "extra"), [((13, 0), "cu13"), ((12, 4), "cu12"), ((11, 8), ""), (None, "")])
def test_the_extra_fits_the_driver(driver, version, extra, capsys):
    driver(version)
    assert env_report.main(["--extra"]) == 0
    assert capsys.readouterr().out == extra + "\n"


def test_a_driver_without_a_visible_gpu_is_told(driver):
    driver((13, 0))
    versions = {**BASE, "nvidia-libmathdx-cu13": "0.3.2.6"}
    assert "CUDA_VISIBLE_DEVICES" in states(versions, COMPILERS)["GPU"].remedy
    driver((13, 0), [{"name": "H200", "architecture": "sm_90", "bytes": 1 << 37}])
    assert states(versions, COMPILERS)["GPU"].ready
    driver((11, 8))
    assert "newer" in states(versions, COMPILERS)["GPU"].remedy


def test_conflicts_are_named(driver):
    driver((12, 4))
    versions = {
        **BASE, "numpy": "2.5.1", "cuda-bindings": "13.0.3", "cupy-cuda13x": "14.2",
        "nvidia-libmathdx-cu12": "0.3.1", "nvidia-libmathdx-cu13": "0.3.2",
    }  # fmt: skip
    told = "\n".join(env_report.conflicts(versions))
    assert "numpy<2.5" in told
    assert "both installed" in told
    assert "driver is for 12.4" in told
    assert "cuda-bindings 13.0.3" in told
    assert env_report.conflicts({**BASE, "cuda-bindings": "12.9.10", "nvidia-libmathdx-cu12": "0.3.1"}) == []


def test_report_of_this_process(capsys):
    code = env_report.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == (1 if report["conflicts"] else 0)
    assert report["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert report["home"] in {"sim", "aot", "gpu"}
    assert (report["driver_cuda"] is None) == (driver_version() is None)
    text = env_report.render(report)
    assert report["home_reason"] in text
    for state in report["homes"]:
        assert state["name"] in text


def test_it_runs_on_bare_python_without_any_package():
    """-S leaves out site-packages: nothing but the standard library and the checkout."""
    code = "import sys, runpy; sys.path.insert(0, '.'); sys.argv = ['env_report']; " + (
        "runpy.run_module('devkernels.env_report', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False,
                          cwd=env_report.__file__.rpartition("/devkernels/")[0])  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "simulator      lacks numpy, numba, numba-cuda" in done.stdout
