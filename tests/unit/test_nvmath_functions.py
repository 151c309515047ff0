"""Functions of nvmath.device from the cache, with a binding of libmathdx that only counts what it compiles."""

import sys
import types

import pytest

from devkernels import cache
from devkernels.compiler import nvmath_functions
from devkernels.errors import JitDisabledError
from devkernels.target import Target

pytestmark = pytest.mark.usefixtures("own_cache")

SYMBOL, ISA, TARGET, ARGUMENTS = 7, 1, 2, 3


class Binding(types.ModuleType):
    """As much of ``nvmath.bindings.mathdx`` as nvmath.device calls to get from a description to LTO-IR."""

    def __init__(self):
        super().__init__("nvmath.bindings.mathdx")
        self.compiled, self.codes, self.symbols, self.next = [], {}, {}, 100
        self.LibMathDxError = KeyError  # of no meaning here
        self.CommondxOption = types.SimpleNamespace(CODE_ISA=ISA, TARGET_SM=TARGET, EXTRA_NVRTC_ARGS=ARGUMENTS)
        self.CufftdxTraitType = self.CublasdxTraitType = types.SimpleNamespace(SYMBOL_NAME=SYMBOL)
        self.CublasdxDeviceFunctionTrait = types.SimpleNamespace(SYMBOL=SYMBOL)
        for name in ("cufftdx_get_trait", "cublasdx_get_trait", "cublasdx_get_device_function_trait"):
            setattr(self, f"{name}_str_size", lambda handle, trait: len(self.symbols[handle]) + 1)
            setattr(self, f"{name}_str", self._symbol)
        self.cufftdx_finalize_code = self.cublasdx_finalize_code = self._finalize

    def new(self, symbol):
        self.next += 1
        self.symbols[self.next] = symbol
        return self.next

    def _symbol(self, handle, trait, size, buffer):
        assert trait == SYMBOL
        buffer[:] = self.symbols[handle].encode() + b"\0"

    def commondx_create_code(self):
        free = next(handle for handle in range(1, 99) if handle not in self.codes)  # handles come again
        self.codes[free] = None
        return free

    def commondx_destroy_code(self, code):
        del self.codes[code]

    def commondx_set_code_option_int64s(self, code, option, count, values):
        assert len(values) == count

    def commondx_set_code_option_str(self, code, option, text):
        pass

    def _finalize(self, code, handle):
        self._compile(code, self.symbols[handle])

    def cublasdx_finalize_device_functions(self, code, count, functions):
        assert len(functions) == count
        self._compile(code, "+".join(self.symbols[function] for function in functions))

    def _compile(self, code, name):
        if name == "bad":
            raise RuntimeError("libmathdx says no")
        self.compiled.append(name)
        self.codes[code] = f"LTO-IR of {name}".encode() * 10

    def commondx_get_code_ltoir_size(self, code):
        return len(self.codes[code])

    def commondx_get_code_ltoir(self, code, size, buffer):
        buffer[:] = self.codes[code]

    def commondx_get_code_option_int64(self, code, option):
        assert self.codes[code] is not None
        return 13005 if option == ISA else 42


@pytest.fixture
def binding(monkeypatch):
    made = Binding()
    monkeypatch.setitem(sys.modules, "nvmath.bindings.mathdx", made)
    return made


def compile_with(mathdx, symbols, sm=(900,), functions=False, library="cufftdx"):
    """What nvmath.device does: a code object with options, finalized, and read."""
    code = mathdx.commondx_create_code()
    mathdx.commondx_set_code_option_int64s(code, TARGET, len(sm), list(sm))
    mathdx.commondx_set_code_option_str(code, ARGUMENTS, "-gen-opt-lto")
    handles = [mathdx.new(symbol) for symbol in symbols]
    if functions:
        mathdx.cublasdx_finalize_device_functions(code, len(handles), handles)
    else:
        getattr(mathdx, f"{library}_finalize_code")(code, handles[0])
    content = bytearray(mathdx.commondx_get_code_ltoir_size(code))
    mathdx.commondx_get_code_ltoir(code, len(content), content)
    result = bytes(content), mathdx.commondx_get_code_option_int64(code, ISA)
    mathdx.commondx_destroy_code(code)
    return result


