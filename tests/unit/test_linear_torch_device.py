"""devkernels.linear.torch through a cuBLASLt on the CPU, as on a GPU: planned calls, and what makes them new."""

import ctypes
import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch (extra torch)", allow_module_level=True)

import torch
from torch import nn

from devkernels.errors import DevkernelsError
from devkernels.linear import _torch_kept, _torch_ops, _torch_quick, _torch_run, _torch_train
from devkernels.linear.torch import FusedLinear, FusedMLP, fused_linear
from tests.unit.linear_support import enter_torch_world, gelu_slope

ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "gelu": nn.GELU("tanh")}


@pytest.fixture
def lt(monkeypatch, tmp_path, rng):
    torch.manual_seed(int(rng.integers(2**31)))
    return enter_torch_world(monkeypatch, tmp_path)


def aligned(*shape, dtype=torch.float32):
    """Random tensor at an address that 256 divides, as a GPU's allocator gives them."""
    count = torch.Size(shape).numel()
    whole = torch.randn(count + 256, dtype=dtype)
    start = -whole.data_ptr() % 256 // whole.element_size()
    return whole[start : start + count].view(shape)


def check(x, weight, bias, activation, limit=1e-5):
    want = ACTIVATIONS[activation](
        nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    )
    got = fused_linear(x, weight, bias, activation)
    assert got.shape == want.shape
    assert got.dtype == x.dtype
    assert torch.linalg.vector_norm(got - want) <= limit * torch.linalg.vector_norm(want)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_calls_that_repeat_take_the_short_way(lt, monkeypatch, activation, with_bias):
    x, weight = aligned(6, 8), aligned(5, 8)
    bias = aligned(5) if with_bias else None
    for _ in range(2):
        check(x, weight, bias, activation)
    assert len(_torch_quick.learned.known) == 1
    monkeypatch.setattr(_torch_quick.raw, "run", None)  # the longer way is not there any more
    for _ in range(3):
        before = lt.calls
        x = aligned(6, 8)
        check(x, weight, bias, activation)
        assert lt.calls == before + 1
    with torch.inference_mode(), pytest.raises(TypeError):  # another key set: the longer way is asked for
        fused_linear(x.clone(), weight, bias, activation)


def test_whatever_differs_is_noticed(lt):
    weight, bias = aligned(8, 8), aligned(8)
    x = aligned(6, 8)
    for _ in range(3):
        check(x, weight, bias, "relu")
    check(x, weight, bias, "gelu")
    check(x, weight, bias, None)
    check(x, weight, None, "relu")
    check(aligned(2, 3, 8), weight, bias, "relu")
    check(aligned(7, 8), weight, bias, "relu")
    check(aligned(8, 6).T, weight, bias, "relu")
    check(aligned(6, 16)[:, ::2], weight, bias, "relu")
    check(aligned(49)[1:].view(6, 8), weight, bias, "relu")  # another alignment
    check(x, weight, bias[None].expand(4, 8)[2], "relu")
    for _ in range(3):
        check(x, weight, bias, "relu")
    weight.data = weight.data.T  # the same object, the same address
    check(x, weight, bias, "relu")
    weight.data, bias.data = aligned(5, 8), aligned(5)
    check(x, weight, bias, "relu")
    with pytest.raises(DevkernelsError):
        fused_linear(x.double(), weight, bias, "relu")
    weight.data, bias.data = weight.data.double(), bias.data.double()
    check(x.double(), weight, bias, "relu", 1e-12)


def test_changing_shapes_build_no_checks(lt):
    weight, bias = aligned(5, 8), aligned(5)
    for tokens in (3, 4) * 5:
        check(aligned(tokens, 8), weight, bias, "relu")
    assert len(_torch_quick.learned.known) == 0
    for tokens in range(1, 700):
        fused_linear(aligned(tokens, 8), aligned(5, 8), bias)
    assert len(_torch_quick.learned.seen) <= _torch_quick.learned.seen.limit


def test_float32_precision_is_asked_for_at_each_call(lt, monkeypatch):
    x, weight = aligned(20, 304), aligned(32, 304)
    want = x.double() @ weight.double().T
    off = lambda: float((fused_linear(x, weight) - want).norm() / want.norm())  # noqa: E731
    assert max(off() for _ in range(3)) < 1e-6
    computed = set()
    for told in lt.objects.values():
        computed.add(told.get("compute"))
    monkeypatch.setattr(_torch_quick.raw, "_precision", lambda: "high")
    off()
    assert {told.get("compute") for told in lt.objects.values()} - computed == {77}  # CUBLAS_COMPUTE_32F_FAST_TF32


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_modules_and_gradients(lt, monkeypatch, activation, mask):
    if mask:  # as on a GPU
        monkeypatch.setattr(_torch_kept, "keeps_mask", lambda x, weight, activation: activation is not None)
    layer = FusedLinear(8, 5, activation=activation, dtype=torch.float64)
    x = torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w, b: fused_linear(x, w, b, activation), (x, layer.weight, layer.bias))
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(layer(x), ACTIVATIONS[activation](nn.functional.linear(x, layer.weight, layer.bias)))
    mlp = FusedMLP([8, 5, 3], activation or "relu", dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, *p: mlp(x), (x, *mlp.parameters()))
    assert lt.calls > 20


