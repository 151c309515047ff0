"""Kernels of a captured CUDA graph, by what they were captured with.

in: the handle of a graph.  out: a `Kernel` for each of its kernel nodes.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from devkernels.linear._cuda import check


class Kernel(NamedTuple):
    """A kernel node: its handle, its function's, and the addresses of the values of its parameters."""

    node: int
    function: int
    parameters: int

    def parameter(self, words: int) -> list[int]:
        """Value of the first parameter, as so many numbers of 64 bits."""
        first = ctypes.c_void_p.from_address(self.parameters).value
        return list((ctypes.c_uint64 * words).from_address(first))


def kernels(graph: int) -> list[Kernel]:
    """Return the kernel nodes of a graph, in the order in which they were captured."""
    from cuda.bindings import driver

    handle = driver.CUgraph(graph)
    error, _, count = driver.cuGraphGetNodes(handle)
    check(driver, error, "cuGraphGetNodes")
    error, nodes, count = driver.cuGraphGetNodes(handle, count)
    check(driver, error, "cuGraphGetNodes")
    found = []
    for node in nodes[:count]:
        error, kind = driver.cuGraphNodeGetType(node)
        check(driver, error, "cuGraphNodeGetType")
        if kind != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        error, about = driver.cuGraphKernelNodeGetParams(node)
        check(driver, error, "cuGraphKernelNodeGetParams")
        found.append(Kernel(int(node), int(about.func), int(about.kernelParams)))
    return found
