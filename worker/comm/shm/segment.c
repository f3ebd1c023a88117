/* SPDX-License-Identifier: Apache-2.0 */
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
#include "base/progress.h"
#include "base/round.h"

#define PAGE 4096
#define LINE 64
#define SLOTS_BYTES_MAX ((size_t)32 << 20)    /* limit for one buffer over all ranks */
#define CHANNELS_BYTES_MAX ((size_t)64 << 20) /* limit for one slot over all channels */
/* Slot sizes. A round of a collective ends in a barrier, and a full channel makes its sender sleep. Large slots mean
 * fewer barriers and sleeps, and so fewer wakes. */
#define SLOT_BYTES_WANTED ((size_t)1 << 20)
#define CHANNEL_BYTES_WANTED ((size_t)256 << 10)
#define SPINS 400
#define BLIND_SLEEP_NS (3 * 1000 * 1000) /* limit of a sleep on a kernel that cannot wait for two words */
#define OPEN_SLEEP_NS (2 * 1000 * 1000)
#define OPEN_TIMEOUT_MS_DEFAULT 30000
/* Bit of the generation that is set only to end sleeps. The other bits count barriers. */
#define POKED UINT32_C(0x80000000)

enum { RANK_ABSENT, RANK_JOINING, RANK_MEMBER, RANK_LEFT };

struct segment_header {
    _Alignas(LINE) _Atomic uint32_t generation; /* futex */
    _Atomic uint32_t sleepers;
    _Alignas(LINE) _Atomic uint32_t arrived;
    /* Used in the root only: */
    _Alignas(LINE) _Atomic uint32_t broken; /* futex; 0, or -status | (rank + 1) << 16 */
    _Atomic uint64_t used;                  /* bytes of the file given to segments split off */
};

struct segment_rank {
    _Alignas(LINE) _Atomic uint32_t bell; /* futex */
    _Atomic uint32_t sleeping;            /* number of sleeping threads: one may send messages while another receives */
    _Alignas(LINE) _Atomic uint32_t state;
    _Atomic uint32_t arrivals;
    /* The newest segment that was split off this one with this rank as its first member. */
    _Atomic uint32_t split; /* futex; number of that split, from 1 */
    uint32_t split_world;
    uint64_t split_at;
    /* Used in the root only: */
    uint64_t pid_namespace, epoch;
    int32_t pid;
    unsigned char id[COMM_ID_BYTES];
};

struct segment_channel {
    _Alignas(LINE) _Atomic uint32_t head; /* slots filled by the sender */
    _Alignas(LINE) _Atomic uint32_t tail; /* slots read by the receiver */
};

/* --- layout ------------------------------------------------------------------------------------------------------- */

struct segment_layout segment_layout(int world)
{
    titan_assert(world >= 1 && world <= COMM_WORLD_MAX);
    size_t w = (size_t)world;
    struct segment_layout l = {0};
    l.slot_bytes = MAX(MIN(SLOT_BYTES_WANTED, SLOTS_BYTES_MAX / w) / (LINE * w), (size_t)1) * LINE * w;
    l.channel_slot_bytes = MAX(MIN(CHANNEL_BYTES_WANTED, CHANNELS_BYTES_MAX / (w * w)) / LINE, (size_t)1) * LINE;
    l.ranks = round_up(sizeof(struct segment_header), PAGE);
    l.channels = l.ranks + round_up(w * sizeof(struct segment_rank), PAGE);
    l.slots = l.channels + round_up(w * w * sizeof(struct segment_channel), PAGE);
    l.channel_slots = l.slots + round_up(SEGMENT_BUFFERS * w * l.slot_bytes, PAGE);
    l.bytes = l.channel_slots + round_up(SEGMENT_CHANNEL_SLOTS * w * w * l.channel_slot_bytes, PAGE);
    titan_assert(l.slot_bytes % (LINE * w) == 0 && l.channel_slot_bytes % LINE == 0);
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
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return titan_fail_errno(err, "cannot seal a shared segment");
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

unsigned char *segment_slot(const struct segment *seg, uint32_t tick, int rank)
{
    titan_assert(rank >= 0 && rank < seg->world);
    size_t index = (size_t)(tick % SEGMENT_BUFFERS) * (size_t)seg->world + (size_t)rank;
    return seg->base + seg->layout.slots + index * seg->layout.slot_bytes;
}

/* --- sleeping and waking ------------------------------------------------------------------------------------------ */

static void futex_wake(_Atomic uint32_t *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0);
}

