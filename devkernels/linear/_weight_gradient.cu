// Weight gradient of a layer, with the gradient through its activation and the bias gradient in the same pass (sm_90a).
//
// dz[r, c] = dy[r, c] * slope(kept[r, c]);  db[c] = sum over r of dz[r, c];  dw[c, k] = sum over r of dz[r, c] * x[r, k]
//
// KIND as in `_activation.cu`, TYPE 0 or 1; `_common.cu` and `_hopper.cu` stand before this. A block owns 128 columns of dz and 256 of x
// and goes over all rows, 64 at a time. The first 128 threads have x copied into a ring of stages and dy and kept into
// one before it, of which they make dz; two groups of 128 threads multiply. CL blocks side by side (a cluster) need the
// same dz: each makes the CL-th part of the rows and sends it to the others. (Roles and rings as in CUTLASS's
// warp-specialised kernels; PTX ISA: wgmma, mbarrier, cp.async.bulk.)

#ifndef CL
#define CL 4
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef AHEAD
#define AHEAD 3
#endif

static const u32 TOKENS = 64, FEATURES = 128, WIDTH = 256, ROWS = TOKENS / CL;
static const u32 GROUP = ROWS / 8 < 4 ? ROWS / 8 : 4;  // times eight rows: so many a thread computes at once
static const u32 DZ_BYTES = TOKENS * FEATURES * 2, X_BYTES = TOKENS * WIDTH * 2, STAGE = DZ_BYTES + X_BYTES;
static const u32 DY_BYTES = ROWS * FEATURES * 2, KEPT_BYTES = KIND == 2 ? ROWS * FEATURES / 8 : DY_BYTES;
static const u32 INPUT = DY_BYTES + (KIND == 2 ? 1024 : KEPT_BYTES);
static const u32 BARRIERS = STAGES * STAGE + AHEAD * INPUT, SUMS = BARRIERS + 16 * STAGES + 8 * AHEAD;

__device__ u64 described(u32 address) {  // of a matrix whose first axis is contiguous, in columns of 64, swizzled
    // by 128 bytes. The highest bits of the address are the block's number in its cluster, which has no place here.
    return u64((address & 0x3ffff) >> 4) | (u64(64 * 128 / 16) << 16) | (u64(8 * 128 / 16) << 32) | (u64(1) << 62);
}

