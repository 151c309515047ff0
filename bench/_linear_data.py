"""What the contenders of bench/linear.py share: operands of a case, references, torch's own layer.

in: a case.  out: data on the GPU with its float64 reference, functions of torch.
"""

from __future__ import annotations

import time


def torch_activation(activation):
    import torch

    return torch.relu if activation == "relu" else lambda z: torch.nn.functional.gelu(z, approximate="tanh")


def plain(activation):
    import torch

    act = torch_activation(activation)
    return lambda x, w, b: act(torch.nn.functional.linear(x, w, b))


def compiled_layer(case, *operands):
    """One compiled function for each case (none for dynamic shapes), and what its first call cost."""
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(plain(case["activation"]), dynamic=False)
    start = time.perf_counter()
    compiled(*operands)
    return compiled, (time.perf_counter() - start) * 1e6


class Data:
    """Operands of a case, shared by CuPy and torch, and the float64 reference on some rows."""

    def __init__(self, case, rows=64):
        import cupy as cp
        import numpy as np
        import torch

        m, n, k = case["tokens"], case["out"], case["in"]
        self.activation = case["activation"]
        random = cp.random.default_rng(7)
        draw = lambda *shape: random.standard_normal(shape, dtype="float32").astype("float16")  # noqa: E731
        self.x, self.w, self.b = draw(m, k), draw(n, k) / cp.float16(k**0.5), draw(n)
        self.dy = draw(m, n) if "backward" in case["work"] else None
        share = lambda a: None if a is None else torch.as_tensor(a, device="cuda")  # noqa: E731
        self.tx, self.tw, self.tb, self.tdy = (share(a) for a in (self.x, self.w, self.b, self.dy))
        self.rows = cp.asarray(np.unique(np.linspace(0, m - 1, rows).astype(int)))
        wide = self.w.astype("float64")
        self.columns = cp.asarray(np.unique(np.linspace(0, n - 1, 16).astype(int)))
        z = self.x[self.rows].astype("float64") @ wide.T + self.b.astype("float64")
        self.y, slope = self._activated(z)
        if self.dy is not None:
            self.dx = (self.dy[self.rows].astype("float64") * slope) @ wide
            whole = self.x.astype("float64")
            z = whole @ wide[self.columns].T + self.b[self.columns].astype("float64")
            dz = self.dy[:, self.columns].astype("float64") * self._activated(z)[1]
            self.dw, self.db = dz.T @ whole, dz.sum(0)
        self.flops = 2.0 * m * n * k
        self.moved = 2 * (m * k + n * k + m * n + n)

    def _activated(self, z):
        """Activation of z and its slope."""
        import cupy as cp

        if self.activation == "relu":
            return cp.maximum(z, 0), (z > 0).astype("float64")
        s = (2 / 3.141592653589793) ** 0.5
        t = cp.tanh(s * (z + 0.044715 * z**3))
        return 0.5 * z * (1 + t), 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * s * (1 + 3 * 0.044715 * z * z)

    def error(self, result, want, chosen):
        """Relative error of the chosen rows of a result."""
        import cupy as cp

        got = cp.asarray(result)[chosen].astype("float64")
        return float(cp.linalg.norm(got - want) / cp.linalg.norm(want))

    def forward_error(self, y):
        return self.error(y, self.y, self.rows)

    def backward_error(self, gradients):
        """The largest of the errors of input, weight and bias gradients."""
        dx, dw, db = gradients
        return max(self.error(dx, self.dx, self.rows), self.error(dw, self.dw, self.columns),
                   self.error(db, self.db, self.columns))  # fmt: skip
