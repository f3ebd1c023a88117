/* SPDX-License-Identifier: Apache-2.0 */
/* The agent between a coordinator and workers: both are played by this program, the agent is the real one.
 *
 * The coordinator is an rpc server on the test's loop. Workers are this program started again ("serve ..."), on the
 * real agent_connection.c; what they do is in the recipe. Where the agent must die, it is this program once more
 * ("agent ..."). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/frame.h"
#include "base/log.h"
#include "daemon/agent/shell/agent.h"
#include "proto/rpc/server.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/internal/worker.pb-c.h"
#include "worker/elastic/membership.h"

extern char **environ;

/* --- the worker --------------------------------------------------------------------------------------------------- */

static const char *argument(int argc, char **argv, const char *name)
{
    for (int i = 2; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], name))
            return argv[i + 1];
    return "";
}

static bool does(const char *what)
{
    struct buf text = BUF_INIT;
    bool found = file_read("recipe.toml", 4096, &text, NULL) == TITAN_OK && text.data && strstr(text.data, what);
    buf_free(&text);
    return found;
}

/* Descriptors 3 and up that came with us. */
static int inherited(void)
{
    int n = 0;
    for (int fd = 3; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Memfd shared with the other members? Each rank writes its byte. */
static void mark_segment(const struct epoch_view *view)
{
    char mark = (char)('0' + view->rank);
    if (view->memfd >= 0 && pwrite(view->memfd, &mark, 1, view->rank) == 1)
        (void)printf("segment %d\n", view->rank);
}

static void train(struct membership *m, const struct epoch_view *view)
{
    uint64_t step = view->resume_step;
    unsigned commands = 0;
    const pid_t agent = getppid();
    while (!*m->ops->revoked(m) && !(commands = m->ops->commands(m))) {
        struct step_report report = {.step = ++step, .epoch = view->epoch, .world = view->world, .loss = 1.5};
        m->ops->progress(m, &report);
        if (does("chatty"))
            for (int i = 0; i < 200; i++)
                (void)printf("step %" PRIu64 " line %d of rank %d\n", step, i, view->rank);
        else
            (void)printf("step %" PRIu64 " rank %d\n", step, view->rank);
        (void)fflush(stdout);
        patience_pause_ms(2, "a step");
        if (does("fail without an agent") && getppid() != agent) {
            struct titan_error err = {0};
            (void)titan_fail(&err, TITAN_EINVAL, "rank %d cannot go on", view->rank);
            m->ops->failing(m, &err);
            m->ops->close(m);
            exit(titan_status_exit(err.status));
        }
        if (does("finish") && step >= 5) {
            m->ops->finished(m, step);
            m->ops->close(m);
            exit(0);
        }
    }
    if (commands & 4)
        m->ops->checkpoint_written(
            m,
            &(struct checkpoint_report){.step = step, .bytes = 10, .path = "/somewhere/step-1", .world = view->world});
    m->ops->quiesced(m, &(struct quiesced){.epoch = view->epoch, .last_step = step, .paused = (commands & 1) != 0});
}

static int serve(int argc, char **argv)
{
    struct titan_error err = {0};
    int leaked = inherited();
    struct agent_connection_options options = {.socket = argument(argc, argv, "--socket"),
                                               .page = argument(argc, argv, "--page"),
                                               .job_id = strtoull(argument(argc, argv, "--job"), NULL, 10),
                                               .worker_id = strtoull(argument(argc, argv, "--worker"), NULL, 10),
                                               .host = argument(argc, argv, "--host"),
                                               .job_dir = argument(argc, argv, "--dir")};
    struct membership *m;
    (void)signal(SIGPIPE, SIG_IGN);
    if (membership_agent_open(&options, &m, &err) != TITAN_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 9;
    }
    m->ops->opened(m);
    (void)printf("leaked %d secret %s pgid %d\n", leaked, getenv("SECRET") ? "yes" : "no", getpgrp() == getpid());
    (void)fflush(stdout);
    if (does("crash")) {
        (void)titan_fail(&err, TITAN_EDEVICE, "device on fire");
        m->ops->failing(m, &err);
        m->ops->close(m);
        return titan_status_exit(err.status);
    }
    if (does("deaf"))
        for (;;)
            (void)pause();
    if (does("child") && child_fork() == 0)
        for (;;)
            (void)pause();
    if (does("escape")) {
        pid_t pid = child_fork();
        if (pid == 0) {
            (void)setsid();
            for (;;)
                (void)pause();
        }
        (void)printf("escaped %d\n", (int)pid);
        (void)fflush(stdout);
    }
    if (does("heavy")) {
        size_t bytes = (size_t)256 << 20;
        (void)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    }
    struct epoch_view view;
    titan_status status;
    while ((status = m->ops->next(m, &view, &err)) == TITAN_OK) {
        (void)printf("epoch %" PRIu64 " rank %d of %d holders %d\n", view.epoch, view.rank, view.world, view.holders);
        mark_segment(&view);
        train(m, &view);
    }
    (void)printf("leaving: %s\n", err.msg);
    (void)fflush(stdout);
    m->ops->close(m);
    return status == TITAN_ECANCELLED ? 0 : 1;
}

/* --- the coordinator ---------------------------------------------------------------------------------------------- */

#define INBOX_MAX 65536

static struct fixture {
    uv_loop_t loop;
    uv_timer_t tick;
    char folder[64], self[PATH_MAX], address[128], job_dir[128];
    struct rpc_server *server;
    struct rpc_call *session;
    struct agent *agent;
    Titan__Internal__AgentMessage *inbox[INBOX_MAX];
    size_t n, registrations, sessions;
    uint64_t term,
        heartbeats; /* heartbeats: the number of the session's newest; what was sent to a server that closed is lost */
    uint32_t lease_ms;
    bool cuda;                        /* the agent's device, with NVML's stand-in */
    bool closed, down, silent, holds; /* holds: it does not end a session that the agent has ended */
} f;

static void say(Titan__Internal__CoordinatorMessage *message)
{
    assert_non_null(f.session);
    assert_int_equal(rpc_call_send(f.session, &message->base), TITAN_OK);
}

static void on_session_message(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    (void)data;
    if (!request) {
        if (!f.holds)
            rpc_call_finish(call, TITAN_OK, NULL);
        return;
    }
    const Titan__Internal__AgentMessage *m = (const Titan__Internal__AgentMessage *)request;
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_HEARTBEAT) {
        assert_true(f.heartbeats == 0 || m->heartbeat->number == f.heartbeats + 1);
        f.heartbeats = m->heartbeat->number;
        return;
    }
    if (f.n == INBOX_MAX)
        return;
    size_t len = titan__internal__agent_message__get_packed_size(m);
    uint8_t *bytes = malloc(len);
    (void)titan__internal__agent_message__pack(m, bytes);
    f.inbox[f.n++] = titan__internal__agent_message__unpack(NULL, len, bytes);
    free(bytes);
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION && !f.silent) {
        f.session = call;
        f.heartbeats = 0;
        f.registrations++;
        Titan__Internal__RegistrationAck ack = TITAN__INTERNAL__REGISTRATION_ACK__INIT;
        Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
        ack.heartbeat_ms = 50;
        ack.term = f.term;
        out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK;
        out.ack = &ack;
        say(&out);
    }
}

