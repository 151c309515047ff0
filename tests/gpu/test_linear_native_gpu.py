"""The extension for torch on a GPU: layers in training through C++, against torch in float64."""

import importlib.util
import os
import subprocess
import sys
import threading

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch
from torch import nn

from devkernels.linear import _torch_graphs, _torch_native, _torch_ops, _torch_train, _workspace, joined, kept
from devkernels.linear import _torch_run as raw
from devkernels.linear.arrays import package
from devkernels.linear.torch import FusedLinear, FusedMLP
from devkernels.tolerance import unit_roundoff
from tests.gpu.linear_device import start_afresh

ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "gelu": nn.GELU("tanh")}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def took(monkeypatch, tmp_path, rng, built):
    """Start afresh, with the extension; what went through Python in spite of it."""
    start_afresh(monkeypatch, tmp_path, rng)
    monkeypatch.setattr(_torch_native, "_loaded", [built])
    calls = []
    apply, longer = _torch_ops._apply_linear, raw.backward
    monkeypatch.setattr(_torch_ops, "_apply_linear", lambda *a: (calls.append("function"), apply(*a))[1])
    monkeypatch.setattr(raw, "backward", lambda *a: (calls.append("longer"), longer(*a))[1])
    return calls


def close(got, want, dtype):
    limit = 8 * unit_roundoff(str(dtype)[6:])
    if dtype == torch.float32:
        limit = 64 * unit_roundoff("float32") + 2e-6  # sums of thousands; the tanh of GELU in cuBLASLt
    if dtype == torch.float64:
        limit = 1e-9
    for one, exact in zip(got, want, strict=True):
        assert one.shape == exact.shape
        assert one.dtype == dtype
        assert torch.linalg.vector_norm(one.double() - exact) <= limit * torch.linalg.vector_norm(exact)


def step(layer, x, dy):
    leaves = [t for t in (x, *layer.parameters()) if t.requires_grad]
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def reference(layer, x, dy, y):
    """Result and gradients in float64; those of ReLU where the result `y` that was found is above zero."""
    wide = [t.detach().double().requires_grad_(t.requires_grad) for t in (x, *layer.parameters())]
    z = nn.functional.linear(*wide)
    exact = ACTIVATIONS[layer.activation](z)
    dz = dy.double()
    if layer.activation == "relu":
        z = z * (y > 0)
    elif layer.activation == "gelu":
        z = exact
    return [exact.detach(), *torch.autograd.grad(z, [t for t in wide if t.requires_grad], dz)]


def check(found, layer, x, dy):
    close(found, reference(layer, x, dy, found[0]), layer.weight.dtype)


def draw(layer, *shape, requires_grad=True):
    new = {"device": "cuda", "dtype": layer.weight.dtype}
    x = torch.randn(*shape, layer.in_features, **new).requires_grad_(requires_grad)
    return x, torch.randn(*shape, layer.out_features, **new)


def warm(layer, took, *shape):
    for _ in range(3):
        step(layer, *draw(layer, *shape))
    assert _torch_train.known(layer.weight, layer.activation).native is not None
    took.clear()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_against_torch(took, activation, dtype, bias):
    for shape, n, k in (((2048,), 3072, 768), ((7, 31), 40, 24), ((3,), 64, 1024), ((300, 2), 512, 8)):
        layer = FusedLinear(k, n, bias, activation, device="cuda", dtype=dtype)
        warm(layer, took, *shape)
        for _ in range(3):
            x, dy = draw(layer, *shape)
            junk = [torch.full(dy.shape, torch.nan, device="cuda", dtype=dtype) for _ in range(3)]
            del junk  # what the allocator hands out next is not zero
            check(step(layer, x, dy), layer, x, dy)
        x, dy = draw(layer, *shape, requires_grad=False)
        check(step(layer, x, dy), layer, x, dy)
        assert not took


