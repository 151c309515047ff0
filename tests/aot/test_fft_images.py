"""Device FFTs compiled with no GPU and no driver: for every target, without spills, with wide accesses."""

import numpy as np
import pytest
from numba import cuda, types

import devkernels
from devkernels import compile as compile_kernel
from devkernels.errors import CompileError, DevkernelsError, TargetError
from tests.fft_cases import make, rows_kernel
from tests.sass import Sass

C64, C128, F32, F16 = types.complex64, types.complex128, types.float32, types.float16


def rows_of(dtype, ndim=2):
    return types.Array(dtype, ndim, "C")


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_every_target_without_a_driver(target):
    assert not devkernels.target.driver_present() or devkernels.target.home().kind == "aot"
    f = make(64, sm=target)
    image = compile_kernel(rows_kernel(f), types.void(rows_of(C64), rows_of(C64)), target)
    assert str(image.target) == target
    assert image.cubin[:4] == b"\x7fELF"
    assert image.local_bytes == 0
    assert 16 <= image.registers <= 128
    sass = Sass(image)
    assert sass.spills == 0
    assert sass.count("LDG.E.64") >= f.elements_per_thread
    assert sass.count("STG.E.64") == f.elements_per_thread
    assert sass.count("LDG.E ", "LDG.E.U") == 0


@pytest.mark.parametrize(("precision", "fft_type", "signature", "load", "store"), [
    ("float64", "c2c", (rows_of(C128), rows_of(C128)), "LDG.E.128", "STG.E.128"),
    ("float32", "r2c", (rows_of(F32), rows_of(C64)), "LDG.E.64", "STG.E.64"),
    ("float16", "c2c", (rows_of(F16, 3), rows_of(F16, 3)), "LDG.E", "STG.E"),
])  # fmt: skip
def test_widths_of_global_accesses(precision, fft_type, signature, load, store):
    mode = {"layout": "packed", "mode": "folded"} if fft_type == "r2c" else {}
    f = make(64, precision, fft_type, sm="sm_90", **mode)
    image = compile_kernel(rows_kernel(f), types.void(*signature), "sm_90")
    sass = Sass(image)
    assert sass.spills == 0
    assert image.local_bytes == 0
    assert sass.counts[load] >= f.input_elements_per_thread
    assert sass.counts[store] >= f.output_elements_per_thread
    if precision == "float16":
        assert sass.count("LDG.E.U16", "STG.E.U16") == 0


def test_no_more_instructions_than_a_loop_by_hand():
    """`f.load` and `f.store` against hand-written masked loops over 8-byte words, in the same kernel otherwise."""
    f = make(64, sm="sm_90")
    storage, value_type, stride, size = f.storage_size, f.value_type, f.stride, f.size
    per_thread, per_block, u = f.elements_per_thread, f.ffts_per_block, np.uint64

    def by_hand(x, y):
        thread_data = cuda.local.array(storage, value_type)
        words = thread_data.view(np.float64)
        shared_mem = cuda.shared.array(0, value_type)
        row = u(cuda.blockIdx.x * per_block + cuda.threadIdx.y)
        end = u(min(x.shape[1], size)) if row < u(x.shape[0]) else u(0)
        for i in range(per_thread):
            k = u(cuda.threadIdx.x) + u(i * stride)
            words[u(i)] = x[row, k] if k < end else 0.0
        f(thread_data, shared_mem)
        end = u(min(y.shape[1], size)) if row < u(y.shape[0]) else u(0)
        for i in range(per_thread):
            k = u(cuda.threadIdx.x) + u(i * stride)
            if k < end:
                y[row, k] = words[u(i)]

    threads = f.block_dim.x * f.block_dim.y
    words = rows_of(types.float64)
    hand = Sass(compile_kernel(by_hand, types.void(words, words), "sm_90", launch_bounds=threads))
    ours = Sass(compile_kernel(rows_kernel(f), types.void(rows_of(C64), rows_of(C64)), "sm_90"))
    assert ours.total <= hand.total


def test_equal_objects_are_linked_once():
    f, twin = make(64, sm="sm_90"), make(64, sm="sm_90")
    assert f == twin
    assert f.files + twin.files == []
    storage, value_type = f.storage_size, f.value_type

    @cuda.jit(link=f.files + twin.files)
    def twice(x):
        thread_data = cuda.local.array(shape=(storage,), dtype=value_type)
        shared_mem = cuda.shared.array(shape=(0,), dtype=value_type)
        f.load(x, f.row(), thread_data)
        f(thread_data, shared_mem)
        twin(thread_data, shared_mem)
        twin.store(thread_data, x, twin.row())

    assert compile_kernel(twice, types.void(rows_of(C64)), "sm_90").local_bytes == 0


def test_thread_fft_stays_in_registers():
    f = make(16, execution="Thread", sm="sm_90")
    sass = Sass(compile_kernel(rows_kernel(f), types.void(rows_of(C64), rows_of(C64)), "sm_90"))
    assert sass.spills == 0
    assert sass.count("LDS", "STS", "BAR", "CALL") == 0


def test_an_object_of_another_target():
    f = make(64, sm="sm_80", ffts_per_block=1)
    image = compile_kernel(rows_kernel(f), types.void(rows_of(C64), rows_of(C64)), "sm_90")  # the same traits there
    assert str(image.target) == "sm_90"
    too_large = make(32768, sm="sm_80", ffts_per_block=1)
    with pytest.raises((CompileError, TargetError), match="sm_86"):
        compile_kernel(rows_kernel(too_large), types.void(rows_of(C64), rows_of(C64)), "sm_86")


def test_wrong_types_in_a_kernel_are_said_in_words():
    f = make(64, sm="sm_90")

    def wrong(x):
        thread_data = cuda.local.array(64, types.float32)
        f.load(x, 0, thread_data)

    with pytest.raises(DevkernelsError, match="thread_data"):
        compile_kernel(wrong, types.void(rows_of(C64)), "sm_90")
    with pytest.raises(DevkernelsError, match="complex64"):
        compile_kernel(rows_kernel(f), types.void(rows_of(F32), rows_of(C64)), "sm_90")


def test_spectral_filter_has_one_kernel_and_no_spills():
    plan = devkernels.make_spectral_filter(256, "complex64", sm="sm_90")
    kernel = plan.transforms.kernel("complex64")
    image = compile_kernel(kernel, types.void(rows_of(C64), rows_of(C64), rows_of(C64)), "sm_90")
    sass = Sass(image)
    assert sass.spills == 0
    assert image.local_bytes == 0
    per_thread = plan.fft.elements_per_thread
    assert sass.counts["LDG.E.64"] >= 2 * per_thread  # x, H (and twiddles of the transforms)
    assert sass.counts["STG.E.64"] == per_thread
    assert sass.counts["LDG.E"] == 0


def test_half_precision_values_are_packed_in_registers():
    plan = devkernels.make_spectral_filter(64, "float16", sm="sm_90")
    halves = rows_of(F16)
    image = compile_kernel(plan.transforms.kernel("complex64"), types.void(halves, rows_of(C64), halves), "sm_90")
    sass = Sass(image)
    assert image.local_bytes == 0
    assert sass.spills == 0
    assert sass.count("HADD2", "HFMA2", "HMUL2") > 0
