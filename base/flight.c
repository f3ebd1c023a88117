/* SPDX-License-Identifier: Apache-2.0 */
#include "base/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define NUMBER_MAX ((UINT64_C(1) << 53) - 1) /* exact in JSON */
#define TRIES 64                             /* occupied places tried in a row */

static struct flight_ring *_Atomic attached;
static _Atomic uint64_t step_now;
static uint32_t numbers[FLIGHT_GROUPS][FLIGHT_KINDS];

/* --- the file ----------------------------------------------------------------------------------------------------- */

void flight_path(const char *page, char out[PATH_MAX])
{
    const char *dot = strrchr(page, '.');
    const int len = dot ? (int)(dot - page) : (int)strlen(page);
    titan_assert(len > 0);
    if (snprintf(out, PATH_MAX, "%.*s.flight", len, page) >= PATH_MAX)
        out[0] = '\0'; /* the file does not exist */
}

titan_status flight_create(const char *path, struct titan_error *err)
{
    if (unlink(path) < 0 && errno != ENOENT)
        return titan_fail_errno(err, "cannot replace '%s'", path);
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return titan_fail_errno(err, "cannot create '%s'", path);
    /* Allocates all blocks now: a full disk is an error here instead of a SIGBUS in the worker. */
    const int rc = posix_fallocate(fd, 0, sizeof(struct flight_ring));
    const uint64_t magic = FLIGHT_MAGIC;
    if (rc == 0 && pwrite(fd, &magic, sizeof magic, 0) == (ssize_t)sizeof magic)
        return TITAN_OK;
    errno = rc ? rc : errno;
    (void)titan_fail_errno(err, "cannot size '%s'", path);
    (void)unlink(path);
    return err ? err->status : TITAN_EIO;
}

/* given: an open descriptor of path; 0 = none. */
static titan_status open_ring(const char *path, int given, int flags, int *ret, struct titan_error *err)
{
    struct stat st;
    _cleanup_fd_ int fd = given ? given : open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    if (!S_ISREG(st.st_mode) || st.st_size != (off_t)sizeof(struct flight_ring))
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is no flight recorder's: %lld bytes, expected %zu", path,
                          (long long)st.st_size, sizeof(struct flight_ring));
    *ret = TAKE_FD(fd);
    return TITAN_OK;
}

