"""Straight-line DFT networks: radix-R butterflies written once, for any kind of number.

in: input values, optional twiddles, an arithmetic (`FloatArithmetic` for Python floats and NumPy arrays, the IR
arithmetic of `emit` for registers). out: the R output values, in natural order.

A network computes ``X_k = sum_j x_j w**j exp(sign 2 pi i j k / R)``: the twiddles of a mixed-radix step are applied
*before* the butterfly. Then each radix-2 butterfly ``a + w b, a - w b`` takes six fused multiply-adds,
``y = fma(w, b, a)`` in four and ``2 a - y`` in two, instead of the ten operations of a multiplication and two
additions (the same idea as in H. Karner, M. Auer, C. W. Ueberhuber, "Multiply-add optimized FFT kernels", 2001, but
without their division by a cosine, hence without its singularities). Rotations by quarter turns cost nothing.

A complex value is a pair (re, im); a component that is None is an exact zero and costs nothing, so real input and
zero-padded input prune the network by themselves.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

Pair = tuple[Any, Any]


class FloatArithmetic:
    """Arithmetic on Python floats or NumPy arrays of any precision."""

    def add(self, a, b):
        """Return a + b."""
        return a + b

    def sub(self, a, b):
        """Return a - b."""
        return a - b

    def mul(self, a, b):
        """Return a * b."""
        return a * b

    def fma(self, a, b, c):
        """Return a * b + c."""
        return a * b + c

    def neg(self, a):
        """Return -a."""
        return -a


class CountingArithmetic:
    """Counts operations instead of doing them; a negation is free (an operand modifier on the GPU)."""

    def __init__(self):
        self.operations = 0

    def _count(self, *_):
        self.operations += 1
        return object()

    add = sub = mul = fma = _count

    def neg(self, a):
        """Return the operand: the sign goes into the instruction that uses it."""
        return a


class Product:
    """A value times a factor, not multiplied yet: the butterfly that uses it folds the factor in."""

    def __init__(self, factor: Pair, value: Pair):
        self.factor = factor
        self.value = value


class Network:
    """One butterfly network over one arithmetic.

    Parameters
    ----------
    ops
        The arithmetic.
    sign : int
        -1 for the forward transform, +1 for the inverse.
    power : callable, optional
        ``power(p, rest)`` gives the pair for ``w**p exp(2 pi i rest)``, 0 <= rest < 1/4; it may return None where
        rest is not 0, and the network multiplies. None instead of a callable means w = 1.
    """

    def __init__(self, ops: Any, sign: int, power: Callable[[int, Fraction], Pair | None] | None = None):
        self.ops = ops
        self.sign = sign
        self.power = power
        self._factors: dict[tuple[int, Fraction], Pair] = {}
        self._products: dict[tuple[int, ...], tuple] = {}

    # -- values -----------------------------------------------------------------------------------------------

    def _add(self, a, b):
        if a is None:
            return b
        return a if b is None else self.ops.add(a, b)

    def _sub(self, a, b):
        if b is None:
            return a
        return self.ops.neg(b) if a is None else self.ops.sub(a, b)

    def _fma(self, a, b, c):
        if a is None or b is None:
            return c
        return self.ops.mul(a, b) if c is None else self.ops.fma(a, b, c)

    def _neg(self, a):
        if a is None:
            return None
        return -a if isinstance(a, float) else self.ops.neg(a)

    def multiply(self, w: Pair, b: Pair, plus: Pair = (None, None)) -> Pair:
        """``w * b + plus``: four operations."""
        (wr, wi), (br, bi) = w, b
        re = self._fma(self._neg(wi), bi, plus[0]) if bi is not None else plus[0]
        im = self._fma(wi, br, plus[1])
        return self._fma(wr, br, re), self._fma(wr, bi, im)

    def value(self, x: Pair | Product) -> Pair:
        """The pair itself, with a pending factor multiplied in."""
        return self.multiply(x.factor, x.value) if isinstance(x, Product) else x

    def _turn(self, x: Pair, quarters: int) -> Pair:
        """``x * i**quarters``: swaps and signs only."""
        re, im = x
        return [(re, im), (self._neg(im), re), (self._neg(re), self._neg(im)), (im, self._neg(re))][quarters % 4]

    def factor(self, power: int, angle: Fraction) -> Pair | int:
        """The twiddle ``w**power * exp(2 pi i angle)``; an int q stands for ``i**q``."""
        quarters, rest = divmod(angle % 1, Fraction(1, 4))
        if self.power is None or power == 0:
            if rest == 0:
                return int(quarters)
            c = cmath.exp(2j * math.pi * float(angle % 1))
            return c.real, c.imag
        key = power, rest
        if key not in self._factors:
            w = self.power(power, rest)
            if w is None:
                w = self.power(power, Fraction(0))
                c = cmath.exp(2j * math.pi * float(rest))
                if all(isinstance(v, float) for v in w):
                    product = complex(*w) * c
                    w = product.real, product.imag
                else:
                    w = self.multiply((c.real, c.imag), w)
            self._factors[key] = w
        return self._turn(self._factors[key], int(quarters))

    def _combine(self, factor: Pair | int, other: Pair) -> Pair:
        """Product of two factors, computed once: elements that share a factor mostly share the other too."""
        if isinstance(factor, int):
            return self._turn(other, factor)
        key = tuple(id(part) for part in (*factor, *other))
        if key not in self._products:
            self._products[key] = self.multiply(factor, other), (factor, other)  # kept, so that no id is used again
        return self._products[key][0]

    def pair_sum(self, a, b, factor) -> tuple[Pair, Pair]:
        """``a + factor b`` and ``a - factor b``."""
        ops, a = self.ops, self.value(a)
        if isinstance(b, Product):
            factor, b = self._combine(factor, b.factor), b.value
        if isinstance(factor, int):
            b = self._turn(b, factor)
            return (self._add(a[0], b[0]), self._add(a[1], b[1])), (self._sub(a[0], b[0]), self._sub(a[1], b[1]))
        y = self.multiply(factor, b, a)
        other = []
        for part, total in zip(a, y, strict=True):
            if part is None or total is part:
                other.append(self._neg(total) if part is None else part)
            else:
                other.append(ops.fma(2.0, part, ops.neg(total)))
        return y, (other[0], other[1])

    # -- networks ---------------------------------------------------------------------------------------------

    def dft(self, x: Sequence[Pair | Product], step: int = 1) -> list[Pair]:
        """All R outputs, natural order, for inputs weighted by ``w**(step j)``."""
        size = len(x)
        if size == 1:
            return [x[0]]
        prime = next(p for p in range(2, size + 1) if size % p == 0)
        rest = size // prime
        parts = [self.dft(x[i::prime], step * prime) for i in range(prime)]
        out: list[Any] = [None] * size
        for k in range(rest):
            values = [part[k] for part in parts]
            factors = [self.factor(step * i, Fraction(self.sign * i * k, size)) for i in range(prime)]
            if prime == 2:
                out[k], out[k + rest] = self.pair_sum(values[0], values[1], factors[1])
            else:
                out[k::rest] = self._prime(values, factors)
        return out

    def _prime(self, values, factors) -> list[Pair]:
        """Odd prime length by symmetric and antisymmetric halves."""
        p = len(values)
        half = (p - 1) // 2
        first = self.value(values[0])
        sums, differences = [], []
        for i in range(1, half + 1):
            lead = values[i]
            if isinstance(factors[i], int):
                lead = self._turn(self.value(lead), factors[i])
            else:
                lead = self.multiply(factors[i], self.value(lead))
            s, d = self.pair_sum(lead, values[p - i], factors[p - i])
            sums.append(s)
            differences.append(d)
        out: list[Any] = [None] * p
        total = first
        for s in sums:
            total = self._add(total[0], s[0]), self._add(total[1], s[1])
        out[0] = total
        for q in range(1, half + 1):
            even, odd = first, (None, None)
            for i in range(1, half + 1):
                c = math.cos(2 * math.pi * i * q / p)
                even = self._fma(c, sums[i - 1][0], even[0]), self._fma(c, sums[i - 1][1], even[1])
            sines = [math.sin(2 * math.pi * i * q / p) * self.sign for i in range(1, half + 1)]
            if half == 1:  # fold the one sine into the last additions
                s, d = sines[0], differences[0]
                out[q] = self._fma(-s, d[1], even[0]), self._fma(s, d[0], even[1])
                out[p - q] = self._fma(s, d[1], even[0]), self._fma(-s, d[0], even[1])
                continue
            for s, d in zip(sines, differences, strict=True):
                odd = self._fma(s, d[0], odd[0]), self._fma(s, d[1], odd[1])
            out[q] = self._sub(even[0], odd[1]), self._add(even[1], odd[0])
            out[p - q] = self._add(even[0], odd[1]), self._sub(even[1], odd[0])
        return out


def twiddles_used(radix: int, sign: int, rotated: bool) -> tuple[tuple[int, Fraction], ...]:
    """The (p, rest) that a twiddled radix-R network asks for, that is what its table has to hold.

    With `rotated` the products ``w**p exp(2 pi i rest)`` are in the table too; without, only rest = 0 is.
    """
    used: set[tuple[int, Fraction]] = set()

    def power(p: int, rest: Fraction) -> Pair | None:
        if rest != 0 and not rotated:
            return None
        used.add((p, rest))
        return object(), object()

    Network(CountingArithmetic(), sign, power).dft([(object(), object()) for _ in range(radix)])
    return tuple(sorted(used))


def operations(radix: int, twiddled: bool, rotated: bool = False) -> int:
    """Floating-point instructions of one radix-R butterfly, with the rotation of twiddles that no table holds."""
    ops = CountingArithmetic()
    power = (lambda p, rest: (object(), object()) if rotated or not rest else None) if twiddled else None
    Network(ops, -1, power).dft([(object(), object()) for _ in range(radix)])
    return ops.operations
