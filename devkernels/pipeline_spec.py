"""What a pipelined product is: which products warpgroups can do, stages, bytes of shared memory; as plain values.

In: a `MatmulSpec`, a depth, how the two matrices lie. Out: a `PipelineSpec`, which also goes through text, so that a
kernel's parameter says all about the pipeline that it takes. Nothing of CUDA is imported here.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from devkernels.errors import ResourceError, SpecError
from devkernels.matmul_spec import MatmulSpec
from devkernels.target import Target

WARPGROUP, LIBRARY = "warpgroup", "library"  # who multiplies
TENSOR, THREADS = "tensor", "threads"  # who copies
LINE = 128  # bytes of the inner dimension in a slice of the warpgroups': the width of the swizzle
KINDS = {("float16", "float16", "float32"): "f16", ("bfloat16", "bfloat16", "float32"): "bf16",
         ("int8", "int8", "int32"): "s8"}  # fmt: skip
_GROUP, _ROWS, _SPARE = 128, 64, 40  # threads of a warpgroup, rows of one product of it, registers beside the sums
_REGISTERS, _MOST = 65536, 255
_MOST_DEPTH = 8
_SLACK = 1024  # the swizzle repeats after so many bytes; the buffer may begin anywhere
_TEXT = "DevicePipeline"


def warpgroup_misfit(spec: MatmulSpec) -> str | None:
    """Why warpgroup products cannot multiply tiles of this size and precision; None if they can."""
    m, n, k = spec.size
    if spec.target.major != 9:
        return f"warpgroup products exist on sm_90 only, and this is {spec.target}"
    if spec.data_type != "real" or spec.precision not in KINDS:
        kinds = ", ".join(f"{a} x {b} -> {c}" for a, b, c in KINDS)
        return f"warpgroup products are {kinds}"
    depth = LINE // spec.item_bytes[0]
    if m % _ROWS or m > 256:
        return f"warpgroup products take 64, 128, 192 or 256 rows, not {m}"
    if n % 8 or n > 256:
        return f"warpgroup products take a multiple of 8 columns, at most 256, not {n}"
    if spec.precision[0] == "int8" and n % 16 and n not in (8, 24):
        return f"warpgroup products of int8 take 8, 24, or a multiple of 16 columns, not {n}"
    if k % depth:
        return f"warpgroup products take a multiple of {depth} in the inner dimension, not {k}"
    if spec.block_dim is not None:
        x, y, z = spec.block_dim
        if x % _GROUP or y * z != 1 or m % (x // 2):
            return f"warpgroups of 128 threads share {m} rows 64 by 64; blocks of {spec.block_dim} do not fit that"
        return None if _fits(m * n, x) else f"{m * n // x} sums a thread leave no registers"
    return None if group_threads(spec) else f"{m} x {n} sums do not fit the registers of a block"


def _fits(sums: int, threads: int) -> bool:
    return sums // threads + _SPARE <= min(_MOST, _REGISTERS // threads)


def group_threads(spec: MatmulSpec) -> int | None:
    """Threads of a block of warpgroups: the fewest whose registers hold the sums, at most 128 each."""
    m, n, _ = spec.size
    for threads in range(_GROUP, 2 * m + 1, _GROUP):
        if m % (threads // 2) == 0 and m * n // threads <= 128 and _fits(m * n, threads):
            return threads
    return None


def engine(spec: MatmulSpec) -> str:
    """Who multiplies the tiles of a product made with_pipeline."""
    return LIBRARY if warpgroup_misfit(spec) else WARPGROUP


@dataclass(frozen=True)
class PipelineSpec:
    """A pipelined product of two whole matrices, tile by tile. `turned`: the inner dimension is not the contiguous one.

    `copies` says who fills the stages: tensor copies, or the threads of the block.
    """

    mm: MatmulSpec
    depth: int
    copies: str = THREADS
    a_turned: bool = False
    b_turned: bool = False

    is_device_pipeline = True  # for devkernels/compiler/pipelines.py; no field

    @property
    def engine(self) -> str:
        """Who multiplies."""
        return engine(self.mm)

    @property
    def stage_bytes(self) -> tuple[int, int]:
        """Bytes of a and of b in a stage."""
        m, n, k = self.mm.size
        if self.engine == WARPGROUP:
            item = self.mm.item_bytes[0]
            return m * k * item, n * k * item
        sizes = self.mm.sizes()
        return tuple(-(-sizes[i] * self.mm.item_bytes[i] // 16) * 16 for i in range(2))

    @property
    def buffer_bytes(self) -> int:
        """Dynamic shared memory that the pipeline takes."""
        stages = self.depth * sum(self.stage_bytes)
        return stages + (16 * self.depth + _SLACK if self.engine == WARPGROUP else 0)

    def told(self) -> str:
        """All of it as text."""
        record = dataclasses.asdict(self) | {"mm": {**vars(self.mm), "target": str(self.mm.target)}}
        return _TEXT + json.dumps(record, sort_keys=True)

    @classmethod
    def of(cls, text: str) -> PipelineSpec | None:
        """The spec that `told` has written; None for any other text."""
        if not text.startswith(_TEXT + "{"):
            return None
        record = json.loads(text.removeprefix(_TEXT))
        mm = {name: tuple(value) if isinstance(value, list) else value for name, value in record.pop("mm").items()}
        return cls(MatmulSpec(**{**mm, "target": Target.parse(mm["target"])}), **record)


def deepest(spec: PipelineSpec) -> int:
    """The most stages, up to 8, that fit the shared memory of a block."""
    room = spec.mm.target.max_shared_bytes
    fitting = [d for d in range(2, _MOST_DEPTH + 1) if dataclasses.replace(spec, depth=d).buffer_bytes <= room]
    return max(fitting, default=2)


def check_depth(spec: PipelineSpec) -> None:
    """Raise unless the stages are at least two and fit the shared memory of a block."""
    if spec.depth < 2:
        raise SpecError(f"pipeline_depth={spec.depth}: a pipeline has at least 2 stages.", spec=spec)
    room = spec.mm.target.max_shared_bytes
    if spec.buffer_bytes > room:
        most = deepest(spec)
        hint = f"at most {most} stages fit" if most < spec.depth else "choose a smaller size"
        raise ResourceError(
            f"pipeline_depth={spec.depth}: {spec.depth} stages of the {spec.mm} take {spec.buffer_bytes} bytes of "
            f"shared memory; a block of {spec.mm.target} has {room}: {hint}.",
            spec=spec,
        )
