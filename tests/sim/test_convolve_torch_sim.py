"""torch's autograd through convolutions, on tensors of the host. More of it, where it is fast, in the GPU tier."""

import pytest

import devkernels

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.sim


def leaf(rng, *shape):
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def test_finite_differences(rng):
    x, h = leaf(rng, 1, 3), leaf(rng, 2, 2)
    assert torch.autograd.gradcheck(lambda x, h: devkernels.fftconvolve(x, h, "full"), (x, h))


def test_an_operand_used_twice_has_the_sum_of_its_gradients(rng):
    x, h = leaf(rng, 2, 4), leaf(rng, 4)
    once = torch.autograd.grad(devkernels.fftconvolve(x, h, "causal").sum(), (x, h))
    y = devkernels.fftconvolve(x, h, "causal") + 2 * devkernels.fftconvolve(x, h, "causal")
    for got, want in zip(torch.autograd.grad(y.sum(), (x, h)), once, strict=True):
        assert torch.allclose(got, 3 * want, atol=1e-12)
    twice = devkernels.fftconvolve(devkernels.fftconvolve(x, h, "causal"), h, "causal")
    want = torch.autograd.grad(sum((_shift(x, i + j) * h[i] * h[j]).sum() for i in range(4) for j in range(4)), (x, h))
    for got, expected in zip(torch.autograd.grad(twice.sum(), (x, h)), want, strict=True):
        assert torch.allclose(got, expected, atol=1e-12)


def _shift(x, by):
    return torch.nn.functional.pad(x, (by, 0))[..., : x.shape[-1]]


def test_only_what_is_wanted_is_computed_and_functions_of_ones_own_are_refused(rng):
    x, h = leaf(rng, 2, 4), leaf(rng, 4)
    (of_x,) = torch.autograd.grad(devkernels.fftconvolve(x, h.detach(), "causal").sum(), (x,))
    assert of_x.shape == x.shape
    plan = devkernels.make_fftconvolve(4, 4, "float64", "causal", epilogue=lambda value, row, position: 2 * value)
    with pytest.raises(devkernels.DevkernelsError, match="derivatives"):
        plan(x, h)
    assert not plan(x.detach(), h.detach()).requires_grad
    with pytest.raises(devkernels.DevkernelsError, match="requires a gradient"):
        plan(x, spectra=plan.prepare(h.detach()))


def test_gradients_pass_axes_dtypes_and_lazy_conjugates(rng):
    x, h = leaf(rng, 3, 2), leaf(rng, 2)
    y = devkernels.fftconvolve(x, h, "full", axes=0)  # along time, a filter for all channels
    want = sum(torch.nn.functional.pad(x * h[j], (0, 0, j, 1 - j)) for j in range(2))
    assert torch.allclose(y, want, atol=1e-12)
    for got, expected in zip(torch.autograd.grad(y.square().sum(), (x, h)),
                             torch.autograd.grad(want.square().sum(), (x, h)), strict=True):  # fmt: skip
        assert torch.allclose(got, expected, atol=1e-12)
    single = x.detach().float().requires_grad_()
    y = devkernels.fftconvolve(single, torch.arange(2), "causal")  # integers count as float64
    assert y.dtype == torch.float64
    (of_x,) = torch.autograd.grad(y.sum(), (single,))
    assert of_x.dtype == torch.float32
    assert torch.allclose(of_x, torch.tensor([1.0, 0.0]).expand(3, 2), atol=1e-6)
    z = torch.complex(leaf(rng, 4), leaf(rng, 4))
    assert z.conj().is_conj()
    got, want = devkernels.fftconvolve(z, z.conj()), devkernels.fftconvolve(z, z.conj().resolve_conj())
    assert torch.equal(got, want)
    real = torch.autograd.grad(devkernels.fftconvolve(z, h, "causal").abs().square().sum(), (h,))
    assert real[0].dtype == torch.float64


@pytest.mark.parametrize("mode", ["same", "circular"])
def test_images_differentiate(mode, rng):
    x, h = leaf(rng, 2, 2), leaf(rng, 1, 2)
    assert torch.autograd.gradcheck(lambda x, h: devkernels.fftconvolve(x, h, mode, axes=(0, 1)), (x, h))


def test_what_torch_has_alone_is_refused_in_words():
    x = torch.ones(4, dtype=torch.bfloat16)
    with pytest.raises(devkernels.DevkernelsError, match="bfloat16"):
        devkernels.fftconvolve(x, x)
    with pytest.raises(devkernels.DevkernelsError, match="numpy and in2 one of torch"):
        devkernels.fftconvolve([1.0, 2.0], torch.ones(4))
