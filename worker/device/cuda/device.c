/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - opens a GPU, finds its properties, and manages its memory. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/cudnn_attention.h"
#include "worker/device/cuda/kernels.h"
#include "worker/device/cuda/product_plans.h"

#define MIB 1048576.0
#define LOOK_NS 1000000 /* time between two checks of the communicators by the watcher */

/* libcuda.so.1 comes with the driver, not with the toolkit. So the plug-in does not link to this library. */
const char *cuda_unusable(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (!driver)
        return "no NVIDIA driver: libcuda.so.1 cannot be opened";
    (void)dlclose(driver);
    /* Requests 32 hardware queues (the default is 8); the driver reads the number when it starts. Streams that share a
     * queue wait for each other's kernels. Besides its own stream, a step has a stream for each direction of each
     * neighbour. If on two ranks at once a send waits behind a receive in its queue, neither send ever starts. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
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
    (void)cudaGetLastError(); /* clear the error if CUDA can: a failed allocation must not make the next launch fail */
    return titan_fail(err, e == cudaErrorMemoryAllocation ? TITAN_ENOMEM : TITAN_EDEVICE, "%s: %s (%s)", what,
                      cudaGetErrorString(e), cudaGetErrorName(e));
}

titan_status cuda_enter(struct device *dev, struct titan_error *err)
{
    cudaError_t e = cudaSetDevice(dev->index);
    return e == cudaSuccess ? TITAN_OK : cuda_fail(err, e, "selecting the GPU");
}

static titan_status describe(struct device *dev, struct titan_error *err)
{
    static const struct {
        const char *name;
        double bf16;
    } sheets[] = {{"A100", 312e12}, {"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12},  {"H200", 989e12},
                  {"H800", 989e12}, {"GH200", 989e12},     {"B200", 2250e12},    {"GB200", 2250e12}};
    struct cudaDeviceProp prop;
    cudaError_t e = cudaGetDeviceProperties(&prop, dev->index);
    if (e != cudaSuccess)
        return cuda_fail(err, e, "reading the GPU's properties");
    if (prop.major < 8)
        return titan_fail(err, TITAN_EUNSUPPORTED, "%s has compute capability %d.%d; 8.0 or later is needed (bf16)",
                          prop.name, prop.major, prop.minor);
    (void)snprintf(dev->name, sizeof dev->name, "%.*s", (int)sizeof dev->name - 1, prop.name);
    dev->hardware = hash_mix(hash_bytes(HASH_INIT, prop.uuid.bytes, sizeof prop.uuid.bytes));
    dev->memory_bytes = prop.totalGlobalMem;
    size_t free_bytes = 0, total = 0;
    e = cudaMemGetInfo(&free_bytes, &total); /* this process's context already exists and counts as used */
    if (e != cudaSuccess)
        return cuda_fail(err, e, "asking for the GPU's free memory");
    dev->memory_free = free_bytes;

    /* The dense peaks in FLOP/s. GPUs known by name get the peaks of the vendor's data sheets, which MFU is usually
     * stated against. Other GPUs get the architecture's rate per multiprocessor and clock. */
    int sms = 0, khz = 0;
    (void)cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, dev->index);
    (void)cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, dev->index);
    const double cycles = sms * (khz * 1e3);
    const bool first = prop.major == 8 && prop.minor == 0;
    dev->peak_flops_f32 = cycles * (first ? 64 : 128) * 2;
    dev->peak_flops_bf16 = cycles * (prop.major >= 10 ? 8192 : prop.major == 9 ? 4096 : first ? 2048 : 1024);
    for (size_t i = 0; i < sizeof sheets / sizeof sheets[0]; i++) {
        if (strstr(dev->name, sheets[i].name)) {
            dev->peak_flops_bf16 = sheets[i].bf16;
            break;
        }
    }

    dev->mxfp8 = prop.major >= 10;
    /* 8.9 has float8 as well, but no scale for each line; 8.9 is untested. */
    dev->float8 = prop.major >= 9;
    return product_plans_open(&dev->code_plans, err);
}

/* Lets several ranks use one GPU, for tests. If each rank names its own host, NCCL takes them for ranks of different
 * hosts. NCCL must then be restricted to the loopback interface. NCCL reads these variables at its first call. */
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

