/* SPDX-License-Identifier: Apache-2.0 */
/* The API: every method of titan.v1 and the enrolment of nodes, called by admins, operators, users, nodes and strangers
 * of a coordinator with two nodes and jobs of two users.
 *
 * The coordinator is the real one, with its shell, its store's tables and its checks. What is around it is made here
 * and has no thread: the server (calls are structs), the store's writer, the pool for recipes, the clock (mk/fuzz.mk).
 *
 *   - a call that is not answered with OK has changed nothing
 *   - strangers and nodes get nothing; users change no node, token or certificate
 *   - a user cannot end, cancel or alter the job of another one; with private jobs it does not see it either
 *   - a token or certificate that is revoked is good for nothing
 *   - a unary call is answered once, a stream ends once, and what is sent can be packed */
#include "tests/fuzz/message.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/mac.h"
#include "daemon/api/api.h"
#include "daemon/auth/certs.h"
#include "proto/rpc/common.h"
#include "state/event.h"
#include "state/schema.h"
#include "titan/internal/enrol.pb-c.h"

#define WALL_MS INT64_C(1800000000000)
#define BUDGET (1 << 20)
enum { STREAMS = 4, WORKERS = 32, JOBS = 8, ROOM = 40 };

static struct coordinator *c;
static int64_t now_ms;
static bool private_jobs;

int64_t __wrap_clock_mono_ns(void);
int64_t __wrap_clock_mono_ns(void)
{
    return now_ms * 1000000;
}

int64_t __wrap_clock_wall_ms(void);
int64_t __wrap_clock_wall_ms(void)
{
    return WALL_MS + now_ms;
}

/* No user of this machine enters. */
int __wrap_getpwuid_r(uid_t uid, struct passwd *entry, char *memory, size_t size, struct passwd **ret);
int __wrap_getpwuid_r(uid_t uid, struct passwd *entry, char *memory, size_t size, struct passwd **ret)
{
    (void)uid, (void)entry, (void)memory, (void)size;
    *ret = NULL;
    return 0;
}

/* --- the store without its thread (state/store.h) ----------------------------------------------------------------- */

struct store {
    struct db *db, *metrics;
};
struct queued {
    struct queued *next;
    struct db *db;
    store_fn fn;
    store_done done;
    void *arg;
};
static struct store the_store;
static struct queued *queued, **queued_tail = &queued;

static titan_status open_tables(const struct schema *schema, struct db **ret, struct titan_error *err)
{
    TRY(db_open(":memory:", DB_WRITER, false, ret, err));
    return schema_migrate(schema, *ret, err);
}

/* What an input writes is undone behind it. */
titan_status store_open(uv_loop_t *loop, const char *dir, struct store **ret, struct titan_error *err)
{
    (void)loop, (void)dir;
    if (!the_store.db) {
        TRY(open_tables(&schema_store, &the_store.db, err));
        TRY(open_tables(&schema_metrics, &the_store.metrics, err));
    }
    TRY(db_exec(the_store.db, "SAVEPOINT input", err));
    TRY(db_exec(the_store.metrics, "SAVEPOINT input", err));
    *ret = &the_store;
    return TITAN_OK;
}

titan_status store_open_led(uv_loop_t *loop, const char *dir, const struct group_log *log, uint64_t term,
                            struct store **ret, struct titan_error *err)
{
    (void)log;
    (void)term;
    return store_open(loop, dir, ret, err); /* the target has one coordinator */
}

static titan_status write_one(struct db *db, store_fn fn, void *arg, struct titan_error *err)
{
    TRY(db_exec(db, "SAVEPOINT one", err));
    titan_status status = fn(db, arg, err);
    fuzz_assert(db_exec(db, status == TITAN_OK ? "RELEASE one" : "ROLLBACK TO one; RELEASE one", NULL) == TITAN_OK);
    return status;
}

titan_status store_write_now(struct store *s, store_fn fn, void *arg, struct titan_error *err)
{
    return write_one(s->db, fn, arg, err);
}

static void enqueue(struct db *db, store_fn fn, void *arg, store_done done)
{
    struct queued *q = malloc(sizeof(*q));
    fuzz_assert(q);
    *q = (struct queued){.db = db, .fn = fn, .done = done, .arg = arg};
    *queued_tail = q;
    queued_tail = &q->next;
}

void store_write(struct store *s, store_fn fn, void *arg, store_done done)
{
    enqueue(s->db, fn, arg, done);
}

void store_write_metrics(struct store *s, store_fn fn, void *arg, store_done done)
{
    enqueue(s->metrics, fn, arg, done);
}

static bool write_next(void)
{
    struct titan_error err = {0};
    struct queued *q = queued;
    if (!q)
        return false;
    queued = q->next;
    if (!queued)
        queued_tail = &queued;
    (void)!write_one(q->db, q->fn, q->arg, &err);
    q->done(q->arg, &err);
    free(q);
    return true;
}

