"""`FusedMatmul`: one product, planned once and executed often, with every epilog by name.

in: a `MatmulSpec` or arrays.  out: ``plan`` / ``autotune`` / ``execute`` / ``reset_operands`` / ``free``, the life
cycle of nvmath's Matmul, with row-major meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

from devkernels.errors import ArgumentError, ArgumentTypeError, SpecError
from devkernels.linear import elementwise, lean, tuned
from devkernels.linear.arrays import CPU, arrays_of, package
from devkernels.linear.epilog import Epilog
from devkernels.linear.masks import Lifetime, Mask
from devkernels.linear.matmul import Prepared, prepare
from devkernels.linear.operands import Operands, analyse, default_compute_type, device_scale
from devkernels.linear.spec import MatmulSpec

_EPILOG_INPUTS = ("bias", "relu_aux", "gelu_aux")
_UNCHANGED = object()


class FusedMatmul:
    """A product that is planned once and executed often.

    Parameters
    ----------
    a, b : array
        As for `fused_matmul`; or `a` is a `MatmulSpec` and the arrays come with `reset_operands`.
    c : array, optional
        Added with weight `beta`.
    alpha, beta : number
        Finite weights; `beta` is 1 where `c` is given, else 0.
    epilog : str or Epilog
        One of the sixteen names, such as "RELU_AUX_BIAS"; nvmath's enumerators work too. May be given to `plan`.
    epilog_inputs : mapping, optional
        ``bias``; for DRELU / DGELU the mask under ``relu_aux`` / ``gelu_aux``. May be given to `plan`.
    options : mapping, optional
        ``compute_type`` (also a keyword of its own).
    allow_unfused : bool
        Take the plain product and array operations where the device has no fused kernel, instead of raising.
    device_package : {"numpy", "cupy", "torch"}, optional
        Where a spec is planned before there are arrays (NumPy if not given).
    device : int
        Device number for that.

    Notes
    -----
    Not to be executed from two threads at once, since it holds its operands; `fused_matmul` may be.
    """

    def __init__(self, a, b=None, c=None, *, alpha=1.0, beta=None, epilog=None, epilog_inputs: Mapping | None = None,
                 bias=None, compute_type=None, options: Mapping | None = None, out_dtype=None, scale_a=None,
                 scale_b=None, scale_out=None, allow_unfused: bool = False, device_package: str | None = None,
                 device: int = 0):  # fmt: skip
        self._lifetime = Lifetime()
        self._prepared: Prepared | None = None
        self._lean: lean.LeanCall | None = None
        self._alpha, self._beta = alpha, beta
        self._allow_unfused = allow_unfused
        self._spec_only: MatmulSpec | None = None
        self._a = self._b = self._c = None
        self._out_dtype = out_dtype
        self._scales = (scale_a, scale_b, scale_out)
        self._compute_type = self._option(options, compute_type)
        self._inputs: dict[str, object] = {}
        if isinstance(a, MatmulSpec):
            if b is not None or c is not None:
                raise ArgumentTypeError("FusedMatmul takes a spec or arrays, not both; pass arrays to reset_operands.")
            self._spec_only = a
            self._epilog = a.epilog if epilog is None else Epilog.parse(epilog)
            chosen = device_package or "numpy"
            self._arrays, self._device = package(chosen), CPU if chosen == "numpy" else device
        else:
            if b is None:
                raise ArgumentTypeError("FusedMatmul needs `a` and `b`, or a MatmulSpec.")
            self._arrays = arrays_of(a, "a")
            self._a, self._b, self._c = a, b, c
            self._epilog = Epilog.parse(epilog)
            self._device = self._arrays.describe(a).device
        self._take_inputs(epilog_inputs, bias)

    @staticmethod
    def _option(options: Mapping | None, compute_type):
        unknown = set(options or ()) - {"compute_type"}
        if unknown:
            raise ArgumentError(f"options has {sorted(unknown)}; known is 'compute_type'.")
        return (options or {}).get("compute_type") if compute_type is None else compute_type

    def _take_inputs(self, epilog_inputs: Mapping | None, bias=None) -> None:
        given = dict(epilog_inputs or {})
        if bias is not None:
            given["bias"] = bias
        unknown = set(given) - set(_EPILOG_INPUTS)
        if unknown:
            raise ArgumentError(f"epilog_inputs has {sorted(unknown)}; known are {', '.join(_EPILOG_INPUTS)}.")
        self._inputs.update(given)

    # ------------------------------------------------------------ planning

    def plan(self, *, epilog=None, epilog_inputs: Mapping | None = None, options: Mapping | None = None) -> FusedMatmul:
        """Choose the kernel; returns self. Plans are cached: planning the same again is cheap.

        Raises
        ------
        SpecError
            The device has no fused kernel for this epilog, dtype and layout (and `allow_unfused` is not set).
        """
        self._alive()
        if epilog is not None:
            self._epilog = Epilog.parse(epilog)
        self._take_inputs(epilog_inputs)
        self._compute_type = self._option(options, None) or self._compute_type
        if self._a is None:
            spec = self._spec_only
            if spec.epilog is not self._epilog:
                raise SpecError(f"the spec says epilog {spec.epilog.name}, plan() says {self._epilog.name}.", spec=spec)
            operands = Operands(spec, self._arrays, self._device, 256)
            has_c = spec.c is not None
        else:
            operands = self._analyse()
            has_c = self._c is not None
        self._check_aux(operands.spec)
        prepared = prepare(operands, self._alpha, self._beta, has_c)
        plan = prepared.plan
        if not plan.fused and not self._allow_unfused:
            raise SpecError(f"{plan.refusal} allow_unfused=True computes it in steps.", spec=operands.spec)
        self._prepared = prepared
        self._bind()
        return self

    def _analyse(self) -> Operands:
        bias = self._inputs.get("bias") if self._epilog.has_bias else None
        for name in self._inputs:
            if name != self._epilog.aux_input and not (name == "bias" and self._epilog.has_bias):
                raise ArgumentError(f"epilog {self._epilog.name} takes no {name}; remove it from epilog_inputs.")
        compute = self._compute_type
        if compute is None:
            compute = default_compute_type(self._arrays, self._arrays.describe(self._a).dtype)
        operands = analyse(self._a, self._b, c=self._c, bias=bias, epilog=self._epilog, compute_type=compute,
                           out_dtype=self._out_dtype, scaled=tuple(s is not None for s in self._scales))  # fmt: skip
        if self._spec_only is not None and operands.spec != self._spec_only:
            raise ArgumentError(f"the operands are {operands.spec}, but the plan is for {self._spec_only}.")
        return operands

    def _check_aux(self, spec: MatmulSpec):
        """Raw buffer of the mask that the epilog reads."""
        name = self._epilog.aux_input
        if name is None or self._a is None:
            return None
        mask = self._inputs.get(name)
        if not isinstance(mask, Mask):
            raise ArgumentTypeError(
                f"epilog {self._epilog.name} needs epilog_inputs={{'{name}': ...}}, the mask of the forward product "
                f"(got {type(mask).__name__})."
            )
        return mask.data_for(name, spec.out_shape, spec.out_dtype, self._device, self._arrays)

    def _bind(self) -> None:
        """Note the pointers of the operands, so that a call need not ask for them."""
        prepared = self._prepared
        self._lean = None
        if self._a is None:
            return
        if lean.possible(prepared) and self._epilog.aux_input is None:
            bias = self._inputs.get("bias") if self._epilog.has_bias else None
            self._lean = lean.LeanCall(prepared, self._a, self._b, self._c, bias)

    # ------------------------------------------------------------ using

    def execute(self, *, out=None, aux=None, stream=None):
        """Run the planned product on the operands.

        Parameters
        ----------
        out : array, optional
            Receives the result.
        aux : ReluMask or GeluAux, optional
            A mask of an earlier execution, written again instead of making a new one; the old object is void then.
        stream : optional
            Stream to run on; the package's current stream if not given.

        Returns
        -------
        array, or (array, dict)
            With auxiliary outputs by nvmath's names: ``relu_aux``, ``gelu_aux``, ``drelu_bgrad``, ``dgelu_bgrad``,
            ``bgrada``, ``bgradb``.
        """
        call = self._lean
        if call is not None:
            result = call(out, stream)
            if result is not None:
                return result
        return self._execute_fully(out, aux, stream)

    def _execute_fully(self, out, aux, stream):
        """Everything but the lean case: checks, masks, gradients, steps."""
        self._alive()
        if self._prepared is None:
            raise ArgumentError("nothing is planned yet; call plan() before execute().")
        if self._a is None:
            raise ArgumentError("there are no operands; pass them to reset_operands() before execute().")
        prepared = self._prepared
        if out is not None:  # its layout and alignment may ask for another plan, which the cache may have
            spec = prepared.spec
            bias = self._inputs.get("bias") if self._epilog.has_bias else None
            operands = analyse(self._a, self._b, c=self._c, bias=bias, out=out, epilog=self._epilog, scaled=spec.scaled,
                               compute_type=spec.compute_type, out_dtype=spec.out_dtype)  # fmt: skip
            prepared = prepare(operands, self._alpha, self._beta, self._c is not None)
        if aux is not None and not (isinstance(aux, Mask) and prepared.mask_class is type(aux)):
            raise ArgumentTypeError(f"aux={aux!r} is not the mask that epilog {self._epilog.name} returns.")
        raw = self._check_aux(prepared.spec)
        scales = tuple(
            device_scale(value, name, self._arrays, self._device)
            for name, value in zip(("scale_a", "scale_b", "scale_out"), self._scales, strict=True)
        )
        bias = self._inputs.get("bias") if self._epilog.has_bias else None
        out, mask, gradient = prepared(self._a, self._b, self._c, bias, raw, out, aux, stream, scales, self._lifetime)
        if mask is None and gradient is None:
            return out
        named = {}
        if mask is not None:
            named[mask.kind] = mask
        if gradient is not None:
            named[self._epilog.gradient_output] = gradient
        return out, named

    def reset_operands(self, a=_UNCHANGED, b=_UNCHANGED, *, c=_UNCHANGED, bias=_UNCHANGED, epilog_inputs=None,
                       alpha=_UNCHANGED, beta=_UNCHANGED) -> FusedMatmul:  # fmt: skip
        """Replace operands by others of the same shapes, dtypes and layouts; returns self.

        Raises
        ------
        ArgumentError
            They do not fit what is planned; the operands stay as they were.
        """
        self._alive()
        before = (self._a, self._b, self._c, self._alpha, self._beta, dict(self._inputs))
        pick = lambda new, old: old if new is _UNCHANGED else new  # noqa: E731
        self._a, self._b, self._c = pick(a, self._a), pick(b, self._b), pick(c, self._c)
        self._alpha, self._beta = pick(alpha, self._alpha), pick(beta, self._beta)
        try:
            self._take_inputs(epilog_inputs, None if bias is _UNCHANGED else bias)
            if self._a is None or self._b is None:
                raise ArgumentError("reset_operands needs both `a` and `b` the first time.")
            if self._prepared is not None:
                self._replace()
        except Exception:
            self._a, self._b, self._c, self._alpha, self._beta, self._inputs = before
            raise
        return self

    def _replace(self) -> None:
        """Take the plan for the present operands, if they are what was planned for."""
        operands = self._analyse()
        planned = self._prepared.spec
        if operands.spec != planned:
            raise ArgumentError(f"the new operands are {operands.spec}, but planned is {planned}; make another object.")
        if operands.arrays is not self._arrays or operands.device != self._device:
            raise ArgumentError(f"the new operands lie elsewhere than planned ({self._arrays.name}, {self._device}).")
        self._check_aux(operands.spec)
        self._prepared = prepare(operands, self._alpha, self._beta, self._c is not None)
        self._bind()

    def autotune(self, *, candidates: int = 32, rounds: int = 5, search: bool = True) -> dict[str, object]:
        """Time the library's algorithms on the operands and keep the fastest, on disk too.

        The result of the product is not kept. On NumPy there is nothing to choose.

        Parameters
        ----------
        candidates : int
            How many to ask cuBLASLt's heuristic for; it knows a few.
        rounds : int
            How often to time each; those near the fastest are timed more often.
        search : bool
            Also try the heuristic's choices for the product without its epilog, and other tiles and cluster shapes
            around the fastest.

        Returns
        -------
        dict
            ``milliseconds`` for each algorithm, the index of the ``best``, how many the ``heuristic`` had (they come
            first) and the number of ``candidates`` in all.
        """
        self._alive()
        if self._prepared is None:
            self.plan()
        if self._device == CPU:
            return {"milliseconds": [], "best": None, "heuristic": 0, "candidates": 0}
        if self._a is None:
            raise ArgumentError("autotune needs operands; pass them to reset_operands() first.")
        prepared = self._prepared
        raw = self._check_aux(prepared.spec)
        bias = self._inputs.get("bias") if self._epilog.has_bias else None
        with self._arrays.on(self._device):
            report = self._tune(prepared, bias, raw, candidates=candidates, rounds=rounds, search=search)
        self._bind()
        return report

    def _tune(self, prepared: Prepared, bias, raw, **options) -> dict[str, object]:
        """Time algorithms; each result is compared with the first one's."""
        arrays = self._arrays
        last = [prepared(self._a, self._b, self._c, bias, raw)]
        out, mask, gradient = last[0]
        first = (elementwise.copy(arrays, out), None if mask is None else mask.unpack(), gradient)

        def run() -> None:
            last[0] = prepared(self._a, self._b, self._c, bias, raw, out, None)

        def right() -> bool:
            _, mask, gradient = last[0]
            now = (out, None if mask is None else mask.unpack(), gradient)
            return all(elementwise.alike(arrays, a, b) for a, b in zip(now, first, strict=True))

        return tuned.measure(prepared.plan.lt, run, right, **options)

    # ------------------------------------------------------------ state

    @property
    def spec(self) -> MatmulSpec | None:
        """What is planned."""
        return self._prepared.spec if self._prepared else self._spec_only

    @property
    def fused(self) -> bool | None:
        """Whether one library call does everything; None before planning."""
        return self._prepared.plan.fused and not self._prepared.plan.stepwise if self._prepared else None

    def _alive(self) -> None:
        if self._lifetime.ended:
            raise ArgumentError(f"this FusedMatmul cannot be used: {self._lifetime.ended}.")

    def free(self) -> None:
        """Let go of operands and plan. Masks that this object has made are void from now on."""
        self._lifetime.ended = "the FusedMatmul it belongs to was freed"
        self._lean = self._prepared = None
        self._a = self._b = self._c = None
        self._inputs = {}

    def __enter__(self) -> FusedMatmul:
        return self

    def __exit__(self, *exception) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"<FusedMatmul {self.spec if self.spec else self._epilog.name}>"
