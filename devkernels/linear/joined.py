"""Whether a layer's backward pass takes `_weight_gradient`: the pass through the activation inside the weight gradient.

in: shapes.  out: the kernel, or None: a pass over the gradient and a product of cuBLASLt then do the same. Which is
faster depends on the shape; `autotune` of a layer measures both and stores the answer on disk. Unmeasured, it is two.
"""

from __future__ import annotations

from devkernels import cache
from devkernels.errors import CompileError, JitDisabledError
from devkernels.linear import _weight_gradient, _workspace
from devkernels.linear._kernels import KINDS
from devkernels.linear.arrays import CPU, Arrays
from devkernels.linear.bounded import Bounded

_KIND = "autotune"
_answers: Bounded = Bounded(512)  # shape, dtype, device, what was kept -> bool
_prepared: Bounded = Bounded(128)


def _digest(arrays: Arrays, device: int, dtype: str, tokens: int, n: int, k: int, kind: int) -> str:
    about = arrays.device_name(device), _workspace.library_version()
    return cache.digest("joined weight gradient", tokens, n, k, dtype, kind, *about)


def chosen(arrays: Arrays, device: int, dtype: str, tokens: int, n: int, k: int, kind: str,
           kept_ld: int) -> _weight_gradient.WeightGradient | None:  # fmt: skip
    """Return the kernel for a layer with n outputs and k inputs where it was found to be faster.

    `kind` and `kept_ld` as for `activations.on_device`.
    """
    if device == CPU or dtype not in _weight_gradient.DTYPES:
        return None
    key = (tokens, n, k, dtype, device, KINDS[kind])
    answer = _answers.get(key)
    if answer is None:
        stored = cache.get(_KIND, _digest(arrays, device, dtype, tokens, n, k, KINDS[kind]))
        answer = _answers.keep(key, stored == b"joined")
    return kernel_for(arrays, device, dtype, tokens, n, k, kind, kept_ld) if answer else None


def kernel_for(arrays: Arrays, device: int, dtype: str, tokens: int, n: int, k: int, kind: str,
               kept_ld: int) -> _weight_gradient.WeightGradient | None:  # fmt: skip
    """Return the kernel for a layer, or None where there is none."""
    key = (arrays.name, device, dtype, tokens, n, k, kind, kept_ld)
    found = _prepared.get(key)
    if found is None and _weight_gradient.possible(arrays, device, dtype, tokens, n, k):
        try:
            found = _weight_gradient.WeightGradient(arrays, device, dtype, tokens, n, k, kept_ld, kind)
        except (JitDisabledError, CompileError):  # DEVKERNELS_DISABLE_JIT; an NVRTC that knows no sm_90a
            return None
        _prepared.keep(key, found)
    return found


def remember(arrays: Arrays, device: int, dtype: str, tokens: int, n: int, k: int, kind: str, joined: bool) -> None:
    """Store what was measured."""
    _answers.keep((tokens, n, k, dtype, device, KINDS[kind]), joined)
    digest = _digest(arrays, device, dtype, tokens, n, k, KINDS[kind])
    cache.put(_KIND, digest, b"joined" if joined else b"apart")