static void on_session_close(struct rpc_call *call, bool cancelled, void *data)
{
    (void)cancelled;
    (void)data;
    if (f.session == call)
        f.session = NULL;
}

static const struct rpc_method methods[] = {
    {.path = "/titan.internal.Coordinator/Session",
     .request = &titan__internal__agent_message__descriptor,
     .on_message = on_session_message,
     .on_close = on_session_close},
};

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

/* Turn the loop until the condition holds. */
#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        struct patience_wait wait_ = {0};                                                                              \
        while (!(condition)) {                                                                                         \
            if (!patience_left(&wait_))                                                                                \
                fail_msg("still not: %s", #condition);                                                                 \
            (void)uv_run(&f.loop, UV_RUN_ONCE);                                                                        \
        }                                                                                                              \
    } while (0)

static Titan__Internal__AgentMessage *find(size_t from, Titan__Internal__AgentMessage__KindCase kind, uint64_t worker)
{
    for (size_t i = from; i < f.n; i++) {
        Titan__Internal__AgentMessage *m = f.inbox[i];
        if (m->kind_case != kind)
            continue;
        uint64_t id = 0;
        switch (kind) {
        case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_STARTED:
            id = m->worker_started->worker_id;
            break;
        case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_READY:
            id = m->worker_ready->worker_id;
            break;
        case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_QUIESCED:
            id = m->worker_quiesced->worker_id;
            break;
        case TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS:
            id = m->progress->worker_id;
            break;
        case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED:
            id = m->worker_exited->worker_id;
            break;
        case TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED:
            id = m->finished->worker_id;
            break;
        case TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT:
            id = m->checkpoint->worker_id;
            break;
        default:
            id = worker;
            break;
        }
        if (id == worker)
            return m;
    }
    return NULL;
}
#define GOT(from, KIND, worker) find(from, TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND, worker)

static void forget(void)
{
    for (size_t i = 0; i < f.n; i++)
        titan__internal__agent_message__free_unpacked(f.inbox[i], NULL);
    f.n = 0;
}

static void start_workers(const char *recipe, uint64_t first, uint64_t n)
{
    uint64_t ids[8];
    Titan__Internal__StartWorkers start = TITAN__INTERNAL__START_WORKERS__INIT;
    Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    for (uint64_t i = 0; i < n; i++)
        ids[i] = first + i;
    start.job_id = 1;
    start.worker_ids = ids;
    start.n_worker_ids = n;
    start.recipe = (char *)recipe;
    start.directory = f.job_dir;
    start.device = (char *)"cpu";
    out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START;
    out.start = &start;
    say(&out);
}

static void form(uint64_t epoch, uint64_t first, uint64_t n)
{
    Titan__Internal__Member members[8], *list[8];
    Titan__Internal__FormEpoch command = TITAN__INTERNAL__FORM_EPOCH__INIT;
    Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    unsigned char id[16] = {(unsigned char)epoch};
    for (uint64_t i = 0; i < n; i++) {
        titan__internal__member__init(&members[i]);
        members[i].worker_id = first + i;
        members[i].node = (char *)"here";
        members[i].address = GOT(0, WORKER_READY, first + i)->worker_ready->address;
        list[i] = &members[i];
    }
    command.job_id = 1;
    command.epoch = epoch;
    command.comm_id.data = id;
    command.comm_id.len = sizeof(id);
    command.members = list;
    command.n_members = n;
    out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM;
    out.form = &command;
    say(&out);
}

static void revoke_epoch(uint64_t epoch)
{
    Titan__Internal__RevokeEpoch command = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    command.job_id = 1;
    command.epoch = epoch;
    out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE;
    out.revoke = &command;
    say(&out);
}

static void stop_workers(uint32_t grace_ms)
{
    Titan__Internal__StopWorkers command = TITAN__INTERNAL__STOP_WORKERS__INIT;
    Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    command.job_id = 1;
    command.grace_ms = grace_ms;
    command.reason = (char *)"cancelled";
    out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP;
    out.stop = &command;
    say(&out);
}

/* --- fixture ------------------------------------------------------------------------------------------------------ */

static struct agent_options agent_options(const char *state_dir, const char *coordinator, const char *self,
                                          uint32_t lease_ms)
{
    return (struct agent_options){.state_dir = state_dir,
                                  .coordinator = coordinator,
                                  .node = "here",
                                  .worker = self,
                                  .device = "cpu",
                                  .slots = 4,
                                  .lease_ms = lease_ms,
                                  .log_bytes_max = 131072};
}

static void set_flag(void *flag)
{
    *(bool *)flag = true;
}

