"""What the extension for torch (`_torch_native`) is told of a layer: launches, their pointers, and how tensors look.

in: a planned forward product and backward pass (`_torch_run`).  out: a plan in C++, or None where there can be none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from devkernels.errors import ArgumentError
from devkernels.graphs import Replay
from devkernels.linear import _cuda, _graph_nodes, _torch_native, _workspace
from devkernels.linear import _torch_run as raw
from devkernels.linear._copies import PIECES, SOURCE, TO, WORDS, Copies
from devkernels.linear._cublaslt import LtMatmul
from devkernels.linear._tensor_map import Map

# Pointers of a call, in the order of native/plan.h.
_SLOTS = {name: i for i, name in enumerate(
    ("x", "weight", "bias", "y", "kept", "dy", "dz", "dx", "dw", "db", "work", "counters"))}  # fmt: skip
_NO_SLOT = (1 << 64) - 1
_PRODUCT, _KERNEL, _GRAPH, _COPY = 0, 1, 2, 3
_POINTER, _NUMBER, _MAP, _ROW = 0, 1, 2, 3
_NOTHING, _RESULT, _OWN = 0, 1, 2
_ALIGNMENT = 256  # of all pointers: the algorithms are chosen for such
_INPUT, _WEIGHT, _BIAS = 1, 2, 4  # gradients by which a launch is needed
_EVERY = _INPUT | _WEIGHT | _BIAS
# Of a recorded layer: the input and the result's gradient as they come, then the gradients that are made.
_COMES, _GOES_BACK, _MADE = 0, 1, 2


class Program:
    """Launches as numbers, and the objects that own what the numbers point to."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.owners: list[object] = []

    def launches(self, *each: tuple[int, list[int]]) -> None:
        """Append a pass over launches, each with the gradients by which it is needed."""
        self.words.append(len(each))
        for needed, (kind, *rest) in each:
            self.words += (kind, needed, *rest)

    def product(
        self, lt: LtMatmul, a: str, b: str, out: str, side: str | None = None, aux: str | None = None
    ) -> list[int]:
        """Describe a product of cuBLASLt, with a descriptor of its own."""
        own = lt.another_descriptor(0)
        self.owners += [own, lt, lt._algorithm]  # the last: `use` may put another in its place
        handles = (lt._handle, own.descriptor, ctypes.addressof(lt._alpha), ctypes.addressof(lt._beta), lt._a, lt._b,
                   lt._c, lt._d, ctypes.addressof(lt._algorithm))  # fmt: skip
        size = _workspace.WORKSPACE_BYTES if lt.workspace_bytes else 0
        names = a, b, out, side, aux, "work" if size else None
        slots = (_NO_SLOT if name is None else _SLOTS[name] for name in names)
        return [_PRODUCT, *_torch_native.functions(), *handles, size, *slots]

    def kernel(self, planned) -> list[int]:
        """Describe a kernel of ours: an object with `laid_out` and the launch itself."""
        self.owners.append(planned)
        launch, parameters = planned._launch, planned.laid_out
        words = [_KERNEL, _address("cuLaunchKernelEx"), launch.function, *launch.dimensions, launch.shared_bytes]
        words.append(len(parameters))
        for one in parameters:
            words += _parameter(one)
        return words


def _address(name: str) -> int:
    """Address of a function of the driver."""
    return ctypes.cast(getattr(_cuda.library(), name), ctypes.c_void_p).value


def _parameter(one: str | int | tuple) -> Iterable[int]:
    """A name of a pointer, a number, (tensor map, name of its pointer), or (numbers, pointers among them)."""
    if isinstance(one, str):
        return _POINTER, _SLOTS[one]
    if isinstance(one, int):
        return _NUMBER, one
    first, rest = one
    if isinstance(first, Map):
        return _MAP, _SLOTS[rest], *first.words()
    return _ROW, len(first), *first, len(rest), *(number for pair in rest for number in pair)


def _backward(program: Program, step: raw._Step) -> None:
    """As `_Step.__call__`."""
    if step.joined is not None:
        program.launches(
            (_EVERY, program.kernel(step.joined)),
            (_INPUT, program.product(step.input, "dz", "weight", "dx")),
        )
    elif step.through is not None:
        program.launches(
            (_EVERY, program.kernel(step.through)),
            (_INPUT, program.product(step.input, "dz", "weight", "dx")),
            (_WEIGHT, program.product(step.weight, "dz", "x", "dw")),
        )
    else:
        sums = step.new_db is not None
        program.launches(
            (_INPUT, program.product(step.input, "dy", "weight", "dx")),
            (_WEIGHT | _BIAS * sums, program.product(step.weight, "dy", "x", "dw", "db" if sums else None)),
        )


def _made(maker) -> Tensor | None:
    return None if maker is None else maker()


