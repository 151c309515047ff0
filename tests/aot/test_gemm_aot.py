"""Kernels of products compiled without a GPU: what they are made of, and that nothing spills in the main loop."""

import pytest

import devkernels
from devkernels.compiler import elf
from devkernels.compiler.image import Parameter
from devkernels.kernels import gemm_chain_kernels, gemm_kernels
from devkernels.matrix import chain, chain_groups, packed, small, staged, tensor, warpgroup
from tests.sass import Sass


def built(target="sm_90", **options):
    """Images of all kernels of a plan, by name."""
    sources = devkernels.make_gemm(**options).image_sources()
    return {
        name: devkernels.compile(kernel, signature, target, notes=notes)
        for name, (kernel, signature, notes) in sources.items()
    }


@pytest.mark.parametrize("epilogue", [None, ("bias", "silu", "residual")])
def test_warpgroup_products(epilogue):
    images = built(dtype="float16", epilogue=epilogue)
    assert len(images) == 6  # b in row and in column order, in tiles of three sizes
    for name, image in images.items():
        sass = Sass(image)
        if "x" in name.rpartition("_")[2]:  # a smaller tile
            assert sass.count("HGMMA") > 0
            assert sass.between("HGMMA", r"\b(LDL|STL)\b") == 0
            assert sass.count("STG.E.128") == sass.count("STG") == (8 if name.endswith("64x128") else 4)
            assert image.registers * warpgroup.THREADS <= 65536
            continue
        assert str(image.target) == "sm_90a"
        assert sass.count("HGMMA") > 0
        assert sass.count("UTMALDG") >= 2
        assert sass.between("HGMMA", r"\b(LDL|STL)\b") == 0
        assert sass.count("STG.E.128") == 16  # 128 x 128 halves by 256 threads, eight at a time
        assert sass.count("STG") == 16
        if epilogue is None:
            assert sass.spills == 0
        else:
            assert sass.count("LDG.E.NA.128") == 16  # the residual once, past the L1 cache
            assert sass.count("LDG.E.128") == 4  # the bias once for each half tile
        (kernel,) = elf.kernels(image.cubin)
        assert (kernel.parameter_base + 8 * warpgroup.PAD_WORDS) % 64 == 0
        assert image.registers * warpgroup.THREADS <= 65536


@pytest.mark.parametrize(
    ("options", "operation"),
    [(dict(dtype="float32", tf32=True, epilogue="bias"), "HGMMA.64x128x8.F32.TF32"),
     (dict(dtype="int8"), "IGMMA.64x128x32.S8.S8"),
     (dict(dtype="int8", accumulate="float32", out_dtype="float16", epilogue="column_scale"), "IGMMA.64x128x32")],
)  # fmt: skip
def test_tf32_and_int8(options, operation):
    images = built(**options)
    assert all("_b_columns" in name for name in images)  # the only order of b that such products read
    (image,) = (image for name, image in images.items() if name.endswith("_b_columns"))
    sass = Sass(image)
    assert sass.count(operation) >= 8
    assert sass.between(operation[:5], r"\b(LDL|STL)\b") == 0
    assert sass.spills == 0


def test_some_integers_take_the_portable_loop():
    (image,) = built(dtype="int8", epilogue="bias").values()
    sass = Sass(image)
    assert image.notes["route"].startswith("portable: tensor cores add int8 up in int32")
    assert sass.count("HGMMA") == 0
    assert sass.spills == 0
    assert sass.count("IMAD") >= 16


