/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.cpp - the parts of the CUDA runtime and of cuBLASLt the plug-in calls, on the host, for the emulator.
 *
 * Streams are threads of their own, so what is not ordered by events is not ordered. A stream holds LAUNCHES_MAX
 * operations; the host is blocked in a launch until there is room. Allocating and releasing, of the device's memory as
 * of pinned memory, waits for all streams. A copy from or to memory that is not pinned blocks the host until it has
 * run, the first product of a shape until all streams have. With TITAN_FAKE_LAUNCH_US every operation takes so long at
 * least; with TITAN_FAKE_BREAK=N an error that stays is there after N operations. What blocks is counted, and written
 * to the file TITAN_FAKE_COUNTS at the end of the process, and how often each of cuBLASLt's algorithms ran: there is
 * one, or as many as TITAN_FAKE_ALGORITHMS, "300,100,200", has times in microseconds, which they take at least. All but
 * the first add up from the end, in fp32. TITAN_FAKE_USED_MB of the memory belong to other processes. Device memory
 * ends within 256 bytes of a guard page; what lies between is checked when the memory is released. cuBLASLt's product
 * is the plain column-major definition in fp64, and refuses what the library refuses: leading dimensions too small,
 * types and pointers a plan was not made for. TITAN_FAKE_MAJOR=10: the GPU is a Blackwell. */
#include <array>
#include <atomic>
#include <condition_variable>
#include <cublasLt.h>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/cuda/fake_cuda.h"

#define PAGE 4096
#define ALIGN 256
#define CANARY 0xa5
#define LAUNCHES_MAX 1024
#define TOTAL_BYTES ((size_t)4 << 30)
#define ALGORITHMS_MAX 8

struct block {
    void *base;
    size_t mapped, bytes;
};
static std::mutex blocks_lock;
static std::map<void *, block> blocks;
static size_t device_bytes; /* allocated, not pinned */
static std::map<void *, size_t> registered;

/* What blocks the host; the most of each, and how often. */
static struct fake_counts {
    std::atomic<size_t> most_queued{0};   /* operations in one stream's queue */
    std::atomic<size_t> most_ahead{0};    /* the same, with each operation of a graph */
    std::atomic<size_t> most_copied{0};   /* bytes of one copy */
    std::atomic<size_t> most_pageable{0}; /* of one from or to memory that is not pinned */
    std::atomic<size_t> device_syncs{0}, host_calls{0};
    std::atomic<size_t> registered_bytes{0};            /* copied into memory of cudaHostRegister */
    std::atomic<size_t> enqueued{0};                    /* operations, of all streams */
    std::atomic<size_t> graphs{0}, graph_operations{0}; /* launched */
    std::atomic<size_t> products[ALGORITHMS_MAX] = {};  /* by algorithm */
    std::atomic<size_t> proposals{0};                   /* asked of cuBLASLt for more than one algorithm */

    ~fake_counts()
    {
        const char *path = getenv("TITAN_FAKE_COUNTS");
        FILE *f = path ? fopen(path, "a") : NULL; /* of several ranks, one after the other */
        if (!f)
            return;
        fprintf(f,
                "most_queued %zu\nmost_copied %zu\nmost_pageable %zu\ndevice_syncs %zu\nregistered_bytes "
                "%zu\nhost_calls %zu\n",
                most_queued.load(), most_copied.load(), most_pageable.load(), device_syncs.load(),
                registered_bytes.load(), host_calls.load());
        for (int i = 0; i < ALGORITHMS_MAX; i++)
            fprintf(f, "products_%d %zu\n", i, products[i].load());
        fprintf(f, "proposals %zu\nenqueued %zu\ngraphs %zu\ngraph_operations %zu\nmost_ahead %zu\n", proposals.load(),
                enqueued.load(), graphs.load(), graph_operations.load(), most_ahead.load());
        fclose(f);
    }
} counts;

static void note_most(std::atomic<size_t> &most, size_t value)
{
    size_t seen = most.load();
    while (seen < value && !most.compare_exchange_weak(seen, value))
        ;
}

static void wait_for_all(void);

/* Part of memory that cudaMalloc or cudaHostAlloc gave. */
static bool is_ours(const void *p)
{
    std::lock_guard<std::mutex> alone(blocks_lock);
    auto after = blocks.upper_bound((void *)p);
    if (after == blocks.begin())
        return false;
    --after;
    return (const char *)p < (const char *)after->first + after->second.bytes;
}

