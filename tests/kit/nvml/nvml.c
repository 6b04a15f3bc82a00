/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, checked by the compiler against NVIDIA's own nvml.h, and
 * used by NVIDIA's nvidia-smi and nvidia-ctk. `gpus.h` is made by `kit.gpus`.
 *
 * nvidia-smi makes its reports of more than a header has, so the library prints them in its place.
 *
 * What is defined when it is compiled decides how it behaves: NODES has it know only GPUs whose nodes
 * this process may open, as the real one does; it misbehaves by HANGS, CRASHES, LOST=INDEX,
 * REFUSES=CODE.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "nvml.h"

#ifndef REFUSES
#define REFUSES NVML_SUCCESS
#endif
#ifndef LOST
#define LOST -1
#endif
#define MOST_PARTS 7

struct part {
    const char *uuid;
    unsigned int gpu_instance, compute_instance;
    const char *nodes[2];
};

struct gpu {
    const char *uuid, *pci, *name, *node;
    unsigned int minor;
    nvmlBrandType_t brand;
    int major_arch, minor_arch;
    unsigned int parts;
    struct part part[MOST_PARTS];
};

#include "gpus.h"

/* What a handle points to: a GPU, or a part of one. */
struct nvmlDevice_st {
    const struct gpu *gpu;
    const struct part *part;
};

#define GPUS (sizeof gpus / sizeof *gpus)
static struct nvmlDevice_st found_gpus[GPUS], found_parts[GPUS][MOST_PARTS];
static unsigned int gpu_count, part_counts[GPUS];

static nvmlReturn_t text(const char *value, char *buffer, unsigned int size)
{
    if (strlen(value) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return NVML_SUCCESS;
}

/* No driver has the number of a stand-in's node: ENXIO says that the cgroup let us come so far. */
static int usable(const char *node)
{
#ifdef NODES
    char path[64];
    snprintf(path, sizeof path, "/dev/%s", node);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0)
        close(file);
    return file >= 0 || errno == ENXIO;
#else
    (void)node;
    return 1;
#endif
}

static int is_chosen(const struct gpu *gpu, const char *address)
{
    size_t all = strlen(gpu->pci), end = address ? strlen(address) : 0;
    return end <= all && strcasecmp(gpu->pci + all - end, address ? address : "") == 0;
}