@pytest.mark.parametrize("one_kernel", [False, True])
@pytest.mark.parametrize("keeps", ["result", "mask", "input", "slope"])
def test_kernels_of_ours(took, keeps, one_kernel):
    """All that can be kept of an activation, with a pass of its own or inside the weight gradient."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU with sm_90")
    tokens, n, k = 192, 320, 512
    arrays = package("torch")
    kind = {"result": "relu", "mask": "relu_aux", "input": "gelu", "slope": "gelu_slope"}[keeps]
    kept.remember(arrays, tokens, n, k, "float16", 0, keeps == "mask")
    kept.remember_slope(arrays, tokens, n, k, "float16", 0, keeps == "slope")
    joined.remember(arrays, 0, "float16", tokens, n, k, kind, one_kernel)
    layer = FusedLinear(k, n, activation=kind[:4], device="cuda", dtype=torch.float16)
    warm(layer, took, 2, tokens // 2)
    for turn in range(3):
        x, dy = draw(layer, 2, tokens // 2)
        check(step(layer, x, dy), layer, x, dy)
        y = layer(x)
        only = torch.autograd.grad(y, (x, layer.weight, layer.bias)[turn], dy)
        close(only, [reference(layer, x, dy, y.detach())[1 + turn]], torch.float16)
    assert not took


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")  # one layer, four streams
def test_streams_and_threads(took):
    """Each thread on a stream of its own, all with one layer; workspaces and descriptors are not mixed up."""
    layer = FusedLinear(1024, 1024, activation="gelu", device="cuda", dtype=torch.float16)
    warm(layer, took, 256)
    failures = []

    def work():
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    x, dy = draw(layer, 256)
                    found = step(layer, x, dy)
                    stream.synchronize()
                    check(found, layer, x, dy)
                    stream.synchronize()
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not took


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_cuda_graphs(took, activation):
    layer = FusedLinear(256, 128, activation=activation, device="cuda", dtype=torch.float16)
    warm(layer, took, 64)
    x, dy = draw(layer, 64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
        found = torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)
    assert not took
    for _ in range(2):
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
            dy.copy_(torch.randn_like(dy))
        graph.replay()
        torch.cuda.synchronize()
        check([y.detach(), *found], layer, x, dy)


def test_memory_stays_as_it_is_and_workspaces_can_be_given_back(took):
    layer = FusedLinear(768, 3072, activation="relu", device="cuda", dtype=torch.float16)
    warm(layer, took, 2048)
    x, dy = draw(layer, 2048)
    before = None
    for turn in range(100):
        step(layer, x, dy)
        if turn == 10:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    _workspace.release_workspaces()
    check(step(layer, x, dy), layer, x, dy)
    assert not took


def test_an_optimizer_and_accumulated_gradients(took):
    layers = nn.Sequential(FusedLinear(64, 128, activation="relu"), FusedLinear(128, 64, activation="gelu"),
                           FusedLinear(64, 16)).to("cuda", torch.float64)  # fmt: skip
    twin = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.GELU("tanh"),
                         nn.Linear(64, 16)).to("cuda", torch.float64)  # fmt: skip
    for a, b in zip(layers.parameters(), twin.parameters(), strict=True):
        b.data.copy_(a.data)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in (layers, twin)]
    for turn in range(12):
        x = torch.randn(96, 64, device="cuda", dtype=torch.float64)
        for net, optimizer in zip((layers, twin), optimizers, strict=True):
            (net(x) - x[:, :16].sin()).square().mean().backward()
            if turn % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert took.count("function") == 6  # two for each layer; then it is known
    for a, b in zip(layers.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-9)  # the tanh of GELU in cuBLASLt is exact to 3e-10


FIRST = """
import threading, torch
from devkernels.linear import _torch_native
from devkernels.linear.torch import FusedLinear

assert _torch_native.extension() is not None
new = {"device": "cuda", "dtype": torch.float16}
layer, x = FusedLinear(64, 128, **new), torch.randn(32, 64, **new)
layer.record(x, copy=False)
assert layer._recording._native is not None
torch.cuda.synchronize()
shapes = []

def step():
    y = layer(x)
    shapes.extend(g.shape for g in torch.autograd.grad(y, (layer.weight, layer.bias), torch.ones_like(y)))
    torch.cuda.synchronize()

for _ in range(2):  # threads that have no context yet, this one's and autograd's
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
print(len(shapes))
"""


def test_a_process_whose_first_backward_pass_is_replayed(extension_folder, built):
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        pytest.skip("this torch does not tell the handle of a graph")
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", FIRST], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_CACHE_DIR": extension_folder},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split() == ["4"]


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")  # one input on several streams
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("kind", [None, "relu", "gelu", "mlp"])
def test_recorded_layers(monkeypatch, kind, copy):
    """Both passes replayed by the extension give what a layer that is not recorded gives, to the bit."""
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        pytest.skip("this torch does not tell the handle of a graph")
    monkeypatch.setattr(_torch_graphs, "_apply", None)  # not through Python
    new = {"device": "cuda", "dtype": torch.float16}
    make = lambda: FusedMLP([72, 256, 40], "gelu", **new) if kind == "mlp" else FusedLinear(  # noqa: E731
        72, 136, activation=kind, **new)  # fmt: skip
    layer, twin = make(), make()
    twin.load_state_dict(layer.state_dict())
    held = torch.randn(64, 72, requires_grad=True, **new)
    layer.record(held, copy=copy)
    assert layer._recording._native is not None
    earlier = []
    for turn in range(6):
        x = held if turn == 3 else torch.randn(64, 72, requires_grad=True, **new)
        other = x.detach().clone().requires_grad_()
        stream = torch.cuda.Stream() if turn % 2 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            y, want = layer(x), twin(other)
            assert y.data_ptr() == layer._recording.y.data_ptr()
            dy = torch.randn_like(y.T).T if turn == 4 else torch.randn_like(y)
            got = torch.autograd.grad(y, (x, *layer.parameters()), dy)
            wanted = torch.autograd.grad(want, (other, *twin.parameters()), dy.contiguous())
            assert torch.equal(y, want)
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        torch.cuda.default_stream().wait_stream(stream)
        earlier.append((got, wanted))
        del y, want
    assert all(torch.equal(a, b) for got, wanted in earlier for a, b in zip(got, wanted, strict=True))
    layer(held).sum().backward()
    assert torch.isfinite(held.grad).all()
