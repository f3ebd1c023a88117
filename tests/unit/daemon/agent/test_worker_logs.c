/* SPDX-License-Identifier: Apache-2.0 */
/* What workers print, read back: which pieces of which files go out, where a tail begins, and when a line that is
 * followed goes. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "daemon/agent/shell/worker_logs.h"
#include "daemon/common/file_pool.h"
#include "tests/support/patience.h"

enum { CHUNK = 65536 };

static struct fixture {
    uv_loop_t loop;
    uv_timer_t tick;
    struct file_pool *pool;
    struct logs *logs;
    char folder[64];
    struct buf got; /* "WORKER/RANK TEXT" of each piece, "end" or "cut" at last */
    size_t longest; /* piece; those above 1000 bytes are "N bytes" in got */
    int refused;    /* so many offers are not taken */
    bool ended, pool_closed, logs_closed;
} f;

static bool take(const Titan__Internal__AgentLogChunk *chunk, void *data)
{
    (void)data;
    if (f.refused > 0) {
        f.refused--;
        return false;
    }
    assert_false(f.ended);
    assert_int_equal(chunk->request_id, 7);
    f.ended = chunk->end;
    f.longest = MAX(f.longest, chunk->data.len);
    if (chunk->end)
        buf_puts(&f.got, chunk->cut ? "cut" : "end");
    else if (chunk->data.len > 1000)
        buf_printf(&f.got, "%d/%d %zu bytes\n", (int)chunk->worker_id, chunk->rank, chunk->data.len);
    else
        buf_printf(&f.got, "%d/%d %.*s", (int)chunk->worker_id, chunk->rank, (int)chunk->data.len, chunk->data.data);
    return true;
}

static void set_flag(void *flag)
{
    *(bool *)flag = true;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        struct patience_wait wait_ = {0};                                                                              \
        while (!(condition)) {                                                                                         \
            if (!patience_left(&wait_))                                                                                \
                fail_msg("still not: %s; got '%s'", #condition, f.got.data ? f.got.data : "");                         \
            (void)uv_run(&f.loop, UV_RUN_ONCE);                                                                        \
        }                                                                                                              \
    } while (0)

/* Below logs/; append: at its end. */
static void write_log(const char *name, const char *text, size_t len, bool append)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/logs/%s", f.folder, name);
    FILE *out = fopen(path, append ? "ae" : "we");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, len, out), len);
    assert_int_equal(fclose(out), 0);
}

static void put(const char *name, const char *text)
{
    write_log(name, text, strlen(text), false);
}

static void add(const char *name, const char *text)
{
    write_log(name, text, strlen(text), true);
}

