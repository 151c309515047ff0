"""A device product compiled without a GPU and without a driver."""

import numpy as np

import devkernels
from tests.matmul_cases import accumulator_kernel
from tests.sass import Sass


def test_product_compiles_for_tensor_cores():
    """The form with most functions, of the smallest size that tensor cores take: the library compiles for long."""
    mm = devkernels.matmul(size=(16, 16, 16), precision=(np.float16, np.float16, np.float32), block_size=32,
                           arrangement=("row_major", "col_major", "row_major"), alignment=(16, 16, 16),
                           leading_dimension="suggested")  # fmt: skip
    assert mm.leading_dimension.a >= 16
    half, single = "float16[:,::1]", "float32[:,::1]"
    image = devkernels.compile(accumulator_kernel(mm), f"void({half}, {half}, {single}, {single})", "sm_90")
    assert Sass(image).count("HMMA") > 0
    assert image.shared_bytes == mm.shared_memory_size_ab
    assert mm.accumulator_size * 32 == 16 * 16
