/* SPDX-License-Identifier: Apache-2.0 */
/* replica.c - see replica.h.
 *
 * STATE/ha has this member's id, libraft's files in log/, and "begun" once the member belongs to a cluster. Frames
 * between members: a byte that names the kind, then a member's own message (member.h), or numbers, little-endian.
 *
 * First start: every member waits until it has reached all others. If none has begun, the one with a job store (without
 * any, the first by name) begins the log, and adds the others. A member that reaches one that has begun joins it. */
#include "daemon/ha/replica.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/slowest.h"
#include "daemon/ha/member.h"
#include "daemon/ha/transport.h"
#include "state/db.h"

enum {
    LEASE_PART = 80, /* percent of election_ms */
    LOOK_MS = 100,   /* interval of looks at the cluster */
};

enum frame_kind { FRAME_MEMBER = 1, FRAME_STATUS };
/* Kind, flags, and the last committed entry that the receiver has confirmed to this leader. */
enum { STATUS_BYTES = 10, STATUS_BEGUN = 1, STATUS_STORE = 2 };

struct peer {
    bool heard; /* its status has come since it was reached */
    uint8_t flags;
    uint64_t confirmed; /* by this member to it, when it leads */
    uint64_t since_ms;  /* when it was reached, in the loop's time */
};

struct replica {
    struct replica_options options;
    struct ha_members members;
    char state_dir[PATH_MAX], dir[PATH_MAX + 8], log_dir[PATH_MAX + 16], listen[HA_ADDRESS_MAX];
    struct rpc_tls tls;
    struct log log;
    int self;
    uint64_t id;
    bool begun, begins, started, ended, has_store, changes, complete;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool is_open;            /* guarded by lock: the thread has tried to open all parts */
    struct titan_error why;  /* guarded by lock: why a part did not open */
    struct replica_view now; /* guarded by lock */
    /* Used by the thread alone, but for `wake`. */
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t run_timer, look_timer;
    struct transport *transport;
    struct raft_io io;
    struct member *member;
    struct peer peers[HA_MEMBERS_MAX];
    struct raft_change change; /* in flight while `changes` */
    atomic_bool stop, leads;
    atomic_int hand_over; /* the position of the member, -1: any, NOBODY: no request */
};

enum { NOBODY = -2 };

static int64_t boot_ns(void *data)
{
    struct timespec t;
    (void)data;
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

static bool there(const struct replica *r, const char *name)
{
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof(path), "%s/%s", r->dir, name);
    return access(path, F_OK) == 0;
}

static titan_status mark(const struct replica *r, const char *name, const char *text, struct titan_error *err)
{
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof(path), "%s/%s", r->dir, name);
    return file_replace(path, text, strlen(text), err);
}

/* Makes the folder if there is none, and reads or draws this member's id. */
static titan_status folder_open(struct replica *r, struct titan_error *err)
{
    char text[32], path[PATH_MAX + 32];
    struct buf b = BUF_INIT;
    (void)snprintf(r->dir, sizeof(r->dir), "%s/ha", r->state_dir);
    (void)snprintf(r->log_dir, sizeof(r->log_dir), "%s/log", r->dir);
    if ((mkdir(r->dir, 0700) != 0 && errno != EEXIST) || (mkdir(r->log_dir, 0700) != 0 && errno != EEXIST))
        return titan_fail_errno(err, "ha: '%s'", r->dir);
    (void)snprintf(path, sizeof(path), "%s/id", r->dir);
    r->begun = there(r, "begun");
    r->begins = there(r, "begins");
    if (access(path, F_OK) != 0) {
        if (r->begun)
            return titan_fail(err, TITAN_ECORRUPT, "ha: '%s' is missing: remove the folder to join anew", path);
        while (r->id == 0)
            if (getrandom(&r->id, sizeof(r->id), 0) == (ssize_t)sizeof(r->id))
                r->id >>= 1;
        (void)snprintf(text, sizeof(text), "%016" PRIx64 "\n", r->id);
        return mark(r, "id", text, err);
    }
    const titan_status status = file_read(path, sizeof(text), &b, err);
    char *end = b.data;
    r->id = b.data ? strtoull(b.data, &end, 16) : 0;
    const bool good = b.len == 17 && end == b.data + 16 && r->id > 0 && r->id <= INT64_MAX;
    buf_free(&b);
    TRY(status);
    return good ? TITAN_OK
                : titan_fail(err, TITAN_ECORRUPT, "ha: '%s' is damaged: remove the folder to join anew", path);
}

