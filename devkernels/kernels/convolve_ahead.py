"""Circular convolution of complex rows that are fetched ahead: few blocks, each with many rows, one after the other.

in: a `BlockFFT`, what the rows are. out: a `devkernels.kernel` with the arguments of `convolve_rows.circular_kernel`,
for one filter. Where few rows fit a multiprocessor, loads and arithmetic would else take turns.
"""

from __future__ import annotations

import numpy as np

from devkernels.engine import ahead
from devkernels.engine.block_fft import BlockFFT
from devkernels.kernels.convolve_rows import Rows, moves
from devkernels.kernels.convolve_steps import each_sample, finish
from devkernels.kernels.lazy_kernel import lazy_kernel
from devkernels.launch import driver
from devkernels.lazy import cuda
from devkernels.target import current_target, simulating


def suits(fft: BlockFFT, rows: Rows) -> bool:
    """Whether rows of this kind are fetched ahead: the plan says that it is faster, and the device has such copies."""
    if not fft.ahead or rows.layout != "one" or rows.repeats or rows.real or not ahead.suits(fft):
        return False
    target = current_target()
    return simulating() or (target.cc >= (9, 0) and shared_bytes(fft) <= target.max_shared_bytes)


def grid(fft: BlockFFT, rows: int) -> tuple[int, ...]:
    """As many blocks as run at a time."""
    if simulating():
        return (min(rows, 2),)
    return (min(rows, driver.multiprocessors(driver.current_device()) * ahead.blocks(fft)),)


def shared_bytes(fft: BlockFFT) -> int:
    """Dynamic shared memory of a block."""
    return ahead.areas(fft).words * fft.plan.word_bytes


@lazy_kernel
def circular_ahead_kernel(fft: BlockFFT, rows: Rows):
    """Kernel of circular convolution; x is aligned to 16 bytes, and the grid is as large as blocks run at a time."""
    where, copies, parts, take = ahead.areas(fft), ahead.copies(fft), ahead.parts(fft), ahead.take(fft)
    start, fetch, wait = copies.start, copies.fetch, copies.wait
    first, forward, back, last = parts.first, parts.forward, parts.back, parts.last
    _, store = moves(fft, rows, "both", masked=False, pairs=fft.plan.neighbours)
    before, after = (each_sample(fft, function, "both") for function in (rows.prologue, rows.epilogue))
    elements, dtype, size, load_filter = fft.elements_per_thread, fft.dtype, fft.size, fft.load_filter
    width, half, (ready, rest) = np.int64(fft.plan.width), np.int64(where.half), map(np.int64, where.barriers)
    begin, exchange, words = np.int64(0), np.int64(where.exchange), np.uint64(where.exchange)

    def convolve_ahead(x, spectra, out, members, groups, inner, x_inner, x_rows, extra):
        data = cuda.local.array(elements, dtype)
        factors = cuda.local.array(elements, dtype)
        shared = cuda.shared.array(0, dtype)
        lane = np.uint64(cuda.threadIdx.x)
        thread = np.int64(cuda.threadIdx.x) * width
        row, step = np.int64(cuda.blockIdx.x), np.int64(cuda.gridDim.x)
        if thread == 0:
            start(shared, ready)
            start(shared, rest)
        cuda.syncthreads()
        if thread == 0 and row < members:
            fetch(shared, begin, ready, x, row * size)
            fetch(shared, exchange, rest, x, row * size + half)
        turn = np.int32(0)
        while row < members:
            wait(shared, ready, turn)
            wait(shared, rest, turn)
            take(data, shared, thread)
            before(data, row, thread, size, extra)
            first(data, data, shared, lane, words)
            cuda.syncthreads()  # all have taken the row
            following = row + step
            if thread == 0 and following < members:
                fetch(shared, begin, ready, x, following * size)
            forward(data, data, shared, lane, words)
            load_filter(factors, spectra, thread)
            back(data, factors, shared, lane, words)
            cuda.syncthreads()  # the exchanges are done
            if thread == 0 and following < members:
                fetch(shared, exchange, rest, x, following * size + half)
            last(data, data, shared, lane, words)
            after(data, row, thread, size, extra)
            store(data, out, row * size + thread)
            row = following
            turn += 1

    return finish(fft, convolve_ahead)
