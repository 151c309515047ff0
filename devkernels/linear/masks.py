"""Masks: what a forward epilog with ``AUX`` leaves for the backward one, as objects that know what they belong to.

in: the raw buffer that cuBLASLt (or the NumPy meaning of it) has written.  out: `ReluMask`, `GeluAux`. They check that
they fit the backward product they are given to, and that they are alive and hold what was written first. `GeluSlope` is
what a kernel of ours leaves instead, for passes over a gradient.

Memory: a ReLU mask has one bit for each element (set where the input of ReLU is not below zero), least significant
first, each row padded to 128 bits; a GELU aux matrix holds the input of the activation, each row padded to 8 elements.
"""

from __future__ import annotations

from devkernels.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from devkernels.linear import elementwise
from devkernels.linear.arrays import Arrays
from devkernels.linear.epilog import gelu_aux_columns, relu_mask_bytes


class Lifetime:
    """Says whether the object that made a mask still lives; one for each `FusedMatmul` or layer."""

    __slots__ = ("ended",)

    def __init__(self):
        self.ended: str | None = None


class _Buffer:
    """Memory of a mask; `generation` counts how often it has been written."""

    __slots__ = ("data", "generation")

    def __init__(self, data: object):
        self.data = data
        self.generation = 0


class Mask:
    """Base of `ReluMask` and `GeluAux`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the forward result that the mask belongs to, (…, m, n).
    dtype : str
        Dtype of that result.
    device : int
        Device number; -1 is the CPU.
    """

    kind = ""
    __slots__ = ("_buffer", "_dead", "_generation", "_lifetime", "_packed", "_version", "arrays", "device", "dtype",
                 "shape")  # fmt: skip

    def __init__(self, buffer: _Buffer, shape, dtype: str, device: int, arrays: Arrays, lifetime: Lifetime):
        self._buffer = buffer
        self._generation = buffer.generation
        self._lifetime = lifetime
        self._dead: str | None = None
        self._version = getattr(buffer.data, "_version", None)  # torch counts writes to a tensor
        self.arrays = arrays
        self.shape = tuple(shape)
        self.dtype = dtype
        self.device = device

    @classmethod
    def buffer_shape(cls, shape) -> tuple[int, ...]:
        """Shape of the raw buffer for a result of `shape`."""
        raise NotImplementedError

    @classmethod
    def buffer_dtype(cls, dtype: str) -> str:
        """Dtype of the raw buffer."""
        raise NotImplementedError

    @classmethod
    def around(cls, data, shape, dtype, device, arrays, lifetime) -> Mask:
        """Make a mask of an uninitialised buffer."""
        return cls(_Buffer(data), shape, dtype, device, arrays, lifetime)

    def reissue(self, shape, dtype: str, device: int, arrays: Arrays, lifetime: Lifetime) -> Mask:
        """Reuse the buffer for another forward result; this mask is void from now on."""
        self._check_alive("written again")
        if (tuple(shape), dtype, device, arrays) != (self.shape, self.dtype, self.device, self.arrays):
            raise ArgumentError(
                f"aux={self!r} cannot be written again for a {dtype} result of shape {tuple(shape)}, device {device}."
            )
        self._buffer.generation += 1
        return type(self)(self._buffer, shape, dtype, device, arrays, lifetime)

    def _check_alive(self, verb: str = "used") -> None:
        if self._dead:
            raise ArgumentError(f"{self!r} cannot be {verb}: {self._dead}.")
        if self._lifetime.ended:
            raise ArgumentError(f"{self!r} cannot be {verb}: {self._lifetime.ended}.")
        if self._generation != self._buffer.generation:
            raise ArgumentError(f"{self!r} cannot be {verb}: a later forward product has overwritten its memory.")
        if self._version is not None and self._version != self._buffer.data._version:
            raise ArgumentError(f"{self!r} cannot be {verb}: its memory was modified after the forward product.")

    def data_for(self, kind: str, shape, dtype: str, device: int, arrays: Arrays):
        """Return the raw buffer for a backward product, or say why this mask is not the one for it.

        Raises
        ------
        ArgumentError
            Wrong kind or shape, freed, or overwritten.
        DeviceMismatchError
            The product runs on another device or in another package.
        """
        if self.kind != kind:
            raise ArgumentTypeError(f"{self!r} is a {self.kind}, but the epilog takes a {kind}.")
        self._check_alive()
        if self.arrays is not arrays or self.device != device:
            raise DeviceMismatchError(
                f"{self!r} lies on {self.arrays.name} device {self.device}, but the product runs on {arrays.name} "
                f"device {device}."
            )
        if self.shape != tuple(shape):
            raise ArgumentError(f"{self!r} belongs to a result of shape {self.shape}, not {tuple(shape)}.")
        if self.dtype != dtype:
            raise ArgumentError(f"{self!r} belongs to a {self.dtype} result, but the product is {dtype}.")
        return self._buffer.data

    def raw_data(self):
        """Return the raw buffer itself, if the mask is alive."""
        self._check_alive()
        return self._buffer.data

    def written(self) -> None:
        """Note that the forward product has filled the buffer; NumPy's is locked from now on."""
        if self.arrays.name == "numpy":
            self._buffer.data.flags.writeable = False
        self._version = getattr(self._buffer.data, "_version", None)

    def writable(self):
        """Return the raw buffer for the forward product to fill."""
        if self.arrays.name == "numpy":
            self._buffer.data.flags.writeable = True
        return self._buffer.data

    def raw(self):
        """Return a copy of the raw buffer, as cuBLASLt lays it out."""
        self._check_alive("read")
        with self.arrays.on(self.device):
            return elementwise.copy(self.arrays, self._buffer.data)

    def free(self) -> None:
        """Give the memory back; the mask cannot be used any more."""
        self._dead = "it was freed"
        self._buffer = _Buffer(None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape} {self.dtype}>"


