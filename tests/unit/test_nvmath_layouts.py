"""Tensors and pipelines of nvmath.device: sizes from the cache, and the library's compiler only for what is new."""

import ctypes
import sys
import types

import pytest

from devkernels import cache
from devkernels.compiler import nvmath_functions
from devkernels.errors import JitDisabledError

pytestmark = pytest.mark.usefixtures("own_cache")

UID, LOGICAL, STORAGE, ALIGNMENT, BUFFER, BUFFER_ALIGNMENT, BLOCK, NAME = range(8)
SIZE = 3  # an operator of a product


class LibMathDxError(Exception):
    pass


class Binding(types.ModuleType):
    """As much of ``nvmath.bindings.mathdx`` as makes, finalizes and asks tensors and pipelines."""

    def __init__(self):
        super().__init__("nvmath.bindings.mathdx")
        self.LibMathDxError = LibMathDxError
        self.CublasdxTensorTrait = types.SimpleNamespace(
            UID=UID, LOGICAL_SIZE=LOGICAL, STORAGE_BYTES=STORAGE, ALIGNMENT_BYTES=ALIGNMENT
        )
        self.CublasdxPipelineTrait = types.SimpleNamespace(
            STORAGE_BYTES=STORAGE, STORAGE_ALIGNMENT_BYTES=ALIGNMENT, BUFFER_SIZE=BUFFER,
            BUFFER_ALIGNMENT_BYTES=BUFFER_ALIGNMENT, BLOCK_DIM=BLOCK,
        )  # fmt: skip
        self.compiled, self.things, self.final = [], {}, set()
        self.commondx_get_code_ltoir_size = self.commondx_get_code_ltoir = None
        self.commondx_get_code_option_int64 = None

    def _new(self, *content):
        handle = next(h for h in range(1, 99) if h not in self.things)  # handles come again
        self.things[handle] = list(content)
        return handle

    def cublasdx_create_descriptor(self):
        return self._new("product")

    def cublasdx_set_operator_int64s(self, handle, operator, count, values):
        assert len(values) == count
        self.things[handle].append((operator, *values))

    def cublasdx_create_tensor(self, product, kind):
        return self._new("tensor", *self.things[product], kind)

    def cublasdx_create_tensor_strided(self, space, value_type, pointer, rank, shape, strides):
        return self._new("tensor", space, value_type, tuple(shape), tuple(strides))

    def cublasdx_make_tensor_like(self, tensor, value_type):
        return self._new(*self.things[tensor], "as", value_type)

    def cublasdx_set_tensor_option_int64(self, tensor, option, value):
        self.things[tensor].append((option, value))

    def cublasdx_create_device_pipeline(self, product, kind, depth, strategy, a, b):
        return self._new("pipeline", *self.things[product], kind, depth, strategy, *self.things[a], *self.things[b])

    def cublasdx_create_tile_pipeline(self, product, kind, pipeline):
        return self._new("pipeline", "tile", *self.things[product], kind, *self.things[pipeline])

    def _destroy(self, handle):
        del self.things[handle]
        self.final.discard(handle)

    cublasdx_destroy_descriptor = cublasdx_destroy_tensor = cublasdx_destroy_pipeline = _destroy

    def _finalize(self, count, handles):
        assert len(handles) == count
        self.compiled += [tuple(self.things[handle]) for handle in handles]
        self.final.update(handles)

    cublasdx_finalize_tensors = cublasdx_finalize_pipelines = _finalize

    def _ask(self, handle, trait):
        if handle not in self.final or (trait == LOGICAL and "opaque" in self.things[handle]):
            raise LibMathDxError("LIBMATHDX_INVALID_VALUE")
        return handle if trait == UID else sum(map(ord, repr((self.things[handle], trait))))

    cublasdx_get_tensor_trait_int64 = cublasdx_get_pipeline_trait_int64 = _ask

    def cublasdx_get_pipeline_trait_int64s(self, handle, trait, count, address):
        value = self._ask(handle, trait)
        (ctypes.c_int64 * count).from_address(address)[:] = [value + i for i in range(count)]

    def cublasdx_get_tensor_trait_str_size(self, handle, trait):
        assert handle in self.final
        return 5


