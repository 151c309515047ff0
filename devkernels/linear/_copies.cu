// Copies of up to PARTS pieces of memory in one launch: what a replayed graph has written, to memory of the caller's own.
//
// A block takes part of the piece that its number in y names. Pieces start at multiples of 16 bytes.
// `_common.cu` stands before this.

struct Part { u64 to, from, bytes; };
struct Parts { Part part[PARTS]; };

extern "C" __global__ void __launch_bounds__(256) copies(const __grid_constant__ Parts parts) {
    const Part part = parts.part[blockIdx.y];
    const u64 thread = u64(blockIdx.x) * 256 + threadIdx.x, threads = u64(gridDim.x) * 256, whole = part.bytes / 16;
    const uint4* from = reinterpret_cast<const uint4*>(part.from);
    uint4* to = reinterpret_cast<uint4*>(part.to);
    for (u64 i = thread; i < whole; i += threads * 4) {
        uint4 x[4];
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
            if (i + j * threads < whole) x[j] = from[i + j * threads];
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
            if (i + j * threads < whole) to[i + j * threads] = x[j];
    }
    const u64 rest = whole * 16 + thread;
    if (rest < part.bytes) reinterpret_cast<char*>(part.to)[rest] = reinterpret_cast<const char*>(part.from)[rest];
}