class ReluMask(Mask):
    """Which elements of a forward result ReLU has let through, as bits."""

    kind = "relu_aux"
    __slots__ = ()

    @classmethod
    def buffer_shape(cls, shape):
        """Rows of `relu_mask_bytes` bytes."""
        return (*shape[:-1], relu_mask_bytes(shape[-1]))

    @classmethod
    def buffer_dtype(cls, dtype):
        """Bytes."""
        return "uint8"

    def unpack(self):
        """Return the mask as a boolean array of the result's shape."""
        self._check_alive("read")
        with self.arrays.on(self.device):
            return elementwise.unpack_bits(self.arrays, self._buffer.data, self.shape[-1])


class GeluAux(Mask):
    """The input of GELU in the forward product, from which its derivative is computed."""

    kind = "gelu_aux"
    __slots__ = ()

    @classmethod
    def buffer_shape(cls, shape):
        """Rows padded to 8 elements."""
        return (*shape[:-1], gelu_aux_columns(shape[-1]))

    @classmethod
    def buffer_dtype(cls, dtype):
        """The result's dtype (float16 for 8-bit floats)."""
        return "float16" if dtype.startswith("float8") else dtype

    def unpack(self):
        """Return the input of the activation, a copy of the result's shape."""
        self._check_alive("read")
        with self.arrays.on(self.device):
            return elementwise.copy(self.arrays, self._buffer.data[..., : self.shape[-1]])


class GeluSlope(Mask):
    """The derivative of GELU in the forward product of a layer (`kept.slope_for`); no epilog takes it."""

    kind = "gelu_slope"
    __slots__ = ()

    @classmethod
    def buffer_shape(cls, shape):
        """The result's shape."""
        return tuple(shape)

    @classmethod
    def buffer_dtype(cls, dtype):
        """The result's dtype."""
        return dtype

    def unpack(self):
        """Return the derivative, a copy of the result's shape."""
        return self.raw()


MASKS = {"relu_aux": ReluMask, "gelu_aux": GeluAux}
