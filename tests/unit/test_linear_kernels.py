"""The CUDA kernel of devkernels.linear compiles without a GPU, and moves 16 bytes at a time."""

import pathlib
import shutil
import subprocess
import sysconfig

import pytest

from devkernels.linear import _copies, _cuda, _gelu_forward, _kernels, _weight_gradient

pytestmark = pytest.mark.skipif(not _cuda.available(), reason="needs cuda.bindings and NVRTC")
NVDISASM = shutil.which("nvdisasm") or next(
    map(str, pathlib.Path(sysconfig.get_path("purelib")).glob("nvidia/**/bin/nvdisasm")), None
)


def disassembled(code, folder):
    if NVDISASM is None:
        pytest.skip("needs nvdisasm")
    (folder / "image.cubin").write_bytes(code)
    return subprocess.run([NVDISASM, "-c", str(folder / "image.cubin")], capture_output=True, text=True,
                          check=True).stdout  # fmt: skip


@pytest.mark.parametrize("dtype", list(_kernels.TYPES))
@pytest.mark.parametrize(("kind", "lanes", "ahead"), [(0, 8, 4), (1, 16, 4), (1, 16, 2), (2, 8, 4), (2, 16, 4)])
def test_compiles(dtype, kind, lanes, ahead, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    number, size, _ = _kernels.TYPES[dtype]
    code = _kernels.compile_source(number, 16 // size, kind, "sm_90", lanes, ahead)
    assert code[:4] == b"\x7fELF"
    text = disassembled(code, tmp_path)
    assert "LDG.E.128" in text
    assert "STG.E.128" in text
    assert "LDL" not in text
    assert "STL" not in text


@pytest.mark.parametrize(("architecture", "vector"), [("sm_80", 8), ("sm_120", 1)])
def test_compiles_for_other_architectures(architecture, vector, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    assert _kernels.compile_source(1, vector, 1, architecture)[:4] == b"\x7fELF"


@pytest.mark.parametrize("dtype", _weight_gradient.DTYPES)
@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_weight_gradient_compiles(dtype, kind, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    assert _weight_gradient.shared_bytes(kind) <= 227 * 1024
    text = disassembled(_weight_gradient.compile_source(dtype, kind), tmp_path)
    assert "HGMMA" in text
    assert "UTMASTG" in text  # the gradient before the activation goes to memory by the copy unit
    assert "UBLKCP" in text  # what a block sends to others
    assert "LDL" not in text
    assert "STL" not in text
    assert text.count("MEMBAR.ALL.GPU") == 2  # at the cluster's barriers, not in the loop


@pytest.mark.parametrize(("dtype", "n", "k", "possible"), [
    ("float16", 128, 1024, True), ("bfloat16", 64, 320, True), ("float32", 128, 1024, False),
    ("float16", 120, 1024, False), ("float16", 128, 1000, False), ("float16", 128, 256, False),
    ("float16", 128, 768, False),
])  # fmt: skip
def test_weight_gradient_is_for(dtype, n, k, possible):
    class Arrays:
        def capability(self, device):
            return (9, device)

    assert _weight_gradient.possible(Arrays(), 0, dtype, 5, n, k) is possible
    assert not _weight_gradient.possible(Arrays(), 1, dtype, 5, n, k)  # not sm_90
    assert not _weight_gradient.possible(Arrays(), 0, dtype, 0, n, k)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("dtype", _gelu_forward.DTYPES)
def test_gelu_forward_compiles(dtype, cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    assert _gelu_forward.shared_bytes() <= 227 * 1024
    text = disassembled(_gelu_forward.compile_source(dtype, cluster), tmp_path)
    assert text.count("HGMMA") == 17 * 4  # sixteen steps with the last tile's GELU between, and those beyond
    assert "UTMASTG" in text
    assert "LDL" not in text
    assert "STL" not in text
    # The products run on while GELU is computed: none of the sixteen steps waits for its own.
    assert text.count("WARPGROUP.DEPBAR.LE gsb0, 0x1") >= 17


@pytest.mark.parametrize(("dtype", "n", "k", "possible"), [
    ("float16", 128, 1024, True), ("bfloat16", 64, 320, True), ("float32", 128, 1024, False),
    ("float16", 120, 1024, False), ("float16", 128, 1000, False), ("float16", 192, 64, True),
])  # fmt: skip
def test_gelu_forward_is_for(dtype, n, k, possible):
    class Arrays:
        def capability(self, device):
            return (9, device)

    assert _gelu_forward.possible(Arrays(), 0, dtype, 5, n, k) is possible
    assert not _gelu_forward.possible(Arrays(), 1, dtype, 5, n, k)  # not sm_90
    assert not _gelu_forward.possible(Arrays(), 0, dtype, 0, n, k)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_copies_compile(architecture, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    values = {"TYPE": 2, "PARTS": _copies.PIECES}
    text = disassembled(_cuda.compile_file("_copies.cu", architecture, values), tmp_path)
    assert text.count("LDG.E.128") >= 4
    assert text.count("STG.E.128") >= 4
    assert "STL" not in text
