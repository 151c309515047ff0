"""Kernels of products compiled without a GPU: what they are made of, and that nothing spills in the main loop."""

import re

import pytest

import devkernels
from devkernels.compiler import elf
from devkernels.compiler.image import Parameter
from devkernels.kernels import gemm_chain, gemm_kernels
from devkernels.matrix import chain, small, tensor, warpgroup
from tests.sass import Sass


def built(target="sm_90", **options):
    """Images of all kernels of a plan, by name."""
    sources = devkernels.make_gemm(**options).image_sources()
    return {name: devkernels.compile(kernel, signature, target) for name, (kernel, signature, _) in sources.items()}


def spills_near_products(sass):
    """Accesses to local memory between the first and the last warpgroup product."""
    lines = sass.text.splitlines()
    products = [i for i, line in enumerate(lines) if "HGMMA" in line]
    inside = lines[products[0] : products[-1]]
    return sum(bool(re.search(r"\b(LDL|STL)\b", line)) for line in inside)


@pytest.mark.parametrize("epilogue", [None, ("bias", "silu", "residual")])
def test_warpgroup_products(epilogue):
    images = built(dtype="float16", epilogue=epilogue)
    assert len(images) == 2  # b in row and in column order
    for image in images.values():
        sass = Sass(image)
        assert str(image.target) == "sm_90a"
        assert sass.count("HGMMA") > 0
        assert sass.count("UTMALDG") >= 2
        assert spills_near_products(sass) == 0
        assert sass.count("STG.E.128") == 16  # 128 x 128 halves by 256 threads, eight at a time
        assert sass.count("STG") == 16
        if epilogue is None:
            assert sass.spills == 0
        else:
            assert sass.count("LDG.E.128") == 16 + 4  # the residual once, the bias once for each half tile
        (kernel,) = elf.kernels(image.cubin)
        assert (kernel.parameter_base + 8 * warpgroup.PAD_WORDS) % 64 == 0
        assert image.registers * warpgroup.THREADS <= 65536


def test_other_dtypes_and_architectures_take_the_portable_loop():
    (image,) = built(dtype="float32", epilogue="bias").values()
    sass = Sass(image)
    assert sass.count("HGMMA") == 0
    assert sass.spills == 0
    assert sass.count("FFMA") >= 16


def test_small_products_stay_in_registers():
    """16 x 16 in float16: two products of the tensor cores, two stores of a thread, no shared or local memory."""
    spec = devkernels.make_gemm("float16").spec
    tiling = small.SmallTiling(16, 16, 16, "float16", "float16", "float16", "float32")
    signature = (*(Parameter(n, "array", "float16", 3, "C") for n in "abd"), Parameter("batches", "scalar", "int64"),
                 Parameter("alpha", "scalar", "float32"), Parameter("extra", "tuple", items=()))  # fmt: skip
    image = devkernels.compile(gemm_kernels.small_kernel(spec, tiling, ()), signature, "sm_90")
    sass = Sass(image)
    assert sass.count("HMMA") == 2
    assert sass.count("STG.E.64") == 2
    assert sass.spills == 0
    assert image.shared_bytes == 0


@pytest.mark.parametrize("wide", [True, False])
def test_tensor_cores_at_any_alignment(wide):
    spec = devkernels.make_gemm("float16").spec
    tiling = tensor.TensorTiling("f16", "float16", True, True, wide, wide, False, wide)
    signature = (*(Parameter(n, "array", "float16", 3, "A") for n in "abcd"), Parameter("alpha", "scalar", "float32"),
                 Parameter("beta", "scalar", "float32"), Parameter("extra", "tuple", items=()))  # fmt: skip
    image = devkernels.compile(gemm_kernels.tensor_kernel(spec, tiling, ()), signature, "sm_90")
    sass = Sass(image)
    assert sass.count("HMMA") == 32
    assert sass.spills == 0
    assert (sass.count("LDG.E.128") > 0) == wide
    assert sass.count("STG") == (8 if wide else 64)
    assert image.registers <= 128  # two blocks on a multiprocessor


def test_chain_in_one_kernel():
    plan = devkernels.make_gemm_chain("float16", first="silu")
    tiling = chain.ChainTiling("float16", "float16", 512, (True,) * 3, (True,) * 3)
    matrices = (Parameter(n, "array", "float16", 3, "A") for n in "abcd")
    extra = (Parameter(n, "tuple", items=()) for n in ("first_extra", "second_extra"))
    signature = (*matrices, Parameter("alpha", "scalar", "float32"), *extra)
    image = devkernels.compile(gemm_chain.compiled(plan, tiling, (), ()), signature, "sm_90")
    sass = Sass(image)
    assert sass.count("HMMA") == 64
    assert sass.spills == 0
    assert tiling.shared_bytes <= image.target.max_shared_bytes
    assert "one kernel" in plan.describe(768)
    assert "two kernels" in plan.describe(769)
