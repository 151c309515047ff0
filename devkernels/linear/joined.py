"""Whether a layer's backward pass takes `_weight_gradient`: the pass through the activation inside the weight gradient.

in: shapes.  out: the kernel, or None: a pass over the gradient and a product of cuBLASLt then do the same. Which is
faster depends on the shape; `autotune` of a layer measures both and stores the answer on disk. Unmeasured, it is two.
"""

from __future__ import annotations

from devkernels.errors import CompileError, JitDisabledError
from devkernels.linear import _weight_gradient
from devkernels.linear._kernels import KINDS
from devkernels.linear.answers import Answers
from devkernels.linear.arrays import Arrays
from devkernels.linear.bounded import Bounded

answers = Answers("joined weight gradient")
_prepared: Bounded = Bounded(128)


def chosen(arrays: Arrays, device: int, dtype: str, tokens: int, n: int, k: int, kind: str,
           kept_ld: int) -> _weight_gradient.WeightGradient | None:  # fmt: skip
    """Return the kernel for a layer with n outputs and k inputs where it was found to be faster.

    `kind` and `kept_ld` as for `activations.on_device`.
    """
    wanted = dtype in _weight_gradient.DTYPES and answers.of(arrays, device, dtype, tokens, n, k, KINDS[kind])
    return kernel_for(arrays, device, dtype, tokens, n, k, kind, kept_ld) if wanted else None


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
    answers.put(joined, arrays, device, dtype, tokens, n, k, KINDS[kind])
