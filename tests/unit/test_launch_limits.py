"""Configurations, limits, scalars and array words of the launcher; no GPU and no driver is asked."""

import struct

import numpy as np
import pytest

from devkernels.compiler.image import KernelImage, Parameter
from devkernels.errors import ArgumentError, ArgumentTypeError, ResourceError
from devkernels.launch import arguments, arrays, limits, streams
from devkernels.launch.buffer import Buffer, places
from devkernels.target import Target


def image_with(**more):
    fields = dict(name="k", cubin=b"", symbol="k", target=Target(9, 0), registers=32, local_bytes=0, shared_bytes=0,
                  max_threads=None, parameters=())  # fmt: skip
    return KernelImage(**(fields | more))


def test_configurations():
    stream = object()
    assert limits.configuration((8, 128)) == ((8, 1, 1), (128, 1, 1), None, 0)
    assert limits.configuration(((1, 2), (3, 4, 5), stream)) == ((1, 2, 1), (3, 4, 5), stream, 0)
    assert limits.configuration((np.int64(8), (np.int32(4),), 0, 512)) == ((8, 1, 1), (4, 1, 1), 0, 512)
    assert limits.configuration(([8], [1, 2], None, np.int64(3)))[3] == 3


@pytest.mark.parametrize(
    ("key", "kind"),
    [(8, ArgumentTypeError), ((8,), ArgumentTypeError), ((1, 2, None, 0, 0), ArgumentTypeError),
     ((1.0, 2), ArgumentTypeError), ((1, "2"), ArgumentTypeError), ((0, 2), ArgumentError), ((1, -2), ArgumentError),
     ((1, ()), ArgumentError), ((1, (1, 1, 1, 1)), ArgumentError), ((1, 2, None, -1), ArgumentError),
     ((1, 2, None, 1.5), ArgumentTypeError)],
)  # fmt: skip
def test_bad_configurations(key, kind):
    with pytest.raises(kind):
        limits.configuration(key)


@pytest.mark.parametrize(
    ("registers", "threads"),
    [(16, 1024), (32, 1024), (64, 1024), (65, 896), (72, 896), (80, 768), (96, 640), (128, 512), (168, 384), (200, 256),
     (255, 256)],
)  # fmt: skip
def test_threads_that_registers_allow(registers, threads):
    """Values of NVIDIA's occupancy calculator: 64 K registers, 256 per allocation, four partitions."""
    assert limits.max_threads(registers) == threads


def test_register_limit_is_explained():
    with pytest.raises(ResourceError, match=r"168 registers each; sm_90 has registers for 384.*max_registers=64"):
        limits.check_resources(image_with(registers=168), (1024, 1, 1), 0, most_threads=384, most_shared=227 << 10,
                               where="sm_90")  # fmt: skip
    limits.check_resources(image_with(registers=168), (384, 1, 1), 0, most_threads=384, most_shared=227 << 10, where="")


def test_shared_memory_limit_is_explained():
    with pytest.raises(ResourceError, match="at most 231424 dynamic bytes fit"):
        limits.check_resources(image_with(shared_bytes=1024), (32, 1, 1), 231425, most_threads=1024,
                               most_shared=227 << 10, where="sm_90")  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", [0, -128, 127, np.int8(5), True, np.bool_(False), np.uint64(7)]),
        ("uint64", [0, 2**64 - 1, np.int32(5)]),
        ("float32", [0, 1.5, -1e38, np.float64(2.5), np.int64(3), True, float("inf")]),
        ("float16", [1.5, np.float16(2), 3]),
        ("float64", [1e300, np.float32(0.5)]),
        ("complex64", [1, 1.5, 2j, np.complex128(1 + 2j)]),
        ("bool", [True, False, np.bool_(True)]),
    ],
)
def test_scalars_become_the_words_of_their_type(dtype, values):
    """Between two others, so that a word at a wrong place would show."""
    around = Parameter("b", "scalar", "int8"), Parameter("c", "scalar", "float64")
    parameters = (around[0], Parameter("a", "scalar", dtype), around[1])
    where = places(parameters)
    tables = [arguments.Table(p, place, "k", 0, False, {}) for p, place in zip(parameters, where, strict=True)]
    for value in values:
        buffer = Buffer(parameters)
        for table, one in zip(tables, (5, value, 0.25), strict=True):
            table[type(one)](one, buffer)
        want = np.zeros(len(buffer.memory), np.uint8)
        for p, one, place in zip(parameters, (5, value, 0.25), where, strict=True):
            content = np.frombuffer(np.asarray(one).astype(p.dtype).tobytes(), np.uint8)
            want[place.offsets[0] : place.offsets[0] + len(content)] = content
        assert bytes(buffer.memory) == want.tobytes(), value


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", 1.0), ("int32", 1j), ("int32", "1"), ("int32", None), ("int32", np.float32(1)), ("bool", 1),
     ("float32", 1j), ("float32", np.zeros(1)), ("float32", [1.0]), ("complex64", "1j"),
     ("int64", np.datetime64(1, "s"))],
)  # fmt: skip
def test_scalars_of_other_kinds_are_refused(dtype, value):
    with pytest.raises(ArgumentTypeError, match="Kernel k: argument a must be"):
        table_of(Parameter("a", "scalar", dtype))[type(value)]