static bool settle(void);

void store_close(struct store *s, void (*done)(void *), void *data)
{
    while (settle())
        ;
    fuzz_assert(db_exec(s->db, "ROLLBACK TO input; RELEASE input", NULL) == TITAN_OK);
    fuzz_assert(db_exec(s->metrics, "ROLLBACK TO input; RELEASE input", NULL) == TITAN_OK);
    if (done)
        done(data);
}

void store_on_failure(struct store *s, void (*failed)(void *data, const struct titan_error *err), void *data)
{
    (void)s, (void)failed, (void)data;
}

void store_on_commit(struct store *s, void (*committed)(void *data), void *data)
{
    (void)s, (void)committed, (void)data;
}

struct db *store_reader(struct store *s)
{
    return s->db;
}

struct db *store_metrics_reader(struct store *s)
{
    return s->metrics;
}

int64_t store_lag_ms(const struct store *s)
{
    (void)s;
    return 0;
}

uint64_t store_term(const struct store *s)
{
    (void)s;
    return 1;
}

uint64_t store_id(const struct store *s)
{
    (void)s;
    return 7;
}

const uint8_t *store_secret(const struct store *s)
{
    static const uint8_t secret[MAC_BYTES] = "what terms are proved with ....";
    (void)s;
    return secret;
}

struct store_stats store_stats(const struct store *s)
{
    (void)s;
    return (struct store_stats){0};
}

/* --- work that has threads: backups ------------------------------------------------------------------------------- */

struct work {
    struct work *next;
    uv_work_t *work;
    uv_work_cb run;
    uv_after_work_cb after;
};
static struct work *works;

int __wrap_uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb run, uv_after_work_cb after);
int __wrap_uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb run, uv_after_work_cb after)
{
    struct work *w = malloc(sizeof(*w));
    fuzz_assert(w);
    (void)loop;
    *w = (struct work){.next = works, .work = work, .run = run, .after = after};
    works = w;
    return 0;
}

/* One thing that waits; false: nothing does. */
static bool settle(void)
{
    if (write_next())
        return true;
    if (fuzz_file_task())
        return true;
    if (works) {
        struct work *w = works;
        works = w->next;
        w->run(w->work);
        w->after(w->work, 0);
        free(w);
        return true;
    }
    return false;
}

/* --- callers ------------------------------------------------------------------------------------------------------ */

enum trust { NOBODY, PLAIN_USER, OPERATOR };
struct caller {
    enum rpc_id_kind kind;
    uint32_t uid; /* of RPC_ID_UID; 0 = this process's */
    bool secure, by_token;
    const char *id, *user;
    enum trust trust;
};
static const struct caller callers[] = {
    {.kind = RPC_ID_UID, .secure = true, .id = "root", .user = "root", .trust = OPERATOR},
    {.kind = RPC_ID_CERT, .secure = true, .id = "spiffe://titan/user/ada", .user = "ada", .trust = OPERATOR},
    {.kind = RPC_ID_UID, .uid = 2001, .secure = true, .id = "olga", .user = "olga", .trust = OPERATOR},
    {.kind = RPC_ID_UID, .uid = 2002, .secure = true, .id = "ulla", .user = "ulla", .trust = PLAIN_USER},
    {.kind = RPC_ID_CERT, .secure = true, .id = "spiffe://titan/user/carl", .user = "carl", .trust = PLAIN_USER},
    {.kind = RPC_ID_NONE, .secure = true, .by_token = true, .id = "anonymous", .user = ""},
    {.kind = RPC_ID_NONE, .secure = true, .id = "anonymous", .user = "", .trust = NOBODY},
    {.kind = RPC_ID_CERT, .secure = true, .id = "spiffe://titan/node/a", .user = "", .trust = NOBODY},
    {.kind = RPC_ID_CERT, .secure = true, .id = "spiffe://titan/other/x", .user = "", .trust = NOBODY},
    {.kind = RPC_ID_NONE, .id = "anonymous", .user = "anonymous", .trust = OPERATOR}, /* plain TCP */
};
enum { ROOT, ADA, OLGA, ULLA, CARL };

/* The last token that was made, and the last one for a node. */
static char bearer[TOKEN_TEXT + 16], token_text[TOKEN_TEXT], token_id[TOKEN_ID_TEXT], join_text[TOKEN_TEXT];
static struct {
    char user[TOKEN_NAME_MAX + 1], role[16];
} token_of;
static char recipe[2][1024], request_pem[PKI_REQUEST_MAX];
static const char *const texts[] = {
    "a",       "b", "",  "ulla",    "carl",    "ada",      "user",   "operator", "admin", "node/a",  "user/carl", "k",
    "stop it", "0", "9", recipe[0], recipe[1], token_text, token_id, join_text,  "c",     "no/name", NULL};

