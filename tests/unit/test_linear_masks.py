"""FusedMatmul's life cycle, and masks that are used for what they are not."""

import numpy as np
import pytest

from devkernels.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, SpecError
from devkernels.linear import FusedMatmul, MatmulSpec, ReluMask, fused_matmul
from devkernels.linear.epilog import Epilog, gelu_aux_columns, relu_mask_bytes
from devkernels.tolerance import relative_error
from tests.unit.linear_support import enter_world


@pytest.fixture(params=["numpy", "lt"], autouse=True)
def world(request, monkeypatch, tmp_path):
    return enter_world(monkeypatch, tmp_path, request.param)


@pytest.fixture
def arrays(rng):
    return lambda *shape: rng.standard_normal(shape, dtype="float32")


def use(mask, g, v, epilog="DRELU"):
    name = "relu_aux" if "RELU" in epilog else "gelu_aux"
    return FusedMatmul(g, v, epilog=epilog, epilog_inputs={name: mask}).plan().execute()


def test_layout_of_the_mask_in_memory(arrays):
    x, w = arrays(3, 8), arrays(8, 300)
    y, mask = fused_matmul(x, w, activation="relu", aux=True)
    assert mask.raw().shape == (3, 48)
    assert mask.raw().dtype == np.uint8
    bits = np.unpackbits(mask.raw(), axis=1, bitorder="little")
    assert (bits[:, :300] == (y > 0)).all()
    y, aux = fused_matmul(x, w[:, :13].copy(), activation="gelu", aux=True)
    assert aux.raw().shape == (3, 16)
    assert relative_error(aux.raw()[:, :13], x @ w[:, :13]) < 1e-6
    assert [relu_mask_bytes(n) for n in (1, 128, 129, 1024)] == [16, 16, 32, 128]
    assert [gelu_aux_columns(n) for n in (1, 8, 9)] == [8, 8, 16]


def test_wrong_shape_kind_and_dtype(arrays):
    g, v = arrays(4, 6), arrays(6, 9)
    _, mask = fused_matmul(arrays(4, 5), arrays(5, 9), activation="relu", aux=True)
    use(mask, g, v)
    for shape in ((5, 9), (4, 8)):
        _, other = fused_matmul(arrays(shape[0], 5), arrays(5, shape[1]), activation="relu", aux=True)
        with pytest.raises(ArgumentError, match="belongs to a result of shape"):
            use(other, g, v)
    _, gelu = fused_matmul(arrays(4, 5), arrays(5, 9), activation="gelu", aux=True)
    with pytest.raises(ArgumentTypeError, match="gelu_aux"):
        FusedMatmul(g, v, epilog="DRELU", epilog_inputs={"relu_aux": gelu}).plan()
    with pytest.raises(ArgumentTypeError, match="mask of the forward"):
        use(mask.raw(), g, v)
    with pytest.raises(ArgumentTypeError, match="needs epilog_inputs"):
        FusedMatmul(g, v, epilog="DRELU").plan()
    _, half = fused_matmul(arrays(4, 5).astype("f2"), arrays(5, 9).astype("f2"), activation="relu", aux=True)
    with pytest.raises(ArgumentError, match="float16"):
        use(half, g, v)


def test_swapped_batches(arrays):
    _, mask = fused_matmul(arrays(2, 3, 4, 5), arrays(2, 3, 5, 9), activation="relu", aux=True)
    use(mask, arrays(2, 3, 4, 6), arrays(2, 3, 6, 9))
    with pytest.raises(ArgumentError, match=r"\(2, 3, 4, 9\)"):
        use(mask, arrays(3, 2, 4, 6), arrays(3, 2, 6, 9))


def test_freed_plan_and_freed_mask(arrays):
    mm = FusedMatmul(arrays(4, 5), arrays(5, 9), epilog="RELU_AUX").plan()
    _, extra = mm.execute()
    mask = extra["relu_aux"]
    use(mask, arrays(4, 6), arrays(6, 9))
    mm.free()
    with pytest.raises(ArgumentError, match="freed"):
        use(mask, arrays(4, 6), arrays(6, 9))
    with pytest.raises(ArgumentError, match="freed"):
        mm.execute()
    _, mask = fused_matmul(arrays(4, 5), arrays(5, 9), activation="relu", aux=True)
    mask.free()
    with pytest.raises(ArgumentError, match="freed"):
        use(mask, arrays(4, 6), arrays(6, 9))