@pytest.mark.parametrize(
    ("dtype", "target", "operation", "least"),
    [("float32", "sm_90", "FFMA", 1024), ("complex64", "sm_90", "FFMA", 1024), ("float64", "sm_90", "DMMA.16x8x8", 32),
     ("complex128", "sm_90", "DMMA.16x8x4", 64), ("float64", "sm_80", "DMMA", 128),
     ("complex64", "sm_90", "HMMA.1688.F32.TF32", 192), ("float32", "sm_90", "HMMA.1688.F32.TF32", 192)],
)  # fmt: skip
def test_slices_copied_ahead(dtype, target, operation, least):
    """Asynchronous copies and reads of 16 bytes, one barrier for a slice, nothing spilled between the products."""
    plan = devkernels.make_gemm(dtype)
    tall = target == "sm_90"
    for along in (True, False):
        tiling = staged.StagedTiling(
            dtype, staged.Operand(True), staged.Operand(along), dtype, d_wide=True, tall=tall,
            split=operation.startswith("HMMA"),
        )  # fmt: skip
        matrices = (Parameter(n, "array", dtype, 3, "A") for n in "abcd")
        scalars = (Parameter(n, "scalar", dtype) for n in ("alpha", "beta"))
        signature = (*matrices, *scalars, Parameter("extra", "tuple", items=()))
        image = devkernels.compile(gemm_kernels.staged_kernel(plan.spec, tiling, ()), signature, target)
        sass = Sass(image)
        assert sass.count(operation) >= least
        copies = {name: number for name, number in sass.counts.items() if name.startswith("LDGSTS")}
        assert copies
        assert all(".128" in name for name in copies)
        assert sass.count("LDS.128") >= 8
        assert sass.between(operation, r"\b(LDL|STL)\b") == 0
        assert sass.spills <= (4 if tiling.split else 0)  # a value that the products do not need may wait on the stack
        assert image.registers * tiling.threads * tiling.launch_bounds[1] <= 65536
        assert tiling.shared_bytes * tiling.launch_bounds[1] <= 228 * 1024 - 2048


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


@pytest.mark.parametrize(("dtype", "operation"), [("float32", "FFMA"), ("complex64", "FFMA"), ("float64", "DFMA")])
def test_small_products_in_shared_memory(dtype, operation):
    """16 x 16: sixteen sums a thread, everything in accesses of 16 bytes, nothing spilled."""
    tiling = packed.PackedTiling(16, 16, 16, dtype, dtype, True, False, d_wide=True)
    matrices = (Parameter(n, "array", dtype, 3, "A") for n in "abcd")
    scalars = (Parameter(n, "scalar", dtype) for n in ("alpha", "beta"))
    signature = (*matrices, *scalars, Parameter("extra", "tuple", items=()))
    image = devkernels.compile(
        gemm_kernels.packed_kernel(devkernels.make_gemm(dtype).spec, tiling, ()), signature, "sm_90"
    )
    sass = Sass(image)
    assert sass.count(operation) >= 16 * 16 * (4 if dtype == "complex64" else 1)
    assert sass.count("LDGSTS.E.BYPASS.128") == sass.count("LDGSTS") > 0
    assert sass.count("STG.E.128") == sass.count("STG") == (4 if dtype == "float32" else 8)
    assert sass.spills == 0


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
    image = devkernels.compile(
        gemm_chain_kernels.chain_kernel(plan.first.spec.steps, plan.second.spec.steps, tiling, (), ()),
        signature,
        "sm_90",
    )
    sass = Sass(image)
    assert sass.count("HMMA") == 64
    assert sass.spills == 0
    assert tiling.shared_bytes <= image.target.max_shared_bytes
    assert "one kernel" in plan.describe(640)
    assert "two kernels" in plan.describe(641)


def test_chain_by_warpgroups():
    tiling = chain_groups.GroupChain(
        "float16", "float16", 512, (False, True, True), (False,) * 3, chain_groups.stages_for(512, 232448), True
    )
    steps = devkernels.make_gemm("float16", epilogue="gelu_tanh").spec.steps
    kernel = gemm_chain_kernels.chain_group_kernel(steps, (), tiling, (), ())
    words = Parameter("maps", "tuple", items=(Parameter("", "scalar", "int64"),) * chain_groups.MAP_WORDS)
    signature = (
        words, *(Parameter(n, "scalar", "int64") for n in ("rows", "columns", "steps")),
        Parameter("alpha", "scalar", "float32"), Parameter("d", "array", "float16", 3, "C"),
        Parameter("first", "tuple", items=()), Parameter("second", "tuple", items=()),
    )  # fmt: skip
    image = devkernels.compile(kernel, signature, "sm_90")
    sass = Sass(image)
    assert str(image.target) == "sm_90a"
    assert sass.count("HGMMA") >= 8
    assert sass.count("UTMALDG") >= 3
    assert sass.spills == 0
    assert sass.count("STG") == sass.count("STG.E") == 32  # two halves at a time
    assert tiling.shared_bytes <= image.target.max_shared_bytes
    (kernel,) = elf.kernels(image.cubin)
    assert (kernel.parameter_base + 8 * warpgroup.PAD_WORDS) % 64 == 0
