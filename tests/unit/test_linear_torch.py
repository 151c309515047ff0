"""devkernels.linear.torch on the CPU: against torch, gradcheck, state dicts, autocast, torch.compile, operators."""

import copy
import importlib.util
import io

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch (extra torch)", allow_module_level=True)

import torch
from torch import nn

from devkernels.errors import ArgumentError, ArgumentTypeError, DevkernelsError, SpecError
from devkernels.linear import FusedMatmul, fused_matmul
from devkernels.linear.torch import FusedLinear, FusedMLP, fused_linear

ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "gelu": nn.GELU("tanh")}
ROUND = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(2**31)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors, and test processes side by side
    yield
    torch.set_num_threads(threads)


def close(got, want, limit):
    got, want = got.double(), want.double()
    assert got.shape == want.shape
    assert torch.linalg.vector_norm(got - want) <= limit * (torch.linalg.vector_norm(want) + 1)


@pytest.mark.parametrize("dtype", list(ROUND))
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("bias", [True, False])
def test_against_torch(dtype, activation, bias):
    for lead, n, k in [((6,), 30, 7), ((2, 5), 3, 33), ((1,), 1, 1), ((3,), 30, 1), ((), 8, 16)]:
        layer = FusedLinear(k, n, bias, activation, dtype=dtype)
        x = torch.randn(*lead, k, dtype=dtype, requires_grad=True)
        wide = [t.detach().double().requires_grad_() for t in (x, *layer.parameters())]
        want = ACTIVATIONS[activation](nn.functional.linear(*wide))
        y = layer(x)
        with torch.no_grad():
            assert torch.equal(layer(x), y)
        limit = 4 * ROUND[dtype]
        close(y, want, limit)
        dy = torch.randn_like(y)
        y.backward(dy)
        want.backward(dy.double())
        for one, other in zip((x, *layer.parameters()), wide, strict=True):
            close(one.grad, other.grad, 4 * limit)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_gradcheck(activation):
    layer = FusedLinear(4, 3, activation=activation, dtype=torch.float64)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w, b: fused_linear(x, w, b, activation), (x, layer.weight, layer.bias))
    mlp = FusedMLP([4, 5, 3, 2], activation or "relu", dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, *p: mlp(x), (x, *mlp.parameters()))


def test_differentiating_twice_is_refused():
    layer = FusedLinear(3, 2, activation="gelu")
    x = torch.randn(4, 3, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        dx.sum().backward()


def test_functional_transforms_are_refused_not_answered_wrongly():
    layer, x = FusedLinear(3, 2, activation="gelu"), torch.randn(4, 3)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: layer(x).sum())(x)
    with torch.no_grad(), pytest.raises(RuntimeError):
        torch.vmap(layer)(x.reshape(4, 1, 3))


def test_only_the_gradients_that_are_needed():
    layer = FusedLinear(7, 5, activation="relu")
    x = torch.randn(4, 7)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.requires_grad_(False)
    layer.weight.grad = layer.bias.grad = None
    layer(x.requires_grad_()).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert x.grad is not None


def test_inputs_that_are_not_contiguous():
    layer = FusedLinear(6, 5, activation="gelu", dtype=torch.float64)
    whole = torch.randn(4, 9, 12, dtype=torch.float64)
    for x in (whole[:, :, ::2], whole[:, ::2, 1:7], whole.permute(1, 0, 2)[..., 3:9], torch.randn(6, 4).double().T):
        with torch.no_grad():
            want = ACTIVATIONS["gelu"](nn.functional.linear(x, layer.weight, layer.bias))
            close(layer(x), want, 1e-12)
            close(layer(x), want, 1e-12)
        x = x.detach().requires_grad_()
        layer(x).backward(want)
        other = x.detach().requires_grad_()
        ACTIVATIONS["gelu"](nn.functional.linear(other, layer.weight, layer.bias)).backward(want)
        close(x.grad, other.grad, 1e-11)
    layer.weight.data = torch.randn(6, 5).double().T  # a transposed view as the weight
    close(layer(x), ACTIVATIONS["gelu"](nn.functional.linear(x, layer.weight, layer.bias)), 1e-12)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_no_tokens_at_all(activation):
    """The last batch of a loop may be empty; nn.Linear takes it."""
    layer = FusedLinear(6, 4, activation=activation)
    with torch.no_grad():
        assert layer(torch.zeros(2, 0, 6)).shape == (2, 0, 4)
    x = torch.zeros(0, 6, requires_grad=True)
    y = layer(x)
    assert y.shape == (0, 4)
    y.sum().backward()
    assert x.grad.shape == (0, 6)
    assert not layer.weight.grad.any()
    assert FusedMLP([6, 5, 4])(x).shape == (0, 4)


def test_state_dict_is_that_of_nn_linear():
    linear, layer = nn.Linear(6, 4), FusedLinear(6, 4, activation="relu")
    assert list(layer.state_dict()) == list(linear.state_dict())
    layer.load_state_dict(linear.state_dict())
    x = torch.randn(3, 6)
    close(layer(x), torch.relu(linear(x)), 1e-6)
    linear.load_state_dict(FusedLinear(6, 4).state_dict())
    shared = FusedLinear.from_linear(linear, "gelu")
    assert shared.weight is linear.weight
    assert shared.bias is linear.bias
    bare = FusedLinear.from_linear(nn.Linear(6, 4, bias=False))
    assert bare.bias is None
    assert bare(x).shape == (3, 4)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert "activation='relu'" in repr(layer)
    mlp = FusedMLP([6, 5, 4])
    assert list(mlp.state_dict()) == [f"layers.{i}.{p}" for i in (0, 1) for p in ("weight", "bias")]