/* --- calls without a server (proto/rpc/server.h) ------------------------------------------------------------------ */

struct rpc_call {
    const struct rpc_method *method;
    const struct caller *by;
    struct rpc_identity identity;
    const char *node;              /* the session of this one's agent */
    char user[TOKEN_NAME_MAX + 1]; /* that it speaks for */
    enum trust trust;
    uint64_t job_id; /* that the request names; 0 = none */
    void *data;
    titan_status status;
    unsigned room; /* for messages */
    bool open, stream, replied, ended;
};
struct rpc_packed {
    ProtobufCMessage *message;
};

static void agent_hears(const struct rpc_call *call, const Titan__Internal__CoordinatorMessage *m);

static ProtobufCMessage *copy_of(const ProtobufCMessage *m)
{
    fuzz_assert(protobuf_c_message_check(m));
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(len + 1);
    fuzz_assert(bytes && protobuf_c_message_pack(m, bytes) == len);
    ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, NULL, len, bytes);
    fuzz_assert(copy);
    free(bytes);
    return copy;
}

static bool owns(const char *user, uint64_t job_id)
{
    int64_t n = 0;
    fuzz_assert(db_int(the_store.db, &n, NULL, "SELECT count(*) FROM jobs WHERE id = ? AND user = ?", "ut", job_id,
                       user) == TITAN_OK);
    return n > 0;
}

/* May the caller see that? */
static void look_at(const struct rpc_call *call, const ProtobufCMessage *m)
{
    const bool bound = private_jobs && call->trust == PLAIN_USER;
    if (m->descriptor == &titan__v1__get_job_response__descriptor && bound) {
        fuzz_assert(!strcmp(((const Titan__V1__GetJobResponse *)m)->job->user, call->user));
    } else if (m->descriptor == &titan__v1__list_jobs_response__descriptor) {
        const Titan__V1__ListJobsResponse *list = (const Titan__V1__ListJobsResponse *)m;
        fuzz_assert(list->n_jobs <= API_PAGE_MAX);
        for (size_t i = 0; i < list->n_jobs && bound; i++)
            fuzz_assert(!strcmp(list->jobs[i]->user, call->user));
    } else if (m->descriptor == &titan__v1__event__descriptor) { /* those of no job are about nodes */
        const Titan__V1__Event *e = (const Titan__V1__Event *)m;
        const bool audit = call->method->needs == POLICY_AUDIT;
        fuzz_assert(audit == !strncmp(e->type, EVENT_AUDIT, strlen(EVENT_AUDIT)));
        fuzz_assert(!bound || e->job_id == 0 || owns(call->user, e->job_id));
    } else if (m->descriptor == &titan__v1__create_token_response__descriptor) {
        const Titan__V1__CreateTokenResponse *made = (const Titan__V1__CreateTokenResponse *)m;
        (void)snprintf(token_text, sizeof(token_text), "%s", made->token);
        (void)snprintf(token_id, sizeof(token_id), "%s", made->id);
        (void)snprintf(bearer, sizeof(bearer), "Bearer %s", made->token);
    } else if (m->descriptor == &titan__v1__join_node_response__descriptor) {
        (void)snprintf(join_text, sizeof(join_text), "%s", ((const Titan__V1__JoinNodeResponse *)m)->token);
    }
}

static titan_status has_room(struct rpc_call *call)
{
    if (call->ended)
        return TITAN_ECANCELLED;
    if (call->room == 0)
        return TITAN_EAGAIN;
    call->room--;
    return TITAN_OK;
}

titan_status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    TRY(has_room(call));
    ProtobufCMessage *copy = copy_of(message);
    if (call->node)
        agent_hears(call, (const Titan__Internal__CoordinatorMessage *)copy);
    else
        look_at(call, copy);
    protobuf_c_message_free_unpacked(copy, NULL);
    return TITAN_OK;
}

struct rpc_packed *rpc_packed_new(const ProtobufCMessage *message)
{
    struct rpc_packed *packed = malloc(sizeof(*packed));
    fuzz_assert(packed);
    packed->message = copy_of(message);
    return packed;
}

void rpc_packed_free(struct rpc_packed *packed)
{
    if (packed)
        protobuf_c_message_free_unpacked(packed->message, NULL);
    free(packed);
}

titan_status rpc_call_send_packed(struct rpc_call *call, const struct rpc_packed *packed)
{
    return rpc_call_send(call, packed->message);
}

void rpc_call_finish(struct rpc_call *call, titan_status status, const char *message)
{
    fuzz_assert(call->open);
    if (call->ended)
        return;
    fuzz_assert(status == TITAN_OK ? call->stream : message && *message);
    call->ended = true;
    call->status = status;
}

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    fuzz_assert(call->open && !call->stream && !call->ended && !call->replied);
    ProtobufCMessage *copy = copy_of(reply);
    look_at(call, copy);
    protobuf_c_message_free_unpacked(copy, NULL);
    call->replied = call->ended = true;
    call->status = TITAN_OK;
}

