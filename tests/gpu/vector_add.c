/*
 * Adds 50,000 numbers on the first GPU, through the driver alone: libcuda.so.1 is opened by its name, and
 * compiles the kernel, which is PTX, for the card that is there. Neither a compiler of CUDA nor its runtime
 * is needed, and a container has nothing but what came with the driver.
 *
 * cc -o vectorAdd vector_add.c -ldl -lm
 *
 * Exit status: 0 the sums are right, 1 they are not, 2 the driver can't be used.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ELEMENTS 50000
#define BLOCK 256

/* Of cuda.h: handles are pointers, a pointer of the card has 64 bits, zero is success. */
typedef int result;
typedef int device;
typedef void *context, *module, *function;
typedef unsigned long long device_pointer;

/* c[i] = a[i] + b[i]. Every driver since 2017 takes this version, and every card since Maxwell this target. */
static const char kernel[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry vector_add(\n"
    "    .param .u64 a, .param .u64 b, .param .u64 c, .param .u32 count)\n"
    "{\n"
    "    .reg .pred %beyond;\n"
    "    .reg .b32 %block, %blocks, %thread, %i, %count;\n"
    "    .reg .b64 %a, %b, %c, %offset;\n"
    "    .reg .f32 %x, %y, %sum;\n"
    "    ld.param.u64 %a, [a];\n"
    "    ld.param.u64 %b, [b];\n"
    "    ld.param.u64 %c, [c];\n"
    "    ld.param.u32 %count, [count];\n"
    "    mov.u32 %block, %ctaid.x;\n"
    "    mov.u32 %blocks, %ntid.x;\n"
    "    mov.u32 %thread, %tid.x;\n"
    "    mad.lo.s32 %i, %block, %blocks, %thread;\n"
    "    setp.ge.u32 %beyond, %i, %count;\n"
    "    @%beyond bra done;\n"
    "    mul.wide.u32 %offset, %i, 4;\n"
    "    cvta.to.global.u64 %a, %a;\n"
    "    cvta.to.global.u64 %b, %b;\n"
    "    cvta.to.global.u64 %c, %c;\n"
    "    add.s64 %a, %a, %offset;\n"
    "    add.s64 %b, %b, %offset;\n"
    "    add.s64 %c, %c, %offset;\n"
    "    ld.global.f32 %x, [%a];\n"
    "    ld.global.f32 %y, [%b];\n"
    "    add.f32 %sum, %x, %y;\n"
    "    st.global.f32 [%c], %sum;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

static result (*init)(unsigned int);
static result (*error_name)(result, const char **);
static result (*driver_version)(int *);
static result (*device_get)(device *, int);
static result (*device_name)(char *, int, device);
static result (*context_retain)(context *, device);
static result (*context_set)(context);
static result (*module_load)(module *, const void *);
static result (*module_function)(function *, module, const char *);
static result (*allocate)(device_pointer *, size_t);
static result (*deallocate)(device_pointer);
static result (*to_device)(device_pointer, const void *, size_t);
static result (*to_host)(void *, device_pointer, size_t);
static result (*launch)(function, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, unsigned int, unsigned int, void *, void **, void **);
static result (*synchronize)(void);

static const struct {
    const char *name;
    void **place;
} functions[] = {
    {"cuInit", (void **)&init},
    {"cuGetErrorName", (void **)&error_name},
    {"cuDriverGetVersion", (void **)&driver_version},
    {"cuDeviceGet", (void **)&device_get},
    {"cuDeviceGetName", (void **)&device_name},
    {"cuDevicePrimaryCtxRetain", (void **)&context_retain},
    {"cuCtxSetCurrent", (void **)&context_set},
    {"cuModuleLoadData", (void **)&module_load},
    {"cuModuleGetFunction", (void **)&module_function},
    {"cuMemAlloc_v2", (void **)&allocate},
    {"cuMemFree_v2", (void **)&deallocate},
    {"cuMemcpyHtoD_v2", (void **)&to_device},
    {"cuMemcpyDtoH_v2", (void **)&to_host},
    {"cuLaunchKernel", (void **)&launch},
    {"cuCtxSynchronize", (void **)&synchronize},
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(2);
}

static void must(result code, const char *what)
{
    const char *name = NULL;
    if (code == 0)
        return;
    if (error_name(code, &name) != 0 || name == NULL)
        name = "unknown error";
    fprintf(stderr, "%s: error %d, ", what, code);
    fail(name, "the driver can't be used");
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        fail("dlopen", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if ((*functions[i].place = dlsym(library, functions[i].name)) == NULL)
            fail("dlsym", dlerror());
}

int main(void)
{
    static float a[ELEMENTS], b[ELEMENTS], c[ELEMENTS];
    device_pointer on_device[3];
    unsigned int count = ELEMENTS, blocks = (ELEMENTS + BLOCK - 1) / BLOCK;
    char name[128];
    device card;
    context own;
    module code;
    function add;
    int version;

    open_driver();
    must(init(0), "cuInit");
    must(driver_version(&version), "cuDriverGetVersion");
    must(device_get(&card, 0), "cuDeviceGet");
    must(device_name(name, sizeof name, card), "cuDeviceGetName");
    printf("%s, CUDA %d.%d\n", name, version / 1000, version % 1000 / 10);
    must(context_retain(&own, card), "cuDevicePrimaryCtxRetain");
    must(context_set(own), "cuCtxSetCurrent");
    must(module_load(&code, kernel), "cuModuleLoadData");
    must(module_function(&add, code, "vector_add"), "cuModuleGetFunction");

    printf("[Vector addition of %d elements]\n", ELEMENTS);
    for (int i = 0; i < ELEMENTS; i++) {
        a[i] = (float)(i % 1009) / 1009;
        b[i] = (float)(i % 2003) / 2003;
        c[i] = -1;
    }
    for (int i = 0; i < 3; i++)
        must(allocate(&on_device[i], sizeof a), "cuMemAlloc");
    printf("Copy input data from the host memory to the CUDA device\n");
    must(to_device(on_device[0], a, sizeof a), "cuMemcpyHtoD");
    must(to_device(on_device[1], b, sizeof b), "cuMemcpyHtoD");
    must(to_device(on_device[2], c, sizeof c), "cuMemcpyHtoD");
    printf("CUDA kernel launch with %u blocks of %d threads\n", blocks, BLOCK);
    void *parameters[] = {&on_device[0], &on_device[1], &on_device[2], &count};
    must(launch(add, blocks, 1, 1, BLOCK, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
    must(synchronize(), "cuCtxSynchronize");
    printf("Copy output data from the CUDA device to the host memory\n");
    must(to_host(c, on_device[2], sizeof c), "cuMemcpyDtoH");
    for (int i = 0; i < 3; i++)
        must(deallocate(on_device[i]), "cuMemFree");

    for (int i = 0; i < ELEMENTS; i++)
        if (fabsf(a[i] + b[i] - c[i]) > 1e-5f) {
            fprintf(stderr, "Element %d is %g, not %g\nTest FAILED\n", i, (double)c[i],
                    (double)(a[i] + b[i]));
            return 1;
        }
    printf("Test PASSED\nDone\n");
    return 0;
}
