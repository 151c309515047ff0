"""The extension for torch: layers in training through C++, with cuBLASLt and kernels on the CPU behind it."""

import gc
import importlib.util
import weakref

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch (extra torch)", allow_module_level=True)

import torch
from torch import nn

from devkernels.linear import _torch_run, _torch_train, _workspace
from devkernels.linear.torch import FusedLinear, fused_linear
from tests.unit.native_world import WIDTH, World, randn

ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "gelu": nn.GELU("tanh")}
FEATURES = 16


@pytest.fixture
def world(monkeypatch, tmp_path, rng, built):
    torch.manual_seed(int(rng.integers(2**31)))
    return World(monkeypatch, tmp_path, built)


def operands(with_bias=True, lead=(3, 4)):
    return (randn(*lead, WIDTH).requires_grad_(), randn(FEATURES, WIDTH).requires_grad_(),
            randn(FEATURES).requires_grad_() if with_bias else None)  # fmt: skip


def reference(x, weight, bias, activation):
    return ACTIVATIONS[activation](nn.functional.linear(x, weight, bias))


def step(x, weight, bias, activation, dy=None, leaves=None):
    """Compare one training step with torch's own; return the result."""
    y, want = fused_linear(x, weight, bias, activation), reference(x, weight, bias, activation)
    assert torch.allclose(y, want)
    dy = randn(*y.shape) if dy is None else dy
    leaves = leaves or [t for t in (x, weight, bias) if t is not None and t.requires_grad]
    got, wanted = torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy)
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other)
    return y


def warm(world, x, weight, bias, activation):
    """Steps until the extension takes them."""
    for _ in range(3):
        step(x, weight, bias, activation)
    assert _torch_train.known(weight, activation).native is not None
    world.took.clear()


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("activation", "mask", "joined"), [
    (None, False, False), *((a, m, j) for a in ("relu", "gelu") for m in (False, True) for j in (False, True)),
])  # fmt: skip
def test_steps_that_repeat_go_through_the_extension(world, activation, mask, joined, with_bias):
    world.mask, world.joined = mask, joined
    _, weight, bias = operands(with_bias)
    warm(world, operands()[0], weight, bias, activation)
    before = world.fake.calls
    for _ in range(3):
        y = step(operands()[0], weight, bias, activation)
        assert "LayerBackward" in type(y.grad_fn).__name__ or "Layer" in y.grad_fn.name()
    assert not world.took
    assert world.fake.calls - before == 3 * (2 if joined else 3)
    assert world.driver.launches >= (0 if activation is None else 3)
    weight.data = randn(FEATURES, WIDTH) * 0.5  # other addresses, which the plan does not mind
    for _ in range(2):
        step(operands()[0], weight, bias, activation)
    assert not world.took
    if activation is not None and not joined:
        assert all(counters == 4096 for _, counters in world.kernels[0].places[-3:])


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_gradients_that_are_not_asked_for_are_not_made(world, activation):
    x, weight, bias = operands()
    warm(world, x, weight, bias, activation)
    summed = 1 if activation is None else 0  # the bias's gradient comes with a product, or with the kernel
    for leaves, products in (([x], 1), ([weight], 1), ([bias], summed), ([x, bias], 1 + summed), ([x, weight], 2)):
        before = world.fake.calls
        step(x, weight, bias, activation, leaves=leaves)
        assert world.fake.calls - before == 1 + products
    step(x.detach(), weight, bias, activation)  # the first layer of a network
    step(x, weight, bias.detach(), activation)
    assert not world.took


def test_first_layers_whose_input_needs_no_gradient(world):
    x, weight, bias = operands()
    warm(world, x.detach(), weight, bias, "relu")
    step(randn(3, 4, WIDTH), weight, bias, "relu")
    step(x, weight, bias, "relu")
    assert not world.took


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_what_differs_goes_the_python_way(world):
    x, weight, bias = operands()
    warm(world, x, weight, bias, "relu")
    native = _torch_train.known(weight, "relu").native
    assert native(x, weight, bias) is not None
    for other in (
        x[:2],
        x.transpose(0, 1),
        x.float(),
        x.view(12, 8),
        x.detach().conj_physical()[..., :4],
        x.to("meta"),
    ):
        assert native(other, weight, bias) is None
    assert native(x, weight, None) is None
    assert native(x, weight, bias[:8]) is None
    assert native(x, weight.T, bias) is None
    with torch.inference_mode():
        assert native(x.clone(), weight, bias) is None

    class Mine(torch.Tensor):
        pass

    assert native(x.detach().as_subclass(Mine), weight, bias) is None
    assert native(3, weight, bias) is None
    with pytest.raises(TypeError, match="x, weight and bias"):
        native(x, weight)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), randn(3, 4, WIDTH))
        assert native(dual, weight, bias) is None
    vectors = torch.func.vmap(lambda x: fused_linear(x, weight.detach(), bias.detach(), None) * 1)
    assert native(x, weight, bias) is not None
    del vectors