titan_status flight_attach(const char *path, int given, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    titan_assert(!atomic_load(&attached));
    TRY(open_ring(path, given, O_RDWR, &fd, err));
    void *p = mmap(NULL, sizeof(struct flight_ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return titan_fail_errno(err, "cannot map '%s'", path);
    struct flight_ring *const ring = p;
    if (ring->magic != FLIGHT_MAGIC) {
        (void)munmap(p, sizeof *ring);
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is no flight recorder's: wrong magic", path);
    }
    atomic_store(&attached, ring);
    return TITAN_OK;
}

bool flight_attached(void)
{
    return atomic_load_explicit(&attached, memory_order_relaxed);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Zero-fills the rest, to erase earlier text. */
static void put_text(char *out, size_t size, const char *text)
{
    titan_debug_assert(size > 0);
    size_t n = text ? strnlen(text, size - 1) : 0;
    if (n)
        memcpy(out, text, n);
    memset(out + n, 0, size - n);
}

void flight_epoch(uint64_t epoch, int rank, int world)
{
    struct flight_ring *const ring = atomic_load(&attached);
    memset(numbers, 0, sizeof numbers);
    if (!ring)
        return;
    titan_assert(rank >= 0 && world > 0);
    atomic_store(&ring->world, 0);
    memset(ring->groups, 0, sizeof ring->groups);
    atomic_store(&ring->epoch, epoch);
    atomic_store(&ring->rank, rank);
    atomic_store(&ring->world, world);
}

void flight_group(int group, const char *name, const int *members, int n)
{
    struct flight_ring *const ring = atomic_load(&attached);
    titan_assert(group >= 0 && group < FLIGHT_GROUPS);
    if (!ring)
        return;
    struct flight_group *const g = &ring->groups[group];
    for (int i = 0; i < n; i++)
        if (members[i] >= 0 && members[i] < FLIGHT_RANKS_MAX)
            g->members[members[i] / 64] |= UINT64_C(1) << members[i] % 64;
    put_text(g->name, sizeof g->name, name);
}

void flight_step(uint64_t step)
{
    atomic_store_explicit(&step_now, step, memory_order_relaxed);
}

uint64_t flight_steps(void)
{
    return atomic_load_explicit(&step_now, memory_order_relaxed);
}

uint32_t flight_number(int group, enum flight_kind kind)
{
    titan_assert(group >= 0 && group < FLIGHT_GROUPS && kind < FLIGHT_KINDS);
    return ++numbers[group][kind];
}

/* Takes a place that no other thread has. The record in the place has ended or belongs to an earlier epoch. */
static struct flight_mark take_place(struct flight_ring *ring, uint64_t epoch)
{
    for (int tries = 0;; tries++) {
        const uint64_t at = atomic_fetch_add_explicit(&ring->next, 1, memory_order_relaxed);
        struct flight_record *const r = &ring->records[at & (FLIGHT_RECORDS - 1)];
        uint64_t was = atomic_load_explicit(&r->ticket, memory_order_acquire);
        if (tries == 2 * TRIES) /* all places are occupied: this record is lost */
            return (struct flight_mark){NULL, 0};
        if (was & 1)
            continue;
        const bool open = was && atomic_load_explicit(&r->ended_ns, memory_order_relaxed) == 0;
        if (open && atomic_load_explicit(&r->epoch, memory_order_relaxed) == epoch && tries < TRIES)
            continue;
        if (atomic_compare_exchange_strong_explicit(&r->ticket, &was, 2 * at + 1, memory_order_acq_rel,
                                                    memory_order_relaxed))
            return (struct flight_mark){r, 2 * at + 2};
    }
}

struct flight_mark flight_begin(const struct flight_what *what)
{
    struct flight_ring *const ring = atomic_load_explicit(&attached, memory_order_acquire);
    if (!ring)
        return (struct flight_mark){NULL, 0};
    titan_debug_assert(what->kind < FLIGHT_KINDS && what->group < FLIGHT_GROUPS);
    const uint64_t epoch = atomic_load_explicit(&ring->epoch, memory_order_relaxed);
    const struct flight_mark mark = take_place(ring, epoch);
    struct flight_record *const r = mark.record;
    if (!r)
        return mark;
    atomic_store_explicit(&r->again, (uint32_t)mark.ticket - 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&r->ended_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&r->epoch, epoch, memory_order_relaxed);
    r->step = what->step;
    r->bytes = what->bytes;
    r->number = what->number;
    r->microbatch = what->microbatch;
    r->peer = what->peer;
    r->kind = what->kind;
    r->group = what->group;
    put_text(r->op, sizeof r->op, what->op);
    put_text(r->place, sizeof r->place, what->place);
    put_text(r->phase, sizeof r->phase, what->phase);
    r->began_ns = clock_mono_ns();
    atomic_store_explicit(&r->again, (uint32_t)mark.ticket, memory_order_release);
    atomic_store_explicit(&r->ticket, mark.ticket, memory_order_release);
    return mark;
}

void flight_end(struct flight_mark mark)
{
    if (mark.record && atomic_load_explicit(&mark.record->ticket, memory_order_relaxed) == mark.ticket)
        atomic_store_explicit(&mark.record->ended_ns, clock_mono_ns(), memory_order_release);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Does the text have only letters, digits and other characters of names, and a NUL at its end? */
static bool is_name(const char *text, size_t size)
{
    const size_t n = strnlen(text, size);
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '.' && c != '-')
            return false;
    }
    return n < size;
}

static int by_ticket(const void *a, const void *b)
{
    const struct flight_entry *x = a, *y = b;
    return (x->ticket > y->ticket) - (x->ticket < y->ticket);
}

titan_status flight_check(const struct flight_ring *ring, int64_t now_ns, struct flight_copy *ret,
                          struct titan_error *err)
{
    memset(ret, 0, sizeof *ret);
    ret->epoch = atomic_load(&ring->epoch);
    ret->rank = atomic_load(&ring->rank);
    ret->world = atomic_load(&ring->world);
    if (ring->magic != FLIGHT_MAGIC)
        return titan_fail(err, TITAN_ECORRUPT, "no flight recorder's: wrong magic");
    if (ret->epoch > NUMBER_MAX || ret->world < 0 || ret->world > FLIGHT_RANKS_MAX || ret->rank < 0 ||
        (ret->world && ret->rank >= ret->world))
        return titan_fail(err, TITAN_ECORRUPT, "a flight recorder of rank %d of %d in epoch %llu", ret->rank,
                          ret->world, (unsigned long long)ret->epoch);
    for (int g = 0; g < FLIGHT_GROUPS; g++) {
        if (!is_name(ring->groups[g].name, sizeof ring->groups[g].name))
            return titan_fail(err, TITAN_ECORRUPT, "a flight recorder with a name that is none: group %d", g);
        ret->groups[g] = ring->groups[g];
        for (int rank = ret->world; rank < FLIGHT_RANKS_MAX; rank++)
            ret->groups[g].members[rank / 64] &= ~(UINT64_C(1) << rank % 64);
    }
    for (int i = 0; i < FLIGHT_RECORDS && ret->world > 0; i++) {
        const struct flight_record *r = &ring->records[i];
        const uint64_t ticket = atomic_load(&r->ticket);
        const int64_t ended = atomic_load(&r->ended_ns);
        const uint64_t epoch = atomic_load(&r->epoch);
        if (ticket == 0 || ticket & 1 || (uint32_t)ticket != atomic_load(&r->again) || epoch < ret->epoch)
            continue;
        const bool transfer = r->kind != FLIGHT_ACTION;
        bool sound = epoch == ret->epoch && r->kind < FLIGHT_KINDS && r->group < FLIGHT_GROUPS &&
                     transfer == (r->number > 0) && (!transfer || ret->groups[r->group].name[0]);
        sound =
            sound && r->began_ns > 0 && r->began_ns <= now_ns && (!ended || (ended >= r->began_ns && ended <= now_ns));
        sound = sound && r->step <= NUMBER_MAX && r->bytes <= NUMBER_MAX && r->microbatch >= -1 && r->peer >= -1 &&
                r->peer < ret->world;
        sound = sound && r->op[0] && is_name(r->op, sizeof r->op) && is_name(r->place, sizeof r->place) &&
                is_name(r->phase, sizeof r->phase);
        if (!sound) {
            ret->damaged++;
            continue;
        }
        struct flight_entry *const e = &ret->entries[ret->n++];
        *e = (struct flight_entry){.ticket = ticket,
                                   .step = r->step,
                                   .bytes = r->bytes,
                                   .began_ns = r->began_ns,
                                   .ended_ns = ended,
                                   .number = r->number,
                                   .microbatch = r->microbatch,
                                   .peer = r->peer,
                                   .kind = (enum flight_kind)r->kind,
                                   .group = r->group};
        memcpy(e->op, r->op, sizeof e->op);
        memcpy(e->place, r->place, sizeof e->place);
        memcpy(e->phase, r->phase, sizeof e->phase);
    }
    qsort(ret->entries, (size_t)ret->n, sizeof ret->entries[0], by_ticket);
    titan_assert(ret->n + ret->damaged <= FLIGHT_RECORDS);
    return TITAN_OK;
}

titan_status flight_read(const char *path, struct flight_ring **ret, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    _cleanup_free_ struct flight_ring *ring = aligned_alloc(_Alignof(struct flight_ring), sizeof *ring);
    if (!ring)
        return titan_fail(err, TITAN_ENOMEM, "no memory for '%s'", path);
    TRY(open_ring(path, 0, O_RDONLY, &fd, err));
    const ssize_t n = pread(fd, ring, sizeof *ring, 0);
    if (n != (ssize_t)sizeof *ring)
        return n < 0 ? titan_fail_errno(err, "cannot read '%s'", path)
                     : titan_fail(err, TITAN_ECORRUPT, "'%s' is cut short", path);
    *ret = TAKE(ring);
    return TITAN_OK;
}

/* --- files of a job that a recorder is printed into --------------------------------------------------------------- */

void flight_name(uint64_t worker_id, uint64_t epoch, char ret[FLIGHT_NAME_BYTES])
{
    (void)snprintf(ret, FLIGHT_NAME_BYTES, "worker-%" PRIu64 "-epoch-%" PRIu64 ".json", worker_id, epoch);
}

bool flight_parse_name(const char *name, uint64_t *ret_worker, uint64_t *ret_epoch)
{
    char again[FLIGHT_NAME_BYTES];
    if (sscanf(name, "worker-%" SCNu64 "-epoch-%" SCNu64 ".json", ret_worker, ret_epoch) != 2)
        return false;
    flight_name(*ret_worker, *ret_epoch, again);
    return !strcmp(name, again);
}
