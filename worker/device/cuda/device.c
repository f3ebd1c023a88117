/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - opening a GPU, what it is, and its memory. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/device/cuda/cuda.h"

/* Streams that share a hardware queue wait for each other's kernels. A step has a stream for each direction of each
 * neighbour besides its own, and a send that is stuck behind a receive on two ranks at once would never go: ask for as
 * many queues as there are (32; the default is 8). Read by the driver when it starts. */
static void separate_queues(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

/* libcuda.so.1 comes with the driver, not with the toolkit; nothing here links to it. */
const char *cuda_unusable(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (!driver)
        return "no NVIDIA driver: libcuda.so.1 cannot be opened";
    (void)dlclose(driver);
    separate_queues();
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaErrorInsufficientDriver)
        return "the NVIDIA driver is older than the CUDA runtime of this plug-in: update the driver";
    if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0))
        return "no NVIDIA GPU is visible (is CUDA_VISIBLE_DEVICES set?)";
    return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

titan_status cuda_fail(struct titan_error *err, cudaError_t e, const char *what)
{
    titan_assert(e != cudaSuccess);
    (void)cudaGetLastError(); /* forget it, where CUDA can: a failed allocation must not fail the next launch */
    return titan_fail(err, e == cudaErrorMemoryAllocation ? TITAN_ENOMEM : TITAN_EDEVICE, "%s: %s (%s)", what,
                      cudaGetErrorString(e), cudaGetErrorName(e));
}

titan_status cuda_enter(struct device *dev, struct titan_error *err)
{
    cudaError_t e = cudaSetDevice(dev->index);
    return e == cudaSuccess ? TITAN_OK : cuda_fail(err, e, "selecting the GPU");
}

/* Dense peaks in FLOP/s. By name from the vendor's data sheets, as they are what MFU is usually stated against;
 * otherwise from the architecture's rate per multiprocessor and clock. */
static void find_peaks(struct device *dev)
{
    static const struct {
        const char *name;
        double bf16;
    } sheets[] = {{"A100", 312e12}, {"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12},  {"H200", 989e12},
                  {"H800", 989e12}, {"GH200", 989e12},     {"B200", 2250e12},    {"GB200", 2250e12}};
    int sms = 0, khz = 0, major = 0, minor = 0;
    (void)cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, dev->index);
    (void)cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, dev->index);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev->index);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, dev->index);
    const double cycles = sms * (khz * 1e3);
    const int fp32_lanes = major == 8 && minor == 0 ? 64 : 128;
    dev->peak_flops_f32 = cycles * fp32_lanes * 2;
    dev->peak_flops_bf16 = cycles * (major >= 10 ? 8192 : major == 9 ? 4096 : major == 8 && minor == 0 ? 2048 : 1024);
    for (size_t i = 0; i < sizeof sheets / sizeof sheets[0]; i++) {
        if (strstr(dev->name, sheets[i].name)) {
            dev->peak_flops_bf16 = sheets[i].bf16;
            return;
        }
    }
}

static titan_status describe(struct device *dev, struct titan_error *err)
{
    struct cudaDeviceProp prop;
    cudaError_t e = cudaGetDeviceProperties(&prop, dev->index);
    if (e != cudaSuccess)
        return cuda_fail(err, e, "reading the GPU's properties");
    if (prop.major < 8)
        return titan_fail(err, TITAN_EUNSUPPORTED, "%s has compute capability %d.%d; 8.0 or later is needed (bf16)",
                          prop.name, prop.major, prop.minor);
    (void)snprintf(dev->name, sizeof dev->name, "%.*s", (int)sizeof dev->name - 1, prop.name);
    dev->memory_bytes = prop.totalGlobalMem;
    find_peaks(dev);
    return TITAN_OK;
}

/* Several ranks on one GPU, for tests: NCCL takes them for ranks of different hosts when each names its own host, and
 * then needs to be kept to the loopback interface. Read by NCCL at its first call. */
