/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h: one writer after the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "worker/metrics/line_writer.h"
#include "worker/metrics/metrics.h"

static char folder[] = "/tmp/titan-metrics-XXXXXX";

static void write_step(struct metrics *m, uint64_t step)
{
    struct log log;
    log_init(&log, "test", "%s", "");
    metrics_step(m, &log, &(struct step_report){.step = step, .epoch = 1, .world = 1});
    while (!line_writer_wait(m->writer))
        ;
}

/* In a process of its own. */
static void begin_with_step_1(struct metrics *m)
{
    metrics_open(m, folder, 0, 100, 100);
    if (m->fd < 0)
        _exit(1);
    write_step(m, 1);
}

/* Writes step 1, then dies; what it has begun comes to its end later: step 2 and a part of a line. */
static pid_t writer_that_dies(void)
{
    int told[2];
    char c;
    assert_int_equal(pipe(told), 0);
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct metrics m = {.fd = -1};
        begin_with_step_1(&m);
        if (child_fork() == 0) { /* has the lock too, as a thread of it that is still in a system call */
            if (write(told[1], "x", 1) != 1)
                _exit(1);
            patience_pause_ms(100, "the next writer comes meanwhile");
            static const char rest[] = "{\"step\":2,\"epoch\":1}\n{\"step\": 3";
            if (write(m.fd, rest, sizeof(rest) - 1) != (ssize_t)sizeof(rest) - 1)
                _exit(1);
            _exit(0);
        }
        (void)pause();
    }
    assert_int_equal(read(told[0], &c, 1), 1);
    (void)close(told[0]);
    (void)close(told[1]);
    return pid;
}

/* Writes step 1, and when it is told to step 2; then it ends. */
static pid_t writer_that_is_slow(int *ret_go)
{
    int told[2], go[2];
    char c;
    assert_int_equal(pipe(told), 0);
    assert_int_equal(pipe(go), 0);
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct metrics m = {.fd = -1};
        begin_with_step_1(&m);
        if (write(told[1], "x", 1) != 1 || read(go[0], &c, 1) != 1)
            _exit(1);
        write_step(&m, 2);
        _exit(0);
    }
    assert_int_equal(read(told[0], &c, 1), 1);
    (void)close(told[0]);
    (void)close(told[1]);
    (void)close(go[0]);
    *ret_go = go[1];
    return pid;
}

/* It is not waited for in the step, and its lines come before ours all the same. */
static void test_a_slow_writer_before(void **state)
{
    (void)state;
    struct metrics m = {.fd = -1};
    struct buf text = BUF_INIT;
    struct log log;
    char path[PATH_MAX];
    int go, status;
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    (void)unlink(path);
    pid_t before = writer_that_is_slow(&go);
    log_init(&log, "test", "%s", "");
    metrics_open(&m, folder, 0, 100, 100);
    for (uint64_t step = 3; step <= 5; step++)
        metrics_step(&m, &log, &(struct step_report){.step = step, .epoch = 2, .world = 1});
    assert_int_equal(write(go, "x", 1), 1);
    assert_int_equal(waitpid(before, &status, 0), before);
    assert_int_equal(status, 0);
    while (!line_writer_wait(m.writer))
        ;
    metrics_close(&m);
    (void)close(go);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    const char *at = text.data;
    for (int step = 1; step <= 5; step++) {
        assert_int_equal(strncmp(at, "{\"step\":", 8), 0);
        assert_int_equal(atoi(at + 8), step);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, '\0');
    buf_free(&text);
}

static void test_the_writer_before(void **state)
{
    (void)state;
    struct metrics m = {.fd = -1};
    struct buf text = BUF_INIT;
    char path[PATH_MAX];
    pid_t before = writer_that_dies();
    (void)kill(before, SIGKILL);
    metrics_open(&m, folder, 0, 100, 100);
    assert_int_equal(m.written, 2);
    write_step(&m, 3);
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    const char *third = strstr(text.data, "\n{\"step\":2,");
    assert_non_null(third);
    assert_non_null(strstr(third + 1, "\n{\"step\":3,\"epoch\""));
    assert_null(strstr(text.data, "{\"step\": 3"));
    buf_free(&text);
    metrics_close(&m);
    (void)waitpid(before, NULL, 0);
    (void)unlink(path);
}

