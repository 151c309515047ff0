"""What the GPU tests of devkernels.linear share: arrays of either package, random operands, bounds."""

import importlib
import importlib.util

import numpy as np
import pytest

from devkernels.tolerance import gelu_error, product_bound, unit_roundoff

HAVE = {name: importlib.util.find_spec(name) is not None for name in ("cupy", "torch", "ml_dtypes", "nvmath")}
needs_nvmath = pytest.mark.skipif(not HAVE["nvmath"], reason="needs nvmath-python (extra cu12 or cu13)")
needs_cupy = pytest.mark.skipif(not HAVE["cupy"], reason="needs cupy")
PACKAGES = [pytest.param(p, marks=pytest.mark.skipif(not HAVE[p], reason=f"needs {p}")) for p in ("cupy", "torch")]
KINDS = ["float16", "bfloat16", "float32", "tf32", "float64", "complex64"]
SHAPES = [(5, 7, 3), (1, 30, 8), (64, 136, 72), (33, 257, 130), (7, 1, 5), (3, 30, 1)]


class Device:
    """Moves arrays to the GPU and back, for one package."""

    def __init__(self, package):
        self.package = package
        self.xp = importlib.import_module(package)

    def put(self, x, dtype=None):
        dtype = dtype or x.dtype.name
        if self.package == "torch":
            return self.xp.from_numpy(np.ascontiguousarray(x)).to("cuda").to(getattr(self.xp, dtype))
        if dtype == "bfloat16":
            import ml_dtypes

            return self.xp.asarray(x).astype(ml_dtypes.bfloat16)
        return self.xp.asarray(x).astype(dtype)

    def get(self, x):
        if self.package == "torch":
            x = x.detach().cpu()
            return x.numpy() if x.dtype in (self.xp.uint8, self.xp.bool) else (
                x.to(self.xp.complex128 if x.is_complex() else self.xp.float64).numpy())  # fmt: skip
        kind = x.dtype
        if kind.name == "bfloat16":
            return self.xp.asnumpy(x.astype("float32")).astype(float)
        host = self.xp.asnumpy(x)
        return host.astype(np.complex128) if kind.kind == "c" else host.astype(float) if kind.kind == "f" else host

    def nan(self, shape, dtype):
        return self.put(np.full(shape, np.nan, "complex64" if dtype.startswith("complex") else "float32"), dtype)

    def turn(self, x):
        return x.swapaxes(-1, -2)

    def sync(self):
        (self.xp.cuda.synchronize if self.package == "torch" else self.xp.cuda.runtime.deviceSynchronize)()


@pytest.fixture(params=PACKAGES)
def gpu(request):
    return Device(request.param)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))


def start_afresh(monkeypatch, tmp_path, rng, *, sm_90=False):
    """A cache of its own, a seed for torch, nothing learned of layers of torch; a skip where `sm_90` is not there.

    Without the extension, which may have been built in this process: the tests of what Python launches count it.
    """
    import torch

    from devkernels.linear import _torch_native, _torch_run, _torch_train, joined, kept

    monkeypatch.setattr(_torch_native, "_loaded", [None])
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))
    torch.manual_seed(int(rng.integers(2**31)))
    for answers in (kept.masks, kept.slopes, joined.answers):
        answers.forget()
    _torch_run.forget_choices()
    _torch_train.learned.forget()
    if sm_90 and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU with sm_90")


def dtype_of(kind):
    return "float32" if kind == "tf32" else kind


def bound(kind, k):
    store = {"complex64": "float32"}.get(dtype_of(kind), dtype_of(kind))
    # tf32 rounds each operand to 11 bits before multiplying.
    return product_bound(accumulate(kind), store, k) + (2 * unit_roundoff("float16") if kind == "tf32" else 0.0)


def accumulate(kind):
    return "float64" if kind == "float64" else "float32"


def own_error(z, kind, *, derivative=False):
    """Bound on the error of cuBLASLt's GELU (or its derivative) at z, from that of the tanh that it uses."""
    if accumulate(kind) == "float64":
        return gelu_error(z, "float64", derivative=derivative)
    tanh_instruction = pytest.importorskip("tests.gpu.tanh_instruction", reason="needs CuPy")
    return gelu_error(z, "float32", derivative=derivative, tanh=tanh_instruction.error())


def exact_tanh(v):
    """Error of CUDA's tanhf: two units in the last place (CUDA C++ Programming Guide)."""
    return 2.0**-22 * abs(np.tanh(v))


def make(gpu, rng, shape, kind):
    x = rng.standard_normal(shape)
    if kind == "complex64":
        x = x + 1j * rng.standard_normal(shape)
    dtype = dtype_of(kind)
    if dtype == "bfloat16" and gpu.package == "cupy" and not HAVE["ml_dtypes"]:
        pytest.skip("CuPy's bfloat16 needs ml_dtypes")
    return gpu.put(x, dtype)


def options(kind):
    return {"compute_type": "tf32"} if kind == "tf32" else {"compute_type": "32f"} if kind == "float32" else {}
