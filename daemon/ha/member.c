/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ha/member.h"

#include <endian.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "state/changeset.h"
#include "state/store.h"

enum {
    ASKS = 16,        /* newest requests for promises whose answers count */
    VOTERS = 16,      /* most members */
    TRAILING = 256,   /* entries kept after a snapshot, for members that are a little behind */
    THRESHOLD = 1024, /* entries between snapshots */
    MARGIN = 10,      /* of the lease, one part of so many: for clocks that run apart */
    ASKS_PER_LEASE = 4,
};

enum message { MESSAGE_ASK = 1, MESSAGE_PROMISE, MESSAGE_RELEASE };
enum { MESSAGE_BYTES = 17 }; /* kind, term, sequence */
_Static_assert((int)MESSAGE_BYTES <= (int)MEMBER_MESSAGE_MAX, "a message fits");

/* Of an entry of the log: the record's length, then the record, then zeros to a multiple of 8 bytes. Of a snapshot: the
 * image's and the record's length, the image, and the record that the leader's file may have lacked. */
#define ALIGNED(n) (((n) + 7) & ~(size_t)7)

struct wait {
    struct wait *next;
    struct member *m;
    uint64_t number;
    const void *bytes;
    size_t len;
    bool finished;
    titan_status status;
};

struct proposal {
    struct raft_apply apply; /* must be first */
    void (*done)(void *data, titan_status status);
    void *data;
};

struct member {
    struct member_options options;
    char path[PATH_MAX];
    struct raft raft;
    struct raft_fsm fsm;
    struct raft_io *io;
    raft_io_tick_cb raft_tick;
    raft_io_recv_cb raft_recv;
    int (*io_start)(struct raft_io *io, unsigned msecs, raft_io_tick_cb tick, raft_io_recv_cb recv);
    int (*io_send)(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message,
                   raft_io_send_cb cb);
    int (*io_put)(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                  const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb);
    struct raft_io_snapshot_put put, *put_req; /* libraft makes one snapshot at a time */
    raft_io_snapshot_put_cb put_done;
    void (*closed)(void *data);
    void *closed_data;

    struct db *db; /* while the member follows */
    uint64_t number;
    bool based, over;
    struct titan_error why; /* of a snapshot that could not be installed */
    struct raft_barrier barrier;
    bool waits_for_barrier, leading;
    uint64_t lead_term; /* libraft's, while leading */
    struct buf newest;  /* leading: the newest committed record, which titan.db may not hold yet */
    struct buf taken;   /* `newest` at the snapshot that is being made */
    struct raft_transfer transfer;
    bool transferred;

    int64_t promised_ns, quiet_ns; /* no votes before: a promise; promises that an earlier process may have made */
    bool released;
    uint64_t sequence;
    int64_t sent_ns[ASKS];
    struct {
        uint64_t id, answered; /* the newest request that this member has answered */
    } others[VOTERS];
    _Atomic int64_t lease_ns; /* end of the lease; 0 = none */

    pthread_mutex_t lock; /* guards the following fields */
    pthread_cond_t finished;
    struct wait *waits, **tail;
    bool closing;
};

static int64_t now_ns(const struct member *m)
{
    return m->options.now_ns(m->options.data);
}

static int64_t lease_length(const struct member *m)
{
    return (int64_t)m->options.lease_ms * 1000000;
}

static void finish(struct wait *w, titan_status status)
{
    struct member *m = w->m;
    pthread_mutex_lock(&m->lock);
    w->status = status;
    w->finished = true;
    pthread_cond_broadcast(&m->finished);
    pthread_mutex_unlock(&m->lock);
}

static struct wait *take_waits(struct member *m, bool closing)
{
    pthread_mutex_lock(&m->lock);
    struct wait *list = m->waits;
    m->waits = NULL;
    m->tail = &m->waits;
    m->closing = m->closing || closing;
    pthread_mutex_unlock(&m->lock);
    return list;
}

/* Nothing of this member counts from now on. */
static void stop(struct member *m)
{
    m->over = true;
    atomic_store(&m->lease_ns, 0);
    struct wait *next = NULL;
    for (struct wait *w = take_waits(m, true); w; w = next) {
        next = w->next;
        finish(w, TITAN_ECANCELLED);
    }
}