static void server_open(void)
{
    struct titan_error err = {0};
    f.down = false;
    const struct rpc_server_options options = {.methods = methods, .n_methods = 1};
    if (rpc_server_open(&f.loop, &options, &f.server, &err) != TITAN_OK ||
        rpc_server_listen(f.server, f.address, NULL, NULL, &err) != TITAN_OK ||
        rpc_server_start(f.server, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

static void server_close(void)
{
    rpc_server_shutdown(f.server, 0, set_flag, &f.down);
    UNTIL(f.down);
    rpc_server_free(f.server);
    f.server = NULL;
}

static int setup(void **state)
{
    (void)state;
    struct titan_error err = {0};
    memset(&f, 0, sizeof(f));
    f.lease_ms = (uint32_t)patience_ms(600);
    (void)snprintf(f.folder, sizeof(f.folder), "/tmp/titan-agent-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    (void)snprintf(f.address, sizeof(f.address), "unix:%s/coordinator.sock", f.folder);
    (void)snprintf(f.job_dir, sizeof(f.job_dir), "%s/jobs/1", f.folder);
    assert_true(readlink("/proc/self/exe", f.self, sizeof(f.self) - 1) > 0);
    assert_int_equal(dir_make(f.job_dir, &err), TITAN_OK);
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(uv_timer_init(&f.loop, &f.tick), 0);
    assert_int_equal(uv_timer_start(&f.tick, on_tick, 5, 5), 0);
    server_open();
    return 0;
}

static void agent_up(void)
{
    struct titan_error err = {0};
    struct agent_options options = agent_options(f.folder, f.address, f.self, f.lease_ms);
    options.device = f.cuda ? "cuda" : options.device;
    if (agent_open(&f.loop, &options, &f.agent, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    UNTIL(f.session);
}

static int setup_agent(void **state)
{
    if (setup(state) != 0)
        return -1;
    agent_up();
    return 0;
}

static void agent_down(bool stop)
{
    f.closed = false;
    agent_close(f.agent, stop, 0, set_flag, &f.closed);
    UNTIL(f.closed);
    f.agent = NULL;
}

static int teardown(void **state)
{
    (void)state;
    if (f.agent)
        agent_down(true);
    server_close();
    forget();
    uv_close((uv_handle_t *)&f.tick, NULL);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    return dir_remove(f.folder, NULL) == TITAN_OK ? 0 : -1;
}

static pid_t pid_of(uint64_t worker)
{
    return (pid_t)GOT(0, WORKER_STARTED, worker)->worker_started->pid;
}

/* Gone, or a zombie that no parent in this place reaps. */
static bool gone(pid_t pid)
{
    char path[64];
    struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    bool dead = file_read(path, 4096, &text, NULL) != TITAN_OK;
    const char *after = dead || !text.data ? NULL : strrchr(text.data, ')');
    dead = dead || (after && after[2] == 'Z');
    buf_free(&text);
    return dead;
}

static bool log_has(uint64_t worker, const char *what)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof(path), "%s/logs/worker-%" PRIu64 ".log", f.job_dir, worker);
    bool found = file_read(path, 1 << 20, &text, NULL) == TITAN_OK && text.data && strstr(text.data, what);
    buf_free(&text);
    return found;
}

static void train_two(const char *recipe)
{
    start_workers(recipe, 10, 2);
    UNTIL(GOT(0, WORKER_READY, 10) && GOT(0, WORKER_READY, 11));
    form(1, 10, 2);
    UNTIL(GOT(0, PROGRESS, 10) && GOT(0, PROGRESS, 11));
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void test_workers_train(void **state)
{
    (void)state;
    assert_int_equal(setenv("SECRET", "x", 1), 0);
    train_two("# spin");
    assert_string_equal(f.inbox[0]->registration->node, "here");
    assert_int_equal(f.inbox[0]->registration->slots, 4);
    UNTIL(log_has(10, "segment 0") && log_has(11, "segment 1"));
    UNTIL(log_has(10, "step 2"));
    assert_true(log_has(10, "leaked 0 secret no pgid 1"));
    assert_true(log_has(11, "epoch 1 rank 1 of 2"));
    assert_int_equal(agent_workers(f.agent), 2);
}

static double kill_and_measure(const char *recipe)
{
    train_two(recipe);
    int64_t start = clock_mono_ns();
    assert_int_equal(kill(pid_of(11), SIGKILL), 0);
    UNTIL(GOT(0, WORKER_EXITED, 11));
    double ms = (double)(clock_mono_ns() - start) / 1e6;
    assert_int_equal(agent_workers(f.agent), 1);
    return ms;
}

static void test_death_is_reported(void **state)
{
    (void)state;
    double ms = kill_and_measure("# spin");
    Titan__Internal__WorkerExited *exited = GOT(0, WORKER_EXITED, 11)->worker_exited;
    assert_int_equal(exited->signal, SIGKILL);
    assert_int_equal(exited->exit_code, -1);
    assert_true(exited->last_step > 0);
    print_message("# from SIGKILL to the coordinator's inbox: %.2f ms\n", ms);
}

static void test_death_of_a_large_worker(void **state)
{
    (void)state;
    double ms = kill_and_measure("# heavy");
    print_message("# the same with 256 MiB resident: %.2f ms\n", ms);
}

static void test_revoke_and_form_again(void **state)
{
    (void)state;
    train_two("# spin");
    revoke_epoch(1);
    UNTIL(GOT(0, WORKER_QUIESCED, 10) && GOT(0, WORKER_QUIESCED, 11));
    assert_int_equal(GOT(0, WORKER_QUIESCED, 10)->worker_quiesced->epoch, 1);
    assert_false(GOT(0, WORKER_QUIESCED, 10)->worker_quiesced->paused);
    revoke_epoch(1); /* again: no effect on what follows */
    form(2, 10, 1);
    UNTIL(log_has(10, "epoch 2 rank 0 of 1"));
    size_t seen = f.n;
    UNTIL(GOT(seen, PROGRESS, 10));
    form(2, 10, 2); /* the same epoch twice: ignored */
    form(1, 10, 2); /* an older one: ignored */
    seen = f.n;
    UNTIL(f.n > seen + 20);
    for (size_t i = seen; i < f.n; i++)
        if (f.inbox[i]->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS)
            assert_int_equal(f.inbox[i]->progress->epoch, 2);
    form(3, 10, 2); /* a later one ends the running one */
    UNTIL(log_has(10, "epoch 3 rank 0 of 2") && log_has(11, "epoch 3 rank 1 of 2"));
}

static void test_finish(void **state)
{
    (void)state;
    start_workers("# finish", 10, 1);
    UNTIL(GOT(0, WORKER_READY, 10));
    form(1, 10, 1);
    UNTIL(GOT(0, WORKER_EXITED, 10));
    assert_non_null(GOT(0, FINISHED, 10));
    assert_int_equal(GOT(0, FINISHED, 10)->finished->step, 5);
    assert_int_equal(GOT(0, WORKER_EXITED, 10)->worker_exited->exit_code, 0);
    assert_int_equal(GOT(0, WORKER_EXITED, 10)->worker_exited->signal, 0);
}

static void test_last_words(void **state)
{
    (void)state;
    start_workers("# crash", 10, 1);
    UNTIL(GOT(0, WORKER_EXITED, 10));
    assert_string_equal(GOT(0, WORKER_EXITED, 10)->worker_exited->reason,
                        "the device of slot 0 failed: device on fire");
    assert_int_equal(GOT(0, WORKER_EXITED, 10)->worker_exited->exit_code, titan_status_exit(TITAN_EDEVICE));
}

static void test_stop(void **state)
{
    (void)state;
    train_two("# spin");
    stop_workers((uint32_t)patience_ms(60));
    UNTIL(GOT(0, WORKER_EXITED, 10) && GOT(0, WORKER_EXITED, 11));
    assert_int_equal(GOT(0, WORKER_EXITED, 10)->worker_exited->exit_code, 0);
    assert_non_null(GOT(0, CHECKPOINT, 10));
    assert_true(log_has(10, "leaving: cancelled"));
}

static void test_stop_of_a_deaf_worker(void **state)
{
    (void)state;
    start_workers("# deaf", 10, 1);
    UNTIL(GOT(0, WORKER_READY, 10));
    stop_workers(100);
    UNTIL(GOT(0, WORKER_EXITED, 10));
    assert_int_equal(GOT(0, WORKER_EXITED, 10)->worker_exited->signal, SIGKILL);
}

/* What a worker started dies with it. */
static void test_no_orphans(void **state)
{
    (void)state;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    start_workers("# child", 10, 1);
    UNTIL(GOT(0, WORKER_READY, 10));
    form(1, 10, 1);
    UNTIL(GOT(0, PROGRESS, 10));
    pid_t group = pid_of(10);
    assert_int_equal(kill(group, SIGKILL), 0);
    UNTIL(GOT(0, WORKER_EXITED, 10));
    /* Orphans of the group become ours to reap; when none is left, the group is gone. */
    UNTIL((waitpid(-group, NULL, WNOHANG), kill(-group, 0) < 0 && errno == ESRCH));
    (void)prctl(PR_SET_CHILD_SUBREAPER, 0);
}

static long oom_score_of(pid_t pid)
{
    char path[64];
    struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
    assert_int_equal(file_read(path, 64, &text, NULL), TITAN_OK);
    long score = strtol(text.data, NULL, 10);
    buf_free(&text);
    return score;
}

/* When memory ends the kernel takes it, not us. */
static void test_oom_score(void **state)
{
    (void)state;
    start_workers("", 10, 1);
    UNTIL(GOT(0, WORKER_STARTED, 10));
    const long own = oom_score_of(getpid());
    assert_int_equal(oom_score_of(pid_of(10)), own + 500 < 1000 ? own + 500 : 1000);
}

/* Where there are cgroups for us: one for each worker, and nothing gets out of it alive. */
static void test_cgroup(void **state)
{
    (void)state;
    static const char root[] = "/sys/fs/cgroup/unified/cgroup.procs";
    char group[80], procs[128], worker[128];
    (void)snprintf(group, sizeof(group), "/sys/fs/cgroup/unified/titan-test-%d", (int)getpid());
    (void)snprintf(procs, sizeof(procs), "%s/cgroup.procs", group);
    (void)snprintf(worker, sizeof(worker), "%s/titan-worker-10", group);
    FILE *file = mkdir(group, 0755) == 0 || errno == EEXIST ? fopen(procs, "w") : NULL;
    if (!file) {
        print_message("# no cgroups of version 2 for this user\n");
        skip();
    }
    assert_true(fprintf(file, "%d", (int)getpid()) > 0);
    assert_int_equal(fclose(file), 0);
    start_workers("# escape", 10, 1);
    UNTIL(GOT(0, WORKER_READY, 10));
    UNTIL(log_has(10, "escaped "));
    assert_int_equal(access(worker, F_OK), 0);
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof(path), "%s/logs/worker-10.log", f.job_dir);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    pid_t escaped = atoi(strstr(text.data, "escaped ") + 8);
    buf_free(&text);
    assert_false(gone(escaped));
    assert_int_equal(kill(pid_of(10), SIGKILL), 0);
    UNTIL(GOT(0, WORKER_EXITED, 10));
    UNTIL(gone(escaped));
    agent_down(true);
    file = fopen(root, "w");
    assert_true(file && fprintf(file, "%d", (int)getpid()) > 0);
    assert_int_equal(fclose(file), 0);
    (void)rmdir(worker); /* the kernel takes a moment with the killed one */
    UNTIL(rmdir(group) == 0 || errno == ENOENT || (rmdir(worker), false));
}

static void test_slots(void **state)
{
    (void)state;
    start_workers("# deaf", 10, 5);
    UNTIL(GOT(0, WORKER_EXITED, 14));
    assert_non_null(strstr(GOT(0, WORKER_EXITED, 14)->worker_exited->reason, "slots"));
    UNTIL(GOT(0, WORKER_READY, 13));
    assert_int_equal(agent_workers(f.agent), 4);
}

static void test_bad_job_directory(void **state)
{
    (void)state;
    (void)snprintf(f.job_dir, sizeof(f.job_dir), "/proc/nowhere");
    start_workers("# spin", 10, 1);
    UNTIL(GOT(0, WORKER_EXITED, 10));
    assert_non_null(strstr(GOT(0, WORKER_EXITED, 10)->worker_exited->reason, "/proc/nowhere"));
}

static void send_raw(const void *bytes, size_t len)
{
    char path[PATH_MAX];
    int fd;
    (void)snprintf(path, sizeof(path), "%s/run/agent.sock", f.folder);
    assert_int_equal(frame_connect(path, &fd, NULL), TITAN_OK);
    if (len)
        assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
    /* The agent closes on us. */
    char byte;
    ssize_t n;
    UNTIL((n = recv(fd, &byte, 1, MSG_DONTWAIT)) == 0 || (n < 0 && errno == ECONNRESET));
    (void)close(fd);
}

static void test_garbage_on_the_socket(void **state)
{
    (void)state;
    train_two("# spin");
    static const uint8_t oversize[] = {0xff, 0xff, 0xff, 0x7f, 1, 2, 3};
    static const uint8_t no_message[] = {4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t no_descriptor[] = {1, 0, 0, 0x80, 0};
    uint8_t noise[3000];
    unsigned seed = 12345;
    print_message("# seed %u\n", seed);
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)(rand_r(&seed) >> 8);
    send_raw(oversize, sizeof(oversize));
    send_raw(no_message, sizeof(no_message));
    send_raw(no_descriptor, sizeof(no_descriptor));
    send_raw(noise, sizeof(noise));
    size_t seen = f.n;
    UNTIL(GOT(seen, PROGRESS, 10)); /* the others did not notice */
}

static void test_wrong_token(void **state)
{
    (void)state;
    train_two("# spin");
    Titan__Internal__WorkerRegistration registration = TITAN__INTERNAL__WORKER_REGISTRATION__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    uint8_t token[16] = {0}, bytes[256];
    registration.job_id = 1;
    registration.worker_id = 10;
    registration.pid = pid_of(10);
    registration.token.data = token;
    registration.token.len = sizeof(token);
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_REGISTRATION;
    message.registration = &registration;
    size_t len = titan__internal__worker_to_agent__pack(&message, bytes + 4);
    bytes[0] = (uint8_t)len;
    bytes[1] = bytes[2] = bytes[3] = 0;
    send_raw(bytes, len + 4);
    size_t seen = f.n;
    UNTIL(GOT(seen, PROGRESS, 10));
}

static void request_log(uint64_t id, int32_t rank, uint32_t tail, bool follow, bool cancel)
{
    Titan__Internal__LogRequest request = TITAN__INTERNAL__LOG_REQUEST__INIT;
    Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    request.request_id = id;
    request.job_id = 1;
    request.rank = rank;
    request.tail_lines = tail;
    request.follow = follow;
    request.cancel = cancel;
    out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG;
    out.log = &request;
    say(&out);
}

/* All text of a request so far; true once its end came. */
static bool log_text(uint64_t id, struct buf *out)
{
    bool end = false;
    for (size_t i = 0; i < f.n; i++) {
        if (f.inbox[i]->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_LOG || f.inbox[i]->log->request_id != id)
            continue;
        const Titan__Internal__AgentLogChunk *chunk = f.inbox[i]->log;
        assert_false(end);
        if (out && chunk->data.len) {
            assert_int_equal(chunk->data.data[chunk->data.len - 1], '\n');
            assert_int_equal(buf_append(out, chunk->data.data, chunk->data.len), TITAN_OK);
        }
        end = chunk->end;
    }
    return end;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = text; p && (p = strstr(p, what)); p++)
        n++;
    return n;
}

static void test_logs(void **state)
{
    (void)state;
    train_two("# spin");
    UNTIL(log_has(10, "step 8") && log_has(11, "step 8"));
    stop_workers((uint32_t)patience_ms(60));
    UNTIL(GOT(0, WORKER_EXITED, 10) && GOT(0, WORKER_EXITED, 11));
    struct buf all = BUF_INIT, one = BUF_INIT, tail = BUF_INIT;
    request_log(1, -1, 0, false, false);
    request_log(2, 1, 0, false, false);
    request_log(3, 0, 3, false, false);
    UNTIL(log_text(1, NULL) && log_text(2, NULL) && log_text(3, NULL));
    (void)log_text(1, &all);
    (void)log_text(2, &one);
    (void)log_text(3, &tail);
    assert_non_null(strstr(all.data, "rank 0 of 2"));
    assert_non_null(strstr(all.data, "rank 1 of 2"));
    assert_null(strstr(one.data, "rank 0"));
    assert_non_null(strstr(one.data, "rank 1 of 2"));
    assert_int_equal(count(tail.data, "\n"), 3);
    assert_non_null(strstr(tail.data, "leaving"));
    buf_free(&all);
    buf_free(&one);
    buf_free(&tail);
}

static void test_logs_follow(void **state)
{
    (void)state;
    train_two("# spin");
    request_log(1, 0, 1, true, false);
    UNTIL(f.n > 0 && GOT(0, LOG, 0));
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/logs/worker-10.log", f.job_dir);
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "marker one\nhalf a", 17), 17);
    struct buf text = BUF_INIT;
    UNTIL((buf_clear(&text), log_text(1, &text), text.data && strstr(text.data, "marker one")));
    (void)close(fd);
    request_log(1, 0, 0, true, true);
    UNTIL(log_text(1, NULL));
    buf_free(&text);
}

static void test_logs_of_an_unknown_job(void **state)
{
    (void)state;
    request_log(1, -1, 0, false, false);
    UNTIL(log_text(1, NULL));
}

/* A slot each, 'w' for well, 'f' for faulty, '?' for not looked at, as the agent has reported them last. */
static const char *gpus(void)
{
    static char text[8];
    text[0] = '\0';
    for (size_t i = 0; i < f.n; i++) {
        const Titan__Internal__AgentMessage *m = f.inbox[i];
        const Titan__Internal__NodeGpus *all = m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_GPUS ? m->gpus
                                               : m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION
                                                   ? m->registration->gpus
                                                   : NULL;
        if (!all)
            continue;
        assert_int_equal(all->n_gpus, 4);
        for (size_t k = 0; k < 4; k++)
            text[k] = all->gpus[k]->health == TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY  ? 'w'
                      : all->gpus[k]->health == TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY ? 'f'
                                                                                        : '?';
    }
    return text;
}

static void release_gpus(uint32_t *slots, size_t n)
{
    Titan__Internal__ReleaseGpus release = TITAN__INTERNAL__RELEASE_GPUS__INIT;
    Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    release.slots = slots;
    release.n_slots = n;
    out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_RELEASE_GPUS;
    out.release_gpus = &release;
    say(&out);
}

/* All slots that the coordinator names come back into use, and no other; a slot that it lacks does nothing. */
static void test_gpus_are_released(void **state)
{
    (void)state;
    static const char values[] = "GPU-a H100 81559 0 41 3 0 0:0\nGPU-b H100 81559 0 41 0 0 0:0\n"
                                 "GPU-c H100 81559 0 41 1 0 0:0\nGPU-d H100 81559 0 41 2 0 0:0\n";
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/gpus", f.folder);
    assert_int_equal(file_replace(path, values, sizeof(values) - 1, NULL), TITAN_OK);
    assert_int_equal(setenv("TITAN_FAKE_NVML", path, 1), 0);
    assert_int_equal(setenv("TITAN_NVML", TITAN_BUILD_DIR "/tests/nvml/libnvidia-ml.so.1", 1), 0);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3", 1), 0);
    f.cuda = true;
    agent_up();
    UNTIL(strcmp(gpus(), "fwff") == 0);
    release_gpus((uint32_t[]){0, 3, 4}, 3);
    UNTIL(strcmp(gpus(), "wwfw") == 0);
    release_gpus(NULL, 0);
    release_gpus((uint32_t[]){2}, 1);
    UNTIL(strcmp(gpus(), "wwww") == 0);
}

static uint64_t log_bytes(uint64_t worker, const char *suffix)
{
    char path[PATH_MAX];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/logs/worker-%" PRIu64 ".log%s", f.job_dir, worker, suffix);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void test_logs_are_bounded(void **state)
{
    (void)state;
    train_two("# chatty");
    uint64_t most = 0;
    for (int rounds = 0; rounds < 2;) {
        uint64_t before = log_bytes(10, "");
        UNTIL(log_bytes(10, "") != before);
        uint64_t now = log_bytes(10, "") + log_bytes(10, ".1");
        most = now > most ? now : most;
        rounds += log_bytes(10, "") < before;
    }
    stop_workers(0);
    UNTIL(GOT(0, WORKER_EXITED, 10));
    print_message("# limit 131072, most seen %" PRIu64 ", kept %" PRIu64 "\n", most,
                  log_bytes(10, "") + log_bytes(10, ".1"));
    assert_true(log_bytes(10, ".1") <= 131072);
    request_log(1, 0, 0, false, false);
    UNTIL(log_text(1, NULL));
}

static void checkpoint_make(const char *name, bool whole, char out[PATH_MAX])
{
    char manifest[PATH_MAX + 16];
    (void)snprintf(out, PATH_MAX, "%s/elsewhere/%s", f.folder, name);
    (void)snprintf(manifest, sizeof(manifest), "%s/manifest.json", out);
    assert_int_equal(dir_make(out, NULL), TITAN_OK);
    if (whole)
        assert_int_equal(file_replace(manifest, "{}", 2, NULL), TITAN_OK);
}

/* An agent removes nothing, whatever it is told: it cannot know the owner of a checkpoint. */
static void test_expired_checkpoints(void **state)
{
    (void)state;
    char old[PATH_MAX], part[PATH_MAX], other[PATH_MAX];
    checkpoint_make("step-00000010", true, old);
    checkpoint_make("step-00000020", false, part);
    checkpoint_make("home", true, other);
    char *paths[] = {other, part, (char *)"relative/step-1", (char *)"", old};
    Titan__Internal__CheckpointCommitted committed = TITAN__INTERNAL__CHECKPOINT_COMMITTED__INIT;
    Titan__Internal__CoordinatorMessage out = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    committed.job_id = 1;
    committed.step = 30;
    committed.expired_paths = paths;
    committed.n_expired_paths = ARRAY_SIZE(paths);
    out.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED;
    out.checkpoint_committed = &committed;
    say(&out);
    train_two("# spin"); /* a later command is obeyed by now */
    assert_int_equal(access(old, F_OK), 0);
    assert_int_equal(access(part, F_OK), 0);
    assert_int_equal(access(other, F_OK), 0);
}

/* The coordinator goes away and comes back: registration again with those that are alive; what happened meanwhile is
 * told. */
static void test_coordinator_restarts(void **state)
{
    (void)state;
    train_two("# spin");
    char *address = strdup(GOT(0, WORKER_READY, 10)->worker_ready->address);
    pid_t victim = pid_of(11);
    server_close();
    assert_int_equal(kill(victim, SIGKILL), 0);
    UNTIL(agent_workers(f.agent) == 1);
    forget();
    server_open();
    UNTIL(f.session && GOT(0, WORKER_EXITED, 11));
    Titan__Internal__AgentRegistration *registration = GOT(0, REGISTRATION, 0)->registration;
    assert_int_equal(registration->n_workers, 1);
    assert_int_equal(registration->workers[0]->worker_id, 10);
    assert_int_equal(registration->workers[0]->job_id, 1);
    assert_int_equal(registration->workers[0]->epoch, 1);
    assert_int_equal(registration->workers[0]->state, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING);
    assert_string_equal(registration->workers[0]->address, address);
    UNTIL(GOT(0, PROGRESS, 10));
    free(address);
}

/* An agent that is a process of its own. */
static pid_t agent_process(void)
{
    char lease[24];
    char *argv[] = {f.self, (char *)"agent", f.folder, f.address, lease, NULL};
    pid_t pid;
    (void)snprintf(lease, sizeof(lease), "%u", f.lease_ms);
    f.session = NULL;
    assert_int_equal(posix_spawn(&pid, f.self, NULL, NULL, argv, environ), 0);
    UNTIL(f.session);
    return pid;
}

static void reap(pid_t pid, int signal)
{
    int status;
    assert_int_equal(kill(pid, signal), 0);
    UNTIL(waitpid(pid, &status, WNOHANG) == pid);
    if (signal != SIGKILL)
        assert_int_equal(status, 0);
}

static void test_adoption(void **state)
{
    (void)state;
    pid_t first = agent_process();
    train_two("# spin");
    pid_t worker = pid_of(10), other = pid_of(11);
    reap(first, SIGKILL);
    UNTIL(!f.session);
    uint64_t before = log_bytes(10, "");
    UNTIL(log_bytes(10, "") > before + 50); /* it goes on alone */
    size_t seen = f.n;
    int64_t start = clock_mono_ns();
    pid_t second = agent_process();
    UNTIL(GOT(seen, PROGRESS, 10));
    print_message("# from the new agent's start to an adopted worker's progress: %.1f ms\n",
                  (double)(clock_mono_ns() - start) / 1e6);
    Titan__Internal__AgentRegistration *registration = GOT(seen, REGISTRATION, 0)->registration;
    assert_int_equal(registration->n_workers, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(registration->workers[i]->epoch, 1);
        assert_int_equal(registration->workers[i]->rank, registration->workers[i]->worker_id - 10);
        assert_string_equal(registration->workers[i]->address,
                            GOT(0, WORKER_READY, registration->workers[i]->worker_id)->worker_ready->address);
        assert_true(registration->workers[i]->step > 0);
    }
    start = clock_mono_ns();
    assert_int_equal(kill(worker, SIGKILL), 0);
    UNTIL(GOT(seen, WORKER_EXITED, 10));
    print_message("# death of an adopted worker reported after %.2f ms\n", (double)(clock_mono_ns() - start) / 1e6);
    revoke_epoch(1);
    UNTIL(GOT(seen, WORKER_QUIESCED, 11));
    stop_workers(0);
    UNTIL(GOT(seen, WORKER_EXITED, 11));
    UNTIL(gone(other));
    reap(second, SIGTERM);
}

static void check_failed(size_t seen, uint64_t worker)
{
    char path[PATH_MAX], words[64];
    UNTIL(GOT(seen, WORKER_EXITED, worker));
    const Titan__Internal__WorkerExited *e = GOT(seen, WORKER_EXITED, worker)->worker_exited;
    (void)snprintf(words, sizeof(words), "rank %" PRIu64 " cannot go on", worker - 10);
    assert_int_equal(e->job_id, 1);
    assert_int_equal(e->exit_code, titan_status_exit(TITAN_EINVAL));
    assert_int_equal(e->signal, 0);
    assert_int_equal(e->cause, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT);
    assert_string_equal(e->reason, words);
    assert_true(e->last_step > 0);
    (void)snprintf(path, sizeof(path), "%s/run/pages/w%" PRIu64 ".page", f.folder, worker);
    assert_int_equal(access(path, F_OK), -1);
}

/* What two of them failed of while they had no agent is told by the next one. The third is ended as its lease is over:
 * that is no failure of its own, and its exit is not told of. */
static void test_failures_without_an_agent(void **state)
{
    (void)state;
    f.lease_ms = patience_stretched(1000); /* the two fail before */
    pid_t first = agent_process();
    train_two("# fail without an agent");
    start_workers("# deaf, fail without an agent", 12, 1);
    UNTIL(GOT(0, WORKER_READY, 12));
    pid_t workers[] = {pid_of(10), pid_of(11), pid_of(12)};
    reap(first, SIGKILL);
    UNTIL(!f.session);
    UNTIL(gone(workers[0]) && gone(workers[1]));
    UNTIL(gone(workers[2]));
    size_t seen = f.n;
    pid_t second = agent_process();
    assert_int_equal(GOT(seen, REGISTRATION, 0)->registration->n_workers, 0);
    check_failed(seen, 10);
    check_failed(seen, 11);
    UNTIL(f.heartbeats > 0); /* of this session: what waited came before it */
    assert_null(GOT(seen, WORKER_EXITED, 12));
    reap(second, SIGTERM);
}

/* Without another agent, workers stop by themselves when their lease is over; the next one tells why and clears their
 * pages away. */
static void test_lease(void **state)
{
    (void)state;
    f.lease_ms = patience_stretched(1000);
    pid_t first = agent_process();
    train_two("# spin");
    pid_t worker = pid_of(10), other = pid_of(11);
    int64_t start = clock_mono_ns();
    reap(first, SIGKILL);
    UNTIL(gone(worker) && gone(other));
    double ms = (double)(clock_mono_ns() - start) / 1e6;
    print_message("# lease %u ms: gone after %.0f ms\n", f.lease_ms, ms);
    assert_true(log_has(10, "no agent for the whole lease"));
    size_t seen = f.n;
    pid_t second = agent_process();
    assert_int_equal(GOT(seen, REGISTRATION, 0)->registration->n_workers, 0);
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/run/pages/w10.page", f.folder);
    assert_int_equal(access(path, F_OK), -1);
    UNTIL(GOT(seen, WORKER_EXITED, 10) && GOT(seen, WORKER_EXITED, 11));
    const Titan__Internal__WorkerExited *e = GOT(seen, WORKER_EXITED, 10)->worker_exited;
    assert_int_equal(e->exit_code, 0);
    assert_int_equal(e->cause, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NONE);
    assert_string_equal(e->reason, "no agent for the whole lease");
    reap(second, SIGTERM);
}

/* Others may seem to stall, and this one before it is known to be stopped, where the machine is busy. */
static const Titan__Internal__WorkerStalled *told_stopped(uint64_t worker)
{
    for (size_t i = 0; i < f.n; i++)
        if (f.inbox[i]->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_STALLED && f.inbox[i]->stalled->stopped &&
            f.inbox[i]->stalled->worker_id == worker)
            return f.inbox[i]->stalled;
    return NULL;
}

static void test_stopped_worker_is_told_of(void **state)
{
    (void)state;
    train_two("# spin");
    pid_t victim = pid_of(11);
    int64_t begin = clock_mono_ns();
    assert_int_equal(kill(victim, SIGSTOP), 0);
    UNTIL(told_stopped(11));
    print_message("# a stopped worker is told of after %.0f ms\n", (double)(clock_mono_ns() - begin) / 1e6);
    assert_int_equal(told_stopped(11)->epoch, 1);
    /* It cannot leave its epoch, and is killed when it has not, by the agent alone. */
    revoke_epoch(1);
    begin = clock_mono_ns();
    UNTIL(GOT(0, WORKER_EXITED, 11));
    print_message("# one that does not leave its epoch is gone after %.0f ms\n",
                  (double)(clock_mono_ns() - begin) / 1e6);
    assert_true(clock_mono_ns() - begin > INT64_C(900000000));
    const Titan__Internal__WorkerExited *e = GOT(0, WORKER_EXITED, 11)->worker_exited;
    assert_int_equal(e->cause, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_HANG);
    assert_int_equal(e->signal, SIGKILL);
    assert_non_null(strstr(e->reason, "epoch 1"));
    assert_null(GOT(0, WORKER_EXITED, 10)); /* it did */
}

static bool record_says(const char *name, const char *text)
{
    char path[PATH_MAX];
    struct buf have = BUF_INIT;
    (void)snprintf(path, sizeof(path), "%s/run/%s", f.folder, name);
    bool same = file_read(path, 65536, &have, NULL) == TITAN_OK && have.data && (!text || !strcmp(have.data, text));
    buf_free(&have);
    return same;
}

static void test_an_older_coordinator_is_refused(void **state)
{
    (void)state;
    f.term = 5;
    agent_up();
    UNTIL(record_says("term", "5\n"));
    train_two("# spin");
    UNTIL(record_says("jobs/1.epoch", NULL));
    agent_down(false); /* and the agent is another, which has read it */
    forget();
    f.term = 4;
    agent_up();
    UNTIL(GOT(0, REGISTRATION, 0) && GOT(0, REFUSED, 0));
    assert_int_equal(GOT(0, REGISTRATION, 0)->registration->seen_term, 5);
    assert_int_equal(GOT(0, REFUSED, 0)->refused->seen_term, 5);
    UNTIL(!f.session); /* ended by the agent */
    assert_false(agent_connected(f.agent));
    f.term = 6;
    forget();
    UNTIL(agent_connected(f.agent) && GOT(0, PROGRESS, 10));
    UNTIL(record_says("term", "6\n"));
    assert_int_equal(GOT(0, PROGRESS, 10)->term, 6);
}

/* Let go of at close: they live on, and the next agent has them. */
static void test_coordinator_that_holds_the_session(void **state)
{
    (void)state;
    f.holds = true;
    agent_down(false);
    UNTIL(!f.session);
}

static void test_keep_workers(void **state)
{
    (void)state;
    train_two("# spin");
    pid_t worker = pid_of(10);
    agent_down(false);
    assert_false(gone(worker));
    size_t seen = f.n;
    agent_up();
    UNTIL(GOT(seen, REGISTRATION, 0));
    assert_int_equal(GOT(seen, REGISTRATION, 0)->registration->n_workers, 2);
    stop_workers(0);
    /* They are this process's children still: reaped here, as init would. */
    UNTIL(GOT(seen, WORKER_EXITED, 10) && GOT(seen, WORKER_EXITED, 11));
    UNTIL(waitpid(worker, NULL, WNOHANG) != 0);
}

/* An address that is not this machine's: an agent that cannot be probed is an agent all the same. */
static void test_foreign_address(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct agent_options options = agent_options(f.folder, f.address, f.self, f.lease_ms);
    options.address = "192.0.2.7";
    assert_int_equal(agent_open(&f.loop, &options, &f.agent, &err), TITAN_OK);
    UNTIL(f.session);
}

static void test_no_worker_program(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct agent_options options = agent_options(f.folder, f.address, "/nowhere/titan-worker", f.lease_ms);
    assert_int_equal(agent_open(&f.loop, &options, &f.agent, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nowhere/titan-worker"));
    options = agent_options(f.folder, f.address, f.self, f.lease_ms);
    options.device = "abacus";
    assert_int_equal(agent_open(&f.loop, &options, &f.agent, &err), TITAN_EINVAL);
    assert_null(f.agent);
}

/* --- the agent as a process --------------------------------------------------------------------------------------- */

static struct agent *own_agent;

static void on_term(uv_signal_t *handle, int signal)
{
    (void)signal;
    uv_close((uv_handle_t *)handle, NULL);
    agent_close(own_agent, false, 0, NULL, NULL);
}

static int agent_main(char **argv)
{
    char self[PATH_MAX] = "";
    struct titan_error err = {0};
    uv_loop_t loop;
    uv_signal_t term;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves none */
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0 || uv_loop_init(&loop) != 0 ||
        uv_signal_init(&loop, &term) != 0 || uv_signal_start(&term, on_term, SIGTERM) != 0)
        return 1;
    log_set_level(LOG_LEVEL_WARN);
    struct agent_options options = agent_options(argv[2], argv[3], self, (uint32_t)strtoul(argv[4], NULL, 10));
    if (agent_open(&loop, &options, &own_agent, &err) != TITAN_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    return uv_loop_close(&loop) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "serve"))
        return serve(argc, argv);
    if (argc == 5 && !strcmp(argv[1], "agent"))
        return agent_main(argv);
    (void)signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_workers_train, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_death_is_reported, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_death_of_a_large_worker, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_revoke_and_form_again, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_finish, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_last_words, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_stop, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_stop_of_a_deaf_worker, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_no_orphans, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_oom_score, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_cgroup, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_slots, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_bad_job_directory, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_garbage_on_the_socket, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_token, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_logs, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_logs_follow, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_logs_of_an_unknown_job, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_logs_are_bounded, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_expired_checkpoints, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_coordinator_restarts, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_stopped_worker_is_told_of, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_an_older_coordinator_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_coordinator_that_holds_the_session, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_keep_workers, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_adoption, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failures_without_an_agent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_address, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_worker_program, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpus_are_released, setup, teardown), /* last: its environment stays */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