/* Sleeps while the word has the value `seen` and the epoch is not broken. A sleeper in the root needs no second word:
 * the member that breaks the epoch rings every bell of the root. */
static void sleep_on(const struct segment *seg, _Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
    static atomic_int blind;

    progress_wait_begin();
    if (seg == seg->root || atomic_load(&blind)) {
        const int64_t most = seg == seg->root ? ns : MIN(ns, BLIND_SLEEP_NS);
        const struct timespec t = {.tv_sec = most / 1000000000, .tv_nsec = most % 1000000000};
        (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
    } else {
        struct futex_waitv words[] = {
            {.uaddr = (uintptr_t)word, .val = seen, .flags = FUTEX_32},
            {.uaddr = (uintptr_t)&seg->root->header->broken, .val = 0, .flags = FUTEX_32},
        };
        const int64_t end = clock_mono_ns() + ns;
        const struct timespec t = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
        if (syscall(SYS_futex_waitv, words, ARRAY_SIZE(words), 0, &t, CLOCK_MONOTONIC) < 0 && errno == ENOSYS)
            atomic_store(&blind, 1); /* Linux before 5.16 */
    }
    progress_wait_end();
}

/* Ends every sleep, so that all members look at the change. */
static void poke_all(struct segment *seg)
{
    atomic_fetch_or(&seg->header->generation, POKED);
    futex_wake(&seg->header->generation, INT32_MAX);
    for (int r = 0; r < seg->world; r++) {
        atomic_fetch_add(&seg->ranks[r].bell, 1);
        futex_wake(&seg->ranks[r].bell, INT32_MAX);
    }
}

void segment_break(struct segment *seg, titan_status status)
{
    titan_assert(status < 0 && -status <= 0xffff);
    if (!seg->base)
        return;
    struct segment *root = seg->root;
    uint32_t none = 0, word = (uint32_t)-status | (uint32_t)(root->rank + 1) << 16;
    (void)atomic_compare_exchange_strong(&root->header->broken, &none, word);
    futex_wake(&root->header->broken, INT32_MAX);
    poke_all(root);
    if (seg != root)
        poke_all(seg);
}

titan_status segment_check(const struct segment *seg, struct titan_error *err)
{
    uint32_t word = seg->base ? atomic_load(&seg->root->header->broken) : 0;
    if (seg->revoked && atomic_load(seg->revoked))
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked");
    if (word == 0)
        return TITAN_OK;
    int rank = (int)(word >> 16) - 1;
    if ((word & 0xffff) == (uint32_t)-TITAN_EREVOKED)
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked by rank %d", rank);
    return titan_fail(err, TITAN_EPEER, "rank %d has left the communicator", rank);
}

/* --- which members are still there -------------------------------------------------------------------------------- */

/* Has the process of this rank of the root ended? True even if the ended process has not been reaped yet. Any thread of
 * this process. */
static bool process_ended(struct segment *root, int r)
{
    titan_assert(root == root->root && r >= 0 && r < root->world);
    const struct segment_rank *peer = &root->ranks[r];
    if (peer->pid_namespace != root->pid_namespace || peer->pid <= 0)
        return false; /* the pid is of another namespace */
    int fd = atomic_load(&root->pidfds[r]);
    if (fd < 0) {
        int mine = (int)syscall(SYS_pidfd_open, peer->pid, 0);
        if (mine < 0)
            return errno == ESRCH;
        if (atomic_compare_exchange_strong(&root->pidfds[r], &fd, mine))
            fd = mine;
        else
            (void)close(mine);
    }
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

bool segment_member_gone(struct segment *seg, int peer, bool look)
{
    titan_assert(peer >= 0 && peer < seg->world);
    const struct segment_rank *in_root = &seg->root->ranks[seg->names[peer]];
    if (atomic_load(&in_root->state) < RANK_MEMBER)
        return false; /* the member has not joined yet */
    return atomic_load(&seg->ranks[peer].state) == RANK_LEFT || atomic_load(&in_root->state) == RANK_LEFT ||
           (look && process_ended(seg->root, seg->names[peer]));
}

/* Returns the first member that left before it arrived at the barrier where this member is; -1: no such member. In the
 * rendezvous a member that arrived and then left counts too, because without it the segment is useless. */
static int missing_member(struct segment *seg, bool look, bool rendezvous)
{
    for (int r = 0; r < seg->world; r++) {
        if (r == seg->rank || !segment_member_gone(seg, r, look))
            continue;
        if (rendezvous || (int32_t)(atomic_load(&seg->ranks[r].arrivals) - seg->arrivals) < 0)
            return r;
    }
    return -1;
}

titan_status segment_give_up(struct segment *seg, int peer, struct titan_error *err)
{
    titan_assert(peer >= 0 && peer < seg->world);
    const struct segment_rank *in_root = &seg->root->ranks[seg->names[peer]];
    bool closed = atomic_load(&seg->ranks[peer].state) == RANK_LEFT || atomic_load(&in_root->state) == RANK_LEFT;
    titan_status status = titan_fail(err, TITAN_EPEER, "rank %d (process %d) has %s", seg->names[peer], in_root->pid,
                                     closed ? "closed" : "ended");
    segment_break(seg, TITAN_EPEER);
    return status;
}

/* --- barrier ------------------------------------------------------------------------------------------------------ */

/* Arrives at the barrier. Returns true if this member arrived last and so released the others. *ret_seen: the
 * generation whose end this member waits for. */
static bool arrive(struct segment *seg, uint32_t *ret_seen)
{
    struct segment_header *h = seg->header;
    uint32_t word = atomic_load(&h->generation);
    *ret_seen = word & ~POKED;
    /* The arrival is counted first and announced afterwards. So a member killed in between is seen as missing, never as
     * arrived. */
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

static void sleep_on_generation(struct segment *seg, uint32_t word, int64_t ns)
{
    atomic_fetch_add(&seg->header->sleepers, 1);
    sleep_on(seg, &seg->header->generation, word, ns);
    atomic_fetch_sub(&seg->header->sleepers, 1);
}

titan_status segment_barrier(struct segment *seg, struct titan_error *err)
{
    titan_assert(seg->world > 1);
    struct segment_header *h = seg->header;
    uint32_t seen, word;
    TRY(segment_check(seg, err));
    progress_action(); /* the round has moved up to a slot's bytes */
    if (arrive(seg, &seen))
        return TITAN_OK;
    for (int i = 0; i < seg->root->spins; i++) {
        if (passed(h, seen, &word))
            return TITAN_OK;
        segment_relax();
    }
    for (int64_t since = 0; !passed(h, seen, &word);) {
        TRY(segment_check(seg, err));
        int64_t now = clock_mono_ns();
        bool look = since > 0 && now - since >= SEGMENT_SLEEP_NS;
        int gone = missing_member(seg, look, false);
        if (gone >= 0 && !passed(h, seen, &word))
            return segment_give_up(seg, gone, err);
        if (since == 0 || look)
            since = now;
        sleep_on_generation(seg, word, SEGMENT_SLEEP_NS);
    }
    return TITAN_OK;
}

/* --- channels ----------------------------------------------------------------------------------------------------- */

static struct segment_channel *channel_at(const struct segment *seg, enum channel_end end, int peer, size_t *ret_index)
{
    titan_assert(peer >= 0 && peer < seg->world);
    int from = end == CHANNEL_SEND ? seg->rank : peer, to = end == CHANNEL_SEND ? peer : seg->rank;
    *ret_index = (size_t)from * (size_t)seg->world + (size_t)to;
    return &seg->channels[*ret_index];
}

unsigned char *segment_channel_slot(const struct segment *seg, enum channel_end end, int peer)
{
    size_t index;
    const struct segment_channel *ch = channel_at(seg, end, peer, &index);
    uint32_t head = atomic_load(&ch->head), tail = atomic_load(&ch->tail);
    if (end == CHANNEL_SEND ? head - tail >= SEGMENT_CHANNEL_SLOTS : head == tail)
        return NULL;
    size_t slot = index * SEGMENT_CHANNEL_SLOTS + (end == CHANNEL_SEND ? head : tail) % SEGMENT_CHANNEL_SLOTS;
    return seg->base + seg->layout.channel_slots + slot * seg->layout.channel_slot_bytes;
}

void segment_channel_advance(struct segment *seg, enum channel_end end, int peer)
{
    size_t index;
    struct segment_channel *ch = channel_at(seg, end, peer, &index);
    atomic_fetch_add(end == CHANNEL_SEND ? &ch->head : &ch->tail, 1);
    struct segment_rank *r = &seg->ranks[peer];
    atomic_fetch_add(&r->bell, 1);
    if (atomic_load(&r->sleeping) > 0)
        futex_wake(&r->bell, INT32_MAX);
}

uint32_t segment_bell(const struct segment *seg)
{
    return atomic_load(&seg->ranks[seg->rank].bell);
}

void segment_bell_wait(struct segment *seg, uint32_t bell)
{
    struct segment_rank *self = &seg->ranks[seg->rank];
    atomic_fetch_add(&self->sleeping, 1);
    sleep_on(seg, &self->bell, bell, SEGMENT_SLEEP_NS);
    atomic_fetch_sub(&self->sleeping, 1);
}

/* --- joining and leaving ------------------------------------------------------------------------------------------ */

/* A member's wait for others while a segment forms. */
struct forming {
    const atomic_int *abort_flag;
    int64_t start, checked;
    bool look; /* look at processes this time */
};

static struct forming forming_start(const atomic_int *abort_flag)
{
    int64_t now = clock_mono_ns();
    return (struct forming){.abort_flag = abort_flag, .start = now, .checked = now};
}

/* Runs before each sleep. late: the member that this member waits for; -1: any absent member of seg. */
static titan_status forming_check(struct forming *f, const struct segment *seg, int late, struct titan_error *err)
{
    int64_t now = clock_mono_ns(), limit = seg->root->forming_ns;
    if (f->abort_flag && atomic_load(f->abort_flag))
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while its members met");
    TRY(segment_check(seg, err));
    if (now - f->start >= limit) {
        int r = MAX(late, 0);
        while (late < 0 && r < seg->world - 1 && atomic_load(&seg->ranks[r].state) >= RANK_MEMBER)
            r++; /* finds the first member that has not come, or the last member if all have come in the meantime */
        return titan_fail(err, TITAN_ETIMEDOUT, "rank %d has not come within %" PRId64 " ms", seg->names[r],
                          limit / 1000000);
    }
    f->look = now - f->checked >= SEGMENT_SLEEP_NS;
    if (f->look)
        f->checked = now;
    return TITAN_OK;
}

static titan_status map_at(struct segment *seg, int fd, uint64_t at, struct titan_error *err)
{
    titan_assert(at % PAGE == 0 && !seg->base);
    void *map = mmap(NULL, seg->layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    if (map == MAP_FAILED)
        return titan_fail_errno(err, "cannot map the shared segment (%zu bytes)", seg->layout.bytes);
    seg->base = map;
    seg->header = map;
    seg->ranks = (struct segment_rank *)(seg->base + seg->layout.ranks);
    seg->channels = (struct segment_channel *)(seg->base + seg->layout.channels);
    return TITAN_OK;
}

/* Joins the mapped segment and waits for the others. A failure breaks the epoch and closes the segment. */
static titan_status meet(struct segment *seg, const atomic_int *abort_flag, struct titan_error *err)
{
    const struct segment *root = seg->root;
    struct segment_rank *self = &seg->ranks[seg->rank];
    uint32_t absent = RANK_ABSENT;

    if (!atomic_compare_exchange_strong(&self->state, &absent, RANK_JOINING))
        return titan_fail(err, TITAN_ECONFLICT, "the shared segment already has a rank %d: it belongs to another epoch",
                          seg->rank);
    memcpy(self->id, root->id, sizeof(self->id));
    self->epoch = root->epoch;
    self->pid = getpid();
    self->pid_namespace = root->pid_namespace;
    atomic_store(&self->state, RANK_MEMBER);

    /* Waits for the others. */
    titan_status status = TITAN_OK;
    uint32_t seen, word;
    struct forming f = forming_start(abort_flag);
    const bool last = arrive(seg, &seen);
    while (!last && status == TITAN_OK && !passed(seg->header, seen, &word)) {
        status = forming_check(&f, seg, -1, err);
        const int gone = status == TITAN_OK ? missing_member(seg, f.look, true) : -1;
        if (gone >= 0 && !passed(seg->header, seen, &word))
            status = segment_give_up(seg, gone, err);
        else if (status == TITAN_OK)
            sleep_on_generation(seg, word, OPEN_SLEEP_NS);
    }
    /* Checks that all members joined for the same communicator. */
    for (int r = 0; r < seg->world && status == TITAN_OK; r++)
        if (seg->ranks[r].epoch != root->epoch || memcmp(seg->ranks[r].id, root->id, COMM_ID_BYTES) != 0)
            status = titan_fail(err, TITAN_ECONFLICT, "rank %d is of epoch %" PRIu64 ", this is %" PRIu64, r,
                                seg->ranks[r].epoch, root->epoch);
    if (status != TITAN_OK)
        segment_break(seg, status == TITAN_EREVOKED ? status : TITAN_EPEER);
    return status;
}

titan_status segment_open(struct segment *seg, const struct comm_config *config, const atomic_int *abort_flag,
                          const atomic_int *revoked, struct titan_error *err)
{
    titan_assert(config->rank >= 0 && config->rank < config->world);
    size_t world = (size_t)config->world;
    uint32_t timeout_ms = config->timeout_ms ? config->timeout_ms : OPEN_TIMEOUT_MS_DEFAULT;
    *seg = (struct segment){.rank = config->rank, .world = config->world, .root = seg, .revoked = revoked, .fd = -1};
    seg->layout = segment_layout(seg->world);
    cpu_set_t set;
    seg->spins = sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) >= seg->world ? SPINS : 0;
    seg->epoch = config->epoch;
    seg->forming_ns = (int64_t)timeout_ms * 1000000;
    memcpy(seg->id, config->id, sizeof(seg->id));
    struct stat ns;
    if (stat("/proc/self/ns/pid", &ns) == 0)
        seg->pid_namespace = ns.st_ino;
    seg->pidfds = malloc(world * sizeof(*seg->pidfds));
    seg->names = malloc(world * sizeof(*seg->names));
    titan_status status = TITAN_OK;
    if (!seg->pidfds || !seg->names)
        status = titan_fail(err, TITAN_ENOMEM, "no memory for %d members", seg->world);
    for (int r = 0; status == TITAN_OK && r < seg->world; r++) {
        atomic_init(&seg->pidfds[r], -1);
        seg->names[r] = r;
    }

    const int fd = config->memfd;
    struct stat st;
    if (status == TITAN_OK && (fd < 0 || fstat(fd, &st) < 0))
        status = titan_fail_errno(err, "shared segment (descriptor %d)", fd);
    /* Any member may be the first to set the file's size, because all members set the same size. */
    if (status == TITAN_OK && (size_t)st.st_size < seg->layout.bytes && ftruncate(fd, (off_t)seg->layout.bytes) < 0)
        status = titan_fail_errno(err, "cannot give the shared segment %zu bytes", seg->layout.bytes);
    if (status == TITAN_OK && (seg->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0) /* for splits */
        status = titan_fail_errno(err, "cannot keep the shared segment");
    if (status == TITAN_OK)
        status = map_at(seg, fd, 0, err);
    if (status == TITAN_OK)
        status = meet(seg, abort_flag, err);
    if (status != TITAN_OK)
        segment_close(seg);
    return status;
}

/* --- splitting ---------------------------------------------------------------------------------------------------- */

/* Checks that a split segment lies behind the root and below the largest file size. The check is needed because a
 * damaged word could name any place. */
static titan_status check_place(const struct segment *root, uint64_t at, uint64_t bytes, struct titan_error *err)
{
    const uint64_t first = round_up(root->layout.bytes, PAGE);
    if (at % PAGE == 0 && at >= first && at <= (uint64_t)INT64_MAX - bytes)
        return TITAN_OK;
    return titan_fail(err, TITAN_ECORRUPT, "a split is said to lie at %" PRIu64 ", outside of the shared segment", at);
}

/* Finds the place of a split. The first member takes room at the end of the file and tells the other members where. */
static titan_status find_place(struct segment *parent, const struct segment *seg, const struct segment_group *group,
                               uint64_t *ret_at, struct titan_error *err)
{
    struct segment *root = parent->root;
    const int first = group->members[0];
    struct segment_rank *leader = &parent->ranks[first];
    const uint64_t bytes = round_up(seg->layout.bytes, PAGE);

    titan_assert((seg->rank == 0) == (first == parent->rank));
    if (seg->rank == 0) {
        *ret_at = round_up(root->layout.bytes, PAGE) + atomic_fetch_add(&root->header->used, bytes);
        TRY(check_place(root, *ret_at, bytes, err));
        /* Writing the segment's last byte extends the file. Unlike truncation, it never removes another segment's
         * room. */
        if (pwrite(root->fd, "", 1, (off_t)(*ret_at + bytes - 1)) != 1)
            return titan_fail_errno(err, "cannot give the shared segment %" PRIu64 " bytes", *ret_at + bytes);
        leader->split_at = *ret_at;
        leader->split_world = (uint32_t)seg->world;
        atomic_store(&leader->split, parent->splits);
        futex_wake(&leader->split, INT32_MAX);
        return TITAN_OK;
    }

    struct forming f = forming_start(group->abort_flag);
    for (uint32_t seen; (seen = atomic_load(&leader->split)) != parent->splits;) {
        TRY(forming_check(&f, parent, first, err));
        if (segment_member_gone(parent, first, f.look) && atomic_load(&leader->split) != parent->splits)
            return segment_give_up(parent, first, err);
        sleep_on(parent, &leader->split, seen, OPEN_SLEEP_NS);
    }
    struct stat st;
    const uint64_t at = leader->split_at;
    if (leader->split_world != (uint32_t)seg->world)
        return titan_fail(err, TITAN_ECONFLICT, "rank %d makes split %u one of %u members, here it has %d",
                          parent->names[first], parent->splits, leader->split_world, seg->world);
    TRY(check_place(root, at, seg->layout.bytes, err));
    if (fstat(root->fd, &st) < 0 || at > (uint64_t)st.st_size || seg->layout.bytes > (uint64_t)st.st_size - at)
        return titan_fail(err, TITAN_ECORRUPT, "split %u is said to lie at %" PRIu64 ", outside of the shared segment",
                          parent->splits, at);
    *ret_at = at;
    return TITAN_OK;
}

titan_status segment_split(struct segment *parent, struct segment *seg, const struct segment_group *group,
                           const atomic_int *revoked, struct titan_error *err)
{
    const int n = group->n, *const members = group->members;
    uint64_t at = 0;

    titan_assert(n > 1 && parent->base);
    *seg = (struct segment){.world = n, .root = parent->root, .revoked = revoked, .fd = -1};
    seg->layout = segment_layout(n);
    parent->splits++;
    seg->names = calloc((size_t)n, sizeof(*seg->names));
    if (!seg->names)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d members", n);
    for (int i = 0; i < n; i++) {
        seg->names[i] = parent->names[members[i]];
        if (members[i] == parent->rank)
            seg->rank = i;
    }
    titan_status status = find_place(parent, seg, group, &at, err);
    if (status == TITAN_OK)
        status = map_at(seg, parent->root->fd, at, err);
    if (status == TITAN_OK)
        status = meet(seg, group->abort_flag, err);
    if (status != TITAN_OK) {
        segment_break(parent, status == TITAN_EREVOKED ? status : TITAN_EPEER);
        segment_close(seg);
    }
    return status;
}

void segment_close(struct segment *seg)
{
    for (int r = 0; seg->pidfds && r < seg->world; r++)
        if (seg->pidfds[r] >= 0)
            (void)close(seg->pidfds[r]);
    free(seg->pidfds);
    free(seg->names);
    seg->pidfds = NULL;
    seg->names = NULL;
    if (seg->fd >= 0)
        (void)close(seg->fd);
    seg->fd = -1;
    if (!seg->base)
        return;
    uint32_t member = RANK_MEMBER;
    if (seg->ranks[seg->rank].pid == getpid() &&
        atomic_compare_exchange_strong(&seg->ranks[seg->rank].state, &member, RANK_LEFT))
        poke_all(seg);
    (void)munmap(seg->base, seg->layout.bytes);
    seg->base = NULL;
}
