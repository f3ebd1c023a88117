/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator over its real server, store and loop, with an agent played by the test: what a full disk holds up,
 * and what comes back after it. The disk is full by RLIMIT_FSIZE: writes beyond it fail as they do on a full one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/common/file_pool.h"
#include "daemon/api/methods.h"
#include "daemon/common/peers.h"
#include "daemon/common/proof.h"
#include "proto/rpc/client.h"
#include "state/db.h"
#include "tests/support/patience.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/v1/titan.pb-c.h"

#define PENDING_MAX ((FILE_THREADS_MAX / 2) + 1) /* jobs that wait and submits, together */

struct fixture {
    uv_loop_t loop;
    char dir[64], data[96], recipe[1024], address[128];
    struct coordinator *coordinator;
    struct rpc_server *server;
    struct rpc_client *client;
    struct rpc_stream *agent;
    bool answered;
    int answers;
    bool registered, reply_here;
    struct proof_keys keys; /* of the session */
    bool started;           /* StartWorkers received */
    int starts;
    uint64_t start_job;
    char reason[400]; /* of the job that state_of has asked for */
    struct titan_error err;
    ProtobufCMessage *reply; /* of the last call */
    const ProtobufCMessageDescriptor *reply_type;
};

static void on_flag(void *data)
{
    *(bool *)data = true;
}

static void spin(struct fixture *f, const bool *until)
{
    struct patience_wait wait = {0};
    while (!*until && patience_left(&wait))
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_true(*until);
}

static uint32_t check_ms; /* of the coordinators that are opened next; 0: a test does not wait for it */

/* Submits that have come to the server, and submits that their clients have left. */
static struct {
    const struct rpc_method *method; /* the API's */
    int came, left;
} submits;

static void on_submit(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    submits.came++;
    submits.method->on_request(call, request, data);
}

static void on_submit_closed(struct rpc_call *call, bool cancelled, void *data)
{
    submits.left += cancelled;
    submits.method->on_close(call, cancelled, data);
}

static const struct rpc_method *methods_with_counts(size_t *n)
{
    static struct rpc_method methods[64];
    const struct rpc_method *all = api_methods(n);
    assert_true(*n <= ARRAY_SIZE(methods));
    for (size_t i = 0; i < *n; i++) {
        methods[i] = all[i];
        if (strcmp(all[i].path, "/titan.v1.Titan/Submit") != 0)
            continue;
        submits.method = &all[i];
        methods[i].on_request = on_submit;
        methods[i].on_close = on_submit_closed;
    }
    assert_non_null(submits.method);
    return methods;
}

static void open_all(struct fixture *f)
{
    struct titan_error err = {0};
    size_t n = 0;
    const struct rpc_method *methods = methods_with_counts(&n);
    const struct coordinator_options options = {.observer = &api_observer,
                                                .state_dir = f->dir,
                                                .check_ms = check_ms ? check_ms : (uint32_t)patience_ms(60),
                                                .max_pending_jobs = PENDING_MAX};
    if (coordinator_open(&f->loop, &options, &f->coordinator, &err) ||
        rpc_server_open(&f->loop,
                        &(struct rpc_server_options){.methods = methods, .n_methods = n, .data = f->coordinator},
                        &f->server, &err) ||
        rpc_server_listen(f->server, f->address, NULL, NULL, &err) || rpc_server_start(f->server, &err) ||
        rpc_client_open(&f->loop, f->address, NULL, &f->client, &err))
        fail_msg("%s", err.msg);
}

static void close_rpc(struct fixture *f)
{
    bool done = false;
    if (f->agent)
        rpc_stream_cancel(f->agent);
    rpc_client_close(f->client, on_flag, &done);
    spin(f, &done);
    done = false;
    rpc_server_shutdown(f->server, 100, on_flag, &done);
    spin(f, &done);
    f->agent = NULL;
}

