"""`devkernels.compile` on a machine without a GPU: targets, resource numbers, options, errors, the cache."""

import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from cuda import pathfinder
from numba import cuda, float32, float64
from numba.types import float16

import devkernels
from devkernels import cache, target
from devkernels.compiler import elf, frontend, image
from devkernels.compiler.image import Parameter
from devkernels.errors import CompileError, JitDisabledError, SpecError, TargetError

pytestmark = pytest.mark.usefixtures("own_cache")

TARGETS = ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_120"]


FACTOR = np.float32(3)


@cuda.jit(device=True)
def times_factor(value):
    return value * FACTOR


def everything(c, a, f, flags, pair, z, half, negate, k, u):
    i, j = cuda.grid(2)
    shared = cuda.shared.array(100, float32)
    shared[cuda.threadIdx.x % 100] = half
    cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        value = times_factor(a[i, j]) * z + f[i, j] * pair[0] + pair[1] + k + u + shared[flags[i]]
        c[i, j] = -value if negate else value


EVERYTHING = (
    "void(complex64[:,::1], complex64[:,:], complex64[::1,:], int8[::1], UniTuple(float64, 2), complex128, float16, "
    "boolean, int16, uint64)"
)


def spilling(x, n):
    table = cuda.local.array(200, float32)
    for k in range(200):
        table[(k * n) % 200] = x[k]
    x[cuda.threadIdx.x] = table[(n + cuda.threadIdx.x) % 200]


def usage(cubin, folder):
    """What NVIDIA's own tool says of a cubin."""
    tool = pathfinder.find_nvidia_binary_utility("cuobjdump") or shutil.which("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is not installed (nvidia-cuda-cuobjdump)")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True, timeout=60).stdout
    line = next(line for line in text.splitlines() if "REG:" in line)
    return {name: int(value) for name, value in (part.split(":") for part in line.split() if part.count(":") == 1)
            if name in ("REG", "STACK", "SHARED", "LOCAL")}  # fmt: skip


@pytest.mark.parametrize("where", TARGETS)
def test_every_target(where, tmp_path):
    made = devkernels.compile(everything, EVERYTHING, where)
    assert str(made.target) == where
    assert made.name == "everything"
    assert made.cubin[:4] == b"\x7fELF"
    assert made.symbol.encode() in made.cubin
    assert [p.name for p in made.parameters] == ["c", "a", "f", "flags", "pair", "z", "half", "negate", "k", "u"]
    assert made.parameters[0] == Parameter("c", "array", "complex64", 2, "C")
    assert made.parameters[2] == Parameter("f", "array", "complex64", 2, "F")
    assert made.shared_bytes == 400
    said = usage(made.cubin, tmp_path)
    assert said["REG"] == made.registers
    assert said["STACK"] == made.local_bytes == 0
    assert said["SHARED"] == made.shared_bytes + (1024 if made.target.major >= 9 else 0)  # reserved by the system


def test_local_memory_is_counted(tmp_path):
    made = devkernels.compile(spilling, "void(float32[::1], int32)")
    assert made.local_bytes >= 800
    assert usage(made.cubin, tmp_path)["STACK"] == made.local_bytes


def test_parameter_layout_is_that_of_the_cubin():
    made = devkernels.compile(everything, EVERYTHING)
    found = elf.kernels(made.cubin)[0].parameters
    assert list(found) == image.layout(made.parameters)
    assert len(found) == 9 + 9 + 9 + 7 + 2 + 2 + 1 + 1 + 1 + 1


def test_targets_do_not_mix_in_one_process():
    """Numba keeps device functions whatever the architecture: a second one must not get those of the first."""
    first = devkernels.compile(everything, EVERYTHING, "sm_90")
    other = devkernels.compile(everything, EVERYTHING, "sm_80")
    again = devkernels.compile(everything, EVERYTHING, "sm_90")
    assert again == first
    assert other.cubin != first.cubin
    assert frontend.architecture().cc == (9, 0)
    assert target.compiling_for() is None
    with pytest.raises(TargetError, match="another process"):
        frontend.lower(spilling, frontend.normalize("void(float32[::1], int32)"), target.Target(8, 0), fastmath=False,
                       lineinfo=False, opt=True, launch_bounds=None)  # fmt: skip


