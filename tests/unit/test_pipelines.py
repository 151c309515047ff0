"""Device pipelines of nvmath.device as kernel arguments: only the right kind, as the address of their storage."""

import sys
import types

import pytest

from devkernels.compiler import image, pipelines
from devkernels.compiler.image import KernelImage, Parameter
from devkernels.errors import ArgumentTypeError, SpecError
from devkernels.launch import arguments
from devkernels.launch.buffer import Buffer, places
from devkernels.target import Target


class DevicePipeline:
    __module__ = "nvmath.device.cublasdx"

    def __init__(self, tile, handle):
        self.tile, self._storage = tile, types.SimpleNamespace(handle=handle)


@pytest.fixture(autouse=True)
def nvmath(monkeypatch):
    class DevicePipelineType:
        def __init__(self, pipeline):
            self.pipeline = pipeline

        def __str__(self):
            return f"DevicePipeline(tile={self.pipeline.tile})"

    made = types.SimpleNamespace(DevicePipelineType=DevicePipelineType)
    monkeypatch.setitem(sys.modules, "nvmath.device.cublasdx_numba", made)


def test_written_as_the_address_of_the_storage():
    first, second = DevicePipeline(128, 4096), DevicePipeline(128, 8192)
    parameters = (Parameter("n", "scalar", "int32"), pipelines.parameter("p", first))
    assert image.layout(parameters) == [(0, 4), (8, 8)]
    table = arguments.Table(parameters[1], places(parameters)[1], "gemm", 0, True, {})
    buffer = Buffer(parameters)
    for pipeline in (first, second, first):
        table[type(pipeline)](pipeline, buffer)
        assert buffer.words64[1] == pipeline._storage.handle


def test_another_pipeline_is_refused_and_so_is_anything_else():
    own, other = DevicePipeline(128, 4096), DevicePipeline(64, 8192)
    parameter = pipelines.parameter("p", own)
    table, buffer = arguments.Table(parameter, places((parameter,))[0], "gemm", 0, True, {}), Buffer((parameter,))
    table[DevicePipeline](own, buffer)
    with pytest.raises(ArgumentTypeError, match=r"another pipeline .*tile=64.*, not .*tile=128"):
        table[DevicePipeline](other, buffer)
    assert buffer.words64[0] == 4096
    for wrong in (7, 1.5, "p", None):
        with pytest.raises(ArgumentTypeError, match="argument p must be a DevicePipeline"):
            table[type(wrong)]


def test_the_type_is_found_again_while_the_pipeline_lives():
    own = DevicePipeline(32, 4096)
    parameter = pipelines.parameter("p", own)
    assert pipelines.numba_type(parameter).pipeline is own
    del own
    with pytest.raises(SpecError, match="does not have"):
        pipelines.numba_type(parameter)


def test_images_keep_the_parameter():
    parameter = pipelines.parameter("p", DevicePipeline(32, 4096))
    made = KernelImage("k", b"", "k", Target(9, 0), 16, 0, 0, None, (parameter,))
    assert image.unpack(image.pack([made]))[0].parameters == (parameter,)
