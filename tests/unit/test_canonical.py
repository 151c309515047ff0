"""`devkernels.canonical`: equal content gives equal digests, different content different ones."""

import enum
import itertools
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from devkernels.canonical import digest


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Spec:
    size: int
    name: str


@dataclass(frozen=True)
class OtherSpec:
    size: int
    name: str


class WithKey:
    def __init__(self, key):
        self.key = key

    def __cache_key__(self):
        return self.key


DIFFERENT = [
    None, True, False, 0, 1, 1.0, "1", b"1", 1j, -0.0, 0.0, 2**70, float("nan"), float("inf"), "", b"", (), (1,),
    ((1,),), (1, 2), (2, 1), ("a", "b"), ("ab",), ("", "ab"), {}, {"a": 1}, {"a": 2}, {1: "a"}, {1}, {1, 2},
    Colour.RED, Colour.BLUE, Spec(1, "a"), Spec(2, "a"), OtherSpec(1, "a"), WithKey(1), WithKey(2), int, float,
    np.float32, np.int32(1), np.int64(1), np.float64(1), np.float32(1), np.dtype("f4"), np.dtype("f8"),
    np.dtype([("x", "f4")]), np.dtype([("y", "f4")]), np.zeros(2), np.zeros(3), np.zeros(4), np.zeros((2, 2)),
    np.zeros((4, 1)), np.zeros(4, "f4"), np.array([0, 0, 0, 1.0]), np.array([1, "a"], dtype=object),
]  # fmt: skip


def test_different_values_have_different_digests():
    digests = [digest(value) for value in DIFFERENT]
    for (i, a), (j, b) in itertools.combinations(enumerate(digests), 2):
        assert a != b, (DIFFERENT[i], DIFFERENT[j])


def test_parts_do_not_run_into_each_other():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest(("a",), "b") != digest("a", ("b",))
    assert digest() != digest(())


def test_equal_content_has_equal_digest():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({3, 1, 2}) == digest({2, 3, 1})
    big = np.arange(20.0).reshape(4, 5)
    assert digest(big[:, ::2]) == digest(big[:, ::2].copy())
    assert digest(big.T) == digest(np.ascontiguousarray(big.T))
    assert digest(np.asfortranarray(big)) == digest(big)


def test_one_changed_element_changes_the_digest():
    a = np.arange(1000, dtype=np.float32)
    b = a.copy()
    b[777] += np.float32(1e-3)
    assert digest(a) != digest(b)


@pytest.mark.parametrize("value", [object(), lambda: 1, itertools, open])
def test_what_has_no_stable_content_is_refused(value):
    with pytest.raises(TypeError):
        digest((1, [value]))


def test_digest_is_the_same_in_another_process():
    code = "from devkernels.canonical import digest; print(digest({'b': {3, 'x', 1.5}, 'a': (1, b'2', None)}, int))"
    seen = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert seen == {digest({"b": {3, "x", 1.5}, "a": (1, b"2", None)}, int)}
