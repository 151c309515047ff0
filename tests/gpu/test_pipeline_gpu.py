"""Pipelined device products on a GPU: warpgroups and the library, tensor copies and threads, exactly."""

import numpy as np
import pytest

import devkernels
from devkernels import tolerance
from tests.matmul_cases import integers
from tests.pipeline_cases import BYTE, HALF, check

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="warpgroup products are sm_90's"
)
SHAPES = [(256, 512, 128), (130, 264, 72), (64, 8, 8), (1, 1, 1), (257, 129, 1000)]


def aligned(shape, dtype, order):
    """Zeros whose rows, or columns in column order, lie on multiples of 16 bytes."""
    rows, columns = shape if order == "C" else shape[::-1]
    each = 16 // np.dtype(dtype).itemsize
    room = cupy.zeros((rows, -(-columns // each) * each), dtype)[:, :columns]
    return room if order == "C" else room.T


@hopper
@pytest.mark.parametrize(
    ("size", "block", "depth"),
    [((64, 64, 64), None, 2), ((128, 256, 64), None, None), ((64, 64, 128), None, 3), ((128, 72, 64), 128, 4),
     ((256, 128, 64), 256, None), ((192, 8, 64), None, 5)],
)  # fmt: skip
@pytest.mark.parametrize("orders", ["CC", "FF", "CF"])
def test_by_warpgroups(size, block, depth, orders, rng):
    mm = devkernels.matmul(size=size, precision=HALF, with_pipeline=True, block_size=block)
    ways = set()
    for m, n, k in SHAPES:
        a, b = (aligned(s, "f2", o) for s, o in zip(((m, k), (k, n)), orders, strict=True))
        a[...], b[...] = (cupy.asarray(integers(rng, s, "f2")) for s in ((m, k), (k, n)))
        pipeline = check(mm, a, b, integers(rng, (m, n), "f4"), depth, cupy.asarray, cupy.asnumpy)
        ways.add(pipeline.spec.copies)
        assert pipeline.spec.engine == "warpgroup"
    assert ("tensor" in ways) is not (orders[1] == "C" and size[1] % 64 != 0)


@hopper
def test_what_tensor_copies_cannot_read(rng):
    mm = devkernels.matmul(size=(128, 64, 64), precision=HALF, with_pipeline=True)
    for m, n, k in SHAPES:
        a, b = (cupy.asarray(integers(rng, s, "f2")) for s in ((m, k + 1), (k + 1, n)))
        pipeline = check(mm, a[:, 1:], b[1:], integers(rng, (m, n), "f4"), 3, cupy.asarray, cupy.asnumpy)
        if k > 1:
            assert "copies by the threads of the block: " in pipeline.describe()
        flipped = check(mm, a[::-1, ::-1], b[::-1], integers(rng, (m, n), "f4"), 3, cupy.asarray, cupy.asnumpy)
        assert flipped.spec.copies == "threads" or (m, k) == (1, 1)


@hopper
def test_integers(rng):
    mm = devkernels.matmul(size=(64, 48, 128), precision=(np.int8, np.int8, np.int32), with_pipeline=True)
    for orders in ("CF", "CC"):
        for m, n, k in SHAPES[:3]:
            a, b = (aligned(s, "i1", o) for s, o in zip(((m, k), (k, n)), orders, strict=True))
            a[...], b[...] = (cupy.asarray(rng.integers(-128, 128, s), "i1") for s in ((m, k), (k, n)))
            pipeline = check(mm, a, b, integers(rng, (m, n), "i4"), None, cupy.asarray, cupy.asnumpy)
            assert pipeline.spec.copies == ("tensor" if orders == "CF" else "threads")


@hopper
@pytest.mark.parametrize("shift", [0, 1])
def test_bfloat16(shift, rng):
    mm = devkernels.matmul(size=(64, 64, 64), precision=("bfloat16", "bfloat16", "float32"), with_pipeline=True)
    a, b, x = (torch.from_numpy(integers(rng, s, "f4")) for s in ((130, 72 + shift), (72, 136), (130, 136)))
    a, b = a.to("cuda", torch.bfloat16)[:, shift:], b.to("cuda", torch.bfloat16)
    pipeline = check(mm, a, b, x.numpy(), None, lambda v: torch.as_tensor(v, device="cuda"),
                     lambda v: v.float().cpu().numpy())  # fmt: skip
    assert pipeline.spec.engine == "warpgroup"
    assert pipeline.spec.copies == ("tensor", "threads")[shift]


@pytest.mark.parametrize(
    ("size", "precision", "data_type"), [((32, 32, 16), np.float32, "real"), ((16, 16, 8), np.float64, "complex")]
)
def test_by_the_library(size, precision, data_type, rng):
    mm = devkernels.matmul(size=size, precision=precision, data_type=data_type, with_pipeline=True, block_size=64)
    dtype = mm.c_value_type
    for m, n, k in ((64, 64, 64), (33, 65, 50), (1, 1, 1)):
        for order in "CF":
            a, b = (cupy.asarray(integers(rng, s, dtype), order=order) for s in ((m, k), (k, n)))
            pipeline = check(mm, a, b, integers(rng, (m, n), dtype), 3, cupy.asarray, cupy.asnumpy)
            assert pipeline.spec.engine == "library"


@hopper
def test_random_data_and_new_contents(rng):
    """A pipeline is made once for its matrices; their contents may change."""
    from devkernels import cuda

    mm = devkernels.matmul(size=(128, 128, 64), precision=HALF, with_pipeline=True)
    share, (m, n, _) = mm.accumulator_size, mm.size

    @devkernels.kernel(launch_bounds=mm.block_size)
    def product(pipeline, y):
        sums = cuda.local.array(share, np.float32)
        mm.clear(sums)
        pipeline.get_tile(cuda.shared.array(0, BYTE), cuda.blockIdx.x, cuda.blockIdx.y).execute(sums)
        mm.store_accumulator(sums, y, cuda.blockIdx.x * m, cuda.blockIdx.y * n)

    a, b = cupy.zeros((1000, 776), "f2"), cupy.zeros((776, 520), "f2")
    pipeline, y = mm.suggest_device_pipeline(None, a, b), cupy.full((1000, 520), cupy.nan, "f4")
    for _ in range(2):
        a[...], b[...] = (cupy.asarray(rng.standard_normal(x.shape), "f2") for x in (a, b))
        y.fill(cupy.nan)
        product[(8, 5), mm.block_dim, 0, pipeline.buffer_size](pipeline, y)
        want = a.get().astype("f8") @ b.get().astype("f8")
        assert tolerance.relative_error(y.get(), want) < tolerance.product_bound("float16", "float32", 776)