static void close_all(struct fixture *f)
{
    bool done = false;
    close_rpc(f);
    coordinator_close(f->coordinator, on_flag, &done);
    spin(f, &done);
    rpc_server_free(f->server);
}

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    log_set_level(LOG_LEVEL_ERROR);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    strcpy(f->dir, "/tmp/titan-shell-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->data, sizeof(f->data), "%s/text", f->dir);
    (void)snprintf(f->address, sizeof(f->address), "unix:%s/titan.sock", f->dir);
    assert_int_equal(file_replace(f->data, "some text\n", 10, NULL), TITAN_OK);
    (void)snprintf(f->recipe, sizeof(f->recipe),
                   "[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\ntokenizer = \"bytes\"\n"
                   "[training]\nsteps = 10\nseq_len = 128\nlocal_batch_size = 1\nglobal_batch_size = 2\n"
                   "dataset_path = \"%s\"\n[elastic]\nmin_workers = 1\nmax_workers = 2\n",
                   f->data);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    open_all(f);
}

static void tear_down(struct fixture *f)
{
    close_all(f);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    assert_int_equal(dir_remove(f->dir, NULL), TITAN_OK);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void on_reply(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct fixture *f = data;
    f->err = *err;
    f->reply_here = true;
    f->reply = NULL;
    if (!reply)
        return;
    size_t n = protobuf_c_message_get_packed_size(reply);
    uint8_t *bytes = malloc(n + 1);
    assert_non_null(bytes);
    protobuf_c_message_pack(reply, bytes);
    f->reply = protobuf_c_message_unpack(f->reply_type, NULL, n, bytes);
    free(bytes);
}

/* The answer; NULL with f->err. Freed by the caller. */
static void *call(struct fixture *f, const char *method, const ProtobufCMessage *request,
                  const ProtobufCMessageDescriptor *type)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/titan.v1.Titan/%s", method);
    f->reply_here = false;
    f->reply_type = type;
    rpc_client_call(f->client, &(struct rpc_request){path, request, type, (uint32_t)patience_ms(60)}, on_reply, f);
    spin(f, &f->reply_here);
    return TAKE(f->reply);
}

static uint64_t submit(struct fixture *f, const char *key)
{
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    request.recipe = f->recipe;
    request.idempotency_key = (char *)key;
    Titan__V1__SubmitResponse *reply = call(f, "Submit", &request.base, &titan__v1__submit_response__descriptor);
    uint64_t id = reply ? reply->job_id : 0;
    if (reply)
        protobuf_c_message_free_unpacked(&reply->base, NULL);
    return id;
}

static Titan__V1__JobState state_of(struct fixture *f, uint64_t id)
{
    Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
    request.job_id = id;
    Titan__V1__GetJobResponse *reply = call(f, "GetJob", &request.base, &titan__v1__get_job_response__descriptor);
    assert_non_null(reply);
    Titan__V1__JobState state = reply->job->state;
    (void)snprintf(f->reason, sizeof(f->reason), "%s", reply->job->reason);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return state;
}

static titan_status cancel(struct fixture *f, uint64_t id)
{
    Titan__V1__CancelJobRequest request = TITAN__V1__CANCEL_JOB_REQUEST__INIT;
    request.job_id = id;
    Titan__V1__CancelJobResponse *reply =
        call(f, "CancelJob", &request.base, &titan__v1__cancel_job_response__descriptor);
    if (reply)
        protobuf_c_message_free_unpacked(&reply->base, NULL);
    return f->err.status;
}

/* --- the agent ---------------------------------------------------------------------------------------------------- */

static void on_command(struct rpc_stream *stream, const ProtobufCMessage *base, void *data)
{
    struct fixture *f = data;
    const Titan__Internal__CoordinatorMessage *m = (const Titan__Internal__CoordinatorMessage *)base;
    (void)stream;
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK) {
        f->registered = true;
        f->keys.n = 0;
        assert_int_equal(m->ack->key.len, MAC_BYTES);
        proof_add_key(&f->keys, m->ack->key.data);
    }
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START) {
        f->starts++;
        f->started = true;
        f->start_job = m->start->job_id;
        assert_non_null(strstr(m->start->recipe, f->data));
    }
}

static void on_stream_end(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    struct fixture *f = data;
    (void)err;
    if (f->agent == stream)
        f->agent = NULL;
}

