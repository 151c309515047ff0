// Forward product of a layer with GELU that keeps the slope of its activation, not the activation's input (sm_90a).
//
// z[r, c] = sum over k of x[r, k] * w[c, k], + b[c], rounded to T;  y[r, c] = gelu(z[r, c]);  slope[r, c] = gelu'(z[r, c])
//
// TYPE 0 or 1; `_common.cu` and `_hopper.cu` stand before this. A block makes tile after tile of 128 rows and 256 columns;
// CL blocks (a cluster) have rows below one another and share w, of which each has a part copied to all. One warp has x
// and w copied into a ring of stages; two groups of four warps multiply. A group rounds the z of a tile to T, keeps it in
// registers, and makes y and slope of it between the products of the next tile, sixteen columns a step, so that the tensor
// cores do not wait for GELU. (Roles and rings as in CUTLASS's warp-specialised kernels; PTX ISA: wgmma, mbarrier,
// cp.async.bulk, stmatrix.)

#ifndef CL
#define CL 2
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BAND
#define BAND 8  // tiles of a cluster below one another that are made at about the same time: x and w then come out of the L2
#endif

static const u32 TALL = 128, WIDE = 256, DEEP = 64, HALF = TALL / 2;
static const u32 X_BYTES = TALL * DEEP * 2, W_BYTES = WIDE * DEEP * 2, W_PART = W_BYTES / CL, STAGE = X_BYTES + W_BYTES;
// A warp's part of a result on its way out: 16 rows of 64 columns, one for y and one for slope.
static const u32 OUT_BYTES = 16 * 64 * 2, OUT = STAGES * STAGE, BIAS = OUT + 8 * 2 * OUT_BYTES, BARRIERS = BIAS + WIDE * 4;

// Of a matrix whose last axis is contiguous, in rows of 128 bytes, swizzled by 128 bytes. The highest bits of the address
// are the block's number in its cluster, which has no place here.
__device__ u64 described(u32 address) {
    return u64((address & 0x3ffff) >> 4) | (u64(1) << 16) | (u64(8 * 128 / 16) << 32) | (u64(1) << 62);
}
__device__ void copy_to_all(u32 to, const Map* map, u32 barrier, u32 row, u32 block) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(block), "h"((unsigned short)((1 << CL) - 1)) : "memory");
}
__device__ void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// GELU (tanh) and its slope, in eleven instructions. With r = 1 / (1 + exp(-2 u)) and u = s (z + q z^3), gelu(z) = z r and
// gelu'(z) = r + z r (1 - r) 2 u'(z). Here every instruction is felt: the chip is at its limit of power, not of time.
struct Gelu { float value, slope; };
__device__ Gelu gelu(float z) {
    const float s = 0.79788456080286535588f, q = 0.044715f, log2e = 1.44269504088896340736f;
    float w = z * z, e, r;
#if TYPE == 1
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(w) : "f"(w), "f"(1e6f));  // bfloat16 may be so large that the cube is infinite
#endif
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * (-2 * log2e * s * q * w - 2 * log2e * s)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1 + e));
    const float value = z * r, twice = 6 * s * q * w + 2 * s;
    return {value, value * (twice - r * twice) + r};
}

struct Tile { u32 row, column; };
__device__ Tile tile_of(u32 t, u32 rows, u32 columns) {  // `rows` and `columns` in tiles of a cluster
    const u32 band = t / (BAND * columns), first = band * BAND, tall = rows - first < BAND ? rows - first : BAND;
    const u32 within = t - band * (BAND * columns);
    return {(first + within % tall) * (TALL * CL), within / tall * WIDE};
}

