"""The short way of a launch: the same words as the general way, and nothing launched that it was not made for."""

import ctypes
import types

import numpy as np
import pytest

from devkernels.compiler.image import KernelImage, Parameter
from devkernels.errors import ArgumentError, DevkernelsError
from devkernels.launch import arguments, driver, straight
from devkernels.launch.buffer import Buffer, places
from devkernels.target import Target


class Data:
    def __init__(self, pointer, device=0):
        self.ptr, self.device_id = pointer, device


class ndarray:
    """What the launcher reads of an array of CuPy, without a GPU behind it."""

    __module__ = "cupy"

    def __init__(self, shape, dtype="float32", pointer=0x7F0000000000, device=0, order="C", strides=None):
        like = np.zeros(shape, dtype, order=order)
        self.dtype, self.shape, self.size, self.ndim = like.dtype, shape, like.size, like.ndim
        self.strides = strides or like.strides
        self._c_contiguous = self.strides == like.strides and order == "C"
        self._f_contiguous = like.flags.f_contiguous and strides is None
        self.data = Data(pointer, device)


class Launched:
    """Stands for the driver's launch: keeps what it was given."""

    def __init__(self):
        self.words, self.streams = [], []

    def __call__(self, configuration, handle, words, null):
        made = configuration._obj
        self.streams.append(made.stream)
        self.words.append(words)
        return 0


PARAMETERS = (
    Parameter("x", "array", "float32", 1, "C"),
    Parameter("n", "scalar", "int32"),
    Parameter("y", "array", "complex64", 2, "A"),
    Parameter("a", "scalar", "float64"),
    Parameter("flag", "scalar", "bool"),
)


class Way:
    """The short way of one kernel, with a general way that only notes what comes to it."""

    def __init__(self, monkeypatch, parameters, values, stream=None, devices=1):
        self.launched, self.general, self.buffers = Launched(), [], []
        monkeypatch.setattr(driver, "launch_entry", lambda: self.launched)
        monkeypatch.setattr(driver, "device_count", lambda: devices)
        image = KernelImage("k", b"", "k", Target(9, 0), 32, 0, 0, None, parameters)
        arrays = [i for i, parameter in enumerate(parameters) if parameter.kind == "array"]
        self.loaded = types.SimpleNamespace(
            image=image, device=0, handle=driver.word(1), places=places(parameters),
            leading=arrays[0] if arrays else None, new_buffer=lambda: Buffer(parameters),
            current_streams={ndarray: lambda: 77}, again_with=lambda configurations: None,
        )  # fmt: skip
        self.configurations = driver.Configurations((8, 1, 1), (128, 2, 1), 64, False)
        kinds = [type(value) for value in values]
        self.fire = straight.launch(self.loaded, kinds, self.configurations, stream, self.buffers, self.note)

    def note(self, values, buffer):
        self.general.append(values)
        self.written(values, buffer)
        self.buffers.append(buffer)

    def written(self, values, buffer):
        """What the general way writes."""
        for parameter, place, value in zip(self.loaded.image.parameters, self.loaded.places, values, strict=True):
            arguments.Table(parameter, place, "k", 0, False, {})[type(value)](value, buffer)
        return bytes(buffer.memory)


def values(rng, shape=None, columns=None):
    rows, columns = shape or int(rng.integers(1, 9)), columns or int(rng.integers(1, 9))
    return (
        ndarray((rows,), pointer=int(rng.integers(1, 2**40)) * 8),
        int(rng.integers(-(2**31), 2**31)),
        ndarray((rows, columns), "complex64", pointer=int(rng.integers(1, 2**40)) * 8),
        float(rng.standard_normal()),
        bool(rng.integers(2)),
    )


def test_same_words_as_the_general_way(rng, monkeypatch):
    way = Way(monkeypatch, PARAMETERS, values(rng))
    for _ in range(100):
        given = values(rng)
        way.fire(given)  # another shape: the general way, which leaves its buffer
        again = values(rng, *given[2].shape)
        before = len(way.general)
        way.fire(again)
        assert len(way.general) == before
        (buffer,) = way.buffers
        assert bytes(buffer.memory) == way.written(again, Buffer(PARAMETERS))
    assert len(way.launched.words) >= 100
    assert set(way.launched.streams) == {77}


