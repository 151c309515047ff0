"""What `autotune` of a layer chooses, with a cuBLASLt on the CPU and kernels that only take time."""

import numpy as np
import pytest

from devkernels.errors import DevkernelsError
from devkernels.linear import activations, joined, kept, tune_layer
from devkernels.linear.arrays import arrays_of
from tests.unit.linear_support import enter_world, gelu, gelu_slope


@pytest.fixture
def lt(monkeypatch, tmp_path):
    for answers in (kept.masks, kept.slopes, joined.answers):
        answers.forget()
    return enter_world(monkeypatch, tmp_path, "lt")


class Kernel:
    """The pass through an activation, or the weight gradient with it inside; counts what it costs."""

    spent = 0.0

    def __init__(self, make, kind, costs, wrong=False, fails=False):
        self.make, self.kind, self.costs, self.wrong, self.fails = make, kind, costs, wrong, fails

    def launch(self, *pointers):
        if self.fails:
            raise DevkernelsError("this device cannot launch it")
        Kernel.spent += self.costs
        dy, data, *x, dz, db = (self.make.at[p] for p in pointers[: 5 if len(pointers) == 7 else 4])
        slope = gelu_slope(data.astype("f8")) if self.kind == "gelu" else None
        if self.kind == "relu":
            slope = data > 0
        elif self.kind == "gelu_slope":
            slope = data
        elif slope is None:
            slope = np.unpackbits(data, axis=1, bitorder="little")[:, : dy.shape[1]]
        dz[...] = dy * slope
        db[...] = dz.sum(0)
        if x:
            self.make.at[pointers[5]][...] = dz.T @ x[0] + self.wrong


class Forward:
    """The forward product that keeps GELU's slope; counts what it costs."""

    def __init__(self, make, costs, wrong):
        self.make, self.costs, self.wrong = make, costs, wrong

    def launch(self, x, weight, c, out, bias, slope, stream):
        Kernel.spent += self.costs
        at = self.make.at
        z = at[x].astype("f8") @ at[weight].T + at[bias]
        at[out][...], at[slope][...] = gelu(z), gelu_slope(z) + self.wrong


@pytest.fixture
def world(lt, monkeypatch, rng):
    """Arrays by their pointers; `set_up` says what the kernels cost."""

    class Make:
        def __init__(self):
            self.at = {}

        def __call__(self, *shape):
            whole = np.zeros(int(np.prod(shape)) + 64, "f4")
            start = -whole.ctypes.data % 256 // 4
            array = whole[start : start + int(np.prod(shape))].reshape(shape)
            array[...] = rng.standard_normal(shape)
            self.at[array.ctypes.data] = array
            return array

        def set_up(self, pass_costs, one_costs, slope_costs=None, slope_wrong=0, **options):
            monkeypatch.setattr(kept, "slope_kernel", lambda *about: (
                None if slope_costs is None else Forward(self, slope_costs, slope_wrong)))  # fmt: skip
            arrays = type(arrays_of(np.ones(1)))

            def maker(this, shape, dtype, device):
                return lambda: self(*shape) if dtype == "float32" else this.xp.zeros(shape, dtype)

            def empty(this, shape, dtype, device, stream=None):
                if dtype == "float32":
                    return self(*shape)
                whole = np.zeros(int(np.prod(shape)) + 256, dtype)
                start = -whole.ctypes.data % 256 // whole.itemsize
                array = whole[start : start + int(np.prod(shape))].reshape(shape)
                self.at[array.ctypes.data] = array
                return array

            def milliseconds(this, run, device):
                calls, spent = lt.calls, Kernel.spent
                run()
                return 10.0 * (lt.calls - calls) + Kernel.spent - spent

            monkeypatch.setattr(
                arrays, "maker", lambda this, shape, dtype, device: lambda: empty(this, shape, dtype, device)
            )
            monkeypatch.setattr(arrays, "empty", empty)
            monkeypatch.setattr(arrays, "milliseconds", milliseconds)
            monkeypatch.setattr(activations, "on_device", lambda a, device, dtype, rows, columns, ld, kind, bits: (
                Kernel(self, kind, pass_costs[kind]), lambda: self(rows, columns), lambda: self(columns)))  # fmt: skip
            monkeypatch.setattr(joined, "kernel_for", lambda a, device, dtype, rows, columns, width, kind, ld: (
                None if kind not in one_costs else Kernel(self, kind, one_costs[kind], **options)))  # fmt: skip

    return Make()