/* All of it in one part that cudaHostRegister was given. */
static bool is_registered(const void *p, size_t bytes)
{
    std::lock_guard<std::mutex> alone(blocks_lock);
    auto after = registered.upper_bound((void *)p);
    if (after == registered.begin())
        return false;
    --after;
    const char *end = (const char *)after->first + after->second;
    if ((const char *)p < end && (const char *)p + bytes > end) {
        fprintf(stderr, "fake cuda: a copy crosses the end of registered memory\n");
        abort();
    }
    return (const char *)p < end;
}

static cudaError_t take(void **ret, size_t bytes)
{
    wait_for_all();
    const size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    const size_t size = (rounded + PAGE - 1) / PAGE * PAGE + PAGE;
    char *base = (char *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + size - PAGE, PAGE, PROT_NONE) != 0)
        return cudaErrorMemoryAllocation;
    char *p = base + size - PAGE - rounded;
    memset(p, 0xff, bytes); /* what was not written reads as NaN */
    memset(p + bytes, CANARY, rounded - bytes);
    std::lock_guard<std::mutex> alone(blocks_lock);
    blocks[p] = block{base, size, bytes};
    *ret = p;
    return cudaSuccess;
}

static cudaError_t give(void *p)
{
    if (!p)
        return cudaSuccess;
    wait_for_all();
    std::lock_guard<std::mutex> alone(blocks_lock);
    auto found = blocks.find(p);
    if (found == blocks.end()) {
        fprintf(stderr, "fake cuda: released memory that is not allocated\n");
        abort();
    }
    const block b = found->second;
    for (size_t i = b.bytes; i < (b.bytes + ALIGN - 1) / ALIGN * ALIGN; i++) {
        if (((unsigned char *)p)[i] != CANARY) {
            fprintf(stderr, "fake cuda: byte %zu behind a block of %zu was written\n", i - b.bytes, b.bytes);
            abort();
        }
    }
    munmap(b.base, b.mapped);
    blocks.erase(found);
    return cudaSuccess;
}

struct fake_call {
    std::function<void()> run;
    size_t operations;
};
typedef std::vector<std::function<void()>> fake_graph;

static useconds_t launch_us(void)
{
    const char *slow = getenv("TITAN_FAKE_LAUNCH_US");
    return slow ? (useconds_t)atoi(slow) : 0;
}

struct fake_stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<fake_call> queue;
    size_t operations = 0; /* in the queue */
    /* Of the thread that uses the stream. */
    fake_graph *captured = nullptr;
    bool spoilt = false; /* by what cannot be captured */
    bool busy = false, closing = false;
    std::thread thread;

    void run()
    {
        const useconds_t each = launch_us();
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            changed.wait(held, [this] { return closing || !queue.empty(); });
            if (queue.empty())
                return;
            std::function<void()> what = std::move(queue.front().run);
            operations -= queue.front().operations;
            queue.pop_front();
            busy = true;
            changed.notify_all();
            held.unlock();
            if (each > 0)
                usleep(each);
            what();
            what = nullptr;
            held.lock();
            busy = false;
            changed.notify_all();
        }
    }
    bool idle()
    {
        std::lock_guard<std::mutex> held(lock);
        return queue.empty() && !busy;
    }
    void wait()
    {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return queue.empty() && !busy; });
    }
};
static std::mutex streams_lock;
static std::set<fake_stream *> streams;

static void wait_for_all(void)
{
    std::lock_guard<std::mutex> alone(streams_lock);
    for (fake_stream *s : streams)
        s->wait();
}

static void enqueue(fake_stream *s, std::function<void()> what, size_t operations)
{
    std::unique_lock<std::mutex> held(s->lock);
    s->changed.wait(held, [s] { return s->queue.size() < LAUNCHES_MAX; });
    s->queue.push_back({std::move(what), operations});
    s->operations += operations;
    s->changed.notify_all();
    note_most(counts.most_queued, s->queue.size());
    note_most(counts.most_ahead, s->operations);
    counts.enqueued++;
}

void fake_stream_enqueue(cudaStream_t stream, std::function<void()> what)
{
    fake_stream *s = (fake_stream *)stream;
    if (s->captured)
        s->captured->push_back(std::move(what));
    else
        enqueue(s, std::move(what), 1);
}

