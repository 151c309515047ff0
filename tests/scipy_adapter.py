"""pytest plugin: SciPy's own tests of fftconvolve, oaconvolve and correlate, run against devkernels.

in: SciPy's installed test module. out: the same tests, whose functions are replaced by ours through an adapter that
only says which axes are meant where none are given. What we do not offer (three axes and more, objects, longdouble)
goes to SciPy and is counted.
"""

import functools
import json
import os
import pathlib
import sys

import numpy as np
from scipy import signal

COUNTS = {"devkernels": 0, "scipy": 0}
_DTYPES = ("float16", "float32", "float64", "complex64", "complex128")
_NAMES = {"fftconvolve": signal.fftconvolve, "oaconvolve": signal.oaconvolve, "correlate": signal.correlate}


def calls(folder):
    """(calls of ours, calls of theirs) that a run in this folder has counted."""
    counts = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("adapter-calls-*.json")]
    return tuple(sum(count[whose] for count in counts) for whose in ("devkernels", "scipy"))


def ours(name, in1, in2, mode, axes):
    """Our function for these arguments, or None where SciPy has to do it: three axes and more, objects, longdouble.

    Ours take the last axis by default, SciPy's all of them. Along an axis where one operand has a single sample SciPy
    repeats instead of convolving, which is the same but for mode "valid", where it leaves out a check of shapes.
    """
    xp = sys.modules.get("cupy")
    xp = xp if xp is not None and isinstance(in1, xp.ndarray) else np
    a, b = xp.asarray(in1), xp.asarray(in2)
    dtype = np.result_type(a.dtype, b.dtype)
    if mode not in ("full", "same", "valid") or dtype.name in ("longdouble", "clongdouble", "object"):
        return None
    if dtype.name not in _DTYPES and dtype.kind not in "iub":
        return None
    if a.ndim == b.ndim == 0:
        return functools.partial(_counted, name, in1, in2)
    if a.ndim != b.ndim or 0 in (a.size, b.size):  # broadcast, or no empty array of SciPy's shape
        return None
    axes = tuple(range(a.ndim)) if axes is None else axes
    if dtype.kind in "iub" and not transforms(a, b, axes):  # SciPy multiplies integers then; ours are float64
        return None
    chosen = sorted({int(axis) % a.ndim for axis in np.atleast_1d(np.asarray(axes, dtype=int))})
    kept = [x for x in chosen if 1 not in (a.shape[x], b.shape[x])]
    if name != "correlate" and mode == "full" and kept and len(kept) < len(chosen) <= 3:
        axes = chosen = kept  # the others are repeated, which is the same
    if len(chosen) not in (1, 2):
        return None
    rest = [x for x in range(a.ndim) if x not in chosen]
    if mode == "same" and any(a.shape[x] < b.shape[x] for x in rest):  # SciPy keeps in1's rows only
        return None
    if mode == "valid" and kept != list(chosen) and len(chosen) > 1:
        return None
    return functools.partial(_counted, name, in1, in2, mode, axes=axes)


def transforms(a, b, axes):
    """Whether SciPy transforms anything: not along axes where one operand has a single sample."""
    axes = range(a.ndim) if axes is None else np.atleast_1d(np.asarray(axes, dtype=int))
    return any(1 not in (a.shape[x], b.shape[x]) for x in axes)


def _counted(name, *args, **options):
    import devkernels

    COUNTS["devkernels"] += 1
    return getattr(devkernels, name)(*args, **options)


def _adapt(name):
    theirs = _NAMES[name]

    def function(in1, in2, mode="full", *args, axes=None, method="auto"):
        call = (
            None
            if args or (name == "correlate" and method not in ("auto", "fft"))
            else ours(name, in1, in2, mode, axes)
        )
        if call is not None:
            return call()
        COUNTS["scipy"] += 1
        options = {"axes": axes} if axes is not None else {"method": method} if name == "correlate" else {}
        return theirs(in1, in2, mode, *args, **options)

    return function


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items if item.module.__name__.endswith("test_signaltools")}:
        for name in _NAMES:
            setattr(module, name, _adapt(name))


def pytest_sessionfinish():
    pathlib.Path(f"adapter-calls-{os.getpid()}.json").write_text(json.dumps(COUNTS))  # of this process, one of several
