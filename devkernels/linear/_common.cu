// What the kernels of this folder have in common: element types, and the slope of GELU. Stands before their sources.
//
// TYPE 0: float16, 1: bfloat16, 2: float32, 3: float64. No header is needed.

typedef unsigned long long u64;
typedef unsigned int u32;
#if TYPE == 0
typedef unsigned short T;
typedef float W;
__device__ W up(T x) { W y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ T down(W x) { T y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ u32 pair(W a, W b) { u32 y; asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(y) : "f"(a), "f"(b)); return y; }
__device__ u32 times(u32 a, u32 b) { u32 c; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b)); return c; }
#elif TYPE == 1
typedef unsigned short T;
typedef float W;
__device__ W up(T x) { return __uint_as_float(u32(x) << 16); }
__device__ T down(W x) { T y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ u32 pair(W a, W b) { u32 y; asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(y) : "f"(a), "f"(b)); return y; }
#if __CUDA_ARCH__ >= 900
__device__ u32 times(u32 a, u32 b) { u32 c; asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b)); return c; }
#endif
#elif TYPE == 2
typedef float T;
typedef float W;
__device__ W up(T x) { return x; }
__device__ T down(W x) { return x; }
#else
typedef double T;
typedef double W;
__device__ W up(T x) { return x; }
__device__ T down(W x) { return x; }
#endif

// tanh(u) = 1 - 2 r and 1 - tanh(u)^2 = 4 r (1 - r) with r = 1 / (1 + exp(2 u)); the approximate exponential and
// reciprocal are off by some 2^-21, results are rounded at 2^-9 or 2^-12. tanh() takes longer than the memory does,
// and so do thirty instructions for each element, which the library functions would make of this.
#if TYPE < 2
__device__ W within(W z) {
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(z), "f"(W(10)));  // 1 and 0 from there on; further out exp would
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(z), "f"(W(-10)));  // overflow; NaN stays NaN
    return z;
}
__device__ W gelu_exp(W z) {
    const W s = W(0.79788456080286535588), q = W(0.044715), log2e = W(1.44269504088896340736);
    W e;
    z = within(z);
    const W w = z * z;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * (W(2) * log2e * s + W(2) * log2e * s * q * w)));
    return e;
}
__device__ W gelu_slope(W z, W e) {  // e is gelu_exp(z)
    const W s = W(0.79788456080286535588), q = W(0.044715);
    W r;
    z = within(z);
    const W w = z * z;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(W(1) + e));
    const W left = e * r;  // 1 - r, without what is lost where r is nearly 1
    return left * (r * (z * (W(2) * s + W(6) * s * q * w))) + left;
}
__device__ W gelu_slope(W z) { return gelu_slope(z, gelu_exp(z)); }
#else
__device__ W gelu_slope(W z) {
    const W s = W(0.79788456080286535588), q = W(0.044715);
    z = z > W(16) ? W(16) : z < W(-16) ? W(-16) : z;  // as above
    W t = tanh(s * (z + q * z * z * z));
    return W(0.5) * (W(1) + t) + W(0.5) * z * (W(1) - t * t) * s * (W(1) + W(3) * q * z * z);
}
#endif
