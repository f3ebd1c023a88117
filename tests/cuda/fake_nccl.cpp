/* SPDX-License-Identifier: Apache-2.0 */
/* fake_nccl.cpp - the parts of NCCL the plug-in calls, between processes of this host, for the emulator.
 *
 * A communicator is a file in /dev/shm that all its ranks map: a count of arrivals and a slot for each rank. Operations
 * run on the stream's thread and wait for their peers until the abort flag of their own rank is set, as NCCL's kernels
 * do: a dead peer is waited for. Sends and receives go through a mailbox for every pair of ranks; a first message
 * between two is in progress until both have come to it, as connecting takes both. Where NCCL may answer "in progress",
 * this does at least once, and a communicator made of another is handed out when the other is no longer in progress. A
 * revoked or finalized communicator is in progress until all that was enqueued on it, and what stands before that in
 * its streams, has run; an abort waits for the same. Uses that NCCL forbids (a call while one is in progress, a second
 * revoke, a collective on a revoked communicator) are refused.
 *
 * A window is registered when all ranks have come to it, with as many bytes each. With TITAN_FAKE_NO_WINDOWS=memory
 * there is no memory for one, with register the call fails, with none it gives none, with one it gives none to rank 1,
 * with later it fails on rank 1 when it is at work, and that communicator is of no use from there on.
 * An abort that finds a window registered keeps its memory for good, as 2.28 does. What communicators were made with,
 * windows and collectives within one are counted, and added to the file TITAN_FAKE_COUNTS at the end. */
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "tests/cuda/fake_cuda.h"

#define SLOT ((size_t)64 << 10)
#define MAIL ((size_t)16 << 10)
#define RANKS_MAX 64

struct mailbox {
    std::atomic<uint64_t> put, taken; /* letters so far */
    char letter[MAIL];
};

struct segment {
    std::atomic<uint64_t> arrivals; /* of all barriers so far */
    std::atomic<int> attached;
    std::atomic<bool> sends[RANKS_MAX][RANKS_MAX], receives[RANKS_MAX][RANKS_MAX]; /* begun: by rank, with peer */
    std::atomic<uint64_t> windows; /* ranks that have come to one, of all so far */
    std::atomic<uint64_t> window_bytes;
    std::atomic<uint64_t> splitting;               /* ranks that have come to a split, of all splits so far */
    int colours[2][RANKS_MAX], keys[2][RANKS_MAX]; /* of this split and the one before */
    char slots[][SLOT];                            /* and then mailboxes, from x to y */
};

struct fake_comm {
    std::string name;
    int rank, world;
    segment *shared = nullptr;
    uint64_t barriers = 0; /* passed by this rank */
    std::atomic<bool> abort{false};
    std::atomic<int> in_flight{0};
    std::atomic<uint64_t> served{0}; /* operations run one after another in the order of their calls, */
    uint64_t issued = 0;             /* whatever their streams are */
    std::atomic<int> busy_looks{0};  /* GetAsyncError answers "in progress" this often */
    /* First messages connect two ranks: in progress until the other one has come to its side of them. */
    std::vector<std::atomic<bool> *> connecting;
    bool revoked = false, finalized = false, forming = true, spoilt = false;
    int operations = 0;
    /* The child being made of this one: where its handle goes. */
    ncclComm_t *slot = nullptr;
    ncclComm_t child = nullptr;
    uint64_t splits = 0;
    bool splitting = false;
    ncclWindow_t *window_slot = nullptr; /* being registered */
    uint64_t windows = 0;
    const char *window = nullptr;
    size_t window_bytes = 0;
};
typedef std::shared_ptr<fake_comm> ref;

static struct nccl_counts {
    std::atomic<size_t> ctas{0}, policies{0}; /* communicators with a bound, with a policy */
    std::atomic<int> most_ctas{0}, policy{0};
    std::atomic<size_t> windows{0}, closed{0}, within{0};

