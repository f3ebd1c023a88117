/* SPDX-License-Identifier: Apache-2.0 */
/* transfers.c - see transfers.h. */
#include "worker/measure/transfers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "worker/comm/comm.h"

enum { PASSES = 5, ROUNDS_MOST = 2000 };
#define PASS_S 0.01
#define POOL_BYTES ((size_t)32 << 20) /* larger than a core's own caches */
#define ALIGN ((size_t)4096)

struct member {
    const struct transfers_options *options;
    struct device_handle device;
    struct stream *stream;
    struct comm *comm;
    char *pool;
    size_t pool_bytes;
};

static int64_t processor_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- one transfer ------------------------------------------------------------------------------------------------- */

/* Bytes that a transfer receives and sends, together. */
static size_t bytes_of(const struct board_row *row, size_t members)
{
    const size_t bytes = (size_t)row->cost.bytes;
    return (row->op == OP_ALL_GATHER ? members + 1 : 2) * ((bytes + ALIGN - 1) / ALIGN * ALIGN + ALIGN);
}

static titan_status run_rounds(const struct member *m, const struct board_row *row, int rounds, int64_t *ret_ns,
                               int64_t *ret_processor_ns, struct titan_error *err)
{
    const size_t n = (size_t)m->options->members, each = bytes_of(row, n), slots = m->pool_bytes / each;
    const size_t bytes = (size_t)row->cost.bytes, count = bytes / dtype_bytes(row->dt);
    struct stream *const s = m->stream;

    titan_assert(slots >= 1 && rounds >= 1);
    TRY(comm_shm.barrier(m->comm, s));
    TRY(m->device.ops->stream_sync(s, err));
    const int64_t began_ns = clock_mono_ns(), processor_began_ns = processor_ns();
    for (int i = 0; i < rounds; i++) {
        char *const at = m->pool + (size_t)i % slots * each, *const to = at + (bytes + ALIGN - 1) / ALIGN * ALIGN;
        switch (row->op) {
        case OP_ALL_GATHER:
            TRY(comm_shm.all_gather(m->comm, to, at, count, row->dt, s));
            break;
        case OP_REDUCE_SCATTER:
            TRY(comm_shm.reduce_scatter(m->comm, to, at, bytes / n / dtype_bytes(row->dt), row->dt, s));
            break;
        case OP_ALL_REDUCE:
        case OP_AGREE:
        case OP_COMMIT:
            TRY(comm_shm.all_reduce(m->comm, at, count, row->dt, s));
            break;
        case OP_ALL_TO_ALL:
        case OP_ALL_TO_ALL_V:
        case OP_TO_OWNERS: /* all members send an equal share to every other */
        case OP_FROM_OWNERS:
            TRY(comm_shm.all_to_all(m->comm, to, at, bytes / n, s));
            break;
        case OP_SHIFT:
        case OP_ROTATE: /* a little less: its pieces are copied once more */
            TRY(comm_shm.shift(m->comm, to, at, bytes, 1, s));
            break;
        default:
            TRY(m->options->rank == 0 ? comm_shm.send(m->comm, at, bytes, 1, s)
                                      : comm_shm.recv(m->comm, at, bytes, 0, s));
            break;
        }
    }
    TRY(m->device.ops->stream_sync(s, err));
    *ret_ns = (clock_mono_ns() - began_ns) / rounds;
    *ret_processor_ns = (processor_ns() - processor_began_ns) / rounds;
    return TITAN_OK;
}

static int by_value(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

/* Measures one transfer. The first pass determines the number of rounds; the first member's number holds for all
 * members. */
static titan_status take_row(const struct member *m, struct board_row *row, struct titan_error *err)
{
    int64_t ns[PASSES], processor[PASSES];
    double rounds = 0;

    TRY(run_rounds(m, row, 2, &ns[0], &processor[0], err));
    if (m->options->rank == 0)
        rounds = MIN(MAX(3, PASS_S * 1e9 / (double)MAX(ns[0], 1)), ROUNDS_MOST);
    TRY(comm_shm.all_reduce(m->comm, &rounds, 1, DTYPE_F64, m->stream));
    TRY(m->device.ops->stream_sync(m->stream, err));
    for (int i = 0; i < PASSES; i++)
        TRY(run_rounds(m, row, (int)rounds, &ns[i], &processor[i], err));
    qsort(ns, PASSES, sizeof ns[0], by_value);
    qsort(processor, PASSES, sizeof processor[0], by_value);
    atomic_fetch_add(&row->ns, ns[PASSES / 4]);
    atomic_fetch_add(&row->processor_ns, processor[PASSES / 4]);
    return TITAN_OK;
}

/* --- a member ----------------------------------------------------------------------------------------------------- */

static bool is_ours(const struct member *m, const struct board_row *row)
{
    return row->cost.kind == COST_TRANSFER && row->cost.size == m->options->members && row->count > 0;
}

static titan_status open_member(struct member *m, const struct board *board, int n, struct titan_error *err)
{
    const struct transfers_options *o = m->options;
    struct comm_config config = {
        .epoch = 1, .rank = o->rank, .world = o->members, .listener = -1, .memfd = o->memfd, .device = &m->device};
    struct stat st;

    m->pool_bytes = POOL_BYTES;
    for (int i = 0; i < n; i++)
        if (is_ours(m, &board->rows[i]))
            m->pool_bytes = MAX(m->pool_bytes, bytes_of(&board->rows[i], (size_t)o->members));
    if (fstat(o->memfd, &st) < 0)
        return titan_fail_errno(err, "cannot stat the shared segment");
    memcpy(config.id, &st.st_ino, sizeof st.st_ino);
    TRY(device_open("cpu", &(struct device_options){.threads = 1}, &m->device, err));
    TRY(m->device.ops->alloc(m->device.dev, m->pool_bytes, (void **)&m->pool, err));
    memset(m->pool, 1, m->pool_bytes); /* touches all pages, because all untouched pages are the same physical page */
    TRY(m->device.ops->stream_open(m->device.dev, "transfers", false, &m->stream, err));
    return comm_shm.open(&config, NULL, &m->comm, err);
}

titan_status transfers_take(const struct transfers_options *options, struct board *board, struct titan_error *err)
{
    struct member m = {.options = options};
    const int n = MIN(atomic_load(&board->n), BOARD_ROWS);

    titan_assert(options->members > 1 && options->rank >= 0 && options->rank < options->members);
    titan_status status = open_member(&m, board, n, err);
    for (int i = 0; status == TITAN_OK && i < n; i++)
        if (is_ours(&m, &board->rows[i]))
            status = take_row(&m, &board->rows[i], err);
    comm_shm.close(m.comm);
    if (m.stream)
        m.device.ops->stream_close(m.stream);
    if (m.pool)
        m.device.ops->release(m.device.dev, m.pool);
    if (m.device.dev)
        device_close(&m.device);
    return status;
}
