"""What a `FusedMatmul` works on: operands, weights, bias and masks, checked together.

in: arrays by name.  out: `Inputs`, which makes `Operands` of them and finds the raw mask that an epilog reads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.linear.arrays import Arrays
from devkernels.linear.epilog import Epilog
from devkernels.linear.masks import Mask
from devkernels.linear.operands import Operands, analyse, default_compute_type, device_scale
from devkernels.linear.spec import MatmulSpec

UNCHANGED = object()
_NAMED = ("bias", "relu_aux", "gelu_aux")


class Inputs:
    """Operands and all that goes with them. Where the object is copied, the arrays are the same ones."""

    def __init__(self, arrays: Arrays, device: int, a, b, c, *, alpha, beta, epilog: Epilog, out_dtype, scales):
        self.arrays, self.device = arrays, device
        self.a, self.b, self.c = a, b, c
        self.alpha, self.beta, self.epilog = alpha, beta, epilog
        self.out_dtype, self.scales = out_dtype, scales
        self.compute_type = None
        self.named: dict[str, object] = {}

    def take(self, epilog_inputs: Mapping | None, bias=None) -> None:
        """Take a bias and masks by nvmath's names."""
        given = dict(epilog_inputs or {})
        if bias is not None:
            given["bias"] = bias
        unknown = set(given) - set(_NAMED)
        if unknown:
            raise ArgumentError(f"epilog_inputs has {sorted(unknown)}; known are {', '.join(_NAMED)}.")
        self.named = {**self.named, **given}

    def take_options(self, options: Mapping | None, compute_type=None) -> None:
        """Take the compute type, from nvmath's options or from a keyword."""
        unknown = set(options or ()) - {"compute_type"}
        if unknown:
            raise ArgumentError(f"options has {sorted(unknown)}; known is 'compute_type'.")
        found = (options or {}).get("compute_type") if compute_type is None else compute_type
        self.compute_type = found or self.compute_type

    def replaced(self, a, b, c, alpha, beta, epilog_inputs: Mapping | None, bias) -> Inputs:
        """Return the same with others in the place of those that are not `UNCHANGED`."""
        new = copy.copy(self)
        for name, value in (("a", a), ("b", b), ("c", c), ("alpha", alpha), ("beta", beta)):
            if value is not UNCHANGED:
                setattr(new, name, value)
        new.take(epilog_inputs, None if bias is UNCHANGED else bias)
        return new

    @property
    def bias(self):
        """Bias, for the epilogs that have one."""
        return self.named.get("bias") if self.epilog.has_bias else None

    @property
    def has_c(self) -> bool:
        """Whether something is added to the product."""
        return self.c is not None

    def operands(self, spec: MatmulSpec | None) -> Operands:
        """Check all of it; `spec` is what it must amount to."""
        for name in self.named:
            if name != self.epilog.aux_input and not (name == "bias" and self.epilog.has_bias):
                raise ArgumentError(f"epilog {self.epilog.name} takes no {name}; remove it from epilog_inputs.")
        compute = self.compute_type
        if compute is None:
            compute = default_compute_type(self.arrays, self.arrays.describe(self.a).dtype)
        operands = self._analyse(None, compute, self.out_dtype)
        if spec is not None and operands.spec != spec:
            raise ArgumentError(f"the operands are {operands.spec}, but the plan is for {spec}.")
        return operands

    def operands_into(self, out, spec: MatmulSpec) -> Operands:
        """Operands with an output: its layout and alignment may ask for another plan than that for `spec`."""
        return self._analyse(out, spec.compute_type, spec.out_dtype)

    def _analyse(self, out, compute_type, out_dtype) -> Operands:
        return analyse(
            self.a, self.b, c=self.c, bias=self.bias, out=out, epilog=self.epilog, compute_type=compute_type,
            out_dtype=out_dtype, scaled=tuple(s is not None for s in self.scales),
        )  # fmt: skip

    def without_arrays(self, spec: MatmulSpec) -> Operands:
        """Operands as a spec describes them, before there are any."""
        if spec.epilog is not self.epilog:
            raise SpecError(f"the spec says epilog {spec.epilog.name}, plan() says {self.epilog.name}.", spec=spec)
        return Operands(spec, self.arrays, self.device, 256)

    def raw_mask(self, spec: MatmulSpec):
        """Raw buffer of the mask that the epilog reads, or None."""
        name = self.epilog.aux_input
        if name is None or self.a is None:
            return None
        mask = self.named.get(name)
        if not isinstance(mask, Mask):
            raise ArgumentTypeError(
                f"epilog {self.epilog.name} needs epilog_inputs={{'{name}': ...}}, the mask of the forward product "
                f"(got {type(mask).__name__})."
            )
        return mask.data_for(name, spec.out_shape, spec.out_dtype, self.device, self.arrays)

    def device_scales(self) -> tuple:
        """Scales of 8-bit operands as arrays on the device."""
        named = zip(("scale_a", "scale_b", "scale_out"), self.scales, strict=True)
        return tuple(device_scale(value, name, self.arrays, self.device) for name, value in named)
