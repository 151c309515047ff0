"""devkernels.linear with two GPUs: what lies on different ones is refused, and the second one computes as the first."""

import numpy as np
import pytest

from devkernels.errors import DeviceMismatchError
from devkernels.linear import FusedMatmul, FusedMLP, fused_matmul
from devkernels.tolerance import product_bound
from tests.gpu.linear_device import HAVE, needs_nvmath
from tests.unit.linear_bounds import check_mlp
from tests.unit.linear_support import forward_reference


def _devices():
    if HAVE["torch"]:
        import torch

        return torch.cuda.device_count()
    if HAVE["cupy"]:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    return 0


pytestmark = [needs_nvmath, pytest.mark.skipif(_devices() < 2, reason="needs two GPUs")]
PACKAGES = [name for name in ("cupy", "torch") if HAVE[name]]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DEVKERNELS_CACHE_DIR", str(tmp_path))


def put(package, device, x):
    if package == "torch":
        import torch

        return torch.from_numpy(x).to(f"cuda:{device}")
    import cupy

    with cupy.cuda.Device(device):
        return cupy.asarray(x)


def get(x):
    if hasattr(x, "detach"):
        return x.detach().cpu().numpy()
    with x.device:
        return x.get()


def current(package):
    if package == "torch":
        import torch

        return torch.cuda.current_device()
    import cupy

    return cupy.cuda.runtime.getDevice()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_second_gpu(rng, package):
    a, b, bias = (rng.standard_normal(s).astype("f4") for s in ((33, 64), (64, 40), (40,)))
    want, z, parts = forward_reference(a, b, bias=bias, activation="relu")
    limit = 2 * product_bound("float32", "float32", 64) * np.linalg.norm(parts)
    before = current(package)
    for device in (1, 0, 1):
        on = [put(package, device, x) for x in (a, b, bias)]
        options = dict(bias=on[2], activation="relu", aux=True, compute_type="32f")
        for _ in range(2):
            y, mask = fused_matmul(on[0], on[1], **options)
            assert mask.device == device
            assert np.linalg.norm(get(y) - want) <= limit
        mm = FusedMatmul(on[0], on[1], epilog="BIAS", bias=on[2], compute_type="32f").plan()
        mm.autotune()
        assert np.linalg.norm(get(mm.execute()) - z) <= limit
        assert current(package) == before


@pytest.mark.parametrize("package", PACKAGES)
def test_what_lies_on_two_gpus_is_refused(rng, package):
    a, b = rng.standard_normal((8, 16)).astype("f4"), rng.standard_normal((16, 24)).astype("f4")
    here, there = [[put(package, d, x) for x in (a, b)] for d in (0, 1)]
    out = put(package, 1, np.full((8, 24), np.nan, "f4"))
    for arguments in ((here[0], there[1]), (there[0], here[1])):
        with pytest.raises(DeviceMismatchError):
            fused_matmul(*arguments)
    with pytest.raises(DeviceMismatchError):
        fused_matmul(*here, out=out)
    with pytest.raises(DeviceMismatchError):
        fused_matmul(*here, bias=put(package, 1, np.zeros(24, "f4")))
    assert np.isnan(get(out)).all()
    _, mask = fused_matmul(*here, activation="relu", aux=True)
    with pytest.raises(DeviceMismatchError):
        FusedMatmul(*there, epilog="DRELU", epilog_inputs={"relu_aux": mask}).plan()


@pytest.mark.skipif(not HAVE["cupy"], reason="needs cupy")
def test_layers_on_the_second_gpu(rng):
    mlp = FusedMLP([16, 64, 32, 8], dtype="float32", package_name="cupy", device=1, compute_type="32f")
    for _ in range(2):
        x, dy = (put("cupy", 1, rng.standard_normal((9, n)).astype("f4")) for n in (16, 8))
        check_mlp(mlp, "relu", "float32", x, dy, lambda a: get(a).astype(float))


@pytest.mark.skipif(not HAVE["torch"], reason="needs torch")
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_modules_on_the_second_gpu(rng, activation):
    import torch

    from devkernels.linear.torch import FusedLinear, fused_linear

    layer = FusedLinear(24, 40, activation=activation, device="cuda:1", dtype=torch.float64)
    x = put("torch", 1, rng.standard_normal((5, 24))).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w, b: fused_linear(x, w, b, activation), (x, layer.weight, layer.bias))
    with torch.no_grad():
        first, second = layer(x), layer(x)
    assert torch.equal(first, second)
    with pytest.raises(DeviceMismatchError):
        layer(x.detach().to("cuda:0"))


@pytest.mark.skipif(not HAVE["torch"], reason="needs torch")
def test_recorded_modules_on_the_second_gpu(rng):
    import torch

    from devkernels.linear.torch import FusedLinear

    layer, twin = (FusedLinear(24, 40, activation="gelu", device="cuda:1") for _ in range(2))
    twin.load_state_dict(layer.state_dict())
    layer.record(put("torch", 1, rng.standard_normal((5, 24)).astype("f4")))
    for _ in range(3):  # the first GPU is the current one
        x = put("torch", 1, rng.standard_normal((5, 24)).astype("f4"))
        y, want = layer(x), twin(x)
        assert torch.equal(y, want)
        y.square().sum().backward()
        want.square().sum().backward()
    assert layer._recording.turn == 3
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert current("torch") == 0
