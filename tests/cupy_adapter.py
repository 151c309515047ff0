"""pytest plugin: CuPy's own tests of fftconvolve, oaconvolve, correlate and convolve, run against devkernels.

in: CuPy's test module, from its source distribution. out: the same tests, in which `cupyx.scipy.signal` offers our
functions through the adapter of SciPy's tests. What we do not offer (three axes, method "direct") goes to CuPy and is
counted.
"""

import json
import os
import pathlib

import cupy
import cupyx.scipy.signal
import numpy as np

from tests.scipy_adapter import COUNTS, prepared, run

_NAMES = ("fftconvolve", "oaconvolve", "correlate", "convolve")
_THEIRS = {name: getattr(cupyx.scipy.signal, name) for name in _NAMES}


def _adapt(name):
    def function(in1, in2, mode="full", method="auto", axes=None):
        transform = name in ("fftconvolve", "oaconvolve") or method == "fft"
        ours = "fftconvolve" if name == "convolve" else name
        ready = prepared(ours, in1, in2, mode, axes) if transform else None
        if ready is None:
            COUNTS["scipy"] += 1
            options = {"axes": axes} if name in ("fftconvolve", "oaconvolve") else {"method": method}
            return _THEIRS[name](in1, in2, mode, **options)
        a, b, count, back = ready
        if a.dtype == np.float16:  # SciPy gives float32 then
            a, b = a.astype(np.float32), b.astype(np.float32)
        out = run(ours, mode, (a, b, count, back))
        given = np.result_type(in1.dtype, in2.dtype)
        if name in ("correlate", "convolve") and given.kind in "iu":
            out = cupy.around(out)
        return out.astype(given) if name in ("correlate", "convolve") else out

    return function


def pytest_configure(config):
    for name in _NAMES:
        setattr(cupyx.scipy.signal, name, _adapt(name))


def pytest_sessionfinish():
    pathlib.Path(f"adapter-calls-{os.getpid()}.json").write_text(json.dumps(COUNTS))  # of this process, one of several