static void end(struct member *m, const struct titan_error *err)
{
    if (m->over)
        return;
    stop(m);
    m->options.over(m->options.data, err);
}

/* --- libraft's state machine: titan.db ---------------------------------------------------------------------------- */

static int on_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
    struct member *m = fsm->data;
    struct titan_error err = {0};
    uint64_t len = 0;
    *result = NULL;
    if (m->over)
        return RAFT_SHUTDOWN;
    if (buf->len >= sizeof(len))
        memcpy(&len, buf->base, sizeof(len));
    const char *record = (const char *)buf->base + sizeof(len);
    titan_status status = buf->len >= sizeof(len) && len <= buf->len - sizeof(len)
                              ? TITAN_OK
                              : titan_fail(&err, TITAN_ECORRUPT, "an entry of %zu bytes is no record", buf->len);
    if (status == TITAN_OK && m->leading) { /* the store's writer commits it when member_append() has returned */
        buf_clear(&m->newest);
        status = buf_append(&m->newest, record, len);
        m->number = changeset_record_number(record, len);
    } else if (status == TITAN_OK) {
        status = changeset_apply(m->db, record, len, &err);
        if (status == TITAN_OK)
            status = changeset_number(m->db, &m->number, &err);
    }
    if (status == TITAN_OK)
        return 0;
    if (err.status == TITAN_OK)
        (void)titan_fail(&err, status, "out of memory for a record");
    end(m, &err);
    return RAFT_IOERR;
}

static int on_snapshot(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    struct member *m = fsm->data;
    *bufs = NULL;
    *n_bufs = 0;
    buf_clear(&m->taken);
    if (m->leading && m->newest.len && buf_append(&m->taken, m->newest.data, m->newest.len) != TITAN_OK)
        return RAFT_NOMEM;
    return m->over ? RAFT_BUSY : 0;
}

/* On a thread of libraft's I/O. The store's writer commits one record after the other, so the image lacks no record but
 * the newest one. It may hold later records; a follower skips these. */
static int on_snapshot_async(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    struct member *m = fsm->data;
    _cleanup_(buf_free) struct buf image = BUF_INIT;
    if (changeset_image(m->path, &image, NULL) != TITAN_OK)
        return RAFT_IOERR;
    const uint64_t lens[] = {image.len, m->taken.len};
    const size_t len = ALIGNED(sizeof(lens) + image.len + m->taken.len);
    *bufs = raft_malloc(sizeof(**bufs));
    char *bytes = raft_calloc(1, len);
    if (!*bufs || !bytes) {
        raft_free(*bufs);
        raft_free(bytes);
        *bufs = NULL;
        return RAFT_NOMEM;
    }
    memcpy(bytes, lens, sizeof(lens));
    memcpy(bytes + sizeof(lens), image.data, image.len);
    if (m->taken.len)
        memcpy(bytes + sizeof(lens) + image.len, m->taken.data, m->taken.len);
    (*bufs)[0] = (struct raft_buffer){bytes, len};
    *n_bufs = 1;
    return 0;
}

static int on_snapshot_finalize(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    (void)fsm;
    for (unsigned i = 0; *bufs && i < *n_bufs; i++)
        raft_free((*bufs)[i].base);
    raft_free(*bufs);
    *bufs = NULL;
    *n_bufs = 0;
    return 0;
}

static titan_status install(struct member *m, const struct raft_buffer *buf, struct titan_error *err)
{
    uint64_t lens[2] = {0};
    if (buf->len >= sizeof(lens))
        memcpy(lens, buf->base, sizeof(lens));
    const char *image = (const char *)buf->base + sizeof(lens);
    if (buf->len < sizeof(lens) || lens[0] > buf->len - sizeof(lens) || lens[1] > buf->len - sizeof(lens) - lens[0])
        return titan_fail(err, TITAN_ECORRUPT, "a snapshot of %zu bytes is none", buf->len);
    TRY(changeset_install(m->db, image, lens[0], err));
    if (lens[1])
        TRY(changeset_apply(m->db, image + lens[0], lens[1], err));
    return changeset_number(m->db, &m->number, err);
}

