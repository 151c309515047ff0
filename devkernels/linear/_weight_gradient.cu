// Weight gradient of a layer, with the gradient through its activation and the bias gradient in the same pass (sm_90a).
//
// dz[r, c] = dy[r, c] * slope(kept[r, c]);  db[c] = sum over r of dz[r, c];  dw[c, k] = sum over r of dz[r, c] * x[r, k]
//
// KIND as in `_activation.cu`, TYPE 0 or 1; `_common.cu` stands before this. A block owns 128 columns of dz and 256 of x
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

struct alignas(64) Map { u64 words[16]; };
union Eight { uint4 raw; u32 pair[4]; T v[8]; __device__ Eight() {} };
static const u32 TOKENS = 64, FEATURES = 128, WIDTH = 256, ROWS = TOKENS / CL;
static const u32 GROUP = ROWS / 8 < 4 ? ROWS / 8 : 4;  // times eight rows: so many a thread computes at once
static const u32 DZ_BYTES = TOKENS * FEATURES * 2, X_BYTES = TOKENS * WIDTH * 2, STAGE = DZ_BYTES + X_BYTES;
static const u32 DY_BYTES = ROWS * FEATURES * 2, KEPT_BYTES = KIND == 2 ? ROWS * FEATURES / 8 : DY_BYTES;
static const u32 INPUT = DY_BYTES + (KIND == 2 ? 1024 : KEPT_BYTES);
static const u32 BARRIERS = STAGES * STAGE + AHEAD * INPUT, SUMS = BARRIERS + 16 * STAGES + 8 * AHEAD;

__device__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
__device__ void init(u32 barrier, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory"); }
__device__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ void wait(u32 barrier, u32 parity) {
    u32 done;
#ifdef SPINS
    for (u64 i = 0; i < SPINS; ++i) {
#else
    for (;;) {
#endif
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
        if (done) return;
    }
#ifdef SPINS
    asm volatile("trap;");
#endif
}
__device__ u32 of_block(u32 address, u32 block) {  // the same place in the shared memory of another block of the cluster
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
__device__ void arrive_at(u32 barrier) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ void copy_in(u32 to, const Map* map, u32 barrier, u32 x, u32 y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}
__device__ void copy_columns(u32 to, const Map* map, u32 barrier, u32 row, u32 block) {  // blocks of 64 columns
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(block) : "memory");
}
__device__ void store_columns(const Map* map, u32 from, u32 row, u32 block) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(map), "r"(0), "r"(row), "r"(block), "r"(from) : "memory");
}
__device__ bool elected() {  // one thread of a warp, of which the compiler knows that it is one
    u32 is;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }" : "=r"(is));
    return is;
}
__device__ void send(u32 to, u32 from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "r"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ void all_of_the_cluster() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ uint4 load_shared(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
    return x;
}
__device__ void store_shared(u32 to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ u64 described(u32 address) {  // of a matrix whose first axis is contiguous, in columns of 64, swizzled
    // by 128 bytes. The highest bits of the address are the block's number in its cluster, which has no place here.
    return u64((address & 0x3ffff) >> 4) | (u64(64 * 128 / 16) << 16) | (u64(8 * 128 / 16) << 32) | (u64(1) << 62);
}
__device__ void multiply(float (&c)[128], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32."
#if TYPE == 0
        "f16.f16 {"
#else
        "bf16.bf16 {"
#endif
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, 1, 1, 1, 1, 1;"
        :
        "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]),
        "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]),
        "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79]),
        "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]),
        "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]),
        "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]),
        "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]),
        "+f"(c[112]), "+f"(c[113]), "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]),
        "+f"(c[120]), "+f"(c[121]), "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])
        : "l"(a), "l"(b));
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
                multiply(c, described(at + part * DY_BYTES + (group * ROWS + row) * 128), b + i * (16 * 128 / 16));
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
