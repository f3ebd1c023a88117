/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the workers of a host share, written by another member at any time: words of its header, of the
 * members and of the channels are what the input says, before this member joins and between all it does. */
#include "tests/fuzz/common.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "worker/comm/shm/flow.h"
#include "worker/comm/shm/segment.h"

enum { PATIENCE_US = 500, GUARD = 64 };

/* Revokes what waits for too long, as an agent would. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct segment *waits;
    uint64_t turn;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *watcher(void *arg)
{
    (void)pthread_mutex_lock(&watch.lock);
    for (;;) {
        while (!watch.waits)
            (void)pthread_cond_wait(&watch.changed, &watch.lock);
        const uint64_t turn = watch.turn;
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += PATIENCE_US * 1000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        while (watch.waits && watch.turn == turn)
            if (pthread_cond_clockwait(&watch.changed, &watch.lock, CLOCK_MONOTONIC, &until) != 0)
                break;
        if (watch.waits && watch.turn == turn) {
            segment_break(watch.waits, TITAN_EREVOKED);
            watch.waits = NULL;
        }
    }
    return arg;
}

static void guard(struct segment *seg)
{
    (void)pthread_mutex_lock(&watch.lock);
    watch.waits = seg;
    watch.turn++;
    (void)pthread_cond_signal(&watch.changed);
    (void)pthread_mutex_unlock(&watch.lock);
}

/* Words at the front of the header's, the members' and the channels' pages. */
static void scribble(unsigned char *shared, const struct segment_layout *l, struct fuzz_input *in)
{
    for (uint64_t n = fuzz_take(in, 1) % 8; n > 0 && in->len > 0; n--) {
        const uint64_t where = fuzz_take(in, 1);
        const size_t parts[] = {0, l->ranks, l->channels}, at = parts[where % 3] + fuzz_take(in, 1) % 128 * 4;
        const uint64_t how = where / 3;
        uint32_t word = (uint32_t)(how < 40 ? how % 5 : fuzz_take(in, how < 60 ? 1 : 4));
        memcpy(shared + at, &word, sizeof(word));
    }
}

static void pass(struct segment *seg, struct fuzz_input *in)
{
    static unsigned char room[GUARD + 4096 + GUARD], data[4096];
    struct titan_error err = {0};
    const uint64_t how = fuzz_take(in, 1);
    const int peer = (seg->rank + 1 + (int)(how & 1) % (seg->world - 1)) % seg->world;
    const size_t len = fuzz_take(in, 2) % sizeof(data);
    struct flow flows[] = {flow_out(data, len, peer), flow_in(room + GUARD, len, peer)};
    memset(room, 7, sizeof(room));
    guard(seg);
    const titan_status status = flows_run(seg, flows, ARRAY_SIZE(flows), &err);
    guard(NULL);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    for (size_t i = 0; i < GUARD; i++)
        fuzz_assert(room[i] == 7 && room[GUARD + len + i] == 7);
}

static void split(struct segment *seg, unsigned char *shared, struct fuzz_input *in)
{
    static const int all[] = {0, 1, 2};
    struct segment child;
    struct titan_error err = {0};
    scribble(shared, &seg->layout, in);
    guard(seg);
    const titan_status status =
        segment_split(seg, &child, &(struct segment_group){.members = all, .n = seg->world}, NULL, &err);
    guard(NULL);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        return;
    }
    /* It lies behind the root. */
    memset(segment_slot(&child, 0, child.rank), 9, child.layout.slot_bytes);
    for (size_t i = 0; i < seg->layout.slots; i += 4096)
        fuzz_assert(shared[i + 4095] == 0);
    guard(seg);
    (void)!segment_barrier(&child, &err);
    guard(NULL);
    segment_close(&child);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static pthread_t thread;
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct segment seg;
    int fd = -1;
    if (!thread)
        fuzz_assert(pthread_create(&thread, NULL, watcher, NULL) == 0);
    const uint64_t how = fuzz_take(&in, 1);
    const int world = 2 + (int)(how & 1);
    const struct segment_layout l = segment_layout(world);
    fuzz_assert(comm_shm_segment(world, &fd, &err) == TITAN_OK);
    unsigned char *shared = mmap(NULL, l.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fuzz_assert(shared != MAP_FAILED);
    const uint32_t others = (uint32_t)world - 1;
    if (how & 2) /* all the others have arrived */
        memcpy(shared + 64, &others, sizeof(others));
    scribble(shared, &l, &in);
    const struct comm_config config = {
        .rank = (int)(how >> 2) % world, .world = world, .memfd = fd, .listener = -1, .timeout_ms = 1};
    titan_status status = segment_open(&seg, &config, NULL, NULL, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    for (int i = 0; status == TITAN_OK && in.len > 0 && i < 6; i++) {
        const uint64_t what = fuzz_take(&in, 1);
        if (what & 64)
            memcpy(shared + 64, &others, sizeof(others));
        scribble(shared, &l, &in);
        if (what % 4 == 0) {
            guard(&seg);
            (void)!segment_barrier(&seg, &err);
            guard(NULL);
        } else if (what % 4 == 1) {
            pass(&seg, &in);
        } else if (what % 4 == 2) {
            split(&seg, shared, &in);
        } else {
            (void)segment_check(&seg, &err);
            (void)segment_member_gone(&seg, (seg.rank + 1) % world, true);
        }
    }
    if (status == TITAN_OK)
        segment_close(&seg);
    (void)munmap(shared, l.bytes);
    (void)close(fd);
    return 0;
}
