"""Whether tensors look as others did: one check in C++, for calls that repeat.

in: tensors.  out: a function that takes as many tensors. The check is what torch.compile's guards use
(``TensorGuards``: type, dispatch keys, dtype, device, sizes and strides of several tensors at once).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_guards = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
AVAILABLE = _guards is not None
"""Whether this torch has the check; without it, calls take the longer way."""


def look_of(*tensors: Tensor) -> Callable[..., bool]:
    """Return the check for tensors that look like these; where `AVAILABLE`."""
    return _guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
