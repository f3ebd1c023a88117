/* SPDX-License-Identifier: Apache-2.0 */
/* modules.c - all kernels of the plug-in are loaded when the device is opened (kernels.h). */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/kernels.h"

#define MODULES_MAX 32

static const void *marks[MODULES_MAX]; /* a kernel of each module; complete before main */
static int n_marks;

int cuda_list_module(const void *kernel)
{
    titan_assert(kernel && n_marks < MODULES_MAX);
    marks[n_marks++] = kernel;
    return n_marks;
}

/* The driver's functions; nothing here links to the driver. */
struct driver {
    CUresult (*module_of)(CUmodule *module, CUfunction function);
    CUresult (*count)(unsigned *count, CUmodule module);
    CUresult (*enumerate)(CUfunction *functions, unsigned n, CUmodule module);
    CUresult (*load)(CUfunction function);
};

/* Loads the module of a kernel. -1: the driver refuses. */
static int load_module(const struct driver *d, const void *mark)
{
    cudaFunction_t function = NULL;
    CUmodule module = NULL;
    unsigned n = 0;

    if (cudaGetFuncBySymbol(&function, mark) != cudaSuccess ||
        d->module_of(&module, (CUfunction)function) != CUDA_SUCCESS || d->count(&n, module) != CUDA_SUCCESS)
        return -1;
    _cleanup_free_ CUfunction *functions = calloc((size_t)n + 1, sizeof(CUfunction));
    if (!functions || d->enumerate(functions, n, module) != CUDA_SUCCESS)
        return -1;
    for (unsigned i = 0; i < n; i++)
        if (d->load(functions[i]) != CUDA_SUCCESS)
            return -1;
    return (int)n;
}

void cuda_load_kernels(void)
{
    void *const library = n_marks > 0 ? dlopen("libcuda.so.1", RTLD_LAZY) : NULL; /* the library stays loaded */
    struct driver driver = {0};
    struct log log;
    int kernels = 0, refused = n_marks > 0;

    if (library) {
        *(void **)&driver.module_of = dlsym(library, "cuFuncGetModule");
        *(void **)&driver.count = dlsym(library, "cuModuleGetFunctionCount");
        *(void **)&driver.enumerate = dlsym(library, "cuModuleEnumerateFunctions");
        *(void **)&driver.load = dlsym(library, "cuFuncLoad");
        refused = !driver.module_of || !driver.count || !driver.enumerate || !driver.load;
    }
    for (int i = 0; i < n_marks && !refused; i++) {
        const int n = load_module(&driver, marks[i]);
        refused = n < 0;
        kernels += n;
    }
    log_init(&log, "cuda", "%s", "");
    if (refused)
        tlog_warn(&log, "kernels are loaded when they are first used, which can hang a run of several ranks",
                  "modules=%d", n_marks);
    else
        tlog_debug(&log, "kernels loaded", "kernels=%d modules=%d", kernels, n_marks);
}