/* What would wait, or is ordered with other streams. */
static bool spoils(cudaStream_t stream)
{
    fake_stream *s = (fake_stream *)stream;
    s->spoilt = s->spoilt || s->captured;
    return s->captured;
}
#define NOT_CAPTURED(s)                                                                                                \
    do {                                                                                                               \
        if (spoils(s))                                                                                                 \
            return cudaErrorStreamCaptureUnsupported;                                                                  \
    } while (0)

/* Sticky, as CUDA's errors of a kernel are: from then on nearly every call fails. */
static bool is_broken(void)
{
    static const char *const after = getenv("TITAN_FAKE_BREAK");
    return after && counts.enqueued.load() >= (size_t)atoll(after);
}
#define OR_BROKEN()                                                                                                    \
    do {                                                                                                               \
        if (is_broken())                                                                                               \
            return cudaErrorIllegalAddress;                                                                            \
    } while (0)

static thread_local double stream_ms; /* what its products have taken, by their algorithms */

/* An event is what was recorded last: a flag its stream raises. */
struct fake_flag {
    std::mutex lock;
    std::condition_variable changed;
    bool up = false;
    double ms = 0, products_ms = 0; /* when, by the clock; what its stream's products have taken until then */
    cudaStream_t stream = nullptr;
};
struct fake_event {
    bool timed;
    std::mutex lock;
    std::shared_ptr<fake_flag> last;
};

