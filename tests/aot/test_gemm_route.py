"""Which main loop a product takes, and what is said of it; decided without compiling anything."""

import numpy as np
import pytest

import devkernels
from devkernels.kernels import arrays
from devkernels.kernels.gemm_route import as_matrix, by_kind, by_shape
from devkernels.target import Target


def aligned(shape, dtype="f2", order="C"):
    """An array on a multiple of 16 bytes, as device memory is."""
    count = int(np.prod(shape))
    raw = np.zeros(count * np.dtype(dtype).itemsize + 16, np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape, order=order)


def route(a, b, d, target="sm_90", c_dtype=None, **options):
    plan = devkernels.make_gemm(options.pop("dtype", "float16"), **options)
    matrices = (as_matrix(arrays.describe(x, n)) for x, n in ((a, "a"), (b, "b"), (d, "d")))
    return str(by_shape(plan.spec, Target.parse(target), *matrices, c_dtype))


A, B, D = aligned((128, 64)), aligned((64, 136)), aligned((128, 136))
LONG = aligned((200, 200))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((A, B, D), "warpgroup: float16 on sm_90"),
        ((aligned((128, 64), order="F"), aligned((64, 136), order="F"), D), "warpgroup"),
        (
            (A, aligned((64, 131)), aligned((128, 131))),
            "tensor: wide copies need multiples of 16 bytes; b begins at 0",
        ),
        ((LONG[:128, 1:65], B, D), "a begins at 2 mod 16 and its rows are 400 bytes apart"),
        ((LONG[:128, ::3][:, :64], B, D), "neither axis of a is contiguous"),
        ((A[::-1], B, D), "tensor: the rows of a follow one another backwards, or not at all (-128 bytes)"),
        ((np.broadcast_to(A[0], A.shape), B, D), "follow one another backwards, or not at all (0 bytes)"),
        ((aligned((128, 1)), aligned((1, 136)), D), "warpgroup"),
        ((aligned((1, 64)), B, aligned((1, 136))), "warpgroup"),
    ],
)
def test_by_shape(arguments, words):
    assert words in route(*arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(dtype="int8"), "warpgroup: int8 on sm_90: tensor copies"),
        (dict(dtype="int8", accumulate="float32", epilogue="bias"), "warpgroup: int8 on sm_90: tensor copies"),
        (
            dict(dtype="int8", epilogue="bias"),
            "portable: tensor cores add int8 up in int32, which is the result as it is",
        ),
        (dict(dtype="uint8", accumulate="float32"), "staged: a is copied as float32, b is copied as float32 first ("),
        (dict(dtype="uint8"), "portable: tensor cores are used for float16 and bfloat16, not for uint8 by uint8"),
        (dict(dtype="float32", tf32=True), "warpgroup: float32 as tf32 on sm_90"),
        (
            dict(dtype="float32", tf32=True, prologue_a=lambda x, row, column: x),
            "warpgroup: a is copied through its prologue, as float32 first (",
        ),
        (dict(dtype="float32"), "staged: float32 on sm_90: slices are copied ahead into shared memory; fused multiply"),
        (dict(dtype="complex64", tf32=3), "copied ahead into shared memory; three products of tf32 for each"),
        (dict(dtype="complex128"), "staged: complex128 on sm_90: slices are copied ahead into shared memory; tensor"),
        (
            dict(dtype="float32", accumulate="float64", out_dtype="float64"),
            "staged: a is copied as float64, b is copied as float64 first (products of float32 are added up in float32",
        ),
        (dict(dtype="float64", out_dtype="float32"), "sums in float64 are stored as float64 elsewhere, not as float32"),
        (
            dict(dtype="float32", prologue_b=lambda x, row, column: x),
            "staged: b is copied through its prologue, as float32",
        ),
        (dict(dtype=("float16", "float32")), "staged: a is copied as float32 first (tensor cores are used"),
        (dict(dtype=("float16", "bfloat16"), tf32=0), "staged: a is copied as float32, b is copied as float32 first"),
        (dict(accumulate="float64", out_dtype="float64"), "add up in float32, not float64); float64 on sm_90"),
        (dict(accumulate="float64"), "portable: tensor cores add up in float32, not float64"),
        (dict(out_dtype="float64"), "not float64"),
        (dict(prologue_a=lambda x, row, column: x), "warpgroup: a is copied through its prologue, as float16 first ("),
        (dict(epilogue="silu"), "warpgroup"),
    ],
)
def test_by_kind(options, words):
    options = {"dtype": "float16", **options}
    assert words in str(by_kind(devkernels.make_gemm(**options).spec, Target.parse("sm_90")))


