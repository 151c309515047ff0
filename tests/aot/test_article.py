"""The published kernel of examples/article_filter.py, compiled for GPUs from its unchanged text."""

import importlib.util
import pathlib

import numba.cuda
import pytest

import devkernels
from tests.sass import Sass

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "article_filter.py"


class _DecoratedError(Exception):
    """Carries the kernel out of the article's program, which goes on to use a GPU."""


def test_the_articles_kernel_compiles_unchanged(monkeypatch):
    links = []

    def jit(*, link):
        def stop(function):
            links.append(link)
            raise _DecoratedError(function)

        return stop

    monkeypatch.setattr(numba.cuda, "jit", jit)
    spec = importlib.util.spec_from_file_location("article_filter", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(_DecoratedError) as caught:
        module.main()
    monkeypatch.undo()
    (kernel,) = caught.value.args
    assert kernel.__name__ == "apply_filter"
    assert links == [[]]
    image = devkernels.compile(kernel, "void(complex64[:,::1], complex64[:,::1])", "sm_90")
    assert image.local_bytes == 0
    assert Sass(image).spills == 0
