"""The stored table against libmathdx itself: sizes, knobs and traits on machines without the library are the same."""

import itertools
from dataclasses import replace

import pytest

from devkernels import fft_sizes, libmathdx, traits
from devkernels.spec import FFTSpec
from devkernels.target import Target

PRECISIONS = ("float16", "float32", "float64")
KINDS = [("c2c", "natural", "normal")] + [
    (kind, layout, mode)
    for kind, layout, mode in itertools.product(("r2c", "c2r"), ("natural", "packed", "full"), ("normal", "folded"))
]
# libmathdx 0.3.1 and 0.3.2 differ in the shared memory of one size; the table has the larger (0.3.2).
CHANGED_BETWEEN_VERSIONS = {("sm_100", "float32", 21952), ("sm_103", "float32", 21952)}


def spec(size, precision, kind, target, execution="Block"):
    fft_type, layout, mode = kind
    direction = "inverse" if fft_type == "c2r" else "forward"
    return FFTSpec(size, precision, fft_type, direction, execution, layout, mode, Target.parse(target))


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_traits_of_every_size_and_knob(target, precision):
    compared = 0
    for kind, execution in itertools.product(KINDS, ("Block", "Thread")):
        base = spec(2, precision, kind, target, execution)
        for size in fft_sizes.sizes(base):
            if (target, precision, size) in CHANGED_BETWEEN_VERSIONS:
                continue
            one = replace(base, size=size)
            knobs = [(None, None)]
            if execution == "Block":
                per_thread = [v[0] for v in fft_sizes.stored_variants(one)]
                assert sorted(per_thread) == sorted({p for p, _ in libmathdx.knobs(fft_sizes.description(one))}), one
                knobs = [(e, f) for e in (None, *per_thread) for f in (None, 6)]
            for e, f in knobs:
                asked = replace(one, elements_per_thread=e, ffts_per_block=f)
                assert traits.stored_traits(asked) == traits.library_traits(asked), asked
                compared += 1
    assert compared >= 300


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_the_librarys(precision, kind, monkeypatch):
    for target, execution in itertools.product(("sm_80", "sm_90", "sm_120"), ("Block", "Thread")):
        base = spec(2, precision, kind, target, execution)
        asked = [n for n in range(1, 520) if fft_sizes.parity_problem(replace(base, size=n)) is None and n > 1]
        asked += [1000, 1331, 4096, 4097, 10000, 16384, 32768, 40000]
        supported = [n for n in asked if libmathdx.is_supported(fft_sizes.description(replace(base, size=n)))]
        supported = [n for n in supported if fft_sizes.parity_problem(replace(base, size=n)) is None]
        with monkeypatch.context() as patch:
            patch.setattr(libmathdx, "available", lambda: False)
            assert [n for n in asked if fft_sizes.is_supported(replace(base, size=n))] == supported


@pytest.mark.parametrize(("size", "kind", "why"), [
    (5, ("r2c", "packed", "normal"), "packed"),
    (96, ("r2c", "natural", "folded"), "power of two"),
])  # fmt: skip
def test_what_the_table_refuses_the_library_cannot_build(size, kind, why):
    from devkernels.errors import CompileError

    refused = spec(size, "float32", kind, "sm_90")
    assert why in fft_sizes.parity_problem(refused)
    assert libmathdx.is_supported(fft_sizes.description(refused))  # it says so, and then:
    with pytest.raises(CompileError):
        libmathdx.ltoir(fft_sizes.description(refused), 90)
