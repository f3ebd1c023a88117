/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - memory, copies, scratch. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "worker/device/cpu/cpu.h"

enum { ALIGN = 64, PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* Asks for huge pages: long passes over small pages miss the TLB at each page. This is only advice: without huge pages
 * the kernel uses small ones. */
void cpu_huge_pages(void *memory, size_t bytes)
{
    const uintptr_t begin = ((uintptr_t)memory + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    const uintptr_t end = ((uintptr_t)memory + bytes) & ~(uintptr_t)(PAGE - 1);

    if (bytes >= HUGE_PAGE)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

/* For large sizes calloc returns untouched zero pages; aligned_alloc + memset would touch them. The word before the
 * block holds the address that calloc returned. */
titan_status cpu_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err)
{
    (void)dev;
    if (bytes > SIZE_MAX - 2 * ALIGN)
        return titan_fail(err, TITAN_ENOMEM, "cpu memory: %zu bytes are more than an address can hold", bytes);
    char *raw = calloc(1, bytes + 2 * ALIGN);
    if (!raw)
        return titan_fail(err, TITAN_ENOMEM, "cpu memory: %zu bytes cannot be had", bytes);
    char *p = (char *)(((uintptr_t)raw + 2 * ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    titan_assert((uintptr_t)p % ALIGN == 0);
    ((void **)p)[-1] = raw;
    cpu_huge_pages(p, bytes);
    *ret = p;
    return TITAN_OK;
}

void cpu_release(struct device *dev, void *ptr)
{
    (void)dev;
    if (ptr)
        free(((void **)ptr)[-1]);
}

static int marks = -1; /* /proc/self/clear_refs, opened early because process_seal() forbids to open it later */

void cpu_memory_open(void)
{
    if (marks < 0)
        marks = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
}

/* Returns the kernel's high-water mark. Writing "5" to clear_refs resets the mark to the memory that is resident now.
 * If this is forbidden, the mark covers the process's whole life. */
uint64_t cpu_memory_peak(struct device *dev, bool begin)
{
    static const char key[] = "\nVmHWM:";
    char text[4096];

    (void)dev;
    if (begin && marks >= 0)
        (void)!write(marks, "5", 1);
    _cleanup_fd_ const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = 0;
    const char *at = strstr(text, key);
    return at ? strtoull(at + sizeof key - 1, NULL, 10) << 10 : 0;
}

struct copy_args {
    void *dst;
    const void *src;
    size_t bytes;
};

static titan_status run_copy(const struct cpu_context *ctx, const void *p)
{
    const struct copy_args *a = p;
    titan_assert(a->bytes > 0 && a->dst != a->src);
    (void)ctx;
    memcpy(a->dst, a->src, a->bytes);
    return TITAN_OK;
}

titan_status cpu_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0 || dst == src)
        return TITAN_OK;
    struct copy_args a = {dst, src, bytes};
    return cpu_enqueue(s, run_copy, &a, sizeof(a));
}

static titan_status run_zero(const struct cpu_context *ctx, const void *p)
{
    const struct copy_args *a = p;
    (void)ctx;
    memset(a->dst, 0, a->bytes);
    return TITAN_OK;
}

titan_status cpu_zero(struct stream *s, void *dst, size_t bytes)
{
    if (bytes == 0)
        return TITAN_OK;
    struct copy_args a = {dst, NULL, bytes};
    return cpu_enqueue(s, run_zero, &a, sizeof(a));
}

static void copy_2d_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct strided_args *a = p;
    const int64_t each = (int64_t)dtype_bytes(a->dt);
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        memcpy((char *)a->dst + i * a->ldd * each, (const char *)a->src + i / a->repeat * a->lds * each,
               (size_t)(a->cols * each));
}

titan_status cpu_copy_2d(struct stream *s, const struct strided_args *a)
{
    if (a->rows < 0 || a->cols < 0 || a->ldd < a->cols || a->lds < a->cols || a->repeat <= 0)
        return TITAN_EINVAL;
    if (a->rows == 0 || a->cols == 0)
        return TITAN_OK;
    const int64_t bytes = a->cols * (int64_t)dtype_bytes(a->dt);
    return cpu_enqueue_range(s, copy_2d_range, a->rows, 1 + (1 << 16) / bytes, a, sizeof *a);
}

titan_status cpu_scratch_take(const struct cpu_context *ctx, size_t bytes, void **ret)
{
    struct device *dev = ctx->dev;
    pthread_mutex_lock(&dev->scratch_lock);
    if (dev->scratch_bytes < bytes) {
        free(dev->scratch);
        dev->scratch_bytes = 0;
        size_t want = (bytes + bytes / 4 + ALIGN - 1) & ~(size_t)(ALIGN - 1);
        dev->scratch = aligned_alloc(ALIGN, want);
        if (!dev->scratch) {
            pthread_mutex_unlock(&dev->scratch_lock);
            return titan_fail(ctx->err, TITAN_ENOMEM, "cpu scratch: %zu bytes cannot be had", want);
        }
        cpu_huge_pages(dev->scratch, want);
        dev->scratch_bytes = want;
    }
    *ret = dev->scratch;
    return TITAN_OK;
}

void cpu_scratch_give(const struct cpu_context *ctx)
{
    pthread_mutex_unlock(&ctx->dev->scratch_lock);
}
