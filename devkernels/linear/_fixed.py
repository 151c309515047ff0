"""A planned product on operands that stay where they are: the least that a call through the bindings can do.

in: an `LtMatmul`, pointers of its operands.  out: ``call(out, stream)``. A descriptor of its own holds the bias, and
nothing is compared, written or locked any more. It costs some microseconds once; worth it from the second call on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from devkernels.errors import ResourceError
from devkernels.linear import _workspace
from devkernels.linear._cublaslt import LtMatmul


def fixed(lt: LtMatmul, a: int, b: int, c: int, bias: int) -> Callable[[int, int], None]:
    """Build ``call(out, stream)`` for a product without mask or gradient, with the algorithm that is chosen now."""
    library = _workspace.bindings()
    owned = lt.another_descriptor(bias)
    matmul, error_kind, handle, spec, descriptor = (
        library.matmul, library.cuBLASLtError, lt._handle, lt.spec, owned.descriptor
    )  # fmt: skip
    alpha, beta, algorithm = (ctypes.addressof(x) for x in (lt._alpha, lt._beta, lt._algorithm))
    a_layout, b_layout, c_layout, d_layout = lt._a, lt._b, lt._c, lt._d
    arrays, device, size = lt.arrays, lt.device, _workspace.WORKSPACE_BYTES if lt.workspace_bytes else 0
    spaces = _workspace.spaces(arrays, device)
    keep = (owned, lt._owned, lt._algorithm, lt._alpha, lt._beta)

    def call(out, stream):
        space, memory = 0, keep
        if size:
            space = spaces.get(stream)
            if space is None:
                space, memory = _workspace.reserve(arrays, device, stream)
        try:
            matmul(handle, descriptor, alpha, b, b_layout, a, a_layout, beta, c, c_layout, out, d_layout, algorithm,
                   space, size, stream)  # fmt: skip
        except error_kind as error:
            raise ResourceError(f"cuBLASLt failed at {spec}: {error}", spec=spec) from error
        del memory

    return call