static int setup(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct titan_error err = {0};
    memset(&f, 0, sizeof(f));
    (void)snprintf(f.folder, sizeof(f.folder), "/tmp/titan-logs-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    (void)snprintf(path, sizeof(path), "%s/logs", f.folder);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(uv_timer_init(&f.loop, &f.tick), 0);
    assert_int_equal(uv_timer_start(&f.tick, on_tick, 5, 5), 0);
    assert_int_equal(file_pool_open(&f.loop, (uint32_t)patience_ms(60), &f.pool, &err), TITAN_OK);
    assert_int_equal(logs_open(&f.loop, &(struct logs_options){f.pool, "here", take, NULL}, &f.logs, &err), TITAN_OK);
    put("ranks", "10 0 here\n20 2 there\n11 -1 here\n11 1 here\n");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    file_pool_close(f.pool, set_flag, &f.pool_closed);
    UNTIL(f.pool_closed);
    logs_close(f.logs, set_flag, &f.logs_closed);
    UNTIL(f.logs_closed);
    uv_close((uv_handle_t *)&f.tick, NULL);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    buf_free(&f.got);
    return dir_remove(f.folder, NULL) == TITAN_OK ? 0 : -1;
}

static Titan__Internal__LogRequest request(int32_t rank, uint32_t tail, bool follow)
{
    Titan__Internal__LogRequest r = TITAN__INTERNAL__LOG_REQUEST__INIT;
    r.request_id = 7;
    r.rank = rank;
    r.tail_lines = tail;
    r.follow = follow;
    return r;
}

static void ask(const Titan__Internal__LogRequest *r)
{
    buf_clear(&f.got);
    f.ended = false;
    logs_request(f.logs, r, f.folder);
}

/* All that one request brings. */
static const char *all(int32_t rank, uint32_t tail)
{
    const Titan__Internal__LogRequest r = request(rank, tail, false);
    ask(&r);
    UNTIL(f.ended);
    return f.got.data;
}

static void test_what_is_kept(void **state)
{
    (void)state;
    put("worker-10.log.1", "old\n");
    put("worker-10.log", "\na\nb");
    put("worker-11.log", "x\n");
    put("worker-20.log", "another node's\n");
    assert_string_equal(all(-1, 0), "10/0 old\n10/0 \na\n10/0 b11/1 x\nend");
    assert_string_equal(all(1, 0), "11/1 x\nend");
    assert_string_equal(all(2, 0), "end");
    f.refused = 3; /* there is no room: what was refused is offered again */
    assert_string_equal(all(0, 0), "10/0 old\n10/0 \na\n10/0 bend");
    logs_request(
        f.logs,
        &(Titan__Internal__LogRequest){.base = PROTOBUF_C_MESSAGE_INIT(&titan__internal__log_request__descriptor),
                                       .request_id = 7,
                                       .rank = -1,
                                       .follow = true},
        NULL);
    f.ended = false;
    buf_clear(&f.got);
    UNTIL(f.ended); /* nothing is known of the job: nothing can come */
    assert_string_equal(f.got.data, "end");
}

/* A tail begins behind the newline before it, in the older file where the newer one has too few lines. */
static void test_tails(void **state)
{
    (void)state;
    put("worker-10.log.1", "1\n2\n\n");
    put("worker-10.log", "4\n\n6\n");
    static const char *const tails[] = {"10/0 6\nend",
                                        "10/0 \n6\nend",
                                        "10/0 4\n\n6\nend",
                                        "10/0 \n10/0 4\n\n6\nend",
                                        "10/0 2\n\n10/0 4\n\n6\nend",
                                        "10/0 1\n2\n\n10/0 4\n\n6\nend"};
    for (uint32_t n = 1; n <= ARRAY_SIZE(tails); n++)
        assert_string_equal(all(0, n), tails[n - 1]);
    assert_string_equal(all(0, 100), tails[ARRAY_SIZE(tails) - 1]);
    put("worker-10.log", "4\n\n6"); /* without a newline it is a line all the same */
    assert_string_equal(all(0, 1), "10/0 6end");
    assert_string_equal(all(0, 2), "10/0 \n10/0 6end");
    put("worker-10.log", "");
    assert_string_equal(all(0, 1), "10/0 \nend");
}

/* A line longer than a piece goes in pieces; lines that a piece has no room for go with the next. */
static void test_long_lines(void **state)
{
    (void)state;
    _cleanup_free_ char *text = malloc(2 * CHUNK + 8);
    memset(text, 'x', 2 * CHUNK + 8);
    text[CHUNK - 1] = text[CHUNK + 1] = '\n';
    write_log("worker-10.log", text, CHUNK + 2, false);
    assert_string_equal(all(0, 0), "10/0 65536 bytes\n10/0 x\nend");
    assert_string_equal(all(0, 1), "10/0 x\nend");
    assert_string_equal(all(0, 2), "10/0 65536 bytes\n10/0 x\nend");
    text[CHUNK - 1] = 'x';
    text[CHUNK] = '\n';
    text[CHUNK + 1] = 'x';
    write_log("worker-10.log", text, 2 * CHUNK + 8, false);
    assert_string_equal(all(0, 0), "10/0 65536 bytes\n10/0 \n10/0 65536 bytes\n10/0 xxxxxxxend");
    assert_string_equal(all(0, 1), "10/0 65536 bytes\n10/0 xxxxxxxend");
    memset(text, '\n', CHUNK + 3); /* its tail begins in the piece before the last */
    write_log("worker-10.log", text, CHUNK + 3, false);
    assert_string_equal(all(0, CHUNK + 1), "10/0 65536 bytes\n10/0 \nend");
    assert_int_equal(f.longest, CHUNK);
}

/* A line goes as soon as it has ended, an empty one as well; what has not ended waits. */
static void test_follow(void **state)
{
    (void)state;
    const Titan__Internal__LogRequest r = request(-1, 0, true);
    char expected[128] = "";
    static const struct {
        const char *ten, *eleven, *comes;
    } writes[] = {{"\n", "1\n", "10/0 \n11/1 1\n"},
                  {"\nhalf a", "2\n", "10/0 \n11/1 2\n"},
                  {" line", "3\n", "11/1 3\n"},
                  {"\n\n", "4\n", "10/0 half a line\n\n11/1 4\n"},
                  {"", "5\n", "11/1 5\n"}};
    put("worker-10.log", "");
    put("worker-11.log", "");
    ask(&r);
    for (size_t i = 0; i < ARRAY_SIZE(writes); i++) {
        add("worker-10.log", writes[i].ten);
        add("worker-11.log", writes[i].eleven); /* read behind the other: that one has been looked at when this comes */
        (void)strcat(expected, writes[i].comes);
        UNTIL(f.got.len >= strlen(expected));
        assert_string_equal(f.got.data, expected);
    }
    /* It was emptied, as the agent does: the rest of it is in the .1. */
    put("worker-10.log.1", "\n\nhalf a line\n\nrest\n");
    put("worker-10.log", "new\n");
    (void)strcat(expected, "10/0 rest\n10/0 new\n");
    UNTIL(f.got.len >= strlen(expected));
    assert_string_equal(f.got.data, expected);
    add("worker-10.log", "at the end"); /* goes as it is when no more is to come */
    logs_cancel(f.logs, 7);
    UNTIL(f.ended);
    (void)strcat(expected, "10/0 at the endend");
    assert_string_equal(f.got.data, expected);
}

/* A reader that was cut off goes on behind what it has had, in the file or in the older one. */
static void test_go_on(void **state)
{
    (void)state;
    put("worker-10.log.1", "1\n2\n");
    put("worker-10.log", "3\n4\n");
    Titan__Internal__LogPosition at = TITAN__INTERNAL__LOG_POSITION__INIT, *list[] = {&at};
    Titan__Internal__LogRequest r = request(0, 1, false);
    static const struct {
        uint64_t worker, position;
        const char *text;
    } rows[] = {{10, 2 << 1 | 1, "10/0 2\n10/0 3\n4\nend"},
                {10, 4 << 1 | 1, "10/0 3\n4\nend"},
                {10, 0, "10/0 3\n4\nend"},
                {10, 2 << 1, "10/0 4\nend"},
                {10, 4 << 1, "end"},
                {11, 0, "10/0 4\nend"}};
    r.after = list;
    r.n_after = 1;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        at.worker_id = rows[i].worker;
        at.position = rows[i].position;
        ask(&r);
        UNTIL(f.ended);
        assert_string_equal(f.got.data, rows[i].text);
    }
}

