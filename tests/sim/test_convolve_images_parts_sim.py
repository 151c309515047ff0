"""Images in parts: only so many at a time as the work area may hold."""

import numpy as np
import pytest
from scipy import signal

from devkernels.kernels import convolver2d, fftconvolve2d
from devkernels.tolerance import fft_bound, relative_error


@pytest.mark.parametrize(
    ("images", "filters", "dtype", "parts"),
    [((7,), (), "float32", 4), ((3,), (), "complex64", 3), ((3, 2), (2,), "float32", 2)],
)  # fmt: skip
def test_parts_are_as_good_as_the_whole(images, filters, dtype, parts, rng):
    x, h = rng.standard_normal((*images, 5, 4)).astype(dtype), rng.standard_normal((*filters, 3, 2)).astype(dtype)
    plan = convolver2d.FFTConvolve2D(
        fftconvolve2d.make_fftconvolve2d((5, 4), (3, 2), dtype, "same").plans, dtype, "same"
    )
    plan.work_limit = 1
    plates, some, _ = plan._pages(int(np.prod(images)), int(np.prod(filters)))
    assert (plates, some) == (parts, 1)
    out = np.full_like(x, np.nan)
    plan(x, h, out=out)
    want = signal.fftconvolve(x.astype(complex), np.broadcast_to(h, (*images, 3, 2)), "same", axes=(-2, -1))
    assert relative_error(out, want) < fft_bound(dtype, 64, 2)
    assert plan.work_bytes(100) == plan.work_bytes(2)
