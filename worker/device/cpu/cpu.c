/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.c - the CPU plug-in: its table, and the properties of the machine. */
#include <cpuid.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/device/cpu/cpu.h"

/* --- the machine -------------------------------------------------------------------------------------------------- */

static struct cpu_isa isa_detect(void)
{
    struct cpu_isa isa = {0};
    unsigned a = 0, b = 0, c = 0, d = 0;
    isa.amd = __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx;
    __builtin_cpu_init();
    isa.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    isa.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        isa.avx512_bf16 = isa.avx512 && ((a >> 5) & 1);
        isa.avx_vnni = isa.avx2 && ((a >> 4) & 1);
    }
    if (isa.avx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d))
        isa.avx512_vnni = (c >> 11) & 1;
    /* AMX: tile + bf16 in leaf 7, and tile state enabled in XCR0 by the kernel. */
    if (isa.avx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && ((d >> 22) & 1) && ((d >> 24) & 1)) {
        unsigned low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        isa.amx_bf16 = (low & 0x60000u) == 0x60000u && cpu_allow_tiles();
    }
    return isa;
}

/* --- device ------------------------------------------------------------------------------------------------------- */

static void cpu_close(struct device *dev)
{
    if (!dev)
        return;
    matmul_cache_close(dev);
    pthread_mutex_destroy(&dev->scratch_lock);
    free(dev->scratch);
    free(dev);
}

static titan_status cpu_open(const struct device_options *options, struct device **ret, struct titan_error *err)
{
    enum { THREADS_MAX = 1024 };
    if (options->threads < 0 || options->threads > THREADS_MAX)
        return titan_fail(err, TITAN_EINVAL, "cpu device: threads is %d, must be 0 to %d", options->threads,
                          THREADS_MAX);
    struct device *dev = calloc(1, sizeof(*dev));
    if (!dev)
        return titan_fail(err, TITAN_ENOMEM, "cpu device: out of memory");
    pthread_mutex_init(&dev->scratch_lock, NULL);
    cpu_set_t set;
    dev->threads = options->threads;
    if (dev->threads == 0 && sched_getaffinity(0, sizeof set, &set) == 0)
        dev->threads = MAX(CPU_COUNT(&set), 1);
    else if (dev->threads == 0)
        dev->threads = MAX((int)sysconf(_SC_NPROCESSORS_ONLN), 1);
    dev->isa = isa_detect();

    const struct cpu_isa *isa = &dev->isa;
    struct device_info *info = &dev->info;
    int n = snprintf(info->name, sizeof info->name, "cpu%s%s",
                     isa->avx512 ? " avx512"
                     : isa->avx2 ? " avx2"
                                 : "",
                     isa->amx_bf16      ? " amx-bf16"
                     : isa->avx512_bf16 ? " avx512-bf16"
                                        : "");
    snprintf(info->name + n, sizeof info->name - (size_t)n, ", %d thread%s", dev->threads,
             dev->threads == 1 ? "" : "s");
    info->host_memory = true;
    /* A rule, not a measurement, so that all workers of a run decide alike. AMX: 4 to 8 times fp32. AVX-512 BF16 on
     * AMD: twice fp32 (oneDNN reaches 97 % of that). On Intel without AMX, bf16 was measured to be slower than fp32. */
    info->bf16_fast = isa->amx_bf16 || (isa->avx512_bf16 && isa->amd);
    info->float8 = info->mxfp8 = true;
    info->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const struct cpu_peak peak = cpu_peak_measure(isa);
    const struct cpu_cores cores = cpu_cores_find();
    const double used = fmin(dev->threads, cores.usable);
    info->peak_flops_f32 = peak.f32 * used;
    info->peak_flops_bf16 = peak.bf16 * used;
    info->hardware = cores.id;
    info->share = used / cores.usable;

    cpu_memory_open();
    titan_status status = matmul_cache_open(dev, err);
    if (status != TITAN_OK) {
        cpu_close(dev);
        return status;
    }
    *ret = dev;
    return TITAN_OK;
}

static void cpu_info(struct device *dev, struct device_info *ret)
{
    *ret = dev->info;
}

static const struct device_ops ops = {
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .memory_peak = cpu_memory_peak,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .alloc_host = cpu_alloc,
    .release_host = cpu_release,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_sync = cpu_stream_sync,
    .stream_clear = cpu_stream_clear,
    .stream_call = cpu_stream_call,
    .stream_observe = cpu_stream_observe,
    .stream_native = cpu_stream_native,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .timestamps_open = cpu_timestamps_open,
    .timestamps_close = cpu_timestamps_close,
    .timestamps_begin = cpu_timestamps_begin,
    .timestamp = cpu_timestamp,
    .timestamps_read = cpu_timestamps_read,
/* clang-format off */
#define X(name) .name = cpu_##name,
    DEVICE_OPS(X)
#undef X
    /* clang-format on */
};

static const char *cpu_unusable(void)
{
    return NULL;
}

const struct device_plugin *titan_device_plugin(void)
{
    static const struct device_plugin plugin = {
        .abi = TITAN_DEVICE_ABI,
        .name = "cpu",
        .ops = &ops,
        .comm = NULL,
        .unusable = cpu_unusable,
    };
    return &plugin;
}