static bool share_gpus(void)
{
    const char *wanted = getenv("TITAN_NCCL_SHARED_GPU");
    if (!wanted || strcmp(wanted, "1") != 0)
        return false;
    char host[32];
    (void)snprintf(host, sizeof host, "titan-%ld", (long)getpid());
    const char *const settings[][2] = {
        {"NCCL_HOSTID", host},
        {"NCCL_SOCKET_IFNAME", "=lo"},
        {"NCCL_NET", "Socket"},
        {"NCCL_IB_DISABLE", "1"},
        {"NCCL_SOCKET_FAMILY", "AF_INET"},
        {"NCCL_MNNVL_ENABLE", "0"},
        {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_MAX_CTAS", "2"},
        {"NCCL_RAS_ENABLE", "0"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        (void)setenv(settings[i][0], settings[i][1], 0);
    return true;
}

titan_status cuda_open(const struct device_options *options, struct device **ret, struct titan_error *err)
{
    const char *why = cuda_unusable();
    if (why)
        return titan_fail(err, TITAN_EUNSUPPORTED, "%s", why);
    int count = 0, index = options ? options->index : 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess)
        return cuda_fail(err, e, "counting GPUs");
    if (share_gpus() && count > 0)
        index %= count;
    if (index < 0 || index >= count) {
        (void)titan_fail(err, TITAN_EINVAL, "GPU %d does not exist: this machine shows %d", index, count);
        titan_error_hint(err, "start at most one worker for each GPU");
        return TITAN_EINVAL;
    }

    struct device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a device");
    dev->index = index;
    (void)pthread_mutex_init(&dev->lock, NULL);
    (void)pthread_mutex_init(&dev->watch_lock, NULL);
    titan_status st = cuda_enter(dev, err);
    if (st == TITAN_OK)
        st = describe(dev, err);
    if (st == TITAN_OK)
        st = matmul_plans_open(&dev->plans, err);
    if (st == TITAN_OK) {
        cublasStatus_t lt = cublasLtCreate(&dev->lt);
        if (lt != CUBLAS_STATUS_SUCCESS)
            st = titan_fail(err, TITAN_EDEVICE, "starting cuBLASLt: %s", cublasLtGetStatusString(lt));
    }
    if (st != TITAN_OK) {
        cuda_close(dev);
        return st;
    }
    *ret = dev;
    return TITAN_OK;
}

void cuda_close(struct device *dev)
{
    if (!dev)
        return;
    matmul_plans_close(dev->plans);
    if (dev->lt)
        (void)cublasLtDestroy(dev->lt);
    (void)pthread_mutex_destroy(&dev->lock);
    (void)pthread_mutex_destroy(&dev->watch_lock);
    free(dev);
}

void cuda_info(struct device *dev, struct device_info *ret)
{
    *ret = (struct device_info){
        .bf16_fast = true,
        .memory_bytes = dev->memory_bytes,
        .peak_flops_bf16 = dev->peak_flops_bf16,
        .peak_flops_f32 = dev->peak_flops_f32,
    };
    memcpy(ret->name, dev->name, sizeof ret->name);
}

titan_status cuda_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err)
{
    void *ptr = NULL;
    TRY(cuda_enter(dev, err));
    cudaError_t e = cudaMalloc(&ptr, bytes ? bytes : 1);
    if (e != cudaSuccess) {
        titan_status st = cuda_fail(err, e, "GPU memory");
        (void)titan_error_wrap(err, "%zu bytes", bytes);
        return st;
    }
    e = cudaMemset(ptr, 0, bytes);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize(); /* streams here do not wait for the default one */
    if (e != cudaSuccess) {
        (void)cudaFree(ptr);
        return cuda_fail(err, e, "clearing GPU memory");
    }
    *ret = ptr;
    return TITAN_OK;
}

void cuda_release(struct device *dev, void *ptr)
{
    if (ptr && cuda_enter(dev, NULL) == TITAN_OK)
        (void)cudaFree(ptr);
}

titan_status cuda_alloc_host(struct device *dev, size_t bytes, void **ret, struct titan_error *err)
{
    void *ptr = NULL;
    TRY(cuda_enter(dev, err));
    cudaError_t e = cudaHostAlloc(&ptr, bytes ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped);
    if (e != cudaSuccess) {
        titan_status st = cuda_fail(err, e, "pinned host memory");
        (void)titan_error_wrap(err, "%zu bytes", bytes);
        return st;
    }
    memset(ptr, 0, bytes);
    *ret = ptr;
    return TITAN_OK;
}

void cuda_release_host(struct device *dev, void *ptr)
{
    if (ptr && cuda_enter(dev, NULL) == TITAN_OK)
        (void)cudaFreeHost(ptr);
}

bool cuda_device_watch(struct device *dev, const struct comm_watch *watch)
{
    titan_assert(watch->check && watch->forget && watch->comm);
    (void)pthread_mutex_lock(&dev->watch_lock);
    bool fits = dev->n_watches < CUDA_COMMS_MAX;
    if (fits)
        dev->watches[dev->n_watches++] = *watch;
    (void)pthread_mutex_unlock(&dev->watch_lock);
    return fits;
}

void cuda_device_unwatch(struct device *dev, const struct comm *comm)
{
    (void)pthread_mutex_lock(&dev->watch_lock);
    for (int i = 0; i < dev->n_watches; i++) {
        titan_assert(dev->n_watches <= CUDA_COMMS_MAX);
        if (dev->watches[i].comm == comm)
            dev->watches[i--] = dev->watches[--dev->n_watches];
    }
    (void)pthread_mutex_unlock(&dev->watch_lock);
}