/* A rank that is not 0 any more lets go. */
static void test_handed_over(void **state)
{
    (void)state;
    struct metrics a = {.fd = -1}, b = {.fd = -1};
    metrics_open(&a, folder, 0, 100, 100);
    write_step(&a, 7);
    metrics_open(&a, folder, 1, 100, 100);
    metrics_open(&b, folder, 0, 100, 100);
    assert_int_equal(b.written, 7);
    metrics_close(&b);
}

/* What an evaluation found goes with its step, and the next rank 0 sees that it is there. */
static void test_evaluation(void **state)
{
    (void)state;
    struct metrics m = {.fd = -1};
    struct buf text = BUF_INIT;
    struct log log;
    char path[PATH_MAX];
    const struct step_report r = {
        .step = 8, .epoch = 1, .world = 1, .evaluation = {.step = 8, .tokens = 30, .bytes = 60, .loss = 2 * M_LN2}};

    log_init(&log, "test", "%s", "");
    metrics_open(&m, folder, 0, 100, 100);
    metrics_step(&m, &log, &r);
    assert_true(metrics_have_evaluation(&m, 8));
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    assert_non_null(strstr(text.data, "\"validation_step\":8,\"validation_loss\":1.386294"));
    assert_true(fabs(evaluation_bits_per_byte(&r.evaluation) - 1) < 1e-12);
    assert_true(fabs(evaluation_perplexity(&r.evaluation) - 4) < 1e-12);
    buf_free(&text);
    metrics_open(&m, folder, 0, 100, 100);
    assert_true(m.written == 8 && metrics_have_evaluation(&m, 8));
    write_step(&m, 9);
    metrics_open(&m, folder, 0, 100, 100);
    assert_true(m.written == 9 && metrics_have_evaluation(&m, 8) && !metrics_have_evaluation(&m, 9));
    metrics_close(&m);
}

/* Behind many steps an evaluation is found; not one of a step that has been trained again since. */
static void test_evaluation_long_ago(void **state)
{
    (void)state;
    struct metrics m = {.fd = -1};
    struct log log;
    const struct evaluation_report at_10 = {.step = 10, .tokens = 3, .loss = 1};

    log_init(&log, "test", "%s", "");
    metrics_open(&m, folder, 0, 100, 100);
    for (uint64_t step = 9; step <= 1000; step++) {
        write_step(&m, step);
        if (step == 10)
            metrics_evaluation(&m, &log, &at_10, 1, 5);
    }
    assert_true(lseek(m.fd, 0, SEEK_END) > 2 * 65536);
    assert_true(metrics_have_evaluation(&m, 10));
    assert_false(metrics_have_evaluation(&m, 11));
    for (uint64_t step = 5; step <= 9; step++)
        write_step(&m, step);
    assert_false(metrics_have_evaluation(&m, 10)); /* the state is of another training */
    assert_int_equal(write(m.fd, "no line\n{\n", 10), 10);
    assert_false(metrics_have_evaluation(&m, 10));
    metrics_close(&m);
    metrics_open(&m, folder, 1, 100, 100);
    assert_false(metrics_have_evaluation(&m, 10)); /* not rank 0 */
    metrics_close(&m);
}

