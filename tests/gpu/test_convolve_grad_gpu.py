"""torch autograd through convolutions: first and second derivatives by finite differences in float64."""

import pytest

import devkernels

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    ("x_shape", "h_shape", "mode"),
    [((2, 3, 8), (3, 8), "causal"), ((2, 9), (4,), "full"), ((2, 9), (2, 5), "same"), ((9,), (4,), "valid"),
     ((2, 12), (12,), "circular"), ((2, 97), (5,), "circular"), ((1, 300), (3,), "same")],
)  # fmt: skip
def test_gradcheck(x_shape, h_shape, mode, dtype, rng):
    generator = torch.Generator(device="cuda").manual_seed(int(rng.integers(1 << 30)))
    make = dict(dtype=dtype, device="cuda", generator=generator)
    x = torch.randn(x_shape, **make).requires_grad_()
    h = torch.randn(h_shape, **make).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, h: devkernels.fftconvolve(x, h, mode), (x, h))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    ("x_shape", "h_shape", "mode"),
    [((2, 3, 5, 4), (3, 2, 3), "full"), ((2, 6, 5), (3, 3), "same"), ((6, 5), (2, 3), "valid"),
     ((2, 1, 4, 4), (2, 1, 6, 3), "same"), ((2, 8, 4), (3, 3), "circular"), ((7, 11), (3, 2), "circular")],
)  # fmt: skip
def test_gradcheck_of_images(x_shape, h_shape, mode, dtype, rng):
    generator = torch.Generator(device="cuda").manual_seed(int(rng.integers(1 << 30)))
    make = dict(dtype=dtype, device="cuda", generator=generator)
    x, h = torch.randn(x_shape, **make).requires_grad_(), torch.randn(h_shape, **make).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, h: devkernels.fftconvolve(x, h, mode, axes=(-2, -1)), (x, h))


@pytest.mark.parametrize(("x_shape", "h_shape"), [((2, 3, 6), (3,)), ((3, 6), (2, 1, 3)), ((2, 1, 6), (3, 4))])
def test_gradients_are_summed_over_broadcast_axes(x_shape, h_shape, rng):
    generator = torch.Generator(device="cuda").manual_seed(int(rng.integers(1 << 30)))
    make = dict(dtype=torch.float64, device="cuda", generator=generator)
    x, h = torch.randn(x_shape, **make).requires_grad_(), torch.randn(h_shape, **make).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, h: devkernels.fftconvolve(x, h, "full"), (x, h))


def test_second_derivatives_of_images(rng):
    generator = torch.Generator(device="cuda").manual_seed(int(rng.integers(1 << 30)))
    make = dict(dtype=torch.float64, device="cuda", generator=generator)
    x, h = torch.randn(2, 3, 4, **make).requires_grad_(), torch.randn(2, 2, **make).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, h: devkernels.fftconvolve(x, h, "same", axes=(-2, -1)), (x, h))


def test_correlate_and_oaconvolve_are_differentiable(rng):
    generator = torch.Generator(device="cuda").manual_seed(int(rng.integers(1 << 30)))
    make = dict(dtype=torch.complex128, device="cuda", generator=generator)
    x, h = torch.randn(2, 9, **make).requires_grad_(), torch.randn(4, **make).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, h: devkernels.correlate(x, h, "same"), (x, h))
    assert torch.autograd.gradcheck(lambda x, h: devkernels.oaconvolve(x, h, "full"), (x, h))


def test_second_derivatives(rng):
    generator = torch.Generator(device="cuda").manual_seed(int(rng.integers(1 << 30)))
    make = dict(dtype=torch.float64, device="cuda", generator=generator)
    x, h = torch.randn(2, 8, **make).requires_grad_(), torch.randn(8, **make).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, h: devkernels.fftconvolve(x, h, "causal"), (x, h))


@pytest.mark.parametrize(
    ("shape", "taps", "mode"),
    [((3, 4, 1024), 1024, "causal"), ((2, 4, 20000), 33, "same"), ((2, 3, 40000), 40000, "causal")],
)
def test_gradients_of_longer_rows_agree_with_torch(shape, taps, mode, rng):
    generator = torch.Generator(device="cuda").manual_seed(int(rng.integers(1 << 30)))
    x = torch.randn(shape, device="cuda", generator=generator).requires_grad_()
    h = torch.randn(shape[-2], taps, device="cuda", generator=generator).requires_grad_()
    y = devkernels.fftconvolve(x, h, mode)
    weights = torch.randn(y.shape, device="cuda", generator=generator)
    got = torch.autograd.grad((y * weights).sum(), (x, h))
    wide_x, wide_h = x.detach().double().requires_grad_(), h.detach().double().requires_grad_()
    points = shape[-1] + taps - 1
    full = torch.fft.irfft(torch.fft.rfft(wide_x, points) * torch.fft.rfft(wide_h, points), points)
    start = (taps - 1) // 2 if mode == "same" else 0
    want = torch.autograd.grad((full[..., start : start + shape[-1]] * weights.double()).sum(), (wide_x, wide_h))
    for mine, theirs in zip(got, want, strict=True):
        assert float((mine.double() - theirs).norm() / theirs.norm()) < 3e-6