@pytest.fixture
def process(monkeypatch):
    """A function that gives a fresh binding, as a new process has it, with the cache in front if so wanted."""

    def start(keep=True):
        made = Binding()
        monkeypatch.setitem(sys.modules, "nvmath.bindings.mathdx", made)
        cache.forget()
        assert not keep or nvmath_functions.keep_nvmath_functions()
        return made

    return start


def product(mathdx, *size):
    handle = mathdx.cublasdx_create_descriptor()
    mathdx.cublasdx_set_operator_int64s(handle, SIZE, 3, list(size))
    return handle


def pipelines(mathdx, *, size=(128, 128, 32), rows=256, depth=2):
    """What nvmath.device does for a pipelined product, and all numbers that it then asks for."""
    h = product(mathdx, *size)
    a = mathdx.cublasdx_create_tensor_strided(0, 1, 0, 2, [rows, 128], [128, 1])
    b = mathdx.cublasdx_create_tensor_strided(0, 1, 0, 2, [128, 384], [1, 128])
    whole = mathdx.cublasdx_create_device_pipeline(h, 0, depth, 0, a, b)
    mathdx.cublasdx_finalize_pipelines(1, [whole])
    mathdx.cublasdx_finalize_tensors(2, [a, b])
    tile = mathdx.cublasdx_create_tile_pipeline(h, 0, whole)
    mathdx.cublasdx_finalize_pipelines(1, [tile])
    block = (ctypes.c_int64 * 3)()
    mathdx.cublasdx_get_pipeline_trait_int64s(whole, BLOCK, 3, ctypes.addressof(block))
    asked = (STORAGE, ALIGNMENT, BUFFER, BUFFER_ALIGNMENT)
    numbers = [mathdx.cublasdx_get_pipeline_trait_int64(one, trait) for one in (whole, tile) for trait in asked]
    tensor = mathdx.cublasdx_create_tensor(h, 4)
    mathdx.cublasdx_finalize_tensors(1, [tensor])
    numbers += [mathdx.cublasdx_get_tensor_trait_int64(tensor, trait) for trait in (LOGICAL, STORAGE, ALIGNMENT)]
    return [*block, *numbers], tensor


def test_the_same_numbers_and_nothing_compiled_the_second_time(process):
    plain, _ = pipelines(process(keep=False))
    first = process()
    assert pipelines(first)[0] == plain
    assert len(first.compiled) == 3  # of a and b nobody asks anything
    assert cache.counts("nvmath")["builds"] == 3
    assert pipelines(first)[0] == plain  # other handles, the same things
    assert len(first.compiled) == 3
    second = process()
    assert pipelines(second)[0] == plain
    assert second.compiled == []


def test_each_tensor_has_a_number_of_its_own_in_all_processes(process):
    numbers = []
    for mathdx in (process(), process()):
        h = product(mathdx, 32, 32, 32)
        made = [mathdx.cublasdx_create_tensor(h, kind) for kind in (1, 2)]
        made.append(mathdx.cublasdx_make_tensor_like(made[0], 5))
        made.append(mathdx.cublasdx_create_tensor(h, 1))
        mathdx.cublasdx_set_tensor_option_int64(made[-1], 0, 16)
        mathdx.cublasdx_finalize_tensors(len(made), made)
        numbers.append([mathdx.cublasdx_get_tensor_trait_int64(one, UID) for one in made])
        assert len(set(numbers[-1])) == len(made)
    assert numbers[0] == numbers[1]


def test_what_differs_is_asked_apart(process):
    mathdx = process()
    kinds = [{}, {"size": (128, 64, 32)}, {"rows": 512}, {"depth": 3}]
    for kind in kinds:
        pipelines(mathdx, **kind)
    # the tensor is that of the product alone, so that rows and depth leave it as it was
    assert len(mathdx.compiled) == len(set(mathdx.compiled)) == 3 + 3 + 2 + 2


def test_a_handle_that_comes_again_is_another_thing(process):
    mathdx = process()
    h = product(mathdx, 32, 32, 32)
    first = mathdx.cublasdx_create_tensor(h, 1)
    mathdx.cublasdx_finalize_tensors(1, [first])
    size = mathdx.cublasdx_get_tensor_trait_int64(first, STORAGE)
    mathdx.cublasdx_destroy_tensor(first)
    second = mathdx.cublasdx_create_tensor(h, 2)
    assert second == first
    with pytest.raises(LibMathDxError):  # not finalized yet
        mathdx.cublasdx_get_tensor_trait_int64(second, STORAGE)
    mathdx.cublasdx_finalize_tensors(1, [second])
    assert mathdx.cublasdx_get_tensor_trait_int64(second, STORAGE) != size


