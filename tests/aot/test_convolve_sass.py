"""Machine code of every ready convolution kernel: no spills, wide accesses of complex data, the fewest barriers."""

import pytest

import devkernels
from devkernels.kernels import convolve_rows
from tests.sass import Sass


def check(name, kernel, signature, notes, dtype, plan, ways):
    """Compile a kernel that transforms one way, or there and back; return its machine code."""
    image = devkernels.compile(kernel, signature, "sm_90", notes=notes)
    sass = Sass(image)
    assert image.local_bytes == 0, name
    assert sass.spills == 0, name
    # Through shared memory only whole complex numbers go, as often as the plan says.
    moves = ways * plan.elements * len(plan.exchanges)
    assert sass.numbers("LDS", plan.word_bytes) == sass.numbers("STS", plan.word_bytes) == moves, (name, sass.counts)
    assert sass.count("BAR.SYNC") == ways * [e.barrier for e in plan.exchanges].count("block"), (name, sass.counts)
    if dtype.startswith("complex"):  # no access of half a number
        kinds = [kind for kind in sass.counts if kind.startswith(("LDG", "STG"))]
        assert all("64" in kind or "128" in kind for kind in kinds), (name, kinds)
    return sass


@pytest.mark.parametrize(
    ("mode", "length", "taps", "dtype"),
    [
        ("circular", 4096, 4096, "complex64"),
        ("circular", 2048, 2048, "complex64"),
        ("circular", 256, 256, "float32"),
        ("circular", 4096, 4096, "float32"),
        ("circular", 16384, 16384, "float32"),
        ("causal", 4096, 4096, "float32"),
        ("full", 1000, 1000, "float16"),
        ("full", 4000, 4000, "float64"),
        ("same", 1 << 20, 511, "float32"),
        ("circular", 30011, 511, "complex64"),
    ],
)
def test_rows(mode, length, taps, dtype):
    plan = devkernels.make_fftconvolve(length, taps, dtype, mode)
    for name, (kernel, signature, notes) in plan.image_sources().items():
        if name.endswith("_one"):  # differs from that for a filter per channel in the row's number only
            continue
        sass = check(name, kernel, signature, notes, dtype, plan.fft.plan, 1 if name.endswith("_filter") else 2)
        if dtype == "float32" and not name.endswith("_filter"):
            rows = 2 if plan.plan.method in ("circular", "overlap") or plan.plan.tail else 1
            assert sass.count("STG") == rows * plan.fft.elements_per_thread, (name, sass.counts)
        if mode == "circular":  # one vote keeps two real rows apart where all is finite
            assert bool(sass.count("BAR.RED", "VOTE")) == (dtype == "float32" and not name.endswith("_filter"))


@pytest.mark.parametrize("layout", ["channels", "any"])
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize(("length", "dtype"), [(512, "complex64"), (2048, "complex64"), (4096, "float32")])
def test_circular_rows_of_each_broadcast(length, dtype, layout, repeats):
    """A filter per channel, or anything else, and x used again, cost integers and no spills."""
    fft = devkernels.make_fftconvolve(length, length, dtype, "circular").fft
    rows = convolve_rows.Rows(dtype, layout, repeats)
    make = convolve_rows.circular_kernel if dtype.startswith("complex") else convolve_rows.circular_pair_kernel
    types = f"{dtype}[::1], {fft.dtype.name}[::1], {dtype}[::1]"
    check((length, dtype, layout, repeats), make(fft, rows), f"void({types}{', int64' * 6})", {}, dtype, fft.plan, 2)


@pytest.mark.parametrize(
    ("mode", "length", "dtype", "kinds"),
    [
        ("full", 1 << 22, "float32", ("columns", "filter_columns", "filter_rows", "rows", "columns_back")),
        ("causal", 1 << 16, "float32", ("rows", "columns_back")),
        ("full", 1 << 17, "float64", ("columns", "rows")),
        ("circular", 1 << 18, "complex64", ("columns", "rows", "columns_back")),
        ("full", 1 << 22, "complex64", ("rows",)),
    ],
)
def test_four_steps(mode, length, dtype, kinds):
    plan = devkernels.make_fftconvolve(length, length, dtype, mode)
    sources = plan.image_sources()
    for kind in kinds:
        name = f"fftconvolve_{mode}_{length}_{length}_{dtype}_{kind}"
        along = plan._long.rows.plan if kind.endswith("rows") else plan._long.columns.plan
        check(name, *sources[name], dtype, along, 2 if kind == "rows" else 1)


@pytest.mark.parametrize(
    ("shape", "taps", "mode", "dtype"),
    [((1024, 1024), (63, 63), "same", "float32"), ((256, 512), (5, 5), "full", "complex64")],
)
def test_images(shape, taps, mode, dtype):
    check_images(devkernels.make_fftconvolve2d(shape, taps, dtype, mode), dtype)


def test_one_large_image():
    plan = devkernels.make_fftconvolve2d((4096, 4096), (63, 63), "float32", "same")
    assert [axis.segments for axis in plan.plans] == [8, 8]
    check_images(plan._in_halves, "float32")


def check_images(plan, dtype):
    for name, (kernel, signature, notes) in plan.image_sources().items():
        if dtype.startswith("complex") and "filter" in name:
            continue
        along = plan.columns.plan if name.endswith("columns") else plan.rows.plan
        both = name.endswith("_columns") and not name.endswith("_filter_columns")
        check(name, kernel, signature, notes, "float32" if "rows" in name else dtype, along, 2 if both else 1)