def test_gradients_that_look_otherwise_take_the_longer_way(world):
    x, weight, bias = operands()
    warm(world, x, weight, bias, "gelu")
    step(x, weight, bias, "gelu", dy=randn(3, FEATURES, 4).mT)
    y, want = fused_linear(x, weight, bias, "gelu"), reference(x, weight, bias, "gelu")
    got, wanted = (torch.autograd.grad(one.sum(), (x, weight, bias)) for one in (y, want))  # an expanded gradient
    assert all(torch.allclose(a, b) for a, b in zip(got, wanted, strict=True))
    assert world.took == ["longer", "longer"]


def test_a_launch_that_fails_is_tried_the_python_way(world):
    x, weight, bias = operands()
    warm(world, x, weight, bias, "relu")
    world.counts["fail"] = 1
    step(x, weight, bias, "relu")
    assert world.took == ["function"]
    world.took.clear()
    y = fused_linear(x, weight, bias, "relu")
    world.driver.fail = 1  # in the backward pass, where a thread may have no context yet
    step(x, weight, bias, "relu")
    assert world.entered == [-1]  # the CPU's index
    assert not world.took
    world.driver.fail = 2
    dy = randn(3, 4, FEATURES)
    dx, = torch.autograd.grad(y, x, dy)  # fmt: skip
    want, = torch.autograd.grad(reference(x, weight, bias, "relu"), x, dy)  # fmt: skip
    assert torch.allclose(dx, want)
    assert world.took == ["longer"]


def test_an_error_of_the_longer_way_arrives(world, monkeypatch):
    x, weight, bias = operands()
    warm(world, x, weight, bias, "relu")
    y = fused_linear(x, weight, bias, "relu")

    def broken(*about):
        raise ZeroDivisionError("seven")

    monkeypatch.setattr(_torch_run, "backward", broken)
    with pytest.raises(ZeroDivisionError, match="seven"):
        y.sum().backward()


def test_differentiable_once(world):
    x, weight, bias = operands()
    warm(world, x, weight, bias, "gelu")
    y = fused_linear(x, weight, bias, "gelu")
    (dx,) = torch.autograd.grad(y, x, randn(3, 4, FEATURES), create_graph=True)
    assert dx.requires_grad
    with pytest.raises(RuntimeError, match="differentiable once"):
        dx.sum().backward()
    assert not world.took


def test_what_autograd_promises(world):
    x, weight, bias = operands()
    warm(world, x, weight, bias, "relu")
    y = fused_linear(x, weight, bias, "relu")
    y.sum().backward(retain_graph=True)
    first = weight.grad.clone()
    y.sum().backward()
    assert torch.allclose(weight.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    y = fused_linear(x, weight, bias, "relu")
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = fused_linear(x, weight, bias, None)  # another activation: its own plan
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.shape), t)[1], lambda t: t * 1):
        y = fused_linear(x, weight, bias, "relu")
    weight.grad = None
    y.backward(torch.ones_like(y))
    assert torch.allclose(weight.grad, first)
    assert len(saved) == 3
    seen = []
    y = fused_linear(x, weight, bias, "relu")
    y.register_hook(lambda g: seen.append(g.shape))
    y.sum().backward()
    assert seen == [y.shape]


def test_nothing_is_kept_longer_than_it_is_needed(world):
    x, weight, bias = operands()
    warm(world, x, weight, bias, "relu")
    held = weakref.ref(x)
    y = fused_linear(x, weight, bias, "relu")
    del x
    assert held() is not None
    y.sum().backward()
    del y
    gc.collect()
    assert held() is None
    destroyed = world.fake.destroyed
    _torch_train.learned.forget()
    world.kernels.clear()
    _torch_run._steps.clear()
    _torch_run._entries.clear()
    gc.collect()
    assert world.fake.destroyed > destroyed


def test_workspaces_are_asked_for_once_and_forgotten_with_the_rest(world, monkeypatch):
    world.fake.workspace = 1024
    asked = []
    reserve = _workspace.reserve
    monkeypatch.setattr(_workspace, "reserve", lambda *about: (asked.append(about[1:]), reserve(*about))[1])
    x, weight, bias = operands()
    for _ in range(4):
        step(x, weight, bias, "relu")
    asked.clear()
    step(x, weight, bias, "relu")
    assert not asked
    stream, memory, size = world.fake.used_workspaces[-1]
    assert (stream, size) == (0, _workspace.WORKSPACE_BYTES)
    assert memory == _workspace.spaces(_torch_run._ARRAYS, -1)[0]  # -1 is the CPU's index
    _workspace.release_workspaces()
    step(x, weight, bias, "relu")
    assert asked


def test_modules_train_alike(world):
    torch.manual_seed(5)
    layers = nn.Sequential(*(FusedLinear(8, 8, activation=a, dtype=torch.float64) for a in ("relu", "gelu", None)))
    twin = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU("tanh"), nn.Linear(8, 8)).double()
    for a, b in zip(layers.parameters(), twin.parameters(), strict=True):
        b.data.copy_(a.data)
        a.data = randn(*a.shape).copy_(a.data)
    one, other = (torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in (layers, twin))
    for _ in range(20):
        x = randn(5, 8)
        for net, optimizer in ((layers, one), (twin, other)):
            optimizer.zero_grad()
            (net(x) - x.sin()).square().mean().backward()
            optimizer.step()
    for a, b in zip(layers.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b)
