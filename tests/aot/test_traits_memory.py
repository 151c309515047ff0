"""Traits of device functions are kept on disk: a warm program does not load the library for them."""

import os
import subprocess
import sys

PROGRAM = """
import numpy as np
import devkernels
from devkernels import libmathdx, traits

f = devkernels.fft(fft_type="c2c", size=96, precision=np.float32, direction="forward")
g = devkernels.fft(fft_type="r2c", size=64, precision=np.float64, ffts_per_block=3)
h = devkernels.fft(fft_type="c2c", size=8, precision=np.float16, direction="inverse", execution="Thread")
print(libmathdx.load.cache_info().currsize, [o.traits for o in (f, g, h, f.inverse())], [o.spec for o in (f, g, h)])
"""


def test_second_process_does_not_load_the_library(tmp_path):
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_CACHE_DIR": str(tmp_path)}
    answers = [
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    (first, told), (second, again) = (answer.stdout.split(" ", 1) for answer in answers)
    assert (first, second) == ("1", "0")
    assert again == told
