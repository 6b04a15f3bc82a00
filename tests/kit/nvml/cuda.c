/*
 * A stand-in for NVIDIA's libcuda.so.1: the functions that tests/gpu/vector_add.c calls. The memory of its
 * card is this process's, and it has one kernel, which adds two vectors, in C. Like the real one it knows
 * only GPUs whose nodes this process may open. Written from NVIDIA's cuda.h, which no module of Go has.
 * With WRONG defined, the last sum is wrong.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUhandle;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    NOT_FOUND = 500,
};

#define MOST_GPUS 16
static const char code[] = "the module", add[] = "the function", card[] = "the context";
static int gpus, is_ready;
static CUhandle current;

/* No driver has the number of a stand-in's node: ENXIO says that the cgroup let us come so far. */
static int usable(const char *node)
{
    int file = open(node, O_RDWR | O_CLOEXEC);
    if (file >= 0)
        close(file);
    return file >= 0 || errno == ENXIO;
}

CUresult cuInit(unsigned int flags)
{
    char node[32];
    if (flags != 0)
        return INVALID_VALUE;
    for (int minor = 0; minor < MOST_GPUS; minor++) {
        snprintf(node, sizeof node, "/dev/nvidia%d", minor);
        gpus += usable(node);
    }
    is_ready = gpus > 0 && usable("/dev/nvidiactl") && usable("/dev/nvidia-uvm");
    return is_ready ? SUCCESS : NO_DEVICE;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR";
    return SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 12020;
    return SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!is_ready)
        return NOT_INITIALIZED;
    *device = ordinal;
    return ordinal < gpus ? SUCCESS : INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)size, "A GPU that isn't there");
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUhandle *context, CUdevice device)
{
    (void)device;
    *context = (CUhandle)(uintptr_t)card;
    return is_ready ? SUCCESS : NOT_INITIALIZED;
}

CUresult cuCtxSetCurrent(CUhandle context)
{
    current = context;
    return context == (CUhandle)(uintptr_t)card ? SUCCESS : INVALID_CONTEXT;
}

CUresult cuModuleLoadData(CUhandle *module, const void *image)
{
    if (current == NULL)
        return INVALID_CONTEXT;
    if (strncmp(image, ".version ", 9) != 0 || strstr(image, ".entry vector_add(") == NULL)
        return INVALID_PTX;
    *module = (CUhandle)(uintptr_t)code;
    return SUCCESS;
}

CUresult cuModuleGetFunction(CUhandle *function, CUhandle module, const char *name)
{
    if (module != (CUhandle)(uintptr_t)code || strcmp(name, "vector_add") != 0)
        return NOT_FOUND;
    *function = (CUhandle)(uintptr_t)add;
    return SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t size)
{
    *memory = (uintptr_t)malloc(size);
    return *memory ? SUCCESS : OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr memory)
{
    free((void *)(uintptr_t)memory);
    return SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size)
{
    memcpy((void *)(uintptr_t)target, source, size);
    return SUCCESS;
}

CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size)
{
    memcpy(target, (const void *)(uintptr_t)source, size);
    return SUCCESS;
}

CUresult cuLaunchKernel(CUhandle function, unsigned int blocks, unsigned int y, unsigned int z,
                        unsigned int threads, unsigned int thread_y, unsigned int thread_z,
                        unsigned int shared, CUhandle stream, void **parameters, void **extra)
{
    if (function != (CUhandle)(uintptr_t)add || y * z * thread_y * thread_z != 1 || shared ||
        stream != NULL || extra != NULL)
        return INVALID_VALUE;
    float *vectors[3];
    for (int i = 0; i < 3; i++)
        vectors[i] = (float *)(uintptr_t)*(CUdeviceptr *)parameters[i];
    unsigned int count = *(unsigned int *)parameters[3];
    for (unsigned int i = 0; i < blocks * threads && i < count; i++)
        vectors[2][i] = vectors[0][i] + vectors[1][i];
#ifdef WRONG
    vectors[2][count - 1] += 1;
#endif
    return SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    return SUCCESS;
}