/* The store's id; 0: there is no store yet. */
static uint64_t store_of(const struct replica *r)
{
    char path[PATH_MAX + 32];
    struct db *db = NULL;
    int64_t id = 0;
    (void)snprintf(path, sizeof(path), "%s/titan.db", r->state_dir);
    if (access(path, F_OK) != 0 || db_open(path, DB_PROBE, false, &db, NULL) != TITAN_OK)
        return 0;
    if (db_int(db, &id, NULL, "SELECT value FROM meta WHERE key = 'store_id'", "") != TITAN_OK)
        id = 0;
    db_close(db);
    return (uint64_t)id;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

/* libraft keeps what a server has confirmed to this leader while the server is away. */
static void send_status(struct replica *r, int to)
{
    uint8_t bytes[STATUS_BYTES] = {FRAME_STATUS};
    struct raft *raft = r->started && !r->ended ? member_raft(r->member) : NULL;
    uint64_t confirmed = 0;
    for (unsigned i = 0; raft && raft_state(raft) == RAFT_LEADER && i < raft->configuration.n; i++)
        if (raft->configuration.servers[i].id == transport_id(r->transport, to))
            confirmed = htole64(MIN(libraft_confirmed(raft, i), raft->commit_index));
    bytes[1] = (uint8_t)((r->begun ? STATUS_BEGUN : 0) | (r->has_store ? STATUS_STORE : 0));
    memcpy(bytes + 2, &confirmed, sizeof(confirmed));
    transport_send(r->transport, to, bytes, sizeof(bytes));
}

static void on_member_send(void *data, uint64_t to, const uint8_t *bytes, size_t len)
{
    struct replica *r = data;
    uint8_t frame[1 + MEMBER_MESSAGE_MAX] = {FRAME_MEMBER};
    titan_assert(len <= MEMBER_MESSAGE_MAX);
    memcpy(frame + 1, bytes, len);
    for (int i = 0; i < r->members.n; i++)
        if (i != r->self && transport_id(r->transport, i) == to)
            transport_send(r->transport, i, frame, 1 + len);
}

static void end(struct replica *r, const struct titan_error *err);

/* A committed entry is never taken back, so a disk without it is an older copy, or was repaired. */
static void check_log(struct replica *r, const struct peer *p)
{
    struct titan_error err = {0};
    if (!r->started || r->ended || raft_last_index(member_raft(r->member)) >= p->confirmed)
        return;
    (void)titan_fail(&err, TITAN_ECONFLICT, "this member's log is older than what it has confirmed");
    end(r, &err);
}

static void on_frame(void *data, int from, const uint8_t *bytes, size_t len)
{
    struct replica *r = data;
    struct peer *p = &r->peers[from];
    if (bytes[0] == FRAME_MEMBER && r->started && !r->ended) {
        member_receive(r->member, transport_id(r->transport, from), bytes + 1, len - 1);
    } else if (bytes[0] == FRAME_STATUS && len == STATUS_BYTES) {
        memcpy(&p->confirmed, bytes + 2, sizeof(p->confirmed));
        p->confirmed = le64toh(p->confirmed);
        p->heard = true;
        p->flags = bytes[1];
        check_log(r, p);
    }
}

static void on_reached(void *data, int member, bool reached)
{
    struct replica *r = data;
    r->peers[member] = (struct peer){.since_ms = uv_now(&r->loop)};
    tlog_info(&r->log, reached ? "a member is reached" : "a member is not reached any more", "peer=%s",
              r->members.at[member].name);
    if (reached)
        send_status(r, member);
}

/* --- the member --------------------------------------------------------------------------------------------------- */

static void end(struct replica *r, const struct titan_error *err)
{
    if (r->ended)
        return;
    r->ended = true;
    if (err->status == TITAN_ECONFLICT || err->status == TITAN_ECORRUPT) {
        tlog_error(&r->log, "this member joins anew", "reason=\"%s\"", err->msg);
        (void)mark(r, "join-anew", "", NULL); /* the next start moves it aside, when nothing is open */
    }
    r->options.over(r->options.data, err);
}

static void on_over(void *data, const struct titan_error *err)
{
    end(data, err);
}

static void on_leads(void *data, uint64_t term, uint64_t number)
{
    struct replica *r = data;
    tlog_info(&r->log, "leads", "term=%" PRIu64 " number=%" PRIu64, term, number);
    atomic_store(&r->leads, true);
    r->options.leads(r->options.data, term);
}

static void on_member_wake(void *data)
{
    struct replica *r = data;
    (void)uv_async_send(&r->wake);
}

static void start(struct replica *r, bool bootstrap)
{
    struct titan_error err = {0};
    titan_status status = TITAN_OK;
    r->started = true;
    if (bootstrap) {
        status = mark(r, "begins", "", &err);
        if (status == TITAN_OK)
            status = member_bootstrap(r->member, &err);
        if (r->begins)
            status = TITAN_OK; /* an earlier start may have done so, and then ended */
        if (status == TITAN_OK)
            status = mark(r, "begun", "", &err);
        r->begun = status == TITAN_OK;
        if (r->begun)
            tlog_info(&r->log, "the cluster begins with this member", "store=%d", r->has_store);
    }
    if (status == TITAN_OK)
        status = member_start(r->member, &err);
    if (status != TITAN_OK)
        end(r, &err);
    for (int i = 0; i < r->members.n; i++)
        check_log(r, &r->peers[i]);
}

/* Before the start: may the log begin, or has it elsewhere? */
static void look_before_start(struct replica *r)
{
    int heard = 0, stores = r->has_store, first = r->has_store ? r->self : -1;
    bool begun = false;
    for (int i = 0; i < r->members.n; i++) {
        const struct peer *p = &r->peers[i];
        if (i == r->self || !p->heard || !transport_reached(r->transport, i))
            continue;
        heard++;
        begun = begun || (p->flags & STATUS_BEGUN);
        stores += (p->flags & STATUS_STORE) != 0;
        first = (p->flags & STATUS_STORE) ? i : first;
    }
    if (r->begun || begun) {
        start(r, false);
    } else if (r->begins && heard > 0) { /* the log has begun here, and this member had ended before it knew */
        start(r, true);
    } else if (heard == r->members.n - 1 && stores > 1) {
        static const struct titan_error two = {.status = TITAN_EINVAL,
                                               .msg = "several members have a job store: keep one, and give the others "
                                                      "empty state directories"};
        end(r, &two);
    } else if (heard == r->members.n - 1) {
        start(r, (first < 0 ? 0 : first) == r->self);
    }
}

static void on_changed(struct raft_change *request, int status)
{
    struct replica *r = request->data;
    r->changes = false;
    if (status != 0)
        tlog_info(&r->log, "a change of the members did not happen", "reason=\"%s\"", raft_strerror(status));
}

static const struct raft_server *server_at(const struct raft *raft, const char *address)
{
    for (unsigned i = 0; i < raft->configuration.n; i++)
        if (strcmp(raft->configuration.servers[i].address, address) == 0)
            return &raft->configuration.servers[i];
    return NULL;
}

/* Brings the log's configuration to the list of members, one change at a time. */
static void look_as_leader(struct replica *r)
{
    struct raft *raft = member_raft(r->member);
    if (r->changes || !member_based(r->member))
        return;
    int rc = 0;
    r->change.data = r;
    for (unsigned i = 0; i < raft->configuration.n && !r->changes; i++) {
        const struct raft_server *s = &raft->configuration.servers[i];
        int member = -1;
        for (int k = 0; k < r->members.n; k++)
            if (strcmp(r->members.at[k].address, s->address) == 0)
                member = k;
        if (s->id == r->id)
            continue;
        const uint64_t id =
            member >= 0 && transport_reached(r->transport, member) ? transport_id(r->transport, member) : 0;
        if (member < 0 || (id && id != s->id)) { /* not listed, or its disk was replaced */
            tlog_info(&r->log, "a member is removed", "peer=%s id=%016llx", s->address, s->id);
            r->changes = (rc = raft_remove(raft, &r->change, s->id, on_changed)) == 0;
        } else if (id && s->role == RAFT_SPARE) {
            r->changes = (rc = raft_assign(raft, &r->change, s->id, RAFT_STANDBY, on_changed)) == 0;
        } else if (id && s->role == RAFT_STANDBY) {
            r->changes = (rc = raft_assign(raft, &r->change, s->id, RAFT_VOTER, on_changed)) == 0;
            tlog_info(&r->log, "a member votes as soon as it has all entries", "peer=%s", r->members.at[member].name);
        }
    }
    for (int i = 0; i < r->members.n && !r->changes && rc == 0; i++) {
        const uint64_t id = i != r->self && transport_reached(r->transport, i) ? transport_id(r->transport, i) : 0;
        if (!id || server_at(raft, r->members.at[i].address))
            continue;
        r->changes = (rc = raft_add(raft, &r->change, id, r->members.at[i].address, on_changed)) == 0;
        tlog_info(&r->log, "a member is added", "peer=%s", r->members.at[i].name);
    }
    int voters = 0;
    for (unsigned i = 0; i < raft->configuration.n; i++)
        voters += raft->configuration.servers[i].role == RAFT_VOTER;
    const bool complete = voters == r->members.n && !r->changes;
    if (complete && !r->complete)
        tlog_info(&r->log, "every member votes", "members=%d", voters);
    r->complete = complete;
}

static void view_take(struct replica *r)
{
    struct replica_view v = {.self = r->self, .leader = -1, .refused = transport_counters(r->transport).refused};
    struct raft *raft = r->started && !r->ended ? member_raft(r->member) : NULL;
    if (raft) {
        raft_id leader = 0;
        const char *address = NULL;
        raft_leader(raft, &leader, &address);
        v.leads = raft_state(raft) == RAFT_LEADER && member_may_answer(r->member);
        v.last = raft_last_index(raft);
        v.number = member_number(r->member);
        for (int i = 0; i < r->members.n; i++)
            v.leader = address && strcmp(address, r->members.at[i].address) == 0 ? i : v.leader;
    }
    for (int i = 0; i < r->members.n; i++) {
        v.members[i].reached = i == r->self || transport_reached(r->transport, i);
        for (unsigned k = 0; raft && k < raft->configuration.n; k++) {
            const struct raft_server *s = &raft->configuration.servers[k];
            if (strcmp(s->address, r->members.at[i].address) != 0)
                continue;
            /* A member with another disk does not vote yet, though the one that it had still counts. */
            const bool other = i != r->self && v.members[i].reached && transport_id(r->transport, i) != s->id;
            v.members[i].role = other                     ? REPLICA_JOINING
                                : s->role == RAFT_VOTER   ? REPLICA_VOTER
                                : s->role == RAFT_STANDBY ? REPLICA_STAND_BY
                                                          : REPLICA_JOINING;
            const uint64_t has = i == r->self                      ? v.last
                                 : raft_state(raft) == RAFT_LEADER ? libraft_confirmed(raft, k)
                                                                   : v.last;
            v.members[i].lag = v.last - MIN(has, v.last);
        }
    }
    (void)pthread_mutex_lock(&r->lock);
    r->now = v;
    (void)pthread_mutex_unlock(&r->lock);
}

static void on_look(uv_timer_t *timer)
{
    HANDLER("ha.look");
    struct replica *r = timer->data;
    struct titan_error err = {0};
    for (int i = 0; i < r->members.n; i++)
        if (i != r->self && transport_reached(r->transport, i))
            send_status(r, i);
    if (!r->started && !r->ended)
        look_before_start(r);
    if (r->started && !r->ended) {
        struct raft *raft = member_raft(r->member);
        if (!r->begun && raft->configuration.n > 0 && mark(r, "begun", "", &err) == TITAN_OK)
            r->begun = true;
        if (raft_state(raft) == RAFT_LEADER)
            look_as_leader(r);
    }
    view_take(r);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void on_transport_closed(void *data)
{
    struct replica *r = data;
    uv_close((uv_handle_t *)&r->wake, NULL);
    uv_close((uv_handle_t *)&r->run_timer, NULL);
    uv_close((uv_handle_t *)&r->look_timer, NULL);
}

static void on_member_closed(void *data)
{
    struct replica *r = data;
    raft_uv_close(&r->io);
    transport_close(TAKE(r->transport), on_transport_closed, r);
}

/* The id of the next leader; 0: libraft chooses. Of the voters with all entries, the one that is reached the longest: a
 * member that has just started may not ask for votes yet. */
static uint64_t next_leader(const struct replica *r, int to)
{
    const struct raft *raft = member_raft(r->member);
    uint64_t best = 0, since_ms = UINT64_MAX;
    for (unsigned i = 0; raft_state(member_raft(r->member)) == RAFT_LEADER && i < raft->configuration.n; i++) {
        const struct raft_server *s = &raft->configuration.servers[i];
        for (int k = 0; k < r->members.n; k++) {
            if (k == r->self || s->role != RAFT_VOTER || strcmp(s->address, r->members.at[k].address) != 0 ||
                !transport_reached(r->transport, k))
                continue;
            if (k == to)
                return s->id;
            if (libraft_confirmed(raft, i) >= raft->commit_index && r->peers[k].since_ms < since_ms) {
                best = s->id;
                since_ms = r->peers[k].since_ms;
            }
        }
    }
    return best;
}

static void on_run(struct replica *r)
{
    if (atomic_exchange(&r->stop, false)) {
        r->started = false;
        r->ended = true;
        (void)uv_timer_stop(&r->run_timer);
        (void)uv_timer_stop(&r->look_timer);
        member_close(TAKE(r->member), on_member_closed, r);
        return;
    }
    if (!r->started || r->ended || !r->member)
        return;
    member_run(r->member);
    const int to = atomic_exchange(&r->hand_over, NOBODY);
    struct titan_error err = {0};
    if (to != NOBODY && !r->ended && member_hand_over(r->member, next_leader(r, to), &err) != TITAN_OK)
        end(r, &err); /* nothing is written any more, so another member will lead */
}

static void on_wake(uv_async_t *wake)
{
    HANDLER("ha.wake");
    on_run(wake->data);
}

static void on_run_timer(uv_timer_t *timer)
{
    HANDLER("ha.run");
    on_run(timer->data);
}

static titan_status open_parts(struct replica *r, struct titan_error *err)
{
    const unsigned lease_ms = r->options.election_ms * LEASE_PART / 100;
    const uint64_t store = store_of(r);
    r->has_store = store != 0;
    const struct transport_options transport = {.members = &r->members,
                                                .name = r->members.at[r->self].name,
                                                .listen = r->listen,
                                                .tls = r->options.tls,
                                                .id = r->id,
                                                .store_id = store,
                                                .frame = on_frame,
                                                .reached = on_reached,
                                                .data = r};
    TRY(transport_open(&r->loop, &transport, &r->transport, err));
    const int rc = raft_uv_init(&r->io, &r->loop, r->log_dir, transport_raft(r->transport));
    if (rc != 0)
        return titan_fail(err, TITAN_EIO, "ha: libraft does not use '%s': %s", r->log_dir, raft_strerror(rc));
    r->io.version = 2; /* 0.15 says 1 and has version 2's function */
    raft_uv_set_connect_retry_delay(&r->io, LOOK_MS);
    const struct member_options member = {.dir = r->state_dir,
                                          .id = r->id,
                                          .address = r->members.at[r->self].address,
                                          .election_ms = r->options.election_ms,
                                          .lease_ms = lease_ms,
                                          .now_ns = boot_ns,
                                          .send = on_member_send,
                                          .wake = on_member_wake,
                                          .leads = on_leads,
                                          .over = on_over,
                                          .data = r};
    const titan_status status = member_open(&r->io, &member, &r->member, err);
    if (status != TITAN_OK)
        raft_uv_close(&r->io);
    else
        (void)uv_timer_start(&r->run_timer, on_run_timer, 0, MAX(lease_ms / 4, 5u));
    (void)uv_timer_start(&r->look_timer, on_look, 0, LOOK_MS);
    return status;
}

static void *replica_thread(void *arg)
{
    struct replica *r = arg;
    struct titan_error err = {0};
    (void)uv_loop_init(&r->loop);
    (void)uv_async_init(&r->loop, &r->wake, on_wake);
    (void)uv_timer_init(&r->loop, &r->run_timer);
    (void)uv_timer_init(&r->loop, &r->look_timer);
    r->wake.data = r->run_timer.data = r->look_timer.data = r;
    if (open_parts(r, &err) != TITAN_OK) {
        (void)uv_timer_stop(&r->look_timer);
        if (r->transport)
            transport_close(TAKE(r->transport), on_transport_closed, r);
        else
            on_transport_closed(r);
    }
    (void)pthread_mutex_lock(&r->lock);
    r->why = err;
    r->is_open = true;
    (void)pthread_cond_signal(&r->opened);
    (void)pthread_mutex_unlock(&r->lock);
    (void)uv_run(&r->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&r->loop);
    return NULL;
}

/* --- for the owner ------------------------------------------------------------------------------------------------ */

static void replica_free(struct replica *r)
{
    (void)pthread_cond_destroy(&r->opened);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

/* An older start has found that this disk does not fit the cluster's log: it begins empty, the old files stay. */
static titan_status join_anew(struct replica *r, struct titan_error *err)
{
    char aside[PATH_MAX + 64], from[PATH_MAX + 64], to[PATH_MAX + 128];
    static const char *const files[] = {"titan.db", "titan.db-wal"};
    (void)snprintf(r->dir, sizeof(r->dir), "%s/ha", r->state_dir);
    if (!there(r, "join-anew"))
        return TITAN_OK;
    (void)snprintf(aside, sizeof(aside), "%s.old-%lld", r->dir, (long long)time(NULL));
    if (rename(r->dir, aside) != 0)
        return titan_fail_errno(err, "ha: '%s'", r->dir);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        (void)snprintf(from, sizeof(from), "%s/%s", r->state_dir, files[i]);
        (void)snprintf(to, sizeof(to), "%s/%s", aside, files[i]);
        if (rename(from, to) != 0 && errno != ENOENT)
            return titan_fail_errno(err, "ha: '%s'", from);
    }
    tlog_warn(&r->log, "this member joins with an empty disk", "old=\"%s\"", aside);
    return TITAN_OK;
}

static titan_status replica_open(const struct replica_options *options, struct replica **ret, struct titan_error *err)
{
    struct replica *r = calloc(1, sizeof(*r));
    if (!r)
        return titan_fail(err, TITAN_ENOMEM, "ha: no memory");
    r->options = *options;
    r->members = *options->members;
    r->self = ha_members_find(&r->members, options->name);
    titan_assert(r->self >= 0);
    (void)snprintf(r->state_dir, sizeof(r->state_dir), "%s", options->state_dir);
    (void)snprintf(r->listen, sizeof(r->listen), "%s", options->listen);
    if (options->tls) {
        r->tls = *options->tls;
        r->options.tls = &r->tls;
    }
    r->now = (struct replica_view){.self = r->self, .leader = -1};
    log_init(&r->log, "ha", "member=%s", r->members.at[r->self].name);
    atomic_store(&r->hand_over, NOBODY);
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->opened, NULL);
    titan_status status = join_anew(r, err);
    if (status == TITAN_OK)
        status = folder_open(r, err);
    if (status != TITAN_OK) {
        replica_free(r);
        return status;
    }
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    const int rc = pthread_create(&r->thread, NULL, replica_thread, r);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        replica_free(r);
        return titan_fail(err, titan_status_from_errno(rc), "ha: no thread: %s", strerror(rc));
    }
    (void)pthread_mutex_lock(&r->lock);
    while (!r->is_open)
        (void)pthread_cond_wait(&r->opened, &r->lock);
    if (err)
        *err = r->why;
    status = r->why.status;
    (void)pthread_mutex_unlock(&r->lock);
    if (status != TITAN_OK) {
        (void)pthread_join(r->thread, NULL);
        replica_free(r);
        return status;
    }
    *ret = r;
    return TITAN_OK;
}

