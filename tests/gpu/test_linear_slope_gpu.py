"""The forward product that keeps GELU's slope, and layers that take it, on a GPU with sm_90."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch
from torch import nn

from devkernels.libraries import on_stream
from devkernels.linear import FusedLinear as ArrayLinear
from devkernels.linear import FusedMLP as ArrayMLP
from devkernels.linear import _gelu_forward, joined, kept
from devkernels.linear.arrays import package
from devkernels.linear.torch import FusedLinear
from devkernels.tolerance import unit_roundoff
from tests.gpu.linear_device import needs_cupy, start_afresh

# Tiles are 128 x 256 (256 x 256 in pairs, for more than 2048 inputs), steps 64; sixteen make the last tile's results.
SHAPES = [(1, 64, 64), (128, 256, 128), (200, 320, 448), (1000, 192, 1024), (63, 1024, 1536), (4099, 576, 2048),
          (9000, 2048, 192), (700, 640, 2112)]  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path, rng):
    start_afresh(monkeypatch, tmp_path, rng, sm_90=True)


@pytest.fixture
def launches(monkeypatch):
    calls, launch = [], _gelu_forward.GeluForward.launch
    monkeypatch.setattr(_gelu_forward.GeluForward, "launch", lambda *a: (calls.append(a), launch(*a))[1])
    return calls


def with_slope(z):
    """GELU and its derivative, in the precision of z."""
    z = z.detach().requires_grad_()
    value = nn.functional.gelu(z, approximate="tanh")
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "n", "k"), SHAPES)
def test_the_kernel(dtype, tokens, n, k, with_bias):
    name, new = str(dtype)[6:], {"device": "cuda", "dtype": dtype}
    x, weight, bias = torch.randn(tokens, k, **new), torch.randn(n, k, **new) * 2 / k**0.5, torch.randn(n, **new)
    y, slope = (torch.full((tokens + 1, n), torch.nan, **new) for _ in range(2))  # and what lies behind them
    kernel = kept.slope_kernel(package("torch"), tokens, n, k, name, 0)
    stream = torch.cuda.current_stream().cuda_stream
    pointers = x.data_ptr(), weight.data_ptr(), 0, y.data_ptr(), bias.data_ptr() * with_bias, slope.data_ptr()
    kernel.launch(*pointers, stream)
    added = bias.double() * with_bias
    z = x.double() @ weight.double().T + added
    value, rise = with_slope(z)
    u, wide = unit_roundoff(name), unit_roundoff("float32")
    off = 2 * (k + 2) * wide * (x.double().abs() @ weight.double().abs().T + added.abs()) + 1.01 * u * z.abs()
    own = 2.0**-18 * (1 + z.abs())  # of the exponential and the reciprocal, and of what is made of them
    for got, want, steepest in ((y, value, 1.13), (slope, rise, 1.0)):
        error = (got[:tokens].double() - want).abs()
        assert (error <= steepest * off + own + 1.01 * u * (want.abs() + off) + 2.0**-24).all()  # NaN never is
        assert got[tokens:].isnan().all()
    first = y.clone(), slope.clone()
    kernel.launch(*pointers, stream)
    assert all(torch.equal(a[:tokens], b[:tokens]) for a, b in zip(first, (y, slope), strict=True))


def test_what_is_not_finite_stays_where_it_is():
    new = {"device": "cuda", "dtype": torch.float16}
    x, weight = torch.randn(256, 128, **new), torch.randn(256, 128, **new)
    x[7, 3], x[200, 5] = torch.nan, torch.inf
    y, slope = torch.zeros(256, 256, **new), torch.zeros(256, 256, **new)
    kernel = kept.slope_kernel(package("torch"), 256, 256, 128, "float16", 0)
    kernel.launch(x.data_ptr(), weight.data_ptr(), 0, y.data_ptr(), 0, slope.data_ptr(),
                  torch.cuda.current_stream().cuda_stream)  # fmt: skip
    assert set((~y.isfinite()).nonzero()[:, 0].tolist()) == {7, 200}
    assert y[7].isnan().all()
    assert slope[7].isnan().all()
    extremes = torch.tensor([-65504.0, -300.0, -20.0, 20.0, 300.0, 65504.0], dtype=torch.float16, device="cuda")
    bias = extremes.repeat(43)[:256].contiguous()
    x.zero_()
    kernel.launch(x.data_ptr(), weight.data_ptr(), 0, y.data_ptr(), bias.data_ptr(), slope.data_ptr(),
                  torch.cuda.current_stream().cuda_stream)  # fmt: skip
    assert torch.equal(y, torch.relu(bias).expand_as(y))
    assert torch.equal(slope, (bias > 0).half().expand_as(slope))


def test_what_there_is_no_kernel_for():
    arrays = package("torch")
    assert kept.slope_kernel(arrays, 64, 128, 192, "float16", 0) is not None
    for dtype, tokens, n, k in [("float32", 64, 128, 512), ("float16", 64, 120, 512), ("float16", 64, 128, 100)]:
        assert kept.slope_kernel(arrays, tokens, n, k, dtype, 0) is None


def close(found, wanted):
    for one, exact in zip(found, wanted, strict=True):
        off = torch.linalg.vector_norm(one.double() - exact)
        assert off <= 8 * unit_roundoff("float16") * torch.linalg.vector_norm(exact)


def gradients_of(layer, x, dy):
    wide = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    y = nn.functional.gelu(nn.functional.linear(*wide), approximate="tanh")
    return [y.detach(), *torch.autograd.grad(y, wide, dy.double())]


@pytest.mark.parametrize("one_kernel", [False, True])
def test_modules_of_torch(launches, one_kernel):
    """On streams of their own, for batches that were not measured, for inputs that are not contiguous."""
    tokens, n, k = 192, 320, 512
    kept.remember_slope(package("torch"), tokens, n, k, "float16", 0, True)
    joined.remember(package("torch"), 0, "float16", tokens, n, k, "gelu_slope", one_kernel)
    layer = FusedLinear(k, n, activation="gelu", device="cuda", dtype=torch.float16)
    new = {"device": "cuda", "dtype": torch.float16}
    for turn in range(4):
        x = torch.randn(2, tokens // 2, k, **new, requires_grad=True)
        dy = torch.randn(2, tokens // 2, n, **new)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            y = layer(x)
            found = [y.detach(), *torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)]
        stream.synchronize()
        del y  # torch warns where a node of an old graph meets another stream
        close(found, gradients_of(layer, x, dy))
        assert len(launches) == turn + 1
    other = torch.randn(tokens + 8, k, **new, requires_grad=True)  # a batch for which nothing was measured
    dy = torch.randn(tokens + 8, n, **new)
    y = layer(other)
    close([y.detach(), *torch.autograd.grad(y, (other, layer.weight, layer.bias), dy)], gradients_of(layer, other, dy))
    assert len(launches) == 4
    odd = torch.randn(k, tokens, **new).T.requires_grad_()  # not contiguous
    dy = torch.randn(n, tokens, **new).T
    y = layer(odd)
    close([y.detach(), *torch.autograd.grad(y, (odd, layer.weight, layer.bias), dy)], gradients_of(layer, odd, dy))
    with torch.no_grad():  # nothing to keep
        before = len(launches)
        layer(x)
        assert len(launches) == before


@pytest.mark.parametrize("one_kernel", [False, True])
def test_recorded_modules(launches, one_kernel):
    tokens, n, k = 128, 256, 512
    kept.remember_slope(package("torch"), tokens, n, k, "float16", 0, True)
    joined.remember(package("torch"), 0, "float16", tokens, n, k, "gelu_slope", one_kernel)
    layer = FusedLinear(k, n, activation="gelu", device="cuda", dtype=torch.float16)
    new = {"device": "cuda", "dtype": torch.float16}
    layer.record(torch.randn(tokens, k, **new, requires_grad=True))
    assert launches
    for _ in range(3):
        x, dy = torch.randn(tokens, k, **new, requires_grad=True), torch.randn(tokens, n, **new)
        count = len(launches)
        y = layer(x)
        assert len(launches) == count  # from the graph
        close([y.detach(), *torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)], gradients_of(layer, x, dy))


@needs_cupy
@pytest.mark.parametrize("one_kernel", [False, True])
def test_layers_of_cupy(launches, one_kernel):
    import cupy

    tokens, n, k = 192, 320, 512
    arrays = package("cupy")
    kept.remember_slope(arrays, tokens, n, k, "float16", 0, True)
    joined.remember(arrays, 0, "float16", tokens, n, k, "gelu_slope", one_kernel)
    layer = FusedLinear(k, n, activation="gelu", device="cuda", dtype=torch.float16)
    other = ArrayLinear(k, n, activation="gelu", dtype="float16", package_name="cupy")
    other.weight, other.bias = (cupy.asarray(p.detach()) for p in (layer.weight, layer.bias))
    new = {"device": "cuda", "dtype": torch.float16}
    for turn in range(4):
        x, dy = torch.randn(tokens, k, **new), torch.randn(tokens, n, **new)
        want = gradients_of(layer, x, dy)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with on_stream("cupy", stream.cuda_stream, 0):
            y, saved = other.forward_saving(cupy.asarray(x))
            later = other.forward_saving(cupy.asarray(x))[1]  # two passes before their ways back
            assert saved.mask.kind == ("gelu_slope" if turn else "gelu_aux")
            found = [y, *other.backward(cupy.asarray(dy), saved)]
            again = other.backward(cupy.asarray(dy), later)
        stream.synchronize()
        close([torch.as_tensor(g, device="cuda") for g in found], want)
        close([torch.as_tensor(g, device="cuda") for g in again], want[1:])
    assert len(launches) == 7
    assert abs(saved.mask.unpack() - saved.mask.raw()).max() == 0


@needs_cupy
def test_mlp_of_cupy(launches):
    import cupy

    tokens, sizes = 192, [128, 320, 256, 64]
    arrays = package("cupy")
    for a, b in ((128, 320), (320, 256)):
        kept.remember_slope(arrays, tokens, b, a, "float16", 0, True)
    mlp = ArrayMLP(sizes, activation="gelu", dtype="float16", package_name="cupy", seed=int(torch.randint(1 << 20, ())))
    new = {"device": "cuda", "dtype": torch.float16}
    for _ in range(3):
        x, dy = torch.randn(tokens, sizes[0], **new), torch.randn(tokens, sizes[-1], **new)
        wide = x.double().requires_grad_()
        parameters = [torch.as_tensor(p, device="cuda").double().requires_grad_() for p in mlp.parameters()]
        y = wide
        for i in range(3):
            y = nn.functional.linear(y, *parameters[2 * i : 2 * i + 2])
            y = nn.functional.gelu(y, approximate="tanh") if i < 2 else y
        want = torch.autograd.grad(y, (wide, *parameters), dy.double())
        torch.cuda.synchronize()
        mlp.forward(cupy.asarray(x))
        dx, found = mlp.backward(cupy.asarray(dy))
        cupy.cuda.get_current_stream().synchronize()
        close([torch.as_tensor(g, device="cuda") for g in (dx, *(g for pair in found for g in pair))], want)
    assert len(launches) == 4  # of two layers, from the second time on


@needs_cupy
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_a_stream_that_is_given_is_the_one_for_all_steps(activation):
    """What a layer does besides the products (copies of what is not contiguous, the activation) must wait, too."""
    import cupy

    tokens, n, k = 512, 256, 512
    layer = ArrayLinear(k, n, activation=activation, dtype="float32", package_name="cupy")
    reference = FusedLinear(k, n, activation=activation, device="cuda")
    with torch.no_grad():
        reference.weight.copy_(torch.as_tensor(layer.weight)), reference.bias.copy_(torch.as_tensor(layer.bias))
    busy = cupy.random.standard_normal((4096, 4096), dtype="float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    x, dy = cupy.full((k, 2, tokens // 2), cupy.nan, "float32"), cupy.full((n, 2, tokens // 2), cupy.nan, "float32")
    given = (
        cupy.random.standard_normal(x.shape, dtype="float32"),
        cupy.random.standard_normal(dy.shape, dtype="float32"),
    )
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        for _ in range(8):  # some milliseconds
            busy = busy @ busy / 4096
        x[...], dy[...] = given
    y = layer.forward(x.transpose(1, 2, 0), stream=stream)
    found = layer.backward(dy.transpose(1, 2, 0), stream=stream)
    stream.synchronize()
    x, dy = (torch.as_tensor(a, device="cuda").permute(1, 2, 0).contiguous() for a in given)
    leaf = x.requires_grad_()
    want = reference(leaf)
    grads = torch.autograd.grad(want, (leaf, reference.weight, reference.bias), dy)
    for one, exact in zip((y, *found), (want.detach(), *grads), strict=True):
        assert torch.allclose(torch.as_tensor(one, device="cuda"), exact, rtol=1e-3, atol=1e-3)