extern "C" __global__ void __cluster_dims__(1, CL, 1) __launch_bounds__(384, 1) weight_gradient(
    const __grid_constant__ Map dy_map, const __grid_constant__ Map kept_map, const __grid_constant__ Map x_map,
    const __grid_constant__ Map dz_map, T* __restrict__ db, T* __restrict__ dw, u32 tokens, u32 features, u32 width) {
    extern __shared__ unsigned char memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u, inputs = base + STAGES * STAGE;
    const u32 full = base + BARRIERS, empty = full + 8 * STAGES, came = empty + 8 * STAGES;
    const u32 thread = threadIdx.x, role = __shfl_sync(~0u, thread >> 7, 0), rank = blockIdx.y % CL;
    const u32 f0 = blockIdx.x * FEATURES, n0 = blockIdx.y * WIDTH, steps = (tokens + TOKENS - 1) / TOKENS;
    // The first cluster of a row of blocks writes dz, the second (if there is one) adds up its columns.
    const bool writes = blockIdx.y < CL, adds = db != nullptr && (gridDim.y > CL ? blockIdx.y / CL == 1 : writes);
    if (thread == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            init(full + 8 * i, 2);
            init(empty + 8 * i, 2 * CL);
        }
        for (u32 i = 0; i < AHEAD; ++i) init(came + 8 * i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    all_of_the_cluster();
    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
        const u32 own = thread, across = own & 15, half = across >> 3, chunk = across & 7, lower = own >> 4;
        float sum[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sum[i] = 0;
        const u32 warp = __shfl_sync(~0u, thread >> 5, 0);
        const auto fetch = [&](u32 step) {  // dy and kept, this block's part of the rows
            const u32 i = step % AHEAD, to = inputs + i * INPUT, row = step * TOKENS + rank * ROWS;
            expect(came + 8 * i, DY_BYTES + KEPT_BYTES);
            copy_columns(to, &dy_map, came + 8 * i, row, f0 / 64);
#if KIND == 2
            copy_in(to + DY_BYTES, &kept_map, came + 8 * i, f0 / 8, row);
#else
            copy_columns(to + DY_BYTES, &kept_map, came + 8 * i, row, f0 / 64);
#endif
        };
        if (warp == 3 && elected())
            for (u32 step = 0; step < AHEAD && step < steps; ++step) fetch(step);
        __syncwarp();
        for (u32 step = 0; step < steps; ++step) {
            const u32 s = step % STAGES, i = step % AHEAD, ready = full + 8 * s;
            const u32 from = inputs + i * INPUT + half * ROWS * 128, part = base + s * STAGE + rank * DY_BYTES;
            Eight z[ROWS / 8];
            wait(came + 8 * i, step / AHEAD & 1);
#pragma unroll
            for (u32 first = 0; first < ROWS / 8; first += GROUP) {
                Eight g[GROUP];
#if KIND != 2
                Eight k[GROUP];
#endif
#pragma unroll
                for (u32 r = 0; r < GROUP; ++r) {
                    const u32 line = (first + r) * 8 + lower, place = line * 128 + ((chunk ^ (line & 7)) << 4);
                    g[r].raw = load_shared(from + place);
#if KIND == 2
                    u32 bits;
                    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(bits) : "r"(inputs + i * INPUT + DY_BYTES + line * 16 + across) : "memory");
#pragma unroll
                    for (u32 j = 0; j < 4; ++j)  // two bits become the halves of a word that is all ones or zeros
                        z[first + r].pair[j] = g[r].pair[j] & ((bits >> 2 * j & 1) * 0xffff | (bits >> 2 * j & 2) * 0x7fff8000);
#else
                    k[r].raw = load_shared(from + DY_BYTES + place);
#endif
#if KIND == 0
#pragma unroll
                    for (u32 j = 0; j < 8; ++j) z[first + r].v[j] = up(k[r].v[j]) <= W(0) ? T(0) : g[r].v[j];
#elif KIND == 3
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) z[first + r].pair[j] = times(g[r].pair[j], k[r].pair[j]);
#endif
                }
#if KIND == 1
                // First all exponentials, then all reciprocals: the unit for these takes one warp's every eight cycles,
                // which the rest of the arithmetic of other elements fills.
                float e[GROUP * 8];
#pragma unroll
                for (u32 j = 0; j < GROUP * 8; ++j) e[j] = gelu_exp(up(k[j / 8].v[j % 8]));
#pragma unroll
                for (u32 j = 0; j < GROUP * 8; ++j)
                    z[first + j / 8].v[j % 8] = down(up(g[j / 8].v[j % 8]) * gelu_slope(up(k[j / 8].v[j % 8]), e[j]));
#endif
            }
            wait(empty + 8 * s, (step / STAGES & 1) ^ 1);
            if (warp == 2 && elected()) {
                expect(ready, X_BYTES + (CL - 1) * DY_BYTES);
                copy_columns(base + s * STAGE + DZ_BYTES, &x_map, ready, step * TOKENS, n0 / 64);
            }
            __syncwarp();
#pragma unroll
            for (u32 r = 0; r < ROWS / 8; ++r) {
                const u32 line = r * 8 + lower;
                store_shared(part + half * ROWS * 128 + line * 128 + ((chunk ^ (line & 7)) << 4), z[r].raw);
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // copies and products to come read what was stored
            asm volatile("bar.sync 1, 128;" ::: "memory");
#if CL > 1
            if (warp < CL - 1) {
                const u32 other = (rank + 1 + warp) % CL;
                if (elected()) send(of_block(part, other), part, DY_BYTES, of_block(ready, other));
            }
#endif
            if (warp == 3 && elected()) {
                arrive(ready);
                if (step + AHEAD < steps) fetch(step + AHEAD);
                if (writes) {
                    store_columns(&dz_map, part, step * TOKENS + rank * ROWS, f0 / 64);
                    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                    // Before the next barrier, after which the stage of STAGES - 1 steps ago is written again, all but the
                    // last STAGES - 2 have been read.
                    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES - 2) : "memory");
                }
            }
            __syncwarp();
            if (adds) {
#pragma unroll
                for (u32 r = 0; r < ROWS / 8; ++r)
#pragma unroll
                    for (u32 j = 0; j < 8; ++j) sum[j] += up(z[r].v[j]);
            }
        }
        if (warp == 3 && elected()) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
        if (adds) {  // the inputs have been read: their place takes the sums of the eight threads of a column
            float* sums = reinterpret_cast<float*>(memory + (inputs - shared_address(memory)));
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sums[lower * FEATURES + across * 8 + j] = sum[j];
            asm volatile("bar.sync 1, 128;" ::: "memory");
            float total = 0;
            for (u32 i = 0; i < 8; ++i) total += sums[i * FEATURES + own];
            const u32 there = of_block(base + SUMS + (rank * FEATURES + own) * 4, 0);
            asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(total) : "memory");
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
        const u32 group = role - 1;
        float c[128];
#pragma unroll
        for (u32 i = 0; i < 128; ++i) c[i] = 0;
        const bool leader = (thread & 127) == 0;
        for (u32 step = 0; step < steps; ++step) {
            const u32 s = step % STAGES, at = base + s * STAGE;
            wait(full + 8 * s, step / STAGES & 1);
            const u64 b = described(at + DZ_BYTES);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {  // 16 rows each; a block's part of the rows lies together, 64 columns after 64
                const u32 part = i * 16 / ROWS, row = i * 16 % ROWS;
                multiply<1>(c, described(at + part * DY_BYTES + (group * ROWS + row) * 128), b + i * (16 * 128 / 16), 1);
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > 0 && leader) {  // the products of the step before are done
                const u32 before = empty + 8 * ((step - 1) % STAGES);
#pragma unroll
                for (u32 i = 0; i < CL; ++i) arrive_at(of_block(before, i));
            }
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (u32 i = 0; i < 128; ++i) asm volatile("" : "+f"(c[i])::"memory");
        const u32 lane = thread & 31, row = f0 + group * 64 + ((thread >> 5) & 3) * 16 + lane / 4, column = n0 + (lane & 3) * 2;
#pragma unroll
        for (u32 i = 0; i < 128; i += 2) {
            const u32 r = row + (i & 2) * 4, k = column + (i / 4) * 8;
            if (r < features && k < width)
                *reinterpret_cast<u32*>(dw + u64(r) * width + k) = u32(down(c[i])) | u32(down(c[i + 1])) << 16;
        }
    }
    all_of_the_cluster();  // no block ends while another writes to its memory
    if (role == 0 && adds && rank == 0) {
        const float* sums = reinterpret_cast<const float*>(memory + (base + SUMS - shared_address(memory)));
        float total = 0;
        for (u32 i = 0; i < CL; ++i) total += sums[i * FEATURES + thread];
        if (f0 + thread < features) db[f0 + thread] = down(total);
    }
}