def test_a_given_stream(rng, monkeypatch):
    given = values(rng, 3, 4)
    way = Way(monkeypatch, PARAMETERS, given, stream=5)
    for _ in range(3):
        way.fire(given)
    assert (way.launched.streams, len(way.general)) == ([5, 5], 1)


BAD = {
    "dtype": lambda v: (ndarray(v[0].shape, "float64"), *v[1:]),
    "another rank": lambda v: (ndarray((1, *v[0].shape)), *v[1:]),
    "strides": lambda v: (*v[:2], ndarray((3, 4), "complex64", strides=(64, 8)), *v[3:]),
    "misaligned": lambda v: (*v[:2], ndarray((3, 4), "complex64", pointer=0x1004), *v[3:]),
    "numpy": lambda v: (np.zeros(3, np.float32), *v[1:]),
    "no array": lambda v: (None, *v[1:]),
    "float for int": lambda v: (v[0], 1.5, *v[2:]),
    "boolean for int": lambda v: (v[0], True, *v[2:]),
    "too large": lambda v: (v[0], 2**31, *v[2:]),
    "integer for float": lambda v: (*v[:3], 2, v[4]),
    "integer for boolean": lambda v: (*v[:4], 1),
    "too few": lambda v: v[:4],
    "too many": lambda v: (*v, 1),
    "nothing": lambda v: (),
    "array for a number": lambda v: (v[0], v[0], *v[2:]),
}


@pytest.mark.parametrize("name", BAD)
def test_anything_else_goes_the_general_way(rng, monkeypatch, name):
    good = values(rng, 3, 4)
    way = Way(monkeypatch, PARAMETERS, good)
    way.fire(good)
    way.fire(good)
    assert (len(way.launched.words), len(way.general)) == (1, 1)
    seen = []
    monkeypatch.setattr(way, "written", lambda values, buffer: seen.append(values))
    bad = BAD[name](good)
    way.fire(bad)
    assert seen == [bad]
    assert len(way.launched.words) == 1


def test_derived_arrays_are_as_good(rng, monkeypatch):
    class Derived(ndarray):
        __module__ = "somewhere"

    good = values(rng, 3, 4)
    mixed = (good[0], good[1], Derived((3, 4), "complex64"), *good[3:])
    way = Way(monkeypatch, PARAMETERS, mixed)
    way.fire(mixed)
    for given in (mixed, good):
        way.fire(given)
    assert (len(way.launched.words), len(way.general)) == (2, 1)


def test_other_devices_go_the_general_way(rng, monkeypatch):
    good = values(rng, 3, 4)
    way = Way(monkeypatch, PARAMETERS, good, devices=2)
    way.fire(good)
    way.fire(good)
    seen = []
    monkeypatch.setattr(way, "written", lambda values, buffer: seen.append(values))
    there = (ndarray((3,), device=1), *good[1:])
    way.fire(there)
    assert (seen, len(way.launched.words)) == ([there], 1)


def test_errors_of_the_general_way_come_out_once(rng, monkeypatch):
    good = values(rng, 3, 4)
    way = Way(monkeypatch, PARAMETERS, good)
    calls = []

    def refuse(values, buffer):
        calls.append(values)
        raise ArgumentError("no")

    way.fire = straight.launch(way.loaded, [type(v) for v in good], way.configurations, None, way.buffers, refuse)
    with pytest.raises(DevkernelsError, match="no"):
        way.fire(good)
    assert len(calls) == 1


class Stream:
    def __init__(self, handle):
        self.handle = handle


class DeviceNDArrayBase:
    """What the launcher reads of an array of Numba."""

    __module__ = "numba.cuda.cudadrv.devicearray"

    def __init__(self, shape, dtype="float32", pointer=0x7F0000000000, device=0, strides=None, stream=0):
        like = np.zeros(shape, dtype)
        self.dtype, self.shape, self.strides, self.stream = like.dtype, shape, strides or like.strides, stream
        context = types.SimpleNamespace(device=types.SimpleNamespace(id=device))
        self.gpu_data = types.SimpleNamespace(device_pointer=pointer, context=context)


NUMBA = (Parameter("x", "array", "float32", 1, "C"), Parameter("n", "scalar", "int32"),
         Parameter("y", "array", "float64", 2, "A"))  # fmt: skip


def numba_values(stream=0, other=0, **changed):
    x = DeviceNDArrayBase((5,), stream=stream)
    return x, 7, DeviceNDArrayBase((3, 4), **{"dtype": "float64", "pointer": 0x1000, "stream": other, **changed})