CASES = [
    # costs of the pass, costs of one kernel (a product: 10), options, what is best
    ("gelu", {"gelu": 3.0}, {"gelu": 11.0}, {}, ("gelu", True)),
    ("gelu", {"gelu": 3.0}, {"gelu": 14.0}, {}, ("gelu", False)),
    ("gelu", {"gelu": 3.0}, {}, {}, ("gelu", False)),
    ("gelu", {"gelu": 3.0}, {"gelu": 1.0}, {"wrong": True}, ("gelu", False)),
    ("gelu", {"gelu": 3.0}, {"gelu": 1.0}, {"fails": True}, ("gelu", False)),
    (
        "gelu",
        {"gelu": 3.0, "gelu_slope": 2.0},
        {"gelu": 14.0, "gelu_slope": 11.0},
        {"slope_costs": 9.0},
        ("gelu_slope", True),
    ),
    (
        "gelu",
        {"gelu": 3.0, "gelu_slope": 2.0},
        {"gelu": 14.0, "gelu_slope": 13.0},
        {"slope_costs": 9.0},
        ("gelu_slope", False),
    ),
    (
        "gelu",
        {"gelu": 3.0, "gelu_slope": 2.0},
        {"gelu": 14.0, "gelu_slope": 11.0},
        {"slope_costs": 13.0},
        ("gelu", False),
    ),
    (
        "gelu",
        {"gelu": 3.0, "gelu_slope": 2.0},
        {"gelu": 14.0, "gelu_slope": 11.0},
        {"slope_costs": 1.0, "slope_wrong": 1},
        ("gelu", False),
    ),
    ("relu", {"relu": 3.0, "relu_aux": 2.0}, {"relu": 9.0, "relu_aux": 11.5}, {}, ("relu", True)),
    ("relu", {"relu": 3.0, "relu_aux": 2.0}, {"relu": 13.0, "relu_aux": 11.5}, {}, ("relu_aux", True)),
    ("relu", {"relu": 3.0, "relu_aux": 2.0}, {"relu": 13.5, "relu_aux": 12.5}, {}, ("relu_aux", False)),
]


@pytest.mark.parametrize(("activation", "pass_costs", "one_costs", "options", "best"), CASES)
def test_ways_through_a_training_step(world, activation, pass_costs, one_costs, options, best):
    world.set_up(pass_costs, one_costs, **options)
    x, weight, bias = world(24, 16), world(8, 16), world(8)
    report = tune_layer.autotune(x, weight, bias, activation)[-1]
    kind, one = best
    assert report["ways"][report["best"]] == f"keeps {kind}, {'one kernel' if one else 'pass and product'}"
    assert report["milliseconds"][report["best"]] == pytest.approx(min(report["milliseconds"]))
    arrays = arrays_of(x)
    assert kept.mask_for(arrays, 24, 8, 16, "float32", 0) is (kind == "relu_aux")
    assert kept.slopes.of(arrays, 0, "float32", 24, 8, 16) is (kind == "gelu_slope")
    dropped = (
        {"gelu_slope"} if "slope_wrong" in options else set(one_costs) if {"wrong", "fails"} & set(options) else set()
    )
    faster = {k for k in pass_costs if one_costs.get(k, 99.0) < pass_costs[k] + 10.0} - dropped
    chosen = {k for k in pass_costs if joined.answers.of(arrays, 0, "float32", 24, 8, 16, joined.KINDS[k])}
    assert chosen == faster


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_forward_alone_chooses_no_way_back(world, activation):
    world.set_up({}, {})
    reports = tune_layer.autotune(world(24, 16), world(8, 16), world(8), activation, backward=False)
    assert len(reports) == 1
    assert "spec" in reports[0]
