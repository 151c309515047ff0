"""What the extension for torch (`_torch_native`) is told of a layer: launches, their pointers, and how tensors look.

in: a planned forward product and backward pass (`_torch_run`).  out: a plan in C++, or None where there can be none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
from torch import Tensor

from devkernels.linear import _cuda, _torch_native, _workspace
from devkernels.linear import _torch_run as raw
from devkernels.linear._cublaslt import LtMatmul
from devkernels.linear._tensor_map import Map

# Pointers of a call, in the order of native/launches.h.
_SLOTS = {name: i for i, name in enumerate(
    ("x", "weight", "bias", "y", "kept", "dy", "dz", "dx", "dw", "db", "work", "counters"))}  # fmt: skip
_NO_SLOT = 255
_PRODUCT, _KERNEL = 0, 1
_POINTER, _NUMBER, _MAP = 0, 1, 2
_NOTHING, _RESULT, _OWN = 0, 1, 2
_ALIGNMENT = 256  # of all pointers: the algorithms are chosen for such
_INPUT, _WEIGHT, _BIAS = 1, 2, 4  # gradients by which a launch is needed


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
        self.owners += [own, lt]
        handles = (lt._handle, own.descriptor, ctypes.addressof(lt._alpha), ctypes.addressof(lt._beta), lt._a, lt._b,
                   lt._c, lt._d, ctypes.addressof(lt._algorithm))  # fmt: skip
        self.owners.append(lt._algorithm)  # `use` may put another in its place
        size = _workspace.WORKSPACE_BYTES if lt.workspace_bytes else 0
        slots = (_NO_SLOT if name is None else _SLOTS[name] for name in (a, b, out, side, aux))
        return [_PRODUCT, *_torch_native.functions(), *handles, size, *slots]

    def kernel(self, planned) -> list[int]:
        """Describe a kernel of ours: an object with `laid_out` and the launch itself."""
        launch = planned._launch
        self.owners.append(planned)
        address = ctypes.cast(_cuda.library().cuLaunchKernelEx, ctypes.c_void_p).value
        words = [_KERNEL, address, launch.function, *launch.dimensions, launch.shared_bytes, len(planned.laid_out)]
        for one in planned.laid_out:
            words += _parameter(one)
        return words


def _parameter(one: str | int | tuple[Map, str]) -> Iterable[int]:
    if isinstance(one, str):
        return _POINTER, _SLOTS[one]
    if isinstance(one, int):
        return _NUMBER, one
    described, name = one
    return _MAP, _SLOTS[name], *described.words()


def _backward(program: Program, step: raw._Step) -> None:
    """As `_Step.__call__`."""
    if step.joined is not None:
        program.launches(
            (_INPUT | _WEIGHT | _BIAS, program.kernel(step.joined)),
            (_INPUT, program.product(step.input, "dz", "weight", "dx")),
        )
    elif step.through is not None:
        program.launches(
            (_INPUT | _WEIGHT | _BIAS, program.kernel(step.through)),
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
        program.launches((7, program.product(lt, "x", "weight", "y", side, None if aux is None else "kept")))
    else:
        program.launches((7, program.kernel(lt)))
    _backward(program, step)
    dz = None if step.through is None else step.new_dz()
    examples = x, weight, bias, y, aux, y, dz, step.new_dx(), step.new_dw(), _made(step.new_db)
    with torch.no_grad():
        like = tuple(None if t is None else t.detach() for t in examples)

    def longer(dy: Tensor, x: Tensor, weight: Tensor, kept: Tensor | None, needs: tuple[int, int, int]):
        return raw.backward(dy, x, weight, kept, activation, tuple(map(bool, needs)))

    return native.Plan(tuple(program.words), like, tuple(program.owners), longer).forward
