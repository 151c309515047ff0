"""What a layer keeps of its activation for the backward pass.

in: shapes.  out: for ReLU whether to keep a mask; for GELU the kernel that keeps the slope, or None.

ReLU: its result is there anyway, and forward kernels that also write a mask of one bit for each element are slower; the
backward pass then reads a sixteenth (float16) of what it reads else. GELU: its input, which cuBLASLt writes, or its
slope, which a kernel of ours writes and the backward pass has but to multiply. Which is less in all depends on the
shape: `autotune` of a layer measures both and stores the answer on disk. Unmeasured, ReLU's result and GELU's input are
kept.
"""

from __future__ import annotations

from devkernels.linear import _cuda, _gelu_forward
from devkernels.linear.answers import Answers
from devkernels.linear.arrays import Arrays
from devkernels.linear.bounded import Bounded

masks = Answers("relu keeps its mask")
slopes = Answers("gelu keeps its slope")
_prepared: Bounded = Bounded(128)


def mask_for(arrays: Arrays, tokens: int, n: int, k: int, dtype: str, device: int) -> bool:
    """Whether a layer with ReLU is to keep the mask."""
    return masks.of(arrays, device, dtype, tokens, n, k)


def remember(arrays: Arrays, tokens: int, n: int, k: int, dtype: str, device: int, mask: bool) -> None:
    """Store what was measured of ReLU."""
    masks.put(mask, arrays, device, dtype, tokens, n, k)


def slope_for(arrays: Arrays, tokens: int, n: int, k: int, dtype: str,
              device: int) -> _gelu_forward.GeluForward | None:  # fmt: skip
    """Return the kernel of the forward product that keeps GELU's slope, where it was found to be faster."""
    wanted = dtype in _gelu_forward.DTYPES and slopes.of(arrays, device, dtype, tokens, n, k)
    return slope_kernel(arrays, tokens, n, k, dtype, device) if wanted else None


def slope_kernel(arrays: Arrays, tokens: int, n: int, k: int, dtype: str,
                 device: int) -> _gelu_forward.GeluForward | None:  # fmt: skip
    """Return that kernel, or None where there is none."""
    about = device, dtype, tokens, n, k
    return _cuda.prepared(
        _prepared,
        (arrays.name, *about),
        lambda: _gelu_forward.possible(arrays, *about),
        lambda: _gelu_forward.GeluForward(arrays, *about),
    )


def remember_slope(arrays: Arrays, tokens: int, n: int, k: int, dtype: str, device: int, slope: bool) -> None:
    """Store what was measured of GELU."""
    slopes.put(slope, arrays, device, dtype, tokens, n, k)
