"""The examples run as a reader would run them, and find their own results right."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from devkernels.target import home

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = "gpu" if home().kind == "gpu" else "sim"
pytestmark = getattr(pytest.mark, HERE)


def example(name, *arguments, cwd):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_ENABLE")}
    variables = {**kept, "DEVKERNELS_TARGET": HERE, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, env=variables, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_article_kernel_runs_unchanged(tmp_path):
    assert "error against NumPy" in example("article_filter.py", cwd=tmp_path).stdout


def test_article_kernel_differs_from_the_article_by_its_import_line_only():
    """A checksum of the kernel's tokens as published; whitespace and comments aside."""
    source = (ROOT / "examples" / "article_filter.py").read_text()
    begin, end = source.index("    def apply_filter"), source.index("    data = np.random")
    kernel = "".join(line.partition("#")[0] for line in source[begin:end].splitlines())
    assert "".join(kernel.split()) == ARTICLE


def test_transform_and_product_in_one_kernel(tmp_path):
    assert "error against NumPy" in example("spectral_mixing.py", cwd=tmp_path).stdout


def test_tiles_with_a_rim(tmp_path):
    assert "error against NumPy" in example("tile_blur.py", cwd=tmp_path).stdout


def test_ecg_and_photograph(tmp_path):
    for name in ("pywt", "scipy", "matplotlib"):
        pytest.importorskip(name, reason="the examples extra is not installed")
    done = example("ecg_filter.py", "--tile", "16", "--output", "picture.png", cwd=tmp_path)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "target: sm_" in done.stdout
    assert done.stdout.count("error against SciPy") == 2
    assert "33/33" in done.stderr  # the progress bar reached its end: one record, 16 rows, 16 columns
    decibels = re.findall(r"^  (.+?) +(-?[\d.]+) dB before, +(-?[\d.]+) dB after$", done.stdout, re.MULTILINE)
    change = {name: float(after) - float(before) for name, before, after in decibels}
    assert change["below 0.5 Hz"] < -20
    assert change["59 to 61 Hz"] < -20
    assert abs(change["1 to 40 Hz"]) < 1


def test_beats_are_found(tmp_path):
    for name in ("pywt", "scipy", "matplotlib"):
        pytest.importorskip(name, reason="the examples extra is not installed")
    done = example("find_beats.py", "--output", "beats.png", cwd=tmp_path)
    assert (tmp_path / "beats.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.count("error against SciPy") == 2
    assert re.search(r"^3 beats at 0\.5\d, 1\.4\d, 2\.3\d s$", done.stdout, re.MULTILINE)


# The published kernel (see the example's docstring), without white space and comments.
ARTICLE = (
    "defapply_filter(signal,filter_kernel):"
    "thread_data=cuda.local.array(shape=(storage_size,),dtype=value_type)"
    "shared_mem=cuda.shared.array(shape=(0,),dtype=value_type)"
    "fft_id=(cuda.blockIdx.x*ffts_per_block)+cuda.threadIdx.y"
    "iffft_id>=batch_size:return"
    "offset=cuda.threadIdx.x"
    "foriinrange(FFT_fwd.elements_per_thread):thread_data[i]=signal[fft_id,offset+i*FFT_fwd.stride]"
    "FFT_fwd(thread_data,shared_mem)"
    "foriinrange(FFT_fwd.elements_per_thread):"
    "thread_data[i]=thread_data[i]*filter_kernel[fft_id,offset+i*FFT_fwd.stride]"
    "FFT_inv(thread_data,shared_mem)"
    "foriinrange(FFT_fwd.elements_per_thread):signal[fft_id,offset+i*FFT_fwd.stride]=thread_data[i]"
)