static int on_restore(struct raft_fsm *fsm, struct raft_buffer *buf)
{
    struct member *m = fsm->data;
    if (m->over || !m->db)
        return RAFT_SHUTDOWN;
    if (install(m, buf, &m->why) != TITAN_OK) {
        end(m, &m->why);
        return RAFT_IOERR;
    }
    m->based = true;
    raft_free(buf->base);
    return 0;
}

/* --- the lease ---------------------------------------------------------------------------------------------------- */

static void send_message(struct member *m, uint64_t to, enum message kind, uint64_t term, uint64_t sequence)
{
    uint8_t bytes[MESSAGE_BYTES] = {(uint8_t)kind};
    const uint64_t words[] = {htole64(term), htole64(sequence)};
    memcpy(bytes + 1, words, sizeof(words));
    m->options.send(m->options.data, to, bytes, sizeof(bytes));
}

static void send_to_others(struct member *m, enum message kind)
{
    const struct raft_configuration *c = &m->raft.configuration;
    for (unsigned i = 0; i < c->n; i++)
        if (c->servers[i].id != m->options.id && c->servers[i].role == RAFT_VOTER)
            send_message(m, c->servers[i].id, kind, m->lead_term, m->sequence);
}

static uint64_t answered(const struct member *m, uint64_t id)
{
    for (size_t i = 0; i < VOTERS; i++)
        if (m->others[i].id == id)
            return m->others[i].answered;
    return 0;
}

/* The lease counts from the sending of the newest request that a majority, this member included, has answered. */
static void renew(struct member *m)
{
    const struct raft_configuration *c = &m->raft.configuration;
    unsigned voters = 0;
    for (unsigned i = 0; i < c->n; i++)
        voters += c->servers[i].role == RAFT_VOTER;
    for (uint64_t s = m->sequence; s > 0 && s + ASKS > m->sequence; s--) {
        unsigned agree = 0;
        for (unsigned i = 0; i < c->n; i++)
            agree += c->servers[i].role == RAFT_VOTER &&
                     (c->servers[i].id == m->options.id || answered(m, c->servers[i].id) >= s);
        if (agree <= voters / 2)
            continue;
        const int64_t until = m->sent_ns[s % ASKS] + lease_length(m) - lease_length(m) / MARGIN;
        if (until > atomic_load(&m->lease_ns))
            atomic_store(&m->lease_ns, until);
        return;
    }
}

static void ask(struct member *m)
{
    const int64_t now = now_ns(m);
    if (m->sequence && now - m->sent_ns[m->sequence % ASKS] < lease_length(m) / ASKS_PER_LEASE)
        return;
    m->sequence++;
    m->sent_ns[m->sequence % ASKS] = now;
    send_to_others(m, MESSAGE_ASK);
    renew(m);
}

void member_receive(struct member *m, uint64_t from, const uint8_t *bytes, size_t len)
{
    uint64_t words[2];
    raft_id leader = 0;
    const char *address = NULL;
    if (m->over || len != MESSAGE_BYTES)
        return;
    memcpy(words, bytes + 1, sizeof(words));
    const uint64_t term = le64toh(words[0]), sequence = le64toh(words[1]);
    if (term != m->raft.current_term)
        return;
    raft_leader(&m->raft, &leader, &address);
    const bool follows = raft_state(&m->raft) == RAFT_FOLLOWER && leader == from && from != 0;
    if (bytes[0] == MESSAGE_ASK && follows) {
        m->promised_ns = now_ns(m) + lease_length(m);
        send_message(m, from, MESSAGE_PROMISE, term, sequence);
    } else if (bytes[0] == MESSAGE_RELEASE && follows) {
        m->promised_ns = 0;
    } else if (bytes[0] == MESSAGE_PROMISE && m->leading && term == m->lead_term && sequence <= m->sequence) {
        size_t i = 0;
        while (i + 1 < VOTERS && m->others[i].id != from && m->others[i].id != 0)
            i++;
        if (m->others[i].id != from)
            m->others[i].answered = 0;
        m->others[i].id = from;
        m->others[i].answered = MAX(m->others[i].answered, sequence);
        if (!m->released)
            renew(m);
    }
}

