"""What devkernels.matmul accepts, refuses in words, and says of itself. No GPU, no libmathdx needed."""

import pickle

import numpy as np
import pytest

import devkernels
from devkernels.errors import ResourceError, SpecError, TargetError

GOOD = dict(size=(32, 16, 8), precision=np.float32, block_size=64)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(size=(32, 16)), "three whole numbers"),
        (dict(size=(32, 0, 8)), "size=0"),
        (dict(size=(32, 1.5, 8)), "size=1.5"),
        (dict(precision="float8"), "precision='float8'"),
        (dict(precision=(np.float16, np.float16)), "three"),
        (dict(precision=(np.float32, np.float32, np.float16)), "at least as precise"),
        (dict(precision=np.int8), "int32 for int8"),
        (dict(precision=(np.int8, np.float32, np.float32)), "mixes"),
        (dict(precision=np.float16, data_type="complex"), "complex"),
        (dict(data_type="quaternion"), "data_type='quaternion'"),
        (dict(arrangement=("row_major", "row_major")), "three"),
        (dict(arrangement="diagonal"), "arrangement='diagonal'"),
        (dict(arrangement="row_major", transpose_mode="transposed"), "not both"),
        (dict(transpose_mode="turned"), "transpose_mode='turned'"),
        (dict(leading_dimension=(7, 16, 16)), "of a must be at least 8"),
        (dict(alignment=(4, 4, 3)), "of c must be a power of two"),
        (dict(alignment=(32, 4, 4)), "at most 16"),
        (dict(block_dim=(64, 1, 1)), "not both"),
        (dict(block_size=0), "block_size=0"),
        (dict(block_size=16), "at least 32"),
        (dict(function="MV"), "'MM' is"),
        (dict(execution="Thread"), "'Block' is"),
        (dict(with_pipeline=True, layout="suggested"), "leave layout out"),
        (dict(precision=("bfloat16", "bfloat16", "float32")), "by pipelines"),
        (dict(precision="bfloat16", with_pipeline=True), "by pipelines"),
        (dict(compiler="nvcc"), "'numba' is"),
    ],
)
def test_refused_in_words(wrong, words):
    with pytest.raises(SpecError, match=words):
        devkernels.matmul(**(GOOD | wrong))


def test_too_large_for_a_block():
    with pytest.raises(ResourceError, match=r"233472|bytes of shared memory"):
        devkernels.matmul(size=(256, 256, 256), precision=np.float64, block_size=256, sm="sm_90")
    with pytest.raises(ResourceError, match="2048 threads"):
        devkernels.matmul(**(GOOD | dict(block_size=2048)))
    with pytest.raises(TargetError):
        devkernels.matmul(**GOOD, sm="sm_10")


def test_traits():
    mm = devkernels.matmul(
        size=(32, 16, 8), precision=(np.float16, np.float16, np.float32), block_dim=(32, 2),
        arrangement=("row_major", "col_major", "row_major"), leading_dimension=(10, 8, 20),
    )  # fmt: skip
    assert (mm.a_dim, mm.b_dim, mm.c_dim) == ((32, 8), (8, 16), (32, 16))
    assert (mm.a_size, mm.b_size, mm.c_size) == (320, 128, 640)
    assert tuple(mm.leading_dimension) == (10, 8, 20)
    assert mm.block_dim == (32, 2, 1)
    assert mm.block_size == mm.max_threads_per_block == 64
    assert mm.get_shared_storage_size() == 320 * 2 + 128 * 2 + 640 * 4
    assert mm.get_shared_storage_size_ab() == 320 * 2 + 128 * 2
    assert mm.get_shared_storage_size(8, 8, 16) == 256 * 2 + 128 * 2 + 512 * 4
    assert (mm.a_value_type, mm.c_value_type) == (np.float16, np.float32)
    assert (mm.function, mm.execution, mm.data_type) == ("MM", "Block", "real")


def test_transposed_traits():
    mm = devkernels.matmul(size=(32, 16, 8), precision=np.float64, data_type="complex", block_size=32,
                           transpose_mode=("conj_transposed", "non_transposed"))  # fmt: skip
    assert (mm.a_dim, mm.b_dim, mm.c_dim) == ((8, 32), (8, 16), (32, 16))
    assert tuple(mm.leading_dimension) == (8, 8, 32)
    assert mm.a_value_type == np.complex128
    assert mm.arrangement is None


def test_equal_hashable_picklable():
    one, same = devkernels.matmul(**GOOD), devkernels.matmul(**GOOD)
    assert one == same
    assert hash(one) == hash(same)
    assert one != devkernels.matmul(**GOOD, alignment=(16,) * 3)
    assert pickle.loads(pickle.dumps(one)) == one
    assert "32 x 16 x 8" in repr(one)
