"""Pipelined device products compiled without a GPU: which instructions they are made of."""

import numpy as np
import pytest

import devkernels
from tests.pipeline_cases import HALF, pipelined_kernel
from tests.sass import Sass

_FLOATS = "float32[:,::1]"


@pytest.mark.parametrize("shift", [0, 1])
def test_warpgroup_products(shift):
    """Tensor copies where the matrices allow them, else the threads copy."""
    from numba import float32

    mm = devkernels.matmul(size=(128, 256, 64), precision=HALF, with_pipeline=True)
    a, b = np.zeros((512, 512 + shift), "f2")[:, shift:], np.zeros((512, 512), "f2")
    pipeline = mm.suggest_device_pipeline(3, a, b)
    floats = float32[:, ::1]
    image = devkernels.compile(pipelined_kernel(mm), (pipeline, floats, floats, floats), "sm_90")
    sass = Sass(image)
    assert str(image.target) == "sm_90a"
    assert sass.count("HGMMA") > 0
    assert (sass.count("UTMALDG") > 0) is (shift == 0)
    assert (sass.count("LDGSTS") > 0) is (shift == 1)
    again = devkernels.compile(pipelined_kernel(mm), (pipeline, floats, floats, floats), "sm_90")
    assert again.cubin == image.cubin
