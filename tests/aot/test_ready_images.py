"""Ready kernels as images: what `devkernels build` makes of a filter, ready to ship."""

import pytest

import devkernels
from devkernels.compiler import build, image
from devkernels.target import Target

pytestmark = pytest.mark.usefixtures("own_cache")


def test_images_of_filters(tmp_path, monkeypatch):
    (tmp_path / "filters_of_the_test.py").write_text(
        "import devkernels\n\n\ndef small():\n    return devkernels.make_spectral_filter(8, 'complex64')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    folder = tmp_path / "images"
    written = build.build(["filters_of_the_test:small"], [Target(9, 0)], folder, lambda *told: seen.append(told))
    kinds = ("complex64", "float32", "order_complex64", "order_float32", "rows")
    names = [f"spectral_filter_8_complex64_{kind}" for kind in kinds]
    assert [path.name for path in written] == [f"{name}.dkimage" for name in names]
    told = [content for _, content in seen]
    assert [content[0] for content in told if content[0] in ("total", "kernel")] == ["total"] + ["kernel"] * 5
    assert sorted(name for what, name in told if what == "kernel") == names
    begun, done = (sorted(name for what, name in told if what == wanted) for wanted in ("begun", "done"))
    assert begun == done  # device functions
    assert len(set(begun)) == len(begun)
    ndims = {"rows": [2, 1, 2], "order_complex64": [2, 1], "order_float32": [2, 1]}
    for kind, path in zip(kinds, written, strict=True):
        (one,) = image.read(path)
        assert [p.ndim for p in one.parameters] == ndims.get(kind, [2, 2, 2])
        assert one.notes["fft_size"] == one.notes["size"] == 8
        x, y, z = one.notes["block"]
        assert one.max_threads in (None, x * y * z)  # without a bound it fits with as many registers as there are
        assert one.max_threads or x * y * z * Target.max_registers_per_thread <= Target.max_registers_per_block
        assert one.local_bytes == 0


def test_sources_of_real_and_half_filters():
    real, half = devkernels.make_spectral_filter(8, "float32"), devkernels.make_spectral_filter(8, "complex32")
    name = "spectral_filter_8_float32"
    assert {key: signature for key, (_, signature, _) in real.image_sources().items()} == {
        f"{name}_rows": "void(float32[:,::1], complex64[::1], float32[:,::1])",
        f"{name}_order_complex64": "void(complex64[:,::1], complex64[::1])",
        f"{name}_order_float32": "void(float32[:,::1], complex64[::1])",
        f"{name}_complex64": "void(float32[:,::1], complex64[:,::1], float32[:,::1])",
        f"{name}_float32": "void(float32[:,::1], float32[:,::1], float32[:,::1])",
    }
    sources = {key.removeprefix("spectral_filter_8_complex32_"): one[1] for key, one in half.image_sources().items()}
    assert sources["rows"] == "void(float16[:,:,::1], complex64[::1], float16[:,:,::1])"
    assert sources["complex64"] == "void(float16[:,:,::1], complex64[:,::1], float16[:,:,::1])"