/* What a full disk takes of a line does not stay, and the next one that has room is whole. */
static void test_full_disk(void **state)
{
    (void)state;
    struct metrics m = {.fd = -1};
    struct buf text = BUF_INIT;
    struct rlimit before, limit;
    struct stat st;
    char path[PATH_MAX];

    metrics_open(&m, folder, 0, 100, 100);
    assert_int_equal(ftruncate(m.fd, 0), 0);
    write_step(&m, 1);
    assert_int_equal(fstat(m.fd, &st), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = (rlim_t)st.st_size + 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    write_step(&m, 2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    write_step(&m, 3);
    assert_true(m.stalled); /* by step 2 */
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    const char *second = strchr(text.data, '\n');
    assert_non_null(second);
    assert_int_equal(strncmp(second, "\n{\"step\":3,", 11), 0);
    write_step(&m, 4);
    assert_false(m.stalled);
    assert_int_equal(text.data[text.len - 1], '\n');
    buf_free(&text);
    metrics_close(&m);
}

/* A folder is in the file's place: lines are lost until it is gone. */
static void test_cannot_be_opened(void **state)
{
    (void)state;
    struct metrics m = {.fd = -1};
    struct buf text = BUF_INIT;
    struct log log;
    char path[PATH_MAX];

    log_init(&log, "test", "%s", "");
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    (void)unlink(path);
    assert_int_equal(mkdir(path, 0755), 0);
    metrics_open(&m, folder, 0, 1, 100);
    for (uint64_t step = 1; step <= 2; step++)
        metrics_step(&m, &log, &(struct step_report){.step = step, .epoch = 1, .world = 1});
    metrics_evaluation(&m, &log, &(struct evaluation_report){.step = 2, .tokens = 3, .loss = 1}, 1, 5);
    assert_true(m.stalled && m.fd < 0 && !metrics_have_evaluation(&m, 2));
    assert_int_equal(rmdir(path), 0);
    write_step(&m, 3);
    assert_false(m.stalled);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    assert_int_equal(strncmp(text.data, "{\"step\":3,", 10), 0);
    buf_free(&text);
    metrics_close(&m);
}

/* What a file takes only after its writer was closed is written, and the file closed, by the thread that was left. */
static void test_closed_before_it_is_written(void **state)
{
    (void)state;
    static const char line[] = "{\"step\":1}\n";
    char text[4096];
    size_t filled = 0, read_back = 0;
    ssize_t n;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    memset(text, ' ', sizeof(text));
    while ((n = write(ends[1], text, sizeof(text))) > 0)
        filled += (size_t)n;
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    struct line_writer *w = line_writer_open(ends[1], NULL);
    assert_non_null(w);
    assert_true(line_writer_put(w, line, sizeof(line) - 1));
    assert_false(line_writer_wait(w));
    line_writer_close(w);
    while ((n = read(ends[0], text, sizeof(text))) > 0)
        read_back += (size_t)n;
    assert_int_equal(n, 0);
    assert_int_equal(read_back, filled + sizeof(line) - 1);
    (void)close(ends[0]);
}

/* A line says what the report does, and what is no number is null. */
static void test_line(void **state)
{
    (void)state;
    struct buf line = BUF_INIT;
    struct step_report r = {.step = 3,
                            .epoch = 2,
                            .world = 4,
                            .loss = (double)NAN,
                            .loss_max = 1.5,
                            .tflops = 0.25,
                            .mfu_causal = 0.125,
                            .memory_bytes = 77,
                            .planned_bytes = 76,
                            .expert_tokens_min = 1,
                            .expert_tokens_max = 9,
                            .expert_tokens_mean = 4,
                            .dropped = 6,
                            .further_rounds = 3,
                            .room_needed = 1.5,
                            .balance_loss = 1.25,
                            .mtp_loss = 2.75,
                            .split = {1, 2, 3, 4, 5, 6, 3}};
    struct step_report back;

    metrics_print_step(&r, &line);
    assert_non_null(strstr(line.data, "\"loss\":null,\"loss_max\":1.5,"));
    assert_true(metrics_parse_step(line.data, &back));
    assert_true(isnan(back.loss) && back.loss_max == 1.5 && back.tflops == 0.25 && back.mfu_causal == 0.125);
    assert_true(back.memory_bytes == 77 && back.planned_bytes == 76 && back.expert_tokens_max == 9 &&
                back.expert_tokens_mean == 4);
    assert_true(back.dropped == 6 && back.further_rounds == 3 && back.room_needed == 1.5 && back.balance_loss == 1.25 &&
                back.mtp_loss == 2.75);
    assert_memory_equal(&back.split, &r.split, offsetof(struct step_split, slowest)); /* behind it is padding */
    assert_int_equal(back.split.slowest, r.split.slowest);
    buf_clear(&line);
    r.split = step_split_none();
    metrics_print_step(&r, &line);
    assert_null(strstr(line.data, "slowest"));
    assert_true(metrics_parse_step(line.data, &back));
    assert_int_equal(back.split.slowest, -1);
    buf_free(&line);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    (void)unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_writer_before),
                                       cmocka_unit_test(test_a_slow_writer_before),
                                       cmocka_unit_test(test_handed_over),
                                       cmocka_unit_test(test_evaluation),
                                       cmocka_unit_test(test_evaluation_long_ago),
                                       cmocka_unit_test(test_full_disk),
                                       cmocka_unit_test(test_cannot_be_opened),
                                       cmocka_unit_test(test_closed_before_it_is_written),
                                       cmocka_unit_test(test_line)};
    return cmocka_run_group_tests_name("metrics", tests, make_folder, remove_folder);
}