/* --- the watcher -------------------------------------------------------------------------------------------------- */

static void *watch_main(void *arg)
{
    struct device *dev = arg;
    (void)cudaSetDevice(dev->index);
    (void)pthread_mutex_lock(&dev->watch_lock);
    while (!dev->closing) {
        for (int i = 0; i < dev->n_watches; i++)
            dev->watches[i].check(dev->watches[i].comm);
        const int64_t next = clock_mono_ns() + LOOK_NS;
        const struct timespec until = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000};
        if (dev->n_watches > 0)
            (void)pthread_cond_timedwait(&dev->watch_wake, &dev->watch_lock, &until);
        else
            (void)pthread_cond_wait(&dev->watch_wake, &dev->watch_lock);
    }
    (void)pthread_mutex_unlock(&dev->watch_lock);
    return NULL;
}

/* --- opening and closing ------------------------------------------------------------------------------------------ */

static double lap_ms(int64_t *from_ns)
{
    const int64_t now = clock_mono_ns(), took = now - *from_ns;
    *from_ns = now;
    return (double)took / 1e6;
}

/* Opens the device's parts and logs the time of each. The time matters because most of the time to replace a killed
 * worker is spent here. */
static titan_status open_parts(struct device *dev, struct titan_error *err)
{
    int64_t from_ns = clock_mono_ns();
    struct log log;

    TRY(cuda_enter(dev, err));
    TRY(describe(dev, err));
    const double context_ms = lap_ms(&from_ns);
    cuda_load_kernels();
    const double kernels_ms = lap_ms(&from_ns);
    TRY(product_plans_open(&dev->plans, err));
    int major = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev->index);
    TRY(cudnn_attention_open(major, &dev->attention, err));
    const double cudnn_ms = lap_ms(&from_ns);
    const char *const hopper = getenv("TITAN_HOPPER");
    dev->hopper = major == 9 && !(hopper && strcmp(hopper, "0") == 0) && cuda_attention_hopper_works();
    cudaError_t e = cudaStreamCreateWithFlags(&dev->clearing, cudaStreamNonBlocking);
    if (e != cudaSuccess)
        return cuda_fail(err, e, "opening a stream");
    cublasStatus_t lt = cublasLtCreate(&dev->lt);
    if (lt != CUBLAS_STATUS_SUCCESS)
        return titan_fail(err, TITAN_EDEVICE, "starting cuBLASLt: %s", cublasLtGetStatusString(lt));
    log_init(&log, "cuda", "%s", "");
    tlog_info(&log, "GPU opened", "device=%d context_ms=%.1f kernels_ms=%.1f cudnn_ms=%.1f cublaslt_ms=%.1f",
              dev->index, context_ms, kernels_ms, cudnn_ms, lap_ms(&from_ns));
    return TITAN_OK;
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
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&dev->watch_wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_mutex_init(&dev->lock, NULL);
    (void)pthread_mutex_init(&dev->watch_lock, NULL);
    titan_status st = open_parts(dev, err);
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
    titan_assert(dev->n_watches == 0);
    cuda_nccl_settle(dev);
    if (dev->has_watcher) {
        (void)pthread_mutex_lock(&dev->watch_lock);
        dev->closing = true;
        (void)pthread_cond_signal(&dev->watch_wake);
        (void)pthread_mutex_unlock(&dev->watch_lock);
        (void)pthread_join(dev->watcher, NULL);
    }
    product_plans_close(dev->plans);
    product_plans_close(dev->code_plans);
    cudnn_attention_close(dev->attention);
    if (dev->lt)
        (void)cublasLtDestroy(dev->lt);
    if (dev->clearing)
        (void)cudaStreamDestroy(dev->clearing);
    (void)pthread_cond_destroy(&dev->watch_wake);
    (void)pthread_mutex_destroy(&dev->lock);
    (void)pthread_mutex_destroy(&dev->watch_lock);
    free(dev);
}

void cuda_info(struct device *dev, struct device_info *ret)
{
    *ret = (struct device_info){
        .bf16_fast = true,
        .float8 = dev->float8,
        .mxfp8 = dev->mxfp8,
        .memory_bytes = dev->memory_bytes,
        .memory_free = dev->memory_free,
        .peak_flops_bf16 = dev->peak_flops_bf16,
        .peak_flops_f32 = dev->peak_flops_f32,
        .hardware = dev->hardware,
        .share = 1,
    };
    memcpy(ret->name, dev->name, sizeof ret->name);
}