@pytest.mark.parametrize(
    ("target", "words"),
    [("sm_75", "portable"), ("sm_80", "tensor: warpgroup products exist on sm_90 only, and this is sm_80"),
     ("sm_100", "tensor: warpgroup products exist on sm_90 only, and this is sm_100"), ("sm_90a", "warpgroup")],
)  # fmt: skip
def test_by_architecture(target, words):
    assert words in route(A, B, D, target)


def test_small_products():
    a, b, d = (aligned((20, 16, 16)) for _ in range(3))
    assert route(a, b, d).startswith("small: 20 products of 16 x 16 x 16: a warp each")
    assert route(a[:15], b[:15], d[:15]).startswith("warpgroup")
    assert not route(a, b, d, c_dtype="float16").startswith("small")
    assert not route(a.swapaxes(1, 2), b, d).startswith("small")
    singles = [aligned((20, 12, 12), "f4") for _ in range(3)]
    assert route(*singles, dtype="float32").endswith("9 threads each, 14 in the shared memory of a block")
    assert "in the shared memory" in route(*singles, dtype="float32", c_dtype="float32")
    assert "in the shared memory" in route(singles[0].swapaxes(1, 2), *singles[1:], dtype="float32")
    assert "a thread for each row" in route(*singles, dtype="float32", target="sm_75")
    odd = [aligned((20, 7, 7), "f4") for _ in range(3)]
    assert "a thread for each row" in route(*odd, dtype="float32")
    large = [aligned((20, 65, 65), "f4") for _ in range(3)]
    assert route(*large, dtype="float32").startswith("staged")
    doubles = [aligned((20, 65, 65), "f8") for _ in range(3)]
    assert route(*doubles, dtype="float64", c_dtype="bfloat16") == "portable: c of bfloat16 beside sums in float64"


def test_large_misaligned_operands_are_copied():
    a, b, d = aligned((300, 401)), aligned((401, 333)), aligned((300, 333))
    text = route(a, b, d)
    assert text.startswith("warpgroup: float16 on sm_90: tensor copies and warpgroup products; a and b copied to align")
    assert "a begins at 0 mod 16 and its rows are 802 bytes apart" in text
    assert "; b copied" in route(aligned((300, 408))[:, :401], b, d)
    assert "; a copied" in route(a[:, ::2][:, :200], aligned((200, 336)), aligned((300, 336)))
    assert route(a[:200], b, d[:200]).startswith("tensor")
    assert route(a, b, d, "sm_80").startswith("tensor: warpgroup products exist on sm_90 only")


def test_large_misaligned_slices_are_copied():
    a, b, d = aligned((300, 401), "f4"), aligned((401, 333), "f4"), aligned((300, 333), "f4")
    text = route(a, b, d, dtype="float32")
    assert text.startswith(
        "staged: float32 on sm_90: slices are copied ahead into shared memory; fused multiply-adds; a"
    )
    assert "; a and b copied to aligned memory first" in text
    assert "copied to" not in route(a[:200], b, d[:200], dtype="float32")
    assert "copied to" not in route(aligned((300, 404), "f4"), aligned((404, 336), "f4"), d, dtype="float32")
    assert "copied to" in route(a, b, d, "sm_80", dtype="float32")


def test_orders_of_tf32_and_int8():
    """Such products read rows of a and columns of b; others are copied if they are large."""
    for dtype, options in (("f4", dict(dtype="float32", tf32=True)), ("i1", dict(dtype="int8"))):
        a, b, d = aligned((320, 512), dtype), aligned((512, 320), dtype, "F"), aligned((320, 320), dtype)
        assert route(a, b, d, **options).endswith("tensor copies and warpgroup products")
        turned = aligned((512, 320), dtype)
        words = "; b copied to aligned memory first: such products read b in column order only"
        assert route(a, turned, d, **options).endswith(words)
        few = route(a[:64], turned, d[:64], **options)
        assert few.startswith("staged: such products read b" if dtype == "f4" else "portable: such products read b")
    assert route(a, b, d, dtype="int8", c_dtype="int32").startswith(
        "portable: warpgroup products of int8 leave no room"
    )
    assert route(a.astype("f4"), b, d, "sm_80", dtype="float32", tf32=True).startswith("staged")


def test_describe_needs_no_gpu():
    text = devkernels.make_gemm("float16", epilogue=("bias", "gelu")).describe(A, B)
    assert "epilogue (bias, gelu)" in text
    assert "\nwarpgroup: float16 on sm_90" in text
