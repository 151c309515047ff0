"""Images in use: which arguments they take, on which architecture, of which version of devkernels."""

import pytest

import devkernels
from devkernels import versions
from devkernels.compiler import image, shipped
from devkernels.compiler.image import KernelImage, Parameter
from devkernels.compiler.kernel import needing_compilers
from devkernels.errors import CompileError, ImageError, MissingDependencyError
from devkernels.target import Target

X = Parameter("x", "array", "float32", 2, "C")
N = Parameter("n", "scalar", "int64")
EXTRA = Parameter("extra", "tuple", items=(Parameter("bias", "array", "float16", 1, "A"), N))


@pytest.fixture(autouse=True)
def nothing_in_use():
    shipped.forget()
    yield
    shipped.forget()


def made(content="c", parameters=(X, N), target=Target(9, 0), name="k", devkernels=None):  # noqa: B008 - frozen
    known = {"devkernels": devkernels or versions.libraries()["devkernels"]}
    return KernelImage(name, b"", name, target, 16, 0, 0, None, parameters, versions=known, content=content)


def called(*parameters):
    """The same parameters as a call describes them: without names."""
    return tuple(Parameter("", p.kind, p.dtype, p.ndim, p.layout, called(*p.items)) for p in parameters)


def test_found_by_content_arguments_and_architecture(tmp_path):
    image.write([made(target=Target(8, 0)), made(target=Target(9, 0))], tmp_path / "one.dkimage")
    made("other", (X,)).save(tmp_path / "two.dkimage")
    made("c", (X, X)).save(tmp_path / "three.dkimage")
    made("").save(tmp_path / "a_kernel_of_the_users.dkimage")
    (tmp_path / "notes.txt").write_text("no image")
    assert devkernels.use_images(tmp_path) == 4
    assert shipped.find("c", called(X, N), Target(8, 6)).target == Target(8, 0)
    assert shipped.find("c", called(X, N), Target(9, 0)).target == Target(9, 0)
    assert shipped.find("c", called(X, X), Target(9, 0)).parameters == (X, X)
    assert shipped.find("c", called(X), Target(9, 0)) is None
    assert shipped.find("c", called(X, N), Target(10, 0)) is None
    assert shipped.find("nothing", called(X, N), Target(9, 0)) is None
    assert "n: int64) for sm_90; k(x: 2-D float32 array in C order, n: int64) for sm_80." in shipped.told("c")
    assert shipped.told("nothing") == ""


def change(parameter, **changes):
    return Parameter(**{**vars(parameter), **changes})


@pytest.mark.parametrize(
    ("compiled", "given", "taken"),
    [
        (X, X, True),
        (change(X, layout="A"), X, True),  # any order
        (X, change(X, layout="A"), False),
        (X, change(X, layout="F"), False),
        (X, change(X, dtype="float64"), False),
        (X, change(X, ndim=3), False),
        (X, N, False),
        (N, change(N, dtype="int32"), False),
        (EXTRA, change(EXTRA, items=(change(EXTRA.items[0], layout="C"), N)), True),
        (EXTRA, change(EXTRA, items=(EXTRA.items[0],)), False),
        (EXTRA, change(EXTRA, items=(EXTRA.items[0], X)), False),
    ],
)
def test_which_arguments_an_image_takes(tmp_path, compiled, given, taken):
    devkernels.use_images(made(parameters=(compiled,)).save(tmp_path / "k.dkimage"))
    assert (shipped.find("c", called(given), Target(9, 0)) is not None) == taken


def test_the_file_read_last_goes_first_and_none_is_read_twice(tmp_path):
    paths = [made(name=name).save(tmp_path / f"{name}.dkimage") for name in ("first", "second")]
    assert devkernels.use_images(*paths) == 2
    assert devkernels.use_images(*paths) == 2
    assert shipped.find("c", called(X, N), Target(9, 0)).name == "second"


def test_another_version_is_refused_and_nothing_of_that_call_is_used(tmp_path):
    made("a").save(tmp_path / "a.dkimage")
    made("b", devkernels="0.0.1+abc").save(tmp_path / "b.dkimage")
    with pytest.raises(ImageError, match=r"holds k of devkernels 0\.0\.1\+abc; this is .* Build it again"):
        devkernels.use_images(tmp_path)
    assert shipped.find("a", called(X, N), Target(9, 0)) is None
    assert devkernels.use_images() == 0


def test_what_is_not_there_or_damaged(tmp_path):
    with pytest.raises(ImageError, match="no image file or folder"):
        devkernels.use_images(tmp_path / "nowhere")
    path = made().save(tmp_path / "k.dkimage")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ImageError, match="damaged"):
        devkernels.use_images(tmp_path)


class DynamicLibNotFoundError(RuntimeError):
    """As cuda.pathfinder raises it."""


@pytest.mark.parametrize(
    "missing", [ImportError("No module named 'numba'"), DynamicLibNotFoundError("no libnvrtc\nat")]
)
def test_a_missing_compiler_is_said_in_words(missing):
    match = r"kernel k .*\((No module named 'numba'|no libnvrtc)\)\. Install"
    with pytest.raises(MissingDependencyError, match=match), needing_compilers("kernel k"):
        raise missing


@pytest.mark.parametrize("other", [CompileError("no"), MissingDependencyError("libmathdx"), ZeroDivisionError()])
def test_other_errors_come_through(other):
    with pytest.raises(type(other)) as caught, needing_compilers("kernel k"):
        raise other
    assert caught.value is other