def test_weights_replaced_between_calls():
    layer = FusedLinear(6, 4, activation="relu").requires_grad_(False)
    x = torch.randn(3, 6)
    layer(x)
    layer.weight.data = torch.randn(4, 6)
    layer.bias = nn.Parameter(torch.randn(4), requires_grad=False)
    close(layer(x), torch.relu(nn.functional.linear(x, layer.weight, layer.bias)), 1e-6)
    layer.weight.mul_(2)
    close(layer(x), torch.relu(nn.functional.linear(x, layer.weight, layer.bias)), 1e-6)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_compile_without_graph_breaks(activation):
    layer = FusedLinear(6, 4, activation=activation)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for tokens in (3, 5):
        x = torch.randn(tokens, 6, requires_grad=True)
        y = compiled(x)
        y.square().sum().backward()
        gradients = [p.grad.clone() for p in (x, *layer.parameters())]
        for p in (x, *layer.parameters()):
            p.grad = None
        layer(x).square().sum().backward()
        close(y, layer(x), 1e-6)
        for one, p in zip(gradients, (x, *layer.parameters()), strict=True):
            close(one, p.grad, 1e-6)
            p.grad = None
    mlp = FusedMLP([6, 5, 4], activation or "relu")
    close(torch.compile(mlp, fullgraph=True, backend="aot_eager")(x), mlp(x), 1e-6)


def test_operators_are_registered_properly():
    x, w, b = (torch.randn(*s, requires_grad=True) for s in ((3, 6), (5, 6), (5,)))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for activation, aux in (("none", False), ("relu", False), ("relu", True), ("gelu", True)):
        arguments = (x, w, b, activation, aux)
        torch.library.opcheck(torch.ops.devkernels.linear_forward, arguments, test_utils=checks)
    weights = [w, torch.randn(2, 5, requires_grad=True)]
    biases = [b, torch.randn(2, requires_grad=True)]
    torch.library.opcheck(torch.ops.devkernels.mlp_forward, (x, weights, biases, "relu"), test_utils=checks)


def test_autocast():
    layer = FusedLinear(6, 4, activation="relu")
    x = torch.randn(3, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        assert FusedMLP([6, 5, 4])(x).dtype == torch.bfloat16
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == layer.weight.grad.dtype == torch.float32
    assert layer(x).dtype == torch.float32


def test_wrong_calls():
    layer = FusedLinear(6, 4)
    for error, call in (
        (ArgumentError, lambda: layer(torch.ones(3, 5))),
        (ArgumentError, lambda: layer(torch.ones(0, 5))),
        (ArgumentError, lambda: layer(torch.tensor(1.0))),
        (ArgumentTypeError, lambda: layer(torch.ones(3, 6).double())),
        (ArgumentError, lambda: fused_linear(torch.ones(3, 6), torch.ones(4, 6), torch.ones(3))),
        (SpecError, lambda: fused_linear(torch.ones(3, 6), torch.ones(4, 6), None, "tanh")),
        (SpecError, lambda: FusedLinear(0, 3)),
        (SpecError, lambda: FusedLinear(3, 3, activation="tanh")),
        (SpecError, lambda: FusedMLP([3])),
        (SpecError, lambda: FusedMLP([3, 4], "tanh")),
    ):
        with pytest.raises(error):
            call()
        with torch.no_grad(), pytest.raises(error):
            call()


def test_tensors_in_fused_matmul():
    a, b, bias = torch.randn(5, 7), torch.randn(3, 7), torch.randn(3)
    y, mask = fused_matmul(a, b.T, bias=bias, activation="relu", aux=True)
    want = torch.relu(a @ b.T + bias)
    close(y, want, 1e-6)
    assert torch.equal(mask.unpack(), y > 0)
    g, v = torch.randn(5, 4), torch.randn(4, 3)
    dx, extra = FusedMatmul(g, v, epilog="DRELU_BGRAD", epilog_inputs={"relu_aux": mask}).plan().execute()
    close(dx, (g @ v) * (y > 0), 1e-6)
    close(extra["drelu_bgrad"], dx.sum(0), 1e-6)
    with pytest.raises(DevkernelsError):
        fused_matmul(a, b.T.numpy())
    mask._buffer.data.zero_()
    with pytest.raises(ArgumentError, match="modified"):
        FusedMatmul(g, v, epilog="DRELU", epilog_inputs={"relu_aux": mask}).plan()


def test_tf32_follows_torch(monkeypatch):
    a, b = torch.randn(20, 300), torch.randn(300, 30)
    want = a.double() @ b.double()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    exact = (fused_matmul(a, b) - want).norm() / want.norm()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    rounded = (fused_matmul(a, b) - want).norm() / want.norm()
    assert exact < 1e-6 < 1e-5 < rounded < 2**-11


def test_what_does_not_fit_is_said_by_name():
    layer = FusedLinear(6, 4)
    with pytest.raises(ArgumentTypeError, match=r"x is float64 and weight is float32.*autocast"):
        layer(torch.zeros(3, 6, dtype=torch.float64))
    with pytest.raises(ArgumentTypeError, match="takes a tensor"):
        layer.record([1.0])
    with pytest.raises(ArgumentTypeError, match="takes a tensor"):
        FusedMLP([6, 4]).record(None)
