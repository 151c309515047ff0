"""Plain-text signatures, read without Numba: the same as Numba reads them, or left to it."""

import pytest
from numba import types

from devkernels.compiler import frontend, signature
from devkernels.compiler.image import Parameter
from devkernels.errors import SpecError


def two(x, n):
    """A kernel's parameters."""


@pytest.mark.parametrize(
    "text",
    [
        "void(float32[::1], int32)", "(complex64[:,::1], uint8)", " void( complex128 [ ::1 , : , : ] , boolean ) ",
        "void(float16[:,:,:], float64)", "none(int8[:], uint64)", "void(UniTuple(float32, 3), complex64)",
        "void(float32[:, ::1],UniTuple( int64 ,2 ))", "void(bfloat16[::1], bfloat16)",
    ],
)  # fmt: skip
def test_plain_text_means_what_numba_says(text):
    parsed = signature.parse(text)
    assert parsed is not None
    numbas = frontend.normalize(text.strip())
    assert tuple(frontend.parameter("", kind) for kind in numbas) == tuple(
        signature._rename(one, "") if one.kind != "tuple" else frontend.parameter("", kind)
        for one, kind in zip(parsed, numbas, strict=True)
    )
    assert [str(frontend.numba_type(one)) for one in parsed] == [str(kind) for kind in numbas]


@pytest.mark.parametrize(
    "text",
    ["float32(float32[::1])", "void(float32[::1], nonsense)", "void(float32[1:], int32)", "void(float32[::1]", "",
     "void(Tuple((int32, float32)))", "void(float32[::1,::1])", "void(int32 int32)", "void(__import__('os'))"],
)  # fmt: skip
def test_everything_else_is_left_to_numba(text):
    assert signature.parse(text) is None


def test_all_forms_of_one_signature_are_equal():
    want = signature.Signature((Parameter("x", "array", "float32", 1, "C"), Parameter("n", "scalar", "int32")))
    array = types.Array(types.float32, 1, "C")
    for given in ("void(float32[::1], int32)", "(float32[::1], int32)", types.void(array, types.int32),
                  (array, types.int32), [array, types.int32], want.parameters):  # fmt: skip
        assert signature.resolve(two, given) == want


def test_what_parameters_cannot_say_is_kept():
    read_only = types.Array(types.float32, 1, "C", readonly=True)
    found = signature.resolve(two, (read_only, types.int32))
    assert found.parameters[0] == Parameter("x", "array", "float32", 1, "C")
    assert found.exact == (str(read_only), "int32")
    assert found != signature.resolve(two, "void(float32[::1], int32)")


def test_names_and_counts():
    found = signature.resolve(two, "void(UniTuple(float32, 2), int32)").parameters
    assert [item.name for item in found[0].items] == ["x[0]", "x[1]"]
    with pytest.raises(SpecError, match=r"2 parameters \(x, n\).*has 3"):
        signature.resolve(two, "void(int32, int32, int32)")