def test_nothing_to_do_without_nvmath(monkeypatch):
    monkeypatch.delitem(sys.modules, "nvmath.bindings.mathdx", raising=False)
    assert nvmath_functions.keep_nvmath_functions() is False


def test_every_function_is_compiled_once(binding):
    plain = compile_with(binding, ["f"]), compile_with(binding, ["g", "h"], functions=True)
    assert plain == ((b"LTO-IR of f" * 10, 13005), (b"LTO-IR of g+h" * 10, 13005))
    binding.compiled.clear()
    assert nvmath_functions.keep_nvmath_functions()
    assert nvmath_functions.keep_nvmath_functions()  # a second time changes nothing
    for _ in range(3):
        assert (compile_with(binding, ["f"]), compile_with(binding, ["g", "h"], functions=True)) == plain
    assert binding.compiled == ["f", "g+h"]
    assert cache.counts("nvmath")["builds"] == 2
    cache.forget()  # as another process
    assert (compile_with(binding, ["f"]), compile_with(binding, ["g", "h"], functions=True)) == plain
    assert binding.compiled == ["f", "g+h"]
    assert cache.counts("nvmath")["disk_hits"] == 2


def test_what_differs_is_compiled_apart(binding):
    nvmath_functions.keep_nvmath_functions()
    compile_with(binding, ["f"])
    compile_with(binding, ["f"], sm=(800,))
    compile_with(binding, ["f"], sm=(900, 1))  # sm_90a
    compile_with(binding, ["f"], library="cublasdx")
    compile_with(binding, ["f"], functions=True)
    compile_with(binding, ["f", "f"], functions=True)
    assert len(binding.compiled) == cache.counts("nvmath")["builds"]
    assert binding.compiled == ["f"] * 3 + ["f"] * 2 + ["f+f"]


def test_code_objects_that_nobody_finalizes_stay_the_librarys(binding):
    nvmath_functions.keep_nvmath_functions()
    compile_with(binding, ["f"])
    code = binding.commondx_create_code()  # has the handle that the last one had
    assert binding.codes[code] is None
    with pytest.raises(TypeError):
        binding.commondx_get_code_ltoir_size(code)
    with pytest.raises(AssertionError):
        binding.commondx_get_code_option_int64(code, ISA)


def test_other_options_are_asked_of_the_library(binding):
    nvmath_functions.keep_nvmath_functions()
    code = binding.commondx_create_code()
    binding.cufftdx_finalize_code(code, binding.new("f"))
    assert binding.commondx_get_code_option_int64(code, TARGET) == 42


def test_errors_of_the_library_come_through_and_leave_nothing(binding):
    nvmath_functions.keep_nvmath_functions()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="libmathdx says no"):
            compile_with(binding, ["bad"])
    assert cache.counts("nvmath")["builds"] == 0


def test_disabled_jit_names_the_function(binding, monkeypatch):
    nvmath_functions.keep_nvmath_functions()
    compile_with(binding, ["there"])
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    compile_with(binding, ["there"])
    with pytest.raises(JitDisabledError, match="cufftdx function missing of nvmath"):
        compile_with(binding, ["missing"])
    assert binding.compiled == ["there"]


def test_code_for_one_architecture_only_is_linked_for_it(binding):
    """nvmath compiles for sm_90a on a Hopper GPU; a kernel that links such code must be linked for it too."""
    here, special = Target(9, 0), Target(9, 0, True)
    assert nvmath_functions.link_target([b"anything"], here) == here
    nvmath_functions.keep_nvmath_functions()
    for _ in range(2):
        for_all, _ = compile_with(binding, ["f"])
        for_one, _ = compile_with(binding, ["g"], sm=(900, 1))
        assert nvmath_functions.link_target([b"kernel", for_all], here) == here
        assert nvmath_functions.link_target([b"kernel", for_all, bytes(bytearray(for_one))], here) == special
        assert nvmath_functions.link_target([for_one], special) == special
        cache.forget()  # found on disk the second time