def test_what_cannot_be_sent_to_another_process_is_said():
    lock = __import__("threading").Lock()

    def kernel(x):
        if lock is None:
            x[0] = 1

    with pytest.warns(devkernels.errors.DevkernelsWarning, match="lock"), pytest.raises(TargetError) as caught:
        devkernels.compile(kernel, "void(float32[::1])", "sm_80")
    assert "DEVKERNELS_TARGET=sm_80" in str(caught.value)


def test_options_take_effect():
    def busy(x, n):
        kept = cuda.local.array(48, float64)
        for k in range(48):
            kept[k] = x[k * n]
        for _ in range(n):
            for k in range(48):
                kept[k] = kept[k] * kept[(k + 1) % 48] + 1.0
        for k in range(48):
            x[k * n + cuda.threadIdx.x] = kept[k]

    free = devkernels.compile(busy, "void(float64[::1], int32)")
    capped = devkernels.compile(busy, "void(float64[::1], int32)", max_registers=40)
    bounded = devkernels.compile(busy, "void(float64[::1], int32)", launch_bounds=(1024, 1))
    assert free.registers > 64 >= bounded.registers
    assert capped.registers <= 40
    assert (free.max_threads, capped.max_threads, bounded.max_threads) == (None, None, 1024)


def test_decorated_kernels_bring_their_options_and_signature():
    ours = devkernels.kernel(spilling, signature="void(float32[::1], int32)", launch_bounds=64)
    assert devkernels.compile(ours).max_threads == 64
    assert devkernels.compile(ours, launch_bounds=32).max_threads == 32
    assert ours.compile(target="sm_80").target == target.Target(8, 0)
    numbas = cuda.jit(spilling, launch_bounds=96)
    assert devkernels.compile(numbas, "void(float32[::1], int32)").max_threads == 96


def test_float16_arithmetic_links_numbas_own_sources():
    def halves(x, y):
        i = cuda.grid(1)
        if i < x.shape[0]:
            y[i] = x[i] * x[i] + float16(1.5)

    before = cache.counts("ltoir")["builds"]
    assert devkernels.compile(halves, "void(float16[::1], float16[::1])").registers > 0
    built = cache.counts("ltoir")["builds"] - before
    cache.forget()
    assert devkernels.compile(halves, "void(float16[::1], float16[::1])", fastmath=True).registers > 0
    assert cache.counts("ltoir")["builds"] - before == built  # what it links is on disk by now


def test_grid_synchronisation_is_noticed():
    def rotate(x, y):
        i = cuda.grid(1)
        x[i] = i
        cuda.cg.this_grid().sync()
        y[i] = x[(i + 1) % x.shape[0]]

    assert devkernels.compile(rotate, "void(int32[::1], int32[::1])").cooperative
    assert not devkernels.compile(spilling, "void(float32[::1], int32)").cooperative


def bad_name(x):
    x[0] = no_such_name  # noqa: F821


def returns(x):
    return x[0]


