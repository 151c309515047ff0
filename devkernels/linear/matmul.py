"""`fused_matmul`: a product with its epilog in one call, planned behind the scenes.

in: arrays of NumPy, CuPy or torch.  out: the row-major result, and the mask where one is asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from devkernels.errors import ArgumentError
from devkernels.libraries import stream_handle
from devkernels.linear.arrays import CPU, Arrays, arrays_of
from devkernels.linear.bounded import Bounded
from devkernels.linear.epilog import Epilog
from devkernels.linear.masks import MASKS, Lifetime, Mask
from devkernels.linear.operands import (
    Operands,
    analyse,
    default_compute_type,
    device_scale,
    finite_number,
    gradient_shape,
)
from devkernels.linear.plan import Plan, plan_for

_calls: Bounded = Bounded(512)  # signature of a call -> Prepared
_forever = Lifetime()  # masks of `fused_matmul` belong to no object that could be freed


class Prepared:
    """A planned call: knows what it returns, and runs on arrays that were checked to fit the spec."""

    __slots__ = ("arrays", "aux", "device", "gradient", "lean", "mask_class", "new_aux", "new_gradient", "new_out",
                 "out_shape", "plan", "pointer", "several", "spec", "stream")  # fmt: skip

    def __init__(self, plan: Plan):
        self.plan, self.spec, self.arrays, self.device = plan, plan.spec, plan.arrays, plan.device
        spec, arrays = plan.spec, plan.arrays
        self.out_shape = spec.out_shape
        self.mask_class = MASKS.get(spec.epilog.aux_output)
        self.pointer: Callable[[object], int] = arrays.pointer
        self.stream: Callable[[int], int] = arrays.stream
        self.several = plan.device != CPU and arrays.several_devices()
        self.lean = plan.lt if plan.plain and not self.several else None
        self.gradient, self.aux = gradient_shape(spec), None
        self.new_out = arrays.maker(self.out_shape, spec.out_dtype, plan.device)
        self.new_gradient = self.new_aux = None
        if self.gradient is not None:
            self.new_gradient = arrays.maker(self.gradient, spec.out_dtype, plan.device)
        if self.mask_class is not None:
            self.aux = self.mask_class.buffer_shape(self.out_shape), self.mask_class.buffer_dtype(spec.out_dtype)
            self.new_aux = arrays.maker(*self.aux, plan.device)

    def __call__(self, a, b, c=None, bias=None, aux=None, out=None, mask: Mask | None = None, stream=None,
                 scales=(None, None, None), lifetime: Lifetime = _forever):  # fmt: skip
        """Run; `aux` is the raw mask that the epilog reads. Returns (out, mask, gradient), the last two often None."""
        device = self.device
        gradient = data = None
        if stream is None and not self.several:
            where = self.stream(device)
            if out is None:
                out = self.new_out()
            if self.new_gradient is not None:
                gradient = self.new_gradient()
            if self.new_aux is not None and mask is None:
                data = self.new_aux()
        else:
            explicit = None if stream is None else stream_handle(stream)
            where = self.stream(device) if explicit is None else explicit
            empty, dtype = self.arrays.empty, self.spec.out_dtype
            if out is None:
                out = empty(self.out_shape, dtype, device, explicit)
            if self.gradient is not None:
                gradient = empty(self.gradient, dtype, device, explicit)
            if self.aux is not None and mask is None:
                data = empty(*self.aux, device, explicit)
        if self.mask_class is not None:
            about = (self.out_shape, self.spec.out_dtype, device, self.arrays, lifetime)
            mask = self.mask_class.around(data, *about) if mask is None else mask.reissue(*about)
            aux = mask.writable()
        lean, pointer = self.lean, self.pointer
        if lean is not None:
            side = bias if gradient is None else gradient
            lean.launch(pointer(a), pointer(b), 0 if c is None else pointer(c), pointer(out),
                        0 if side is None else pointer(side), 0 if aux is None else pointer(aux), where)  # fmt: skip
        else:
            self.plan.run(a, b, c, bias, aux, gradient, out, where, scales)
        if mask is not None:
            mask.written()
        return out, mask, gradient


def prepare(operands: Operands, alpha: object = 1.0, beta: object = None, has_c: bool = False) -> Prepared:
    """Plan validated operands; alpha and beta are checked here.

    Raises
    ------
    ArgumentError
        Alpha or beta is not finite, or beta is given without `c`.
    """
    dtype = operands.spec.dtype
    alpha = finite_number("alpha", alpha, dtype)
    if beta is None:
        beta = 1.0 if has_c else 0.0
    beta = finite_number("beta", beta, dtype)
    if beta != 0 and not has_c:
        raise ArgumentError(f"beta={beta!r} multiplies `c`, but no `c` is given; pass c= or leave beta out.")
    if beta == 0 and has_c:
        beta = 0.0
    return Prepared(plan_for(operands.spec, operands.arrays, operands.device, operands.alignment, alpha, beta))


_cupy_facts = operator.attrgetter("shape", "strides", "dtype", "data.device_id")
_numpy_facts = operator.attrgetter("shape", "strides", "dtype")


def _torch_facts(x) -> tuple:
    return x.shape, x.stride(), x.dtype, x.get_device()


_FACTS = {"cupy": _cupy_facts, "numpy": _numpy_facts, "torch": _torch_facts}


def _signature(arrays: Arrays, a, b, *others) -> tuple:
    """What a plan depends on besides numbers and names, as cheap as the package allows."""
    facts, pointer = _FACTS[arrays.name], arrays.pointer
    parts = [facts(a), facts(b)]
    bits = 0 if arrays.name == "numpy" else pointer(a) | pointer(b)
    for x in others:
        if x is None:
            parts.append(None)
        else:
            parts.append(facts(x))
            if arrays.name != "numpy":
                bits |= pointer(x)
    return arrays.name, bits & 255, *parts


def fused_matmul(a, b, *, bias=None, activation=None, c=None, alpha=1.0, beta=None, aux=False, out=None,
                 compute_type=None, out_dtype=None, scale_a=None, scale_b=None, scale_out=None,
                 stream=None):  # fmt: skip
    """``activation(alpha * a @ b + beta * c + bias)``, row-major in and out, in one fused call where there is one.

    Parameters
    ----------
    a, b : array
        Shapes (…, m, k) and (…, k, n) of NumPy, CuPy or torch (all arrays of a call from one package); either may lack
        the batch axes. Transposed views such as ``w.T`` are used as they are.
    bias : array, optional
        (n,) or (1, n): along columns, one value for each output feature. (m, 1): along rows.
    activation : {None, "relu", "gelu"}
        GELU is the tanh approximation.
    c : array, optional
        (…, m, n), added with weight `beta` (1 if not given). May be `out` itself.
    alpha, beta : number
        Finite weights.
    aux : bool
        Also return the mask that the backward epilogs take (`FusedMatmul` with ``DRELU``, ``DGELU``).
    out : array, optional
        Row-major array that receives the result; untouched if anything is wrong with the call.
    compute_type : str, optional
        "32f", "16f", "tf32", "64f" ... None: by dtype (and torch's float32 matmul precision for torch).
    out_dtype, scale_a, scale_b, scale_out : optional
        For 8-bit floats: dtype of the result (float16 if not given), and factors of the operands and the result.
    stream : optional
        Stream to run on; the package's current stream if not given.

    Returns
    -------
    array, or (array, ReluMask | GeluAux)

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceMismatchError, SpecError
        Before anything is launched.

    Notes
    -----
    Epilogs of cuBLASLt (``cublasLtEpilogue_t`` in the cuBLAS documentation). Where the device has no fused kernel for
    the dtype, and for a bias along rows, the same is computed in more steps; `FusedMatmul.fused` tells.
    """
    if compute_type is None and type(a).__module__ == "torch":
        compute_type = default_compute_type(arrays_of(a, "a"), str(a.dtype)[6:])
    out, mask, _ = product(
        Epilog.of(activation, bias=bias is not None, aux=aux), a, b, bias=bias, c=c, alpha=alpha, beta=beta, out=out,
        compute_type=compute_type, out_dtype=out_dtype, scales=(scale_a, scale_b, scale_out), stream=stream,
    )  # fmt: skip
    return (out, mask) if aux else out


def product(epilog: Epilog, a, b, *, bias=None, c=None, alpha=1.0, beta=None, mask: Mask | None = None, out=None,
            compute_type=None, out_dtype=None, scales=(None, None, None), stream=None,
            lifetime: Lifetime = _forever):  # fmt: skip
    """Run one product with any epilog; returns (out, mask, gradient), as `Prepared` does.

    What was planned for is found again by the shapes, strides, dtypes, devices and alignments of the arrays.
    """
    arrays = arrays_of(a, "a")
    scaled = (scales[0] is not None, scales[1] is not None, scales[2] is not None)
    try:
        key = (_signature(arrays, a, b, bias, c, out), int(epilog), alpha, beta, compute_type, out_dtype, scaled)
        prepared = _calls.get(key)
    except (AttributeError, TypeError):  # an array of another package, an unhashable argument: analysed below
        key = prepared = None
    if prepared is None:
        operands = analyse(a, b, c=c, bias=bias, out=out, epilog=epilog, compute_type=compute_type,
                           out_dtype=out_dtype, scaled=scaled)  # fmt: skip
        prepared = prepare(operands, alpha, beta, c is not None)
        if key is not None:
            _calls.keep(key, prepared)
    raw = None
    if mask is not None:
        raw = mask.data_for(epilog.aux_input, prepared.out_shape, prepared.spec.out_dtype, prepared.device, arrays)
    if any(scaled):
        named = zip(("scale_a", "scale_b", "scale_out"), scales, strict=True)
        scales = tuple(device_scale(value, name, arrays, prepared.device) for name, value in named)
    return prepared(a, b, c, bias, raw, out, None, stream, scales, lifetime)


def forget_calls() -> None:
    """Forget the planned calls of `fused_matmul`."""
    _calls.clear()