uint64_t cuda_memory_peak(struct device *dev, bool begin)
{
    size_t free_bytes = 0, total = 0;

    if (cuda_enter(dev, NULL) != TITAN_OK || cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        return 0;
    titan_assert(free_bytes <= total);
    dev->memory_peak = MAX(begin ? 0 : dev->memory_peak, total - free_bytes);
    return dev->memory_peak;
}

cudaError_t cuda_clear(struct device *dev, void *ptr, size_t bytes)
{
    titan_assert(ptr && dev->clearing);
    cudaError_t e = cudaMemsetAsync(ptr, 0, bytes, dev->clearing);
    return e == cudaSuccess ? cudaStreamSynchronize(dev->clearing) : e;
}

titan_status cuda_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err)
{
    void *ptr = NULL;
    TRY(cuda_enter(dev, err));
    cudaError_t e = cudaMalloc(&ptr, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        cuda_nccl_settle(dev);
        e = cudaMalloc(&ptr, bytes ? bytes : 1);
    }
    if (e != cudaSuccess) {
        size_t free_bytes = 0, total = 0;
        titan_status st = cuda_fail(err, e, "GPU memory");
        (void)cudaMemGetInfo(&free_bytes, &total);
        (void)titan_error_wrap(err, "%.1f MiB wanted, %.1f of %.1f MiB free", (double)bytes / MIB,
                               (double)free_bytes / MIB, (double)total / MIB);
        return st;
    }
    e = cuda_clear(dev, ptr, bytes);
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

titan_status cuda_pin_host(struct device *dev, void *ptr, size_t bytes, struct titan_error *err)
{
    TRY(cuda_enter(dev, err));
    const cudaError_t e = cudaHostRegister(ptr, bytes, cudaHostRegisterPortable);
    if (e == cudaSuccess)
        return TITAN_OK;
    (void)cudaGetLastError(); /* the caller can work without pinned memory */
    return cuda_fail(err, e, "pinning host memory");
}

void cuda_unpin_host(struct device *dev, void *ptr)
{
    if (cuda_enter(dev, NULL) == TITAN_OK)
        (void)cudaHostUnregister(ptr);
}

titan_status cuda_device_watch(struct device *dev, const struct comm_watch *watch, struct titan_error *err)
{
    titan_assert(watch->check && watch->forget && watch->comm);
    titan_status st = TITAN_OK;
    (void)pthread_mutex_lock(&dev->watch_lock);
    if (!dev->has_watcher) {
        sigset_t every, old;
        (void)sigfillset(&every);
        (void)pthread_sigmask(SIG_SETMASK, &every, &old); /* only the main thread handles signals */
        const int rc = pthread_create(&dev->watcher, NULL, watch_main, dev);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
        dev->has_watcher = rc == 0;
        if (rc != 0)
            st = titan_fail(err, TITAN_ENOMEM, "no thread to look after the communicators: %s", strerror(rc));
    }
    if (st == TITAN_OK && dev->n_watches == CUDA_COMMS_MAX)
        st = titan_fail(err, TITAN_ELIMIT, "more than %d communicators are open on one GPU", CUDA_COMMS_MAX);
    if (st == TITAN_OK) {
        dev->watches[dev->n_watches] = *watch;
        (void)__atomic_add_fetch(&dev->n_watches, 1, __ATOMIC_RELEASE);
        (void)pthread_cond_signal(&dev->watch_wake);
    }
    (void)pthread_mutex_unlock(&dev->watch_lock);
    return st;
}

void cuda_device_unwatch(struct device *dev, const struct comm *comm)
{
    (void)pthread_mutex_lock(&dev->watch_lock);
    for (int i = 0; i < dev->n_watches; i++) {
        titan_assert(dev->n_watches <= CUDA_COMMS_MAX);
        if (dev->watches[i].comm == comm) {
            dev->watches[i--] = dev->watches[dev->n_watches - 1];
            (void)__atomic_sub_fetch(&dev->n_watches, 1, __ATOMIC_RELEASE);
        }
    }
    (void)pthread_mutex_unlock(&dev->watch_lock);
}
