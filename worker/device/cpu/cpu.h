/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h - the CPU device's own header, shared by its files.
 *
 * Reading order: cpu.c (table, open), stream.c (streams, events, where an operation runs), then one file per noun. The
 * table's entry checks an operation's arguments and enqueues them. When the stream gets there, a pure function does the
 * work over a range of independent items. The function is cloned per instruction set, and cpu_for() shares the range
 * out among threads. An item's result never depends on how the range is cut, so bits do not depend on the number of
 * threads. */
#ifndef TITAN_WORKER_DEVICE_CPU_CPU_H
#define TITAN_WORKER_DEVICE_CPU_CPU_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "worker/device/device.h"

/* Hot loops are compiled once per instruction set and picked at load time. Sanitizer builds compile them once. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CPU_KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_KERNEL
#endif
#define CPU_INLINE static inline __attribute__((always_inline))

struct cpu_isa {
    bool avx2, avx_vnni, avx512, avx512_bf16, avx512_vnni, amx_bf16, amd;
};

/* peak.c: dense FLOP/s of one core while no other thread uses the core's units, measured in under 0.5 ms. */
struct cpu_peak {
    double f32, bf16;
};
struct cpu_peak cpu_peak_measure(const struct cpu_isa *isa);
/* cores.c: the cores that this process may use. All processes under the same limit share them. */
struct cpu_cores {
    /* cores' worth: two threads of a core share its units and count as one; a cgroup may allow only a part of the
     * time */
    double usable;
    uint64_t id; /* equal for processes that share the cores */
};
struct cpu_cores cpu_cores_find(void);
/* Returns the cores' worth of time that a cgroup and its ancestors allow all their processes; INFINITY: no limit. root
 * is where cgroups of version 2 are mounted. *ret_bound: inode of the group that allows the least; 0: none. */
double cpu_cores_quota(const char *root, const char *cgroup, uint64_t *ret_bound);
/* Asks the kernel for AMX tiles and returns whether this process may use them. */
bool cpu_allow_tiles(void);

struct matmul_cache;

struct device {
    int threads;
    struct cpu_isa isa;
    struct device_info info;
    struct matmul_cache *matmul;
    pthread_mutex_t scratch_lock; /* held by the operation that uses scratch */
    void *scratch;
    size_t scratch_bytes;
};

/* Where an operation runs. Off the compute stream, threads is 1, so that the process has one OpenMP team. */
struct cpu_context {
    struct device *dev;
    int threads;
    struct titan_error *err; /* the stream's error */
};

typedef titan_status (*cpu_run)(const struct cpu_context *ctx, const void *args);
#define CPU_ARGS_MAX 272
/* Runs the operation now (compute stream) or queues it (other streams). args are copied. A failed stream skips it. */
titan_status cpu_enqueue(struct stream *s, cpu_run run, const void *args, size_t bytes);

/* A range function of cpu_for, which cuts [0,n) into contiguous ranges of at least `grain` items, at most ctx->threads
 * of them. thread: 0.. < ctx->threads. */
typedef void (*cpu_range)(const void *args, int64_t begin, int64_t end, int thread);
/* Enqueues an operation that consists of one cpu_for. */
titan_status cpu_enqueue_range(struct stream *s, cpu_range fn, int64_t n, int64_t grain, const void *args,
                               size_t bytes);
void cpu_for(const struct cpu_context *ctx, int64_t n, int64_t grain, cpu_range fn, const void *args);
/* Takes the device's scratch for one operation: 64-byte aligned, contents undefined. Give it back after use. */
titan_status cpu_scratch_take(const struct cpu_context *ctx, size_t bytes, void **ret);
void cpu_scratch_give(const struct cpu_context *ctx);
/* Asks the kernel for huge pages under a large block, before the block is first written. */
void cpu_huge_pages(void *memory, size_t bytes);
/* Converts n elements on the calling thread. bf16 is rounded to nearest, ties to even. */
void cpu_cast_f32_bf16(uint16_t *restrict dst, const float *restrict src, int64_t n);
void cpu_cast_bf16_f32(float *restrict dst, const uint16_t *restrict src, int64_t n);
/* Writes the number of existing rows: the sum of the `parts` numbers in counts, or n if counts is NULL. TITAN_EINVAL: a
 * count is negative or the sum exceeds n. */
titan_status cpu_rows_there(const struct cpu_context *ctx, const int32_t *counts, int64_t parts, int64_t n,
                            int64_t *ret);

/* --- entries of the table ----------------------------------------------------------------------------------------- */
/* Operations: cpu_NAME, with the type of its slot. */
#define X(name) __typeof__(*((struct device_ops *)0)->name) cpu_##name;
DEVICE_OPS(X)
#undef X
/* memory.c */
titan_status cpu_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
void cpu_release(struct device *dev, void *ptr);
void cpu_memory_open(void); /* once, before cpu_memory_peak */
uint64_t cpu_memory_peak(struct device *dev, bool begin);
/* stream.c */
titan_status cpu_stream_open(struct device *dev, const char *name, bool compute, struct stream **ret,
                             struct titan_error *err);
void cpu_stream_close(struct stream *s);
titan_status cpu_stream_sync(struct stream *s, struct titan_error *err);
void cpu_stream_clear(struct stream *s);
void cpu_stream_observe(struct stream *s, const struct stream_observer *o);
titan_status cpu_stream_call(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                             struct titan_error *err);
void *cpu_stream_native(struct stream *s);
titan_status cpu_event_open(struct device *dev, struct event **ret, struct titan_error *err);
void cpu_event_close(struct event *e);
titan_status cpu_event_record(struct event *e, struct stream *s, struct titan_error *err);
titan_status cpu_event_wait(struct event *e, struct stream *s, struct titan_error *err);
titan_status cpu_event_sync(struct event *e, struct titan_error *err);
/* timestamps.c */
titan_status cpu_timestamps_open(struct device *dev, int n, struct timestamps **ret, struct titan_error *err);
void cpu_timestamps_close(struct timestamps *p);
titan_status cpu_timestamps_begin(struct timestamps *p, struct titan_error *err);
titan_status cpu_timestamp(struct timestamps *p, int i, struct stream *s, struct titan_error *err);
titan_status cpu_timestamps_read(struct timestamps *p, int64_t *ret, struct titan_error *err);
/* matmul.c */
titan_status matmul_cache_open(struct device *dev, struct titan_error *err);
void matmul_cache_close(struct device *dev);

#endif
