"""Pipelined device products in the simulator; what is refused, and what is said of the way that is taken."""

import numpy as np
import pytest

import devkernels
from devkernels import cuda, pipeline_spec
from devkernels.errors import ArgumentError, ArgumentTypeError, ResourceError, SpecError
from devkernels.pipeline_spec import PipelineSpec
from tests.matmul_cases import integers
from tests.pipeline_cases import BYTE, HALF, check


def test_products_with_tails(rng):
    mm = devkernels.matmul(size=(4, 6, 8), precision=np.float32, block_size=32, with_pipeline=True)
    assert mm.with_pipeline
    for m, n, k in ((8, 12, 16), (5, 7, 11), (1, 1, 1)):
        a, b, x = (integers(rng, s, "f4") for s in ((m, k), (k, n), (m, n)))
        pipeline = check(mm, a, b, x, 3, np.asarray, np.asarray)
        assert "cuBLASDx's products (warpgroup products are float16" in pipeline.describe()
        assert pipeline.pipeline_depth == 3
        assert pipeline.buffer_size == 3 * 4 * (4 * 8 + 6 * 8)


@pytest.mark.parametrize("order", "CF")
def test_warpgroup_sizes_and_orders(order, rng):
    mm = devkernels.matmul(size=(64, 8, 64), precision=HALF, with_pipeline=True)
    assert mm.block_dim == (128, 1, 1)
    assert mm.accumulator_size == 4
    a, b, x = (
        np.array(integers(rng, s, d), order=order) for s, d in (((65, 72), "f2"), ((72, 8), "f2"), ((65, 8), "f4"))
    )
    pipeline = check(mm, a, b, x, None, np.asarray, np.asarray)
    assert pipeline.describe().startswith("warpgroup products, ")
    assert pipeline.pipeline_depth == 8


def test_complex_and_conjugated(rng):
    mm = devkernels.matmul(size=(4, 4, 4), precision=np.float32, data_type="complex", block_size=32, with_pipeline=True,
                           transpose_mode=("conj_transposed", "non_transposed"))  # fmt: skip
    a, b = integers(rng, (6, 5), "c8"), integers(rng, (5, 6), "c8")
    share, y = mm.accumulator_size, np.zeros((6, 6), "c8")

    @devkernels.kernel
    def product(pipeline, y):
        smem = cuda.shared.array(0, BYTE)
        sums = cuda.local.array(share, np.complex64)
        mm.clear(sums)
        pipeline.get_tile(smem, cuda.blockIdx.x, cuda.blockIdx.y).execute(sums)
        mm.store_accumulator(sums, y, cuda.blockIdx.x * 4, cuda.blockIdx.y * 4)

    pipeline = mm.suggest_device_pipeline(2, a, b)
    product[(2, 2), 32, 0, pipeline.buffer_size](pipeline, y)
    np.testing.assert_array_equal(y, a.conj() @ b)


@pytest.mark.parametrize(
    ("keywords", "why"),
    [(dict(size=(64, 8, 32), precision=HALF), "multiple of 64 in the inner dimension, not 32"),
     (dict(size=(60, 8, 64), precision=HALF), "rows, not 60"), (dict(size=(64, 9, 64), precision=HALF), "not 9"),
     (dict(size=(64, 264, 64), precision=HALF), "not 264"),
     (dict(size=(64, 8, 64), precision=np.float32), "are float16"),
     (dict(size=(64, 40, 128), precision=(np.int8, np.int8, np.int32)), "8, 24, or a multiple of 16 columns, not 40"),
     (dict(size=(64, 8, 64), precision=HALF, block_size=256), "do not fit"),
     (dict(size=(64, 8, 64), precision=HALF, sm="sm_80"), "exist on sm_90 only")],
)  # fmt: skip
def test_why_not_by_warpgroups(keywords, why):
    assert why in pipeline_spec.warpgroup_misfit(devkernels.matmul(with_pipeline=True, **keywords).spec)


def test_a_spec_goes_through_text():
    mm = devkernels.matmul(size=(64, 8, 64), precision=HALF, with_pipeline=True)
    spec = mm.suggest_device_pipeline(3, np.zeros((5, 6), "f2"), np.zeros((6, 7), "f2")).spec
    assert PipelineSpec.of(spec.told()) == spec
    assert PipelineSpec.of("int64") is None


def test_refused(rng):
    plain = devkernels.matmul(size=(4, 6, 8), precision=np.float32, block_size=32)
    mm = devkernels.matmul(size=(4, 6, 8), precision=np.float32, block_size=32, with_pipeline=True)
    a, b = integers(rng, (4, 8), "f4"), integers(rng, (8, 6), "f4")
    with pytest.raises(SpecError, match="without with_pipeline"):
        plain.suggest_device_pipeline(2, a, b)
    with pytest.raises(SpecError, match="leave layout out"):
        devkernels.matmul(size=(4, 6, 8), precision=np.float32, with_pipeline=True, layout="suggested")
    for given, error, message in (
        ((1, a, b), SpecError, "at least 2"), ((None, a, b.T), ArgumentError, "8 columns and b has 6 rows"),
        ((2, a.astype("f8"), b), ArgumentTypeError, "a has dtype float64"),
        ((2, a, b[None]), ArgumentError, r"b has shape \(1, 8, 6\)"),
        ((2000, a, b), ResourceError, "at most 8 stages fit"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            mm.suggest_device_pipeline(*given)

    @devkernels.kernel
    def product(pipeline):
        pipeline.get_tile(cuda.shared.array(0, BYTE), 0, 0)

    @devkernels.kernel
    def direct(x):
        mm(x[0], x[0], x[0])

    pipeline = mm.suggest_device_pipeline(2, a, b)
    with pytest.raises(ArgumentError, match="this pipeline takes 640"):
        product[1, 32, 0, 639](pipeline)
    with pytest.raises(ArgumentError, match="suggest_device_pipeline"):
        direct[1, 32](a)