void rpc_call_fail(struct rpc_call *call, const struct titan_error *err)
{
    fuzz_error(err->status, err);
    fuzz_assert(err->status != TITAN_OK && err->status != TITAN_EBUG);
    rpc_call_finish(call, err->status, err->msg);
}

void rpc_call_set_data(struct rpc_call *call, void *data)
{
    call->data = data;
}

void *rpc_call_data(const struct rpc_call *call)
{
    return call->data;
}

const char *rpc_call_peer(const struct rpc_call *call)
{
    (void)call;
    return "fuzz";
}

const struct rpc_identity *rpc_call_identity(const struct rpc_call *call)
{
    return &call->identity;
}

void rpc_call_renewed(struct rpc_call *call, int64_t until_ms)
{
    call->identity.until_ms = until_ms;
}

void rpc_call_set_identity(struct rpc_call *call, const struct rpc_identity *identity)
{
    call->identity = *identity;
}

const char *rpc_call_metadata(struct rpc_call *call, const char *name)
{
    return call->by->by_token && bearer[0] && !strcmp(name, "authorization") ? bearer : NULL;
}

struct rpc_refusals rpc_call_refusals(const struct rpc_call *call)
{
    (void)call;
    return (struct rpc_refusals){0};
}

static void call_close(struct rpc_call *call)
{
    if (call->open && call->method->on_close)
        call->method->on_close(call, !call->ended, c);
    call->open = false;
    while (settle())
        ;
}

/* --- agents of nodes a and b -------------------------------------------------------------------------------------- */

static struct rpc_call agents[2];
static struct {
    uint64_t id, job_id;
    int agent;
    bool there, ready, stop, revoked;
} workers[WORKERS];
static int n_workers;
static uint64_t epochs[JOBS], steps[JOBS];

static const struct rpc_method *method_of(unsigned needs)
{
    size_t n;
    const struct rpc_method *m = api_methods(&n);
    while (m->needs != needs)
        m++;
    return m;
}

static void agent_says(int agent, const Titan__Internal__AgentMessage *m)
{
    struct rpc_call *call = &agents[agent];
    if (call->open && !call->ended)
        call->method->on_message(call, &m->base, c);
    while (settle())
        ;
}
#define SAY(agent, KIND, member, body)                                                                                 \
    do {                                                                                                               \
        Titan__Internal__AgentMessage m_ = TITAN__INTERNAL__AGENT_MESSAGE__INIT;                                       \
        m_.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND;                                                    \
        m_.member = &(body);                                                                                           \
        m_.term = 1;                                                                                                   \
        agent_says((agent), &m_);                                                                                      \
    } while (0)

static void agent_comes(int agent)
{
    static const char *const names[] = {"a", "b"};
    struct rpc_call *call = &agents[agent];
    Titan__Internal__AgentRegistration registration = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    call_close(call);
    *call = (struct rpc_call){.method = method_of(POLICY_SESSION), .by = &callers[ROOT], .node = names[agent]};
    call->open = call->stream = true;
    call->room = UINT32_MAX;
    call->identity = (struct rpc_identity){.kind = RPC_ID_CERT, .secure = true};
    (void)snprintf(call->identity.name, sizeof(call->identity.name), "spiffe://titan/node/%s", names[agent]);
    registration.node = (char *)names[agent];
    registration.slots = 2;
    registration.device = (char *)"cpu";
    registration.address = (char *)"10.0.0.1";
    registration.version = (char *)"1";
    registration.memory_bytes = UINT64_C(1) << 40;
    registration.incarnation = (uint64_t)now_ms;
    for (int i = 0; i < n_workers; i++)
        if (workers[i].agent == agent)
            workers[i].there = false; /* they end with their agent here */
    SAY(agent, REGISTRATION, registration, registration);
}

static void agent_hears(const struct rpc_call *call, const Titan__Internal__CoordinatorMessage *m)
{
    const int agent = (int)(call - agents);
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START)
        for (size_t i = 0; i < m->start->n_worker_ids && n_workers < WORKERS; i++) {
            workers[n_workers].id = m->start->worker_ids[i];
            workers[n_workers].job_id = m->start->job_id;
            workers[n_workers].agent = agent;
            workers[n_workers++].there = true;
        }
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM)
        epochs[m->form->job_id % JOBS] = m->form->epoch;
    for (int i = 0; i < n_workers; i++) {
        if (workers[i].agent != agent)
            continue;
        if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP && workers[i].job_id == m->stop->job_id)
            workers[i].stop = true;
        if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE && workers[i].job_id == m->revoke->job_id)
            workers[i].revoked = true;
    }
}