def plan(lt, new_out, new_aux, step: raw._Step, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None):
    """Return the plan's ``forward(x, weight, bias)``, or None where the extension is not there.

    Parameters
    ----------
    lt, new_out, new_aux :
        The forward product, and what makes its results (`_torch_run._Entry`).
    step : _Step
        The backward pass.
    x, weight, bias : Tensor
        What the operands look like.
    """
    native = _torch_native.extension()
    if native is None or _torch_native.functions() is None:
        return None
    program, y, aux = Program(), new_out(), _made(new_aux)
    program.words.append(_OWN if aux is not None else _RESULT if activation is not None else _NOTHING)
    program.words.append(_ALIGNMENT)
    if isinstance(lt, LtMatmul):
        side = None if bias is None else "bias"
        program.launches((_EVERY, program.product(lt, "x", "weight", "y", side, None if aux is None else "kept")))
    else:
        program.launches((_EVERY, program.kernel(lt)))
    _backward(program, step)
    dz = None if step.through is None else step.new_dz()
    examples = x, weight, bias, y, aux, y, dz, step.new_dx(), step.new_dw(), _made(step.new_db)
    with torch.no_grad():
        like = tuple(None if t is None else t.detach() for t in examples)

    def longer(dy: Tensor, x: Tensor, weight: Tensor, kept: Tensor | None, needs: tuple[int, int, int]):
        return raw.backward(dy, x, weight, kept, activation, tuple(map(bool, needs)))

    return native.Plan(tuple(program.words), like, tuple(program.owners), longer).forward


# ---------------------------------------------------------------- recorded layers


def _refuse(reason: int) -> None:
    raise ArgumentError(REFUSALS[reason])


REFUSALS = (
    "this forward pass was replayed from a CUDA graph, and a later one has overwritten what it left for its backward "
    "pass; go back before the next forward pass, or train without record().",
    "the input or a parameter of this forward pass was modified before its backward pass.",
)


def replays() -> bool:
    """Whether recorded layers can go through the extension: it is there, and torch tells the handles of its graphs."""
    told = all(hasattr(torch.cuda.CUDAGraph, name) for name in ("raw_cuda_graph", "raw_cuda_graph_exec"))
    return told and _torch_native.extension() is not None


class Around:
    """A backward pass between copies that are part of its graph: of the gradient that comes, of those that are made.

    Parameters
    ----------
    backward : callable
        Returns the gradients of the input and of the parameters.
    dy : Tensor
        Where it reads the result's gradient.

    Notes
    -----
    Called, it copies everything onto itself: where from and where to is told at each replay. `parts` are then the
    copies of the last call.
    """

    def __init__(self, backward: Callable[[], Sequence[Tensor | None]], dy: Tensor, device: int):
        self._backward, self._dy, self._device = backward, dy, device
        self.parts: tuple[Copies, Copies] | None = None
        self.slots: list[int] = []

    def __call__(self) -> Sequence[Tensor | None]:
        """Run, or be captured."""
        stream, arrays = raw._raw_stream(self._device), raw._ARRAYS
        first = Copies(arrays, self._device, [(self._dy.data_ptr(), self._dy.nbytes)])
        first.to([self._dy.data_ptr()], stream)
        made = [None if t is None else t.contiguous() for t in self._backward()]
        there = [t for t in made if t is not None]
        second = Copies(arrays, self._device, [(t.data_ptr(), t.nbytes) for t in there])
        second.to([t.data_ptr() for t in there], stream)
        self.parts, self.slots = (first, second), [_MADE + i for i, t in enumerate(made) if t is not None]
        return made


def replay(there: Replay, back: Replay, around: Around, x: Tensor, parameters: Sequence[Tensor], held: Tensor,
           y: Tensor, dy: Tensor):  # fmt: skip
    """Return a recording's ``forward(x, *parameters)``.

    Parameters
    ----------
    there, back : Replay
        The graphs of both passes; the second is of `around`, and was kept with its nodes.
    x, parameters : Tensor
        The input as it comes, and what the graphs read besides.
    held, y, dy : Tensor
        Where the graphs read the input, write the result, and read its gradient.
    """
    program = Program()
    program.owners += [there, back, around]
    program.launches((_EVERY, _copy(held, _COMES)), (_EVERY, _graph(there, [])))
    first, second = around.parts
    ((launch, row),) = first.laid_out()
    nodes = [(launch, row, [(SOURCE, _GOES_BACK)])]
    for number, (launch, row) in enumerate(second.laid_out()):
        mine = around.slots[number * PIECES : (number + 1) * PIECES]
        nodes.append((launch, row, [(WORDS * i + TO, slot) for i, slot in enumerate(mine)]))
    program.launches((_EVERY, _graph(back, nodes)))
    like = (x, dy, y, held, *parameters, *back.result)
    like = tuple(None if t is None else t.detach() for t in like)
    return _torch_native.extension().Replay(tuple(program.words), like, tuple(program.owners), _refuse).forward


def _copy(target: Tensor, slot: int) -> list[int]:
    return [_COPY, _address("cuMemcpyDtoDAsync_v2"), target.data_ptr(), slot, target.nbytes]


def _graph(replayed: Replay, changing: list[tuple[_cuda.Launch, list[int], list[tuple[int, int]]]]) -> list[int]:
    """Describe a graph; `changing` are launches in it, what they were captured with, and (place, slot) of pointers."""
    graph = replayed.memory[0]
    words = [_GRAPH, _address("cuGraphLaunch"), _address("cuGraphExecKernelNodeSetParams_v2"),
             int(graph.raw_cuda_graph_exec()), len(changing)]  # fmt: skip
    nodes = _graph_nodes.kernels(int(graph.raw_cuda_graph())) if changing else []
    for launch, row, pointers in changing:
        (node,) = (n.node for n in nodes if n.function == launch.function and n.parameter(len(row)) == row)
        words += (node, launch.function, *launch.dimensions, launch.shared_bytes, *_parameter((row, pointers)))
    return words
