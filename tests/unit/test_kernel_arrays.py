"""What ready kernels know of arrays: devices, overlaps, rows; without any GPU."""

import numpy as np
import pytest

from devkernels.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from devkernels.kernels import arrays
from devkernels.kernels.arrays import Described


def described(library="cupy", device="cuda:0", pointer=4096):
    return Described(library, "float32", (4, 8), (32, 4), device, pointer, 4)


def test_arrays_of_two_devices_or_libraries_do_not_meet():
    arrays.check_same_device(described(), described(pointer=8192), ("x", "H"))
    with pytest.raises(DeviceMismatchError, match="x is on cuda:0 and H on cuda:1"):
        arrays.check_same_device(described(), described(device="cuda:1"), ("x", "H"))
    with pytest.raises(DeviceMismatchError, match="x is an array of cupy and out one of torch"):
        arrays.check_same_device(described(), described(library="torch"), ("x", "out"))


@pytest.mark.parametrize(("pointer", "meet"), [(4096, False), (4100, True), (4096 + 124, True), (4096 + 128, False)])
def test_overlap_is_of_memory_not_of_names(pointer, meet):
    assert arrays.overlap(described(), described(pointer=pointer)) is meet
    assert not arrays.overlap(described(), described(device="cuda:1", pointer=4100))


def test_spans_of_views(rng):
    x = rng.standard_normal((6, 10))
    for view in (x, x[::2], x[::-1], x[:, 3:7], x[2:2]):
        low, high = arrays.describe(view, "x").span
        flat = np.arange(x.size).reshape(x.shape)[tuple(slice(None) for _ in x.shape)]
        touched = [flat[i, j] for i in range(6) for j in range(10) if np.shares_memory(view, x[i : i + 1, j : j + 1])]
        if touched:
            assert low == x.ctypes.data + 8 * min(touched)
            assert high == x.ctypes.data + 8 * (max(touched) + 1)
        else:
            assert low == high


def test_rows_are_views_where_they_can_be(rng):
    x = rng.standard_normal((2, 3, 5))
    rows = arrays.as_rows(x, 1, "x", copy=False)
    assert rows.shape == (6, 5)
    assert np.shares_memory(rows, x)
    turned = x.transpose(1, 0, 2)[:, :, :]
    with pytest.raises(ArgumentError, match="leading axes"):
        arrays.as_rows(turned, 1, "out", copy=False)
    assert np.array_equal(arrays.as_rows(turned, 1, "x", copy=True), turned.reshape(6, 5))


def test_what_is_no_array_is_said():
    for value in ([1.0], 3.0, None, "x"):
        with pytest.raises(ArgumentTypeError, match="NumPy, CuPy or torch"):
            arrays.library(value, "x")
    assert arrays.known(np.ones(3)) is None
