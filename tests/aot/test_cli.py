"""The command line: images of many kernels and targets, the cache, information."""

import os
import subprocess
import sys
import textwrap

import pytest

from devkernels.compiler import image
from devkernels.target import Target

FACTORIES = """
    import devkernels
    from numba import cuda

    @devkernels.kernel(signature="void(float32[::1], float32, int32)", launch_bounds=128)
    def scale(x, a, n):
        i = cuda.grid(1)
        if i < n:
            x[i] *= a

    def fill(x):
        x[cuda.grid(1)] = 7

    def one():
        return fill, "void(int32[:])"

    def by_name():
        return {"a": (fill, "void(int32[:])", {"block": [32, 1, 1]}), "b.c": (fill, "void(int64[:])"), "s": scale}

    class Ready:
        def image_sources(self):
            return [(fill, "void(int16[:])")]

    def clash():
        return [(fill, "void(int16[:])"), (fill, "void(int32[:])")]

    def wrong():
        return 7

    def nothing_at_all():
        return []

    def bad_name():
        return {"../escape": (fill, "void(int32[:])")}

    def needs_argument(x):
        return x

    def bad_kernel():
        return {"bad": (scale, "void(float32)")}
    """


@pytest.fixture
def work(tmp_path):
    (tmp_path / "factories_of_the_test.py").write_text(textwrap.dedent(FACTORIES))
    return tmp_path


def run(work, *arguments, home="sim"):
    return subprocess.run(
        [sys.executable, "-m", "devkernels.compiler.cli", *arguments], cwd=work,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_TARGET": home,
                          "DEVKERNELS_CACHE_DIR": str(work / "cache")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_build_for_two_targets_and_look(work):
    names = [f"factories_of_the_test:{name}" for name in ("by_name", "one", "scale")]
    result = run(work, "build", *names, "--target", "sm_80", "--target", "sm_90", "-o", "images")
    assert result.returncode == 0, result.stderr
    files = ["a", "b.c", "fill", "s", "scale"]
    assert result.stdout.split() == [f"images/{name}.dkimage" for name in files]
    assert "10/10" in result.stderr  # the progress bar: 5 kernels, 2 targets
    for name in files:
        found = image.read(work / "images" / f"{name}.dkimage")
        assert [one.target for one in found] == [Target(8, 0), Target(9, 0)]
    assert image.read(work / "images" / "a.dkimage")[1].notes == {"block": [32, 1, 1]}
    assert image.read(work / "images" / "s.dkimage")[0].max_threads == 128
    told = run(work, "info", "images/a.dkimage").stdout
    assert "fill(x: 1-D int32 array) for sm_80" in told
    assert '{"block": [32, 1, 1]}' in told
    assert "numba-cuda" in told
    assert "kernel" in run(work, "cache", "info").stdout
    assert run(work, "cache", "prune", "--limit-mb", "0").stdout.startswith("8 entries")  # equal kernels are one
    assert run(work, "cache", "clear").stdout.startswith("0 entries")


def test_ready_kernels_and_the_default_target(work):
    result = run(work, "build", "factories_of_the_test:Ready", "--quiet", home="sm_86")
    assert result.returncode == 0, result.stderr
    assert [str(one.target) for one in image.read(work / "images" / "fill.dkimage")] == ["sm_86"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["factories_of_the_test:nothing"], "cannot be found"),
        (["no_such_module_here:f"], "cannot be found"),
        (["factories_of_the_test"], "package.module:factory"),
        (["factories_of_the_test:clash"], "Several kernels are named fill"),
        (["factories_of_the_test:wrong"], "returned a int"),
        (["factories_of_the_test:one", "factories_of_the_test:nothing_at_all"], "nothing_at_all returned nothing"),
        (["factories_of_the_test:bad_name"], "cannot name a file"),
        (["factories_of_the_test:needs_argument"], "without arguments"),
        (["factories_of_the_test:bad_kernel"], "3 parameters"),
        (["factories_of_the_test:one", "--target", "sm_1"], "not an architecture"),
    ],
)
def test_errors_are_one_line_without_a_traceback(work, arguments, message):
    result = run(work, "build", "--quiet", *arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (work / "images").exists()


def test_damaged_image(work):
    (work / "bad.dkimage").write_bytes(b"nonsense")
    result = run(work, "info", "bad.dkimage")
    assert result.returncode == 1
    assert "is not a kernel image" in result.stderr
