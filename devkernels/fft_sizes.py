"""Which device FFTs exist: sizes, layouts and knobs that libmathdx has functions for.

In: an `FFTSpec`. Out: yes or no and the neighbours that do exist, and the spec in libmathdx's terms. Asked of libmathdx
where it is installed; elsewhere a stored table answers (data/fft_table.json, made by scripts/make_fft_table.py), and a
test compares the two.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from dataclasses import replace

from devkernels import libmathdx
from devkernels.errors import UnsupportedSizeError
from devkernels.spec import FFTSpec


@functools.cache
def _stored() -> dict:
    text = importlib.resources.files("devkernels").joinpath("data/fft_table.json").read_text()
    return json.loads(text)


def _table(precision: str, target_number: int) -> dict:
    stored = _stored()
    return stored["tables"][stored["targets"][str(target_number)]][precision]


def description(spec: FFTSpec, api: str = "register") -> libmathdx.Description:
    """The spec in libmathdx's terms."""
    real = spec.fft_type != "c2c"
    return libmathdx.Description(
        size=spec.size,
        precision=spec.precision,
        fft_type=spec.fft_type,
        direction=spec.direction,
        execution=spec.execution,
        sm=spec.target.number,
        ffts_per_block=spec.ffts_per_block,
        elements_per_thread=spec.elements_per_thread,
        layout=spec.layout if real else None,
        real_mode=spec.real_mode if real else None,
        api=api,
    )


def stored_variants(spec: FFTSpec) -> list[tuple[int, int, int]]:
    """Stored (elements_per_thread, suggested ffts_per_block, shared bytes of one group), the default first."""
    folded = spec.real_mode == "folded" and spec.fft_type != "c2c"
    return [
        tuple(v) for v in _table(spec.precision, spec.target.number)["folded" if folded else "normal"][str(spec.size)]
    ]


def is_power_of_two(n: int) -> bool:
    """Whether folded real mode has a block transform of this size."""
    return n > 0 and n & (n - 1) == 0


def parity_problem(spec: FFTSpec) -> str | None:
    """Say why a layout cannot have this size, or return None. libmathdx only finds out when it compiles."""
    if spec.fft_type == "c2c":
        return None
    if spec.real_mode == "folded":
        if spec.is_block and not is_power_of_two(spec.size):
            return "folded real mode in block execution needs a power of two"
        if spec.size % 2:
            return "folded real mode needs an even size"
        if spec.size < 4:
            return "folded real mode needs a size of at least 4"
    if spec.layout == "packed" and spec.size % 2:
        return "the packed layout needs an even size"
    return None


def is_supported(spec: FFTSpec) -> bool:
    """Whether a device function exists for this size, layout and target."""
    if spec.size < 2 or parity_problem(spec) is not None:
        return False
    half = spec.real_mode == "folded" and spec.fft_type != "c2c"
    if not spec.is_block:
        return spec.size <= _table(spec.precision, spec.target.number)["thread"] * (2 if half else 1)
    if libmathdx.available():
        return libmathdx.is_supported(description(replace(spec, elements_per_thread=None, ffts_per_block=None)))
    return str(spec.size) in _table(spec.precision, spec.target.number)["folded" if half else "normal"]


def sizes(spec: FFTSpec) -> list[int]:
    """Every size that is supported with the other fields of `spec`, ascending."""
    stored = _table(spec.precision, spec.target.number)
    if spec.is_block:
        # Sizes of the stored table; where the library is installed, each is asked of it.
        candidates = sorted({int(n) for mode in ("normal", "folded") for n in stored[mode]})
    else:
        candidates = range(2, 2 * stored["thread"] + 1)
    return [n for n in candidates if is_supported(replace(spec, size=n))]


def next_size(spec: FFTSpec, at_least: int) -> int | None:
    """The smallest supported size that is not below `at_least`, or None."""
    return next((n for n in sizes(spec) if n >= at_least), None)


def check_supported(spec: FFTSpec) -> None:
    """Raise UnsupportedSizeError, with the neighbours that work, unless a device function exists."""
    if is_supported(spec):
        return
    every = sizes(spec)
    above = next((n for n in every if n >= spec.size), None)
    below = next((n for n in reversed(every) if n < spec.size), None)
    if above is not None:
        remedy = f"the next supported size is {above}"
        if below is not None:
            remedy += f", the one below is {below}"
    else:
        remedy = f"the largest supported size is {below}"
    why = parity_problem(spec)
    raise UnsupportedSizeError(
        f"FFT size {spec.size} is not supported ({spec}){': ' + why if why else ''}; {remedy}. "
        f"devkernels.fft.supported_sizes(...) lists them all.",
        spec=spec,
    )
