"""Cache keys of kernels: what changes the code changes the key, what does not leaves it alone."""

import functools
import itertools
import math
import types

import numpy as np
import pytest
from numba import complex64, cuda, float32, int32
from numba.cuda.extending import intrinsic, overload

import devkernels
from devkernels.compiler import keys
from devkernels.compiler.kernel import Options, kernel_key
from devkernels.compiler.signature import resolve
from devkernels.errors import DevkernelsWarning
from devkernels.target import Target

EXTERNAL = 5.0
HELPERS = types.ModuleType("helpers")  # a user's own module


class Settings:
    depth = 3


def key_of(text, **names):
    """Key of the function that `text` defines, with `names` as its globals."""
    scope = {"cuda": cuda, "np": np, "math": math, "float32": float32, **names}
    exec(compile(text, "<test>", "exec"), scope)
    return keys.function_key(scope["k"])


PLAIN = "def k(x):\n    x[cuda.grid(1)] = C\n"


def jitted(text, **names):
    scope = {"cuda": cuda, **names}
    exec(compile(text, "<device>", "exec"), scope)
    return cuda.jit(device=True)(scope["f"])


def closure(value):
    def k(x):
        x[0] = value

    return k


def two(x, y):
    """A function with two parameters."""


def with_default(value):
    def k(x, y=value):
        x[0] = y

    return k


def test_globals_by_value():
    values = [1, 1.0, 2, True, "1", (1, 2), (2, 1), np.float32(1), np.float64(1), np.arange(3), np.arange(4),
              np.arange(3.0), np.array([0, 1, 3]), float32, int32, complex64, Settings, math.pi]  # fmt: skip
    found = [key_of(PLAIN, C=value) for value in values]
    for (i, a), (j, b) in itertools.combinations(enumerate(found), 2):
        assert a != b, (values[i], values[j])
    assert [key_of(PLAIN, C=value) for value in values] == found


def test_one_element_of_a_captured_array():
    table = np.zeros(1000, np.complex64)
    before = keys.function_key(closure(table))
    assert keys.function_key(closure(table.copy())) == before
    table[777] += np.float32(1e-6)
    assert keys.function_key(closure(table)) != before


def test_closures_defaults_and_text():
    assert keys.function_key(closure(1)) == keys.function_key(closure(1))
    assert keys.function_key(closure(1)) != keys.function_key(closure(2))
    assert keys.function_key(with_default(1)) != keys.function_key(with_default(2))
    assert key_of(PLAIN, C=1) != key_of(PLAIN.replace("= C", "= C + 1"), C=1)
    assert key_of("def k(x):\n    x[0] = 1\n") != key_of("def k(x):\n    x[0] = 2\n")
    assert key_of("def k(x):\n    x[0] = 1\n") != key_of("def k(y):\n    y[0] = 1\n")
    assert key_of(PLAIN, C=1, unused=1) == key_of(PLAIN, C=1, unused=2)  # not named by the code: no part of it


def test_attributes_are_not_taken_for_globals():
    """``a.x`` says nothing of a global x, which may be anything."""
    text = "def k(a):\n    a[0] = a.x + C.y\n"
    assert key_of(text, C=1, x=object(), y=1) == key_of(text, C=1, x=2, y=2)


