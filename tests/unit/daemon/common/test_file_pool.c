/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of threads for files: users take turns at it, none holds all threads, and what waits is bounded for each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/common/file_pool.h"
#include "tests/support/patience.h"

#define DEADLINE_MS 60000

struct item {
    struct file_task task; /* first */
    bool waits;            /* until fixture.go is posted for it */
    unsigned number;
};

static struct fixture {
    uv_loop_t loop;
    uv_timer_t tick;
    struct file_pool *pool;
    sem_t go;
    atomic_uint begun; /* of those that wait */
    atomic_uint alive;
    unsigned n_done, n_given_up, order[64];
    bool closed;
} f;

static struct item *item_of(struct file_task *k)
{
    return (struct item *)(void *)k;
}

static void item_run(struct file_task *k)
{
    if (!item_of(k)->waits)
        return;
    atomic_fetch_add(&f.begun, 1);
    while (sem_wait(&f.go) != 0)
        ;
}

static void item_free(struct file_task *k)
{
    free(k);
    atomic_fetch_sub(&f.alive, 1);
}

static void item_done(struct file_task *k)
{
    if (f.n_done < ARRAY_SIZE(f.order))
        f.order[f.n_done] = item_of(k)->number;
    f.n_done++;
    item_free(k);
}

static void item_given_up(struct file_task *k, bool started)
{
    f.n_given_up++;
    if (!started)
        item_free(k);
}

static const struct file_calls item_calls = {
    .run = item_run, .done = item_done, .given_up = item_given_up, .free = item_free};

static titan_status add_item(const struct item *of, size_t bytes, struct titan_error *err)
{
    struct item *i = calloc(1, sizeof(*i));
    assert_non_null(i);
    i->task.user = of->task.user;
    i->task.key = of->task.key;
    i->waits = of->waits;
    i->number = of->number;
    atomic_fetch_add(&f.alive, 1);
    const titan_status status = file_pool_add(f.pool, &i->task, &item_calls, bytes, err);
    if (status != TITAN_OK)
        item_free(&i->task);
    return status;
}

