"""examples/train_digits.py learns, on NumPy and (where it is installed) torch, and its loss is the reference's."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDS = ("sklearn", "matplotlib", "tqdm")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDS), reason=f"needs {', '.join(NEEDS)} (extra examples)"
)


@pytest.mark.parametrize(("backend", "activation"), [("numpy", "relu"), ("numpy", "gelu"), ("torch", "relu")])
def test_digits(backend, activation, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    plot = tmp_path / "digits.png"
    command = [sys.executable, ROOT / "examples" / "train_digits.py", "--backend", backend, "--plot", plot]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, "--activation", activation], env=variables, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout  # it checks the 97 % itself
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    early = [row for row in rows if int(row[0]) <= 5]
    assert len(early) == 3
    for _, loss, reference, _ in early:
        assert float(loss) == pytest.approx(float(reference), rel=2e-3)
    assert float(rows[-1][1]) < 0.2 * float(rows[0][1])  # of noisy images; it does not go to zero
    assert plot.read_bytes()[:4] == b"\x89PNG"
