"""Linear layers on the host: bias, activation, mask and bias gradient inside the matrix product.

in: arrays of NumPy, CuPy or torch.  out: `fused_matmul` (one call), `FusedMatmul` (planned once, all sixteen epilogs),
`FusedLinear` and `FusedMLP` (layers with forward and backward), and the torch modules in `devkernels.linear.torch`.

Importing this imports no NumPy, CuPy, torch or nvmath; they are touched when arrays of theirs come in.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_PUBLIC = {
    "Epilog": "devkernels.linear.epilog",
    "FusedLinear": "devkernels.linear.layer",
    "FusedMLP": "devkernels.linear.mlp",
    "FusedMatmul": "devkernels.linear.stateful",
    "GeluAux": "devkernels.linear.masks",
    "Layout": "devkernels.linear.spec",
    "MatmulSpec": "devkernels.linear.spec",
    "ReluMask": "devkernels.linear.masks",
    "clear_plans": "devkernels.linear.plan",
    "fused_matmul": "devkernels.linear.matmul",
    "plan_cache_info": "devkernels.linear.plan",
}

__all__ = [
    "Epilog",
    "FusedLinear",
    "FusedMLP",
    "FusedMatmul",
    "GeluAux",
    "Layout",
    "MatmulSpec",
    "ReluMask",
    "clear_plans",
    "fused_matmul",
    "plan_cache_info",
]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'devkernels.linear' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


if TYPE_CHECKING:
    from devkernels.linear.epilog import Epilog
    from devkernels.linear.layer import FusedLinear
    from devkernels.linear.masks import GeluAux, ReluMask
    from devkernels.linear.matmul import fused_matmul
    from devkernels.linear.mlp import FusedMLP
    from devkernels.linear.plan import clear_plans, plan_cache_info
    from devkernels.linear.spec import Layout, MatmulSpec
    from devkernels.linear.stateful import FusedMatmul
