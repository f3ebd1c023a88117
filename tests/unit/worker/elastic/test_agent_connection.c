/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's connection to its agent, with the agent played by this test over a real socket and page. */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/frame.h"
#include "base/log.h"
#include "base/progress.h"
#include "daemon/agent/shell/page_watch.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "titan/internal/worker.pb-c.h"
#include "worker/elastic/member.h"
#include "worker/elastic/solo.h"

#define JOB 3
#define WORKER 7

static struct {
    char folder[64], socket[128], page_path[128];
    struct worker_page *page;
    int listener, fd;
    struct frame_reader in;
    Titan__Internal__WorkerToAgent *last;
    struct membership *m;
} f;

static int setup_agent(void **state)
{
    (void)state;
    struct titan_error err = {0};
    memset(&f, 0, sizeof(f));
    f.fd = -1;
    (void)snprintf(f.folder, sizeof(f.folder), "/tmp/titan-agent-connection-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    (void)snprintf(f.socket, sizeof(f.socket), "%s/agent.sock", f.folder);
    (void)snprintf(f.page_path, sizeof(f.page_path), "%s/w7.page", f.folder);
    assert_int_equal(page_create(f.page_path, JOB, WORKER, 0, &f.page, &err), TITAN_OK);
    f.page->pid = getpid();
    assert_int_equal(frame_listen(f.socket, &f.listener, &err), TITAN_OK);
    return 0;
}

static int setup(void **state)
{
    struct titan_error err = {0};
    (void)setup_agent(state);
    struct agent_connection_options options = {.socket = f.socket,
                                               .page = f.page_path,
                                               .job_id = JOB,
                                               .worker_id = WORKER,
                                               .host = "127.0.0.1",
                                               .job_dir = f.folder};
    if (membership_agent_open(&options, &f.m, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    f.m->ops->opened(f.m);
    return 0;
}

static void hang_up(void)
{
    if (f.fd >= 0)
        (void)close(f.fd);
    f.fd = -1;
    frame_reader_clear(&f.in);
}

static int teardown(void **state)
{
    (void)state;
    if (f.m)
        f.m->ops->close(f.m);
    hang_up();
    (void)close(f.listener);
    if (f.last)
        titan__internal__worker_to_agent__free_unpacked(f.last, NULL);
    page_close(f.page);
    return dir_remove(f.folder, NULL) == TITAN_OK ? 0 : -1;
}

static void wait_for(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    assert_int_equal(poll(&p, 1, patience_ms(60)), 1);
}

/* The next message of the worker; valid until the next one. */
static const Titan__Internal__WorkerToAgent *hear(void)
{
    struct titan_error err = {0};
    const uint8_t *data;
    size_t len;
    int fd;
    while (frame_next(&f.in, FRAME_MAX, &data, &len, &fd, &err) == TITAN_EAGAIN) {
        wait_for(f.fd, POLLIN);
        assert_int_equal(frame_receive(&f.in, f.fd, &err), TITAN_OK);
    }
    assert_int_equal(err.status, TITAN_OK);
    if (f.last)
        titan__internal__worker_to_agent__free_unpacked(f.last, NULL);
    f.last = titan__internal__worker_to_agent__unpack(NULL, len, data);
    assert_non_null(f.last);
    return f.last;
}

static const Titan__Internal__WorkerRegistration *answer_the_call(void)
{
    wait_for(f.listener, POLLIN);
    f.fd = accept4(f.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(f.fd >= 0);
    const Titan__Internal__WorkerToAgent *m = hear();
    assert_int_equal(m->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_REGISTRATION);
    return m->registration;
}

static void say(Titan__Internal__AgentToWorker *m, int fd)
{
    uint8_t bytes[65536];
    struct frame_writer w = {0};
    size_t len = titan__internal__agent_to_worker__pack(m, bytes);
    assert_int_equal(frame_put(&w, bytes, len, fd, NULL), TITAN_OK);
    assert_int_equal(frame_flush(&w, f.fd, NULL), TITAN_OK);
    frame_writer_clear(&w);
}

struct form_of {
    uint64_t epoch;
    uint32_t world, rank;
    int memfd; /* 0: none */
};
#define say_form(...) say_form_of((struct form_of){__VA_ARGS__})
static void say_form_of(struct form_of reported)
{
    Titan__Internal__AgentToWorker m = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    Titan__Internal__Member members[8], *list[8];
    uint64_t holders[2] = {WORKER, 4242};
    unsigned char id[16] = "0123456789abcde";
    for (uint32_t i = 0; i < reported.world; i++) {
        titan__internal__member__init(&members[i]);
        members[i].worker_id = i == reported.rank ? WORKER : 100 + i;
        members[i].address = (char *)"10.0.0.1:5";
        list[i] = &members[i];
    }
    form.job_id = JOB;
    form.epoch = reported.epoch;
    form.comm_id.data = id;
    form.comm_id.len = 16;
    form.members = list;
    form.n_members = reported.world;
    form.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    form.resume_step = 10 * reported.epoch;
    form.checkpoint_path = (char *)"/c/step-1";
    form.state_holders = holders;
    form.n_state_holders = 2;
    m.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM;
    m.form = &form;
    say(&m, reported.memfd ? reported.memfd : -1);
}

static void say_revoke(uint64_t epoch)
{
    Titan__Internal__AgentToWorker m = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    Titan__Internal__RevokeEpoch revoke = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    revoke.job_id = JOB;
    revoke.epoch = epoch;
    m.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE;
    m.revoke = &revoke;
    say(&m, -1);
}

static void say_pause(uint64_t epoch, uint32_t world)
{
    Titan__Internal__AgentToWorker out = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    Titan__Internal__PauseJob pause_command = TITAN__INTERNAL__PAUSE_JOB__INIT;
    pause_command.job_id = JOB;
    pause_command.epoch = epoch;
    pause_command.world = world;
    out.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE;
    out.pause = &pause_command;
    say(&out, -1);
}

static void say_lease_at(uint32_t ms, const char *host)
{
    Titan__Internal__AgentToWorker m = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    Titan__Internal__WorkerLease lease = TITAN__INTERNAL__WORKER_LEASE__INIT;
    lease.lease_ms = ms;
    lease.host = (char *)(uintptr_t)host;
    m.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE;
    m.lease = &lease;
    say(&m, -1);
}

static void say_lease(uint32_t ms)
{
    say_lease_at(ms, ""); /* an older agent */
}

static void hear_quiesced(uint64_t epoch, uint64_t step)
{
    const Titan__Internal__WorkerToAgent *m = hear();
    assert_int_equal(m->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED);
    assert_int_equal(m->quiesced->epoch, epoch);
    assert_int_equal(m->quiesced->last_step, step);
}

static void test_registration(void **state)
{
    (void)state;
    const Titan__Internal__WorkerRegistration *registration = answer_the_call();
    assert_int_equal(registration->job_id, JOB);
    assert_int_equal(registration->worker_id, WORKER);
    assert_int_equal(registration->pid, getpid());
    assert_int_equal(registration->token.len, 16);
    assert_memory_equal(registration->token.data, f.page->token, 16);
    assert_int_equal(registration->phase, TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE);
    char *address = strdup(registration->address);
    assert_int_equal(page_owner(f.page), PAGE_ALIVE);
    const Titan__Internal__WorkerToAgent *m = hear();
    assert_int_equal(m->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY);
    assert_memory_equal(m->ready->address, "127.0.0.1:", 10);
    assert_true(!*address || strcmp(m->ready->address, address) == 0); /* none before it was ready */
    assert_true(f.m->listener >= 0);
    free(address);
}

/* The node has another address since its agent was started again: the worker listens there and nowhere else. */
static void test_moved(void **state)
{
    (void)state;
    struct sockaddr_in at;
    socklen_t size = sizeof(at);
    (void)answer_the_call();
    assert_memory_equal(hear()->ready->address, "127.0.0.1:", 10);
    const int number = f.m->listener;
    say_lease_at(60000, "127.0.0.1");
    say_lease_at(60000, "127.0.0.2");
    const Titan__Internal__WorkerToAgent *m = hear();
    assert_int_equal(m->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY);
    assert_memory_equal(m->ready->address, "127.0.0.2:", 10);
    const int port = atoi(m->ready->address + 10);
    assert_int_equal(f.m->listener, number);
    assert_int_equal(getsockname(f.m->listener, (struct sockaddr *)&at, &size), 0);
    assert_int_equal(ntohl(at.sin_addr.s_addr), INADDR_LOOPBACK + 1);
    assert_int_equal(ntohs(at.sin_port), port);
    say_lease(60000);
    hang_up();
    assert_memory_equal(answer_the_call()->address, "127.0.0.2:", 10);
}

static void test_page_of_another(void **state)
{
    (void)state;
    struct membership *m;
    struct titan_error err = {0};
    struct agent_connection_options options = {.socket = f.socket,
                                               .page = f.page_path,
                                               .job_id = JOB,
                                               .worker_id = WORKER + 1,
                                               .host = "127.0.0.1",
                                               .job_dir = f.folder};
    assert_int_equal(membership_agent_open(&options, &m, &err), TITAN_EINVAL);
    options.worker_id = WORKER; /* ours, but taken already */
    assert_int_equal(membership_agent_open(&options, &m, &err), TITAN_EINVAL);
    options.page = "/nowhere/page";
    assert_int_equal(membership_agent_open(&options, &m, &err), TITAN_ENOTFOUND);
}

static void test_epoch_view(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    struct stat sent, got;
    int fd = memfd_create("test", MFD_CLOEXEC);
    (void)answer_the_call();
    say_form(.epoch = 5, .world = 3, .rank = 2, .memfd = fd);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    assert_int_equal(view.epoch, 5);
    assert_int_equal(view.rank, 2);
    assert_int_equal(view.world, 3);
    assert_int_equal(view.resume_step, 50);
    assert_int_equal(view.source, STATE_FROM_MEMORY);
    assert_string_equal(view.checkpoint_path, "/c/step-1");
    assert_string_equal(view.addresses[1], "10.0.0.1:5");
    assert_memory_equal(view.comm_id, "0123456789abcde", 16);
    assert_int_equal(view.holders, 2);
    assert_int_equal(view.holder_ranks[0], 2);
    assert_int_equal(view.holder_ranks[1], -1);
    assert_int_equal(fstat(fd, &sent) | fstat(view.memfd, &got), 0);
    assert_int_equal(sent.st_ino, got.st_ino);
    assert_int_equal(atomic_load(&f.page->epoch), 5);
    (void)close(fd);
}

/* Commands that make no sense are refused; the next good one is taken. */
static void test_bad_forms(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    log_set_level(LOG_LEVEL_ERROR);
    (void)answer_the_call();
    (void)hear();                     /* ready */
    say_form(.epoch = 1, .world = 0); /* no member: what cannot be ends the connection */
    wait_for(f.fd, POLLIN);
    assert_int_equal(recv(f.fd, (char[16]){0}, 16, 0), 0);
    hang_up();
    (void)answer_the_call();
    say_form(.epoch = 1, .world = 3, .rank = 9); /* without us */
    say_form(.epoch = 2, .world = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    assert_int_equal(view.epoch, 2);
    assert_int_equal(view.memfd, -1);
}

static int is_revoked(void)
{
    return __atomic_load_n(f.m->ops->revoked(f.m), __ATOMIC_ACQUIRE);
}

static atomic_int revoked_calls;

static void count_revoke(void *arg)
{
    (void)arg;
    (void)atomic_fetch_add(&revoked_calls, 1);
}

static void test_revoke(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    atomic_store(&revoked_calls, 0);
    (void)answer_the_call();
    (void)hear(); /* ready */
    say_form(.epoch = 1, .world = 2);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    f.m->ops->on_revoke(f.m, count_revoke, NULL);
    say_revoke(0); /* an older one */
    say_revoke(1);
    int64_t start = clock_mono_ns();
    AWAIT(atomic_load(&revoked_calls) == 1);
    print_message("# revoke took %.2f ms to reach the callback\n", (double)(clock_mono_ns() - start) / 1e6);
    assert_true(is_revoked());
    f.m->ops->on_revoke(f.m, NULL, NULL);
    f.m->ops->quiesced(f.m, &(struct quiesced){.epoch = 1, .last_step = 17, .installed_epoch = 1});
    hear_quiesced(1, 17);
    /* One that is over is said to be left, and never forms; its successor starts unrevoked. */
    say_revoke(2);
    hear_quiesced(2, 17); /* what it holds is as it was */
    say_form(.epoch = 2, .world = 2);
    say_form(.epoch = 3, .world = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    assert_int_equal(view.epoch, 3);
    assert_false(is_revoked());
    /* A later epoch revokes the one before it. */
    say_form(.epoch = 4, .world = 1);
    AWAIT(is_revoked());
    say_revoke(3); /* late: must not hit epoch 4 */
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    assert_int_equal(view.epoch, 4);
    say_pause(4, 0);
    AWAIT(f.m->ops->commands(f.m) != 0); /* so the late command has come, too */
    assert_false(is_revoked());
}

/* Revoked before the training thread has taken it: the coordinator waits for a word on it all the same. */
static void test_revoked_on_offer(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    (void)answer_the_call();
    (void)hear(); /* ready */
    say_form(.epoch = 5, .world = 2);
    say_revoke(5);
    hear_quiesced(5, 0);
    say_form(.epoch = 6, .world = 2);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    assert_int_equal(view.epoch, 6);
    assert_false(is_revoked());
}

static void test_pause_and_stop(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    Titan__Internal__AgentToWorker m = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    Titan__Internal__PauseJob pause_command = TITAN__INTERNAL__PAUSE_JOB__INIT;
    Titan__Internal__WorkerStop stop = TITAN__INTERNAL__WORKER_STOP__INIT;
    (void)answer_the_call();
    say_form(.epoch = 1, .world = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    assert_int_equal(f.m->ops->commands(f.m), 0);
    pause_command.job_id = JOB;
    pause_command.epoch = 1;
    pause_command.checkpoint = true;
    m.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE;
    m.pause = &pause_command;
    say(&m, -1);
    AWAIT(f.m->ops->commands(f.m) == (COMMAND_PAUSE | COMMAND_CHECKPOINT | COMMAND_MUST));
    say_form(.epoch = 2, .world = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    assert_int_equal(f.m->ops->commands(f.m), 0); /* the pause was for epoch 1 */
    stop.reason = (char *)"enough";
    m.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_STOP;
    m.stop = &stop;
    say(&m, -1);
    AWAIT(f.m->ops->commands(f.m) == COMMAND_STOP);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_ECANCELLED);
    assert_string_equal(err.msg, "enough");
}

static void note_world(void *arg, int world)
{
    atomic_store((atomic_int *)arg, world);
}

/* How many there will be is told as soon as it is known, and to a caller that asks later. */
static void test_next_world(void **state)
{
    (void)state;
    atomic_int seen = 0, later = 0;
    (void)answer_the_call();
    (void)hear(); /* ready */
    f.m->ops->on_next_world(f.m, note_world, &seen);
    assert_int_equal(atomic_load(&seen), 0);
    say_pause(3, 5); /* of an epoch that it is to join behind */
    AWAIT(atomic_load(&seen) == 5);
    f.m->ops->on_next_world(f.m, note_world, &later);
    assert_int_equal(atomic_load(&later), 5);
    f.m->ops->on_next_world(f.m, note_world, &seen);
    say_pause(4, 1); /* it will be alone */
    AWAIT(atomic_load(&seen) == 1);
    f.m->ops->on_next_world(f.m, note_world, &later);
    assert_int_equal(atomic_load(&later), 1);
    f.m->ops->on_next_world(f.m, NULL, NULL);
    say_form(.epoch = 1, .world = 2, .rank = 1);
    struct epoch_view view;
    assert_int_equal(f.m->ops->next(f.m, &view, NULL), TITAN_OK);
    say_pause(1, 7);
    AWAIT(f.m->ops->commands(f.m) == 1);
    assert_int_equal(atomic_load(&later), 1);
}

/* The agent goes away and another comes: registration says where we are, what it may not know is said again, in order.
 */
static void test_another_agent(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    (void)answer_the_call();
    (void)hear(); /* ready */
    say_form(.epoch = 1, .world = 2, .rank = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    f.m->ops->checkpoint_written(
        f.m, &(struct checkpoint_report){.step = 20, .bytes = 1234, .path = "/c/step-20", .world = 2});
    assert_int_equal(hear()->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT);
    hang_up();
    const Titan__Internal__WorkerRegistration *registration = answer_the_call();
    assert_int_equal(registration->epoch, 1);
    assert_int_equal(registration->rank, 1);
    const Titan__Internal__WorkerToAgent *m = hear(); /* not confirmed: said again */
    assert_int_equal(m->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT);
    assert_int_equal(m->checkpoint->step, 20);
    Titan__Internal__AgentToWorker out = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    Titan__Internal__CheckpointCommitted committed = TITAN__INTERNAL__CHECKPOINT_COMMITTED__INIT;
    committed.job_id = JOB;
    committed.step = 20;
    out.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_CHECKPOINT_COMMITTED;
    out.checkpoint_committed = &committed;
    say(&out, -1);
    /* Commands come in order: when the pause is seen, the confirmation has been. */
    Titan__Internal__PauseJob pause_command = TITAN__INTERNAL__PAUSE_JOB__INIT;
    pause_command.job_id = JOB;
    pause_command.epoch = 1;
    out.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE;
    out.pause = &pause_command;
    say(&out, -1);
    AWAIT(f.m->ops->commands(f.m) == 1);
    /* No agent to call for a while. */
    char away[160];
    (void)snprintf(away, sizeof(away), "%s.away", f.socket);
    assert_int_equal(rename(f.socket, away), 0);
    hang_up();
    struct step_report statistics = {.step = 21, .epoch = 1, .world = 2};
    f.m->ops->progress(f.m, &statistics);
    f.m->ops->quiesced(f.m, &(struct quiesced){.epoch = 1, .last_step = 21, .paused = true});
    assert_int_equal(rename(away, f.socket), 0);
    registration = answer_the_call();
    assert_int_equal(registration->step, 21);
    m = hear();
    if (m->kind_case == TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS)
        m = hear(); /* queued before the worker saw that the agent was gone */
    assert_int_equal(m->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED);
    assert_true(m->quiesced->paused);
}

static void test_lease(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    log_set_level(LOG_LEVEL_ERROR);
    (void)answer_the_call();
    say_form(.epoch = 1, .world = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    int64_t start = clock_mono_ns();
    say_lease(150);
    /* An agent that hangs is as good as none: the connection alone does not keep the lease. */
    AWAIT(f.m->ops->commands(f.m) != 0);
    double ms = (double)(clock_mono_ns() - start) / 1e6;
    print_message("# lease of 150 ms over after %.0f ms\n", ms);
    assert_true(ms > 100);
    assert_int_equal(f.m->ops->commands(f.m), 6);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_ECANCELLED);
    say_lease(60000);
}

/* A worker with a training thread that never leaves a revoked epoch. */
static void hang(void)
{
    struct membership *m;
    struct epoch_view view;
    struct agent_connection_options options = {.socket = f.socket,
                                               .page = f.page_path,
                                               .job_id = JOB,
                                               .worker_id = WORKER,
                                               .host = "127.0.0.1",
                                               .job_dir = f.folder};
    if (membership_agent_open(&options, &m, NULL) != TITAN_OK)
        _exit(1);
    m->ops->opened(m);
    if (m->ops->next(m, &view, NULL) != TITAN_OK)
        _exit(1);
    for (int i = 0; i < 42; i++)
        progress_action();
    for (;;)
        (void)pause();
}

/* In a process of its own; first, while this one has no threads yet. */
static void test_never_quiesces(void **state)
{
    (void)state;
    int status = 0;
    const pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0)
        hang();
    (void)answer_the_call();
    say_form(.epoch = 3, .world = 2, .rank = 1);
    AWAIT(atomic_load(&f.page->actions) == 42);
    const int64_t began = clock_mono_ns();
    say_revoke(3);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    print_message("# killed itself after %.0f ms\n", (double)(clock_mono_ns() - began) / 1e6);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    assert_true(clock_mono_ns() - began >= MEMBER_QUIESCE_MS * INT64_C(1000000));
    assert_non_null(strstr(f.page->last_words, "did not leave epoch 3 in 1"));
    assert_non_null(strstr(f.page->last_words, "at action 42"));
    assert_int_equal(page_owner(f.page), PAGE_DEAD);
}

static void test_failing(void **state)
{
    (void)state;
    struct titan_error err = {0};
    (void)answer_the_call();
    (void)hear(); /* ready */
    assert_int_equal(atomic_load(&f.page->exit_code), -1);
    (void)titan_fail(&err, TITAN_ENOSPC, "no room");
    titan_error_hint(&err, "make some");
    f.m->ops->failing(f.m, &err);
    const Titan__Internal__WorkerToAgent *m = hear();
    assert_int_equal(m->kind_case, TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FAILING);
    assert_string_equal(m->failing->reason, "no room (make some)");
    assert_string_equal(f.page->last_words, "no room (make some)");
    assert_int_equal(m->failing->exit_code, TITAN_EXIT_SHORT);
    assert_int_equal(atomic_load(&f.page->exit_code), TITAN_EXIT_SHORT);
}

/* So many greetings are hung up on, and between two there is a pause. The first may have waited to be heard. */
static void hang_up_on(int calls, int64_t pause_ms)
{
    int64_t first = 0;
    for (int i = 0; i < calls; i++) {
        (void)answer_the_call();
        first = first ? first : clock_mono_ns();
        hang_up();
    }
    assert_true(clock_mono_ns() - first >= (calls - 2) * pause_ms * 1000000);
}

/* An agent that hangs up on each greeting, since the worker is none of its own: it is not asked without a pause. */
static void test_not_wanted(void **state)
{
    (void)state;
    hang_up_on(5, 200);
}

/* An agent that the worker has heard of ends; is the next one called at once, not after the longer pause? */
static bool called_soon(void)
{
    (void)answer_the_call();
    say_lease(60000);
    const int64_t ended = clock_mono_ns();
    hang_up();
    wait_for(f.listener, POLLIN);
    return clock_mono_ns() - ended < INT64_C(150000000);
}

/* The socket of an agent that has ended may still take a call: the next agent, soon there, is not to wait for long. */
static void test_agent_that_ends(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    (void)answer_the_call();
    say_form(.epoch = 1, .world = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
    hang_up();
    hang_up_on(10, 20);
    AWAIT(called_soon()); /* whatever else the machine does */
}

static void test_garbage(void **state)
{
    (void)state;
    struct epoch_view view;
    struct titan_error err = {0};
    (void)answer_the_call();
    static const uint8_t no_message[] = {3, 0, 0, 0, 0xff, 0xff, 0xff};
    assert_int_equal(send(f.fd, no_message, sizeof(no_message), MSG_NOSIGNAL), (ssize_t)sizeof(no_message));
    static const uint8_t oversize[] = {0xff, 0xff, 0xff, 0x7f};
    assert_int_equal(send(f.fd, oversize, sizeof(oversize), MSG_NOSIGNAL), (ssize_t)sizeof(oversize));
    hang_up();
    (void)answer_the_call(); /* it calls again, and works */
    say_form(.epoch = 1, .world = 1);
    assert_int_equal(f.m->ops->next(f.m, &view, &err), TITAN_OK);
}

static void test_solo(void **state)
{
    (void)state;
    struct membership *m;
    struct epoch_view view, other;
    struct titan_error err = {0};
    char folder[] = "/tmp/titan-solo-XXXXXX";
    assert_non_null(mkdtemp(folder));
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(membership_solo_open(2, 2, fd, folder, &m, &err), TITAN_EINVAL);
    assert_int_equal(membership_solo_open(0, 2, -1, folder, &m, &err), TITAN_EINVAL);
    assert_int_equal(membership_solo_open(1, 2, fd, folder, &m, &err), TITAN_OK);
    assert_int_equal(m->ops->next(m, &view, &err), TITAN_OK);
    assert_int_equal(view.epoch, 1);
    assert_int_equal(view.rank, 1);
    assert_int_equal(view.source, STATE_FROM_INIT);
    assert_int_equal(m->ops->commands(m), 0);
    assert_int_equal(*m->ops->revoked(m), 0);
    assert_int_equal(m->ops->next(m, &other, &err), TITAN_EPEER);
    m->ops->close(m);
    assert_int_equal(membership_solo_open(0, 2, fd, folder, &m, &err), TITAN_OK);
    assert_int_equal(m->ops->next(m, &other, &err), TITAN_OK);
    assert_memory_equal(view.comm_id, other.comm_id, 16);
    m->ops->close(m);
    (void)close(fd);
    assert_int_equal(dir_remove(folder, NULL), TITAN_OK);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_never_quiesces, setup_agent, teardown),
        cmocka_unit_test_setup_teardown(test_registration, setup, teardown),
        cmocka_unit_test_setup_teardown(test_moved, setup, teardown),
        cmocka_unit_test_setup_teardown(test_page_of_another, setup, teardown),
        cmocka_unit_test_setup_teardown(test_epoch_view, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revoke, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revoked_on_offer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pause_and_stop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_next_world, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_agent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_wanted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_agent_that_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage, setup, teardown),
        cmocka_unit_test(test_solo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
