"""Recorded layers of torch through the extension, with stand-ins for CUDA graphs and kernels on the CPU."""

import contextlib
import gc
import importlib.util
import weakref

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch (extra torch)", allow_module_level=True)

import torch

from devkernels.errors import ArgumentError
from devkernels.linear import _copies, _cuda, _graph_nodes, _torch_graphs
from devkernels.linear import torch as ours
from devkernels.linear.torch import FusedLinear, FusedMLP
from tests.unit.native_support import Graph, copies
from tests.unit.native_world import World, randn
from tests.unit.torch_layers import plain


@pytest.fixture
def world(monkeypatch, tmp_path, rng, built):
    torch.manual_seed(int(rng.integers(2**31)))
    world = World(monkeypatch, tmp_path, built)
    world.python = []
    apply = _torch_graphs._apply
    monkeypatch.setattr(_torch_graphs, "_apply", lambda *about: (world.python.append("replayed"), apply(*about))[1])
    monkeypatch.setattr(_torch_graphs.graphs, "with_torch", lambda run, times, nodes=False: Graph(world.driver, run))
    monkeypatch.setattr(_torch_graphs, "_stream_of_its_own", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(_torch_graphs, "_only_device", lambda x: 0)
    monkeypatch.setattr(_torch_graphs.raw, "_step_for", lambda *about: None)
    handle = copies(world.driver)
    monkeypatch.setattr(_torch_graphs, "replays", lambda: True)
    monkeypatch.setattr(_graph_nodes, "kernels", lambda graph: list(world.driver.graphs[graph].nodes.values()))
    monkeypatch.setattr(_copies, "_function", lambda arrays, device: handle)
    monkeypatch.setattr(_cuda, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(ours, "on_gpu", lambda x: True)
    return world


def make(kind, bias=True):
    layer = FusedMLP([8, 16, 8, 8], "gelu") if kind == "mlp" else FusedLinear(8, 16, bias, kind)
    layer = layer.double()
    for p in layer.parameters():
        p.data = randn(*p.shape) / 4
    return layer


def graphs(layer):
    return layer._recording.there, layer._recording.back


def check(world, kind, layer, x, replayed=True, dy=None):
    """Result and gradients against torch's, and whether they came from the graphs; both of them through C++."""
    before = [g.replays for g in graphs(layer)]
    leaves = [t for t in (x, *layer.parameters()) if t.requires_grad]
    y = layer(x)
    dy = randn(*y.shape) if dy is None else dy
    got = torch.autograd.grad(y, leaves, dy)
    want = plain(kind, layer, x)
    assert torch.allclose(y, want)
    for one, other in zip(got, torch.autograd.grad(want, leaves, dy), strict=True):
        assert torch.allclose(one, other)
    assert [g.replays - b for g, b in zip(graphs(layer), before, strict=True)] == [replayed, replayed]
    assert not world.python
    return got


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize(
    ("kind", "bias"), [(None, True), ("relu", True), ("gelu", True), ("relu", False), ("mlp", True)]
)
def test_both_passes_are_replayed(world, kind, bias, copy):
    layer = make(kind, bias)
    x = randn(5, 8).requires_grad_()
    layer.record(x, copy=copy)
    assert layer._recording._native is not None
    earlier = check(world, kind, layer, x)
    kept = [g.clone() for g in earlier]
    world.driver.copies = 0
    check(world, kind, layer, x)
    assert world.driver.copies == copy  # the input's to its place; all others are part of the second graph
    for _ in range(2):
        other = randn(5, 8).requires_grad_()
        check(world, kind, layer, other)
    assert all(torch.equal(a, b) for a, b in zip(earlier, kept, strict=True))  # later calls left them alone
    check(world, kind, layer, x, dy=randn(layer(x.detach()).shape[1], 5).T)  # not contiguous
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(-0.5)
    check(world, kind, layer, x)


def test_what_the_graphs_do_not_fit(world):
    layer = make("relu")
    x = randn(5, 8).requires_grad_()
    layer.record(x)
    for other in (randn(3, 8), randn(8, 5).T, randn(5, 1, 8)):
        check(world, "relu", layer, other.requires_grad_(), replayed=False)
    check(world, "relu", layer, x.detach().clone())  # its gradient is made for nothing
    first = layer(x)
    check(world, "relu", layer, randn(5, 8).requires_grad_(), replayed=False)  # `first` has not gone back yet
    first.sum().backward()
    check(world, "relu", layer, x)
    first = layer(x)
    del first  # and will not
    gc.collect()
    check(world, "relu", layer, x)
    layer.weight.data = layer.weight.data.clone()
    check(world, "relu", layer, x, replayed=False)
    layer.weight.requires_grad_(False)
    layer.record(x.detach())
    check(world, "relu", layer, x.detach())
    check(world, "relu", layer, x, replayed=False)  # its gradient was not recorded
    layer.requires_grad_(False)
    layer.record(x.detach())
    assert layer(x.detach()).grad_fn is None


def test_passes_out_of_turn_are_refused(world):
    layer = make("gelu")
    x = randn(5, 8).requires_grad_()
    layer.record(x, copy=False)
    y = layer(x)
    y.sum().backward(retain_graph=True)
    before = layer.weight.grad.clone()
    y.sum().backward(retain_graph=True)
    assert torch.allclose(layer.weight.grad, 2 * before)
    layer(x)
    with pytest.raises(ArgumentError, match="a later one has overwritten"):
        y.sum().backward()
    for change in (x, layer.weight, layer.bias):
        y = layer(x)
        with torch.no_grad():
            change.add_(1.0)
        with pytest.raises(ArgumentError, match="was modified before its backward pass"):
            y.sum().backward()
        del y
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, randn(5, 16), create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        dx.sum().backward()
    assert not world.python


def test_nothing_is_kept_after_the_layer(world):
    layer = make("relu")
    x = randn(5, 8).requires_grad_()
    layer.record(x)
    check(world, "relu", layer, x)
    there = weakref.ref(layer._recording.there)
    world.driver.graphs.clear()
    del layer
    gc.collect()
    assert there() is None
