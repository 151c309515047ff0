"""pytest plugin: CuPy's own tests of fftconvolve, oaconvolve, correlate and convolve, run against devkernels.

in: CuPy's test module, from its source distribution. out: the same tests, in which `cupyx.scipy.signal` offers our
functions through the adapter of SciPy's tests. What we do not offer (three axes, method "direct") goes to CuPy and is
counted.
"""

import json
import os
import pathlib

import cupyx.scipy.signal
import numpy as np

from tests.scipy_adapter import COUNTS, ours, transforms

_NAMES = ("fftconvolve", "oaconvolve", "correlate", "convolve")
_THEIRS = {name: getattr(cupyx.scipy.signal, name) for name in _NAMES}


def _adapt(name):
    def function(in1, in2, mode="full", method="auto", axes=None):
        transform = name in ("fftconvolve", "oaconvolve") or method == "fft"
        # scipy.signal.convolve is a correlation with the second operand turned: its results have the operands' dtype
        if name == "convolve" and in2.ndim:
            second, which = in2[(slice(None, None, -1),) * in2.ndim].conj(), "correlate"
        else:
            second, which = in2, name
        call = ours(which, in1, second, mode, axes) if transform else None
        if call is None:
            COUNTS["scipy"] += 1
            options = {"axes": axes} if name in ("fftconvolve", "oaconvolve") else {"method": method}
            return _THEIRS[name](in1, in2, mode, **options)
        out = call()
        # SciPy's transforms of half precision give single; ours keep it in memory and compute in single
        wide = out.dtype == np.float16 and which != "correlate" and transforms(in1, in2, axes)
        return out.astype(np.float32) if wide else out

    return function


def pytest_configure(config):
    for name in _NAMES:
        setattr(cupyx.scipy.signal, name, _adapt(name))


def pytest_sessionfinish():
    pathlib.Path(f"adapter-calls-{os.getpid()}.json").write_text(json.dumps(COUNTS))  # of this process, one of several
