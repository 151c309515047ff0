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
from devkernels.linear.inputs import UNCHANGED, Inputs
from devkernels.linear.masks import Lifetime, Mask
from devkernels.linear.matmul import Prepared, prepare
from devkernels.linear.spec import MatmulSpec


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
        self._allow_unfused = allow_unfused
        self._spec_only: MatmulSpec | None = None
        if isinstance(a, MatmulSpec):
            if b is not None or c is not None:
                raise ArgumentTypeError("FusedMatmul takes a spec or arrays, not both; pass arrays to reset_operands.")
            self._spec_only = a
            epilog = a.epilog if epilog is None else epilog
            chosen = device_package or "numpy"
            where = package(chosen), CPU if chosen == "numpy" else device
            a = None
        else:
            if b is None:
                raise ArgumentTypeError("FusedMatmul needs `a` and `b`, or a MatmulSpec.")
            arrays = arrays_of(a, "a")
            where = arrays, arrays.describe(a).device
        self._inputs = Inputs(*where, a, b, c, alpha=alpha, beta=beta, epilog=Epilog.parse(epilog), out_dtype=out_dtype,
                              scales=(scale_a, scale_b, scale_out))  # fmt: skip
        self._inputs.take_options(options, compute_type)
        self._inputs.take(epilog_inputs, bias)

    # ------------------------------------------------------------ planning

    def plan(self, *, epilog=None, epilog_inputs: Mapping | None = None, options: Mapping | None = None) -> FusedMatmul:
        """Choose the kernel; returns self. Plans are cached: planning the same again is cheap.

        Raises
        ------
        SpecError
            The device has no fused kernel for this epilog, dtype and layout (and `allow_unfused` is not set).
        """
        self._alive()
        inputs = self._inputs
        if epilog is not None:
            inputs.epilog = Epilog.parse(epilog)
        inputs.take(epilog_inputs)
        inputs.take_options(options)
        spec = self._spec_only
        operands = inputs.without_arrays(spec) if inputs.a is None else inputs.operands(spec)
        has_c = inputs.has_c if inputs.a is not None else spec.c is not None
        inputs.raw_mask(operands.spec)
        prepared = prepare(operands, inputs.alpha, inputs.beta, has_c)
        plan = prepared.plan
        if not plan.fused and not self._allow_unfused:
            raise SpecError(f"{plan.refusal} allow_unfused=True computes it in steps.", spec=operands.spec)
        self._prepared = prepared
        self._bind()
        return self

    def _bind(self) -> None:
        """Note the pointers of the operands, so that a call need not ask for them."""
        prepared, inputs = self._prepared, self._inputs
        self._lean = None
        if inputs.a is not None and lean.possible(prepared) and inputs.epilog.aux_input is None:
            self._lean = lean.LeanCall(prepared, inputs.a, inputs.b, inputs.c, inputs.bias)

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
        inputs, prepared = self._inputs, self._prepared
        if inputs.a is None:
            raise ArgumentError("there are no operands; pass them to reset_operands() before execute().")
        if out is not None:
            prepared = prepare(inputs.operands_into(out, prepared.spec), inputs.alpha, inputs.beta, inputs.has_c)
        if aux is not None and not (isinstance(aux, Mask) and prepared.mask_class is type(aux)):
            raise ArgumentTypeError(f"aux={aux!r} is not the mask that epilog {inputs.epilog.name} returns.")
        raw = inputs.raw_mask(prepared.spec)
        out, mask, gradient = prepared(inputs.a, inputs.b, inputs.c, inputs.bias, raw, out, aux, stream,
                                       inputs.device_scales(), self._lifetime)  # fmt: skip
        if mask is None and gradient is None:
            return out
        named = {}
        if mask is not None:
            named[mask.kind] = mask
        if gradient is not None:
            named[inputs.epilog.gradient_output] = gradient
        return out, named

    def reset_operands(self, a=UNCHANGED, b=UNCHANGED, *, c=UNCHANGED, bias=UNCHANGED, epilog_inputs=None,
                       alpha=UNCHANGED, beta=UNCHANGED) -> FusedMatmul:  # fmt: skip
        """Replace operands by others of the same shapes, dtypes and layouts; returns self.

        Raises
        ------
        ArgumentError
            They do not fit what is planned; the operands stay as they were.
        """
        self._alive()
        inputs = self._inputs.replaced(a, b, c, alpha, beta, epilog_inputs, bias)
        if inputs.a is None or inputs.b is None:
            raise ArgumentError("reset_operands needs both `a` and `b` the first time.")
        prepared = None if self._prepared is None else self._prepared_for(inputs)
        self._inputs = inputs
        if prepared is not None:
            self._prepared = prepared
            self._bind()
        return self

    def _prepared_for(self, inputs: Inputs) -> Prepared:
        """Return the planned call for other operands, if they are what was planned for."""
        operands = inputs.operands(self._spec_only)
        planned = self._prepared.spec
        if operands.spec != planned:
            raise ArgumentError(f"the new operands are {operands.spec}, but planned is {planned}; make another object.")
        if operands.arrays is not inputs.arrays or operands.device != inputs.device:
            raise ArgumentError(f"the new operands lie elsewhere than planned ({inputs.arrays.name}, {inputs.device}).")
        inputs.raw_mask(operands.spec)
        return prepare(operands, inputs.alpha, inputs.beta, inputs.has_c)

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
            Also try the heuristic's choices for the product without its epilog, and around the fastest other tiles,
            schedules and cluster shapes: a second or two for a product of some hundred microseconds.

        Returns
        -------
        dict
            ``milliseconds`` for each algorithm, the index of the ``best``, how many the ``heuristic`` had (they come
            first) and the number of ``candidates`` in all.
        """
        self._alive()
        if self._prepared is None:
            self.plan()
        inputs = self._inputs
        if inputs.device == CPU:
            return {"milliseconds": [], "best": None, "heuristic": 0, "candidates": 0}
        if inputs.a is None:
            raise ArgumentError("autotune needs operands; pass them to reset_operands() first.")
        with inputs.arrays.on(inputs.device):
            report = self._tune(inputs, candidates=candidates, rounds=rounds, search=search)
        self._bind()
        return report

    def _tune(self, inputs: Inputs, **options) -> dict[str, object]:
        """Time algorithms; each result is compared with the first one's."""
        arrays, prepared = inputs.arrays, self._prepared
        given = inputs.a, inputs.b, inputs.c, inputs.bias, inputs.raw_mask(prepared.spec)
        last = [prepared(*given)]
        out, mask, gradient = last[0]
        first = (elementwise.copy(arrays, out), None if mask is None else mask.unpack(), gradient)

        def run() -> None:
            last[0] = prepared(*given, out, None)

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
        self._inputs.a = self._inputs.b = self._inputs.c = None
        self._inputs.named = {}

    def __enter__(self) -> FusedMatmul:
        return self

    def __exit__(self, *exception) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"<FusedMatmul {self.spec if self.spec else self._inputs.epilog.name}>"