/* In place of `nvidia-smi`, `nvidia-smi -q -x [-i ADDRESS]`, `nvidia-smi --query-gpu=uuid,compute_cap ...`. */
static void print_report(void)
{
    char words[4096] = "";
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t size = file ? fread(words, 1, sizeof words - 1, file) : 0;
    if (file)
        fclose(file);
    const char *word[6] = {"", "", "", "", "", ""};
    unsigned int count = 0;
    for (size_t at = 0; at < size && count < 6; at += strlen(words + at) + 1)
        word[count++] = words + at;
    const char *program = strrchr(word[0], '/');
    if (count == 1 && !strcmp(program ? program + 1 : word[0], "nvidia-smi")) {
        for (unsigned int index = 0; index < GPUS; index++)
            printf("%s\n", gpus[index].name);
        fflush(stdout);
        _exit(REFUSES);
    }
    int is_report = !strcmp(word[1], "-q") && !strcmp(word[2], "-x");
    const char *address = count == 5 && !strcmp(word[3], "-i") ? word[4] : NULL;
    if (!is_report && strcmp(word[1], "--query-gpu=uuid,compute_cap"))
        return;
    if (REFUSES != NVML_SUCCESS) {
        printf("Failed to initialize NVML: some error\n");
        _exit(REFUSES);
    }
    for (unsigned int index = 0; index < GPUS; index++)
        if (is_report && (int)index == LOST && is_chosen(&gpus[index], address)) {
            printf("Unable to determine the device handle for GPU%s: GPU is lost\n",
                   gpus[index].pci);
            fflush(stdout);
            _exit(15);
        }
    if (is_report)
        fputs(report_parts[0], stdout);
    for (unsigned int index = 0; index < GPUS; index++) {
        const struct gpu *gpu = &gpus[index];
        if (is_report && is_chosen(gpu, address))
            fputs(report_parts[2 + index], stdout);
        else if (!is_report && (int)index != LOST)
            printf("%s, %d.%d\n", gpu->uuid, gpu->major_arch, gpu->minor_arch);
    }
    if (is_report)
        fputs(report_parts[1], stdout);
    fflush(stdout);
    _exit(0);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
#ifdef CRASHES
    raise(SIGSEGV);
#endif
#ifdef HANGS
    for (;;)
        pause();
#endif
    print_report();
    if (!usable("nvidiactl"))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    gpu_count = 0;
    for (unsigned int index = 0; index < GPUS; index++) {
        const struct gpu *gpu = &gpus[index];
        if (!usable(gpu->node))
            continue;
        unsigned int parts = 0;
        for (unsigned int number = 0; number < gpu->parts; number++) {
            const struct part *part = &gpu->part[number];
            if (usable(part->nodes[0]) && usable(part->nodes[1]))
                found_parts[gpu_count][parts++] = (struct nvmlDevice_st){gpu, part};
        }
        part_counts[gpu_count] = parts;
        found_gpus[gpu_count++] = (struct nvmlDevice_st){gpu, NULL};
    }
    return REFUSES;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    return result == NVML_ERROR_GPU_IS_LOST ? "GPU is lost" : "some error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    return text(DRIVER, version, size);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 12020;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = gpu_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *found)
{
    if (index >= gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((int)index == LOST)
        return NVML_ERROR_GPU_IS_LOST;
    *found = &found_gpus[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *found)
{
    for (unsigned int gpu = 0; gpu < gpu_count; gpu++) {
        if (strcmp(uuid, found_gpus[gpu].gpu->uuid) == 0) {
            *found = &found_gpus[gpu];
            return NVML_SUCCESS;
        }
        for (unsigned int part = 0; part < part_counts[gpu]; part++)
            if (strcmp(uuid, found_parts[gpu][part].part->uuid) == 0) {
                *found = &found_parts[gpu][part];
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    memset(info, 0, sizeof *info);
    return text(device->gpu->pci, info->busId, sizeof info->busId);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    *minor = device->gpu->minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
    return text(device->part ? device->part->uuid : device->gpu->uuid, uuid,
                size);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
    nvmlReturn_t result = text(device->gpu->name, name, size);
    /* nvidia-smi looks for the word. */
    if (result == NVML_SUCCESS && device->part)
        strncat(name, " MIG 3g.20gb", size - strlen(name) - 1);
    return result;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand)
{
    *brand = device->gpu->brand;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    *major = device->gpu->major_arch;
    *minor = device->gpu->minor_arch;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    (void)device;
    *memory = (nvmlMemory_t){.total = 16ULL << 30, .free = 16ULL << 30};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    (void)device;
    *attributes = (nvmlDeviceAttributes_t){
        .gpuInstanceSliceCount = 3, .computeInstanceSliceCount = 3, .memorySizeMB = 20096};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *next)
{
    if (!device->gpu->parts)
        return NVML_ERROR_NOT_SUPPORTED;
    *now = *next = NVML_DEVICE_MIG_ENABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    *count = device->gpu->parts ? MOST_PARTS : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *found)
{
    long gpu = device - found_gpus;
    if (index >= part_counts[gpu])
        return NVML_ERROR_NOT_FOUND;
    *found = &found_parts[gpu][index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_part)
{
    *is_part = device->part != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t part, nvmlDevice_t *found)
{
    for (unsigned int index = 0; index < gpu_count; index++)
        if (part->part && found_gpus[index].gpu == part->gpu) {
            *found = &found_gpus[index];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    if (!device->part)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = device->part->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    if (!device->part)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = device->part->compute_instance;
    return NVML_SUCCESS;
}

/* The instances of a part are that part, and all are of one profile. */
nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                          nvmlGpuInstance_t *found)
{
    long gpu = device - found_gpus;
    for (unsigned int part = 0; part < part_counts[gpu]; part++)
        if (found_parts[gpu][part].part->gpu_instance == id) {
            *found = (nvmlGpuInstance_t)&found_parts[gpu][part];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    nvmlDevice_t part = (nvmlDevice_t)instance;
    *info = (nvmlGpuInstanceInfo_t){
        .id = part->part->gpu_instance, .profileId = NVML_GPU_INSTANCE_PROFILE_3_SLICE};
    return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, &info->device);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t *found)
{
    if (((nvmlDevice_t)instance)->part->compute_instance != id)
        return NVML_ERROR_NOT_FOUND;
    *found = (nvmlComputeInstance_t)instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance,
                                           nvmlComputeInstanceInfo_t *info)
{
    nvmlDevice_t part = (nvmlDevice_t)instance;
    *info = (nvmlComputeInstanceInfo_t){.gpuInstance = (nvmlGpuInstance_t)instance,
                                        .id = part->part->compute_instance,
                                        .profileId = NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE};
    return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, &info->device);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    if (!device->gpu->parts || profile != NVML_GPU_INSTANCE_PROFILE_3_SLICE)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlGpuInstanceProfileInfo_t){.id = profile, .sliceCount = 3, .instanceCount = 2};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance,
                                                          unsigned int profile,
                                                          unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
    (void)instance;
    if (profile != NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE ||
        engines != NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){.id = profile, .sliceCount = 3, .instanceCount = 1};
    return NVML_SUCCESS;
}

/*
 * What nvidia-smi looks for and no header has: a table with its size and then functions, of which
 * `nvidia-smi -L` needs one to say more than success. NVIDIA's own mock, pkg/gpu/mocknvml of
 * github.com/NVIDIA/k8s-test-infra (no module of the Go proxy), found out which.
 */
enum { SLOTS = 256, HANDLE_BY_INDEX = 81 };

static nvmlReturn_t succeed(void)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *name);

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *name)
{
    static uintptr_t slots[SLOTS];
    (void)name;
    for (int slot = 1; slot < SLOTS; slot++)
        slots[slot] = (uintptr_t)succeed;
    slots[0] = sizeof slots;
    slots[HANDLE_BY_INDEX] = (uintptr_t)nvmlDeviceGetHandleByIndex_v2;
    *table = slots;
    return NVML_SUCCESS;
}