/* Each worker does what is next for it. */
static void workers_go_on(void)
{
    for (int i = 0; i < n_workers; i++) {
        const uint64_t job_id = workers[i].job_id, epoch = epochs[job_id % JOBS];
        if (!workers[i].there)
            continue;
        if (workers[i].stop) {
            Titan__Internal__WorkerExited exited = TITAN__INTERNAL__WORKER_EXITED__INIT;
            exited.job_id = job_id;
            exited.worker_id = workers[i].id;
            workers[i].there = false;
            SAY(workers[i].agent, WORKER_EXITED, worker_exited, exited);
        } else if (!workers[i].ready) {
            Titan__Internal__WorkerReady ready = TITAN__INTERNAL__WORKER_READY__INIT;
            ready.job_id = job_id;
            ready.worker_id = workers[i].id;
            ready.address = (char *)"10.0.0.1:7";
            workers[i].ready = true;
            SAY(workers[i].agent, WORKER_READY, worker_ready, ready);
        } else if (workers[i].revoked) {
            Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
            q.job_id = job_id;
            q.worker_id = workers[i].id;
            q.epoch = q.installed_epoch = epoch;
            q.last_step = steps[job_id % JOBS];
            workers[i].revoked = false;
            SAY(workers[i].agent, WORKER_QUIESCED, worker_quiesced, q);
        } else if (epoch) {
            Titan__Internal__WorkerProgress p = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
            p.job_id = job_id;
            p.worker_id = workers[i].id;
            p.epoch = epoch;
            p.step = ++steps[job_id % JOBS];
            p.loss = 1;
            SAY(workers[i].agent, PROGRESS, progress, p);
        }
    }
}

static void time_passes(int64_t ms)
{
    struct batch batch;
    now_ms += ms;
    batch_init(&batch);
    core_tick(c->core, shell_now(c), &batch);
    shell_commit(c, &batch, NULL, NULL);
    while (settle())
        ;
}

/* --- what must not change ----------------------------------------------------------------------------------------- */

