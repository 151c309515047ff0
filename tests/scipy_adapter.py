"""pytest plugin: SciPy's own tests of fftconvolve, oaconvolve and correlate, run against devkernels.

in: SciPy's installed test module. out: the same tests, whose functions are replaced by ours through an adapter that
only does what our functions leave to the caller: dtypes, axes to the end, repetition of operands along the batch.
What we do not offer (three axes and more, objects, longdouble) goes to SciPy and is counted.
"""

import json
import os
import pathlib
import sys

import numpy as np
from scipy import signal

COUNTS = {"devkernels": 0, "scipy": 0}
_NAMES = {"fftconvolve": signal.fftconvolve, "oaconvolve": signal.oaconvolve, "correlate": signal.correlate}


def calls(folder):
    """(calls of ours, calls of theirs) that a run in this folder has counted."""
    counts = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("adapter-calls-*.json")]
    return tuple(sum(count[whose] for count in counts) for whose in ("devkernels", "scipy"))


def module_of(array):
    """CuPy for its arrays, NumPy for all else."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else np


def prepared(name, in1, in2, mode, axes):
    """Operands as we want them, and how to put the axes back; None where SciPy has to do it."""
    xp = module_of(in1)
    a, b = xp.asarray(in1), xp.asarray(in2)
    if a.ndim == 0 or a.ndim != b.ndim or a.size == 0 or b.size == 0 or mode not in ("full", "same", "valid"):
        return None
    dtype = np.result_type(a.dtype, b.dtype)
    if dtype.kind in "iub" and a.size == b.size == 1:  # a product of integers, no transform
        return None
    if dtype.kind in "iub":
        dtype = np.dtype(np.float64)
    if dtype.name not in ("float16", "float32", "float64", "complex64", "complex128"):
        return None
    axes = range(a.ndim) if axes is None else np.atleast_1d(np.asarray(axes, dtype=int))
    axes = sorted({int(axis) % a.ndim for axis in axes})
    rest = [axis for axis in range(a.ndim) if axis not in axes]
    if name != "correlate":  # axes where one operand has a single sample are broadcast, not convolved
        alone = [x for x in axes if 1 in (a.shape[x], b.shape[x]) and (mode != "valid" or a.shape[x] >= b.shape[x])]
        kept = [x for x in axes if x not in alone]
        if mode == "full" and len(kept) < len(axes) and kept:
            rest, axes = sorted(rest + alone), kept
    if len(axes) not in (1, 2):
        return None
    larger = [a.shape[x] >= b.shape[x] for x in axes]
    if mode == "valid" and not (all(larger) or not any(larger)):
        return None
    order = [*rest, *axes]
    a, b = (xp.transpose(v, order).astype(dtype) for v in (a, b))
    try:
        batch = np.broadcast_shapes(a.shape[: len(rest)], b.shape[: len(rest)])
    except ValueError:
        return None
    if len(axes) == 2:
        a = xp.ascontiguousarray(xp.broadcast_to(a, (*batch, *a.shape[-2:])))
        b = xp.ascontiguousarray(xp.broadcast_to(b, (*batch, *b.shape[-2:])))
    return a, b, len(axes), [int(place) for place in np.argsort(order)]


def run(name, mode, ready):
    """Our function on prepared operands."""
    import devkernels

    a, b, count, back = ready
    COUNTS["devkernels"] += 1
    xp = module_of(a)
    if count == 2:
        b = xp.ascontiguousarray(b[..., ::-1, ::-1].conj()) if name == "correlate" else b
        out = devkernels.fftconvolve(a, b, mode, axes=(-2, -1))
    else:
        out = getattr(devkernels, name)(a, b, mode)
    return xp.transpose(out, back)


def _adapt(name):
    theirs = _NAMES[name]

    def function(in1, in2, mode="full", *args, axes=None, method="auto"):
        ready = None if args else prepared(name, in1, in2, mode, axes)
        if ready is None or (
            name == "correlate" and (np.asarray(in1).dtype.kind in "iub" or method not in ("auto", "fft"))
        ):
            COUNTS["scipy"] += 1
            options = {"axes": axes} if axes is not None else {"method": method} if name == "correlate" else {}
            return theirs(in1, in2, mode, *args, **options)
        return run(name, mode, ready)

    return function


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items if item.module.__name__.endswith("test_signaltools")}:
        for name in _NAMES:
            setattr(module, name, _adapt(name))


def pytest_sessionfinish():
    pathlib.Path(f"adapter-calls-{os.getpid()}.json").write_text(json.dumps(COUNTS))  # of this process, one of several
