"""Device products compiled without a GPU and without a driver."""

import numpy as np

import devkernels
from tests.matmul_cases import accumulator_kernel, shared_kernel
from tests.sass import Sass


def test_products_compile_for_tensor_cores():
    """Both forms; one product of the fewest sizes that the tensor cores take, since the library compiles for long."""
    mm = devkernels.matmul(size=(16, 16, 16), precision=(np.float16, np.float16, np.float32), block_size=32,
                           arrangement=("row_major", "col_major", "row_major"), alignment=(16, 16, 16))  # fmt: skip
    half, single = "float16[:,::1]", "float32[:,::1]"
    signature = f"void({half}, {half}, {single}, {single}, float32, float32)"
    image = devkernels.compile(shared_kernel(mm), signature, "sm_90")
    assert Sass(image).count("HMMA") > 0
    assert image.shared_bytes == mm.shared_memory_size
    image = devkernels.compile(accumulator_kernel(mm), f"void({half}, {half}, {single}, {single})", "sm_90")
    assert Sass(image).count("HMMA") > 0
    assert image.shared_bytes == mm.shared_memory_size_ab
    assert mm.accumulator_size * 32 == 16 * 16


def test_what_the_library_lacks_is_refused_when_made():
    mm = dict(size=(8, 8, 8), block_size=32, precision=np.float32)
    assert devkernels.matmul(**mm, leading_dimension="suggested").leading_dimension.a >= 8