def test_functions_in_functions():
    text = "def k(x):\n    def inner(v):\n        return v * C\n    x[0] = inner(1)\n"
    assert key_of(text, C=1) != key_of(text, C=2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_device_functions_are_followed(depth):
    def chain(constant):
        f = jitted("def f(v):\n    return v * C\n", C=constant)
        for _ in range(depth - 1):
            f = jitted("def f(v):\n    return g(v) + 1\n", g=f)
        return key_of("def k(x):\n    x[0] = f(x[0])\n", f=f)

    assert chain(1) == chain(1)
    assert chain(1) != chain(2)


def test_options_of_device_functions():
    def f(v):
        return v

    text = "def k(x):\n    x[0] = f(x[0])\n"
    plain, inlined = cuda.jit(device=True)(f), cuda.jit(device=True, forceinline=True)(f)
    assert key_of(text, f=plain) != key_of(text, f=inlined)


def test_recursion_ends():
    scope = {"cuda": cuda}
    exec("def f(v):\n    return f(v - 1) if v > 0 else C\n", scope)
    assert len(key_of("def k(x):\n    x[0] = f(x[0])\n", f=scope["f"], C=1)) == 64


def test_modules_and_classes_are_read_by_attribute(monkeypatch):
    text = "def k(x):\n    x[0] = helpers.scale * Settings.depth\n"
    monkeypatch.setattr(HELPERS, "scale", 2, raising=False)
    before = key_of(text, helpers=HELPERS, Settings=Settings)
    monkeypatch.setattr(HELPERS, "unrelated", 9, raising=False)
    assert key_of(text, helpers=HELPERS, Settings=Settings) == before
    monkeypatch.setattr(HELPERS, "scale", 3)
    changed = key_of(text, helpers=HELPERS, Settings=Settings)
    assert changed != before
    monkeypatch.setattr(Settings, "depth", 4)
    assert key_of(text, helpers=HELPERS, Settings=Settings) != changed


def test_intrinsics_and_overloads():
    def make(constant):
        @intrinsic
        def f(typingctx, v):
            def codegen(context, builder, signature, arguments):
                return context.get_constant(signature.return_type, constant)

            return v(v), codegen

        return f

    text = "def k(x):\n    x[0] = f(x[0])\n"
    assert key_of(text, f=make(1)) == key_of(text, f=make(1))
    assert key_of(text, f=make(1)) != key_of(text, f=make(2))

    def stub(v):
        """Known to Numba by its overload only."""

    @overload(stub, target="cuda")
    def _stub(v):
        return lambda v: v

    assert len(key_of(text, f=stub)) == 64


def test_device_objects_by_their_spec():
    def make(size, **more):
        return devkernels.fft(fft_type="c2c", size=size, precision=np.float32, direction="forward", **more)

    text = "def k(x):\n    f(x)\n"
    assert key_of(text, f=make(64)) == key_of(text, f=make(64))
    different = [make(64), make(128), make(64, sm="sm_80"), make(64).inverse(), make(64, ffts_per_block=1)]
    assert len({key_of(text, f=f) for f in different}) == len(different)


def test_everything_else_that_matters():
    arguments = resolve(two, "void(float32[::1], int32)")
    base = dict(function=with_default(1), signature=arguments, target=Target(9, 0), options=Options(), notes=None)
    changes = [
        {},
        {"signature": resolve(two, "void(float32[:], int32)")},
        {"signature": resolve(two, "void(float64[::1], int32)")},
        {"target": Target(8, 0)},
        {"target": Target(9, 0, True)},
        {"options": Options(fastmath=True)},
        {"options": Options(launch_bounds=128)},
        {"options": Options(launch_bounds=(128,))},
        {"options": Options(max_registers=64)},
        {"options": Options(lineinfo=True)},
        {"options": Options(opt=False)},
        {"notes": {"block": 3}},
    ]
    found = [kernel_key(**(base | change)) for change in changes]
    assert len(set(found)) == len(changes)
    assert kernel_key(**base) == found[0]


def test_versions_are_part_of_the_key(monkeypatch):
    from devkernels import versions

    base = (with_default(1), resolve(two, "void(float32[::1], int32)"), Target(9, 0), Options(), None)
    before, known = kernel_key(*base), dict(versions.libraries())
    for role in ("numba", "numba-cuda", "llvmlite", "nvmath", "libmathdx", "nvrtc", "nvjitlink", "nvvm", "devkernels"):
        assert role in known
        if role == "devkernels":
            monkeypatch.setattr(versions, "source_digest", lambda part: "another" * (part == versions.CORE))
        else:
            monkeypatch.setattr(versions, "libraries", {**known, role: "another"}.copy)
        assert kernel_key(*base) != before, role
        monkeypatch.undo()
    assert kernel_key(*base) == before


def test_parts_of_this_package_count_where_they_are_used(monkeypatch):
    """A kernel's key knows the sources of what writes its code; an edit elsewhere in the package leaves it be."""
    from devkernels import versions

    fft = devkernels.fft(fft_type="c2c", size=64, precision=np.float32, direction="forward")
    product = devkernels.matmul(size=(16, 16, 16), precision=np.float32)
    engine = devkernels.block_fft(64, "float32")
    forward = engine.forward
    kernels = {
        "plain": (PLAIN, {"C": 1}, set()),
        "fft": ("def k(x):\n    f(x)\n", {"f": fft}, set()),
        "product": ("def k(x):\n    f(x)\n", {"f": product}, {"products"}),
        "tile": ("def k(x):\n    load(x)\n", {"load": devkernels.load_tile}, {"products"}),
        "engine": ("def k(x):\n    f(x)\n", {"f": forward}, {"engine"}),
        "package": ("def k(x):\n    devkernels.load_tile(x)\n", {"devkernels": devkernels}, {"engine", "products"}),
    }
    before = {name: key_of(text, **names) for name, (text, names, _) in kernels.items()}
    real = versions.source_digest
    for part in ("engine", "products", "host"):
        monkeypatch.setattr(
            versions, "source_digest", lambda asked, edited=part: "edited" if asked == edited else real(asked)
        )
        for name, (text, names, parts) in kernels.items():
            assert (key_of(text, **names) != before[name]) == (part in parts), (name, part)
        monkeypatch.undo()


def test_what_has_no_content_is_told_and_kept_to_this_process():
    token = object()

    def k(x):
        if token is None:
            x[0] = 1

    arguments = resolve(k, "void(float32[::1])")
    with pytest.warns(DevkernelsWarning, match=r"token: .*object.*no stable content"):
        first = kernel_key(k, arguments, Target(9, 0), Options(), None)
    with pytest.warns(DevkernelsWarning):
        assert kernel_key(k, arguments, Target(9, 0), Options(), None) == first


def test_nvmaths_objects_by_what_they_were_made_of():
    """They work out some of their attributes when asked, which compiling a kernel does; the key stays."""

    class Matmul:
        def __init__(self, size):
            self._size = size

        @functools.cached_property
        def a_dim(self):
            return self._size[::2]

    Matmul.__module__, Matmul.__qualname__ = "nvmath.device.cublasdx", "Matmul"
    text, product = "def k(x):\n    f(x)\n", Matmul((2, 3, 4))
    before = key_of(text, f=product)
    assert product.a_dim == (2, 4)
    assert vars(product).keys() == {"_size", "a_dim"}
    assert key_of(text, f=product) == before == key_of(text, f=Matmul((2, 3, 4)))
    assert key_of(text, f=Matmul((2, 3, 5))) != before