static void connect_agent(struct fixture *f, const char *node)
{
    static const struct rpc_stream_events events = {on_command, on_stream_end};
    Titan__Internal__AgentRegistration registration = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    Titan__Internal__AgentMessage m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    registration.node = (char *)node;
    registration.slots = 1;
    registration.device = (char *)"cpu";
    registration.proves = true;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION;
    m.registration = &registration;
    assert_int_equal(rpc_client_stream(f->client,
                                       &(struct rpc_request){"/titan.internal.Coordinator/Session", NULL,
                                                             &titan__internal__coordinator_message__descriptor, 0},
                                       &events, f, &f->agent, NULL),
                     TITAN_OK);
    assert_int_equal(rpc_stream_send(f->agent, &m.base), TITAN_OK);
}

static void limit_files(const struct fixture *f, bool full)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    struct stat st;
    char wal[96];
    (void)snprintf(wal, sizeof(wal), "%s/titan.db-wal", f->dir);
    assert_int_equal(stat(wal, &st), 0);
    if (full)
        limit.rlim_cur = (rlim_t)st.st_size; /* not a byte more */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* What becomes of a job is a line of the log, beside what is stored of it. */
static void test_events_in_the_log(void **state)
{
    (void)state;
    struct fixture f;
    char path[96], line[128];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    set_up(&f);
    (void)snprintf(path, sizeof(path), "%s/log", f.dir);
    const int kept = dup(STDERR_FILENO), log = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(kept >= 0 && log >= 0);
    assert_int_equal(dup2(log, STDERR_FILENO), STDERR_FILENO);
    log_set_level(LOG_LEVEL_INFO);
    const uint64_t id = submit(&f, "logged");
    const titan_status status = cancel(&f, id);
    log_set_level(LOG_LEVEL_ERROR);
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    (void)close(kept);
    (void)close(log);
    assert_int_equal(status, TITAN_OK);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    (void)snprintf(line, sizeof(line), " job.state job=%llu epoch=0 text=\"cancelled", (unsigned long long)id);
    assert_non_null(strstr(text.data, line));
    tear_down(&f);
}

/* An agent comes while the disk is full: what the core decides then waits, and goes out when there is space. */
static void test_full_disk(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    const titan_status refused = TITAN_EIO; /* SQLite says FULL to ENOSPC only, and this is EFBIG */
    uint64_t job = submit(&f, "first");
    assert_int_equal(job, 1);
    limit_files(&f, true);
    assert_int_equal(submit(&f, "second"), 0);
    assert_int_equal(f.err.status, refused);
    connect_agent(&f, "n");
    spin(&f, &f.registered);     /* that and the answers to heartbeats rest on nothing new */
    for (int i = 0; i < 50; i++) /* some loop turns and retries */
        (void)state_of(&f, job);
    assert_int_equal(f.starts, 0); /* not durable, so not said */
    assert_int_equal(state_of(&f, job), TITAN__V1__JOB_STATE__PENDING);
    assert_non_null(strstr(f.reason, "the job store refuses writes: "));
    assert_int_equal(cancel(&f, job), refused);
    assert_int_equal(submit(&f, "second"), 0);
    limit_files(&f, false);
    spin(&f, &f.started);
    assert_int_equal(f.starts, 1);
    assert_int_equal(f.start_job, job);
    assert_int_equal(state_of(&f, job), TITAN__V1__JOB_STATE__FORMING);
    assert_null(strstr(f.reason, "refuses"));
    uint64_t second = submit(&f, "second");
    assert_true(second > job);
    assert_int_equal(submit(&f, "second"), second);
    assert_int_equal(cancel(&f, second), TITAN_OK);
    assert_int_equal(cancel(&f, second), TITAN_ECONFLICT);
    assert_int_equal(cancel(&f, 99), TITAN_ENOTFOUND);
    tear_down(&f);
}

static struct {
    atomic_int commits;
    atomic_bool tried; /* again */
    sem_t go;
} slow;

/* On the writer's thread: the first commit is refused, and the next, which tries it again, takes until it is let go. */
static titan_status slow_commit(void *arg, const char *name, struct titan_error *err)
{
    (void)arg;
    (void)name;
    const int n = atomic_fetch_add(&slow.commits, 1);
    if (n == 0)
        return titan_fail(err, TITAN_ENOSPC, "job store: database or disk is full");
    if (n == 1) {
        atomic_store(&slow.tried, true);
        while (sem_wait(&slow.go) != 0)
            ;
    }
    return TITAN_OK;
}

