#include "worker/comm/shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define PAGE 4096
#define LINE 64
#define SLOTS_BYTES_MAX ((size_t)32 << 20)    /* of one buffer over all ranks */
#define CHANNELS_BYTES_MAX ((size_t)64 << 20) /* of one slot over all channels */
#define SLOT_BYTES_WANTED ((size_t)256 << 10)
#define CHANNEL_BYTES_WANTED ((size_t)256 << 10)
#define SPINS 400
#define SLEEP_NS (20 * 1000 * 1000)
#define OPEN_SLEEP_NS (2 * 1000 * 1000)
#define OPEN_TIMEOUT_MS_DEFAULT 30000
/* Bit of the generation that only ends sleeps; the rest counts. */
#define POKED UINT32_C(0x80000000)

enum { RANK_ABSENT, RANK_JOINING, RANK_MEMBER, RANK_LEFT };

struct segment_header {
    _Alignas(LINE) _Atomic uint32_t generation; /* futex */
    _Atomic uint32_t sleepers;
    _Alignas(LINE) _Atomic uint32_t arrived;
    _Alignas(LINE) _Atomic uint32_t broken; /* 0, or -status | (rank + 1) << 16 */
};

struct segment_rank {
    _Alignas(LINE) _Atomic uint32_t bell; /* futex */
    _Atomic uint32_t sleeping;
    _Alignas(LINE) _Atomic uint32_t state;
    _Atomic uint32_t arrivals;
    uint64_t pid_namespace, epoch;
    int32_t pid;
    unsigned char id[COMM_ID_BYTES];
};

struct segment_channel {
    _Alignas(LINE) _Atomic uint32_t head; /* slots filled by the sender */
    _Alignas(LINE) _Atomic uint32_t tail; /* slots read by the receiver */
};

/* --- layout ------------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

struct segment_layout segment_layout(int world)
{
    size_t w = (size_t)world;
    struct segment_layout l = {0};
    l.slot_bytes = MAX(MIN(SLOT_BYTES_WANTED, SLOTS_BYTES_MAX / w) / (LINE * w), (size_t)1) * LINE * w;
    l.channel_slot_bytes = MAX(MIN(CHANNEL_BYTES_WANTED, CHANNELS_BYTES_MAX / (w * w)) / LINE, (size_t)1) * LINE;
    l.ranks = round_up(sizeof(struct segment_header), PAGE);
    l.channels = l.ranks + round_up(w * sizeof(struct segment_rank), PAGE);
    l.slots = l.channels + round_up(w * w * sizeof(struct segment_channel), PAGE);
    l.channel_slots = l.slots + round_up(SEGMENT_BUFFERS * w * l.slot_bytes, PAGE);
    l.bytes = l.channel_slots + round_up(SEGMENT_CHANNEL_SLOTS * w * w * l.channel_slot_bytes, PAGE);
    return l;
}

titan_status comm_shm_segment(int world, int *ret_fd, struct titan_error *err)
{
    if (world < 1 || world > COMM_WORLD_MAX)
        return titan_fail(err, TITAN_EINVAL, "shared segment for %d members", world);
    _cleanup_fd_ int fd = memfd_create("titan-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return titan_fail_errno(err, "cannot make a shared segment");
    if (ftruncate(fd, (off_t)segment_layout(world).bytes) < 0)
        return titan_fail_errno(err, "cannot give a shared segment %zu bytes", segment_layout(world).bytes);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return titan_fail_errno(err, "cannot seal a shared segment");
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

unsigned char *segment_slot(const struct segment *seg, uint32_t tick, int rank)
{
    size_t index = (size_t)(tick % SEGMENT_BUFFERS) * (size_t)seg->world + (size_t)rank;
    return seg->base + seg->layout.slots + index * seg->layout.slot_bytes;
}

/* --- sleeping and waking ------------------------------------------------------------------------------------------ */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0);
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void ring_bell(struct segment_rank *r)
{
    atomic_fetch_add(&r->bell, 1);
    if (atomic_load(&r->sleeping))
        futex_wake(&r->bell, 1);
}

/* End every sleep, so that all look at what has changed. */
static void poke_all(struct segment *seg)
{
    atomic_fetch_or(&seg->header->generation, POKED);
    futex_wake(&seg->header->generation, INT32_MAX);
    for (int r = 0; r < seg->world; r++) {
        atomic_fetch_add(&seg->ranks[r].bell, 1);
        futex_wake(&seg->ranks[r].bell, INT32_MAX);
    }
}