extern "C" __global__ void __cluster_dims__(CL, 1, 1) __launch_bounds__(384, 1) gelu_forward(
    const __grid_constant__ Map x_map, const __grid_constant__ Map w_map, const __grid_constant__ Map y_map,
    const __grid_constant__ Map slope_map, const T* __restrict__ bias, u32 tokens, u32 features, u32 width) {
    extern __shared__ unsigned char memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u, full = base + BARRIERS, empty = full + 8 * STAGES;
    const u32 thread = threadIdx.x, role = __shfl_sync(~0u, thread >> 7, 0), warp = __shfl_sync(~0u, thread >> 5, 0);
    const u32 rank = blockIdx.x % CL, own = thread & 127, lane = thread & 31;
    const u32 rows = (tokens + TALL * CL - 1) / (TALL * CL), columns = (features + WIDE - 1) / WIDE;
    const u32 steps = (width + DEEP - 1) / DEEP, tiles = rows * columns, start = blockIdx.x / CL, stride = gridDim.x / CL;
    if (thread == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            init(full + 8 * i, 1);
            init(empty + 8 * i, 2 * CL);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    all_of_the_cluster();
    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp == 0 && elected()) {
            u32 s = 0, phase = 0;
            for (u32 t = start; t < tiles; t += stride) {
                const Tile tile = tile_of(t, rows, columns);
                for (u32 step = 0; step < steps; ++step) {
                    const u32 to = base + s * STAGE, ready = full + 8 * s;
                    wait(empty + 8 * s, phase ^ 1);
                    expect(ready, STAGE);
                    copy_columns(to, &x_map, ready, tile.row + rank * TALL, step);
#if CL > 1
                    copy_to_all(to + X_BYTES + rank * W_PART, &w_map, ready, tile.column + rank * (WIDE / CL), step);
#else
                    copy_columns(to + X_BYTES, &w_map, ready, tile.column, step);
#endif
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const u32 half = role - 1, out = base + OUT + (warp - 4) * (2 * OUT_BYTES);
        const u32 line = lane & 15, place = out + line * 128, turn = line & 7;
        const float* sums = reinterpret_cast<const float*>(memory + (base + BIAS - shared_address(memory)));
        u32 s = 0, phase = 0, before = 0, row = 0, column = 0;
        u32 z[64];
        float c[128];
        const auto begin = [&](u32 step) {
            const u32 at = base + s * STAGE;
            wait(full + 8 * s, phase);
            const u64 left = described(at + half * (HALF * 128)), right = described(at + X_BYTES);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (u32 i = 0; i < 4; ++i) multiply<0>(c, left + i * 2, right + i * 2, step | i);  // 16 columns: 32 bytes
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        };
        const auto end = [&](u32 step) {
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > 0 && own == 0) {  // the products of the step before are done
#pragma unroll
                for (u32 i = 0; i < CL; ++i) arrive_at(of_block(before, i));
            }
            before = empty + 8 * s;
            if (++s == STAGES) s = 0, phase ^= 1;
        };
        bool have = false;
        for (u32 t = start; t < tiles || have; t += stride) {
            const u32 count = t < tiles ? steps : 0;
            const Tile tile = tile_of(t, rows, columns);
#pragma unroll
            for (u32 part = 0; part < 16; ++part) {  // products of this tile, and 16 columns of y and slope of the last one
                if (part < count) begin(part);
                if (have) {
                    if (part % 4 == 0) {  // the copies of 64 columns ago have been read
                        if (elected()) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                        __syncwarp();
                    }
                    u32 g[4], d[4];
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        const Gelu low = gelu(up(T(z[part * 4 + i]))), high = gelu(up(T(z[part * 4 + i] >> 16)));
                        g[i] = pair(low.value, high.value);
                        d[i] = pair(low.slope, high.slope);
                    }
                    const u32 to = place + (((part % 4 * 2 + (lane >> 4)) ^ turn) << 4);
                    store_matrices(to, g[0], g[1], g[2], g[3]);
                    store_matrices(to + OUT_BYTES, d[0], d[1], d[2], d[3]);
                    if (part % 4 == 3) {
                        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                        __syncwarp();
                        if (elected()) {
                            store_columns(&y_map, out, row, column + part / 4);
                            store_columns(&slope_map, out + OUT_BYTES, row, column + part / 4);
                            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                        }
                        __syncwarp();
                    }
                }
                if (part < count) end(part);
            }
            for (u32 step = 16; step < count; ++step) {
                begin(step);
                end(step);
            }
            have = count != 0;
            if (have) {
                // Both groups read the same 256 values of the bias, which are replaced when both are done with the last tile.
                asm volatile("bar.sync 1, 256;" ::: "memory");
                if (thread - 128 < WIDE) {
                    const u32 at = tile.column + thread - 128;
                    const_cast<float*>(sums)[thread - 128] = bias != nullptr && at < features ? up(bias[at]) : 0;
                }
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                for (u32 i = 0; i < 128; ++i) asm volatile("" : "+f"(c[i])::"memory");
                if (own == 0) {
#pragma unroll
                    for (u32 i = 0; i < CL; ++i) arrive_at(of_block(before, i));
                }
                asm volatile("bar.sync 1, 256;" ::: "memory");
#pragma unroll
                for (u32 j = 0; j < 32; ++j) {
                    const float2 b = *reinterpret_cast<const float2*>(sums + j * 8 + (lane & 3) * 2);
                    z[j * 2] = pair(c[j * 4] + b.x, c[j * 4 + 1] + b.y);
                    z[j * 2 + 1] = pair(c[j * 4 + 2] + b.x, c[j * 4 + 3] + b.y);
                }
                row = tile.row + rank * TALL + half * HALF + (warp & 3) * 16;
                column = tile.column / 64;
            }
        }
        if (elected()) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
    }
    all_of_the_cluster();  // no block ends while another writes to its memory
}
