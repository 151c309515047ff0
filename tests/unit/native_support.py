"""What the extension for torch launches, on the CPU: cuBLASLt, CUDA's driver, graphs and kernels as C functions."""

from __future__ import annotations

import ctypes
import inspect

import torch

from tests.unit.fake_cublaslt import FakeCublasLt, cuBLASLtError

_P, _I, _U = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
MATMUL = ctypes.CFUNCTYPE(_I, *[_P] * 14, ctypes.c_size_t, _P)
SET = ctypes.CFUNCTYPE(_I, _P, _I, _P, ctypes.c_size_t)


class Configuration(ctypes.Structure):
    """CUlaunchConfig, by CUDA's description of it."""

    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
                ("stream", _P), ("attributes", _P), ("attribute_count", ctypes.c_uint))  # fmt: skip


LAUNCH = ctypes.CFUNCTYPE(_I, _P, _P, _P, _P)


def library(fake: FakeCublasLt):
    """Return (matmul, set attribute, counts): the fake library's functions as C has them."""
    counts = {"matmul": 0, "set": 0, "fail": 0}

    def matmul(*about):
        counts["matmul"] += 1
        if counts["fail"]:
            counts["fail"] -= 1
            return 15
        fake.matmul(*(value or 0 for value in about))
        return 0

    def put(handle, attribute, address, size):
        counts["set"] += 1
        try:
            fake.matmul_desc_set_attribute(handle, attribute, address, size)
        except cuBLASLtError:
            return 7
        return 0

    assert len(inspect.signature(fake.matmul).parameters) == 16
    return MATMUL(matmul), SET(put), counts


def address(function) -> int:
    """Address of a C function."""
    return ctypes.cast(function, _P).value


def parameter(places, index: int, kind=ctypes.c_uint64):
    """Value of a kernel's parameter."""
    return kind.from_address(places[index]).value


class Driver:
    """cuLaunchKernelEx and cuTensorMapEncodeTiled on the CPU.

    A function's handle is a number under which its Python text is kept: it gets the configuration and the places of
    its parameters. A tensor map holds what the driver was told, as `Told`.
    """

    def __init__(self) -> None:
        self.functions, self.launches, self.encoded, self.fail, self.capturing = {}, 0, 0, 0, None
        self.cuLaunchKernelEx = LAUNCH(self._launch)
        self.cuGraphLaunch = GRAPH(self._graph)
        self.cuMemcpyDtoDAsync_v2 = COPY(self._copy)
        self.cuGraphExecKernelNodeSetParams_v2 = SET_NODE(self._set_node)
        self.graphs, self.copies = {}, 0
        self.encode = ENCODE(self._encode)

    def add(self, function) -> int:
        """Keep a function; return its handle."""
        self.functions[len(self.functions) + 1] = function
        return len(self.functions)

    def _graph(self, executable, stream):
        self.graphs[executable].launch()
        return 0

    def _set_node(self, executable, node, about):
        told = about.contents
        assert list(told.grid)[1:] == [len(self.graphs[executable].nodes[node].parts), 1]
        self.graphs[executable].nodes[node].told(told.parameters)
        return 0

    def _copy(self, target, source, count, stream):
        self.copies += 1
        ctypes.memmove(target, source, count)
        return 0

    def _launch(self, about, function, places, extra):
        self.launches += 1
        if self.fail:
            self.fail -= 1
            return 201
        self.functions[function](Configuration.from_address(about), ctypes.cast(places, ctypes.POINTER(_P)))
        return 0

    def _encode(self, place, kind, rank, pointer, sizes, strides, box, ones, interleave, swizzle, promotion, fill):
        self.encoded += 1
        assert place % 64 == 0
        assert list(ones[:rank]) == [1] * rank
        assert (interleave, promotion, fill) == (0, 3, 0)
        told = Told.from_address(place)
        told.pointer, told.kind, told.rank, told.swizzle = pointer, kind, rank, swizzle
        told.sizes[:rank], told.strides[: rank - 1], told.box[:rank] = sizes[:rank], strides[: rank - 1], box[:rank]
        return 0


GRAPH = ctypes.CFUNCTYPE(_I, _P, _P)
COPY = ctypes.CFUNCTYPE(_I, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, _P)
ENCODE = ctypes.CFUNCTYPE(_I, _P, _I, _U, _P, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64),
                          ctypes.POINTER(_U), ctypes.POINTER(_U), _I, _I, _I, _I)  # fmt: skip


class Told(ctypes.Structure):
    """What stands in a tensor map of `Driver`: 128 bytes."""

    _fields_ = (("pointer", ctypes.c_uint64), ("kind", _U), ("rank", _U), ("sizes", ctypes.c_uint64 * 5),
                ("strides", ctypes.c_uint64 * 4), ("box", _U * 5), ("swizzle", _U))  # fmt: skip


class NodeAbout(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, by CUDA's description of it."""

    _fields_ = (("function", _P), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared_bytes", ctypes.c_uint), ("parameters", ctypes.POINTER(_P)), ("extra", _P), ("kernel", _P),
                ("context", _P))  # fmt: skip


SET_NODE = ctypes.CFUNCTYPE(_I, _P, _P, ctypes.POINTER(NodeAbout))


class Node:
    """A kernel of copies in a graph: (to, from, bytes) of its parts, as captured or as told since."""

    def __init__(self, about: Configuration, function: int, places):
        self.function, self.parts = function, [None] * about.grid[1]
        self.row = (ctypes.c_uint64 * 48).from_buffer_copy((ctypes.c_uint64 * 48).from_address(places[0]))
        self.told(places)

    def told(self, places) -> None:
        for part in range(len(self.parts)):
            self.parts[part] = tuple((ctypes.c_uint64 * 3).from_address(places[0] + 24 * part))

    def parameter(self, words: int) -> list[int]:
        """As `_graph_nodes.Kernel` tells it."""
        return list(self.row)[:words]

    def run(self) -> None:
        for to, source, count in self.parts:
            ctypes.memmove(to, source, count)


class Graph:
    """Runs the function again and writes over what it returned first, as a graph does; stands in for a `Replay`.

    Kernels of copies that the function launched are nodes: before the first of the rest, or after it.
    """

    def __init__(self, driver: Driver, run):
        self.run, self.replays, self.memory, self.nodes = run, 0, [self], {}
        self._driver, self._handle = driver, len(driver.graphs) + 1
        driver.graphs[self._handle] = self
        driver.capturing = self
        self.result = run()
        driver.capturing = None

    def raw_cuda_graph_exec(self) -> int:
        """As torch's graphs tell it."""
        return self._handle

    raw_cuda_graph = raw_cuda_graph_exec

    def launch(self) -> None:
        self.replays += 1
        nodes = list(self.nodes.values())
        for node in nodes[:1]:
            node.run()
        with torch.no_grad():
            for old, new in zip(tensors_of(self.result), tensors_of(self.run()), strict=True):
                old.copy_(new)
        for node in nodes[1:]:
            node.run()


def tensors_of(tree):
    """Tensors of nested sequences."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif tree is not None:
        for one in tree:
            yield from tensors_of(one)


def copies(driver: Driver) -> int:
    """Handle of the kernel of `_copies.cu`, by its description: parts of (to, from, bytes), one for each block in y."""

    def run(about, places):
        node = Node(about, handle, places)
        if driver.capturing is not None:
            node.node = len(driver.capturing.nodes) + 1
            driver.capturing.nodes[node.node] = node
        node.run()

    handle = driver.add(run)
    return handle
