"""Plans: how a spec is carried out on NumPy, on a device with one fused call, or on a device in steps; and their cache.

in: a `MatmulSpec`, the package and device of the arrays, alignment, alpha and beta.  out: a plan with
``run(a, b, c, bias, aux, gradient, out, stream)`` on arrays. Plans are kept in a bounded cache, oldest use out first.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict

from devkernels.linear import elementwise, tuned
from devkernels.linear._cublaslt import LtMatmul, NoAlgorithmError
from devkernels.linear.arrays import CPU, Arrays
from devkernels.linear.epilog import Epilog
from devkernels.linear.spec import MatmulSpec

CACHE_LIMIT = 512
_plans: OrderedDict[tuple, Plan] = OrderedDict()
_lock = threading.Lock()
_counts = {"hits": 0, "misses": 0, "dropped": 0}


class Plan:
    """Base of the plans.

    Attributes
    ----------
    fused : bool
        Whether one library call does everything.
    plain : bool
        Whether ``lt.launch(a, b, c, out, bias, aux, stream)`` on pointers is all there is to do.
    """

    fused = True
    stepwise = False
    refusal: Exception | None = None
    plain = False
    lt: LtMatmul | None = None

    def __init__(self, spec: MatmulSpec, arrays: Arrays, device: int):
        self.spec, self.arrays, self.device = spec, arrays, device

    def run(self, a, b, c, bias, aux, gradient, out, stream: int, scales=(None, None, None)) -> None:
        """Carry out the product on arrays; `aux` and `gradient` are buffers that the epilog reads or writes."""
        raise NotImplementedError


def _sum_gradient(arrays: Arrays, spec: MatmulSpec, a, b, wide: str):
    """Sums for BGRADA (of `a` over k) and BGRADB (of `b` over k)."""
    if spec.epilog is Epilog.BGRADA:
        return elementwise.cast(arrays, a, wide).sum(-1)
    if spec.epilog is Epilog.BGRADB:
        return elementwise.cast(arrays, b, wide).sum(-2)
    return None


def _store(target, value) -> None:
    """Write an array into another, rounding to its dtype."""
    if hasattr(target, "copy_"):
        target.copy_(value)
    else:
        target[...] = value


class HostPlan(Plan):
    """The same meaning on the CPU: sums in the accumulate precision, one rounding at the end, masks bit for bit."""

    def __init__(self, spec, arrays, device, alpha, beta):
        super().__init__(spec, arrays, device)
        self.alpha, self.beta = alpha, beta
        self.wide = {"complex64": "complex64", "complex128": "complex128"}.get(
            spec.dtype, "float64" if spec.accumulate == "float64" else "float32"
        )

    def run(self, a, b, c, bias, aux, gradient, out, stream=0, scales=(None, None, None)):
        """See `Plan.run`."""
        arrays, spec, wide = self.arrays, self.spec, self.wide
        wide_a = elementwise.round_operand(arrays, elementwise.cast(arrays, a, wide), spec.compute_type)
        wide_b = elementwise.round_operand(arrays, elementwise.cast(arrays, b, wide), spec.compute_type)
        z = wide_a @ wide_b
        factor = self.alpha
        for scale in scales[:2]:
            if scale is not None:
                factor = factor * scale
        if not (isinstance(factor, (int, float, complex)) and factor == 1):
            z = z * factor
        if self.beta != 0:
            z = z + self.beta * elementwise.cast(arrays, c, wide)
        if bias is not None:
            z = z + elementwise.cast(arrays, bias, wide)
        z, aux_value, sums = elementwise.finish(arrays, spec.epilog, z, aux, wide)
        if scales[2] is not None:
            z = z * scales[2]
        if aux_value is not None:
            _store(aux, aux_value)
        if gradient is not None:
            direct = _sum_gradient(arrays, spec, a, b, wide)
            _store(gradient, sums if direct is None else direct)
        _store(out, z if z.shape == out.shape else z.reshape(out.shape))


class DevicePlan(Plan):
    """One fused cuBLASLt call; or, where the library has none, its plain product and the rest in array operations.

    A bias along rows is not an epilog of a row-major product: it is written into the result first, which the product
    then adds to (beta = 1). That is one pass over the result more, and no transposed copy.
    """

    def __init__(self, spec, arrays, device, alignment, alpha, beta):
        super().__init__(spec, arrays, device)
        self.alpha, self.beta = alpha, beta
        self._scales_lock = threading.Lock()  # the pointers of scales lie in the descriptor
        epilog = spec.epilog
        self.rows_bias = spec.bias_axis == "rows"
        if self.rows_bias:
            epilog = epilog.without_bias()
        options = dict(arrays=arrays, device=device, alignment=alignment, alpha=alpha)
        try:
            if epilog.derivative and spec.k == 1:  # cuBLASLt gives wrong answers here, says nvmath; it is refused there
                raise NoAlgorithmError(f"cuBLASLt has no {epilog.name} for k = 1.", spec=spec)
            self.lt = LtMatmul(spec, epilog, beta=1.0 if self.rows_bias else beta, use_c=not self.rows_bias, **options)
            tuned.choose(self.lt)
        except NoAlgorithmError as error:
            self.refusal = error
            self.fused = False
            preset = self.rows_bias or epilog.has_bias
            self.lt = LtMatmul(spec, Epilog.DEFAULT, beta=1.0 if preset else beta, use_c=not preset, **options)
            tuned.choose(self.lt)
        self.preset = self.rows_bias or (not self.fused and epilog.has_bias)
        self.stepwise = self.preset
        self.plain = self.fused and not self.rows_bias and not any(spec.scaled)
        self.wide = {"float64": "float64", "complex64": "complex64", "complex128": "complex128"}.get(
            spec.dtype, "float32"
        )

    def run(self, a, b, c, bias, aux, gradient, out, stream, scales=(None, None, None)):
        """See `Plan.run`."""
        arrays, lt, pointer = self.arrays, self.lt, self.arrays.pointer
        one_by_one = self._scales_lock if any(self.spec.scaled) else contextlib.nullcontext()
        with one_by_one, arrays.on(self.device), arrays.on_stream(stream or None, self.device):
            if self.preset:
                value = bias if self.beta == 0 else self.beta * c + bias
                _store(out, value)
            if any(self.spec.scaled):
                lt.set_scales(*(0 if s is None else pointer(s) for s in scales))
            # None where beta is 0: C at the address of D must be of its dtype, which it is not for 8-bit results.
            c_pointer = pointer(out) if self.preset else 0 if c is None else pointer(c)
            if self.fused:
                side = gradient if gradient is not None else None if self.rows_bias else bias
                lt.launch(pointer(a), pointer(b), c_pointer, pointer(out), 0 if side is None else pointer(side),
                          0 if aux is None else pointer(aux), stream)  # fmt: skip
                return
            lt.launch(pointer(a), pointer(b), c_pointer, pointer(out), 0, 0, stream)
            epilog = self.spec.epilog
            z, aux_value, sums = elementwise.finish(arrays, epilog, out, aux, self.wide)
            if z is not out:
                _store(out, z)
            if aux_value is not None:
                _store(aux, aux_value)
            if gradient is not None:
                direct = _sum_gradient(arrays, self.spec, a, b, self.wide)
                _store(gradient, sums if direct is None else direct)


def plan_for(spec: MatmulSpec, arrays: Arrays, device: int, alignment: int = 256, alpha: complex = 1.0,
             beta: complex = 0.0) -> Plan:  # fmt: skip
    """Return the plan for a spec, from the cache or made now.

    Raises
    ------
    SpecError
        The device or library cannot do it at all.
    """
    alignment = min(alignment, 256)
    key = (spec, arrays.name, device, alignment, alpha, beta)
    with _lock:
        plan = _plans.get(key)
        if plan is not None:
            _plans.move_to_end(key)
            _counts["hits"] += 1
            return plan
    if device == CPU:
        plan = HostPlan(spec, arrays, device, alpha, beta)
    else:
        plan = DevicePlan(spec, arrays, device, alignment, alpha, beta)
    with _lock:
        _counts["misses"] += 1
        plan = _plans.setdefault(key, plan)
        while len(_plans) > CACHE_LIMIT:
            _plans.popitem(last=False)
            _counts["dropped"] += 1
    return plan


def plan_cache_info() -> dict[str, int]:
    """Hits, misses, dropped plans, and how many plans are kept (at most `CACHE_LIMIT`)."""
    with _lock:
        return {**_counts, "kept": len(_plans), "limit": CACHE_LIMIT}


def clear_plans() -> None:
    """Forget all cached plans; objects that hold one keep it."""
    with _lock:
        _plans.clear()