def test_overwritten_mask(arrays):
    x, w = arrays(4, 5), arrays(5, 9)
    mm = FusedMatmul(x, w, epilog="RELU_AUX").plan()
    _, first = mm.execute()
    mm.reset_operands(a=-x)
    y, second = mm.execute(aux=first["relu_aux"])
    assert (second["relu_aux"].unpack() == (y > 0)).all()
    use(second["relu_aux"], arrays(4, 6), arrays(6, 9))
    with pytest.raises(ArgumentError, match="overwritten"):
        use(first["relu_aux"], arrays(4, 6), arrays(6, 9))
    with pytest.raises(ArgumentTypeError, match="aux="):
        mm.execute(aux=np.zeros((4, 16), np.uint8))


def test_other_device(arrays, world):
    _, mask = fused_matmul(arrays(4, 5), arrays(5, 9), activation="relu", aux=True)
    mask.device = 7
    with pytest.raises(DeviceMismatchError, match="device 7"):
        use(mask, arrays(4, 6), arrays(6, 9))


def test_reset_operands(arrays):
    a, b, bias = arrays(4, 5), arrays(5, 9), arrays(9)
    mm = FusedMatmul(a, b, epilog="BIAS", epilog_inputs={"bias": bias}).plan()
    other = arrays(4, 5)
    assert relative_error(mm.reset_operands(other).execute(), other.astype(float) @ b + bias) < 1e-6
    for wrong in (arrays(3, 5), arrays(4, 5).astype("f8"), arrays(5, 4).T):
        with pytest.raises(ArgumentError):
            mm.reset_operands(wrong)
        assert relative_error(mm.execute(), other.astype(float) @ b + bias) < 1e-6
    mm.reset_operands(alpha=2.0)
    assert relative_error(mm.execute(), 2 * other.astype(float) @ b + bias) < 1e-6


def test_from_a_spec(arrays, world):
    spec = MatmulSpec(4, 9, 5, "float32", epilog="RELU_AUX_BIAS")
    mm = FusedMatmul(spec)
    if world is not None:
        mm._inputs.device = 0
        mm._inputs.arrays = __import__("devkernels.linear.arrays", fromlist=["_by_type"])._by_type[np.ndarray]
    mm.plan()
    with pytest.raises(ArgumentError, match="reset_operands"):
        mm.execute()
    a, b, bias = arrays(4, 5), arrays(5, 9), arrays(9)
    y, extra = mm.reset_operands(a, b, bias=bias).execute()
    assert isinstance(extra["relu_aux"], ReluMask)
    assert relative_error(y, np.maximum(a.astype(float) @ b + bias, 0)) < 1e-6
    with pytest.raises(ArgumentError, match="plan"):
        FusedMatmul(spec).execute()


def test_strided_out_goes_another_way(arrays, empty):
    a, b = arrays(4, 5), arrays(5, 9)
    mm = FusedMatmul(a, b).plan()
    whole = empty((4, 12), "float32")
    mm.execute(out=whole[:, :9])
    assert relative_error(whole[:, :9], a.astype(float) @ b) < 1e-6
    assert np.isnan(whole[:, 9:]).all()
    with pytest.raises(ArgumentError, match="out has shape"):
        mm.execute(out=empty((9, 4), "float32"))


def test_epilog_inputs_are_checked(arrays):
    a, b = arrays(4, 5), arrays(5, 9)
    for epilog, inputs, kind in (
        ("BIAS", {}, ArgumentError),
        ("DEFAULT", {"bias": arrays(9)}, ArgumentError),
        ("BIAS", {"bais": arrays(9)}, ArgumentError),
        ("NOPE", {}, SpecError),
    ):
        with pytest.raises(kind):
            FusedMatmul(a, b, epilog=epilog, epilog_inputs=inputs).plan()
    with pytest.raises(ArgumentError, match="options"):
        FusedMatmul(a, b).plan(options={"compute": "32f"})


def test_names_and_numbers_of_nvmath():
    assert len(Epilog) == 16
    assert (Epilog.RELU_AUX_BIAS, Epilog.DGELU_BGRAD, Epilog.BGRADB) == (134, 208, 512)
    assert Epilog.parse(134) is Epilog.parse("relu_aux_bias") is Epilog.RELU_AUX_BIAS
