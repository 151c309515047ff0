"""The instruction ``tanh.approx.f32`` on the GPU at hand: its error, found by trying all inputs, and GELU made of it.

cuBLASLt computes GELU below float64 with this instruction. The manufacturer promises a relative error of at most 2^-11
for all GPUs; on one kind of GPU it is what it is, the same in every run, and there are few enough float32 to try all.
"""

import functools

import cupy
import numpy as np

_PER_UNIT, _BINS = 16, 256  # table: intervals of 1/16 up to 16
_FIRST, _LAST, _EACH = 0x35800000, 0x41800000, 4096  # float32 from 2^-20 to 16, by their bits; so many for each thread

_SOURCE = r"""
__device__ float instruction(float v) { float t; asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(v)); return t; }

extern "C" __global__ void errors(unsigned first, unsigned last, unsigned each, unsigned long long* absolute,
                                  unsigned long long* relative) {
    unsigned begin = first + (blockIdx.x * blockDim.x + threadIdx.x) * each;
    double worst = 0, worst_relative = 0;
    int bin = -1;
    for (unsigned bits = begin; bits < begin + each && bits < last; ++bits) {
        float v = __uint_as_float(bits);
        double exact = tanh(double(v)), off = fabs(double(instruction(v)) - exact);
        int now = int(v * 16.0f);
        if (now != bin && bin >= 0) {
            atomicMax(absolute + bin, (unsigned long long)__double_as_longlong(worst));
            worst = 0;
        }
        bin = now;
        worst = fmax(worst, off);
        worst_relative = fmax(worst_relative, off / exact);
    }
    if (bin >= 0) atomicMax(absolute + bin, (unsigned long long)__double_as_longlong(worst));
    atomicMax(relative, (unsigned long long)__double_as_longlong(worst_relative));
}

extern "C" __global__ void gelu(const float* x, float* y, float* slope, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float z = x[i], t = instruction(0.79788456f * z * (1.0f + 0.044715f * z * z));
    y[i] = 0.5f * z * (1.0f + t);
    slope[i] = 0.5f * z * ((1.0f - t * t) * (0.79788456f + 0.1070322243f * z * z)) + 0.5f * (1.0f + t);
}
"""


@functools.cache
def _kernel(name):
    return cupy.RawKernel(_SOURCE, name, options=("-std=c++17",))


@functools.cache
def measured():
    """(table of the largest absolute error in each interval, largest relative error), over all float32."""
    absolute, relative = cupy.zeros(_BINS, cupy.uint64), cupy.zeros(1, cupy.uint64)
    threads = -(-(_LAST - _FIRST) // _EACH)
    arguments = (np.uint32(_FIRST), np.uint32(_LAST), np.uint32(_EACH), absolute, relative)
    _kernel("errors")((-(-threads // 128),), (128,), arguments)
    return cupy.asnumpy(absolute).view(np.float64), float(cupy.asnumpy(relative).view(np.float64)[0])


@functools.cache
def error():
    """Function from v to the largest error of the instruction near v, as `devkernels.tolerance.gelu_error` takes it."""
    table, _ = measured()
    around = np.maximum(table, np.maximum(np.append(table[1:], 0.0), np.append(0.0, table[:-1])))
    return lambda v: around[np.minimum((np.abs(v) * _PER_UNIT).astype(int), _BINS - 1)]


def model(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """GELU and its derivative of float32 values, written out around the instruction."""
    x = cupy.asarray(x, cupy.float32)
    y, slope = cupy.empty_like(x), cupy.empty_like(x)
    _kernel("gelu")((-(-x.size // 256),), (256,), (x, y, slope, np.uint32(x.size)))
    return cupy.asnumpy(y).astype(float), cupy.asnumpy(slope).astype(float)