static uint64_t hash_rows(sqlite3_stmt *stmt, uint64_t hash)
{
    struct titan_error err = {0};
    bool row = true;
    while (db_step(the_store.db, stmt, &row, &err) == TITAN_OK && row)
        for (int i = 0; i < sqlite3_column_count(stmt); i++) {
            const void *bytes = sqlite3_column_blob(stmt, i); /* numbers as text */
            hash = hash_bytes(hash, bytes ? bytes : "", (size_t)sqlite3_column_bytes(stmt, i));
            hash = hash_word(hash, (uint64_t)sqlite3_column_type(stmt, i));
        }
    fuzz_assert(err.status == TITAN_OK);
    db_done(stmt);
    return hash;
}
#define HASH(hash, sql, fmt, ...)                                                                                      \
    do {                                                                                                               \
        sqlite3_stmt *stmt_ = NULL;                                                                                    \
        fuzz_assert(db_query(the_store.db, &stmt_, NULL, sql, fmt, ##__VA_ARGS__) == TITAN_OK);                        \
        (hash) = hash_rows(stmt_, (hash));                                                                             \
    } while (0)

struct view {
    uint64_t jobs, others, cluster, people; /* others: jobs of other users, what only their owner or time changes */
};

static struct view look(const char *user)
{
    struct view v = {HASH_INIT, HASH_INIT, HASH_INIT, HASH_INIT};
    HASH(v.jobs, "SELECT * FROM jobs", "");
    HASH(v.jobs, "SELECT * FROM recipes", "");
    HASH(v.jobs, "SELECT * FROM job_keys", "");
    HASH(v.jobs, "SELECT * FROM runs", "");
    HASH(v.jobs, "SELECT * FROM epochs", "");
    HASH(v.jobs, "SELECT * FROM members", "");
    HASH(v.jobs, "SELECT * FROM workers", "");
    HASH(v.jobs, "SELECT * FROM checkpoints", "");
    HASH(v.jobs, "SELECT * FROM losses", "");
    HASH(v.others,
         "SELECT id, name, user, uid, gid, state >= 6, device, steps, min_workers, max_workers, worlds, priority,"
         " max_restarts, keep_latest, wish_min, wish_max, wish_number, folder, text FROM jobs JOIN recipes"
         " ON job_id = id WHERE user <> ?",
         "t", user);
    HASH(v.cluster, "SELECT * FROM node_policies", "");
    HASH(v.cluster, "SELECT * FROM nodes", "");
    HASH(v.people, "SELECT * FROM tokens", "");
    HASH(v.people, "SELECT * FROM joins", "");
    HASH(v.people, "SELECT * FROM revocations", "");
    return v;
}

static bool is_revoked(const struct rpc_call *call)
{
    int64_t n = 0;
    const char *id = call->by->by_token ? token_id : call->by->id;
    fuzz_assert(db_int(the_store.db, &n, NULL,
                       "SELECT (SELECT count(*) FROM tokens WHERE id = ?1 AND revoked_at_ms <> 0)"
                       " + (SELECT count(*) FROM revocations WHERE uri = ?1)",
                       "t", id) == TITAN_OK);
    return n > 0;
}

static void compare(const struct rpc_call *call, const struct view *was, bool revoked)
{
    const struct view is = look(call->user);
    const unsigned needs = call->method->needs;
    const bool ok = call->ended && call->status == TITAN_OK, same_people = is.people == was->people;
    if (!ok)
        fuzz_assert(is.jobs == was->jobs && is.cluster == was->cluster && same_people);
    fuzz_assert(!ok || !revoked);
    if (ok && call->trust == NOBODY)
        fuzz_assert(needs == POLICY_ENROLL || needs == POLICY_VERSION || needs == POLICY_RENEW);
    if (call->trust == OPERATOR)
        return;
    fuzz_assert(is.others == was->others && is.cluster == was->cluster);
    fuzz_assert(same_people || needs == POLICY_ENROLL); /* which uses a token up */
    if (ok && policy_look_up(needs, POLICY_BIT(POLICY_USER)) == POLICY_OWN)
        fuzz_assert(owns(call->user, call->job_id));
}

/* --- one call ----------------------------------------------------------------------------------------------------- */

static struct rpc_call streams[STREAMS];

/* Of the streams, which are all that stays open. */
void rpc_server_review(struct rpc_server *server)
{
    (void)server;
    for (size_t i = 0; i < STREAMS; i++) {
        struct rpc_call *call = &streams[i];
        struct titan_error err = {0};
        if (call->open && !call->ended && api_may_go_on(call, call->method, c, &err) != TITAN_OK)
            rpc_call_fail(call, &err);
    }
}

static void set_caller(struct rpc_call *call, const struct caller *by)
{
    const bool by_token = by->by_token && bearer[0];
    call->by = by;
    (void)snprintf(call->user, sizeof(call->user), "%s", by_token ? token_of.user : by->user);
    call->trust = by->trust;
    call->identity = (struct rpc_identity){.kind = by->kind, .secure = by->secure, .uid = (uid_t)-1, .gid = (gid_t)-1};
    if (by->kind == RPC_ID_UID)
        call->identity.uid = by->uid ? by->uid : geteuid();
    if (by->kind == RPC_ID_CERT)
        call->identity.until_ms = INT64_MAX;
    (void)snprintf(call->identity.name, sizeof(call->identity.name), "%s", by->id);
    if (by_token)
        call->trust = strcmp(token_of.role, "user") == 0 ? PLAIN_USER : OPERATOR;
}

/* As the server does: a caller that may not is not heard; what is no message of that kind neither. */
static void begin(struct rpc_call *call, const uint8_t *bytes, size_t len)
{
    struct titan_error err = {0};
    ProtobufCMessage *m = NULL;
    titan_status status = api_authorize(call, call->method, c, &err);
    if (status == TITAN_OK) {
        grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, len);
        grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
        status = rpc_unpack(buffer, call->method->request, BUDGET, &m, &err);
        grpc_byte_buffer_destroy(buffer);
        grpc_slice_unref(slice);
    }
    if (status == TITAN_OK && (status = api_check(call, call->method, m, c, &err)) != TITAN_OK)
        protobuf_c_message_free_unpacked(m, NULL);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        call->status = status;
        call->ended = true;
        return;
    }
    const ProtobufCFieldDescriptor *job = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "job_id");
    if (job)
        memcpy(&call->job_id, (const char *)m + job->offset, sizeof(call->job_id));
    if (m->descriptor == &titan__v1__create_token_request__descriptor) {
        const Titan__V1__CreateTokenRequest *r = (const Titan__V1__CreateTokenRequest *)m;
        (void)snprintf(token_of.user, sizeof(token_of.user), "%s", r->name);
        (void)snprintf(token_of.role, sizeof(token_of.role), "%s", r->role);
    }
    call->open = true;
    call->method->on_request(call, m, c);
    protobuf_c_message_free_unpacked(m, NULL);
}

static bool is_stream(const struct rpc_method *m)
{
    return m->on_drain != NULL;
}

/* For more than the store. */
static bool waits(const struct rpc_method *m)
{
    return is_stream(m) || m->needs == POLICY_CHECK_NODES;
}

static void call_with(struct rpc_call *call, const uint8_t *bytes, size_t len)
{
    const struct view was = look(call->user);
    const bool revoked = is_revoked(call);
    const typeof(token_of) was_of = token_of;
    char was_id[TOKEN_ID_TEXT];
    memcpy(was_id, token_id, sizeof(was_id));
    begin(call, bytes, len);
    while (settle())
        ;
    fuzz_assert(call->ended || waits(call->method));
    if (!strcmp(was_id, token_id)) /* no other was made */
        token_of = was_of;
    compare(call, &was, revoked);
    fuzz_assert(!call->replied || call->ended);
    for (size_t i = 0; i < STREAMS; i++) /* nothing goes on with what is taken back */
        fuzz_assert(!streams[i].open || streams[i].ended || streams[i].by->by_token || !is_revoked(&streams[i]));
}

