"""What is to be multiplied: shapes, dtypes, layouts, compute type and epilog, validated and hashable.

in: numbers or the shapes, strides and dtypes of arrays.  out: `MatmulSpec`. Nothing of CUDA is imported here.

All matrices are row-major as the caller sees them; a transposed view (``w.T``) is a `Layout` with `transposed`, not a
copy. cuBLASLt is column-major: it is asked for the transpose of the result, which is the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.linear.epilog import Epilog

# dtype -> compute types that cuBLASLt offers for it, the default first.
COMPUTE_TYPES: dict[str, tuple[str, ...]] = {
    "float16": ("32f", "32f_pedantic", "16f"),
    "bfloat16": ("32f", "32f_pedantic"),
    "float32": ("32f", "32f_pedantic", "32f_fast_tf32", "32f_fast_16f", "32f_fast_16bf"),
    "float64": ("64f", "64f_pedantic"),
    "complex64": ("32f", "32f_pedantic", "32f_fast_tf32"),
    "complex128": ("64f", "64f_pedantic"),
    "float8_e4m3fn": ("32f",),
    "float8_e5m2": ("32f",),
}
_ALIASES = {"tf32": "32f_fast_tf32", "fp32": "32f", "float32": "32f", "fp16": "16f", "float16": "16f",
            "fp64": "64f", "float64": "64f", "fast_tf32": "32f_fast_tf32"}  # fmt: skip
# "Multiply in 16 bits, add in 32" is what the plain 32f compute type does for operands of 16 bits; cuBLASLt has the
# name for float32 operands only, but published examples use it with float16.
_SAME_AS_32F = {("float16", "32f_fast_16f"), ("bfloat16", "32f_fast_16bf")}
_COMPUTE_NUMBERS = {64: "16f", 68: "32f", 69: "32f_pedantic", 74: "32f_fast_16f", 75: "32f_fast_16bf",
                    77: "32f_fast_tf32", 70: "64f", 71: "64f_pedantic"}  # cublasComputeType_t  # fmt: skip
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
              "float8_e4m3fn": 1, "float8_e5m2": 1}  # fmt: skip


def is_fp8(dtype: str) -> bool:
    """Whether the dtype is one of the two 8-bit floats."""
    return dtype.startswith("float8")


def parse_compute_type(value: object, dtype: str) -> str:
    """Name of the compute type for operands of `dtype`: None (the default), a name, or nvmath's ComputeType."""
    offered = COMPUTE_TYPES[dtype]
    if value is None:
        return offered[0]
    if isinstance(value, str):
        name = value.strip().lower().removeprefix("compute_")
        name = _ALIASES.get(name, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        name = _COMPUTE_NUMBERS.get(int(value), str(int(value)))
    else:
        raise ArgumentTypeError(f"compute_type={value!r} is neither a name nor a ComputeType.")
    if (dtype, name) in _SAME_AS_32F:
        return "32f"
    if name not in offered:
        raise SpecError(f"compute_type={value!r} is not possible for {dtype} operands; possible are {offered}.")
    return name


@dataclass(frozen=True, slots=True)
class Layout:
    """How one matrix lies in memory, in elements: `ld` from row to row (column to column if `transposed`)."""

    ld: int
    transposed: bool = False
    batch_stride: int = 0

    @classmethod
    def of(cls, name: str, shape: Sequence[int], strides: Sequence[int], batch: tuple[int, ...]) -> Layout:
        """Layout of an array whose last two axes are the matrix. `batch` is what the others must be, or be missing."""
        rows, columns = shape[-2:]
        row, column = strides[-2:]
        lead, lead_strides = tuple(shape[:-2]), tuple(strides[:-2])
        if (column == 1 or columns == 1) and (rows == 1 or row >= columns):
            transposed, ld = False, row if rows > 1 else columns
        elif (row == 1 or rows == 1) and (columns == 1 or column >= rows):
            transposed, ld = True, column if columns > 1 else rows
        else:
            raise ArgumentError(
                f"{name} with shape {tuple(shape)} and strides {tuple(strides)} (in elements) has no axis whose "
                f"elements are neighbours in memory; pass a contiguous copy of it."
            )
        if not lead or math.prod(lead) == 1:
            return cls(ld, transposed, 0)
        if lead != batch:
            raise ArgumentError(f"{name} has batch shape {lead}, but the other operand has {batch}; they must agree.")
        if all(s == 0 for s, n in zip(lead_strides, lead, strict=True) if n > 1):
            return cls(ld, transposed, 0)
        expected, innermost = None, 0
        for count, stride in zip(reversed(lead), reversed(lead_strides), strict=True):
            if count == 1:
                continue
            if expected is None:
                innermost = stride
            elif stride != expected:
                raise ArgumentError(
                    f"{name} with shape {tuple(shape)} and strides {tuple(strides)} (in elements): its matrices do not "
                    f"follow one another at equal distances; pass a contiguous copy of it."
                )
            expected = stride * count
        return cls(ld, transposed, innermost)


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{name}={value!r} must be a whole number of at least 1.")
    return value


@dataclass(frozen=True)
class MatmulSpec:
    """``out = epilog(alpha * a @ b + beta * c)`` for a (…, m, k), b (…, k, n), out (…, m, n).

    Attributes
    ----------
    m, n, k : int
        Sizes; all at least 1.
    dtype : str
        Of `a`: float16, bfloat16, float32, float64, complex64, complex128, float8_e4m3fn, float8_e5m2.
    batch : tuple of int
        Leading axes, the same for `a` and `b` (either may lack them).
    epilog : Epilog
        What is applied before the result is stored; names and nvmath's enumerators are accepted.
    bias_axis : {"columns", "rows"}, optional
        A bias of shape (n,) or (1, n) runs along columns, one of shape (m, 1) along rows.
    compute_type : str, optional
        "32f", "16f", "32f_fast_tf32" ("tf32"), "64f" ...; None chooses by dtype.
    b_dtype, c_dtype, out_dtype : str, optional
        Where they differ from `dtype` (8-bit floats only).
    a, b, c, out : Layout, optional
        Memory layouts; contiguous row-major where not given. `c` None means that there is no `c`.
    scaled : tuple of bool
        Whether 8-bit `a`, `b`, `out` carry a scale factor.
    """

    m: int
    n: int
    k: int
    dtype: str = "float16"
    batch: tuple[int, ...] = ()
    epilog: Epilog = Epilog.DEFAULT
    bias_axis: str | None = None
    compute_type: str | None = None
    b_dtype: str | None = None
    c_dtype: str | None = None
    out_dtype: str | None = None
    a: Layout | None = None
    b: Layout | None = None
    c: Layout | None = None
    out: Layout | None = None
    scaled: tuple[bool, bool, bool] = (False, False, False)
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - frozen
        for name in ("m", "n", "k"):
            _positive(name, getattr(self, name))
        put("batch", tuple(_positive("batch", int(size)) for size in self.batch))
        put("epilog", Epilog.parse(self.epilog))
        for name in ("dtype", "b_dtype", "out_dtype"):
            value = getattr(self, name)
            if value is not None and value not in COMPUTE_TYPES:
                raise SpecError(f"{name}={value!r} is not supported; possible are {', '.join(COMPUTE_TYPES)}.")
        put("b_dtype", self.b_dtype or self.dtype)
        put("out_dtype", self.out_dtype or ("float16" if is_fp8(self.dtype) else self.dtype))
        put("c_dtype", self.c_dtype or (self.out_dtype if not is_fp8(self.out_dtype) else "float16"))
        put("compute_type", parse_compute_type(self.compute_type, self.dtype))
        self._check_dtypes()
        if self.epilog.has_bias and self.bias_axis is None:
            put("bias_axis", "columns")
        if self.bias_axis not in (None, "columns", "rows"):
            raise SpecError(f"bias_axis={self.bias_axis!r}; possible are 'columns', 'rows' and None.")
        if self.bias_axis and not self.epilog.has_bias:
            raise SpecError(f"epilog {self.epilog.name} takes no bias, but bias_axis={self.bias_axis!r} is given.")
        m, n, k = self.m, self.n, self.k
        put("a", self.a or Layout(k, False, m * k if self.batch else 0))
        put("b", self.b or Layout(n, False, k * n if self.batch else 0))
        put("out", self.out or Layout(n, False, m * n if self.batch else 0))
        if self.out.transposed and n > 1 and m > 1:
            raise SpecError("out must be row-major (its last axis contiguous); pass a C-ordered array.")
        if self.c is not None and self.c.transposed and n > 1 and m > 1:
            raise SpecError("c must be row-major (its last axis contiguous); pass a C-ordered array.")
        if is_fp8(self.dtype):
            self._check_fp8()
        put("_hash", hash(tuple(getattr(self, f) for f in _COMPARED)))

    def __hash__(self) -> int:
        return self._hash

    def _check_dtypes(self) -> None:
        fp8 = is_fp8(self.dtype)
        if not fp8 and not self.dtype == self.b_dtype == self.out_dtype == self.c_dtype:
            raise SpecError(
                f"dtypes a={self.dtype}, b={self.b_dtype}, c={self.c_dtype}, out={self.out_dtype} do not go together: "
                f"outside 8-bit floats all must be equal; convert them first."
            )
        if fp8 and not is_fp8(self.b_dtype):
            raise SpecError(f"a is {self.dtype}, so b must be an 8-bit float too, not {self.b_dtype}.")
        if fp8 and self.dtype == self.b_dtype == "float8_e5m2":
            raise SpecError("float8_e5m2 @ float8_e5m2 is not offered by cuBLASLt; make one of them float8_e4m3fn.")
        if self.dtype.startswith("complex") and (self.epilog.activation or self.epilog.derivative):
            raise SpecError(f"{self.epilog.name} has no meaning for {self.dtype}; activations are for real numbers.")
        if not fp8 and any(self.scaled):
            raise SpecError(f"Scales belong to 8-bit floats; for {self.dtype} use alpha.")

    def _check_fp8(self) -> None:
        if any(size % 16 for size in (self.m, self.n, self.k)):
            raise SpecError(f"8-bit floats need m, n and k divisible by 16; got m={self.m}, n={self.n}, k={self.k}.")
        if self.a.transposed or not self.b.transposed:
            raise SpecError("8-bit floats need row-major `a` and a transposed view `b` (x @ w.T with row-major w).")

    @property
    def batch_count(self) -> int:
        """Number of matrices."""
        return math.prod(self.batch)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.batch, self.m, self.n)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.n * self.k * self.batch_count

    @property
    def accumulate(self) -> str:
        """Precision of the sums, for error bounds."""
        kind = self.compute_type
        return "float64" if kind.startswith("64f") else "float16" if kind == "16f" else "float32"

    def __str__(self) -> str:
        lead = f"{'x'.join(map(str, self.batch))} of " if self.batch else ""
        return (f"{lead}({self.m}, {self.k}) @ ({self.k}, {self.n}) {self.dtype}, compute {self.compute_type}, "
                f"epilog {self.epilog.name}")  # fmt: skip


_COMPARED = ("m", "n", "k", "dtype", "batch", "epilog", "bias_axis", "compute_type", "b_dtype", "c_dtype", "out_dtype",
             "a", "b", "c", "out", "scaled")  # fmt: skip
