// Rate of matrix instructions that a warp waits for (mma.sync, bfloat16), in TFLOP/s: every warp keeps eight of them
// under way, from registers alone. nvcc -O3 -arch=native instructions.cu -o instructions && ./instructions
#include <cstdio>
#include <cuda_bf16.h>

constexpr int UNDER_WAY = 8, ROUNDS = 20000;

__global__ void multiply(float *out) {
    float sums[UNDER_WAY][4] = {};
    unsigned a[4] = {0x3f803f80u + threadIdx.x, 0x3f803f80u, 0x3f803f81u, 0x3f823f80u};
    unsigned b[2] = {0x3f803f80u, 0x3f813f80u + threadIdx.x};
    for (int round = 0; round < ROUNDS; ++round)
#pragma unroll
        for (int i = 0; i < UNDER_WAY; ++i)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                         "{%0,%1,%2,%3};"
                         : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int i = 0; i < UNDER_WAY; ++i)
        if (sums[i][0] == 12345.f) out[threadIdx.x] = sums[i][1] + sums[i][2] + sums[i][3];
}

int main() {
    cudaDeviceProp about;
    cudaGetDeviceProperties(&about, 0);
    float *out;
    cudaMalloc(&out, 4096);
    cudaEvent_t start, end;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    for (int warps : {4, 8, 16}) {
        float best = 1e30f;
        for (int i = 0; i < 5; ++i) {
            cudaEventRecord(start);
            multiply<<<about.multiProcessorCount, 32 * warps>>>(out);
            cudaEventRecord(end);
            cudaEventSynchronize(end);
            float ms;
            cudaEventElapsedTime(&ms, start, end);
            best = ms < best ? ms : best;
        }
        double work = 4096.0 * UNDER_WAY * ROUNDS * warps * about.multiProcessorCount;
        printf("%s: %d warps of a core, %.1f TFLOP/s\n", about.name, warps, work / best / 1e9);
    }
}