class Pass:
    """The kernel of an activation on the CPU: on pointers, as the one on a GPU."""

    def __init__(self, rows, columns, kind):
        self.rows, self.columns, self.kind = rows, columns, kind

    def view(self, pointer, shape, dtype="f8"):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * count).from_address(pointer), dtype).reshape(shape)

    def launch(self, dy, kept, dz, db, stream):
        shape = self.rows, self.columns
        if self.kind == "relu":
            slope = self.view(kept, shape) > 0
        elif self.kind == "relu_aux":
            bits = self.view(kept, (self.rows, -(-self.columns // 128) * 16), "u1")
            slope = np.unpackbits(bits, axis=1, bitorder="little")[:, : self.columns]
        else:
            slope = gelu_slope(self.view(kept, (self.rows, -(-self.columns // 8) * 8))[:, : self.columns])
        self.view(dz, shape)[...] = self.view(dy, shape) * slope
        if db:
            self.view(db, (self.columns,))[...] = self.view(dz, shape).sum(0)


class Joined(Pass):
    """The kernel that makes the weight gradient besides, on the CPU."""

    launches = 0

    def launch(self, dy, kept, x, dz, db, dw, stream):
        type(self).launches += 1
        super().launch(dy, kept, dz, db, stream)
        left, right = self.view(dz, (self.rows, self.columns)), self.view(x, (self.rows, 8))
        self.view(dw, (self.columns, 8))[...] = left.T @ right


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("activation", "mask", "joined"), [
    (None, False, False), *((a, m, j) for a in ("relu", "gelu") for m in (False, True) for j in (False, True)),
])  # fmt: skip
def test_training_steps_that_repeat_take_the_short_way(lt, monkeypatch, activation, mask, joined, with_bias):
    makers = _torch_run._ARRAYS.maker

    def align(x):
        whole = x.new_empty(x.numel() + 256)
        start = -whole.data_ptr() % 256 // whole.element_size()
        return whole[start : start + x.numel()].view(x.shape).copy_(x)

    def maker(self, *about):
        make = makers(*about)
        return lambda: align(make())

    monkeypatch.setattr(type(_torch_run._ARRAYS), "maker", maker)
    monkeypatch.setattr(_torch_train, "on_gpu", lambda x: True)
    monkeypatch.setattr(_torch_run, "on_gpu", lambda x: True)
    monkeypatch.setattr(_torch_kept, "keeps_mask", lambda x, w, a: a == "gelu" or (mask and a == "relu"))
    monkeypatch.setattr(
        _torch_run, "on_device", lambda arrays, device, dtype, rows, columns, ld, kind, bits: (
            Pass(rows, columns, kind), arrays.maker((rows, columns), dtype, device),
            arrays.maker((columns,), dtype, device)),
    )  # fmt: skip
    monkeypatch.setattr(
        _torch_run, "chosen", lambda arrays, device, dtype, rows, columns, width, kind, ld: (
            Joined(rows, columns, kind) if joined else None),
    )  # fmt: skip
    monkeypatch.setattr(Joined, "launches", 0)
    weight = aligned(16, 8, dtype=torch.float64).requires_grad_()
    bias = aligned(16, dtype=torch.float64).requires_grad_() if with_bias else None
    took = []
    monkeypatch.setattr(_torch_ops, "backward", lambda *a, f=_torch_ops.backward: (took.append("long"), f(*a))[1])
    for turn in range(5):
        x = aligned(3, 4, 8, dtype=torch.float64).requires_grad_()
        leaves = [t for t in (x, weight, bias) if t is not None]
        y, dy = fused_linear(x, weight, bias, activation), aligned(3, 4, 16, dtype=torch.float64)
        want = ACTIVATIONS[activation](nn.functional.linear(x, weight, bias))
        assert torch.allclose(y, want)
        for one, other in zip(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy), strict=True):
            assert torch.allclose(one, other)
        if turn == 2:
            assert _torch_train.known(weight, activation)._step is not None
            weight.data = align(weight.data * 0.5)  # another address; the check does not mind
            took.clear()
    assert not took
    assert Joined.launches == (5 if joined else 0)
    y = fused_linear(x, weight, bias, activation)  # a gradient that looks otherwise
    torch.autograd.grad(y, leaves, aligned(3, 16, 4, dtype=torch.float64).mT)
    assert len(took) == 1
    y = fused_linear(x.detach(), weight, bias, activation)  # other gradients are needed
    torch.autograd.grad(y, leaves[1:], dy)
    assert len(took) == 2
