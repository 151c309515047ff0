"""devkernels.linear.torch on a GPU: against torch in float64, gradcheck, autocast, torch.compile, allocator."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import types

import torch
from torch import nn

from devkernels.linear import _torch_mlp, kept
from devkernels.linear import _torch_run as raw
from devkernels.linear._copies import Copies
from devkernels.linear.arrays import package
from devkernels.linear.elementwise import pack_bits, unpack_bits
from devkernels.linear.torch import FusedLinear, FusedMLP, fused_linear
from devkernels.tolerance import gelu_error
from tests.gpu.linear_device import start_afresh
from tests.unit.linear_bounds import check_mlp

ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "gelu": nn.GELU("tanh")}
ROUND = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path, rng):
    start_afresh(monkeypatch, tmp_path, rng)


def close(got, want, limit, own=0.0):
    got, want = got.double(), want.double()
    assert torch.linalg.vector_norm(got - want) <= limit * torch.linalg.vector_norm(want) + limit + own
    return True


def own_error(z, dtype, *, derivative=False):
    """Bound on the error of GELU at z (float64, NumPy), from that of the tanh that cuBLASLt uses."""
    if dtype == torch.float64:
        return gelu_error(z, "float64", derivative=derivative)
    tanh_instruction = pytest.importorskip("tests.gpu.tanh_instruction", reason="needs CuPy")
    return gelu_error(z, "float32", derivative=derivative, tanh=tanh_instruction.error())


def own_errors(dtype, x, weight, bias, dy):
    """Norms of the errors that GELU's own arithmetic brings into the result and the gradients of x, weight and bias."""
    x, weight, dy = (t.detach().double().cpu().numpy() for t in (x, weight, dy))
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    z = x @ weight.T + (0.0 if bias is None else bias.detach().double().cpu().numpy())
    off = abs(dy) * own_error(z, dtype, derivative=True)
    return [float((e**2).sum() ** 0.5) for e in (own_error(z, dtype), off @ abs(weight), off.T @ abs(x), off.sum(0))]


@pytest.mark.parametrize("dtype", list(ROUND))
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("bias", [True, False])
def test_against_torch(dtype, activation, bias):
    for lead, n, k in [((64,), 136, 72), ((2, 5), 30, 33), ((1,), 1, 1), ((3,), 30, 1), ((), 8, 16)]:
        layer = FusedLinear(k, n, bias, activation, device="cuda", dtype=dtype)
        x = torch.randn(*lead, k, device="cuda", dtype=dtype, requires_grad=True)
        wide = [t.detach().double().requires_grad_() for t in (x, *layer.parameters())]
        want = ACTIVATIONS[activation](nn.functional.linear(*wide))
        y = layer(x)
        with torch.no_grad():
            assert torch.equal(layer(x), y) or close(layer(x), y, ROUND[dtype])
        limit = 4 * ROUND[dtype]
        assert y.shape == want.shape
        dy = torch.randn_like(y)
        own, *owns = own_errors(dtype, x, layer.weight, layer.bias, dy) if activation == "gelu" else [0.0] * 4
        close(y, want, limit, own)
        y.backward(dy)
        want.backward(dy.double())
        for one, other, off in zip((x, *layer.parameters()), wide, owns[: len(wide)], strict=True):
            close(one.grad, other.grad, 4 * limit, off)


class Followed:
    """A FusedMLP of torch as `check_mlp` wants it: with the inputs and masks of its layers at hand."""

    def __init__(self, mlp):
        self.mlp = mlp

    def __iter__(self):
        return iter(self.mlp.layers)

    def forward(self, x):
        layers, arrays = list(self.mlp.layers), package("torch")
        y = self.y = self.mlp(x)
        weights, biases = [one.weight.detach() for one in layers], [one.bias.detach() for one in layers]
        again, *rest = _torch_mlp.mlp_forward(x.detach(), weights, biases, self.mlp.activation)
        assert torch.equal(again, y)
        inputs, masks = [x, *rest[: len(layers) - 1]], [*rest[len(layers) - 1 :], None]
        self._last, self.x = [], x
        for layer, h, mask in zip(layers, inputs, masks, strict=True):
            n = layer.out_features
            if mask is not None:
                mask = unpack_bits(arrays, mask, n) if mask.dtype is torch.uint8 else mask[:, :n]
                mask = types.SimpleNamespace(unpack=lambda mask=mask: mask)
            self._last.append(types.SimpleNamespace(x=h.reshape(-1, h.shape[-1]), mask=mask))
        return y

    def backward(self, dy):
        self.y.backward(dy)
        return self.x.grad, [(one.weight.grad, one.bias.grad) for one in self.mlp.layers]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", list(ROUND))
