"""Gradients of convolutions against their definition, in the simulator."""

import numpy as np
import pytest

from devkernels.kernels import convolve_grad, convolve_views
from devkernels.kernels.fftconvolve import make_fftconvolve
from devkernels.tolerance import fft_bound, relative_error

pytestmark = pytest.mark.sim


def by_definition(gradient, x, h, start, circular):
    """d sum(conj(g) y) / d conj(x), d conj(h) for y[m] = sum_j h[j] x[start + m - j], summed over shared operands."""
    batch = gradient.shape[:-1]
    of_x = np.zeros((*batch, x.shape[-1]), dtype=complex)
    of_h = np.zeros((*batch, h.shape[-1]), dtype=complex)
    rows, filters = (np.broadcast_to(a, (*batch, a.shape[-1])) for a in (x, h))
    length = x.shape[-1]
    for m in range(gradient.shape[-1]):
        for j in range(h.shape[-1]):
            n = start + m - j
            if circular:
                n %= length
            if 0 <= n < length:
                of_x[..., n] += gradient[..., m] * filters[..., j].conj()
                of_h[..., j] += gradient[..., m] * rows[..., n].conj()
    return convolve_views.sum_to(of_x, x.shape[:-1]), convolve_grad.sum_to(of_h, h.shape[:-1])


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape)).astype(dtype) if dtype.startswith("c") else values.astype(dtype)


@pytest.mark.parametrize(
    ("x_shape", "h_shape", "mode", "dtype", "segment"),
    [
        ((2, 3, 8), (3, 8), "causal", "float64", None),
        ((2, 3, 9), (3, 4), "full", "float64", None),
        ((2, 9), (1, 5), "same", "complex128", None),
        ((3, 9), (4,), "valid", "float32", None),
        ((2, 4), (7,), "valid", "float64", None),
        ((2, 4), (13,), "same", "float64", None),
        ((2, 16), (5,), "circular", "complex64", None),
        ((2, 25), (4,), "same", "float64", 8),
        ((2, 25), (4,), "circular", "float64", 8),
        ((2, 21), (6,), "full", "float64", 8),
    ],
)
def test_gradients(x_shape, h_shape, mode, dtype, segment, rng, monkeypatch):
    if segment:  # as for rows that no transform holds
        monkeypatch.setattr(convolve_grad, "_SEGMENT", segment)
        monkeypatch.setattr(convolve_grad.convolve_plan, "longest_linear", lambda dtype: 8)
    x, h = random(rng, x_shape, dtype), random(rng, h_shape, dtype)
    plan = make_fftconvolve(x_shape[-1], h_shape[-1], dtype, mode)
    gradient = random(rng, (*x_shape[:-1], plan.plan.window), dtype)
    want_x, want_h = by_definition(gradient, x, h, plan.plan.start, mode == "circular")
    bound = fft_bound(dtype, 64, 2)
    assert relative_error(convolve_grad.input_gradient(plan, gradient, h, x.shape[:-1]), want_x) < bound
    assert relative_error(convolve_grad.filter_gradient(plan, gradient, x, h.shape[:-1]), want_h) < bound
