"""What a spec means for its target: which knobs it has, block shape, shared bytes, lengths, scale.

In: an `FFTSpec` that exists (devkernels/fft_sizes.py). Out: the completed spec and its `FFTTraits`. Numbers come from
libmathdx where it is installed, and from the stored table where it is not; a test compares the two.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from devkernels import cache, libmathdx, versions
from devkernels.checks import whole_number
from devkernels.errors import ResourceError, SpecError
from devkernels.fft_sizes import check_supported, description, stored_variants
from devkernels.spec import FFTSpec

# name in libmathdx -> (bytes, what the arrays of a kernel are made of)
VALUE_BYTES = {"complex64": 8, "complex128": 16, "complex32x2": 8}


@dataclass(frozen=True)
class FFTTraits:
    """Traits of one device FFT, by the names that cuFFTDx gives them; lengths count elements of that side's type."""

    value_type: str
    input_type: str
    output_type: str
    implicit_type_batching: int
    elements_per_thread: int
    storage_size: int
    stride: int
    input_length: int
    output_length: int
    input_elements_per_thread: int
    output_elements_per_thread: int
    block_dim: tuple[int, int, int] | None
    shared_memory_size: int | None
    ffts_per_block: int | None
    suggested_ffts_per_block: int | None


def elements_per_thread_values(spec: FFTSpec) -> list[int]:
    """Every elements_per_thread that a block transform of this size can have, ascending."""
    if libmathdx.available():
        plain = replace(spec, elements_per_thread=None, ffts_per_block=None)
        return sorted({value for value, _ in libmathdx.knobs(description(plain))})
    return sorted({value for value, _, _ in stored_variants(spec)})


def complete(spec: FFTSpec, elements_per_thread: object = None, ffts_per_block: object = None) -> FFTSpec:
    """Add the knobs: the library's default elements per thread, its suggested FFTs per block, or the caller's."""

    def knobs() -> list:
        found = _complete(spec, elements_per_thread, ffts_per_block)
        return [found.elements_per_thread, found.ffts_per_block]

    asked = (elements_per_thread, ffts_per_block)
    if not all(value is None or type(value) in (int, str) for value in asked):
        knobs_found = knobs()
    else:
        knobs_found = remembered("knobs", (spec, *asked), knobs)
    return replace(spec, elements_per_thread=knobs_found[0], ffts_per_block=knobs_found[1])


def remembered(question: str, about: object, ask: Callable[[], Any]) -> Any:
    """Answer of the library, kept on disk: loading it takes longer than all else in a program that compiles nothing."""
    if not versions.libraries()["libmathdx"]:
        return ask()
    key = cache.digest(question, about, versions.for_functions())
    known = cache.get("traits", key)
    if known is not None:
        return json.loads(known)
    answer = ask()
    if libmathdx.available():  # what the stored table says is not the library's word
        cache.put("traits", key, json.dumps(answer).encode())
    return answer


def _complete(spec: FFTSpec, elements_per_thread: object, ffts_per_block: object) -> FFTSpec:
    check_supported(spec)
    if not spec.is_block:
        for name, value in (("elements_per_thread", elements_per_thread), ("ffts_per_block", ffts_per_block)):
            if value not in (None, "suggested") and not (name == "elements_per_thread" and value == spec.size):
                raise SpecError(f"{name}={value!r} only applies to execution='Block'; leave it out.", spec=spec)
        return spec
    asked = (
        None if elements_per_thread in (None, "suggested") else whole_number(elements_per_thread, "elements_per_thread")
    )
    known = elements_per_thread_values(spec)
    if asked is not None and asked not in known:
        raise SpecError(
            f"elements_per_thread={asked} is not available for the {spec}; choose one of {', '.join(map(str, known))}.",
            spec=spec,
        )
    spec = replace(spec, elements_per_thread=asked)
    if ffts_per_block in (None, "suggested"):
        per_block = raw_traits(spec).suggested_ffts_per_block
    else:
        per_block = whole_number(ffts_per_block, "ffts_per_block")
        if per_block % spec.batching:
            raise SpecError(
                f"ffts_per_block={per_block} must be even in float16: two rows share each value.", spec=spec
            )
    spec = replace(spec, ffts_per_block=per_block)
    spec = replace(spec, elements_per_thread=raw_traits(spec).elements_per_thread)
    check_block_fits(spec, raw_traits(spec))
    return spec