bool member_may_answer(const struct member *m)
{
    const int64_t until = atomic_load(&m->lease_ns);
    return until != 0 && now_ns(m) < until;
}

/* Before io->send: a promise holds back what could elect another leader. Raft always
 * allows the loss of a message.
 *
 * libraft answers a trial vote with the candidate's term instead of its own. A candidate of an old term then never
 * learns the newer one. If its log is longer than that of the other member left, nobody is ever elected. So a refusal
 * gets this member's term; libraft's candidate understands it. */
static int on_send(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message, raft_io_send_cb cb)
{
    const struct raft *raft = io->data;
    struct member *m = raft->data;
    const bool answer = message->type == RAFT_IO_REQUEST_VOTE_RESULT;
    if ((message->type == RAFT_IO_REQUEST_VOTE || (answer && message->request_vote_result.vote_granted)) &&
        now_ns(m) < MAX(m->promised_ns, m->quiet_ns))
        return RAFT_NOCONNECTION;
    if (answer && !message->request_vote_result.vote_granted &&
        message->request_vote_result.term < raft->current_term) {
        struct raft_message refusal = *message;
        refusal.request_vote_result.term = raft->current_term;
        return m->io_send(io, req, &refusal, cb);
    }
    return m->io_send(io, req, message, cb);
}

/* --- leading ------------------------------------------------------------------------------------------------------ */

static void on_barrier(struct raft_barrier *barrier, int status)
{
    struct member *m = barrier->data;
    struct titan_error err = {0};
    int64_t base = 0;
    m->waits_for_barrier = false;
    if (status != 0 || m->over)
        return; /* still a follower */
    if (db_int(m->db, &base, &err, "SELECT value FROM meta WHERE key = 'term_base'", "") != TITAN_OK) {
        end(m, &err);
        return;
    }
    store_close_follower(TAKE(m->db));
    m->leading = true;
    m->lead_term = m->raft.current_term;
    ask(m);
    m->options.leads(m->options.data, (uint64_t)base + m->lead_term, m->number);
}

static void look(struct member *m)
{
    static const struct titan_error lost = {.status = TITAN_OK};
    const bool leader = raft_state(&m->raft) == RAFT_LEADER;
    if (m->over)
        return;
    if (m->leading && (!leader || m->raft.current_term != m->lead_term)) {
        end(m, &lost);
    } else if (leader && !m->leading && !m->waits_for_barrier) {
        m->waits_for_barrier = true;
        m->barrier.data = m;
        if (raft_barrier(&m->raft, &m->barrier, on_barrier) != 0)
            m->waits_for_barrier = false;
    }
}

static void on_tick(struct raft_io *io)
{
    const struct raft *raft = io->data;
    struct member *m = raft->data;
    m->raft_tick(io);
    look(m);
}

static void on_recv(struct raft_io *io, struct raft_message *message)
{
    const struct raft *raft = io->data;
    struct member *m = raft->data;
    m->raft_recv(io, message);
    look(m);
}

static int on_start(struct raft_io *io, unsigned msecs, raft_io_tick_cb tick, raft_io_recv_cb recv)
{
    const struct raft *raft = io->data;
    struct member *m = raft->data;
    m->raft_tick = tick;
    m->raft_recv = recv;
    return m->io_start(io, msecs, on_tick, on_recv);
}

static void on_put_done(struct raft_io_snapshot_put *req, int status)
{
    struct member *m = req->data;
    m->based = m->based || status == 0;
    m->put_done(m->put_req, status);
    if (m->based) {
        raft_set_snapshot_threshold(&m->raft, THRESHOLD);
        raft_set_snapshot_trailing(&m->raft, TRAILING);
    }
}

static int on_put(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                  const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb)
{
    const struct raft *raft = io->data;
    struct member *m = raft->data;
    m->put_done = cb;
    m->put_req = req;
    m->put.data = m;
    return m->io_put(io, trailing, &m->put, snapshot, on_put_done);
}