    ~nccl_counts()
    {
        const char *path = getenv("TITAN_FAKE_COUNTS");
        FILE *f = path ? fopen(path, "a") : NULL;
        if (!f)
            return;
        fprintf(f, "comms_with_ctas %zu\nmost_ctas %d\ncomms_with_policy %zu\npolicy %d\n", ctas.load(),
                most_ctas.load(), policies.load(), policy.load());
        fprintf(f, "windows %zu\nwindows_closed %zu\nwithin_windows %zu\n", windows.load(), closed.load(),
                within.load());
        fclose(f);
    }
} nccl_counts;

static void note_config(const ncclConfig_t *config)
{
    if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT) {
        nccl_counts.ctas++;
        nccl_counts.most_ctas = config->maxCTAs;
    }
    if (config->CTAPolicy != NCCL_CONFIG_UNDEF_INT) {
        nccl_counts.policies++;
        nccl_counts.policy = config->CTAPolicy;
    }
}

static bool no_windows(const char *how)
{
    const char *said = getenv("TITAN_FAKE_NO_WINDOWS");
    return said && strcmp(said, how) == 0;
}

static std::mutex comms_lock;
static std::vector<ref> comms;

static ref find(ncclComm_t c)
{
    std::lock_guard<std::mutex> held(comms_lock);
    for (const ref &r : comms)
        if (r.get() == (fake_comm *)c)
            return r;
    fprintf(stderr, "fake nccl: a communicator that does not exist was used\n");
    abort();
}

static size_t segment_bytes(int world)
{
    return sizeof(segment) + (size_t)world * SLOT + (size_t)world * (size_t)world * sizeof(mailbox);
}

static mailbox *mail(fake_comm *c, int from, int to)
{
    mailbox *all = (mailbox *)c->shared->slots[c->world];
    return &all[from * c->world + to];
}