/* Half of the limit stays in the file, the other half in the .1: the newest part, whole. */
static void test_bound(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct titan_error err = {0};
    static const struct {
        size_t bytes, kept, old; /* kept: in the file; old: in the .1; limit 16 */
    } rows[] = {{8, 8, 0}, {9, 0, 9}, {10, 0, 10}, {11, 0, 8}, {100, 0, 8}};
    (void)snprintf(path, sizeof(path), "%s/logs/worker-10.log", f.folder);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_(buf_free) struct buf now = BUF_INIT, old = BUF_INIT;
        char text[128], before[PATH_MAX + 8];
        for (size_t k = 0; k < rows[i].bytes; k++)
            text[k] = (char)('a' + k % 26);
        (void)snprintf(before, sizeof(before), "%s.1", path);
        (void)unlink(before);
        write_log("worker-10.log", text, rows[i].bytes, false);
        assert_int_equal(log_bound(path, 16, &err), TITAN_OK);
        assert_int_equal(file_read(path, 1000, &now, &err), TITAN_OK);
        assert_int_equal(now.len, rows[i].kept);
        assert_int_equal(file_read(before, 1000, &old, NULL) == TITAN_OK, rows[i].old > 0);
        assert_int_equal(old.len, rows[i].old);
        assert_memory_equal(old.data ? old.data : "", text + rows[i].bytes - rows[i].old, rows[i].old);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tails, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_follow, setup, teardown),
        cmocka_unit_test_setup_teardown(test_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bound, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