static void on_applied(struct raft_apply *apply, int status, void *result)
{
    struct proposal *p = (struct proposal *)apply;
    (void)result;
    p->done(p->data, status == 0 ? TITAN_OK : TITAN_ECANCELLED);
    free(p);
}

titan_status member_propose(struct member *m, uint64_t number, const void *bytes, size_t len,
                            void (*done)(void *data, titan_status status), void *data, struct titan_error *err)
{
    const uint64_t length = len;
    if (m->over || !m->leading)
        return titan_fail(err, TITAN_ECANCELLED, "record %llu: this coordinator does not lead",
                          (unsigned long long)number);
    struct raft_buffer buf = {.len = ALIGNED(sizeof(length) + len)};
    struct proposal *p = calloc(1, sizeof(*p));
    buf.base = raft_calloc(1, buf.len);
    int rc = RAFT_NOMEM;
    if (p && buf.base) {
        memcpy(buf.base, &length, sizeof(length));
        memcpy((char *)buf.base + sizeof(length), bytes, len);
        p->done = done;
        p->data = data;
        rc = raft_apply(&m->raft, &p->apply, &buf, 1, on_applied);
    }
    if (rc == 0)
        return TITAN_OK;
    raft_free(buf.base);
    free(p);
    return titan_fail(err, TITAN_ECANCELLED, "record %llu: %s", (unsigned long long)number, raft_strerror(rc));
}

static void on_waited(void *data, titan_status status)
{
    finish(data, status);
}

titan_status member_append(void *data, uint64_t number, const void *bytes, size_t len, struct titan_error *err)
{
    struct member *m = data;
    struct wait w = {.m = m, .number = number, .bytes = bytes, .len = len, .status = TITAN_ECANCELLED};
    pthread_mutex_lock(&m->lock);
    bool closing = m->closing;
    if (!closing) {
        *m->tail = &w;
        m->tail = &w.next;
    }
    pthread_mutex_unlock(&m->lock);
    if (!closing) {
        m->options.wake(m->options.data);
        pthread_mutex_lock(&m->lock);
        while (!w.finished)
            pthread_cond_wait(&m->finished, &m->lock);
        pthread_mutex_unlock(&m->lock);
    }
    return w.status == TITAN_OK
               ? TITAN_OK
               : titan_fail(err, w.status, "record %llu: the leadership is lost", (unsigned long long)number);
}

void member_run(struct member *m)
{
    static const struct titan_error handed = {.status = TITAN_OK};
    struct wait *next = NULL;
    look(m);
    for (struct wait *w = take_waits(m, false); w; w = next) {
        next = w->next;
        if (member_propose(m, w->number, w->bytes, w->len, on_waited, w, NULL) != TITAN_OK)
            finish(w, TITAN_ECANCELLED);
    }
    if (m->over || !m->leading)
        return;
    if (m->transferred)
        end(m, &handed);
    else if (!m->released)
        ask(m);
}

static void on_transferred(struct raft_transfer *transfer)
{
    struct member *m = transfer->data;
    m->transferred = true;
    m->options.wake(m->options.data);
}