/* A change while the store is tried again is written as soon as that has succeeded, and the store is open again. */
static void test_change_while_tried_again(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    assert_int_equal(submit(&f, "first"), 1);
    assert_int_equal(sem_init(&slow.go, 0, 0), 0);
    failpoint_on_call(slow_commit, NULL);
    assert_int_equal(failpoint_set("store.commit=call@1+", NULL), TITAN_OK);
    connect_agent(&f, "n");
    spin(&f, &f.registered);
    while (!atomic_load(&slow.tried))
        uv_run(&f.loop, UV_RUN_ONCE);
    struct rpc_stream *first = f.agent;
    f.registered = false;
    connect_agent(&f, "m");
    spin(&f, &f.registered);
    assert_int_equal(sem_post(&slow.go), 0);
    spin(&f, &f.started);
    uint64_t second = 0;
    while (second == 0) /* refused until the store is tried again */
        second = submit(&f, "second");
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    rpc_stream_cancel(first);
    tear_down(&f);
}

static struct {
    atomic_size_t begun;
    sem_t go;
} hanging;

/* On the thread that checks recipes: one of their paths is on a file server that does not answer, until it is let go.
 */
static titan_status hanging_check(void *arg, const char *name, struct titan_error *err)
{
    (void)arg;
    (void)name;
    (void)err;
    atomic_fetch_add(&hanging.begun, 1);
    while (sem_wait(&hanging.go) != 0)
        ;
    return TITAN_OK;
}

static void on_job(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    (void)err;
    *(uint64_t *)data = reply ? ((const Titan__V1__SubmitResponse *)reply)->job_id : UINT64_MAX;
}

static void submit_within(struct fixture *f, const char *key, uint32_t ms, uint64_t *ret)
{
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    request.recipe = f->recipe;
    request.idempotency_key = (char *)key;
    rpc_client_call(
        f->client,
        &(struct rpc_request){"/titan.v1.Titan/Submit", &request.base, &titan__v1__submit_response__descriptor, ms},
        on_job, ret);
}

static void submit_without_waiting(struct fixture *f, const char *key, uint64_t *ret)
{
    submit_within(f, key, (uint32_t)patience_ms(240), ret);
}

static void hang_next_check(struct fixture *f, uint64_t *ret)
{
    atomic_store(&hanging.begun, 0);
    failpoint_on_call(hanging_check, NULL);
    assert_int_equal(failpoint_set("submit.check=call", NULL), TITAN_OK);
    submit_without_waiting(f, "hangs", ret);
    while (!atomic_load(&hanging.begun))
        uv_run(&f->loop, UV_RUN_ONCE);
}

/* A recipe's check that does not end costs its own submit, after its time, and nothing else: others are answered,
 * changes are stored, other submits are checked meanwhile, and the coordinator closes without waiting for it. */
static void test_check_that_hangs(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t second = 0, third = 0, never = 0;
    bool done = false;
    check_ms = patience_stretched(2000); /* the third waits for a part of it only, until it has another thread */
    set_up(&f);
    assert_int_equal(sem_init(&hanging.go, 0, 0), 0);
    assert_int_equal(submit(&f, "first"), 1);
    hang_next_check(&f, &second);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    submit_without_waiting(&f, "third", &third);
    connect_agent(&f, "n");
    spin(&f, &f.registered);
    assert_int_equal(cancel(&f, 1), TITAN_OK);
    while (third == 0) /* on another thread */
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(third, 2);
    assert_int_equal(second, 0);
    while (second == 0)
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(second, UINT64_MAX); /* given up */
    assert_int_equal(sem_post(&hanging.go), 0);

    hang_next_check(&f, &never);
    close_rpc(&f);
    coordinator_close(f.coordinator, on_flag, &done);
    spin(&f, &done); /* though the thread is still at it */
    rpc_server_free(f.server);
    assert_int_equal(never, UINT64_MAX); /* its caller was told that it failed */
    assert_int_equal(sem_post(&hanging.go), 0);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    open_all(&f);
    assert_int_equal(submit(&f, "third"), 2);
    tear_down(&f);
    check_ms = 0;
}