static ncclResult_t attach(const ref &c)
{
    const std::string path = "/dev/shm/" + c->name;
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)segment_bytes(c->world)) != 0)
        return ncclSystemError;
    void *p = mmap(NULL, segment_bytes(c->world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return ncclSystemError;
    c->shared = (segment *)p;
    if (c->shared->attached.fetch_add(1) + 1 == c->world)
        unlink(path.c_str());
    return ncclSuccess;
}

/* False when aborted. */
static bool meet(fake_comm *c)
{
    const uint64_t want = ++c->barriers * (uint64_t)c->world;
    c->shared->arrivals.fetch_add(1);
    while (c->shared->arrivals.load() < want) {
        if (c->abort.load())
            return false;
        usleep(20);
    }
    return !c->abort.load();
}

static ncclResult_t create(ncclComm_t *ret, const std::string &name, int rank, int world)
{
    ref c = std::make_shared<fake_comm>();
    c->name = name;
    c->rank = rank;
    c->world = world;
    c->busy_looks = 2;
    ncclResult_t r = attach(c);
    if (r != ncclSuccess)
        return r;
    std::lock_guard<std::mutex> held(comms_lock);
    comms.push_back(c);
    *ret = (ncclComm_t)c.get();
    return ncclInProgress;
}

static size_t type_bytes(ncclDataType_t type)
{
    return type == ncclFloat64 ? 8 : type == ncclBfloat16 ? 2 : type == ncclUint8 ? 1 : 4;
}

static double value(const char *p, size_t i, ncclDataType_t type)
{
    if (type == ncclFloat64)
        return ((const double *)p)[i];
    if (type == ncclFloat32)
        return ((const float *)p)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void set_value(char *p, size_t i, ncclDataType_t type, double x)
{
    if (type == ncclFloat64) {
        ((double *)p)[i] = x;
        return;
    }
    float f = (float)x;
    if (type == ncclFloat32) {
        ((float *)p)[i] = f;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Each rank shows `bytes` of send through the slots, a slot at a time; take() looks at all of them. */
template <class Take> static bool show(fake_comm *c, const char *send, size_t bytes, Take take)
{
    for (size_t at = 0; at < bytes; at += SLOT) {
        const size_t part = bytes - at < SLOT ? bytes - at : SLOT;
        memcpy(c->shared->slots[c->rank], send + at, part);
        if (!meet(c))
            return false;
        take(at, part);
        if (!meet(c))
            return false;
    }
    return true;
}

/* Hand an operation to the stream. */
template <class Run> static ncclResult_t enqueue(ncclComm_t nccl, cudaStream_t stream, Run run)
{
    ref c = find(nccl);
    if (c->busy_looks.load() > 0 || c->forming || !c->connecting.empty() || c->window_slot)
        return ncclInvalidUsage;
    if (c->revoked || c->finalized || c->abort || c->spoilt)
        return ncclInvalidUsage;
    c->in_flight++;
    fake_stream_enqueue(stream, [c, run, turn = c->issued++] {
        while (c->served.load() != turn && !c->abort.load())
            usleep(20);
        if (!c->abort.load())
            run(c.get());
        c->served++;
        c->in_flight--;
    });
    if (c->operations++ == 0) { /* the first one connects */
        c->busy_looks = 2;
        return ncclInProgress;
    }
    return ncclSuccess;
}

/* A call within a group, kept until the group ends: a collective, or a message. */
struct pending {
    std::function<void(fake_comm *)> collective;
    bool send;
    char *data;
    size_t bytes;
    int peer;
};
static thread_local int group_depth;
static thread_local std::vector<pending> group;
static thread_local ncclComm_t group_comm;
static thread_local cudaStream_t group_stream;

/* As far as the mailbox allows; true when it moved. */
static bool pass_on(fake_comm *c, pending &p)
{
    mailbox *box = p.send ? mail(c, c->rank, p.peer) : mail(c, p.peer, c->rank);
    if (p.send ? box->put.load() != box->taken.load() : box->put.load() == box->taken.load())
        return false;
    const size_t part = p.bytes < MAIL ? p.bytes : MAIL;
    if (p.send) {
        memcpy(box->letter, p.data, part);
        box->put++;
    } else {
        memcpy(p.data, box->letter, part);
        box->taken++;
    }
    p.data += part;
    p.bytes -= part;
    return true;
}

/* All at once; those between two ranks in their order. */
static void pass_all(fake_comm *c, std::vector<pending> messages)
{
    for (bool left = true; left && !c->abort.load();) {
        bool moved = false;
        left = false;
        for (size_t i = 0; i < messages.size(); i++) {
            bool behind = messages[i].bytes == 0;
            for (size_t j = 0; j < i; j++)
                behind = behind || (messages[j].bytes > 0 && messages[j].send == messages[i].send &&
                                    messages[j].peer == messages[i].peer);
            left = left || messages[i].bytes > 0;
            moved = (!behind && pass_on(c, messages[i])) || moved;
        }
        if (left && !moved)
            usleep(20);
    }
}

/* What was enqueued is in progress while a peer has not begun its side of a first message. */
static ncclResult_t connect(ncclComm_t nccl, const std::vector<pending> &calls, ncclResult_t enqueued)
{
    if (enqueued != ncclSuccess && enqueued != ncclInProgress)
        return enqueued;
    ref c = find(nccl);
    for (const pending &p : calls) {
        if (p.collective)
            continue;
        segment *shared = c->shared;
        (p.send ? shared->sends : shared->receives)[c->rank][p.peer] = true;
        std::atomic<bool> *other = &(p.send ? shared->receives : shared->sends)[p.peer][c->rank];
        if (!*other)
            c->connecting.push_back(other);
    }
    return c->connecting.empty() ? enqueued : ncclInProgress;
}

static ncclResult_t end_group(void)
{
    std::vector<pending> calls;
    calls.swap(group);
    if (calls.empty())
        return ncclSuccess;
    ncclResult_t enqueued = enqueue(group_comm, group_stream, [calls](fake_comm *c) {
        std::vector<pending> messages;
        for (const pending &p : calls)
            if (p.collective)
                p.collective(c);
            else
                messages.push_back(p);
        pass_all(c, messages);
    });
    return connect(group_comm, calls, enqueued);
}

static ncclResult_t add_to_group(ncclComm_t comm, cudaStream_t stream, const pending &p)
{
    if (!group.empty() && (group_comm != comm || group_stream != stream))
        return ncclInvalidUsage; /* NCCL allows it; the plug-in has no use for it */
    group_comm = comm;
    group_stream = stream;
    group.push_back(p);
    return ncclSuccess;
}

template <class Run> static ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, Run run)
{
    return group_depth > 0 ? add_to_group(comm, stream, {run, false, nullptr, 0, 0}) : enqueue(comm, stream, run);
}

/* The child a communicator is being split into: once all its ranks have come, what all of them have said decides. */
static void finish_split(fake_comm *c)
{
    const uint64_t n = c->splits;
    const int *colours = c->shared->colours[n % 2], *keys = c->shared->keys[n % 2];
    const int mine = colours[c->rank];
    int rank = 0, world = 0;
    for (int r = 0; r < c->world; r++) {
        if (colours[r] != mine)
            continue;
        world++;
        rank += keys[r] < keys[c->rank] || (keys[r] == keys[c->rank] && r < c->rank);
    }
    c->splitting = false;
    if (mine != NCCL_SPLIT_NOCOLOR)
        (void)create(&c->child, c->name + "-" + std::to_string(n) + "-" + std::to_string(mine), rank, world);
}

extern "C" {
ncclResult_t ncclGetVersion(int *version)
{
    const char *older = getenv("TITAN_FAKE_NCCL"); /* than the headers */
    *version = older ? atoi(older) : NCCL_VERSION_CODE;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::atomic<int> count{0};
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "titan-fake-nccl-%d-%d", (int)getpid(), count++);
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclInvalidUsage ? "invalid usage" : r == ncclInvalidArgument ? "invalid argument" : "emulated error";
}
const char *ncclGetLastError(ncclComm_t)
{
    return "";
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int world, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    if (config->blocking != 0 || world > RANKS_MAX || rank < 0 || rank >= world)
        return ncclInvalidArgument;
    note_config(config);
    return create(ret, id.internal, rank, world);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t nccl, ncclResult_t *state)
{
    ref c = find(nccl);
    *state = c->spoilt ? ncclUnhandledCudaError : ncclInProgress;
    if (c->spoilt)
        return ncclSuccess;
    if (c->forming) {
        if (c->shared->attached.load() < c->world)
            return ncclSuccess;
        c->forming = false;
    }
    if (c->window_slot && !c->abort.load()) {
        if (c->shared->windows.load() < c->windows * (uint64_t)c->world)
            return ncclSuccess;
        if (c->shared->window_bytes.load() != c->window_bytes * (uint64_t)c->world) {
            *state = ncclInvalidArgument;
            return ncclSuccess;
        }
        nccl_counts.windows++;
        *c->window_slot = (ncclWindow_t)c->window;
        c->window_slot = nullptr;
    }
    if (c->abort.load()) {
        c->window_slot = nullptr;
        c->splitting = false;
        c->connecting.clear();
    }
    while (!c->connecting.empty() && *c->connecting.back())
        c->connecting.pop_back();
    if (!c->connecting.empty())
        return ncclSuccess;
    if (c->splitting) {
        if (c->shared->splitting.load() < c->splits * (uint64_t)c->world)
            return ncclSuccess;
        finish_split(c.get());
    }
    if (c->busy_looks.load() > 0) {
        if (--c->busy_looks == 0 && c->slot) {
            *c->slot = c->child;
            c->slot = nullptr;
        }
        return ncclSuccess;
    }
    if ((c->revoked || c->finalized) && c->in_flight.load() > 0)
        return ncclSuccess;
    *state = ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t nccl, int *rank)
{
    *rank = find(nccl)->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t nccl, int *count)
{
    *count = find(nccl)->world;
    return ncclSuccess;
}
ncclResult_t ncclCommRevoke(ncclComm_t nccl, int flags)
{
    ref c = find(nccl);
    if (flags != 0 || c->revoked || c->finalized)
        return ncclInvalidArgument;
    c->revoked = true;
    c->busy_looks = 2;
    c->abort = true;
    return ncclInProgress;
}
static std::vector<const void *> kept; /* with comms_lock */
static ncclResult_t end(ncclComm_t nccl)
{
    ref c = find(nccl);
    c->abort = true;
    while (c->in_flight.load() > 0)
        usleep(20);
    static void (*const ends)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "check_comm_ends");
    if (ends) /* returns when the program lets it: a GPU takes its time */
        ends();
    munmap(c->shared, segment_bytes(c->world));
    std::lock_guard<std::mutex> held(comms_lock);
    if (c->window)
        kept.push_back(c->window);
    for (size_t i = 0; i < comms.size(); i++)
        if (comms[i] == c)
            comms.erase(comms.begin() + (long)i--);
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t nccl)
{
    return end(nccl);
}
ncclResult_t ncclCommDestroy(ncclComm_t nccl)
{
    return find(nccl)->in_flight.load() > 0 ? ncclInvalidUsage : end(nccl);
}
ncclResult_t ncclCommFinalize(ncclComm_t nccl)
{
    ref c = find(nccl);
    if (c->revoked || c->finalized)
        return ncclInvalidArgument;
    c->finalized = true;
    c->busy_looks = 1;
    return ncclInProgress;
}
ncclResult_t ncclCommSplit(ncclComm_t nccl, int colour, int key, ncclComm_t *ret, ncclConfig_t *config)
{
    ref c = find(nccl);
    if (config->blocking != 0 || c->busy_looks.load() > 0 || c->splitting || c->revoked || c->finalized || c->abort)
        return ncclInvalidArgument;
    const uint64_t n = ++c->splits;
    if (colour != NCCL_SPLIT_NOCOLOR)
        note_config(config);
    c->shared->colours[n % 2][c->rank] = colour;
    c->shared->keys[n % 2][c->rank] = key;
    *ret = c->child = nullptr;
    c->slot = ret;
    c->splitting = true;
    c->busy_looks = 2;
    c->shared->splitting++;
    return ncclInProgress;
}
ncclResult_t ncclMemAlloc(void **ptr, size_t bytes)
{
    return no_windows("memory") || cudaMalloc(ptr, (bytes + 4095) / 4096 * 4096) != cudaSuccess ? ncclUnhandledCudaError
                                                                                                : ncclSuccess;
}
ncclResult_t ncclMemFree(void *ptr)
{
    std::lock_guard<std::mutex> held(comms_lock);
    if (std::find(kept.begin(), kept.end(), ptr) != kept.end())
        return ncclSuccess; /* and it is no one's, but taken */
    return cudaFree(ptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t nccl, void *base, size_t bytes, ncclWindow_t *window, int flags)
{
    ref c = find(nccl);
    if (flags != NCCL_WIN_COLL_SYMMETRIC || (uintptr_t)base % NCCL_WIN_REQUIRED_ALIGNMENT != 0 || c->window ||
        c->busy_looks.load() > 0 || c->forming || c->revoked || c->finalized || no_windows("register"))
        return ncclInvalidUsage;
    *window = nullptr;
    if (no_windows("none"))
        return ncclSuccess;
    c->windows++;
    c->spoilt = no_windows("later") && c->rank == 1;
    if (c->spoilt)
        return ncclSuccess;
    c->shared->window_bytes += bytes; /* one a communicator */
    c->shared->windows++;
    if (no_windows("one") && c->rank == 1)
        return ncclSuccess;
    c->window = (const char *)base;
    c->window_bytes = bytes;
    c->window_slot = window;
    return ncclSuccess; /* as 2.28 answers, though it is at work still */
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t nccl, ncclWindow_t window)
{
    ref c = find(nccl);
    if (!window || (const char *)window != c->window || c->in_flight.load() > 0)
        return ncclInvalidArgument;
    nccl_counts.closed++;
    c->window = nullptr;
    c->busy_looks = 1;
    return ncclInProgress;
}
static void note_within(ncclComm_t nccl, const void *send, size_t sent, const void *recv, size_t received)
{
    ref c = find(nccl);
    const char *s = (const char *)send, *r = (const char *)recv;
    if (c->window && s >= c->window && s + sent <= c->window + c->window_bytes && r >= c->window &&
        r + received <= c->window + c->window_bytes)
        nccl_counts.within++;
}
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s)
{
    const size_t bytes = count * type_bytes(type);
    note_within(comm, send, bytes, recv, bytes * (size_t)find(comm)->world);
    return collective(comm, s, [=](fake_comm *c) {
        show(c, (const char *)send, bytes, [&](size_t at, size_t part) {
            for (int r = 0; r < c->world; r++)
                memmove((char *)recv + (size_t)r * bytes + at, c->shared->slots[r], part);
        });
    });
}
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t s)
{
    note_within(comm, send, count * type_bytes(type) * (size_t)find(comm)->world, recv, count * type_bytes(type));
    return collective(comm, s, [=](fake_comm *c) {
        const size_t width = type_bytes(type), bytes = count * width;
        std::vector<char> mine(bytes);
        for (int to = 0; to < c->world; to++) {
            bool ok = show(c, (const char *)send + (size_t)to * bytes, bytes, [&](size_t at, size_t part) {
                for (size_t i = 0; c->rank == to && i < part / width; i++) {
                    double sum = 0;
                    for (int r = 0; r < c->world; r++)
                        sum += value(c->shared->slots[r], i, type);
                    set_value(mine.data() + at, i, type, sum);
                }
            });
            if (!ok)
                return;
        }
        memcpy(recv, mine.data(), bytes);
    });
}
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t s)
{
    return collective(comm, s, [=](fake_comm *c) {
        const size_t width = type_bytes(type);
        show(c, (const char *)send, count * width, [&](size_t at, size_t part) {
            for (size_t i = 0; i < part / width; i++) {
                double sum = 0;
                for (int r = 0; r < c->world; r++)
                    sum += value(c->shared->slots[r], i, type);
                set_value((char *)recv + at, i, type, sum);
            }
        });
    });
}
ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t s)
{
    return collective(comm, s, [=](fake_comm *c) {
        show(c, (const char *)send, count * type_bytes(type),
             [&](size_t at, size_t part) { memmove((char *)recv + at, c->shared->slots[root], part); });
    });
}
static ncclResult_t point_to_point(const pending &p, ncclComm_t comm, cudaStream_t stream)
{
    if (p.peer < 0 || p.peer >= find(comm)->world)
        return ncclInvalidArgument;
    if (group_depth > 0)
        return add_to_group(comm, stream, p);
    return connect(comm, {p}, enqueue(comm, stream, [p](fake_comm *c) { pass_all(c, {p}); }));
}
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s)
{
    return point_to_point({nullptr, true, (char *)data, count * type_bytes(type), peer}, comm, s);
}
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s)
{
    return point_to_point({nullptr, false, (char *)data, count * type_bytes(type), peer}, comm, s);
}
ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0)
        return ncclInvalidUsage;
    return --group_depth == 0 ? end_group() : ncclSuccess;
}
}
