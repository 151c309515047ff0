// Gradient through an activation, and its sum over the rows (the bias gradient), in one pass over the gradient.
//
// dz[r, c] = dy[r, c] * slope(kept[r, c]);  db[c] = sum over r of dz[r, c]
//
// KIND 0: ReLU, kept is its result.  1: GELU (tanh), kept is its input.  2: ReLU, kept is its mask, one bit an element.
// 3: any, kept is the slope itself.
// A block of LANES x (256 / LANES) threads takes LANES * VEC columns and some rows. Blocks leave partial sums; the last
// one of a column slab adds them up, always in the same order, so that the result is the same in every run.
// `_common.cu` stands before this.

#if VEC == 1
typedef T Raw;
__device__ void store(T* to, Raw x) { *to = x; }
#else
typedef uint4 Raw;  // VEC values are 16 bytes: one load, one store (which the compiler would take apart)
__device__ void store(T* to, Raw x) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
#endif
union Pack { Raw raw; T v[VEC]; __device__ Pack() {} };
static const u32 ROWS = 256 / LANES, SLAB = LANES * VEC;  // a thread loads AHEAD rows before it computes
union Sums { uint4 raw[VEC * sizeof(W) < 16 ? 1 : VEC * sizeof(W) / 16]; W v[VEC < 4 ? 4 : VEC]; __device__ Sums() {} };

extern "C" __global__ void __launch_bounds__(256, sizeof(W) == 4 ? 4 : 1) activation_backward(
    const T* __restrict__ dy, const void* __restrict__ kept, T* __restrict__ dz, T* db, W* partial, u32* counters, u64 rows, u64 columns, u64 kept_ld,
    u64 rows_per_block) {
    const u32 thread = threadIdx.y * LANES + threadIdx.x;
    const u64 column = (u64(blockIdx.x) * LANES + threadIdx.x) * VEC;
    const u64 first = blockIdx.y * rows_per_block;
    const u64 end = first + rows_per_block < rows ? first + rows_per_block : rows;
    W sum[VEC];
#pragma unroll
    for (u32 i = 0; i < VEC; ++i) sum[i] = 0;
    if (column < columns) {
        for (u64 base = first + threadIdx.y; base < end; base += ROWS * AHEAD) {
            Pack g[AHEAD];
#if KIND == 2
            u32 bits[AHEAD];
#else
            Pack k[AHEAD];
#endif
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {  // all loads first: their latencies overlap
                const u64 row = base + a * ROWS;
                if (row >= end) break;
                g[a].raw = *reinterpret_cast<const Raw*>(dy + row * columns + column);
#if KIND == 2
                bits[a] = reinterpret_cast<const unsigned char*>(kept)[row * kept_ld + (column >> 3)] >> (column & 7);
#else
                k[a].raw = *reinterpret_cast<const Raw*>(reinterpret_cast<const T*>(kept) + row * kept_ld + column);
#endif
            }
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u64 row = base + a * ROWS;
                if (row >= end) break;
                Pack z;
#pragma unroll
                for (u32 i = 0; i < VEC; ++i) {
#if KIND == 2
                    z.v[i] = (bits[a] >> i) & 1 ? g[a].v[i] : T(0);
#elif KIND == 0
                    z.v[i] = up(k[a].v[i]) <= W(0) ? T(0) : g[a].v[i];
#elif KIND == 3
                    z.v[i] = down(up(g[a].v[i]) * up(k[a].v[i]));
#else
                    z.v[i] = down(up(g[a].v[i]) * gelu_slope(up(k[a].v[i])));
#endif
                    sum[i] += up(z.v[i]);
                }
                store(dz + row * columns + column, z.raw);
            }
        }
    }
    if (db == nullptr) return;
    __shared__ W lanes[ROWS][SLAB];
    __shared__ u32 last;
    const u64 start = u64(blockIdx.x) * SLAB;
#pragma unroll
    for (u32 i = 0; i < VEC; ++i) lanes[threadIdx.y][threadIdx.x * VEC + i] = sum[i];
    __syncthreads();
    for (u32 c = thread; c < SLAB && start + c < columns; c += 256) {
        W total = 0;
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) total += lanes[i][c];
        if (gridDim.y == 1) db[start + c] = down(total);
        else partial[blockIdx.y * columns + start + c] = total;
    }
    if (gridDim.y == 1) return;
    __threadfence();
    __syncthreads();
    if (thread == 0) last = atomicInc(counters + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
#pragma unroll
    for (u32 i = 0; i < VEC; ++i) sum[i] = 0;
    if (column < columns) {
#pragma unroll 4
        for (u32 y = threadIdx.y; y < gridDim.y; y += ROWS) {
            const W* from = partial + y * columns + column;
#if VEC == 1
            sum[0] += __ldcg(from);
#else
            Sums part;
#pragma unroll
            for (u32 i = 0; i < VEC * sizeof(W) / 16; ++i) part.raw[i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
#pragma unroll
            for (u32 i = 0; i < VEC; ++i) sum[i] += part.v[i];
#endif
        }
    }
#pragma unroll
    for (u32 i = 0; i < VEC; ++i) lanes[threadIdx.y][threadIdx.x * VEC + i] = sum[i];
    __syncthreads();
    for (u32 c = thread; c < SLAB && start + c < columns; c += 256) {
        W total = 0;
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) total += lanes[i][c];
        db[start + c] = down(total);
    }
}
