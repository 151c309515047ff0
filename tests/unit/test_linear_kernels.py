"""The CUDA kernel of devkernels.linear compiles without a GPU, and moves 16 bytes at a time."""

import pathlib
import shutil
import subprocess
import sysconfig

import pytest

from devkernels.linear import _cuda, _kernels, _weight_gradient

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
@pytest.mark.parametrize(("kind", "width", "cluster"), [(0, 768, 1), (1, 1024, 4), (2, 1280, 1), (2, 1536, 2)])
def test_weight_gradient_compiles(dtype, kind, width, cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    assert _weight_gradient.cluster_of(width) == cluster
    assert _weight_gradient.shared_bytes(kind, cluster) <= 227 * 1024
    text = disassembled(_weight_gradient.compile_source(dtype, kind, cluster), tmp_path)
    assert "HGMMA" in text
    assert "LDL" not in text
    assert "STL" not in text
    assert ("UBLKCP" in text) is (cluster > 1)  # what a block sends to others
    assert text.count("MEMBAR.ALL.GPU") == 2  # at the cluster's barriers, not in the loop


@pytest.mark.parametrize(("width", "clusters"), [(8, 1), (256, 1), (257, 2), (512, 2), (768, 1), (1024, 4), (4096, 4)])
def test_size_of_clusters(width, clusters):
    assert _weight_gradient.cluster_of(width) == clusters
