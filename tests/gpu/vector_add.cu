/*
 * Adds 50,000 numbers on the first GPU, through CUDA's runtime: what vector_add.c does, as programs of users
 * mostly do it.
 *
 * nvcc -cudart static -o vectorAdd vector_add.cu
 */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int elements = 50000, block = 256;

__global__ void vector_add(const float *a, const float *b, float *c, int count)
{
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < count)
        c[i] = a[i] + b[i];
}

static void must(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    std::exit(2);
}

int main()
{
    std::vector<float> a(elements), b(elements), c(elements, -1);
    for (int i = 0; i < elements; i++) {
        a[i] = float(i % 1009) / 1009;
        b[i] = float(i % 2003) / 2003;
    }
    const size_t size = elements * sizeof(float);
    float *on_device[3];
    std::printf("[Vector addition of %d elements]\n", elements);
    for (float *&place : on_device)
        must(cudaMalloc(&place, size), "cudaMalloc");
    std::printf("Copy input data from the host memory to the CUDA device\n");
    must(cudaMemcpy(on_device[0], a.data(), size, cudaMemcpyHostToDevice), "cudaMemcpy");
    must(cudaMemcpy(on_device[1], b.data(), size, cudaMemcpyHostToDevice), "cudaMemcpy");
    const int blocks = (elements + block - 1) / block;
    std::printf("CUDA kernel launch with %d blocks of %d threads\n", blocks, block);
    vector_add<<<blocks, block>>>(on_device[0], on_device[1], on_device[2], elements);
    must(cudaGetLastError(), "launch");
    std::printf("Copy output data from the CUDA device to the host memory\n");
    must(cudaMemcpy(c.data(), on_device[2], size, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (float *place : on_device)
        must(cudaFree(place), "cudaFree");
    for (int i = 0; i < elements; i++)
        if (std::fabs(a[i] + b[i] - c[i]) > 1e-5f) {
            std::fprintf(stderr, "Element %d is %g\nTest FAILED\n", i, c[i]);
            return 1;
        }
    std::printf("Test PASSED\nDone\n");
    return 0;
}
