/* SPDX-License-Identifier: Apache-2.0 */
/* The agents' sockets: datagrams, garbage, a name instead of a number. And the
 * records an agent keeps on disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "daemon/common/peers.h"
#include "daemon/agent/shell/records.h"
#include "proto/ranges.h"
#include "tests/support/patience.h"

static struct {
    uv_loop_t loop;
    uv_timer_t tick;
    char folder[64];
    struct peers *a, *b, *moved;
    int n, closed;
    uint64_t last_id;
    char last_from[80];
} f;

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    (void)snprintf(f.folder, sizeof(f.folder), "/tmp/titan-peers-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(uv_timer_init(&f.loop, &f.tick), 0);
    assert_int_equal(uv_timer_start(&f.tick, on_tick, 5, 5), 0);
    return 0;
}

static void on_closed(void *data)
{
    (void)data;
    f.closed++;
}

static int teardown(void **state)
{
    (void)state;
    peers_close(f.a, on_closed, NULL);
    peers_close(f.b, on_closed, NULL);
    peers_close(f.moved, on_closed, NULL);
    uv_close((uv_handle_t *)&f.tick, NULL);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(f.closed, 3);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    return dir_remove(f.folder, NULL) == TITAN_OK ? 0 : -1;
}

static void on_message(const Titan__Internal__PeerMessage *m, const char *from, void *data)
{
    (void)data;
    f.n++;
    f.last_id = m->id;
    (void)snprintf(f.last_from, sizeof(f.last_from), "%s", from);
}

static struct peers *open_one(void)
{
    struct peers *p = NULL;
    struct titan_error err = {0};
    if (peers_open(&f.loop, "127.0.0.1:0", on_message, NULL, &p, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_true(peers_port(p) > 0);
    return p;
}

#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        struct patience_wait wait_ = {0};                                                                              \
        while (!(condition)) {                                                                                         \
            if (!patience_left(&wait_))                                                                                \
                fail_msg("still not: %s", #condition);                                                                 \
            (void)uv_run(&f.loop, UV_RUN_ONCE);                                                                        \
        }                                                                                                              \
    } while (0)

static void ping(struct peers *from, const struct peers *to, const char *host, uint64_t id)
{
    char address[64];
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    m.id = id;
    m.from = (char *)"a";
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PING;
    m.ping = true;
    (void)snprintf(address, sizeof(address), "%s:%u", host, peers_port(to));
    peers_send(from, address, &m);
}

static void test_datagrams(void **state)
{
    char expected[80];
    (void)state;
    f.a = open_one();
    f.b = open_one();
    ping(f.a, f.b, "127.0.0.1", 41);
    UNTIL(f.n == 1);
    assert_int_equal(f.last_id, 41);
    (void)snprintf(expected, sizeof(expected), "127.0.0.1:%u", peers_port(f.a));
    assert_string_equal(f.last_from, expected);
}

static void test_garbage(void **state)
{
    (void)state;
    f.a = open_one();
    f.b = open_one();
    _cleanup_fd_ int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint32_t random = 12345;
    unsigned char bytes[2000];
    for (int i = 0; i < 500; i++) {
        size_t len = 1 + (random >> 8) % sizeof(bytes);
        for (size_t k = 0; k < len; k++)
            bytes[k] = (unsigned char)((random = random * 1664525 + 1013904223) >> 24);
        to.sin_port = htons(peers_port(i % 2 ? f.a : f.b));
        assert_int_equal(sendto(fd, bytes, len, 0, (struct sockaddr *)&to, sizeof(to)), len);
        (void)uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    ping(f.a, f.a, "127.0.0.1", 9);
    UNTIL(f.last_id == 9);
    ping(f.a, f.b, "127.0.0.1", 10);
    UNTIL(f.last_id == 10);
}

static void test_name_is_looked_up(void **state)
{
    (void)state;
    f.a = open_one();
    f.b = open_one();
    int64_t again = 0;
    UNTIL(({
        if (clock_mono_ns() > again) { /* the first ones are lost */
            again = clock_mono_ns() + 10000000;
            ping(f.a, f.b, "localhost", 5);
        }
        f.n > 0;
    }));
    ping(f.a, f.b, "no port", 6); /* nowhere to send it */
}

