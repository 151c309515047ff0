"""Contenders of bench/linear.py that go forward and backward.

in: a case and its data.  out: contenders, ours and others.
"""

from __future__ import annotations

import time

from bench._linear_data import compiled_layer, plain
from bench.harness import Contender


def forward_and_backward(case, data, with_compile) -> list[Contender]:
    import torch

    from devkernels.linear import FusedLinear
    from devkernels.linear import torch as ours_torch

    contenders: list[Contender] = []

    def add(name, run, check=True, capture=True, **extra):
        keep = {}

        def go():
            keep["gradients"] = run()

        graph = check and capture and not name.endswith((", graphed", ", recorded"))
        errors = (lambda: data.backward_error(keep["gradients"])) if check else None
        contenders.append(Contender(name, go, errors, 1e-2, graph=graph, extra=extra))

    tx = data.tx.detach().requires_grad_()
    tw, tb = data.tw.detach().requires_grad_(), data.tb.detach().requires_grad_()
    layer_of_torch = plain(case["activation"])
    ours_torch.build_extension()
    add("torch eager", lambda: torch.autograd.grad(layer_of_torch(tx, tw, tb), (tx, tw, tb), data.tdy))
    if with_compile:
        compiled, cost = compiled_layer(case, tx, tw, tb)
        add("torch.compile", lambda: torch.autograd.grad(compiled(tx, tw, tb), (tx, tw, tb), data.tdy), plan_us=cost)
    module = ours_torch.FusedLinear(case["in"], case["out"], activation=case["activation"], device="meta")
    module.weight, module.bias = torch.nn.Parameter(tw.detach()), torch.nn.Parameter(tb.detach())
    start = time.perf_counter()
    told = module.autotune(tx, candidates=8 if data.flops > 1e13 else 32)
    costs = {"autotune_ms": (time.perf_counter() - start) * 1e3, "tuned_index": [t["best"] for t in told]}
    layer = FusedLinear(case["in"], 1, activation=case["activation"], dtype="float16", package_name="cupy")
    layer.out_features, layer.weight, layer.bias = case["out"], data.w, data.b

    def ours():
        layer.forward(data.x)
        return layer.backward(data.dy)

    leaves = (tx, module.weight, module.bias)
    step = lambda: torch.autograd.grad(module(tx), leaves, data.tdy)  # noqa: E731
    add("torch module", step, **costs)
    add("autograd alone", _autograd_alone(tx, tw, tb, data.tdy), check=False)
    if case["tokens"] <= 4096:  # graphs of forward and backward, for the one and the other
        # Parameters of their own: what a graph keeps of autograd's would make calls on another stream wait.
        sequence = torch.nn.Sequential(
            torch.nn.Linear(case["in"], case["out"], device="meta"), _Act(case["activation"])
        )
        twin = ours_torch.FusedLinear(case["in"], case["out"], activation=case["activation"], device="meta")
        for one in (sequence[0], twin):
            one.weight, one.bias = torch.nn.Parameter(tw.detach()), torch.nn.Parameter(tb.detach())
        add("torch eager, graphed", _graphed(sequence, tx, (tx, *sequence.parameters()), data.tdy))
        twin.record(tx, copy=False)
        recorded = lambda: torch.autograd.grad(twin(tx), (tx, twin.weight, twin.bias), data.tdy)  # noqa: E731
        add("torch module, recorded", recorded)
        add("torch module, one thread", _in_one_thread(step), capture=False)
        add("torch module, no extension", _without_extension(case, tx, tw, tb, data.tdy), capture=False)
        eager = lambda: torch.autograd.grad(layer_of_torch(tx, tw, tb), (tx, tw, tb), data.tdy)  # noqa: E731
        add("torch eager, one thread", _in_one_thread(eager), capture=False)
        add("torch module, recorded, one thread", _in_one_thread(recorded), capture=False)
    add("layer (CuPy)", ours, **costs)
    return contenders


def _autograd_alone(x, weight, bias, dy):
    """A differentiable function of three tensors that computes nothing: what autograd itself costs the host."""
    import torch

    results = [torch.empty_like(t) for t in (dy, x, weight, bias)]

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            return results[0].detach()

        @staticmethod
        def backward(ctx, dy):
            return tuple(results[1:])

    apply = super(torch.autograd.Function, Nothing).apply  # as devkernels' own: without a look for functorch
    return lambda: torch.autograd.grad(apply(x, weight, bias), (x, weight, bias), dy)


def _in_one_thread(run):
    """The same with the backward pass in the calling thread: autograd else hands it to a thread of the device."""
    import torch

    def go():
        with torch.autograd.set_multithreading_enabled(False):
            return run()

    return go


def _without_extension(case, x, weight, bias, dy):
    """A module that has learned its step before the C++ was there: all of it runs in Python."""
    import torch

    from devkernels.linear import _torch_native
    from devkernels.linear import torch as ours_torch

    module = ours_torch.FusedLinear(case["in"], case["out"], activation=case["activation"], device="meta")
    module.weight, module.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
    step = lambda: torch.autograd.grad(module(x), (x, module.weight, module.bias), dy)  # noqa: E731
    there, _torch_native._loaded[:] = _torch_native._loaded[:], [None]
    for _ in range(4):
        step()
    _torch_native._loaded[:] = there
    return step


def _graphed(module, x, leaves, dy):
    """Forward and backward through torch.cuda.make_graphed_callables.

    Made while the case is set up: it empties torch's cache, and graphs that were captured without torch's knowledge
    would then replay on memory that is no longer theirs.
    """
    import torch

    twin = torch.cuda.make_graphed_callables(module, (x.detach().requires_grad_(),))  # replaces forward
    return lambda: torch.autograd.grad(twin(x), leaves, dy)


def _Act(activation):
    import torch

    return torch.nn.ReLU() if activation == "relu" else torch.nn.GELU("tanh")