def test_mlp_element_by_element(activation, dtype):
    own = lambda z, derivative=False: own_error(z, dtype, derivative=derivative)  # noqa: E731
    for lead in ((1,), (3, 7)):
        mlp = FusedMLP([40, 64, 30, 8], activation, device="cuda", dtype=dtype)
        x = torch.randn(*lead, 40, device="cuda", dtype=dtype, requires_grad=True)
        dy = torch.randn(*lead, 8, device="cuda", dtype=dtype)
        host = lambda t: t.detach().double().cpu().numpy()  # noqa: E731
        check_mlp(Followed(mlp), activation, str(dtype)[6:], x, dy, host, own, product_rounded=True)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_gradcheck(activation):
    layer = FusedLinear(7, 5, activation=activation, device="cuda", dtype=torch.float64)
    x = torch.randn(6, 7, device="cuda", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w, b: fused_linear(x, w, b, activation), (x, layer.weight, layer.bias))
    mlp = FusedMLP([7, 30, 3], activation or "relu", device="cuda", dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, *p: mlp(x), (x, *mlp.parameters()))


@pytest.mark.filterwarnings("ignore")  # inductor's own, while it is imported
@pytest.mark.parametrize(
    ("activation", "backend"), [*((name, "aot_eager") for name in ACTIVATIONS), ("gelu", "inductor")]
)
def test_compile_without_graph_breaks(activation, backend):
    layer = FusedLinear(64, 32, activation=activation, device="cuda", dtype=torch.float16)
    x = torch.randn(16, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    y = compiled(x)
    y.sum().backward()
    gradients = [p.grad.clone() for p in (x, *layer.parameters())]
    for p in (x, *layer.parameters()):
        p.grad = None
    want = layer(x)
    want.sum().backward()
    close(y, want, 2e-3)
    for one, p in zip(gradients, (x, *layer.parameters()), strict=True):
        close(one, p.grad, 4e-3)


def test_autocast_and_loading():
    linear = nn.Linear(64, 32, device="cuda")
    layer = FusedLinear(64, 32, activation="relu", device="cuda")
    layer.load_state_dict(linear.state_dict())
    linear.load_state_dict(layer.state_dict())
    x = torch.randn(16, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.float16):
        y, want = layer(x), torch.relu(linear(x))
    assert y.dtype == want.dtype == torch.float16
    close(y, want, 4e-3)
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert layer.weight.grad.dtype == torch.float32


def test_torch_allocator_and_streams():
    layer = FusedLinear(256, 256, activation="relu", device="cuda", dtype=torch.float16).requires_grad_(False)
    x = torch.randn(128, 256, device="cuda", dtype=torch.float16)
    want = torch.relu(nn.functional.linear(x, layer.weight, layer.bias))
    before = None
    for turn in range(200):
        y = layer(x)
        if turn == 20:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    close(y, want, 4e-3)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = [layer(x) for _ in range(20)]
        junk = [torch.full((128, 256), float("nan"), device="cuda", dtype=torch.float16) for _ in range(20)]
    stream.synchronize()
    assert len(junk) == 20
    for y in results:
        close(y, want, 4e-3)


def test_cuda_graph_of_a_module():
    layer = FusedLinear(256, 128, activation="gelu", device="cuda", dtype=torch.float16).requires_grad_(False)
    x = torch.randn(64, 256, device="cuda", dtype=torch.float16)
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        close(
            y, ACTIVATIONS["gelu"](nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())), 8e-3
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kind", [None, "relu", "gelu", "mlp"])
def test_recorded_layers(kind, dtype):
    """Replayed passes give what the ordinary ones give, to the bit, whatever lies in the memory around."""
    options = {"device": "cuda", "dtype": dtype}
    make = lambda: FusedMLP([72, 256, 40], "gelu", **options) if kind == "mlp" else FusedLinear(  # noqa: E731
        72, 136, activation=kind, **options)  # fmt: skip
    layer, twin = make(), make()
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(64, 72, requires_grad=True, **options)
    layer.record(x)
    recording = layer._recording
    junk = [torch.full((64, 136), float("nan"), **options) for _ in range(32)]
    earlier = []
    for turn in range(6):
        x = torch.randn(64, 72, requires_grad=True, **options)
        other = x.detach().clone().requires_grad_()
        with torch.cuda.stream(torch.cuda.Stream() if turn % 2 else torch.cuda.current_stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            y, want = layer(x), twin(other)
            assert y.data_ptr() == recording.y.data_ptr()
            dy = torch.randn_like(y)
            if turn == 4:  # not contiguous
                dy = torch.randn_like(y.T).T
            y.backward(dy)
            want.backward(dy.contiguous())
            assert torch.equal(y, want)
            assert torch.equal(x.grad, other.grad)
        earlier.append((x.grad, other.grad))
        torch.cuda.synchronize()
        for one, two in zip(layer.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one.grad, two.grad)  # added up over the turns
        del y, want  # and what autograd remembers of their stream
    assert recording.turn == 6
    assert all(torch.equal(one, two) for one, two in earlier)  # later calls left them alone
    assert all(torch.isnan(j).all() for j in junk)
    with torch.no_grad():
        for p, q in zip(layer.parameters(), twin.parameters(), strict=True):
            p.mul_(-0.5)
            q.mul_(-0.5)
    assert torch.equal(layer(x), twin(x))
    assert recording.turn == 7
    assert torch.equal(layer(x[:5]), twin(x[:5]))
    assert recording.turn == 7


def test_weights_replaced_between_calls():
    layer = FusedLinear(64, 32, activation="relu", device="cuda", dtype=torch.float16).requires_grad_(False)
    x = torch.randn(16, 64, device="cuda", dtype=torch.float16)
    layer(x)
    layer.weight.data = torch.randn(32, 64, device="cuda", dtype=torch.float16)
    layer.bias = nn.Parameter(torch.randn(32, device="cuda", dtype=torch.float16), requires_grad=False)
    close(layer(x), torch.relu(nn.functional.linear(x, layer.weight, layer.bias)), 4e-3)
    layer.weight.mul_(2)
    close(layer(x), torch.relu(nn.functional.linear(x, layer.weight, layer.bias)), 4e-3)


@pytest.mark.parametrize("kind", ["relu", "relu_aux", "gelu"])
@pytest.mark.parametrize("dtype", list(ROUND))
def test_pass_through_an_activation(kind, dtype):
    activation = kind[:4]

    for rows, columns in [(1, 1), (5, 7), (64, 136), (257, 1000), (2048, 512), (3, 4096), (40000, 24), (4099, 4096)]:
        dy = torch.randn(rows, columns, device="cuda", dtype=dtype)
        x = torch.randn(rows, columns + (-columns) % 8, device="cuda", dtype=dtype)
        kept = torch.relu(x[:, :columns]).contiguous() if activation == "relu" else x
        if kind == "relu_aux":
            kept = pack_bits(package("torch"), kept > 0)
        dz, db = raw.through_activation(kind, dy, kept, True)
        wide = x[:, :columns].double().requires_grad_()
        ACTIVATIONS[activation](wide).backward(dy.double())
        close(dz, wide.grad, 2 * ROUND[dtype])  # devkernels' own kernel: true constants
        assert db is not None
        limit = 4 * ROUND[dtype] * torch.linalg.vector_norm(dz.double().abs().sum(0))
        assert torch.linalg.vector_norm(db.double() - dz.double().sum(0)) <= limit
        again = raw.through_activation(kind, dy, kept, True)
        assert torch.equal(again[0], dz)
        assert torch.equal(again[1], db)  # blocks are added in one order, whichever is last
        assert raw.through_activation(kind, dy, kept, False)[1] is None


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("dtype", list(ROUND))
def test_relu_keeps_what_was_found_to_be_faster(dtype, mask):
    layer = FusedLinear(72, 136, activation="relu", device="cuda", dtype=dtype)
    kept.remember(package("torch"), 64, 136, 72, str(dtype)[6:], 0, mask)
    raw.forget_choices()
    x = torch.randn(64, 72, device="cuda", dtype=dtype, requires_grad=True)
    wide = [t.detach().double().requires_grad_() for t in (x, *layer.parameters())]
    y, want = layer(x), torch.relu(nn.functional.linear(*wide))
    assert (y.grad_fn.saved_tensors[2].dtype is torch.uint8) is mask
    dy = torch.randn_like(y)
    y.backward(dy)
    want.backward(dy.double())
    for one, other in zip((x, *layer.parameters()), wide, strict=True):
        close(one.grad, other.grad, 16 * ROUND[dtype])


def test_autotune_of_a_layer():
    layer = FusedLinear(256, 512, activation="relu", device="cuda", dtype=torch.float16)
    x = torch.randn(512, 256, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        layer(x)  # the workspace of the current stream
    before = torch.cuda.memory_allocated()
    reports = layer.autotune(x)
    assert len(reports) == 5  # two forward products, two backward products, and the ways through a step
    assert all(report["best"] is not None for report in reports)
    assert reports[0]["candidates"] > reports[0]["heuristic"] >= 1
    assert torch.cuda.memory_allocated() <= before + (40 << 20)  # a workspace of 32 MiB for the stream of the captures
    x.requires_grad_()
    wide = [t.detach().double().requires_grad_() for t in (x, *layer.parameters())]
    y, want = layer(x), torch.relu(nn.functional.linear(*wide))
    close(y, want, 4 * ROUND[torch.float16])
    y.sum().backward()
    want.sum().backward()
    for one, other in zip((x, *layer.parameters()), wide, strict=True):
        close(one.grad, other.grad, 16 * ROUND[torch.float16])


@pytest.mark.parametrize("sizes", [[1], [16], [15, 4097, 100003], [3] * 40, [1 << 26, 5]])
def test_copies_in_one_launch(sizes):
    """Bytes of any number, more pieces than a launch takes, nothing beside them."""
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda") for size in sizes]
    held = [torch.full((size + 32,), 7, dtype=torch.uint8, device="cuda") for size in sizes]
    copies = Copies(package("torch"), 0, [(s.data_ptr(), s.nbytes) for s in sources])
    copies.to([h.data_ptr() + 16 for h in held], torch.cuda.current_stream().cuda_stream)
    for source, there in zip(sources, held, strict=True):
        assert torch.equal(there[16:-16], source)
        assert (there[:16] == 7).all()
        assert (there[-16:] == 7).all()