def check_block_fits(spec: FFTSpec, found: FFTTraits) -> None:
    """Raise ResourceError if one block of this transform exceeds the target's threads or shared memory."""
    x, y, z = found.block_dim
    target, one = spec.target, found.ffts_per_block
    if x * y * z > target.max_threads_per_block:
        fits = max(target.max_threads_per_block // x, 1) * spec.batching
        raise ResourceError(
            f"ffts_per_block={one} needs {x * y * z} threads per block; {target} has {target.max_threads_per_block}: "
            f"use ffts_per_block <= {fits}.",
            spec=spec,
        )
    if found.shared_memory_size > target.max_shared_bytes:
        fits = one * target.max_shared_bytes // found.shared_memory_size // spec.batching * spec.batching
        remedy = f"use ffts_per_block <= {fits}" if fits else "no block of this target holds one such transform"
        raise ResourceError(
            f"ffts_per_block={one} needs {found.shared_memory_size} bytes of shared memory per block; {target} has "
            f"{target.max_shared_bytes}: {remedy}.",
            spec=spec,
        )


@functools.cache
def raw_traits(spec: FFTSpec) -> FFTTraits:
    """Traits from libmathdx where it is installed, else from the stored table."""

    def ask() -> dict:
        return asdict(library_traits(spec) if libmathdx.available() else stored_traits(spec))

    found = remembered("traits", spec, ask)
    block = found["block_dim"]
    return FFTTraits(**{**found, "block_dim": None if block is None else tuple(block)})


@functools.cache
def library_traits(spec: FFTSpec) -> FFTTraits:
    """Traits as libmathdx reports them."""
    found = libmathdx.traits(description(spec))
    return FFTTraits(**{name: found[name] for name in FFTTraits.__dataclass_fields__})


@functools.cache
def stored_traits(spec: FFTSpec) -> FFTTraits:
    """Traits computed from the stored table; equal to `library_traits` (tests/aot/test_fft_table.py)."""
    size, real = spec.size, spec.fft_type != "c2c"
    folded = real and spec.real_mode == "folded"
    batching = spec.batching
    if spec.is_block:
        variants = stored_variants(spec)
        per_thread, suggested, shared = next((v for v in variants if v[0] == spec.elements_per_thread), variants[0])
        per_block = spec.ffts_per_block or batching
        threads = size // per_thread
        block_dim = (threads, per_block // batching, 1)
        shared *= per_block // batching
    else:
        per_thread, threads = size & ~1 if folded else size, 1
        suggested = shared = per_block = block_dim = None
    complex_length = {"natural": size // 2 + 1, "packed": size // 2, "full": size}[spec.layout] if real else size
    real_length = size // 2 if folded else size
    moved = per_thread // 2 if folded else per_thread  # folded: two reals travel as one complex value
    storage = per_thread
    if folded:
        storage = {"natural": per_thread // 2 + 1, "packed": per_thread // 2, "full": per_thread}[spec.layout]
    value = {"float16": "complex32x2", "float32": "complex64", "float64": "complex128"}[spec.precision]
    plain_real = {"float16": "float16x2", "float32": "float32", "float64": "float64"}[spec.precision]
    real_type = value if folded else plain_real
    return FFTTraits(
        value_type=value,
        input_type=real_type if spec.fft_type == "r2c" else value,
        output_type=real_type if spec.fft_type == "c2r" else value,
        implicit_type_batching=batching,
        elements_per_thread=per_thread,
        storage_size=storage,
        stride=threads,
        input_length=real_length if spec.fft_type == "r2c" else complex_length,
        output_length=real_length if spec.fft_type == "c2r" else complex_length,
        input_elements_per_thread=moved,
        output_elements_per_thread=moved,
        block_dim=block_dim,
        shared_memory_size=shared,
        ffts_per_block=per_block,
        suggested_ffts_per_block=suggested,
    )
