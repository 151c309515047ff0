"""Recorded layers of devkernels.linear.torch, with stand-ins for the GPU and its graphs: when they replay, and what."""

import contextlib
import copy
import gc
import importlib.util
import pickle

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch (extra torch)", allow_module_level=True)

import torch

from devkernels.errors import ArgumentError
from devkernels.linear import _torch_graphs
from devkernels.linear import torch as ours
from devkernels.linear.torch import FusedLinear, FusedMLP
from tests.unit.native_support import tensors_of
from tests.unit.torch_layers import plain


class Graph:
    """Runs the function again and writes over what it returned first, as a graph does."""

    def __init__(self, run):
        self.run, self.result, self.replays = run, run(), 0

    def launch(self):
        self.replays += 1
        for old, new in zip(tensors_of(self.result), tensors_of(self.run()), strict=True):
            old.copy_(new)


@pytest.fixture(autouse=True)
def world(monkeypatch, rng):
    torch.manual_seed(int(rng.integers(2**31)))
    monkeypatch.setattr(_torch_graphs.graphs, "with_torch", lambda run, times: Graph(run))
    monkeypatch.setattr(_torch_graphs, "_stream_of_its_own", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(ours, "on_gpu", lambda x: True)
    # The step that real GPUs take needs kernels; the products one by one do not.
    monkeypatch.setattr(ours.raw, "_step_for", lambda *arguments: None)


def make(kind, bias=True):
    if kind == "mlp":
        return FusedMLP([6, 9, 5, 4], "gelu", dtype=torch.float64)
    return FusedLinear(6, 5, bias, kind, dtype=torch.float64)


def check(kind, layer, x, replayed):
    """Result and gradients against torch's, and whether they came from the graphs."""
    graphs = layer._recording.there, layer._recording.back
    before = [g.replays for g in graphs]
    x = x.detach().requires_grad_()
    leaves = (x, *layer.parameters())
    y = layer(x)
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, leaves, dy)
    want = plain(kind, layer, x)
    assert torch.allclose(y, want, rtol=1e-12, atol=1e-12)
    for one, other in zip(got, torch.autograd.grad(want, leaves, dy), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-11)
    assert [g.replays for g in graphs] == [b + replayed for b in before]


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [None, "relu", "gelu", "mlp"])
def test_calls_are_replayed_where_they_fit(kind, bias, copied):
    layer, x = make(kind, bias), torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    assert layer.record(x, copy=copied) is layer
    sample = x.detach().clone()
    for _ in range(3):
        check(kind, layer, torch.randn_like(x), True)
    check(kind, layer, x, True)
    assert torch.equal(x, sample) is copied
    check(kind, layer, torch.randn(2, 3, 6, dtype=torch.float64).transpose(0, 1), False)  # not contiguous
    check(kind, layer, torch.randn(4, 6, dtype=torch.float64), False)
    check(kind, layer, torch.randn_like(x), True)
    with torch.no_grad():
        y = layer(x)
        assert torch.allclose(y, plain(kind, layer, x))
        assert y.data_ptr() != layer._recording.y.data_ptr()
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(-0.5)  # in place, as optimisers do: the graphs read it
    check(kind, layer, torch.randn_like(x), True)
    for p in layer.parameters():
        p.data = p.data.clone()
    check(kind, layer, torch.randn_like(x), False)


def test_gradients_add_up():
    layer, x = make("gelu"), torch.randn(7, 6, dtype=torch.float64)
    layer.record(x)
    twin = copy.deepcopy(layer)
    assert twin._recording is None
    assert pickle.loads(pickle.dumps(layer))._recording is None
    for _ in range(3):  # AccumulateGrad must not take the graph's memory for its own
        x = torch.randn_like(x)
        layer(x).square().sum().backward()
        twin(x).square().sum().backward()
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-12)
    assert layer._recording.back.replays == 3


def test_two_forward_passes_before_a_backward_pass():
    layer, x = make("relu"), torch.randn(7, 6, dtype=torch.float64)
    layer.record(x)
    first, second = layer(x), layer(2 * x)  # the second goes the ordinary way
    assert layer._recording.there.replays == 1
    second.sum().backward()
    first.sum().backward()
    grads = [p.grad for p in layer.parameters()]
    for p in layer.parameters():
        p.grad = None
    (plain("relu", layer, x).sum() + plain("relu", layer, 2 * x).sum()).backward()
    for one, p in zip(grads, layer.parameters(), strict=True):
        assert torch.allclose(one, p.grad, rtol=1e-12)
    third = layer(x)
    assert layer._recording.there.replays == 2
    del third  # never gone back, but nobody can any more
    gc.collect()
    layer(x)
    assert layer._recording.there.replays == 3


def test_what_was_overwritten_is_not_gone_back_through():
    layer, x = make("gelu"), torch.randn(7, 6, dtype=torch.float64)
    layer.record(x)
    y = layer(x)
    y.sum().backward(retain_graph=True)
    layer(x)
    with pytest.raises(ArgumentError, match="overwritten"):
        y.sum().backward()
    y = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(ArgumentError, match="modified before"):
        y.sum().backward()
    del y
    y = layer(x)
    (dw,) = torch.autograd.grad(y.square().sum(), layer.weight, create_graph=True)
    assert layer._recording.there.replays == 4
    with pytest.raises(RuntimeError, match="twice"):
        dw.sum().backward()


def test_only_what_was_recorded_is_replayed():
    layer, x = make("relu"), torch.randn(7, 6, dtype=torch.float64)
    layer.record(x)  # no gradient of x
    layer(x).sum().backward()
    assert layer._recording.back.replays == 1
    layer(x.requires_grad_()).sum().backward()
    assert layer._recording.back.replays == 1
    assert x.grad is not None
    layer.requires_grad_(False)
    layer.record(x.detach())
    y = layer(x.detach())
    assert y.grad_fn is None
    assert y.data_ptr() != layer._recording.y.data_ptr()  # without gradients: memory of its own
    layer.record(x)
    layer.requires_grad_(True)
    layer(x).sum().backward()
    assert layer._recording.back.replays == 0


def test_without_torchs_check(monkeypatch):
    monkeypatch.setattr("devkernels.linear._torch_look._guards", None)
    layer, x = make("gelu"), torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    layer.record(x)
    check("gelu", layer, torch.randn_like(x), True)
    check("gelu", layer, torch.randn(8, 6, dtype=torch.float64), False)


def test_nothing_is_recorded_on_the_cpu(monkeypatch):
    monkeypatch.undo()
    layer = make("relu")
    assert layer.record(torch.randn(3, 6, dtype=torch.float64))._recording is None
