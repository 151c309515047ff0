"""The sixteen epilogs of cuBLASLt, and what each reads and writes.

in: an epilog by name, by nvmath's `MatmulEpilog`, or by its number.  out: `Epilog`, whose properties tell the rest of
the package which inputs it needs and which auxiliary outputs it returns.

The numbers are those of ``cublasLtEpilogue_t``: sums of flags, so that "the same without the bias" is arithmetic.
"""

from __future__ import annotations

import enum
from typing import Literal

from devkernels.errors import ArgumentTypeError, SpecError

_RELU, _BIAS, _DRELU, _BGRAD, _GELU, _DGELU, _AUX, _BGRADA, _BGRADB = 2, 4, 8, 16, 32, 64, 128, 256, 512


class Epilog(enum.IntEnum):
    """What happens to ``alpha * a @ b + beta * c`` before it is stored (row-major: bias runs along columns).

    ``*_AUX*`` also return the mask that the backward epilogs ``DRELU*`` / ``DGELU*`` take; ``*_BGRAD`` also return
    the sum of the result over its rows, shape (n,); ``BGRADA`` the sum of `a` over k, shape (m,); ``BGRADB`` the sum
    of `b` over k, shape (n,). GELU is the tanh approximation, as in cuBLASLt.
    """

    DEFAULT = 1
    RELU = _RELU
    RELU_AUX = _RELU | _AUX
    BIAS = _BIAS
    RELU_BIAS = _RELU | _BIAS
    RELU_AUX_BIAS = _RELU | _AUX | _BIAS
    DRELU = _DRELU | _AUX
    DRELU_BGRAD = _DRELU | _AUX | _BGRAD
    GELU = _GELU
    GELU_AUX = _GELU | _AUX
    GELU_BIAS = _GELU | _BIAS
    GELU_AUX_BIAS = _GELU | _AUX | _BIAS
    DGELU = _DGELU | _AUX
    DGELU_BGRAD = _DGELU | _AUX | _BGRAD
    BGRADA = _BGRADA
    BGRADB = _BGRADB

    @property
    def has_bias(self) -> bool:
        """Whether the epilog reads a bias vector."""
        return bool(self & _BIAS)

    @property
    def activation(self) -> Literal["relu", "gelu"] | None:
        """The activation that is applied to the result (forward epilogs only)."""
        return "relu" if self & _RELU else "gelu" if self & _GELU else None

    @property
    def derivative(self) -> Literal["relu", "gelu"] | None:
        """The activation whose derivative multiplies the result (backward epilogs only)."""
        return "relu" if self & _DRELU else "gelu" if self & _DGELU else None

    @property
    def aux_output(self) -> Literal["relu_aux", "gelu_aux"] | None:
        """Name of the mask that a forward epilog returns."""
        return f"{self.activation}_aux" if self & _AUX and self.activation else None  # type: ignore[return-value]

    @property
    def aux_input(self) -> Literal["relu_aux", "gelu_aux"] | None:
        """Name of the mask that a backward epilog takes."""
        return f"{self.derivative}_aux" if self.derivative else None  # type: ignore[return-value]

    @property
    def gradient_output(self) -> str | None:
        """Name of the bias gradient that the epilog returns, as nvmath names it."""
        return self.name.lower() if self & (_BGRAD | _BGRADA | _BGRADB) else None

    def without_bias(self) -> Epilog:
        """The same epilog without reading a bias."""
        return Epilog((self & ~_BIAS) or 1)

    def swapped(self) -> Epilog:
        """The epilog to ask cuBLASLt for: it computes the transpose, so `a` and `b` change places."""
        return {Epilog.BGRADA: Epilog.BGRADB, Epilog.BGRADB: Epilog.BGRADA}.get(self, self)

    @classmethod
    def parse(cls, value: object) -> Epilog:
        """Accept an Epilog, nvmath's MatmulEpilog, a name in any case, a number, or None for DEFAULT."""
        if value is None:
            return cls.DEFAULT
        if isinstance(value, str):
            try:
                return cls[value.strip().upper()]
            except KeyError:
                raise SpecError(f"epilog={value!r} is unknown; known are {', '.join(cls.__members__)}.") from None
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                return cls(int(value))
            except ValueError:
                raise SpecError(f"epilog={value!r} is no epilog's number; use a name such as 'RELU_BIAS'.") from None
        raise ArgumentTypeError(f"epilog={value!r} is neither a name nor an Epilog.")

    @classmethod
    def of(cls, activation: str | None, *, bias: bool, aux: bool) -> Epilog:
        """The forward epilog for an activation (None, "relu", "gelu"), with or without bias and mask."""
        flags = {None: 0, "relu": _RELU, "gelu": _GELU}.get(activation, -1)
        if flags < 0:
            raise SpecError(f"activation={activation!r} is unknown; possible are None, 'relu' and 'gelu'.")
        if aux and not flags:
            raise SpecError("aux=True asks for the mask of an activation, but activation=None; use 'relu' or 'gelu'.")
        return cls((flags | (_AUX if aux else 0) | (_BIAS if bias else 0)) or 1)


def relu_mask_bytes(columns: int) -> int:
    """Bytes of one row of a ReLU mask: one bit for each column, the row padded to 128 bits."""
    return -(-columns // 128) * 16


def gelu_aux_columns(columns: int) -> int:
    """Elements of one row of a GELU aux matrix: the row padded to a multiple of 8."""
    return -(-columns // 8) * 8
