"""Several GPUs: a kernel goes where its arrays are, whatever device is current; needs two of them."""

import threading

import cupy as cp
import numpy as np
import pytest
from numba import cuda, float32

import devkernels
from devkernels.errors import DeviceMismatchError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(cp.cuda.runtime.getDeviceCount() < 2, reason="needs two GPUs")

N, BLOCK = 1000, 128
GRID = -(-N // BLOCK)
ONCE = "void(float32[::1], float32[::1], float32, int32)"


def make_axpy(**options):
    @devkernels.kernel(**options)
    def axpy(x, y, a, n):
        i = cuda.grid(1)
        if i < n:
            y[i] = a * x[i] + float32(1)

    return axpy


def pair(rng, device, library="cupy"):
    """A random array and a poisoned one on a device, and the first on the host."""
    x = rng.standard_normal(N).astype(np.float32)
    if library == "torch":
        where = torch.device("cuda", device)
        return torch.as_tensor(x, device=where), torch.full((N,), float("nan"), device=where), x
    with cp.cuda.Device(device):
        arrays = cp.asarray(x), cp.full(N, np.nan, np.float32)
        cp.cuda.Device().synchronize()
    return *arrays, x


def host(array, device):
    if isinstance(array, torch.Tensor):
        torch.cuda.synchronize(device)
        return array.cpu().numpy()
    with cp.cuda.Device(device):
        cp.cuda.Device().synchronize()
        return cp.asnumpy(array)


def assert_axpy(y, x, a):
    want = a * x.astype(np.float64) + 1
    assert np.abs(y - want).max() <= 2.0**-23 * np.abs(want).max()


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("options", [{"signature": ONCE}, {}], ids=["signature", "inferred"])
@pytest.mark.parametrize("current", [0, 1])
def test_a_launch_goes_where_its_arrays_are(rng, library, options, current):
    """To and fro with one configuration, and the caller's current device stays what it was."""
    axpy = make_axpy(**options)
    launch = axpy[GRID, BLOCK]
    with cp.cuda.Device(current):
        for device in (0, 1, 1, 0, 1, 0, 0):
            x, y, at_home = pair(rng, device, library)
            launch(x, y, 2.0, N)
            assert cp.cuda.runtime.getDevice() == current
            assert_axpy(host(y, device), at_home, 2)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_bound_launches_on_both(rng, library):
    axpy = make_axpy(signature=ONCE)
    bound = []
    for device in (0, 1):
        x, y, at_home = pair(rng, device, library)
        bound.append((axpy[GRID, BLOCK].bind(x, y, 3.0, N), y, at_home, device))
    for run, y, at_home, device in [*bound, *reversed(bound)]:
        with cp.cuda.Device(device):
            run()
        assert_axpy(host(y, device), at_home, 3)
    for run, y, at_home, device in bound:  # and while the other device is current
        with cp.cuda.Device(device):
            y[...] = float("nan")
        host(y, device)
        with cp.cuda.Device(1 - device):
            run()
        assert_axpy(host(y, device), at_home, 3)


def test_arrays_of_two_devices_are_refused(rng):
    axpy = make_axpy(signature=ONCE)
    x, _, _ = pair(rng, 0)
    own, _, _ = pair(rng, 0)
    _, y, _ = pair(rng, 1)
    launch = axpy[GRID, BLOCK]
    for _ in range(2):
        with pytest.raises(DeviceMismatchError, match="x on device 0, y on device 1"):
            launch(x, y, 2.0, N)
        launch(x, own, 2.0, N)
    with pytest.raises(DeviceMismatchError):
        launch.bind(x, y, 2.0, N)
    assert np.isnan(host(y, 1)).all()


@pytest.mark.parametrize("device", [0, 1])
def test_streams_of_the_device(rng, device):
    axpy = make_axpy(signature=ONCE)
    x, y, at_home = pair(rng, device)
    with cp.cuda.Device(device):
        stream = cp.cuda.Stream(non_blocking=True)
    axpy[GRID, BLOCK, stream](x, y, 2.0, N)
    stream.synchronize()
    assert_axpy(host(y, device), at_home, 2)


def test_large_shared_memory_on_both(rng):
    @devkernels.kernel(signature="void(float32[::1], float32[::1], int32)")
    def reverse(x, y, n):
        shared = cuda.shared.array(0, float32)
        for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            shared[i] = x[i]
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            y[i] = shared[n - 1 - i]

    for device in (0, 1, 0):
        x, y, at_home = pair(rng, device)
        reverse[1, 128, 0, 200 << 10](x, y, N)
        np.testing.assert_array_equal(host(y, device), at_home[::-1])


def test_threads_with_devices_of_their_own(rng):
    axpy = make_axpy(signature=ONCE)
    work = [(k % 2, *pair(rng, k % 2)) for k in range(8)]
    failures = []

    def run(device, x, y):
        try:
            with cp.cuda.Device(device):
                for _ in range(100):
                    axpy[GRID, BLOCK](x, y, 2.0, N)
                cp.cuda.Device().synchronize()
        except Exception as error:  # noqa: BLE001 - reported by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=run, args=item[:3]) for item in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for device, _, y, at_home in work:
        assert_axpy(host(y, device), at_home, 2)


def test_ready_kernels_on_the_second_device(rng):
    x = (rng.standard_normal((5, 64)) + 1j * rng.standard_normal((5, 64))).astype(np.complex64)
    h = (rng.standard_normal(64) + 1j * rng.standard_normal(64)).astype(np.complex64)
    want = np.fft.ifft(np.fft.fft(x.astype(complex)) * h)
    made = devkernels.make_spectral_filter(64, "complex64")
    for device in (1, 0, 1):
        with cp.cuda.Device(device):
            y = cp.asnumpy(made(cp.asarray(x), cp.asarray(h)))
        assert np.linalg.norm(y - want) <= 1e-6 * np.linalg.norm(want)
