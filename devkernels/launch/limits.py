"""What a launch may ask for: block, grid, registers, shared memory. Said before the launch, with what would fit.

In: a launch configuration and the limits of a kernel on a target. Out: plain numbers, or a `ResourceError`.
"""

from __future__ import annotations

import operator
from typing import Any

from devkernels.compiler.image import KernelImage
from devkernels.errors import ArgumentError, ArgumentTypeError, ResourceError
from devkernels.target import Target

# The same for all supported architectures (CUDA C++ Programming Guide, technical specifications).
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)
_WARP, _REGISTER_UNIT, _PARTITIONS = 32, 256, 4

Dim3 = tuple[int, int, int]


def dim3(value: Any, name: str) -> Dim3:
    """A grid or block as three positive integers."""
    parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    try:
        numbers = tuple(operator.index(part) for part in parts)
    except TypeError:
        raise ArgumentTypeError(f"{name}={value!r} must be an integer or a tuple of up to three.") from None
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise ArgumentError(f"{name}={value!r} must be one to three integers, each at least 1.")
    return (*numbers, 1, 1)[:3]


def configuration(key: Any) -> tuple[Dim3, Dim3, Any, int]:
    """``kernel[grid, block, stream, shared]``: the last two may be left out."""
    if not isinstance(key, tuple) or not 2 <= len(key) <= 4:
        raise ArgumentTypeError(
            "A kernel is launched as kernel[grid, block](...), kernel[grid, block, stream](...) or "
            "kernel[grid, block, stream, shared_bytes](...)."
        )
    grid, block, stream, shared = (*key, *(None, 0)[len(key) - 2 :])
    try:
        shared_bytes = operator.index(shared)
    except TypeError:
        raise ArgumentTypeError(f"shared={shared!r} must be a number of bytes.") from None
    if shared_bytes < 0:
        raise ArgumentError(f"shared={shared_bytes} must not be negative.")
    return dim3(grid, "grid"), dim3(block, "block"), stream, shared_bytes


def check_shape(grid: Dim3, block: Dim3, kernel: str) -> None:
    """Limits of grid and block that hold for every kernel and device."""
    for name, dims, most in (("grid", grid, _MAX_GRID), ("block", block, _MAX_BLOCK)):
        for axis, number, limit in zip("xyz", dims, most, strict=True):
            if number > limit:
                raise ResourceError(
                    f"Kernel {kernel}: {name} {dims} has {number} along {axis}; at most {limit} fit.", spec=dims
                )
    threads = block[0] * block[1] * block[2]
    if threads > Target.max_threads_per_block:
        raise ResourceError(
            f"Kernel {kernel}: block {block} has {threads} threads; at most {Target.max_threads_per_block} fit. "
            f"Use a smaller block and a larger grid.",
            spec=block,
        )


def max_threads(registers: int) -> int:
    """Most threads per block that the registers of a multiprocessor suffice for.

    Registers are given to warps in units of 256, and each of the four partitions of a multiprocessor has a quarter.
    """
    per_warp = -(-max(registers, 1) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    warps = Target.max_registers_per_block // _PARTITIONS // per_warp * _PARTITIONS
    return min(warps * _WARP, Target.max_threads_per_block)


def check_resources(
    image: KernelImage, block: Dim3, shared_bytes: int, *, most_threads: int, most_shared: int, where: str
) -> None:
    """Limits of one kernel on one device: registers (or ``launch_bounds``) and shared memory."""
    threads = block[0] * block[1] * block[2]
    if threads > most_threads:
        if image.max_threads is not None and threads > image.max_threads:
            raise ResourceError(
                f"Kernel {image.name}: block {block} has {threads} threads, but the kernel was compiled with "
                f"launch_bounds={image.max_threads}. Launch at most {image.max_threads}, or compile it with larger "
                f"launch_bounds.",
                spec=block,
            )
        raise ResourceError(
            f"Kernel {image.name}: block {block} has {threads} threads of {image.registers} registers each; {where} "
            f"has registers for {most_threads} such threads per block. Launch at most {most_threads}, or compile the "
            f"kernel with launch_bounds={threads} or max_registers={_registers_for(threads)}.",
            spec=block,
        )
    if shared_bytes + image.shared_bytes > most_shared:
        own = f" beside {image.shared_bytes} static ones" if image.shared_bytes else ""
        raise ResourceError(
            f"Kernel {image.name}: {shared_bytes} bytes of dynamic shared memory{own} exceed the {most_shared} bytes "
            f"that a block can have on {where}; at most {max(most_shared - image.shared_bytes, 0)} dynamic bytes fit.",
            spec=shared_bytes,
        )


def _registers_for(threads: int) -> int:
    """Most registers per thread with which a block of so many threads can run."""
    registers = Target.max_registers_per_thread
    while registers > 16 and max_threads(registers) < threads:
        registers -= 1
    return registers
