"""What the caller of `devkernels.fft` asked for: frozen, hashable, validated.

In: the keywords of the factory. Out: an `FFTSpec` whose fields are each valid on their own and together in kind;
whether the library has such a function is decided in devkernels/traits.py. Nothing of CUDA is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from devkernels.checks import one_of, whole_number
from devkernels.errors import SpecError, TargetError
from devkernels.target import Target, current_target

PRECISIONS = ("float16", "float32", "float64")
FFT_TYPES = ("c2c", "r2c", "c2r")
DIRECTIONS = ("forward", "inverse")
EXECUTIONS = ("Block", "Thread")
LAYOUTS = ("natural", "packed", "full")
REAL_MODES = ("normal", "folded")


@dataclass(frozen=True)
class FFTSpec:
    """One device FFT. `elements_per_thread` and `ffts_per_block` are None for thread execution."""

    size: int
    precision: str
    fft_type: str
    direction: str
    execution: str
    layout: str  # of the complex side of r2c and c2r
    real_mode: str
    target: Target
    elements_per_thread: int | None = None
    ffts_per_block: int | None = None

    @property
    def is_block(self) -> bool:
        """Whether a block's threads share the transform."""
        return self.execution == "Block"

    @property
    def batching(self) -> int:
        """Rows that one value carries: 2 in float16 (two halves side by side), else 1."""
        return 2 if self.precision == "float16" else 1

    def inverse(self) -> FFTSpec:
        """The spec that undoes this one, up to the scale."""
        opposite = {"c2c": "c2c", "r2c": "c2r", "c2r": "r2c"}[self.fft_type]
        return replace(self, fft_type=opposite, direction="inverse" if self.direction == "forward" else "forward")

    def __str__(self) -> str:
        text = (
            f"{self.fft_type} FFT of size {self.size}, {self.precision}, {self.direction}, {self.execution} execution"
        )
        if self.fft_type != "c2c":
            text += f", {self.layout}/{self.real_mode}"
        return f"{text} on {self.target}"


def precision_name(value: object, argument: str = "precision") -> str:
    """Return float16, float32 or float64 for a name, a NumPy scalar type or a dtype.

    The complex kin complex64 and complex128 are taken as well.
    """
    name = value if isinstance(value, str) else getattr(value, "__name__", None) or getattr(value, "name", None)
    name = str(name if name is not None else value).removeprefix("torch.")
    name = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}.get(name, name)
    if name not in PRECISIONS:
        raise SpecError(f"{argument}={value!r} is not supported; use numpy.float16, numpy.float32 or numpy.float64.")
    return name


def _real_options(fft_type: str, options: object) -> tuple[str, str]:
    if options is None:
        return "natural", "normal"
    if fft_type == "c2c":
        raise SpecError("real_fft_options only apply to fft_type 'r2c' and 'c2r'; leave them out for 'c2c'.")
    try:
        options = dict(options)
    except (TypeError, ValueError):
        raise SpecError(f"real_fft_options={options!r} must be a dict with 'complex_layout' and 'real_mode'.") from None
    unknown = set(options) - {"complex_layout", "real_mode"}
    if unknown:
        raise SpecError(f"real_fft_options has no key {sorted(unknown)!r}; it takes 'complex_layout' and 'real_mode'.")
    layout = one_of(options.get("complex_layout", "natural"), "real_fft_options['complex_layout']", LAYOUTS)
    mode = one_of(options.get("real_mode", "normal"), "real_fft_options['real_mode']", REAL_MODES)
    return layout, mode


def make_fft_spec(
    *,
    fft_type: str,
    size: int,
    precision: object,
    direction: str | None,
    execution: str,
    real_fft_options: object = None,
    sm: object = None,
) -> FFTSpec:
    """Check each keyword and put them together; knobs are added by devkernels/traits.py."""
    one_of(fft_type, "fft_type", FFT_TYPES)
    one_of(execution, "execution", EXECUTIONS)
    natural_direction = {"r2c": "forward", "c2r": "inverse", "c2c": None}[fft_type]
    if direction is None:
        if natural_direction is None:
            raise SpecError("direction=None: a c2c FFT needs direction='forward' or direction='inverse'.")
        direction = natural_direction
    one_of(direction, "direction", DIRECTIONS)
    if natural_direction not in (None, direction):
        raise SpecError(f"direction={direction!r}: an {fft_type} FFT is always {natural_direction}; leave it out.")
    layout, mode = _real_options(fft_type, real_fft_options)
    try:
        target = current_target() if sm is None else Target.parse(sm)
    except TargetError as error:
        raise SpecError(f"sm={sm!r}: {error}") from None
    return FFTSpec(
        size=whole_number(size, "size"),
        precision=precision_name(precision),
        fft_type=fft_type,
        direction=direction,
        execution=execution,
        layout=layout,
        real_mode=mode,
        target=Target(target.major, target.minor),
    )