/* A submit that its client leaves while it waits for a thread is dropped: no job, and no part in PENDING_MAX. */
static void test_client_that_goes(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t hung[(FILE_THREADS_MAX / 2)] = {0}, gone = 0, last = 0;
    set_up(&f);
    assert_int_equal(sem_init(&hanging.go, 0, 0), 0);
    atomic_store(&hanging.begun, 0);
    failpoint_on_call(hanging_check, NULL);
    assert_int_equal(failpoint_set("submit.check=call@1+", NULL), TITAN_OK);
    for (size_t i = 0; i < (FILE_THREADS_MAX / 2); i++)
        submit_without_waiting(&f, NULL, &hung[i]);
    while (atomic_load(&hanging.begun) < (FILE_THREADS_MAX / 2)) /* then no thread is left that could begin another */
        uv_run(&f.loop, UV_RUN_ONCE);
    const int came = submits.came, left = submits.left;
    for (uint32_t ms = 100; submits.came == came; ms *= 2) { /* so long that the server hears of it */
        gone = 0;
        submit_within(&f, "gone", ms, &gone);
        while (gone == 0)
            uv_run(&f.loop, UV_RUN_ONCE);
        assert_int_equal(gone, UINT64_MAX);
    }
    while (submits.left == left) /* the server has seen it go */
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    for (size_t i = 0; i < (FILE_THREADS_MAX / 2); i++)
        assert_int_equal(sem_post(&hanging.go), 0);
    for (size_t i = 0; i < (FILE_THREADS_MAX / 2); i++) {
        while (hung[i] == 0)
            uv_run(&f.loop, UV_RUN_ONCE);
        assert_int_not_equal(hung[i], UINT64_MAX);
        last = MAX(last, hung[i]);
    }
    assert_int_equal(submit(&f, "next"), last + 1);
    tear_down(&f);
}

/* All threads hang: submits are refused at once, until one comes back. */
static void test_all_checks_hang(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t hung[(FILE_THREADS_MAX / 2)] = {0}, waits = 0, last = 0;
    check_ms = patience_stretched(3000); /* all are begun within it */
    set_up(&f);
    assert_int_equal(sem_init(&hanging.go, 0, 0), 0);
    atomic_store(&hanging.begun, 0);
    failpoint_on_call(hanging_check, NULL);
    assert_int_equal(failpoint_set("submit.check=call@1+", NULL), TITAN_OK);
    for (size_t i = 0; i < (FILE_THREADS_MAX / 2); i++)
        submit_without_waiting(&f, NULL, &hung[i]);
    submit_without_waiting(&f, NULL, &waits);
    while (atomic_load(&hanging.begun) < (FILE_THREADS_MAX / 2))
        uv_run(&f.loop, UV_RUN_ONCE);
    for (size_t i = 0; i < (FILE_THREADS_MAX / 2); i++)
        while (hung[i] == 0)
            uv_run(&f.loop, UV_RUN_ONCE);
    while (waits == 0) /* behind them, for its time */
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(waits, UINT64_MAX);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    for (int tries = 0; last == 0 || last == UINT64_MAX; tries++) {
        last = 0;
        submit_without_waiting(&f, NULL, &last);
        while (last == 0)
            uv_run(&f.loop, UV_RUN_ONCE);
        if (tries == 0) {
            assert_int_equal(last, UINT64_MAX);
            for (size_t i = 0; i < (FILE_THREADS_MAX / 2); i++)
                assert_int_equal(sem_post(&hanging.go), 0);
        }
    }
    assert_int_equal(last, 1);
    tear_down(&f);
    check_ms = 0;
}

static void on_datagram(const Titan__Internal__PeerMessage *m, const char *from, void *data)
{
    (void)from;
    struct fixture *f = data;
    size_t at;
    f->answers++;
    f->answered = m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT_ANSWER &&
                  m->heartbeat_answer->number == 9 && proof_find(m, &f->keys, &at) == 0;
}