void segment_break(struct segment *seg, titan_status status, int rank)
{
    uint32_t none = 0, word = (uint32_t)-status | (uint32_t)(rank + 1) << 16;
    if (!seg->base)
        return;
    (void)atomic_compare_exchange_strong(&seg->header->broken, &none, word);
    poke_all(seg);
}

titan_status segment_check(struct segment *seg, struct titan_error *err)
{
    uint32_t word = seg->base ? atomic_load(&seg->header->broken) : 0;
    if (seg->revoked && atomic_load(seg->revoked))
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked");
    if (word == 0)
        return TITAN_OK;
    int rank = (int)(word >> 16) - 1;
    if ((word & 0xffff) == (uint32_t)-TITAN_EREVOKED)
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked by rank %d", rank);
    return titan_fail(err, TITAN_EPEER, "rank %d has left the communicator", rank);
}

/* --- who is still there ------------------------------------------------------------------------------------------- */

static int open_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* Has the member's process ended? Ended but not yet waited for counts. */
static bool process_ended(struct segment *seg, int r)
{
    const struct segment_rank *peer = &seg->ranks[r];
    if (peer->pid_namespace != seg->pid_namespace || peer->pid <= 0)
        return false; /* the number means nothing here */
    if (seg->pidfds[r] < 0) {
        seg->pidfds[r] = open_pidfd(peer->pid);
        if (seg->pidfds[r] < 0)
            return errno == ESRCH;
    }
    struct pollfd p = {.fd = seg->pidfds[r], .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* The first member that has gone without arriving at this member's present barrier; -1 when there is none. While the
 * members still meet, one that has arrived and gone is missed as well: nothing could come of it. */
static int missing_member(struct segment *seg, bool look_at_processes, bool meeting)
{
    for (int r = 0; r < seg->world; r++) {
        const struct segment_rank *peer = &seg->ranks[r];
        uint32_t state = atomic_load(&peer->state);
        if (r == seg->rank || state < RANK_MEMBER)
            continue;
        bool gone = state == RANK_LEFT || (look_at_processes && process_ended(seg, r));
        if (gone && (meeting || (int32_t)(atomic_load(&peer->arrivals) - seg->arrivals) < 0))
            return r;
    }
    return -1;
}

static titan_status member_gone(struct segment *seg, int r, struct titan_error *err)
{
    titan_status status = titan_fail(err, TITAN_EPEER, "rank %d (process %d) has %s", r, seg->ranks[r].pid,
                                     atomic_load(&seg->ranks[r].state) == RANK_LEFT ? "closed" : "ended");
    segment_break(seg, TITAN_EPEER, r);
    return status;
}

/* --- barrier ------------------------------------------------------------------------------------------------------ */

/* Arrive; true when this was the last arrival and the others have been released. *ret_seen: the generation to see pass.
 */
static bool arrive(struct segment *seg, uint32_t *ret_seen)
{
    struct segment_header *h = seg->header;
    uint32_t word = atomic_load(&h->generation);
    *ret_seen = word & ~POKED;
    /* Counted first, told afterwards: a member killed in between is seen as missing, never as arrived. */
    bool last = atomic_fetch_add(&h->arrived, 1) + 1 == (uint32_t)seg->world;
    atomic_store(&seg->ranks[seg->rank].arrivals, ++seg->arrivals);
    if (!last)
        return false;
    atomic_store(&h->arrived, 0);
    while (!atomic_compare_exchange_weak(&h->generation, &word, ((word + 1) & ~POKED) | (word & POKED)))
        ;
    if (atomic_load(&h->sleepers))
        futex_wake(&h->generation, INT32_MAX);
    return true;
}

static bool passed(const struct segment_header *h, uint32_t seen, uint32_t *ret_word)
{
    *ret_word = atomic_load(&h->generation);
    return (*ret_word & ~POKED) != seen;
}

static void sleep_on_generation(struct segment_header *h, uint32_t word, int64_t ns)
{
    atomic_fetch_add(&h->sleepers, 1);
    futex_wait(&h->generation, word, ns);
    atomic_fetch_sub(&h->sleepers, 1);
}

titan_status segment_barrier(struct segment *seg, struct titan_error *err)
{
    struct segment_header *h = seg->header;
    uint32_t seen, word;
    TRY(segment_check(seg, err));
    if (arrive(seg, &seen))
        return TITAN_OK;
    for (int i = 0; i < seg->spins; i++) {
        if (passed(h, seen, &word))
            return TITAN_OK;
        cpu_relax();
    }
    for (int64_t since = 0; !passed(h, seen, &word);) {
        TRY(segment_check(seg, err));
        int64_t now = clock_mono_ns();
        bool look = since > 0 && now - since >= SLEEP_NS;
        int gone = missing_member(seg, look, false);
        if (gone >= 0 && !passed(h, seen, &word))
            return member_gone(seg, gone, err);
        if (since == 0 || look)
            since = now;
        sleep_on_generation(h, word, SLEEP_NS);
    }
    return TITAN_OK;
}

/* --- channels ----------------------------------------------------------------------------------------------------- */

static struct segment_channel *channel_at(const struct segment *seg, enum channel_end end, int peer, size_t *ret_index)
{
    int from = end == CHANNEL_SEND ? seg->rank : peer, to = end == CHANNEL_SEND ? peer : seg->rank;
    *ret_index = (size_t)from * (size_t)seg->world + (size_t)to;
    return &seg->channels[*ret_index];
}

static bool channel_ready(const struct segment_channel *ch, enum channel_end end)
{
    uint32_t filled = atomic_load(&ch->head) - atomic_load(&ch->tail);
    return end == CHANNEL_SEND ? filled < SEGMENT_CHANNEL_SLOTS : filled > 0;
}

static titan_status channel_sleep(struct segment *seg, const struct segment_channel *ch, enum channel_end end, int peer,
                                  struct titan_error *err)
{
    struct segment_rank *self = &seg->ranks[seg->rank];
    for (int64_t since = 0;;) {
        uint32_t bell = atomic_load(&self->bell);
        if (channel_ready(ch, end))
            return TITAN_OK;
        TRY(segment_check(seg, err));
        int64_t now = clock_mono_ns();
        bool look = since > 0 && now - since >= SLEEP_NS;
        bool gone = atomic_load(&seg->ranks[peer].state) == RANK_LEFT || (look && process_ended(seg, peer));
        if (gone && !channel_ready(ch, end))
            return member_gone(seg, peer, err);
        if (since == 0 || look)
            since = now;
        atomic_store(&self->sleeping, 1);
        futex_wait(&self->bell, bell, SLEEP_NS);
        atomic_store(&self->sleeping, 0);
    }
}

titan_status segment_channel_wait(struct segment *seg, enum channel_end end, int peer, unsigned char **ret_slot,
                                  struct titan_error *err)
{
    size_t index;
    const struct segment_channel *ch = channel_at(seg, end, peer, &index);
    TRY(segment_check(seg, err));
    bool ready = channel_ready(ch, end);
    for (int i = 0; i < seg->spins && !ready; i++) {
        cpu_relax();
        ready = channel_ready(ch, end);
    }
    if (!ready)
        TRY(channel_sleep(seg, ch, end, peer, err));
    uint32_t at = atomic_load(end == CHANNEL_SEND ? &ch->head : &ch->tail);
    size_t slot = index * SEGMENT_CHANNEL_SLOTS + at % SEGMENT_CHANNEL_SLOTS;
    *ret_slot = seg->base + seg->layout.channel_slots + slot * seg->layout.channel_slot_bytes;
    return TITAN_OK;
}

void segment_channel_advance(struct segment *seg, enum channel_end end, int peer)
{
    size_t index;
    struct segment_channel *ch = channel_at(seg, end, peer, &index);
    atomic_fetch_add(end == CHANNEL_SEND ? &ch->head : &ch->tail, 1);
    ring_bell(&seg->ranks[peer]);
}

/* --- joining and leaving ------------------------------------------------------------------------------------------ */

/* One of several members may get here first; all give the same size. */
static titan_status map_segment(struct segment *seg, int fd, struct titan_error *err)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return titan_fail_errno(err, "shared segment (descriptor %d)", fd);
    if ((size_t)st.st_size < seg->layout.bytes && ftruncate(fd, (off_t)seg->layout.bytes) < 0)
        return titan_fail_errno(err, "cannot give the shared segment %zu bytes", seg->layout.bytes);
    void *map = mmap(NULL, seg->layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return titan_fail_errno(err, "cannot map the shared segment (%zu bytes)", seg->layout.bytes);
    seg->base = map;
    seg->header = map;
    seg->ranks = (struct segment_rank *)(seg->base + seg->layout.ranks);
    seg->channels = (struct segment_channel *)(seg->base + seg->layout.channels);
    return TITAN_OK;
}

static titan_status join(struct segment *seg, const struct comm_config *config, struct titan_error *err)
{
    struct segment_rank *self = &seg->ranks[seg->rank];
    uint32_t absent = RANK_ABSENT;
    if (!atomic_compare_exchange_strong(&self->state, &absent, RANK_JOINING))
        return titan_fail(err, TITAN_ECONFLICT, "the shared segment already has a rank %d: it belongs to another epoch",
                          seg->rank);
    memcpy(self->id, config->id, sizeof(self->id));
    self->epoch = config->epoch;
    self->pid = getpid();
    self->pid_namespace = seg->pid_namespace;
    atomic_store(&self->state, RANK_MEMBER);
    return TITAN_OK;
}

static titan_status wait_for_members(struct segment *seg, const atomic_int *abort_flag, uint32_t timeout_ms,
                                     struct titan_error *err)
{
    uint32_t seen, word;
    int64_t start = clock_mono_ns(), looked = start;
    int64_t limit = (int64_t)(timeout_ms ? timeout_ms : OPEN_TIMEOUT_MS_DEFAULT) * 1000000;
    if (arrive(seg, &seen))
        return TITAN_OK;
    while (!passed(seg->header, seen, &word)) {
        if (abort_flag && atomic_load(abort_flag))
            return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while its members met");
        TRY(segment_check(seg, err));
        int64_t now = clock_mono_ns();
        int gone = missing_member(seg, now - looked >= SLEEP_NS, true);
        if (gone >= 0 && !passed(seg->header, seen, &word))
            return member_gone(seg, gone, err);
        if (now - looked >= SLEEP_NS)
            looked = now;
        if (now - start >= limit)
            return titan_fail(err, TITAN_ETIMEDOUT, "%u of %d members arrived within %" PRId64 " ms",
                              atomic_load(&seg->header->arrived), seg->world, limit / 1000000);
        sleep_on_generation(seg->header, word, OPEN_SLEEP_NS);
    }
    return TITAN_OK;
}

/* All members mean the same communicator. */
static titan_status compare_members(const struct segment *seg, const struct comm_config *config,
                                    struct titan_error *err)
{
    for (int r = 0; r < seg->world; r++)
        if (seg->ranks[r].epoch != config->epoch || memcmp(seg->ranks[r].id, config->id, COMM_ID_BYTES) != 0)
            return titan_fail(err, TITAN_ECONFLICT, "rank %d is of epoch %" PRIu64 ", this is %" PRIu64, r,
                              seg->ranks[r].epoch, config->epoch);
    return TITAN_OK;
}

static int spins_for(int world)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 0;
    return CPU_COUNT(&set) >= world ? SPINS : 0;
}

titan_status segment_open(struct segment *seg, const struct comm_config *config, const atomic_int *abort_flag,
                          const atomic_int *revoked, struct titan_error *err)
{
    *seg = (struct segment){.rank = config->rank, .world = config->world, .revoked = revoked};
    seg->layout = segment_layout(seg->world);
    seg->spins = spins_for(seg->world);
    struct stat ns;
    if (stat("/proc/self/ns/pid", &ns) == 0)
        seg->pid_namespace = ns.st_ino;
    seg->pidfds = malloc((size_t)seg->world * sizeof(int));
    if (!seg->pidfds)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d members", seg->world);
    for (int r = 0; r < seg->world; r++)
        seg->pidfds[r] = -1;
    titan_status status = map_segment(seg, config->memfd, err);
    if (status == TITAN_OK)
        status = join(seg, config, err);
    if (status == TITAN_OK) {
        status = wait_for_members(seg, abort_flag, config->timeout_ms, err);
        if (status == TITAN_OK)
            status = compare_members(seg, config, err);
        if (status != TITAN_OK)
            segment_break(seg, status == TITAN_EREVOKED ? status : TITAN_EPEER, seg->rank);
    }
    if (status != TITAN_OK)
        segment_close(seg);
    return status;
}

void segment_close(struct segment *seg)
{
    for (int r = 0; seg->pidfds && r < seg->world; r++)
        if (seg->pidfds[r] >= 0)
            (void)close(seg->pidfds[r]);
    free(seg->pidfds);
    seg->pidfds = NULL;
    if (!seg->base)
        return;
    uint32_t member = RANK_MEMBER;
    if (seg->ranks[seg->rank].pid == getpid() &&
        atomic_compare_exchange_strong(&seg->ranks[seg->rank].state, &member, RANK_LEFT))
        poke_all(seg);
    (void)munmap(seg->base, seg->layout.bytes);
    seg->base = NULL;
}