/* The name of a machine that can change its address: libuv's lookups come by here. */
static const char *moving_to; /* NULL = it is unknown */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    const bool moves = node && strcmp(node, "moves.example") == 0;
    return moves && !moving_to ? EAI_NONAME : real(moves ? moving_to : node, service, hints, found);
}

static void on_moved(const Titan__Internal__PeerMessage *m, const char *from, void *data)
{
    (void)m;
    (void)from;
    ++*(int *)data;
}

static void test_name_that_moves(void **state)
{
    (void)state;
    int arrived = 0;
    char there[32];
    f.a = open_one();
    f.b = open_one();
    (void)snprintf(there, sizeof(there), "127.0.0.2:%u", peers_port(f.b));
    assert_int_equal(peers_open(&f.loop, there, on_moved, &arrived, &f.moved, NULL), TITAN_OK);
    moving_to = "127.0.0.1";
    UNTIL((ping(f.a, f.b, "moves.example", 1), f.n > 0));
    moving_to = "127.0.0.2";
    const int before = f.n;
    UNTIL((ping(f.a, f.b, "moves.example", 2), f.n > before)); /* what is known is used */
    assert_int_equal(arrived, 0);
    peers_look_again(f.a);
    UNTIL((ping(f.a, f.b, "moves.example", 3), arrived > 0));
    moving_to = NULL; /* what is known stays */
    peers_look_again(f.a);
    const int until = arrived + 20;
    UNTIL((ping(f.a, f.b, "moves.example", 4), arrived >= until));
}

static void test_bad_options(void **state)
{
    (void)state;
    struct titan_error err = {0};
    f.a = open_one();
    assert_int_equal(peers_open(&f.loop, "127.0.0.1", on_message, NULL, &f.b, &err), TITAN_EINVAL);
    char taken[64];
    (void)snprintf(taken, sizeof(taken), "127.0.0.1:%u", peers_port(f.a));
    assert_int_equal(peers_open(&f.loop, taken, on_message, NULL, &f.b, &err), TITAN_EEXIST);
    /* One that no machine has, as that of an interface that is still to come up. */
    assert_int_equal(peers_open(&f.loop, "192.0.2.7:0", on_message, NULL, &f.b, &err), TITAN_OK);
    assert_true(peers_port(f.b) > 0);
}

/* --- records ------------------------------------------------------------------------------------------------------ */

static int n_records;
static uint64_t promised[10];

static void on_record(const Titan__Internal__AgentJobRecord *r, void *data)
{
    (void)data;
    n_records++;
    if (r->job_id < 10)
        promised[r->job_id] = r->promised_epoch;
}

static void test_records(void **state)
{
    (void)state;
    struct seen_term seen = {.term = 7}, proved = {.term = RANGE_TERM_MAX, .proved = true};
    char path[128];
    struct titan_error err = {0};
    f.a = open_one();
    f.b = open_one();
    assert_int_equal(record_read_term(f.folder, &seen, &err), TITAN_OK);
    assert_int_equal(seen.term, 0);
    for (int i = 0; i < MAC_BYTES; i++)
        proved.proof[i] = (uint8_t)(7 * i + 3);
    assert_int_equal(record_write_term(f.folder, &proved, &err), TITAN_OK);
    assert_int_equal(record_read_term(f.folder, &seen, &err), TITAN_OK);
    assert_memory_equal(&seen, &proved, sizeof(seen));
    (void)snprintf(path, sizeof(path), "%s/term", f.folder);
    assert_int_equal(file_replace(path, "8\n", 2, &err), TITAN_OK); /* of an older version */
    assert_int_equal(record_read_term(f.folder, &seen, &err), TITAN_OK);
    assert_true(seen.term == 8 && !seen.proved);
    static const char *const wrong[] = {"1x", "", "1", "-1\n", "1 \n", "1 00\n", "18446744073709551615\n", "1 0g\n"};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        assert_int_equal(file_replace(path, wrong[i], strlen(wrong[i]), &err), TITAN_OK);
        assert_int_equal(record_read_term(f.folder, &seen, &err), TITAN_ECORRUPT);
    }

    assert_int_equal(record_read_jobs(f.folder, on_record, NULL, &err), TITAN_OK); /* no folder yet */
    (void)snprintf(path, sizeof(path), "%s/jobs", f.folder);
    assert_int_equal(dir_make(path, &err), TITAN_OK);
    for (uint64_t job = 1; job <= 3; job++) {
        Titan__Internal__AgentJobRecord r = TITAN__INTERNAL__AGENT_JOB_RECORD__INIT;
        r.job_id = job;
        r.promised_epoch = 100 * job;
        assert_int_equal(record_write_job(f.folder, &r, &err), TITAN_OK);
    }
    record_forget_job(f.folder, 3);
    assert_int_equal(record_read_jobs(f.folder, on_record, NULL, &err), TITAN_OK);
    assert_true(n_records == 2 && promised[1] == 100 && promised[2] == 200);
    /* One bit of one of them: it is named, and the other is read. */
    struct buf bytes = BUF_INIT;
    (void)snprintf(path, sizeof(path), "%s/jobs/1.epoch", f.folder);
    assert_int_equal(file_read(path, 4096, &bytes, &err), TITAN_OK);
    bytes.data[bytes.len - 1] ^= 1;
    assert_int_equal(file_replace(path, bytes.data, bytes.len, &err), TITAN_OK);
    buf_free(&bytes);
    n_records = 0;
    assert_int_equal(record_read_jobs(f.folder, on_record, NULL, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "1.epoch"));
    assert_int_equal(n_records, 1);
    record_forget_job(f.folder, 1);
}

