"""Ready kernels as images: what `devkernels build` makes of a filter, ready to ship."""

import pytest

import devkernels
from devkernels import cache
from devkernels.compiler import build, image
from devkernels.target import Target


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path / "cache"))
    cache.forget()
    yield
    cache.forget()


def test_images_of_filters(tmp_path, monkeypatch):
    (tmp_path / "filters_of_the_test.py").write_text(
        "import devkernels\n\n\ndef small():\n    return devkernels.make_spectral_filter(8, 'complex64')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    folder = tmp_path / "images"
    written = build.build(["filters_of_the_test:small"], [Target(9, 0)], folder, lambda *told: seen.append(told))
    names = ["spectral_filter_8_complex64_complex64", "spectral_filter_8_complex64_float32"]
    assert [path.name for path in written] == [f"{name}.dkimage" for name in names]
    told = [content for _, content in seen]
    assert [content for content in told if content[0] in ("total", "kernel")] == [
        ("total", 2), *(("kernel", name) for name in names)
    ]  # fmt: skip
    begun, done = (sorted(name for what, name in told if what == wanted) for wanted in ("begun", "done"))
    assert begun == done  # device functions
    assert len(set(begun)) == len(begun)
    for path in written:
        (one,) = image.read(path)
        assert [p.ndim for p in one.parameters] == [2, 2, 2]
        assert one.notes["bins"] == one.notes["size"] == 8
        x, y, z = one.notes["block"]
        assert one.max_threads is None  # a block this small needs no bound: it fits with as many registers as there are
        assert x * y * z * Target.max_registers_per_thread <= Target.max_registers_per_block
        assert one.local_bytes == 0


def test_sources_of_real_and_half_filters():
    real, half = devkernels.make_spectral_filter(8, "float32"), devkernels.make_spectral_filter(8, "complex32")
    assert [signature for _, signature, _ in real.image_sources().values()] == [
        "void(float32[:,::1], complex64[:,::1], float32[:,::1])",
        "void(float32[:,::1], float32[:,::1], float32[:,::1])",
    ]
    assert next(iter(half.image_sources().values()))[1] == "void(float16[:,:,::1], complex64[:,::1], float16[:,:,::1])"