static void call_any(struct fuzz_input *in)
{
    size_t n;
    const struct rpc_method *methods = api_methods(&n);
    const struct rpc_method *m = &methods[fuzz_take(in, 1) % n];
    const uint8_t how = (uint8_t)fuzz_take(in, 1);
    struct rpc_call one = {0}, *call = &one;
    if (m->needs == POLICY_SESSION)
        return; /* targets/coordinator.c */
    if (waits(m)) {
        call = &streams[how % STREAMS];
        call_close(call);
        *call = (struct rpc_call){0};
    }
    call->method = m;
    call->stream = is_stream(m);
    call->room = call->stream ? (unsigned)(how % ROOM) : 0;
    set_caller(call, &callers[fuzz_take(in, 1) % ARRAY_SIZE(callers)]);
    if (how >= 240) {
        struct fuzz_input piece = fuzz_piece(in);
        call_with(call, piece.data, piece.len);
    } else {
        ProtobufCMessage *request = fuzz_message(in, m->request, texts, -1);
        ProtobufCBinaryData *pem = NULL;
        if (m->needs == POLICY_RENEW)
            pem = &((Titan__Internal__RenewRequest *)request)->request;
        else if (m->needs == POLICY_ENROLL)
            pem = &((Titan__Internal__EnrollRequest *)request)->request;
        if (pem && how % 4) { /* no chance finds one */
            free(pem->data);
            pem->data = (uint8_t *)strdup(request_pem);
            pem->len = strlen(request_pem);
        }
        size_t len = protobuf_c_message_get_packed_size(request);
        uint8_t *bytes = malloc(len + 1);
        fuzz_assert(bytes && protobuf_c_message_pack(request, bytes) == len);
        protobuf_c_message_free_unpacked(request, NULL);
        call_with(call, bytes, len);
        free(bytes);
    }
    if (call->ended || !waits(m))
        call_close(call);
}

/* --- before the first --------------------------------------------------------------------------------------------- */

static struct coordinator_options options;
static struct auth_options auth;
static struct paths_options paths;
static struct rpc_tls own;
static char state_dir[96];