@pytest.mark.parametrize(
    ("given", "own", "other", "launched"),
    [
        (None, 0, 0, 1),  # nobody says anything: the legacy default stream
        (None, Stream(9), Stream(9), 9),
        (None, Stream(9), 0, 9),
        (None, Stream(0), Stream(0), 1),  # Numba's default stream
        (None, 0, Stream(1), 1),
        (6, 0, 0, 6),
        (6, Stream(6), Stream(6), 6),
        (None, Stream(9), Stream(8), "general"),  # one must wait for the other
        (None, 0, Stream(8), "general"),
        (6, Stream(6), Stream(9), "general"),
    ],
)
def test_arrays_of_numba_and_who_writes_them(monkeypatch, given, own, other, launched):
    values = numba_values(own, other)
    way = Way(monkeypatch, NUMBA, values, stream=given)
    way.fire(values)
    way.fire(values)
    if launched == "general":
        assert (way.launched.streams, len(way.general)) == ([], 2)
        return
    assert (way.launched.streams, len(way.general)) == ([launched], 1)
    again = numba_values(own, other, pointer=0x2000)
    way.fire(again)
    assert (len(way.general), bytes(way.buffers[0].memory)) == (1, way.written(again, Buffer(NUMBA)))


@pytest.mark.parametrize(
    "changed",
    [{"dtype": "float32"}, {"shape": (4, 3)}, {"strides": (64, 8)}, {"pointer": 0x1004}, {"device": 1},
     {"shape": (12,)}],
    ids=str,
)  # fmt: skip
def test_other_arrays_of_numba_go_the_general_way(monkeypatch, changed):
    good = numba_values()
    way = Way(monkeypatch, NUMBA, good, devices=2)
    way.fire(good)
    seen = []
    monkeypatch.setattr(way, "written", lambda values, buffer: seen.append(values))
    shape = changed.pop("shape", (3, 4))
    bad = (*good[:2], DeviceNDArrayBase(shape, **{"dtype": "float64", "pointer": 0x1000, **changed}))
    way.fire(bad)
    assert (seen, way.launched.streams) == ([bad], [])
    way.fire(good)
    assert way.launched.streams == [1]


@pytest.mark.parametrize(
    ("parameters", "given"),
    [
        ((Parameter("n", "scalar", "int32"),), (1,)),
        ((Parameter("x", "array", "float32", 2, "F"),), (ndarray((2, 3), order="F"),)),
        ((PARAMETERS[0], Parameter("h", "scalar", "float16")), (ndarray((2,)), 1.0)),
        ((PARAMETERS[0], Parameter("c", "scalar", "complex64")), (ndarray((2,)), 1j)),
        ((PARAMETERS[0], PARAMETERS[1]), (ndarray((2,)), np.int32(1))),
        ((PARAMETERS[0], Parameter("t", "tuple", items=(PARAMETERS[1],))), (ndarray((2,)), (1,))),
        ((PARAMETERS[0],), (np.zeros(2, np.float32),)),
    ],
    ids=["no array", "F order", "half", "complex", "NumPy number", "tuple", "NumPy array"],
)
def test_what_has_no_short_way(monkeypatch, parameters, given):
    assert Way(monkeypatch, parameters, given).fire is None


def test_configurations_are_what_the_driver_wants():
    """CUlaunchConfig and CUlaunchAttribute of cuda.h."""
    made = driver.Configurations((1, 2, 3), (4, 5, 6), 7, True)[8]._obj
    raw = np.frombuffer(ctypes.string_at(ctypes.addressof(made), ctypes.sizeof(made)), np.uint32)
    assert raw[:7].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert raw[8:10].view(np.uint64)[0] == 8
    assert ctypes.sizeof(made) == 56
    assert raw[12] == 1
    attribute = ctypes.string_at(int(raw[10:12].view(np.uint64)[0]), 72)
    assert np.frombuffer(attribute, np.uint32)[:3].tolist() == [2, 0, 1]  # cooperative, and its value
    assert driver.Configurations((1, 2, 3), (4, 5, 6), 7, False)[8]._obj.attribute_count == 0


def test_configurations_of_many_streams_do_not_pile_up():
    made = driver.Configurations((1, 1, 1), (1, 1, 1), 0, False)
    for stream in range(3000):
        assert made[stream]._obj.stream == (stream or None)
    assert len(made) <= 1024
