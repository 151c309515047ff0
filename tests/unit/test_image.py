"""Image files: what goes in comes out, and nothing damaged, foreign or of another version is believed."""

import hashlib
import json
import secrets
import struct
import subprocess
import sys

import pytest

import devkernels
from devkernels import target
from devkernels.compiler import elf, image
from devkernels.compiler.image import KernelImage, Parameter
from devkernels.errors import ImageError, TargetError
from devkernels.target import Target

PARAMETERS = (
    Parameter("x", "array", "complex64", 2, "C"),
    Parameter("n", "scalar", "int32"),
    Parameter(
        "pair", "tuple",
        items=(Parameter("pair[0]", "scalar", "float64"), Parameter("pair[1]", "array", "int8", 1, "A")),
    ),
    Parameter("z", "scalar", "complex128"),
    Parameter("b", "scalar", "bool"),
)  # fmt: skip


def make(where, code=b"\x7fELF code", **more):
    fields = dict(
        name="kernel", cubin=code, symbol="_Zkernel", target=Target.parse(where), registers=40, local_bytes=8,
        shared_bytes=1024, max_threads=256, parameters=PARAMETERS, cooperative=True,
        notes={"block": [16, 8, 1], "text": "ü"}, versions={"numba": "0.68.1"},
    )  # fmt: skip
    return KernelImage(**(fields | more))


def test_round_trip(tmp_path):
    images = [make("sm_80", secrets.token_bytes(1000)), make("sm_90a", b""), make("sm_120", secrets.token_bytes(7))]
    assert image.unpack(image.pack(images)) == images
    path = image.write(images, tmp_path / "new" / "kernel.dkimage")
    found = image.read(path)
    assert found == images
    assert [one.notes for one in found] == [one.notes for one in images]
    assert [one.versions for one in found] == [one.versions for one in images]
    assert [p.name for p in path.parent.iterdir()] == ["kernel.dkimage"]  # nothing half-written is left


def test_words_of_the_calling_convention():
    assert PARAMETERS[0].slots() == [8] * 9
    assert PARAMETERS[2].slots() == [8] + [8] * 7
    assert image.layout(PARAMETERS) == [
        *((8 * i, 8) for i in range(9)), (72, 4), *((80 + 8 * i, 8) for i in range(8)), (144, 8), (152, 8), (160, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "chosen"),
    [("sm_80", "sm_80"), ("sm_86", "sm_86"), ("sm_89", "sm_86"), ("sm_90", "sm_90a"), ("sm_100", None),
     ("sm_75", None)],
)  # fmt: skip
def test_choice_for_a_device(device, chosen):
    images = [make("sm_80"), make("sm_86"), make("sm_90"), make("sm_90a")]
    if chosen is None:
        with pytest.raises(ImageError, match=f"sm_80, sm_86, sm_90, sm_90a.*--target {device}"):
            image.choose(images, Target.parse(device))
    else:
        assert str(image.choose(images, Target.parse(device)).target) == chosen


def test_arch_specific_code_runs_on_its_own_architecture_only():
    with pytest.raises(ImageError):
        image.choose([make("sm_100a")], Target.parse("sm_103"))


def test_every_single_damage_is_noticed():
    content = image.pack([make("sm_80", secrets.token_bytes(300)), make("sm_90", secrets.token_bytes(300))])
    for position in range(len(content)):
        bad = content[:position] + bytes([content[position] ^ (1 << secrets.randbelow(8))]) + content[position + 1 :]
        with pytest.raises(ImageError):
            image.unpack(bad)
    for length in range(0, len(content), 7):
        with pytest.raises(ImageError):
            image.unpack(content[:length])
    with pytest.raises(ImageError, match="damaged"):
        image.unpack(content + b"x")


def test_other_files_and_versions(tmp_path):
    for content in (b"", b"hello", b"\x7fELF" + bytes(100), b"devkernels cache 1\n" + bytes(64)):
        with pytest.raises(ImageError, match="is not a kernel image"):
            image.unpack(content)
    newer = image.pack([make("sm_80")]).replace(b"devkernels image 1\n", b"devkernels image 2\n", 1)
    with pytest.raises(ImageError, match=r"format 2.*reads format 1"):
        image.unpack(newer)
    with pytest.raises(ImageError, match="cannot be read"):
        image.read(tmp_path / "missing.dkimage")
    with pytest.raises(ImageError, match="each one once"):
        image.pack([make("sm_80"), make("sm_80")])


def test_what_a_later_version_says_of_a_kernel_is_not_guessed_at():
    content = image.pack([make("sm_80")])
    magic = b"devkernels image 1\n"
    body = content[len(magic) + 32 :]
    size = struct.unpack_from("<Q", body)[0]
    header = json.loads(body[8 : 8 + size])
    header["devkernels"] = "9.1"
    header["kernels"][0]["cluster"] = [2, 1, 1]
    told = json.dumps(header).encode()
    body = struct.pack("<Q", len(told)) + told + body[8 + size :]
    with pytest.raises(ImageError, match=r"built by devkernels 9\.1 and says cluster of its kernel"):
        image.unpack(magic + hashlib.sha256(body).digest() + body)


def test_header_is_plain_json():
    content = image.pack([make("sm_80")])
    start = len(b"devkernels image 1\n") + 32
    size = struct.unpack_from("<Q", content, start)[0]
    header = json.loads(content[start + 8 : start + 8 + size])
    assert header["devkernels"] == devkernels.__version__
    assert header["kernels"][0]["target"] == "sm_80"


@pytest.mark.skipif(target.driver_present(), reason="where there is a driver, the device decides")
def test_loading_without_a_device(tmp_path):
    one = make("sm_80").save(tmp_path / "one.dkimage")
    assert devkernels.load_image(one).image == make("sm_80")
    two = image.write([make("sm_80"), make("sm_90")], tmp_path / "two.dkimage")
    with pytest.raises(TargetError, match=r"sm_80, sm_90.*target="):
        devkernels.load_image(two)
    assert devkernels.load_image(two, target="sm_90").image.target == Target(9, 0)
    with pytest.raises(TargetError, match="there is a GPU and its driver"):
        devkernels.load_image(one)[1, 32](None, 1, (1.0, None), 1j, True)


def test_loading_imports_no_compiler(tmp_path):
    path = make("sm_80").save(tmp_path / "one.dkimage")
    code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {{"numba", "numba_cuda", "llvmlite", "nvmath", "libmathdx", "numpy", "cuda"}}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
import devkernels
print(devkernels.load_image({str(path)!r}, target="sm_86").image.registers)
"""
    environment = {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_QUIET": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.stdout == "40\n", result.stderr


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + bytes(200), b"MZ" + bytes(100)])
def test_what_is_no_cubin_is_refused(content):
    with pytest.raises(ImageError, match="cubin cannot be read"):
        elf.kernels(content)
