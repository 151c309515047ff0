"""A process whose convolution kernels are in the cache imports neither Numba nor llvmlite."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import devkernels
from devkernels import cache
from devkernels.compiler.image import Parameter
from devkernels.compiler.signature import parse
from devkernels.kernels.convolve_plan import plan_rows
from devkernels.kernels.convolver import FFTConvolve
from devkernels.kernels.fftconvolve2d import make_fftconvolve2d
from devkernels.target import Target

def gate(value, row, position):
    return value * position

sm_90 = Target(9, 0)
plans = [
    devkernels.make_fftconvolve(32, 32, "float32", "causal", prologue=gate),
    devkernels.make_fftconvolve(16, 16, "complex64", "circular"),
    devkernels.make_fftconvolve(1000, 7, "float16", "same"),
    FFTConvolve(plan_rows("full", 2048, 2048, "float64", "four-step"), "float64", "full"),
    make_fftconvolve2d((12, 12), (3, 3), "float32", "same"),
]
images = []
for plan in plans:
    for kernel, signature, _ in plan.image_sources().values():
        images.append(kernel.image(parse(signature), sm_90))
print(json.dumps({
    "kernels": len(images), "builds": cache.counts("kernel").get("builds", 0),
    "registers": [image.registers for image in images],
    "imported": sorted(name for name in ("numba", "numba_cuda", "llvmlite") if name in sys.modules),
}))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the program says in a process with an empty cache, and in the next one."""
    folder = tmp_path_factory.mktemp("cache")
    program = folder / "program.py"  # a file: keys of kernels include the text of the caller's functions
    program.write_text(PROGRAM)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "DEVKERNELS_CACHE_DIR": str(folder / "kernels"),
    }
    return [
        json.loads(subprocess.run(
            [sys.executable, program], env=environment, capture_output=True, text=True, check=True, timeout=600
        ).stdout)
        for _ in range(2)
    ]  # fmt: skip


def test_first_process_compiles(runs):
    assert 12 < runs[0]["builds"] <= runs[0]["kernels"]  # equal kernels are built once
    assert runs[0]["imported"]


def test_second_process_imports_no_compiler(runs):
    assert runs[1]["imported"] == []
    assert runs[1]["builds"] == 0
    assert runs[1]["registers"] == runs[0]["registers"]
