/* SPDX-License-Identifier: Apache-2.0 */
/* When the head of the event log is written down: a minute after the first event behind the last line, to the
 * millisecond. The coordinator has its real store, loop and files; its monotonic clock is the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/common/file_pool.h"
#include "daemon/coordinator/shell/shell.h"
#include "tests/support/patience.h"

/* --- the clock ---------------------------------------------------------------------------------------------------- */

static atomic_bool stands;                       /* at clock_ns; else it runs from there */
static atomic_int_least64_t clock_ns, behind_ns; /* behind_ns: of the kernel's */

static int64_t kernel_ns(void)
{
    struct timespec ts;
    (void)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* For libuv and base/clock.c alike. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
    if (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE)
        return (int)syscall(SYS_clock_gettime, id, ts);
    const int64_t ns = atomic_load(&stands) ? atomic_load(&clock_ns) : kernel_ns() - atomic_load(&behind_ns);
    *ts = (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    return 0;
}

static void clock_stand(bool still)
{
    if (still)
        atomic_store(&clock_ns, kernel_ns() - atomic_load(&behind_ns));
    else
        atomic_store(&behind_ns, kernel_ns() - atomic_load(&clock_ns));
    atomic_store(&stands, still);
}

/* --- the coordinator ---------------------------------------------------------------------------------------------- */

static struct fixture {
    uv_loop_t loop;
    char dir[64], head_file[96], log[96];
    int log_fd;
    struct coordinator *c;
} f;

/* The daemon's log goes to a file of its own meanwhile. */
static void turn(void)
{
    const int own = dup(2);
    assert_int_equal(dup2(f.log_fd, 2), 2);
    for (int i = 0; i < 4; i++)
        (void)uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_int_equal(dup2(own, 2), 2);
    (void)close(own);
}

/* The loop turns while the clock stands; threads of the store and of files take what time they take. */
#define SPIN(condition)                                                                                                \
    do {                                                                                                               \
        struct patience_wait wait_ = {0};                                                                              \
        for (turn(); !(condition); turn()) {                                                                           \
            const int64_t at_ = atomic_load(&clock_ns);                                                                \
            atomic_store(&stands, false);                                                                              \
            const bool left_ = patience_nap(&wait_);                                                                   \
            atomic_store(&clock_ns, at_);                                                                              \
            atomic_store(&stands, true);                                                                               \
            if (!left_)                                                                                                \
                fail_msg("still not: %s", #condition);                                                                 \
        }                                                                                                              \
    } while (0)

static void pass(int64_t ms)
{
    atomic_fetch_add(&clock_ns, ms * 1000000);
    turn();
}

static void no_job(struct coordinator *c, uint64_t job_id)
{
    (void)c, (void)job_id;
}

static void nothing(struct coordinator *c)
{
    (void)c;
}

static const struct coordinator_observer observer = {
    .stopping = nothing, .job_changed = no_job, .metrics_stored = nothing, .rights_changed = nothing};

static void on_flag(void *data)
{
    *(bool *)data = true;
}

static int set_up(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    strcpy(f.dir, "/tmp/titan-log-head-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    (void)snprintf(f.head_file, sizeof(f.head_file), "%s/titan.head", f.dir);
    (void)snprintf(f.log, sizeof(f.log), "%s/log", f.dir);
    f.log_fd = open(f.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(f.log_fd >= 0);
    log_set_level(LOG_LEVEL_WARN); /* of the start: that is not a turn of the loop */
    assert_int_equal(uv_loop_init(&f.loop), 0);
    const struct coordinator_options options = {
        .observer = &observer, .state_dir = f.dir, .head_file = f.head_file, .check_ms = (uint32_t)patience_ms(60)};
    struct titan_error err = {0};
    if (coordinator_open(&f.loop, &options, &f.c, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    log_set_level(LOG_LEVEL_INFO);
    clock_stand(true);
    turn();
    return 0;
}

static int tear_down(void **state)
{
    bool done = false;
    (void)state;
    clock_stand(false);
    log_set_level(LOG_LEVEL_WARN);
    coordinator_close(f.c, on_flag, &done);
    while (!done)
        (void)uv_run(&f.loop, UV_RUN_ONCE);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    (void)close(f.log_fd);
    return dir_remove(f.dir, NULL);
}

struct events {
    int n;
    bool stored;
};

static titan_status add_events(struct db *db, void *data, struct titan_error *err)
{
    const struct event event = {.type = "audit.ok", .message = "a call", .rank = -1, .at_ms = 1};
    for (int i = 0; i < ((const struct events *)data)->n; i++)
        TRY(event_add(db, &event, err));
    return TITAN_OK;
}

static void on_stored(void *data, const struct titan_error *err)
{
    assert_int_equal(err->status, TITAN_OK);
    ((struct events *)data)->stored = true;
}

static void happen(int n)
{
    struct events events = {.n = n};
    store_write(f.c->store, add_events, &events, on_stored);
    SPIN(events.stored);
    turn();
}

/* Lines with a head in that file; *ret_last: the event of the last one. */
static int heads(const char *path, uint64_t *ret_last)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    int n = 0;
    *ret_last = 0;
    if (file_read(path, 1 << 20, &text, NULL) != TITAN_OK || !text.data)
        return 0;
    char *save = NULL;
    for (char *line = strtok_r(text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *head = path == f.log ? strstr(line, "head of the event log head=") : line;
        if (!head)
            continue;
        *ret_last = strtoull(head == line ? line : strrchr(head, '=') + 1, NULL, 10);
        n++;
    }
    return n;
}

static uint64_t newest(void)
{
    struct event_head head;
    assert_int_equal(event_head(store_reader(f.c->store), &head, NULL), TITAN_OK);
    return head.id;
}

static void run_nothing(struct file_task *k)
{
    (void)k;
}

static bool files_rest;

static void on_rest(struct file_task *k)
{
    (void)k;
    files_rest = true;
}

static void on_given_up(struct file_task *k, bool started)
{
    (void)k, (void)started;
    fail_msg("the files do not answer");
}

/* A line that is in the file is on its way still until the loop knows: what has its key comes behind it. */
static void await_files(void)
{
    static const struct file_calls calls = {
        .run = run_nothing, .done = on_rest, .given_up = on_given_up, .free = run_nothing};
    struct file_task task = {.key = "head file"};
    files_rest = false;
    assert_int_equal(file_pool_add(f.c->files, &task, &calls, sizeof(task), NULL), TITAN_OK);
    SPIN(files_rest);
}

static void assert_heads(const char *path, int n)
{
    uint64_t last;
    assert_int_equal(heads(path, &last), n);
    if (n > 0)
        assert_int_equal(last, newest());
}

/* So many lines since the test has begun, the last one of the newest event: in the log by now, in the file when its
 * thread has been there. */
static void written(int n)
{
    assert_heads(f.log, n);
    await_files();
    assert_heads(f.head_file, n);
}

/* No more than these. */
static void assert_lines(int n)
{
    uint64_t last;
    assert_int_equal(heads(f.log, &last), n);
    assert_int_equal(heads(f.head_file, &last), n);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void test_each_minute(void **state)
{
    (void)state;
    pass(3600000);
    assert_lines(0); /* nothing has happened */
    for (int minute = 1; minute <= 3; minute++) {
        happen(1);
        pass(30000);
        happen(1); /* the minute goes on */
        pass(29999);
        assert_lines(minute - 1);
        pass(1);
        written(minute); /* with all that has happened until then */
        pass(120000);
        assert_lines(minute);
    }
}

static void test_many_do_not_wait(void **state)
{
    (void)state;
    pass(1000);
    happen(256);
    written(1); /* at once ... */
    pass(400);
    happen(256);
    assert_lines(1);
    pass(599);
    assert_lines(1);
    pass(1);
    written(2); /* ... and a second after the last line */
    happen(255);
    pass(59999);
    assert_lines(2);
    happen(1);
    written(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_minute, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_do_not_wait, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