@pytest.mark.parametrize(
    ("function", "signature", "kind", "message"),
    [
        (bad_name, "void(float32[::1])", CompileError, "(?s)Kernel bad_name.*no_such_name"),
        (returns, "void(float32[::1])", CompileError, "Kernel returns"),
        (returns, "float32(float32[::1])", SpecError, "returns nothing"),
        (spilling, "void(float32[::1])", SpecError, r"2 parameters \(x, n\).*has 1"),
        (spilling, "void(float32[::1], nonsense)", SpecError, "is not a signature"),
        (spilling, "void(float32[::1]", SpecError, "is not a signature"),
        (spilling, 7, SpecError, "is not a signature"),
        (spilling, None, SpecError, "needs a signature"),
        (spilling, "void(float32[::1], unicode_type)", SpecError, "Parameter n has type"),
        ("text", "void(int32)", SpecError, "give a Python function"),
    ],
)
def test_errors_say_what_is_wrong(function, signature, kind, message):
    with pytest.raises(kind, match=message):
        devkernels.compile(function, signature)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launch_bounds": 0}, "launch_bounds=0"),
        ({"launch_bounds": 2048}, "at most 1024"),
        ({"launch_bounds": (1, 2, 3, 4)}, "launch_bounds"),
        ({"launch_bounds": True}, "launch_bounds"),
        ({"max_registers": 256}, "max_registers=256"),
        ({"max_registers": "many"}, "max_registers='many'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(SpecError, match=message):
        devkernels.compile(spilling, "void(float32[::1], int32)", **options)


@pytest.mark.parametrize("where", ["sm_50", "h100", 3, "sm_90b", None.__class__])
def test_bad_targets(where):
    with pytest.raises(TargetError):
        devkernels.compile(spilling, "void(float32[::1], int32)", where)


def test_compiled_once_then_from_memory_then_from_disk(monkeypatch):
    before = cache.counts("kernel")
    first = devkernels.compile(spilling, "void(float32[::1], int32)", notes={"block": [64, 1, 1]})
    monkeypatch.setenv("DEVKERNELS_DISABLE_JIT", "1")
    assert devkernels.compile(spilling, "void(float32[::1], int32)", notes={"block": [64, 1, 1]}) == first
    cache.forget()
    again = devkernels.compile(spilling, "void(float32[::1], int32)", notes={"block": [64, 1, 1]})
    assert again == first
    assert again.notes == {"block": [64, 1, 1]}
    counts = cache.counts("kernel")
    assert {key: counts[key] - before[key] for key in ("builds", "memory_hits", "disk_hits")} == {
        "builds": 1, "memory_hits": 1, "disk_hits": 1,
    }  # fmt: skip
    with pytest.raises(JitDisabledError, match=r"kernel spilling\(.*float64.*for sm_90") as caught:
        devkernels.compile(spilling, "void(float64[::1], int32)")
    assert "spilling" in str(caught.value.spec)


def child(code, folder, *, home="sm_90", **environment):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(code))
    result = subprocess.run(
        [sys.executable, str(path)],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DEVKERNELS_TARGET": home} | environment,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


PROGRAM = """
    import sys
    import devkernels
    import numpy as np
    from numba import cuda
    from devkernels import cache

    table = np.array([1, 2, 3], np.float32)

    @cuda.jit(device=True)
    def inner(v, i):
        return v * table[i % 3]

    def make(offset):
        @cuda.jit(device=True)
        def outer(v, i):
            return inner(v, i) + offset
        def kernel(x):
            i = cuda.grid(1)
            if i < x.shape[0]:
                x[i] = outer(x[i], i)
        return kernel

    image = devkernels.compile(make(0.5), "void(float32[::1])", "sm_90")
    print(cache.counts()["builds"], image.registers)
    """


def test_second_process_and_the_simulator_compile_nothing(tmp_path):
    """The simulator has no compiler of its own; its worker finds what another home has compiled."""
    first = child(PROGRAM, tmp_path)
    assert first[0] == "1"
    assert child(PROGRAM, tmp_path, DEVKERNELS_DISABLE_JIT="1", PYTHONHASHSEED="7") == ["0", first[1]]
    assert child(PROGRAM, tmp_path, home="sim", DEVKERNELS_DISABLE_JIT="1") == ["0", first[1]]


def test_simulator_compiles_by_a_worker(tmp_path):
    program = PROGRAM.replace("0.5", "0.75") + "\n    assert devkernels.target.simulating()\n"
    assert child(program, tmp_path, home="sim")[0] == "1"


def test_jit_kernels_cannot_be_launched_here():
    with pytest.raises(TargetError, match="only compiles"):
        devkernels.kernel(spilling)[1, 32]


def test_lazy_objects_are_numbas_own_to_the_compiler():
    """`devkernels.cuda` and inlined device functions, in kernels of either decorator and in device functions."""
    from devkernels import cuda as lazy
    from devkernels.device.inline import device_function

    def half(value):
        return value * float32(0.5) + lazy.threadIdx.x

    halved = device_function(half)

    @lazy.jit(device=True)
    def more(value):
        return halved(value) + 1

    def kernel(x):
        shared = lazy.shared.array(32, np.float32)
        i = lazy.grid(1)
        shared[lazy.threadIdx.x] = more(x[i])
        lazy.syncthreads()
        x[i] = halved(shared[31 - lazy.threadIdx.x])

    plain = devkernels.compile(kernel, "void(float32[::1])")
    jitted = devkernels.compile(lazy.jit(kernel), "void(float32[::1])")
    assert plain.shared_bytes == jitted.shared_bytes == 128
    assert plain.registers == jitted.registers
