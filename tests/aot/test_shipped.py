"""Images of ready kernels, built by ``devkernels build``, hold what the ready functions launch.

There is no GPU here: in place of a launch the kernel is asked for its image, in a process where no compiler can be
imported and the cache is empty. tests/gpu/test_programs.py launches.
"""

import os
import subprocess
import sys

import pytest

from tests.ready_factories import READY

CALLS = """
import sys
import types

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "numba_cuda", "llvmlite", "nvmath", "libmathdx"}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1] + "/..")
import numpy as np
import devkernels
import devkernels.cache
from devkernels.compiler.image import Parameter
from devkernels.errors import JitDisabledError
from devkernels.kernels import arrays, gemm_chain, gemm_chain_kernels, gemm_plan, gemm_warpgroup, lazy_kernel
from ready_of_the_test import added, chain
from devkernels.launch import driver
from devkernels.target import Target

assert devkernels.use_images(sys.argv[1]) == 38
asked = []


def described(value):
    if isinstance(value, tuple):
        return Parameter("", "tuple", items=tuple(map(described, value)))
    if isinstance(value, np.ndarray):
        layout = "C" if value.flags.c_contiguous else "F" if value.flags.f_contiguous else "A"
        return Parameter("", "array", value.dtype.name, value.ndim, layout)
    if isinstance(value, np.generic):
        return Parameter("", "scalar", value.dtype.name)
    return Parameter("", "scalar", {int: "int64", float: "float64"}[type(value)])


def image(kernel, values):
    found = kernel.image(tuple(map(described, values)), Target(9, 0))
    asked.append(kernel.__name__)
    return types.SimpleNamespace(image=found)


lazy_kernel.LazyKernel.launcher = image
lazy_kernel.LazyKernel.__getitem__ = lambda kernel, key: lambda *values: image(kernel, values)
arrays.run_where_kernels_live = lambda named, run, *_: run(**named)
here = types.SimpleNamespace(kind="neither a GPU nor ahead of time", reason="")
gemm_plan.target = gemm_chain.target = types.SimpleNamespace(
    home=lambda: here, simulating=lambda: False, current_target=lambda: Target(9, 0)
)
driver.multiprocessors, driver.current_device = lambda device: 132, lambda: 0
gemm_chain_kernels.check_maps = lambda *_: None
no_map = (0,) * 16  # tensor maps come from the driver
gemm_warpgroup.tensor_map_of = gemm_chain_kernels.tensor_map_of = lambda *_: no_map


def rows(*shape, dtype="float32"):
    x = np.random.default_rng().standard_normal(shape)
    return (x + 1j * x[::-1]).astype(dtype) if dtype.startswith("complex") else x.astype(dtype)


def half(*shape):
    return rows(*shape, dtype="float16")


def wave(*shape):
    return rows(*shape, dtype="complex64")


def kernels(run):
    asked.clear()
    run()
    return list(asked)


order = ["order_kernel", "rows_kernel"]
assert kernels(lambda: devkernels.spectral_filter(wave(5, 64), wave(64))) == order
assert kernels(lambda: devkernels.spectral_filter(wave(5, 64), rows(64))) == order
assert kernels(lambda: devkernels.spectral_filter(wave(5, 64), wave(5, 64))) == ["array_kernel"]  # one H per row
causal = ["filter_kernel", "linear_kernel"]
assert kernels(lambda: devkernels.fftconvolve(rows(4, 256), rows(256), "causal")) == causal
assert kernels(lambda: devkernels.fftconvolve(rows(2, 3, 256), rows(3, 256), "causal")) == causal
assert kernels(lambda: devkernels.fftconvolve(rows(2, 3, 256), rows(256), "causal")) == causal
bias = half(64)
g = devkernels.make_gemm("float16", epilogue=("bias", "silu"))
assert set(kernels(lambda: g(half(256, 128), half(128, 64), extra=(bias,)))) == {"warpgroup_kernel"}
assert set(kernels(lambda: g(half(256, 128), half(64, 128).T, extra=(bias,)))) == {"warpgroup_kernel"}
assert kernels(lambda: devkernels.gemm(rows(2048, 1280), rows(1280, 2048))) == ["staged_kernel"]
assert kernels(lambda: devkernels.gemm(rows(2048, 128), rows(2048, 128).T)) == ["staged_kernel"]
assert kernels(lambda: devkernels.gemm(rows(64, 32), rows(32, 64))) == ["staged_kernel"]  # few tiles: small ones
one = {"warpgroup_kernel"}
g = devkernels.make_gemm("float16", epilogue="residual")
for b in (half(128, 64), half(64, 128).T):  # with and without c, whose dtype is another one
    assert set(kernels(lambda: g(half(256, 128), b, extra=(half(256, 64),)))) == one
    assert set(kernels(lambda: g(half(256, 128), b, rows(256, 64), beta=2.0, extra=(half(256, 64),)))) == one
g = devkernels.make_gemm("float32", epilogue=added)
assert kernels(lambda: g(rows(256, 128), rows(128, 64), extra=(rows(256), 0.5))) == ["staged_kernel"]
for b, c in ((half(64, 256), half(256, 32)), (half(256, 64).T, half(32, 256).T)):
    assert kernels(lambda: chain()(half(512, 64), b, c, extra=(half(256),))) == ["chain_group_kernel"]

missing = {
    "chain_group_kernel": lambda: chain()(half(512, 64), half(64, 128), half(128, 32), extra=(half(128),)),
    "order_kernel": lambda: devkernels.spectral_filter(wave(5, 128), wave(128)),
    "filter_kernel": lambda: devkernels.fftconvolve(rows(4, 512), rows(512), "causal"),
    "staged_kernel": lambda: devkernels.gemm(rows(8, 8, dtype="float64"), rows(8, 8, dtype="float64")),
}
for name, run in missing.items():
    try:
        run()
    except JitDisabledError as error:
        assert name in str(error) and name in str(error.spec), error
    else:
        raise AssertionError(name)
assert devkernels.cache.counts()["builds"] == 0
assert not [name for name in ("numba", "llvmlite", "nvmath") if name in sys.modules]
print("fine")
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    (folder / "ready_of_the_test.py").write_text(READY)
    names = [f"ready_of_the_test:{name}" for name in ("filters", "causal", "product", "plain", "products")]
    result = run(folder, "-m", "devkernels.compiler.cli", "build", *names, "--target", "sm_90", "-o", "images")
    assert result.returncode == 0, result.stderr
    return folder / "images"


def run(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=600,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_TARGET": "sm_90", "DEVKERNELS_QUIET": "1",
                          "DEVKERNELS_CACHE_DIR": str(folder / "cache")} | environment,
    )  # fmt: skip


def test_ready_functions_find_all_of_their_kernels(images, tmp_path):
    result = run(tmp_path, "-c", CALLS, str(images), DEVKERNELS_DISABLE_JIT="1")
    assert result.stdout == "fine\n", result.stderr


def test_the_command_tells_ready_kernels(images):
    told = run(images, "-m", "devkernels.compiler.cli", "info", *map(str, sorted(images.glob("spectral_filter*"))))
    assert told.stdout.count("a ready kernel, which devkernels.use_images finds") == 5, told.stderr
    assert "filter_rows(x: 2-D complex64 array in C order, ordered: 1-D complex64 array" in told.stdout


def test_without_images_and_compilers_the_error_says_what_to_install(images, tmp_path):
    code = CALLS.replace("assert devkernels.use_images(sys.argv[1]) == 38\n", "")
    result = run(tmp_path, "-c", code, str(images))
    assert "MissingDependencyError: kernel order_filter(" in result.stderr
    assert "Install devkernels[cu12], [cu13] or [aot], or bring it as an image" in result.stderr