def test_made_before_anything_was_kept(process):
    mathdx = process(keep=False)
    h = product(mathdx, 32, 32, 32)
    nvmath_functions.keep_nvmath_functions()
    tensor = mathdx.cublasdx_create_tensor(h, 1)
    mathdx.cublasdx_finalize_tensors(1, [tensor])
    assert len(mathdx.compiled) == 1
    assert mathdx.cublasdx_get_tensor_trait_int64(tensor, STORAGE) > 0
    assert cache.counts("nvmath")["builds"] == 0


def test_what_an_unknown_call_has_changed_is_left_to_the_library(process):
    mathdx = process(keep=False)
    mathdx.cublasdx_set_something_new = lambda handle, value: mathdx.things[handle].append(("new", value))
    nvmath_functions.keep_nvmath_functions()
    h = product(mathdx, 32, 32, 32)
    known, changed = (mathdx.cublasdx_create_tensor(h, 1) for _ in range(2))
    mathdx.cublasdx_set_something_new(changed, 5)
    mathdx.cublasdx_finalize_tensors(2, [known, changed])
    assert mathdx.final == {changed}
    assert mathdx.cublasdx_get_tensor_trait_int64(changed, STORAGE) > 0
    assert cache.counts("nvmath")["builds"] == 0


def test_what_a_thing_does_not_have_stays_an_error(process):
    for mathdx in (process(), process()):
        tensor = mathdx.cublasdx_create_tensor(product(mathdx, 8, 8, 8), "opaque")
        mathdx.cublasdx_finalize_tensors(1, [tensor])
        assert mathdx.cublasdx_get_tensor_trait_int64(tensor, STORAGE) > 0
        with pytest.raises(LibMathDxError):
            mathdx.cublasdx_get_tensor_trait_int64(tensor, LOGICAL)


def test_texts_are_asked_of_the_library(process):
    pipelines(process())
    mathdx = process()
    _, tensor = pipelines(mathdx)
    assert mathdx.compiled == []
    assert mathdx.cublasdx_get_tensor_trait_str_size(tensor, NAME) == 5
    assert len(mathdx.compiled) == 1


def test_disabled_jit_names_the_thing(process, monkeypatch):
    pipelines(process())
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    pipelines(process())
    with pytest.raises(JitDisabledError, match="pipeline layout create_device_pipeline of nvmath"):
        pipelines(process(), depth=4)


def test_functions_that_need_them_final_get_them_so(process):
    """A version of the library that compiles a function only of finalized tensors is asked a second time."""
    mathdx = process(keep=False)
    mathdx.CommondxOption = types.SimpleNamespace(CODE_ISA=1, TARGET_SM=2)
    mathdx.CublasdxDeviceFunctionTrait = types.SimpleNamespace(SYMBOL=7)
    mathdx.cublasdx_get_device_function_trait_str_size = lambda handle, trait: 2
    mathdx.cublasdx_get_device_function_trait_str = lambda handle, trait, size, buffer: buffer.__setitem__(0, 102)
    mathdx.commondx_create_code = lambda: 50
    mathdx.commondx_get_code_ltoir_size = lambda code: 4
    mathdx.commondx_get_code_ltoir = lambda code, size, buffer: buffer.__setitem__(slice(None), b"code")
    mathdx.commondx_get_code_option_int64 = lambda code, option: 13000

    def finalize(code, count, functions):
        if functions[0] not in mathdx.final:
            raise LibMathDxError("LIBMATHDX_INVALID_VALUE")

    mathdx.cublasdx_finalize_device_functions = finalize
    nvmath_functions.keep_nvmath_functions()
    tensor = mathdx.cublasdx_create_tensor(product(mathdx, 8, 8, 8), 1)
    mathdx.cublasdx_finalize_tensors(1, [tensor])
    assert mathdx.final == set()
    code = mathdx.commondx_create_code()
    mathdx.cublasdx_finalize_device_functions(code, 1, [tensor])
    assert mathdx.commondx_get_code_ltoir_size(code) == 4
    with pytest.raises(LibMathDxError):  # nothing is left to be made final: the error is the library's
        mathdx.cublasdx_finalize_device_functions(mathdx.commondx_create_code(), 2, [99, 98])
