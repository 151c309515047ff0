"""The extension for torch with everything that it launches on the CPU, and tensors as a GPU's allocator gives them."""

from __future__ import annotations

import ctypes
import types

import numpy as np
import torch

from devkernels.linear import (
    _cuda,
    _kernels,
    _tensor_map,
    _torch_kept,
    _torch_native,
    _torch_ops,
    _torch_program,
    _torch_run,
    _torch_train,
)
from tests.unit.linear_support import enter_torch_world, gelu_slope
from tests.unit.native_support import Driver, Told, address, library, parameter

WIDTH = 8  # inputs of every layer here


def aligned(x):
    """Copy to an address that 256 divides, as a GPU's allocator gives them: Python's way asks for it."""
    whole = x.new_empty(x.numel() + 256)
    start = -whole.data_ptr() % 256 // x.element_size()
    return whole[start : start + x.numel()].view(x.shape).copy_(x)


def randn(*shape):
    return aligned(torch.randn(shape, dtype=torch.float64))


class Kernel:
    """A kernel of a layer's backward pass, in NumPy, laid out for the C++ as the real ones are."""

    def __init__(self, driver, arrays, rows, columns, kind, kept_ld):
        self.rows, self.columns, self.kind, self.kept_ld = rows, columns, kind, kept_ld
        self._launch = types.SimpleNamespace(function=driver.add(self.run), dimensions=(5, 4, 3, 32, 2, 1),
                                             shared_bytes=77)  # fmt: skip
        self.laid_out = ("dy", "kept", "dz", "db", "work", "counters", rows, columns, kept_ld, 9)
        self.places = []

    def view(self, pointer, shape, dtype="f8"):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * count).from_address(pointer), dtype).reshape(shape)

    def run(self, about, places):
        assert (list(about.grid), list(about.block), about.shared_bytes) == ([5, 4, 3], [32, 2, 1], 77)
        numbers = [parameter(places, i) for i in range(10)]
        assert numbers[6:] == [self.rows, self.columns, self.kept_ld, 9]
        self.places.append(tuple(numbers[4:6]))
        self.compute(*numbers[:4])

    def launch(self, dy, kept, dz, db, stream):
        """As Python launches it."""
        self.compute(dy, kept, dz, db)

    def compute(self, dy, kept, dz, db):
        shape = self.rows, self.columns
        if self.kind == "relu":
            slope = self.view(kept, shape) > 0
        elif self.kind == "relu_aux":
            bits = self.view(kept, (self.rows, self.kept_ld), "u1")
            slope = np.unpackbits(bits, axis=1, bitorder="little")[:, : self.columns]
        else:
            slope = gelu_slope(self.view(kept, (self.rows, self.kept_ld))[:, : self.columns])
        self.view(dz, shape)[...] = self.view(dy, shape) * slope
        if db:
            self.view(db, (self.columns,))[...] = self.view(dz, shape).sum(0)


class Joined(Kernel):
    """The one that makes the weight gradient besides, and takes tensor maps."""

    def __init__(self, driver, arrays, rows, columns, kind, kept_ld):
        super().__init__(driver, arrays, rows, columns, kind, kept_ld)
        maps = [_tensor_map.Map(0, dtype, *about) for dtype, about in [
            ("float16", (rows, 64, 64, 32, 1)), ("uint8", (rows, kept_ld, kept_ld, 32, 16)),
            ("float16", (rows, 128, 192, 64, 2)), ("bfloat16", (rows, 64, 64, 32, 1))]]  # fmt: skip
        self.laid_out = (*zip(maps, ("dy", "kept", "x", "dz"), strict=True), "db", "dw", rows)

    def run(self, about, places):
        told = [Told.from_address(places[i]) for i in range(4)]
        assert [t.kind for t in told] == [6, 0, 6, 9]
        assert [t.rank for t in told] == [3, 2, 3, 3]
        assert (list(told[1].sizes[:2]), told[1].strides[0], list(told[1].box[:2]), told[1].swizzle) == (
            [self.kept_ld, self.rows], self.kept_ld, [16, 32], 0)  # fmt: skip
        assert (list(told[2].sizes[:3]), list(told[2].strides[:2]), list(told[2].box[:3]), told[2].swizzle) == (
            [64, self.rows, 2], [384, 128], [64, 64, 2], 3)  # fmt: skip
        dy, kept, x, dz = (t.pointer for t in told)
        self.launch(dy, kept, x, dz, parameter(places, 4), parameter(places, 5), 0)

    def launch(self, dy, kept, x, dz, db, dw, stream):
        self.compute(dy, kept, dz, db)
        left, right = self.view(dz, (self.rows, self.columns)), self.view(x, (self.rows, WIDTH))
        self.view(dw, (self.columns, WIDTH))[...] = left.T @ right


class World:
    """The extension, what it launches, and a layer's operands."""

    def __init__(self, monkeypatch, tmp_path, built):
        self.fake = enter_torch_world(monkeypatch, tmp_path)
        self.native, self.driver, self.kernels = built, Driver(), []
        self.matmul, self.put, self.counts = library(self.fake)
        self.joined = self.mask = False
        self.entered = []
        built.forget_places()
        built.use_places(_torch_native._places, self.entered.append)
        monkeypatch.setattr(_torch_native, "_loaded", [built])
        monkeypatch.setattr(_torch_native, "functions", lambda: (address(self.matmul), address(self.put)))
        monkeypatch.setattr(_torch_native, "_ARRAYS", _torch_run._ARRAYS)
        monkeypatch.setattr(_torch_program, "_ALIGNMENT", 1)  # torch's memory on the CPU is aligned to 64
        monkeypatch.setattr(_cuda, "library", lambda: self.driver)
        monkeypatch.setattr(_tensor_map, "_encoder", lambda: self.driver.encode)
        monkeypatch.setattr(_torch_train, "on_gpu", lambda x: True)
        monkeypatch.setattr(_torch_run, "on_gpu", lambda x: True)
        keeps = lambda x, w, a: a == "gelu" or (self.mask and a == "relu")  # noqa: E731
        monkeypatch.setattr(_torch_kept, "keeps_mask", keeps)
        monkeypatch.setattr(_torch_run, "on_device", self._pass)
        monkeypatch.setattr(_torch_run, "chosen", self._chosen)
        monkeypatch.setattr(_kernels, "counters", lambda arrays, device, stream: 4096)
        made = _torch_run._ARRAYS.maker
        monkeypatch.setattr(type(_torch_run._ARRAYS), "maker", lambda _, *about: lambda: aligned(made(*about)()))
        self.took = []
        monkeypatch.setattr(_torch_ops, "_apply_linear", self._seen(_torch_ops._apply_linear, "function"))
        monkeypatch.setattr(_torch_run, "backward", self._seen(_torch_run.backward, "longer"))

    def _seen(self, function, name):
        return lambda *about: (self.took.append(name), function(*about))[1]

    def _pass(self, arrays, device, dtype, rows, columns, ld, kind, bits):
        self.kernels.append(Kernel(self.driver, arrays, rows, columns, kind, ld))
        return self.kernels[-1], arrays.maker((rows, columns), dtype, device), arrays.maker((columns,), dtype, device)

    def _chosen(self, arrays, device, dtype, rows, columns, width, kind, ld):
        if self.joined:
            self.kernels.append(Joined(self.driver, arrays, rows, columns, kind, ld))
        return self.kernels[-1] if self.joined else None
