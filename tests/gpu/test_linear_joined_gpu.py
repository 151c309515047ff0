"""The weight gradient with the pass through the activation inside, on a GPU with sm_90."""

import importlib.util
import threading

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import numpy as np
import torch
from torch import nn

from devkernels.libraries import on_stream
from devkernels.linear import FusedLinear as ArrayLinear
from devkernels.linear import _torch_run as raw
from devkernels.linear import _torch_train, _weight_gradient, activations, joined, kept
from devkernels.linear.arrays import package
from devkernels.linear.elementwise import pack_bits
from devkernels.linear.torch import FusedLinear
from devkernels.tolerance import unit_roundoff
from tests.gpu.linear_device import HAVE, start_afresh

ACTIVATIONS = {"relu": torch.relu, "gelu": nn.GELU("tanh")}
SHAPES = [(1, 64, 320), (64, 128, 512), (200, 320, 448), (1000, 192, 960), (63, 1024, 1536), (4099, 576, 2048)]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path, rng):
    start_afresh(monkeypatch, tmp_path, rng, sm_90=True)


@pytest.mark.parametrize("kind", ["relu", "relu_aux", "gelu", "gelu_slope"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "n", "k"), SHAPES)
def test_the_kernel(kind, dtype, tokens, n, k):
    name, arrays = str(dtype)[6:], package("torch")
    dy, z, x = (torch.randn(tokens, width, device="cuda", dtype=dtype) for width in (n, n, k))
    held = torch.relu(z) if kind == "relu" else pack_bits(arrays, z > 0) if kind == "relu_aux" else z
    kernel = joined.kernel_for(arrays, 0, name, tokens, n, k, kind, held.stride(0))
    dz, db, dw = (torch.full(shape, torch.nan, device="cuda", dtype=dtype) for shape in ((tokens, n), (n,), (n, k)))
    stream = torch.cuda.current_stream().cuda_stream
    pointers = [t.data_ptr() for t in (dy, held, x, dz, db, dw)]
    kernel.launch(*pointers, stream)
    through, _, _ = activations.on_device(arrays, 0, name, tokens, n, held.stride(0), kind, 0)
    want, sums = torch.full_like(dz, torch.nan), torch.full_like(db, torch.nan)
    through.launch(dy.data_ptr(), held.data_ptr(), want.data_ptr(), sums.data_ptr(), stream)
    assert torch.equal(dz, want)  # the same arithmetic, element by element
    u, wide = 2 * (tokens + 2) * unit_roundoff("float32"), dz.double()
    for got, exact, magnitude in ((dw, wide.T @ x.double(), wide.abs().T @ x.double().abs()),
                                  (db, wide.sum(0), wide.abs().sum(0))):  # fmt: skip
        bound = u * magnitude + 1.01 * unit_roundoff(name) * (exact.abs() + u * magnitude) + 2.0**-25
        assert ((got.double() - exact).abs() <= bound).all()  # NaN never is
    first = [t.clone() for t in (dz, db, dw)]
    kernel.launch(*pointers, stream)
    assert all(torch.equal(a, b) for a, b in zip(first, (dz, db, dw), strict=True))  # the same order of sums
    dz.fill_(torch.nan), dw.fill_(torch.nan)
    kernel.launch(*pointers[:4], 0, pointers[5], stream)  # without a bias
    assert torch.equal(dz, first[0])
    assert torch.equal(dw, first[2])


def test_what_there_is_no_kernel_for():
    about = package("torch"), 0
    assert joined.kernel_for(*about, "float16", 64, 128, 512, "gelu", 128) is not None
    for dtype, tokens, n, k in [("float32", 64, 128, 512), ("float16", 64, 120, 512), ("float16", 64, 128, 256)]:
        assert joined.kernel_for(*about, dtype, tokens, n, k, "gelu", n) is None