static void replica_close(struct replica *r)
{
    atomic_store(&r->stop, true);
    (void)uv_async_send(&r->wake);
    (void)pthread_join(r->thread, NULL);
    replica_free(r);
}

static bool replica_may_answer(const struct replica *r)
{
    return atomic_load(&r->leads) && member_may_answer(r->member);
}

static void replica_view(struct replica *r, struct replica_view *ret)
{
    (void)pthread_mutex_lock(&r->lock);
    *ret = r->now;
    (void)pthread_mutex_unlock(&r->lock);
}

static titan_status replica_append(void *data, uint64_t number, const void *bytes, size_t len, struct titan_error *err)
{
    const struct replica *r = data;
    return member_append(r->member, number, bytes, len, err);
}

static void replica_hand_over(struct replica *r, int to)
{
    atomic_store(&r->hand_over, to);
    (void)uv_async_send(&r->wake);
}

const struct replica_plugin *titan_replica_plugin(void)
{
    static const struct replica_plugin plugin = {.abi = REPLICA_ABI,
                                                 .open = replica_open,
                                                 .close = replica_close,
                                                 .may_answer = replica_may_answer,
                                                 .view = replica_view,
                                                 .append = replica_append,
                                                 .hand_over = replica_hand_over};
    return &plugin;
}