/* What is written is read as it was written, and believed only as far as a message would be. */
static void test_records_that_cannot_be(void **state)
{
    (void)state;
    struct titan_error err = {0};
    char path[128], to[128];
    unsigned char id[16] = {1};
    Titan__Internal__Member one = TITAN__INTERNAL__MEMBER__INIT, *list[] = {&one, &one};
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT, *forms = &form;
    f.a = open_one();
    f.b = open_one();
    (void)snprintf(path, sizeof(path), "%s/jobs", f.folder);
    assert_int_equal(dir_make(path, &err), TITAN_OK);
    one.worker_id = 3;
    one.node = (char *)"a";
    form.job_id = 1;
    form.epoch = 4;
    form.comm_id = (ProtobufCBinaryData){sizeof(id), id};
    form.members = list;
    for (int wrong = 0; wrong < 7; wrong++) {
        Titan__Internal__AgentJobRecord r = TITAN__INTERNAL__AGENT_JOB_RECORD__INIT;
        form.n_members = wrong == 4 || wrong == 5 ? 2 : 1;
        form.job_id = wrong == 6 ? 2 : 1;
        form.epoch = wrong == 3 ? UINT64_MAX : 4;
        r.job_id = 1;
        r.accepted = wrong == 5 ? NULL : &form;
        r.before = &forms;
        r.n_before = wrong == 5;
        r.promised_epoch = wrong == 1 ? UINT64_MAX : 5;
        r.term = wrong == 2 ? RANGE_TERM_MAX + 1 : 1;
        assert_int_equal(record_write_job(f.folder, &r, &err), TITAN_OK);
        n_records = 0;
        err = (struct titan_error){0};
        assert_int_equal(record_read_jobs(f.folder, on_record, NULL, &err), wrong ? TITAN_ECORRUPT : TITAN_OK);
        assert_int_equal(n_records, wrong == 0);
        assert_true(!wrong || (strstr(err.msg, "1.epoch") && strstr(err.msg, "is damaged: ")));
    }
    Titan__Internal__AgentJobRecord r = TITAN__INTERNAL__AGENT_JOB_RECORD__INIT;
    r.job_id = 1;
    assert_int_equal(record_write_job(f.folder, &r, &err), TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/jobs/1.epoch", f.folder);
    (void)snprintf(to, sizeof(to), "%s/jobs/2.epoch", f.folder);
    assert_int_equal(rename(path, to), 0);
    assert_int_equal(record_read_jobs(f.folder, on_record, NULL, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "it is of job 1"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_datagrams),       TEST(test_garbage), TEST(test_name_is_looked_up),
        TEST(test_bad_options),     TEST(test_records), TEST(test_records_that_cannot_be),
        TEST(test_name_that_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