def test_special_values(rng):
    """What is not finite stays where it is."""
    dtype, arrays = torch.float16, package("torch")
    dy, z, x = (torch.randn(128, width, device="cuda", dtype=dtype) for width in (128, 128, 512))
    dy[3, 5], dy[7, 9], z[11, 13] = torch.inf, torch.nan, torch.nan
    kernel = joined.kernel_for(arrays, 0, "float16", 128, 128, 512, "gelu", 128)
    dz, db, dw = (torch.empty(*shape, device="cuda", dtype=dtype) for shape in ((128, 128), (128,), (128, 512)))
    kernel.launch(*(t.data_ptr() for t in (dy, z, x, dz, db, dw)), torch.cuda.current_stream().cuda_stream)
    assert {tuple(i) for i in (~dz.isfinite()).nonzero().tolist()} == {(3, 5), (7, 9), (11, 13)}
    for array in (db, dw):
        assert set((~array.isfinite()).nonzero()[:, 0].tolist()) == {5, 9, 13}


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_layers_take_it_where_it_was_found_to_be_faster(monkeypatch, activation, mask):
    """Modules of torch, and layers of CuPy, give the same gradients with it, on streams of their own."""
    tokens, n, k = 192, 320, 448
    kind = "gelu" if activation == "gelu" else "relu_aux" if mask else "relu"
    about = package("torch"), 0, "float16", tokens, n, k
    joined.remember(*about, kind, True)
    kept.remember(package("torch"), tokens, n, k, "float16", 0, mask)
    raw.forget_choices()
    _torch_train.learned.forget()
    calls = []
    launch = _weight_gradient.WeightGradient.launch
    monkeypatch.setattr(_weight_gradient.WeightGradient, "launch", lambda *a: (calls.append(a), launch(*a))[1])
    layer = FusedLinear(k, n, activation=activation, device="cuda", dtype=torch.float16)
    other = None
    if HAVE["cupy"]:
        import cupy

        other = ArrayLinear(k, n, activation=activation, dtype="float16", package_name="cupy")
        other.weight, other.bias = (cupy.asarray(p.detach()) for p in (layer.weight, layer.bias))
    for turn in range(3):
        x = torch.randn(2, tokens // 2, k, device="cuda", dtype=torch.float16, requires_grad=True)
        dy = torch.randn(2, tokens // 2, n, device="cuda", dtype=torch.float16)
        wide = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
        want = torch.autograd.grad(ACTIVATIONS[activation](nn.functional.linear(*wide)), wide, dy.double())
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            found = [torch.autograd.grad(layer(x), (x, layer.weight, layer.bias), dy)]
        stream.synchronize()
        assert len(calls) == 1  # the layer of torch takes it from the first time on
        if other is not None:
            with on_stream("cupy", stream.cuda_stream, 0):
                other.forward(cupy.asarray(x.detach()))
                found.append([torch.as_tensor(g, device="cuda") for g in other.backward(cupy.asarray(dy))])
            stream.synchronize()
            kinds = {"relu": "relu_aux"}.get(kind, kind)  # a layer of CuPy always keeps the mask
            assert len(calls) == 1 + (turn > 0 and kinds == kind)
        for gradients in found:
            for one, exact in zip(gradients, want, strict=True):
                off = torch.linalg.vector_norm(one.double() - exact)
                assert off <= 8 * unit_roundoff("float16") * torch.linalg.vector_norm(exact)
        calls.clear()


def test_autotune_compares_both_ways():
    layer = FusedLinear(1024, 2048, activation="gelu", device="cuda", dtype=torch.float16)
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.float16)
    ways = layer.autotune(x)[-1]
    steps = "pass and product", "one kernel"
    assert ways["ways"] == [f"keeps {kind}, {step}" for kind in ("gelu", "gelu_slope") for step in steps]
    times = ways["milliseconds"]
    assert ways["best"] == int(np.argmin(times))
    about = package("torch"), 0, "float16", 4096, 2048, 1024
    assert (joined.chosen(*about, "gelu", 2048) is not None) is (times[1] < times[0])
    assert (joined.chosen(*about, "gelu_slope", 2048) is not None) is (times[3] < times[2])
    slope = kept.slope_for(package("torch"), 4096, 2048, 1024, "float16", 0)
    assert (slope is not None) is (min(times[2:]) < min(times[:2]))


def test_threads_that_have_no_context_yet():
    """As torch's for the backward pass, whose first call may be this one."""
    tokens, n, k = 192, 320, 448
    arrays, new = package("torch"), {"device": "cuda", "dtype": torch.float16}
    dy, slope, x, weight = (torch.randn(*shape, **new) for shape in ((tokens, n), (tokens, n), (tokens, k), (n, k)))
    one = joined.kernel_for(arrays, 0, "float16", tokens, n, k, "gelu_slope", n)
    other = kept.slope_kernel(arrays, tokens, n, k, "float16", 0)
    stream, failed = torch.cuda.current_stream().cuda_stream, []
    results = []

    def work(thread):
        try:
            dz, db, dw, y, rise = results[thread]
            one.launch(*(t.data_ptr() for t in (dy, slope, x, dz, db, dw)), stream)
            other.launch(x.data_ptr(), weight.data_ptr(), 0, y.data_ptr(), 0, rise.data_ptr(), stream)
        except Exception as error:  # noqa: BLE001 - what a thread raises would be lost
            failed.append(error)

    shapes = (tokens, n), (n,), (n, k), (tokens, n), (tokens, n)
    for thread in range(2):
        results.append([torch.full(shape, torch.nan, **new) for shape in shapes])
        worker = threading.Thread(target=work, args=(thread,))
        worker.start()
        worker.join()
    torch.cuda.synchronize()
    assert not failed
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert torch.equal(results[0][0], dy * slope)
