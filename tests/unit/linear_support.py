"""What the tests of devkernels.linear share: float64 references, and worlds to run in (NumPy, or a CPU cuBLASLt)."""

from __future__ import annotations

import numpy as np

from devkernels.linear import _cublaslt, _workspace, arrays, matmul, plan
from devkernels.linear.bounded import Bounded
from tests.unit.fake_cublaslt import FakeCublasLt

SCALE = np.sqrt(2 / np.pi)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(SCALE * (x + 0.044715 * x**3)))


def gelu_slope(x):
    t = np.tanh(SCALE * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SCALE * (1 + 3 * 0.044715 * x * x)


def forward_reference(a, b, *, bias=0.0, activation=None, c=0.0, alpha=1.0, beta=1.0):
    """Result, input of the activation, and the sum of magnitudes that its rounding is relative to, in float64."""
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    z = alpha * (np.asarray(a, wide) @ np.asarray(b, wide)) + beta * np.asarray(c, wide) + np.asarray(bias, wide)
    parts = abs(alpha) * (abs(a.astype(wide)) @ abs(b.astype(wide))) + abs(beta * np.asarray(c, wide))
    y = {None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu}[activation](z)
    return y, z, parts + abs(np.asarray(bias, wide))


class FakeDevice(arrays.NumpyArrays):
    """NumPy's arrays as if they lay on device 0."""

    streams = 0

    def describe(self, array):
        return super().describe(array)._replace(device=0)

    def stream(self, device):
        return self.streams

    def device_name(self, device):
        return "Fake GPU"

    def milliseconds(self, run, device):
        run()
        return 1.0


def enter_world(monkeypatch, tmp_path, kind, **options):
    """Start afresh; with kind "lt", products of NumPy arrays go through descriptors and a cuBLASLt on the CPU."""
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    for store in (matmul._calls, plan._plans, _workspace._handles, _workspace._workspaces):
        monkeypatch.setattr(*_owner(store), Bounded(store.limit) if isinstance(store, Bounded) else type(store)())
    monkeypatch.setattr(_workspace, "_workspace_memory", [])
    from devkernels import cache

    cache.forget()
    if kind == "numpy":
        return None
    fake = FakeCublasLt(**options)
    for module in (_workspace, _cublaslt):
        monkeypatch.setattr(module, "bindings", lambda: fake)
        monkeypatch.setattr(module, "library_version", lambda: 130000)
    monkeypatch.setitem(arrays._by_type, np.ndarray, FakeDevice())
    return fake


def _owner(store):
    for module in (matmul, plan, _workspace):
        for name, value in vars(module).items():
            if value is store:
                return module, name
    raise AssertionError


def enter_torch_world(monkeypatch, tmp_path):
    """Start afresh; products of tensors go through descriptors and a cuBLASLt on the CPU, as if they lay on a GPU."""
    import contextlib

    from devkernels.linear import _torch_native, _torch_quick, _torch_run, _torch_train

    monkeypatch.setattr(_torch_native, "_loaded", [None])  # also where other tests of this process have built it
    fake = enter_world(monkeypatch, tmp_path, "lt")

    class FakeCuda(arrays.TorchArrays):
        """torch's arrays as if they lay on device 0."""

        def describe(self, array):
            return super().describe(array)._replace(device=0)

        def stream(self, device):
            return 0

        def on(self, device):
            return contextlib.nullcontext()

        def empty(self, shape, dtype, device, stream=None):
            return super().empty(shape, dtype, arrays.CPU)

        def maker(self, shape, dtype, device):
            return super().maker(shape, dtype, arrays.CPU)

        def device_name(self, device):
            return "Fake GPU"

    world = FakeCuda()
    monkeypatch.setitem(arrays._by_type, world.torch.Tensor, world)
    monkeypatch.setitem(arrays._by_type, world.torch.nn.Parameter, world)
    monkeypatch.setattr(_torch_run, "_ARRAYS", world)
    monkeypatch.setattr(_torch_run, "_raw_stream", lambda index: 0)
    for store in (_torch_run, _torch_quick.learned, _torch_train.learned):
        for name, value in list(vars(store).items()):
            if isinstance(value, Bounded):
                monkeypatch.setattr(store, name, Bounded(value.limit))
    return fake