titan_status member_hand_over(struct member *m, uint64_t to, struct titan_error *err)
{
    if (m->over || !m->leading)
        return titan_fail(err, TITAN_ECONFLICT, "this coordinator does not lead");
    m->released = true;
    atomic_store(&m->lease_ns, 0);
    send_to_others(m, MESSAGE_RELEASE);
    m->transfer.data = m;
    const int rc = raft_transfer(&m->raft, &m->transfer, to, on_transferred);
    if (rc == 0)
        return TITAN_OK;
    m->transferred = true; /* without its lease a leader is of no use */
    m->options.wake(m->options.data);
    return titan_fail(err, rc == RAFT_NOTFOUND || rc == RAFT_BADID ? TITAN_ENOTFOUND : TITAN_EIO,
                      "the leadership is handed to nobody: %s", raft_strerror(rc));
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

titan_status member_open(struct raft_io *io, const struct member_options *options, struct member **ret,
                         struct titan_error *err)
{
    titan_assert(options->id && options->lease_ms < options->election_ms);
    struct member *m = calloc(1, sizeof(*m));
    if (!m)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    m->options = *options;
    m->io = io;
    m->tail = &m->waits;
    m->quiet_ns = now_ns(m) + lease_length(m);
    titan_status status = snprintf(m->path, sizeof(m->path), "%s/titan.db", options->dir) < (int)sizeof(m->path)
                              ? store_open_follower(options->dir, &m->db, err)
                              : titan_fail(err, TITAN_EINVAL, "state directory name is too long");
    if (status == TITAN_OK)
        status = changeset_number(m->db, &m->number, err);
    m->fsm = (struct raft_fsm){.version = 3,
                               .data = m,
                               .apply = on_apply,
                               .snapshot = on_snapshot,
                               .restore = on_restore,
                               .snapshot_finalize = on_snapshot_finalize,
                               .snapshot_async = on_snapshot_async};
    const int rc = status == TITAN_OK ? raft_init(&m->raft, io, &m->fsm, options->id, options->address) : 0;
    if (rc != 0)
        status = titan_fail(err, TITAN_EIO, "the log of the coordinators: %s", raft_errmsg(&m->raft));
    if (status != TITAN_OK) {
        store_close_follower(m->db);
        free(m);
        return status;
    }
    m->raft.data = m;
    m->io_start = io->start;
    m->io_send = io->send;
    m->io_put = io->snapshot_put;
    io->start = on_start;
    io->send = on_send;
    io->snapshot_put = on_put;
    raft_set_election_timeout(&m->raft, options->election_ms);
    raft_set_heartbeat_timeout(&m->raft, MAX(options->election_ms / 5, 1U));
    raft_set_pre_vote(&m->raft, true);
    /* The first snapshot is taken at once: a new member finds the state at the bootstrap nowhere else. */
    raft_set_snapshot_threshold(&m->raft, 1);
    raft_set_snapshot_trailing(&m->raft, 1);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->finished, NULL);
    *ret = m;
    return TITAN_OK;
}

titan_status member_bootstrap(struct member *m, struct titan_error *err)
{
    struct raft_configuration c;
    TRY(db_run(m->db, err,
               "INSERT INTO meta VALUES ('term_base', coalesce((SELECT value FROM meta WHERE key = 'term'), 0))"
               " ON CONFLICT DO UPDATE SET value = excluded.value",
               ""));
    raft_configuration_init(&c);
    int rc = raft_configuration_add(&c, m->options.id, m->options.address, RAFT_VOTER);
    if (rc == 0)
        rc = raft_bootstrap(&m->raft, &c);
    raft_configuration_close(&c);
    return rc == 0 ? TITAN_OK
                   : titan_fail(err, rc == RAFT_CANTBOOTSTRAP ? TITAN_EEXIST : TITAN_EIO,
                                "the log of the coordinators cannot begin: %s", raft_strerror(rc));
}

titan_status member_start(struct member *m, struct titan_error *err)
{
    const int rc = raft_start(&m->raft);
    if (rc != 0 && m->why.status != TITAN_OK) {
        if (err)
            *err = m->why;
        return m->why.status;
    }
    if (rc != 0)
        return titan_fail(err, rc == RAFT_CORRUPT ? TITAN_ECORRUPT : TITAN_EIO, "the log of the coordinators: %s",
                          raft_errmsg(&m->raft));
    if (m->based) {
        raft_set_snapshot_threshold(&m->raft, THRESHOLD);
        raft_set_snapshot_trailing(&m->raft, TRAILING);
    }
    look(m);
    return TITAN_OK;
}

static void on_closed(struct raft *raft)
{
    struct member *m = raft->data;
    void (*closed)(void *) = m->closed;
    void *data = m->closed_data;
    store_close_follower(m->db);
    buf_free(&m->newest);
    buf_free(&m->taken);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->finished);
    free(m);
    closed(data);
}

void member_close(struct member *m, void (*done)(void *data), void *data)
{
    stop(m);
    m->closed = done;
    m->closed_data = data;
    raft_close(&m->raft, on_closed);
}

bool member_based(const struct member *m)
{
    return m->based;
}

struct raft *member_raft(struct member *m)
{
    return &m->raft;
}

uint64_t member_number(const struct member *m)
{
    return m->number;
}