static titan_status add(const char *user, unsigned number, bool waits, size_t bytes, struct titan_error *err)
{
    const struct item i = {.task = {.user = user}, .waits = waits, .number = number};
    return add_item(&i, bytes, err);
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void on_closed(void *data)
{
    (void)data;
    f.closed = true;
}

#define UNTIL(condition)                                                                                               \
    do                                                                                                                 \
        while (!(condition))                                                                                           \
            uv_run(&f.loop, UV_RUN_ONCE);                                                                              \
    while (0)

static void open_pool(uint32_t deadline_ms)
{
    struct titan_error err = {0};
    memset(&f, 0, sizeof(f));
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(uv_timer_init(&f.loop, &f.tick), 0);
    assert_int_equal(uv_timer_start(&f.tick, on_tick, 5, 5), 0);
    assert_int_equal(sem_init(&f.go, 0, 0), 0);
    assert_int_equal(file_pool_open(&f.loop, deadline_ms, &f.pool, &err), TITAN_OK);
}

static void go(unsigned n)
{
    for (; n > 0; n--)
        assert_int_equal(sem_post(&f.go), 0);
}

static void close_pool(void)
{
    file_pool_close(f.pool, on_closed, NULL);
    go(FILE_THREADS_MAX);
    UNTIL(f.closed && atomic_load(&f.alive) == 0);
    uv_close((uv_handle_t *)&f.tick, NULL);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
}

/* False: the first took so long that another thread had the rest; order is of one thread. */
static bool take_turns(void)
{
    const unsigned expected[] = {0, 10, 1, 11, 2, 12, 3, 4};
    const int64_t began = clock_mono_ns();
    open_pool(DEADLINE_MS);
    assert_int_equal(add("uid:1", 0, true, 1, NULL), TITAN_OK);
    UNTIL(atomic_load(&f.begun) == 1);
    for (unsigned i = 1; i < 5; i++)
        assert_int_equal(add("uid:1", i, false, 1, NULL), TITAN_OK);
    for (unsigned i = 10; i < 13; i++)
        assert_int_equal(add("uid:2", i, false, 1, NULL), TITAN_OK);
    go(1);
    const bool soon = clock_mono_ns() - began < INT64_C(300000000);
    UNTIL(f.n_done == ARRAY_SIZE(expected));
    if (soon)
        assert_memory_equal(f.order, expected, sizeof(expected));
    close_pool();
    return soon;
}

/* A user with many tasks before it: the next one is this user's all the same, and then they alternate. */
static void test_users_take_turns(void **state)
{
    (void)state;
    AWAIT(take_turns());
}

/* Tasks that take long are at half of the threads, however many there are: another user's and the daemon's own begin.
 */
static void test_slow_tasks_leave_threads(void **state)
{
    (void)state;
    open_pool(DEADLINE_MS);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(add("uid:1", i, true, 1, NULL), TITAN_OK);
    UNTIL(atomic_load(&f.begun) == (FILE_THREADS_MAX / 2));
    assert_int_equal(add("uid:2", 50, false, 1, NULL), TITAN_OK);
    assert_int_equal(add(NULL, 51, false, 1, NULL), TITAN_OK);
    UNTIL(f.n_done == 2);
    assert_int_equal(f.order[0], 50);
    assert_int_equal(f.order[1], 51);
    assert_int_equal(atomic_load(&f.begun), (FILE_THREADS_MAX / 2));

    /* Nor do two leave none to a third. */
    for (unsigned i = 60; i < 70; i++)
        assert_int_equal(add("uid:2", i, true, 1, NULL), TITAN_OK);
    UNTIL(atomic_load(&f.begun) > (FILE_THREADS_MAX / 2) + 1);
    assert_int_equal(add("uid:3", 80, false, 1, NULL), TITAN_OK);
    UNTIL(f.n_done == 3);
    assert_int_equal(f.order[2], 80);
    close_pool();
    assert_int_equal(f.n_given_up, 50);
}

/* With paths that hang a user is refused at once; the others' are opened. */
static void test_hanging_tasks_leave_threads(void **state)
{
    (void)state;
    struct titan_error err = {0};
    open_pool(patience_stretched(700)); /* each is begun within it */
    for (unsigned i = 0; i < (FILE_THREADS_MAX / 2); i++) {
        assert_int_equal(add("uid:1", i, true, 1, NULL), TITAN_OK);
        UNTIL(f.n_given_up == i + 1);
    }
    assert_int_equal(atomic_load(&f.begun), (FILE_THREADS_MAX / 2));
    assert_int_equal(add("uid:1", 20, false, 1, &err), TITAN_EAGAIN);
    assert_string_equal(err.msg, "4 earlier paths do not answer; no more is opened before one does");
    assert_int_equal(add("uid:2", 21, false, 1, NULL), TITAN_OK);
    UNTIL(f.n_done == 1);
    close_pool();
}

/* What is too much of one user is refused to that user, by number and by bytes, and is room for the others. */
static void test_share_of_what_waits(void **state)
{
    (void)state;
    struct titan_error err = {0};
    open_pool(DEADLINE_MS);
    assert_int_equal(add(NULL, 0, true, 1, NULL), TITAN_OK);
    UNTIL(atomic_load(&f.begun) == 1);
    unsigned n = 0;
    while (n <= FILE_USER_TASKS_MAX && add("uid:1", n, true, 1, &err) == TITAN_OK)
        n++;
    assert_in_range(n, FILE_USER_TASKS_MAX, FILE_USER_TASKS_MAX + (FILE_THREADS_MAX / 2));
    assert_int_equal(err.status, TITAN_ELIMIT);
    assert_string_equal(err.msg, "too many requests of this user wait for files (1024)");
    assert_string_equal(err.hint, "wait until some are answered, then repeat this one");
    assert_int_equal(add("uid:2", 0, true, FILE_USER_BYTES_MAX / 2, NULL), TITAN_OK);
    assert_int_equal(add("uid:2", 0, true, FILE_USER_BYTES_MAX / 2, NULL), TITAN_OK);
    assert_int_equal(add("uid:2", 0, true, 1, NULL), TITAN_ELIMIT);

    /* With all room of all users taken each has one task, and the daemon what is its own. */
    char user[16];
    for (unsigned i = 3; i < 10; i++) {
        (void)snprintf(user, sizeof(user), "uid:%u", i);
        assert_int_equal(add(user, 0, true, FILE_USER_BYTES_MAX, NULL), TITAN_OK);
    }
    assert_int_equal(add("uid:10", 0, true, 1, NULL), TITAN_OK);
    assert_int_equal(add("uid:10", 0, true, 1, NULL), TITAN_ELIMIT);
    assert_int_equal(add(NULL, 0, true, FILE_BYTES_MAX, NULL), TITAN_OK);
    assert_int_equal(add(NULL, 0, true, 1, NULL), TITAN_ELIMIT);
    close_pool();
    assert_int_equal(f.n_done, 0);
}

/* Of one key one task at a time, in order, whatever else goes on. */
static void test_key_is_in_order(void **state)
{
    (void)state;
    open_pool(DEADLINE_MS);
    for (unsigned i = 0; i < 6; i++) {
        const struct item item = {.task = {.key = i % 2 ? "odd" : "even"}, .waits = i % 2, .number = i};
        assert_int_equal(add_item(&item, 1, NULL), TITAN_OK);
    }
    UNTIL(f.n_done == 3); /* the odd ones wait for the first of them */
    assert_int_equal(atomic_load(&f.begun), 1);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(f.order[i], 2 * i);
    go(3);
    UNTIL(f.n_done == 6);
    for (unsigned i = 3; i < 6; i++)
        assert_int_equal(f.order[i], 2 * (i - 3) + 1);
    close_pool();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_users_take_turns),
        cmocka_unit_test(test_slow_tasks_leave_threads),
        cmocka_unit_test(test_hanging_tasks_leave_threads),
        cmocka_unit_test(test_share_of_what_waits),
        cmocka_unit_test(test_key_is_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
