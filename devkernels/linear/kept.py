"""What a layer with ReLU keeps for its backward pass: its result, or a mask of one bit for each element.

in: shapes.  out: whether to keep the mask. The result is there anyway, and forward kernels that also write a mask are
slower; the backward pass then reads a sixteenth (float16) of what it reads else. Which is less in all depends on the
shape: `autotune` of a layer measures both and stores the answer on disk. Unmeasured, the result is kept.
"""

from __future__ import annotations

from devkernels import cache
from devkernels.linear import _workspace
from devkernels.linear.arrays import CPU, Arrays
from devkernels.linear.bounded import Bounded

_KIND = "autotune"
_answers: Bounded = Bounded(512)  # (tokens, n, k, dtype, device) -> bool


def _digest(arrays: Arrays, tokens: int, n: int, k: int, dtype: str, device: int) -> str:
    return cache.digest("relu keeps", tokens, n, k, dtype, arrays.device_name(device), _workspace.library_version())


def mask_for(arrays: Arrays, tokens: int, n: int, k: int, dtype: str, device: int) -> bool:
    """Whether the mask is to be kept."""
    if device == CPU:
        return False
    key = (tokens, n, k, dtype, device)
    answer = _answers.get(key)
    if answer is None:
        stored = cache.get(_KIND, _digest(arrays, tokens, n, k, dtype, device))
        answer = _answers.keep(key, stored == b"mask")
    return answer


def remember(arrays: Arrays, tokens: int, n: int, k: int, dtype: str, device: int, mask: bool) -> None:
    """Store what was measured."""
    _answers.keep((tokens, n, k, dtype, device), mask)
    cache.put(_KIND, _digest(arrays, tokens, n, k, dtype, device), b"mask" if mask else b"result")
