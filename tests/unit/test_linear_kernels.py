"""The CUDA kernel of devkernels.linear compiles without a GPU, and moves 16 bytes at a time."""

import pathlib
import shutil
import subprocess
import sysconfig

import pytest

from devkernels.linear import _kernels

pytestmark = pytest.mark.skipif(not _kernels.available(), reason="needs cuda.bindings and NVRTC")
NVDISASM = shutil.which("nvdisasm") or next(
    map(str, pathlib.Path(sysconfig.get_path("purelib")).glob("nvidia/**/bin/nvdisasm")), None
)


@pytest.mark.parametrize("dtype", list(_kernels.TYPES))
@pytest.mark.parametrize(("kind", "lanes", "ahead"), [(0, 8, 4), (1, 16, 4), (1, 16, 2), (2, 8, 4), (2, 16, 4)])
def test_compiles(dtype, kind, lanes, ahead, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    number, size, _ = _kernels.TYPES[dtype]
    code = _kernels.compile_source(number, 16 // size, kind, "sm_90", lanes, ahead)
    assert code[:4] == b"\x7fELF"
    if NVDISASM is None:
        pytest.skip("needs nvdisasm")
    (tmp_path / "image.cubin").write_bytes(code)
    text = subprocess.run(
        [NVDISASM, "-c", str(tmp_path / "image.cubin")], capture_output=True, text=True, check=True
    ).stdout
    assert "LDG.E.128" in text
    assert "STG.E.128" in text
    assert "LDL" not in text
    assert "STL" not in text


@pytest.mark.parametrize(("architecture", "vector"), [("sm_80", 8), ("sm_120", 1)])
def test_compiles_for_other_architectures(architecture, vector, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    assert _kernels.compile_source(1, vector, 1, architecture)[:4] == b"\x7fELF"