def table_of(parameter, strict=False):
    return arguments.Table(parameter, places((parameter,))[0], "k", 0, strict, {})


def test_strict_scalars_take_only_their_own_type():
    """Kernels whose signature was inferred are compiled again for another type, not fed a converted value."""
    parameter = Parameter("a", "scalar", "int64")
    table, buffer = table_of(parameter, strict=True), Buffer((parameter,))
    for value in (5, np.int64(6)):
        table[type(value)](value, buffer)
        assert buffer.views["q"][0] == value
    for value in (True, np.int32(5), 5.0):
        with pytest.raises(ArgumentTypeError):
            table[type(value)]


@pytest.mark.parametrize(("dtype", "value"), [("int8", 128), ("uint8", -1), ("int32", 2**31), ("uint64", 2**64)])
def test_numbers_that_do_not_fit(dtype, value):
    parameter = Parameter("a", "scalar", dtype)
    with pytest.raises((ValueError, OverflowError)):
        table_of(parameter)[int](value, Buffer((parameter,)))


def test_words_of_arrays_equal_numpys(rng):
    for _ in range(200):
        ndim = int(rng.integers(0, 5))
        shape = tuple(int(n) for n in rng.integers(1, 6, ndim))
        dtype = str(rng.choice(["float32", "complex128", "int16"]))
        layout = str(rng.choice(["C", "F"]))
        array = np.zeros(shape, dtype, order=layout)
        parameters = (Parameter("n", "scalar", "int16"), Parameter("x", "array", dtype, ndim, layout))
        words = arguments.ArrayWords(parameters[1], places(parameters)[1], "k")
        for strided in (False, True):
            buffer = Buffer(parameters)
            if strided:
                words.strided(shape, array.strides, buffer)
            else:
                words.contiguous(shape, buffer)
            buffer.words64[words.address] = 12345
            first, *got = struct.unpack_from(f"h0q{5 + 2 * ndim}q", buffer.memory)
            assert first == 0
            assert got[:5] == [0, 0, array.size, array.itemsize, 12345]
            assert tuple(got[5 : 5 + ndim]) == shape
            assert all(a == b for a, b, n in zip(got[5 + ndim :], array.strides, shape, strict=True) if n > 1)
        words.check_layout(shape, array.strides)
        assert arrays.layout_of(shape, array.strides, array.itemsize) in ("C", layout)


def test_buffers_remember_the_shapes_they_hold():
    parameters = (Parameter("x", "array", "float32", 2, "A"), Parameter("y", "array", "float32", 1, "C"))
    words = [arguments.ArrayWords(p, place, "k") for p, place in zip(parameters, places(parameters), strict=True)]
    buffer = Buffer(parameters)
    sequence = [((3, 4), None), ((3, 4), (64, 8)), ((3, 4), None), ((4, 3), None), ((3, 4), (8, 64))]
    for shape, strides in sequence:
        if strides is None:
            words[0].contiguous(shape, buffer)
            strides = (4 * shape[1], 4)
        else:
            words[0].strided(shape, strides, buffer)
        words[1].contiguous((7,), buffer)
        assert tuple(buffer.views["q"][5:9]) == (*shape, *strides)
        assert tuple(buffer.views["q"][9:16]) == (0, 0, 7, 4, 0, 7, 4)


@pytest.mark.parametrize("layout", ["C", "F"])
def test_other_layouts_are_refused(layout):
    parameter = Parameter("x", "array", "float32", 2, layout)
    words = arguments.ArrayWords(parameter, places((parameter,))[0], "k")
    good = np.zeros((4, 6), np.float32, order=layout)
    words.check_layout(good.shape, good.strides)
    other = np.zeros((4, 6), np.float32, order="F" if layout == "C" else "C")
    for bad in (good[:, ::2], good[::2], other):
        with pytest.raises(ArgumentError, match=f"argument x is not contiguous in {layout} order"):
            words.check_layout(bad.shape, bad.strides)
    with pytest.raises(ArgumentError, match="has 3 dimensions"):
        words.contiguous((1, 2, 3), Buffer((parameter,)))


class Stream:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Protocol:
    def __cuda_stream__(self):
        return (0, 99)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [(None, None), (0, None), (1, 1), (12345, 12345), (Stream(ptr=7), 7), (Stream(cuda_stream=8), 8),
     (Stream(ptr=0), streams.LEGACY_DEFAULT), (Stream(handle=9), 9), (Stream(handle=Stream(value=10)), 10),
     (Stream(handle=Stream(value=None)), streams.LEGACY_DEFAULT), (Protocol(), 99)],
)  # fmt: skip
def test_streams_of_every_kind(stream, handle):
    assert streams.handle(stream) == handle


def test_configurations_are_remembered_by_the_handle_of_their_stream():
    assert streams.plain((8, 128, Stream(ptr=7), 64)) == (8, 128, 7, 64)
    assert streams.plain((8, 128, Stream(ptr=0))) == (8, 128, streams.LEGACY_DEFAULT)
    for key in ((8, 128), (8, 128, None), (8, 128, 0, 64), (8, 128, 7), 8, "no configuration"):
        assert streams.plain(key) is key


@pytest.mark.parametrize("stream", ["stream", -1, True, 1.5, object()])
def test_what_is_no_stream(stream):
    with pytest.raises(ArgumentTypeError, match="stream"):
        streams.handle(stream)