extern "C" {
cudaError_t cudaGetDeviceCount(int *count)
{
    const char *error = getenv("TITAN_FAKE_COUNT_ERROR"); /* by number; 0: none is visible */
    *count = !error;
    return error ? (cudaError_t)atoi(error) : cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
static int fake_major(void)
{
    const char *major = getenv("TITAN_FAKE_MAJOR");
    return major ? atoi(major) : 9;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int)
{
    memset(prop, 0, sizeof *prop);
    const char *name = getenv("TITAN_FAKE_NAME");
    snprintf(prop->name, sizeof prop->name, "%s", name ? name : "emulated GPU");
    prop->major = fake_major();
    prop->totalGlobalMem = TOTAL_BYTES;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    const char *processors = getenv("TITAN_FAKE_PROCESSORS");
    *value = attribute == cudaDevAttrMultiProcessorCount            ? processors ? atoi(processors) : 1
             : attribute == cudaDevAttrClockRate                    ? 1000
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 99 * 1024
             : attribute == cudaDevAttrComputeCapabilityMajor       ? fake_major()
                                                                    : 9;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    OR_BROKEN();
    const cudaError_t e = take(p, bytes);
    std::lock_guard<std::mutex> alone(blocks_lock);
    device_bytes += e == cudaSuccess ? bytes : 0;
    return e;
}
cudaError_t cudaFree(void *p)
{
    {
        std::lock_guard<std::mutex> alone(blocks_lock);
        auto found = blocks.find(p);
        device_bytes -= found == blocks.end() ? 0 : found->second.bytes;
    }
    return give(p);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    OR_BROKEN();
    return take(p, bytes);
}
cudaError_t cudaFreeHost(void *p)
{
    return give(p);
}
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    OR_BROKEN();
    std::lock_guard<std::mutex> alone(blocks_lock);
    return getenv("TITAN_FAKE_NO_REGISTER") || !registered.emplace(p, bytes).second ? cudaErrorNotSupported
                                                                                    : cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p)
{
    wait_for_all();
    std::lock_guard<std::mutex> alone(blocks_lock);
    if (registered.erase(p) == 1)
        return cudaSuccess;
    fprintf(stderr, "fake cuda: memory that is not registered was unregistered\n");
    abort();
}
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    OR_BROKEN();
    fake_stream_enqueue(s, [=] { memset(p, value, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, cudaStream_t s)
{
    fake_stream_enqueue(s, [=] {
        for (size_t row = 0; row < height; row++)
            memset((char *)p + row * pitch, value, width);
    });
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind, cudaStream_t s)
{
    OR_BROKEN();
    note_most(counts.most_copied, bytes);
    if (!is_ours(src) || !(is_ours(dst) || is_registered(dst, bytes)))
        NOT_CAPTURED(s);
    fake_stream_enqueue(s, [=] { memmove(dst, src, bytes); });
    const bool into_registered = is_registered(dst, bytes);
    if (into_registered)
        counts.registered_bytes += bytes;
    if ((into_registered || is_ours(dst)) && is_ours(src))
        return cudaSuccess;
    note_most(counts.most_pageable, bytes);
    ((fake_stream *)s)->wait();
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    const char *used = getenv("TITAN_FAKE_USED_MB"); /* by other processes */
    std::lock_guard<std::mutex> alone(blocks_lock);
    const size_t taken = device_bytes + (used ? (size_t)atoll(used) << 20 : 0);
    *total = TOTAL_BYTES;
    *free_bytes = taken < TOTAL_BYTES ? TOTAL_BYTES - taken : 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    counts.device_syncs++;
    wait_for_all();
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned, int)
{
    fake_stream *s = new fake_stream;
    s->thread = std::thread([s] { s->run(); });
    std::lock_guard<std::mutex> alone(streams_lock);
    streams.insert(s);
    *ret = (cudaStream_t)s;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
    return cudaStreamCreateWithPriority(ret, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_stream *s = (fake_stream *)stream;
    {
        std::lock_guard<std::mutex> alone(streams_lock);
        streams.erase(s);
    }
    {
        std::lock_guard<std::mutex> held(s->lock);
        s->closing = true;
        s->changed.notify_all();
    }
    s->thread.join();
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    OR_BROKEN();
    NOT_CAPTURED(s);
    ((fake_stream *)s)->wait();
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    OR_BROKEN();
    NOT_CAPTURED(s);
    return ((fake_stream *)s)->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *data)
{
    counts.host_calls++;
    fake_stream_enqueue(s, [=] { fn(data); });
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    fake_event *event = new fake_event;
    event->timed = !(flags & cudaEventDisableTiming);
    *e = (cudaEvent_t)event;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete (fake_event *)e;
    return cudaSuccess;
}
static std::shared_ptr<fake_flag> flag_of(cudaEvent_t event)
{
    fake_event *e = (fake_event *)event;
    std::lock_guard<std::mutex> held(e->lock);
    return e->last;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    OR_BROKEN();
    NOT_CAPTURED(s);
    fake_event *e = (fake_event *)event;
    std::shared_ptr<fake_flag> flag = std::make_shared<fake_flag>();
    flag->stream = s;
    {
        std::lock_guard<std::mutex> held(e->lock);
        e->last = flag;
    }
    fake_stream_enqueue(s, [flag] {
        std::lock_guard<std::mutex> held(flag->lock);
        flag->up = true;
        flag->ms =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
        flag->products_ms = stream_ms;
        flag->changed.notify_all();
    });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    OR_BROKEN();
    std::shared_ptr<fake_flag> flag = flag_of(event);
    if (!flag)
        return cudaSuccess;
    std::lock_guard<std::mutex> held(flag->lock);
    return flag->up ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    const std::shared_ptr<fake_flag> first = flag_of(begin), second = flag_of(end);
    if (!((fake_event *)begin)->timed || !((fake_event *)end)->timed || !first || !second)
        return cudaErrorInvalidResourceHandle;
    if (!first->up || !second->up)
        return cudaErrorNotReady;
    const bool products = first->stream == second->stream && second->products_ms > first->products_ms;
    *ms = (float)(products ? second->products_ms - first->products_ms : second->ms - first->ms);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned)
{
    NOT_CAPTURED(s);
    std::shared_ptr<fake_flag> flag = flag_of(event);
    if (flag)
        fake_stream_enqueue(s, [flag] {
            std::unique_lock<std::mutex> held(flag->lock);
            flag->changed.wait(held, [&] { return flag->up; });
        });
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int)
{
    return cudaSuccess;
}
static bool no_graphs(const char *where)
{
    const char *said = getenv("TITAN_FAKE_NO_GRAPHS");
    return said && strcmp(said, where) == 0;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    fake_stream *s = (fake_stream *)stream;
    if (s->captured || mode != cudaStreamCaptureModeRelaxed)
        return cudaErrorIllegalState;
    if (no_graphs("begin"))
        return cudaErrorNotSupported;
    s->captured = new fake_graph;
    s->spoilt = no_graphs("end");
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    fake_stream *s = (fake_stream *)stream;
    if (!s->captured)
        return cudaErrorIllegalState;
    *graph = (cudaGraph_t)s->captured;
    s->captured = nullptr;
    if (!s->spoilt)
        return cudaSuccess;
    delete (fake_graph *)*graph;
    *graph = nullptr;
    return cudaErrorStreamCaptureInvalidated;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    if (no_graphs("make"))
        return cudaErrorMemoryAllocation;
    *exec = (cudaGraphExec_t) new std::shared_ptr<fake_graph>(new fake_graph(*(fake_graph *)graph));
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete (fake_graph *)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete (std::shared_ptr<fake_graph> *)exec;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    OR_BROKEN();
    NOT_CAPTURED(stream);
    const std::shared_ptr<fake_graph> graph = *(std::shared_ptr<fake_graph> *)exec;
    counts.graphs++;
    counts.graph_operations += graph->size();
    enqueue((fake_stream *)stream,
            [graph] {
                for (size_t i = 0; i < graph->size(); i++) {
                    if (i > 0 && launch_us() > 0)
                        usleep(launch_us());
                    (*graph)[i]();
                }
            },
            graph->size());
    return cudaSuccess;
}
/* Emulated kernels are in no module. */
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *, const void *)
{
    return cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t)
{
    return "emulated error";
}
const char *cudaGetErrorName(cudaError_t)
{
    return "cudaErrorEmulated";
}
}

/* --- cuBLASLt ----------------------------------------------------------------------------------------------------- */

struct lt_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};
struct lt_op {
    cublasOperation_t a, b;
    const float *a_scale, *b_scale;
    int32_t a_mode, b_mode;
    bool integers; /* sums and factors are int32 */
};
struct lt_preference {
    uint32_t align[4]; /* a, b, c, d */
};
/* What an algorithm was found for. */
struct lt_algo {
    uint32_t align[4];
    uint32_t magic, number;
};
static_assert(sizeof(lt_algo) <= sizeof(cublasLtMatmulAlgo_t), "fits");

/* What TITAN_FAKE_ALGORITHMS says of each; their number. */
static int lt_algorithms(useconds_t took[ALGORITHMS_MAX])
{
    const char *at = getenv("TITAN_FAKE_ALGORITHMS");
    int n = 0;
    for (took[0] = 0; at && *at && n < ALGORITHMS_MAX; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        took[n++] = (useconds_t)atoi(at);
    return n > 0 ? n : 1;
}

/* A float8 code: sign, exponent, mantissa; e4m3 has no infinity. */
static float lt_decode(uint8_t code, bool e5m2)
{
    const int width = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, exponent = (code & 0x7f) >> width,
              mantissa = code & ((1 << width) - 1);
    const float sign = code & 0x80 ? -1.0f : 1.0f;
    if (e5m2 ? exponent == 31 : (code & 0x7f) == 0x7f)
        return e5m2 && mantissa == 0 ? sign * INFINITY : NAN;
    return sign * (exponent == 0 ? ldexpf((float)mantissa, 1 - bias - width)
                                 : ldexpf((float)(mantissa | 1 << width), exponent - bias - width));
}
/* A scale e8m0: tiles of 128 lines by 4 blocks of 32, 32 rows of 4 lines each in a tile. */
static double lt_block_scale(const uint8_t *scales, int64_t line, int64_t x, int64_t k)
{
    const int64_t block = x / 32, tiles = (k + 127) / 128, tile = (line >> 7) * tiles + (block >> 2);
    const uint8_t code = scales[tile << 9 | (line & 31) << 4 | (line >> 5 & 3) << 2 | (block & 3)];
    return code == 255 ? (double)NAN : ldexp(1, code - 127);
}
static bool lt_float8(cudaDataType type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
static float lt_load(const void *p, int64_t i, cudaDataType type)
{
    if (type == CUDA_R_32F)
        return ((const float *)p)[i];
    if (type == CUDA_R_8I)
        return ((const int8_t *)p)[i];
    if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2)
        return lt_decode(((const uint8_t *)p)[i], type == CUDA_R_8F_E5M2);
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void lt_store(void *p, int64_t i, cudaDataType type, float x)
{
    if (type == CUDA_R_32F) {
        ((float *)p)[i] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static bool lt_aligned(const void *p, uint32_t align)
{
    return (uintptr_t)p % align == 0;
}

extern "C" {
const char *cublasLtGetStatusString(cublasStatus_t st)
{
    return st == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "emulated status";
}
size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = (cublasLtHandle_t)malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    const bool integers = compute == CUBLAS_COMPUTE_32I && scale == CUDA_R_32I;
    if (!integers && (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *d = (cublasLtMatmulDesc_t) new lt_op{CUBLAS_OP_N, CUBLAS_OP_N, nullptr, nullptr, 0, 0, integers};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete (lt_op *)d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    lt_op *op = (lt_op *)d;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        void *to;
        size_t bytes;
    } others[] = {{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &op->a_scale, sizeof op->a_scale},
                  {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &op->b_scale, sizeof op->b_scale},
                  {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &op->a_mode, sizeof op->a_mode},
                  {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &op->b_mode, sizeof op->b_mode},
                  {CUBLASLT_MATMUL_DESC_FAST_ACCUM, nullptr, 1}};
    for (const auto &o : others) {
        if (o.attribute != attribute)
            continue;
        if (bytes != o.bytes)
            return CUBLAS_STATUS_INVALID_VALUE;
        if (o.to)
            memcpy(o.to, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    if (bytes != sizeof(cublasOperation_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute != CUBLASLT_MATMUL_DESC_TRANSA && attribute != CUBLASLT_MATMUL_DESC_TRANSB)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &op->a : &op->b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t ld)
{
    if (ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *l = (cublasLtMatrixLayout_t) new lt_layout{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete (lt_layout *)l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = (cublasLtMatmulPreference_t) new lt_preference{{256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete (lt_preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    lt_preference *pref = (lt_preference *)p;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return bytes == 8 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    const int i = attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES   ? 0
                  : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? 1
                  : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES ? 2
                  : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ? 3
                                                                            : -1;
    if (i < 0 || bytes != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&pref->align[i], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    const lt_op *op = (const lt_op *)d;
    const lt_layout *la = (const lt_layout *)a, *lb = (const lt_layout *)b, *lc = (const lt_layout *)c;
    const uint64_t m = op->a == CUBLAS_OP_N ? la->rows : la->columns,
                   ka = op->a == CUBLAS_OP_N ? la->columns : la->rows;
    const uint64_t kb = op->b == CUBLAS_OP_N ? lb->rows : lb->columns,
                   n = op->b == CUBLAS_OP_N ? lb->columns : lb->rows;
    const bool f8 =
        lt_float8(la->type) && lt_float8(lb->type) && !(la->type == CUDA_R_8F_E5M2 && lb->type == CUDA_R_8F_E5M2);
    const bool i8 = la->type == CUDA_R_8I && lb->type == CUDA_R_8I && lc->type == CUDA_R_32I;
    const bool types = f8 || i8 || (la->type == lb->type && (lc->type == la->type || lc->type == CUDA_R_32F));
    /* Bytes: rows along k, and all sizes and strides of four. */
    if (i8 != op->integers || (i8 && (op->a != CUBLAS_OP_T || op->b != CUBLAS_OP_N || op->a_scale || m % 4 || ka % 4 ||
                                      la->ld % 4 || lb->ld % 4 || lc->ld % 4)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    /* As on Hopper: rows of codes along k, all of 16. */
    if (f8 && (op->a != CUBLAS_OP_T || op->b != CUBLAS_OP_N || m % 16 || n % 16 || ka % 16 || op->a_mode != op->b_mode))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    /* Blocks of MXFP8: from Blackwell on. */
    if (op->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 && (!f8 || ka % 32 || fake_major() < 10))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m != lc->rows || n != lc->columns || ka != kb || !types)
        return CUBLAS_STATUS_INVALID_VALUE;
    useconds_t took[ALGORITHMS_MAX];
    const int there = lt_algorithms(took);
    counts.proposals += most > 1;
    *count = most < there ? most : there;
    for (int i = 0; i < *count; i++) {
        lt_algo algo;
        memset(&results[i], 0, sizeof results[i]);
        memcpy(algo.align, ((lt_preference *)p)->align, sizeof algo.align);
        algo.magic = 0x17;
        algo.number = (uint32_t)i;
        memcpy(&results[i].algo, &algo, sizeof algo);
        results[i].state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result)
{
    useconds_t took[ALGORITHMS_MAX];
    lt_algo algo;
    memcpy(&algo, algorithm, sizeof algo);
    if (algo.magic != 0x17)
        return CUBLAS_STATUS_INVALID_VALUE;
    result->workspaceSize = 0;
    return algo.number < (uint32_t)lt_algorithms(took) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
/* The library loads a kernel when that is first called, which waits for all streams. */
static void lt_load_kernel(const lt_op &op, const lt_layout &a, const lt_layout &b, const lt_layout &c, uint64_t number)
{
    static std::mutex lock;
    static std::set<std::array<uint64_t, 9>> loaded;
    {
        std::lock_guard<std::mutex> alone(lock);
        if (!loaded
                 .insert({(uint64_t)op.a, (uint64_t)op.b, a.rows, a.columns, b.columns, (uint64_t)a.type,
                          (uint64_t)b.type, (uint64_t)c.type, number})
                 .second)
            return;
    }
    wait_for_all();
}
/* Column-major, as defined. */
static void lt_product(lt_op op, lt_layout la, lt_layout lb, lt_layout lc, const void *A, const void *B, void *C,
                       float scale, float keep, uint32_t number)
{
    const int64_t m = (int64_t)lc.rows, n = (int64_t)lc.columns;
    const int64_t k = (int64_t)(op.a == CUBLAS_OP_N ? la.columns : la.rows);
    const bool blocks = op.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t x = 0; x < k && number == 0; x++)
                sum += (double)lt_load(A, op.a == CUBLAS_OP_N ? i + x * la.ld : x + i * la.ld, la.type) *
                       lt_load(B, op.b == CUBLAS_OP_N ? x + j * lb.ld : j + x * lb.ld, lb.type) *
                       (blocks ? lt_block_scale((const uint8_t *)op.a_scale, i, x, k) *
                                     lt_block_scale((const uint8_t *)op.b_scale, j, x, k)
                               : 1.0);
            for (int64_t x = k - 1; x >= 0 && number > 0 && op.integers; x--)
                sum += (double)lt_load(A, x + i * la.ld, la.type) * lt_load(B, x + j * lb.ld, lb.type);
            for (int64_t x = k - 1; x >= 0 && number > 0 && !op.integers; x--)
                sum = (float)sum + lt_load(A, op.a == CUBLAS_OP_N ? i + x * la.ld : x + i * la.ld, la.type) *
                                       lt_load(B, op.b == CUBLAS_OP_N ? x + j * lb.ld : j + x * lb.ld, lb.type) *
                                       (float)(blocks ? lt_block_scale((const uint8_t *)op.a_scale, i, x, k) *
                                                            lt_block_scale((const uint8_t *)op.b_scale, j, x, k)
                                                      : 1.0);
            const int64_t at = i + j * lc.ld;
            if (op.integers) {
                ((int32_t *)C)[at] = (int32_t)(scale * sum) + (keep == 0.0f ? 0 : (int32_t)keep * ((int32_t *)C)[at]);
                continue;
            }
            const double old = keep == 0.0f ? 0.0 : keep * lt_load(C, at, lc.type);
            const float undo_a = op.a_scale && !blocks ? op.a_scale[op.a_mode ? i : 0] : 1.0f,
                        undo_b = op.b_scale && !blocks ? op.b_scale[op.b_mode ? j : 0] : 1.0f;
            lt_store(C, at, lc.type, (float)(scale * sum * undo_a * undo_b + old));
        }
    }
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t *algorithm, void *work, size_t work_bytes, cudaStream_t s)
{
    const lt_op op = *(const lt_op *)d;
    const lt_layout la = *(const lt_layout *)a, lb = *(const lt_layout *)b, lc = *(const lt_layout *)c;
    const float scale = op.integers ? (float)*(const int32_t *)alpha : *(const float *)alpha,
                keep = op.integers ? (float)*(const int32_t *)beta : *(const float *)beta;
    lt_algo algo;
    memcpy(&algo, algorithm, sizeof algo);
    if (algo.magic != 0x17 || !work || work_bytes == 0 || C != D || !lt_aligned(A, algo.align[0]) ||
        !lt_aligned(B, algo.align[1]) || !lt_aligned(C, algo.align[2]) || !lt_aligned(D, algo.align[3]))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (op.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 &&
        (!lt_aligned(op.a_scale, 16) || !lt_aligned(op.b_scale, 16)))
        return CUBLAS_STATUS_INVALID_VALUE;
    useconds_t took[ALGORITHMS_MAX];
    if (algo.number >= (uint32_t)lt_algorithms(took))
        return CUBLAS_STATUS_INVALID_VALUE;
    lt_load_kernel(op, la, lb, lc, algo.number);
    fake_stream_enqueue(s, [=, us = took[algo.number], number = algo.number] {
        counts.products[number]++;
        stream_ms += us * 1e-3;
        lt_product(op, la, lb, lc, A, B, D, scale, keep, number);
    });
    return CUBLAS_STATUS_SUCCESS;
}
}
