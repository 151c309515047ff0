"""Whether a layer's backward pass takes `_weight_gradient`: the pass through the activation inside the weight gradient.

in: shapes.  out: the kernel, or None: a pass over the gradient and a product of cuBLASLt then do the same. Which is
faster depends on the shape; `autotune` of a layer measures both and stores the answer on disk. Unmeasured, it is two.
"""

from __future__ import annotations

from devkernels.linear import _cuda, _weight_gradient
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
    about = device, dtype, tokens, n, k
    return _cuda.prepared(
        _prepared,
        (arrays.name, *about, kind, kept_ld),
        lambda: _weight_gradient.possible(arrays, *about),
        lambda: _weight_gradient.WeightGradient(arrays, *about, kept_ld, kind),
    )


def remember(arrays: Arrays, device: int, dtype: str, tokens: int, n: int, k: int, kind: str, joined: bool) -> None:
    """Store what was measured."""
    answers.put(joined, arrays, device, dtype, tokens, n, k, KINDS[kind])
