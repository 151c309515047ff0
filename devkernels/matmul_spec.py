"""What the caller of `devkernels.matmul` asked for: frozen, hashable, validated.

In: the keywords of the factory. Out: a `MatmulSpec` whose fields fit each other; what the library leaves open is filled
in by devkernels/matmul_traits.py. Nothing of CUDA is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

from devkernels.checks import one_of, whole_number
from devkernels.errors import ResourceError, SpecError
from devkernels.target import Target, current_target

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
              "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}  # fmt: skip
ARRANGEMENTS = ("row_major", "col_major")
TRANSPOSE_MODES = ("non_transposed", "transposed", "conj_transposed")
DATA_TYPES = ("real", "complex")
LAYOUTS = ("plain", "suggested")
MAX_ALIGNMENT = 16
LEAST_THREADS = 32  # of a block; cuBLASDx refuses fewer, in most of its versions
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class MatmulSpec:
    """One block-wide product c = alpha op(a) op(b) + beta c on shared memory. Triples are for a, b, c.

    `leading_dimension`, `alignment` and `block_dim` are None until the spec is completed.
    """

    size: Triple  # m, n, k
    precision: tuple[str, str, str]
    data_type: str
    target: Target
    arrangement: tuple[str, str, str] | None = None
    transpose_mode: tuple[str, str] | None = None
    leading_dimension: Triple | None = None
    alignment: Triple | None = None
    block_dim: Triple | None = None
    static_block_dim: bool = False
    layout: str = "plain"  # of a and b in shared memory
    with_pipeline: bool = False  # a and b come through a pipeline, from matrices in global memory

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Rows and columns of op(a), op(b) and c."""
        m, n, k = self.size
        return (m, k), (k, n), (m, n)

    @property
    def row_order(self) -> tuple[bool, bool, bool]:
        """Whether consecutive elements in memory lie in a row of op(a), op(b), c."""
        if self.transpose_mode is None:
            return tuple(order == "row_major" for order in self.arrangement)
        return (*(mode != "non_transposed" for mode in self.transpose_mode), False)

    @property
    def conjugated(self) -> tuple[bool, bool]:
        """Whether a and b are conjugated on the way."""
        return tuple(mode == "conj_transposed" for mode in self.transpose_mode or ("", ""))

    @property
    def least_leading_dimension(self) -> Triple:
        """Leading dimensions of matrices without gaps."""
        return tuple(shape[1] if rows else shape[0] for shape, rows in zip(self.shapes, self.row_order, strict=True))

    @property
    def item_bytes(self) -> Triple:
        """Bytes of one element."""
        factor = 2 if self.data_type == "complex" else 1
        return tuple(ITEM_BYTES[p] * factor for p in self.precision)

    @property
    def value_types(self) -> tuple[str, str, str]:
        """Names of the dtypes of a, b and c."""
        if self.data_type == "real":
            return self.precision
        return tuple({"float32": "complex64", "float64": "complex128"}[p] for p in self.precision)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        x, y, z = self.block_dim
        return x * y * z

    def sizes(self, leading_dimension: Triple | None = None) -> Triple:
        """Elements of a, b and c in memory, gaps of the leading dimension included."""
        chosen = leading_dimension or self.leading_dimension
        return tuple(
            ld * (shape[0] if rows else shape[1])
            for ld, shape, rows in zip(chosen, self.shapes, self.row_order, strict=True)
        )

    def shared_bytes(self, matrices: int = 3, leading_dimension: Triple | None = None) -> int:
        """Bytes of shared memory for the first `matrices` of a, b, c one after another, each aligned."""
        total = 0
        sizes = self.sizes(leading_dimension)
        for i in range(matrices):
            align = max(self.alignment[i], self.item_bytes[i])
            total = -(-total // align) * align + sizes[i] * self.item_bytes[i]
        return total

    def __str__(self) -> str:
        m, n, k = self.size
        kinds = self.precision[0] if len(set(self.precision)) == 1 else " x ".join(self.precision[:2])
        if len(set(self.precision)) > 1:
            kinds += f" -> {self.precision[2]}"
        orders = self.arrangement or self.transpose_mode
        layout = "" if self.layout == "plain" else f", {self.layout} layout"
        layout += ", pipelined" if self.with_pipeline else ""
        return f"{self.data_type} product {m} x {n} x {k}, {kinds}, {'/'.join(orders)}{layout}, on {self.target}"


def _precision(value: object) -> tuple[str, str, str]:
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * 3
    if len(given) != 3:
        raise SpecError(f"precision={value!r} must be one dtype, or three: of a, b and c.")
    names = []
    for one in given:
        name = one if isinstance(one, str) else getattr(one, "__name__", None) or getattr(one, "name", None)
        name = str(name if name is not None else one).removeprefix("torch.")
        name = {"complex64": "float32", "complex128": "float64"}.get(name, name)
        if name not in ITEM_BYTES:
            raise SpecError(f"precision={value!r} is not supported; choose from {', '.join(ITEM_BYTES)}.")
        names.append(name)
    floats = {"float" in name for name in names}
    if len(floats) > 1:
        raise SpecError(f"precision={tuple(names)} mixes floating point and integers; convert one side.")
    if ITEM_BYTES[names[2]] < max(ITEM_BYTES[names[0]], ITEM_BYTES[names[1]]):
        raise SpecError(f"precision={tuple(names)}: c must be at least as precise as a and b.")
    if floats == {False} and ITEM_BYTES[names[2]] < min(8, 4 * max(ITEM_BYTES[names[0]], ITEM_BYTES[names[1]])):
        raise SpecError(
            f"precision={tuple(names)}: products of integers are added up in c, which must have four times their "
            f"width: int32 for int8, int64 for int16."
        )
    return tuple(names)


def _triple(value: object, argument: str, names: str = "a, b and c") -> Triple:
    try:
        given = tuple(value)
    except TypeError:
        given = ()
    if len(given) != 3:
        raise SpecError(f"{argument}={value!r} must be three whole numbers: of {names}.")
    return tuple(whole_number(one, argument) for one in given)


def _orders(arrangement: object, transpose_mode: object) -> tuple:
    if arrangement is not None and transpose_mode is not None:
        raise SpecError("give arrangement or transpose_mode, not both.")
    if transpose_mode is not None:
        given = tuple(transpose_mode) if isinstance(transpose_mode, (tuple, list)) else (transpose_mode,) * 2
        if len(given) != 2:
            raise SpecError(f"transpose_mode={transpose_mode!r} must be one mode, or two: of a and b.")
        return None, tuple(one_of(one, "transpose_mode", TRANSPOSE_MODES) for one in given)
    arrangement = "row_major" if arrangement is None else arrangement
    given = tuple(arrangement) if isinstance(arrangement, (tuple, list)) else (arrangement,) * 3
    if len(given) != 3:
        raise SpecError(f"arrangement={arrangement!r} must be one order, or three: of a, b and c.")
    return tuple(one_of(one, "arrangement", ARRANGEMENTS) for one in given), None


def make_matmul_spec(
    *,
    size: object,
    precision: object,
    data_type: str = "real",
    arrangement: object = None,
    transpose_mode: object = None,
    leading_dimension: object = None,
    alignment: object = None,
    block_dim: object = None,
    block_size: object = None,
    static_block_dim: bool = False,
    layout: str = "plain",
    with_pipeline: bool = False,
    sm: object = None,
) -> MatmulSpec:
    """Validate the keywords of `devkernels.matmul`. ``"suggested"`` becomes None here; the traits decide it.

    Raises
    ------
    SpecError
        A keyword is invalid alone or with the others.
    TargetError
        The architecture is unknown.
    """
    arrangement, transpose_mode = _orders(arrangement, transpose_mode)
    data_type = one_of(data_type, "data_type", DATA_TYPES)
    names = _precision(precision)
    if data_type == "complex" and not set(names) <= {"float32", "float64"}:
        raise SpecError(
            f"data_type='complex' with precision={names}: complex products are of float32 or float64, since neither "
            f"NumPy nor Numba has complex numbers of other kinds."
        )
    if block_size is not None and block_dim is not None:
        raise SpecError("give block_dim or block_size, not both.")
    if block_size not in (None, "suggested"):
        block_dim = (whole_number(block_size, "block_size"), 1, 1)
    if block_dim in (None, "suggested"):
        block_dim = None
    else:
        given = tuple(block_dim) if isinstance(block_dim, (tuple, list)) else (block_dim,)
        block_dim = _triple((*given, 1, 1)[: max(3, len(given))], "block_dim", "x, y and z")
    target = current_target() if sm is None else Target.parse(sm)
    spec = MatmulSpec(
        size=_triple(size, "size", "m, n and k"),
        precision=names,
        data_type=data_type,
        target=Target(target.major, target.minor),
        arrangement=arrangement,
        transpose_mode=transpose_mode,
        leading_dimension=None if leading_dimension in (None, "suggested") else _triple(leading_dimension,
                                                                                       "leading_dimension"),
        alignment=None if alignment is None else _triple(alignment, "alignment"),
        block_dim=block_dim,
        static_block_dim=bool(static_block_dim),
        layout=one_of(layout, "layout", LAYOUTS),
        with_pipeline=bool(with_pipeline),
    )  # fmt: skip
    _check(spec)
    return spec


def _check(spec: MatmulSpec) -> None:
    if "bfloat16" in spec.precision and (not spec.with_pipeline or spec.precision[2] != "float32"):
        raise SpecError(
            f"precision={spec.precision}: bfloat16 is multiplied into float32 by pipelines (with_pipeline=True), whose "
            f"operands are whole matrices; NumPy has no such dtype for tiles.",
            spec=spec,
        )
    if spec.with_pipeline and spec.layout != "plain":
        raise SpecError("with_pipeline places elements as it needs them; leave layout out.", spec=spec)
    if spec.layout == "suggested" and (spec.leading_dimension is not None or spec.transpose_mode is not None):
        raise SpecError(
            "layout='suggested' goes with arrangement and without leading dimensions: the library places elements.",
            spec=spec,
        )
    if spec.leading_dimension is not None:
        for name, given, least in zip("abc", spec.leading_dimension, spec.least_leading_dimension, strict=True):
            if given < least:
                raise SpecError(
                    f"leading_dimension={spec.leading_dimension}: that of {name} must be at least {least}.", spec=spec
                )
    if spec.alignment is not None:
        for name, given, item in zip("abc", spec.alignment, spec.item_bytes, strict=True):
            if given > MAX_ALIGNMENT or given % item or given & (given - 1):
                raise SpecError(
                    f"alignment={spec.alignment}: that of {name} must be a power of two, a multiple of its {item} "
                    f"bytes per element, and at most {MAX_ALIGNMENT}.",
                    spec=spec,
                )
    if spec.block_dim is not None and spec.threads < LEAST_THREADS:
        raise SpecError(
            f"block_dim={spec.block_dim} has {spec.threads} threads; a product takes at least {LEAST_THREADS}.",
            spec=spec,
        )
    if spec.block_dim is not None and spec.threads > spec.target.max_threads_per_block:
        raise ResourceError(
            f"block_dim={spec.block_dim} has {spec.threads} threads; {spec.target} has at most "
            f"{spec.target.max_threads_per_block} per block.",
            spec=spec,
        )


def check_shared(spec: MatmulSpec) -> None:
    """Raise ResourceError if a, b and c do not fit one block's shared memory, nor a and b alone."""
    if (least := spec.shared_bytes(2)) > spec.target.max_shared_bytes:
        raise ResourceError(
            f"a and b of the {spec} take {least} bytes of shared memory; a block of {spec.target} has "
            f"{spec.target.max_shared_bytes}: choose a smaller size, or go through k in steps.",
            spec=spec,
        )
