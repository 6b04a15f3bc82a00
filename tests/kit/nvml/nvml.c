/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, for tests behind the real nvidia-ml-py.
 *
 * Two GPUs: the second is divided into two MIG devices. Minor numbers run against the order of the
 * PCI addresses, as they do on some machines. What is defined when it is compiled decides how it
 * misbehaves: HANGS, CRASHES, LOST=INDEX, REFUSES=CODE, DRIVER="VERSION", NOISY.
 *
 * Names and numbers of functions: nvml.h.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
};

#ifndef DRIVER
#define DRIVER "535.261.03"
#endif
#ifndef REFUSES
#define REFUSES SUCCESS
#endif
#ifndef LOST
#define LOST -1
#endif

struct part {
    const char *uuid;
    unsigned int gpu_instance, compute_instance;
};

struct gpu {
    const char *uuid, *pci, *name;
    unsigned int minor, brand, major_arch, minor_arch, most_parts, parts;
    struct part part[2];
};

struct pci {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
};

/* What a handle points to: a GPU, or a part of one. */
struct handle {
    const struct gpu *gpu;
    const struct part *part;
};

static const struct gpu gpus[2] = {
    {"GPU-11111111-2222-3333-4444-555555555555", "00000000:0A:00.0", "Tesla T4", 1, 2, 7, 5, 0, 0,
     {{0}}},
    {"GPU-66666666-7777-8888-9999-aaaaaaaaaaaa", "00010000:C1:00.0", "NVIDIA A100-SXM4-40GB", 0, 14,
     8, 0, 7, 2,
     {{"MIG-bbbbbbbb-0000-5000-8000-000000000001", 1, 0},
      {"MIG-bbbbbbbb-0000-5000-8000-000000000002", 2, 0}}},
};
static struct handle handles[2][3];

static int text(const char *value, char *buffer, unsigned int size)
{
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return SUCCESS;
}

API int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
#ifdef NOISY
    printf("{\"error\": \"a line of the library's own\"}\n");
    fflush(stdout);
#endif
#ifdef HANGS
    for (;;)
        pause();
#endif
    for (int index = 0; index < 2; index++)
        for (int number = 0; number < 3; number++) {
            handles[index][number].gpu = &gpus[index];
            handles[index][number].part = number ? &gpus[index].part[number - 1] : NULL;
        }
    return REFUSES;
}

API int nvmlShutdown(void)
{
    return SUCCESS;
}

API const char *nvmlErrorString(int result)
{
    return result == GPU_IS_LOST ? "GPU is lost" : "some error";
}

API int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    return text(DRIVER, version, size);
}

API int nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 12020;
    return SUCCESS;
}

API int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = 2;
    return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct handle **found)
{
    if (index >= 2)
        return INVALID_ARGUMENT;
    if ((int)index == LOST)
        return GPU_IS_LOST;
    *found = &handles[index][0];
    return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(const struct handle *handle, struct pci *info)
{
    memset(info, 0, sizeof *info);
    return text(handle->gpu->pci, info->bus_id, sizeof info->bus_id);
}

API int nvmlDeviceGetMinorNumber(const struct handle *handle, unsigned int *minor)
{
    *minor = handle->gpu->minor;
    return SUCCESS;
}

API int nvmlDeviceGetUUID(const struct handle *handle, char *uuid, unsigned int size)
{
    return text(handle->part ? handle->part->uuid : handle->gpu->uuid, uuid, size);
}

API int nvmlDeviceGetName(const struct handle *handle, char *name, unsigned int size)
{
    return text(handle->gpu->name, name, size);
}

API int nvmlDeviceGetBrand(const struct handle *handle, unsigned int *brand)
{
    *brand = handle->gpu->brand;
    return SUCCESS;
}

API int nvmlDeviceGetCudaComputeCapability(const struct handle *handle, int *major, int *minor)
{
#ifdef CRASHES
    raise(SIGSEGV);
#endif
    *major = (int)handle->gpu->major_arch;
    *minor = (int)handle->gpu->minor_arch;
    return SUCCESS;
}

API int nvmlDeviceGetMigMode(const struct handle *handle, unsigned int *now, unsigned int *next)
{
    if (!handle->gpu->most_parts)
        return NOT_SUPPORTED;
    *now = *next = 1;
    return SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(const struct handle *handle, unsigned int *count)
{
    *count = handle->gpu->most_parts;
    return SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(const struct handle *handle, unsigned int index,
                                            struct handle **found)
{
    int gpu = (int)(handle->gpu - gpus);
    if (index >= handle->gpu->parts)
        return NOT_FOUND;
    *found = &handles[gpu][index + 1];
    return SUCCESS;
}

API int nvmlDeviceGetGpuInstanceId(const struct handle *handle, unsigned int *id)
{
    if (!handle->part)
        return NOT_SUPPORTED;
    *id = handle->part->gpu_instance;
    return SUCCESS;
}

API int nvmlDeviceGetComputeInstanceId(const struct handle *handle, unsigned int *id)
{
    if (!handle->part)
        return NOT_SUPPORTED;
    *id = handle->part->compute_instance;
    return SUCCESS;
}