/* A port for datagrams that no agent has. */
static void free_port(struct fixture *f, char address[32])
{
    struct peers *p;
    bool closed = false;
    assert_int_equal(peers_open(&f->loop, "127.0.0.1:0", on_datagram, f, &p, NULL), TITAN_OK);
    (void)snprintf(address, 32, "127.0.0.1:%u", peers_port(p));
    peers_close(p, on_flag, &closed);
    spin(f, &closed);
}

static void test_heartbeat_as_a_datagram(void **state)
{
    (void)state;
    struct fixture f;
    char address[32];
    struct peers *agent;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    bool closed = false;
    set_up(&f);
    free_port(&f, address);
    assert_int_equal(coordinator_listen(f.coordinator, address, NULL), TITAN_OK);
    assert_int_equal(coordinator_listen(f.coordinator, address, NULL), TITAN_EEXIST);
    assert_int_equal(peers_open(&f.loop, "127.0.0.1:0", on_datagram, &f, &agent, NULL), TITAN_OK);
    connect_agent(&f, "n");
    spin(&f, &f.registered);
    Titan__Internal__PeerHeartbeat heartbeat = TITAN__INTERNAL__PEER_HEARTBEAT__INIT;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    heartbeat.number = 9;
    heartbeat.hears = true;
    m.from = (char *)"n";
    m.term = 1;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT;
    m.heartbeat = &heartbeat;
    peers_send(agent, address, &m); /* of any process */
    struct proof_keys wrong = f.keys;
    wrong.key[0][0] ^= 1;
    proof_make(&m, &wrong, proofs);
    peers_send(agent, address, &m);
    proof_make(&m, &f.keys, proofs);
    peers_send(agent, address, &m);
    spin(&f, &f.answered);
    assert_int_equal(f.answers, 1);
    peers_close(agent, on_flag, &closed);
    spin(&f, &closed);
    tear_down(&f);
}

static void set_given(const struct fixture *f, const char *sql)
{
    char path[128];
    struct db *db = NULL;
    (void)snprintf(path, sizeof(path), "%s/titan.db", f->dir);
    assert_int_equal(db_open(path, DB_WRITER, true, &db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db, sql, NULL), TITAN_OK);
    db_close(db);
}

/* Numbers of jobs and workers go on from those in the store: one that leaves no room behind it is damage. */
static void test_numbers_given_out(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    static const char *const damages[] = {"INSERT OR REPLACE INTO meta VALUES ('last_worker', -1)",
                                          "INSERT OR REPLACE INTO meta VALUES ('last_job', 9223372036854775807)"};
    set_up(&f);
    for (int i = 0; i < 2; i++) {
        close_all(&f);
        set_given(&f, damages[i]);
        const struct coordinator_options options = {
            .observer = &api_observer, .state_dir = f.dir, .check_ms = 3000}; /* no check */
        assert_int_equal(coordinator_open(&f.loop, &options, &f.coordinator, &err), TITAN_ECORRUPT);
        set_given(&f, "DELETE FROM meta WHERE key IN ('last_worker', 'last_job')");
        open_all(&f);
    }
    tear_down(&f);
}

static void test_restart(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    uint64_t first = submit(&f, "a"), second = submit(&f, "b");
    assert_int_equal(cancel(&f, first), TITAN_OK);
    close_all(&f);
    open_all(&f);
    assert_int_equal(state_of(&f, first), TITAN__V1__JOB_STATE__CANCELLED);
    assert_int_equal(state_of(&f, second), TITAN__V1__JOB_STATE__PENDING);
    assert_int_equal(submit(&f, "b"), second);
    connect_agent(&f, "n");
    spin(&f, &f.started);
    assert_int_equal(f.start_job, second);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_disk),        cmocka_unit_test(test_change_while_tried_again),
        cmocka_unit_test(test_check_that_hangs), cmocka_unit_test(test_client_that_goes),
        cmocka_unit_test(test_all_checks_hang),  cmocka_unit_test(test_heartbeat_as_a_datagram),
        cmocka_unit_test(test_restart),          cmocka_unit_test(test_numbers_given_out),
        cmocka_unit_test(test_events_in_the_log)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
