"""One small launch of each convolution kernel, to be run under a checker; not collected by pytest.

compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/sanitize_convolve.py
compute-sanitizer --tool racecheck --error-exitcode 9 python tests/gpu/sanitize_convolve.py
"""

import cupy as cp
import numpy as np

import devkernels

CASES = [
    # x, h, mode, dtype: block barriers and warp barriers, tails, two rows at a time, masks, wrapping, several passes
    ((3, 64), (64,), "circular", "complex64"),
    ((3, 512), (512,), "circular", "complex64"),
    ((3, 2048), (2048,), "circular", "complex128"),
    ((5, 1536), (100,), "circular", "float32"),
    ((2, 3, 4096), (3, 4096), "causal", "float32"),
    ((2, 3, 1000), (3, 1000), "full", "float32"),
    ((2, 8192), (8192,), "causal", "float32"),
    ((2, 5000), (63,), "same", "float32"),
    ((2, 997), (31,), "circular", "complex64"),
    ((1, 20000), (17000,), "same", "float32"),
]


def main():
    rng = np.random.default_rng(0)
    for x_shape, h_shape, mode, dtype in CASES:
        x, h = (cp.asarray(rng.standard_normal(shape)).astype(dtype) for shape in (x_shape, h_shape))
        y = devkernels.fftconvolve(x, h, mode)
        assert not bool(cp.isnan(y).any()), (x_shape, mode)
    x, h = (cp.asarray(rng.standard_normal(shape)).astype("float32") for shape in ((3, 33, 70), (5, 6)))
    y = devkernels.fftconvolve(x, h, "same", axes=(-2, -1))
    assert not bool(cp.isnan(y).any())
    cp.cuda.Device().synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