static void make_certificates(const char *dir)
{
    _cleanup_(buf_free) struct buf ca = BUF_INIT, ca_key = BUF_INIT, key = BUF_INIT, request = BUF_INIT,
                                   certificate = BUF_INIT;
    const struct pki_spec spec = {
        .kind = PKI_COORDINATOR, .name = "c", .from_ms = WALL_MS - 1000, .until_ms = WALL_MS + CERTS_USER_LIFE_MS};
    char path[PATH_MAX];
    fuzz_assert(pki_key_make(&ca_key, NULL) == TITAN_OK && pki_key_make(&key, NULL) == TITAN_OK);
    fuzz_assert(pki_ca_make(&ca_key, "fuzz", spec.from_ms, spec.until_ms, &ca, NULL) == TITAN_OK);
    fuzz_assert(pki_request_make(&key, "spiffe://titan/coordinator/c", &request, NULL) == TITAN_OK);
    fuzz_assert(pki_issue(&(struct pki_issuer){&ca, &ca_key}, request.data, request.len, &spec, &certificate, NULL) ==
                TITAN_OK);
    (void)snprintf(request_pem, sizeof(request_pem), "%.*s", (int)request.len, request.data);
    (void)snprintf(path, sizeof(path), "%s/pki", dir);
    fuzz_assert(certs_dir(path, NULL) == TITAN_OK && certs_in(path, &own, NULL) == TITAN_OK);
    fuzz_assert(certs_write(own.ca, &ca, false, NULL) == TITAN_OK);
    fuzz_assert(certs_write(own.certificate, &certificate, false, NULL) == TITAN_OK);
    fuzz_assert(certs_write(own.key, &key, true, NULL) == TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/pki/ca.key", dir);
    fuzz_assert(certs_write(path, &ca_key, true, NULL) == TITAN_OK);
}

static void once(void)
{
    char data[128];
    if (state_dir[0])
        return;
    (void)snprintf(state_dir, sizeof(state_dir), "%s/state", fuzz_folder());
    (void)snprintf(data, sizeof(data), "%s/text", fuzz_folder());
    fuzz_assert(mkdir(state_dir, 0700) == 0);
    fuzz_file(data, (const uint8_t *)"some text\n", 10);
    for (int i = 0; i < 2; i++)
        (void)snprintf(recipe[i], sizeof(recipe[i]),
                       "[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\ntokenizer = \"bytes\"\n"
                       "[training]\nsteps = 1000\nseq_len = 128\nlocal_batch_size = 1\nglobal_batch_size = 4\n"
                       "dataset_path = \"%s\"\n[elastic]\nmin_workers = %d\nmax_workers = %d\n",
                       data, 2 - i, 4 - 2 * i);
    make_certificates(state_dir);
    fuzz_assert(paths_add_root(&paths.data, fuzz_folder(), NULL) == TITAN_OK);
    fuzz_assert(auth_list_add(&auth.admins, "user:ada", NULL) == TITAN_OK);
    fuzz_assert(auth_list_add(&auth.operators, "uid:2001", NULL) == TITAN_OK);
    options = (struct coordinator_options){
        .observer = &api_observer, .state_dir = state_dir, .paths = &paths, .auth = &auth, .max_pending_jobs = 6};
}

static void submit(int caller, const char *text)
{
    struct rpc_call call = {.method = method_of(POLICY_SUBMIT)};
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    uint8_t bytes[2048];
    request.recipe = (char *)text;
    set_caller(&call, &callers[caller]);
    call_with(&call, bytes, protobuf_c_message_pack(&request.base, bytes));
    fuzz_assert(call.replied);
    call_close(&call);
}

/* Ulla's job 1 trains on both nodes, Carl's job 2 waits. */
static void jobs_run(void)
{
    agent_comes(0);
    agent_comes(1);
    submit(ULLA, recipe[0]);
    submit(CARL, recipe[1]);
    for (int i = 0; i < 6; i++) {
        time_passes(500);
        workers_go_on();
    }
}

/* Agents' answers to checks and logs, drawn. */
static void agent_answers(struct fuzz_input *in, uint8_t what)
{
    static const int kinds[] = {9, 18}; /* of the oneof's members: log, checked */
    Titan__Internal__AgentMessage *m = (Titan__Internal__AgentMessage *)fuzz_message(
        in, &titan__internal__agent_message__descriptor, texts, kinds[what % 2]);
    fuzz_assert(m->kind_case ==
                (what % 2 ? TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKED : TITAN__INTERNAL__AGENT_MESSAGE__KIND_LOG));
    agent_says(what / 2 % 2, m);
    protobuf_c_message_free_unpacked(&m->base, NULL);
}

static void drain(struct rpc_call *call, unsigned room)
{
    if (!call->open || call->ended || !call->stream)
        return;
    call->room = room;
    call->method->on_drain(call, c);
    while (settle())
        ;
}

static void on_closed(void *data)
{
    *(bool *)data = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    uv_loop_t loop;
    bool closed = false;
    int64_t contradictions = 0;
    once();
    now_ms = 1000;
    n_workers = 0;
    memset(workers, 0, sizeof(workers));
    memset(epochs, 0, sizeof(epochs));
    memset(steps, 0, sizeof(steps));
    bearer[0] = token_text[0] = token_id[0] = join_text[0] = '\0';
    memset(&token_of, 0, sizeof(token_of));
    const uint8_t how = (uint8_t)fuzz_take(&in, 1);
    private_jobs = auth.private_jobs = how & 1;
    fuzz_assert(uv_loop_init(&loop) == 0);
    fuzz_assert(coordinator_open(&loop, &options, &c, &err) == TITAN_OK);
    coordinator_served_by(c, (struct rpc_server *)&streams); /* only rpc_server_review() above sees it */
    if (how & 2)                                             /* it signs for nodes, and takes longer to begin */
        fuzz_assert(coordinator_identity(c, &own, &err) == TITAN_OK);
    jobs_run();
    for (int i = 0; in.len > 0 && i < 48; i++) {
        uint8_t what = (uint8_t)fuzz_take(&in, 1);
        if (what < 190)
            call_any(&in);
        else if (what < 205)
            workers_go_on();
        else if (what < 220)
            time_passes((int64_t)fuzz_take(&in, 2));
        else if (what < 232)
            agent_answers(&in, what);
        else if (what < 240)
            drain(&streams[what % STREAMS], (unsigned)fuzz_take(&in, 1));
        else if (what < 248)
            call_close(&streams[what % STREAMS]);
        else
            agent_comes(what % 2);
    }
    fuzz_assert(db_int(the_store.db, &contradictions, &err,
                       "SELECT count(*) FROM jobs WHERE reason LIKE 'quarantined: the job store%'", "") == TITAN_OK);
    fuzz_assert(contradictions == 0);
    for (int i = 0; i < STREAMS; i++)
        call_close(&streams[i]);
    for (int i = 0; i < 2; i++)
        call_close(&agents[i]);
    coordinator_close(c, on_closed, &closed);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    fuzz_assert(closed && uv_loop_close(&loop) == 0);
    return 0;
}
