"""The extension for torch with everything that it launches on the CPU: cuBLASLt and kernels as C functions."""

from __future__ import annotations

import ctypes
import inspect

from tests.unit.fake_cublaslt import FakeCublasLt, cuBLASLtError

_P, _I, _U = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
MATMUL = ctypes.CFUNCTYPE(_I, *[_P] * 14, ctypes.c_size_t, _P)
SET = ctypes.CFUNCTYPE(_I, _P, _I, _P, ctypes.c_size_t)


class Configuration(ctypes.Structure):
    """CUlaunchConfig, by CUDA's description of it."""

    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
                ("stream", _P), ("attributes", _P), ("attribute_count", ctypes.c_uint))  # fmt: skip


LAUNCH = ctypes.CFUNCTYPE(_I, ctypes.POINTER(Configuration), _P, ctypes.POINTER(_P), _P)


def library(fake: FakeCublasLt):
    """Return (matmul, set attribute, counts): the fake library's functions as C has them."""
    counts = {"matmul": 0, "set": 0, "fail": 0}

    def matmul(*about):
        counts["matmul"] += 1
        if counts["fail"]:
            counts["fail"] -= 1
            return 15
        fake.matmul(*(value or 0 for value in about))
        return 0

    def put(handle, attribute, address, size):
        counts["set"] += 1
        try:
            fake.matmul_desc_set_attribute(handle, attribute, address, size)
        except cuBLASLtError:
            return 7
        return 0

    assert len(inspect.signature(fake.matmul).parameters) == 16
    return MATMUL(matmul), SET(put), counts


def address(function) -> int:
    """Address of a C function."""
    return ctypes.cast(function, _P).value


def parameter(places, index: int, kind=ctypes.c_uint64):
    """Value of a kernel's parameter."""
    return kind.from_address(places[index]).value


class Driver:
    """cuLaunchKernelEx and cuTensorMapEncodeTiled on the CPU.

    A function's handle is a number under which its Python text is kept: it gets the configuration and the places of
    its parameters. A tensor map holds what the driver was told, as `Told`.
    """

    def __init__(self) -> None:
        self.functions, self.launches, self.encoded, self.fail = {}, 0, 0, 0
        self.cuLaunchKernelEx = LAUNCH(self._launch)
        self.encode = ENCODE(self._encode)

    def add(self, function) -> int:
        """Keep a function; return its handle."""
        self.functions[len(self.functions) + 1] = function
        return len(self.functions)

    def _launch(self, about, function, places, extra):
        self.launches += 1
        if self.fail:
            self.fail -= 1
            return 201
        self.functions[function](about.contents, places)
        return 0

    def _encode(self, place, kind, rank, pointer, sizes, strides, box, ones, interleave, swizzle, promotion, fill):
        self.encoded += 1
        assert place % 64 == 0
        assert list(ones[:rank]) == [1] * rank
        assert (interleave, promotion, fill) == (0, 3, 0)
        told = Told.from_address(place)
        told.pointer, told.kind, told.rank, told.swizzle = pointer, kind, rank, swizzle
        told.sizes[:rank], told.strides[: rank - 1], told.box[:rank] = sizes[:rank], strides[: rank - 1], box[:rank]
        return 0


ENCODE = ctypes.CFUNCTYPE(_I, _P, _I, _U, _P, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64),
                          ctypes.POINTER(_U), ctypes.POINTER(_U), _I, _I, _I, _I)  # fmt: skip


class Told(ctypes.Structure):
    """What stands in a tensor map of `Driver`: 128 bytes."""

    _fields_ = (("pointer", ctypes.c_uint64), ("kind", _U), ("rank", _U), ("sizes", ctypes.c_uint64 * 5),
                ("strides", ctypes.c_uint64 * 4), ("box", _U * 5), ("swizzle", _U))  # fmt: skip
