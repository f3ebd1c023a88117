/* SPDX-License-Identifier: Apache-2.0 */
/* test_transport.c - connections between coordinators over loopback, with TLS and without: frames, libraft itself, and
 * every kind of peer that gets no connection. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "daemon/auth/pki.h"
#include "daemon/ha/transport.h"
#include "tests/support/patience.h"
#include "tests/support/seeded.h"

#define HOUR_MS INT64_C(3600000)
enum { MOST = 3 };

struct ca {
    struct buf key, certificate;
};

struct fixture;
struct member {
    struct fixture *f;
    struct transport *t;
    uint64_t id;
    int index; /* in its list */
    int frames, reached, lost;
    uint8_t last[TRANSPORT_FRAME_MAX];
    size_t last_len;
    bool closed;
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t watchdog;
    char dir[32];
    struct ca ca, other;
    struct ha_members list;
    struct member members[MOST + 1];
    struct rpc_tls tls[MOST];
};

static void watchdog_bite(uv_timer_t *timer)
{
    (void)timer;
    (void)fprintf(stderr, "# a test waited for something that did not come\n");
    abort();
}

/* --- certificates ------------------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    return (int64_t)time(NULL) * 1000;
}

static void ca_make(struct ca *ca, const char *name)
{
    assert_int_equal(pki_key_make(&ca->key, NULL), TITAN_OK);
    assert_int_equal(pki_ca_make(&ca->key, name, now_ms() - HOUR_MS, now_ms() + HOUR_MS, &ca->certificate, NULL),
                     TITAN_OK);
}

static void write_file(const char *path, const struct buf *text)
{
    assert_int_equal(file_replace(path, text->data, text->len, NULL), TITAN_OK);
    assert_int_equal(chmod(path, 0600), 0);
}

/* Files of a key and a certificate of this authority, which is also the one that they trust. */
static void issue(struct fixture *f, const struct ca *ca, enum pki_kind kind, const char *name, struct rpc_tls *ret)
{
    static const char hosts[][256] = {"localhost"};
    struct buf key = BUF_INIT, request = BUF_INIT, certificate = BUF_INIT;
    char uri[128];
    (void)snprintf(uri, sizeof(uri), "spiffe://titan/%s/%s", pki_kind_name(kind), name);
    const struct pki_spec spec = {.kind = kind,
                                  .name = name,
                                  .hosts = hosts,
                                  .n_hosts = kind == PKI_COORDINATOR,
                                  .from_ms = now_ms() - HOUR_MS,
                                  .until_ms = now_ms() + HOUR_MS};
    const struct pki_issuer issuer = {&ca->certificate, &ca->key};
    assert_int_equal(pki_key_make(&key, NULL), TITAN_OK);
    assert_int_equal(pki_request_make(&key, uri, &request, NULL), TITAN_OK);
    assert_int_equal(pki_issue(&issuer, request.data, request.len, &spec, &certificate, NULL), TITAN_OK);
    (void)snprintf(ret->ca, sizeof(ret->ca), "%s/%s.ca", f->dir, name);
    (void)snprintf(ret->certificate, sizeof(ret->certificate), "%s/%s.cert", f->dir, name);
    (void)snprintf(ret->key, sizeof(ret->key), "%s/%s.key", f->dir, name);
    write_file(ret->ca, &ca->certificate);
    write_file(ret->certificate, &certificate);
    write_file(ret->key, &key);
    buf_free(&key);
    buf_free(&request);
    buf_free(&certificate);
}

/* --- fixture ------------------------------------------------------------------------------------------------------ */

/* Addresses of this process alone: 127.x.y.z by its number. */
static void address_of(int member, char out[HA_ADDRESS_MAX])
{
    const unsigned pid = (unsigned)getpid();
    (void)snprintf(out, HA_ADDRESS_MAX, "127.%u.%u.%u:%d", 1 + pid / 62500 % 250, 1 + pid / 250 % 250, 1 + pid % 250,
                   7100 + member);
}

static void add(struct ha_members *list, const char *name, int member)
{
    char text[HA_NAME_MAX + 1 + HA_ADDRESS_MAX], address[HA_ADDRESS_MAX];
    address_of(member, address);
    (void)snprintf(text, sizeof(text), "%s=%s", name, address);
    assert_int_equal(ha_members_add(list, text, NULL), TITAN_OK);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    (void)uv_timer_init(&f->loop, &f->watchdog);
    (void)uv_timer_start(&f->watchdog, watchdog_bite, (uint64_t)patience_ms(120), 0);
    uv_unref((uv_handle_t *)&f->watchdog);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/titan-ha-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    ca_make(&f->ca, "ours");
    ca_make(&f->other, "theirs");
    for (int i = 0; i < MOST; i++)
        add(&f->list, (const char[]){(char)('a' + i), 0}, i);
    *state = f;
    return 0;
}

static void on_frame(void *data, int member, const uint8_t *bytes, size_t len)
{
    struct member *m = data;
    assert_true(member != m->index);
    m->frames++;
    memcpy(m->last, bytes, len);
    m->last_len = len;
}

static void on_reached(void *data, int member, bool reached)
{
    struct member *m = data;
    assert_true(member != m->index);
    m->reached += reached;
    m->lost += !reached;
}

/* Opens the transport of a member of `list`; tls NULL: none. It listens at the address of `place`. */
static struct member *open_as(struct fixture *f, int slot, const struct ha_members *list, const char *name, uint64_t id,
                              int place, const struct rpc_tls *tls)
{
    struct member *m = &f->members[slot];
    char address[HA_ADDRESS_MAX];
    struct titan_error err = {0};
    *m = (struct member){.f = f, .id = id, .index = ha_members_find(list, name)};
    address_of(place, address);
    const struct transport_options options = {.members = list,
                                              .name = name,
                                              .listen = address,
                                              .tls = tls,
                                              .id = id,
                                              .frame = on_frame,
                                              .reached = on_reached,
                                              .data = m};
    if (transport_open(&f->loop, &options, &m->t, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return m;
}

static struct member *open_member(struct fixture *f, int i, const struct rpc_tls *tls)
{
    return open_as(f, i, &f->list, (const char[]){(char)('a' + i), 0}, 100 + (uint64_t)i, i, tls);
}

static void on_closed(void *data)
{
    *(bool *)data = true;
}

static void close_member(struct member *m)
{
    transport_close(TAKE(m->t), on_closed, &m->closed);
    while (!m->closed)
        (void)uv_run(&m->f->loop, UV_RUN_ONCE);
}

#define RUN_UNTIL(f, condition)                                                                                        \
    do {                                                                                                               \
        while (!(condition))                                                                                           \
            (void)uv_run(&(f)->loop, UV_RUN_ONCE);                                                                     \
    } while (0)

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[64];
    for (int i = 0; i <= MOST; i++)
        if (f->members[i].t)
            close_member(&f->members[i]);
    uv_close((uv_handle_t *)&f->watchdog, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    buf_free(&f->ca.key);
    buf_free(&f->ca.certificate);
    buf_free(&f->other.key);
    buf_free(&f->other.certificate);
    (void)snprintf(command, sizeof(command), "rm -rf %s", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static uint64_t refused(const struct member *m)
{
    return transport_counters(m->t).refused;
}

/* --- right peers -------------------------------------------------------------------------------------------------- */

static void check_frames(struct fixture *f, struct member *a, struct member *b)
{
    uint8_t bytes[TRANSPORT_FRAME_MAX];
    RUN_UNTIL(f, transport_reached(a->t, b->index) && transport_reached(b->t, a->index));
    assert_int_equal(transport_id(a->t, b->index), b->id);
    const int before = b->frames;
    for (int i = 1; i <= 40; i++) {
        memset(bytes, i, sizeof(bytes));
        transport_send(a->t, b->index, bytes, i == 40 ? sizeof(bytes) : (size_t)i);
    }
    transport_send(b->t, a->index, "x", 1);
    RUN_UNTIL(f, b->frames == before + 40 && a->frames > 0);
    memset(bytes, 40, sizeof(bytes));
    assert_int_equal(b->last_len, sizeof(bytes));
    assert_memory_equal(b->last, bytes, sizeof(bytes));
}

static void test_frames_pass(void **state)
{
    struct fixture *f = *state;
    struct member *a = open_member(f, 0, NULL), *b = open_member(f, 1, NULL);
    check_frames(f, a, b);
    assert_int_equal(refused(a) + refused(b), 0);
    transport_send(a->t, 2, "nobody is there", 15);
    assert_int_equal(transport_counters(a->t).dropped, 1);

    /* A member that comes back, with the same log or a new one, is reached again. */
    close_member(b);
    RUN_UNTIL(f, a->lost == 1);
    b = open_as(f, 1, &f->list, "b", 777, 1, NULL);
    check_frames(f, a, b);
}

static void test_frames_pass_with_tls(void **state)
{
    struct fixture *f = *state;
    issue(f, &f->ca, PKI_COORDINATOR, "ca", &f->tls[0]);
    issue(f, &f->ca, PKI_COORDINATOR, "cb", &f->tls[1]);
    struct member *a = open_member(f, 0, &f->tls[0]), *b = open_member(f, 1, &f->tls[1]);
    check_frames(f, a, b);
    assert_int_equal(refused(a) + refused(b), 0);

    /* Renewed files, here even of another authority, are taken at the next connection. */
    close_member(b);
    RUN_UNTIL(f, a->lost == 1);
    issue(f, &f->other, PKI_COORDINATOR, "ca", &f->tls[0]);
    issue(f, &f->other, PKI_COORDINATOR, "cb", &f->tls[1]);
    b = open_member(f, 1, &f->tls[1]);
    check_frames(f, a, b);
}

/* --- libraft ------------------------------------------------------------------------------------------------------ */

struct server {
    struct raft raft;
    struct raft_io io;
    struct raft_fsm fsm;
    char dir[64];
    int applied;
    bool closed;
};

static int fsm_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
    struct server *s = fsm->data;
    assert_int_equal(buf->len, 70000);
    s->applied++;
    *result = NULL;
    return 0;
}

static void on_raft_closed(struct raft *raft)
{
    struct server *s = raft->data;
    s->closed = true;
}

static void on_applied(struct raft_apply *request, int status, void *result)
{
    (void)result;
    *(int *)request->data = status == 0 ? 1 : -1;
}

/* libraft elects a leader and copies entries through our connections. */
static void check_raft(struct fixture *f, const struct rpc_tls *tls)
{
    struct server servers[MOST] = {0};
    struct raft_configuration configuration;
    raft_configuration_init(&configuration);
    for (int i = 0; i < MOST; i++)
        assert_int_equal(raft_configuration_add(&configuration, 100 + (raft_id)i, f->list.at[i].address, RAFT_VOTER),
                         0);
    for (int i = 0; i < MOST; i++) {
        struct server *s = &servers[i];
        struct member *m = open_member(f, i, tls ? &tls[i] : NULL);
        (void)snprintf(s->dir, sizeof(s->dir), "%s/raft%d", f->dir, i);
        assert_int_equal(mkdir(s->dir, 0700), 0);
        s->fsm = (struct raft_fsm){.version = 1, .data = s, .apply = fsm_apply};
        assert_int_equal(raft_uv_init(&s->io, &f->loop, s->dir, transport_raft(m->t)), 0);
        raft_uv_set_connect_retry_delay(&s->io, 50);
        assert_int_equal(raft_init(&s->raft, &s->io, &s->fsm, m->id, f->list.at[i].address), 0);
        s->raft.data = s;
        raft_set_election_timeout(&s->raft, 300);
        raft_set_heartbeat_timeout(&s->raft, 30);
        assert_int_equal(raft_bootstrap(&s->raft, &configuration), 0);
        assert_int_equal(raft_start(&s->raft), 0);
    }
    raft_configuration_close(&configuration);

    /* A leader may lose its office on a busy machine; the entry is then tried again. */
    for (int done = -1; done < 1;) {
        struct server *leader = NULL;
        for (int i = 0; i < MOST; i++)
            if (raft_state(&servers[i].raft) == RAFT_LEADER)
                leader = &servers[i];
        struct raft_buffer entry = {.base = raft_malloc(70000), .len = 70000};
        struct raft_apply request = {.data = &done};
        memset(entry.base, 7, entry.len);
        done = 0;
        if (!leader || raft_apply(&leader->raft, &request, &entry, 1, on_applied) != 0) {
            raft_free(entry.base);
            done = -1;
            (void)uv_run(&f->loop, UV_RUN_ONCE);
            continue;
        }
        RUN_UNTIL(f, done != 0);
    }
    RUN_UNTIL(f, servers[0].applied >= 1 && servers[1].applied >= 1 && servers[2].applied >= 1);
    for (int i = 0; i < MOST; i++) {
        raft_close(&servers[i].raft, on_raft_closed);
        RUN_UNTIL(f, servers[i].closed);
        raft_uv_close(&servers[i].io);
        assert_int_equal(refused(&f->members[i]), 0);
    }
}

static void test_raft(void **state)
{
    check_raft(*state, NULL);
}

static void test_raft_with_tls(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < MOST; i++)
        issue(f, &f->ca, PKI_COORDINATOR, (const char[]){'c', (char)('a' + i), 0}, &f->tls[i]);
    check_raft(f, f->tls);
}

/* --- wrong peers -------------------------------------------------------------------------------------------------- */

static void test_other_authority(void **state)
{
    struct fixture *f = *state;
    issue(f, &f->ca, PKI_COORDINATOR, "ca", &f->tls[0]);
    issue(f, &f->other, PKI_COORDINATOR, "cb", &f->tls[1]);
    issue(f, &f->ca, PKI_NODE, "n1", &f->tls[2]); /* of the cluster, but not a coordinator's */
    struct member *a = open_member(f, 0, &f->tls[0]), *b = open_member(f, 1, &f->tls[1]);
    RUN_UNTIL(f, refused(a) >= 2 && refused(b) >= 2);
    assert_int_equal(transport_id(a->t, 1) + transport_id(b->t, 0), 0);
    close_member(b);

    struct member *c = open_member(f, 2, &f->tls[2]);
    const uint64_t before = refused(a);
    RUN_UNTIL(f, refused(a) >= before + 2);
    assert_int_equal(transport_id(a->t, 2) + transport_id(c->t, 0), 0);
    close_member(c);

    /* Without TLS nothing gets in either. */
    c = open_member(f, 2, NULL);
    const uint64_t then = refused(a);
    RUN_UNTIL(f, refused(a) >= then + 2 && refused(c) >= 1);
    assert_int_equal(transport_id(a->t, 2) + transport_id(c->t, 0), 0);
}

static void test_other_list(void **state)
{
    struct fixture *f = *state;
    struct ha_members other = {.n = 0};
    add(&other, "a", 0);
    add(&other, "b", 1);
    add(&other, "d", 2);
    struct member *a = open_member(f, 0, NULL), *b = open_as(f, 1, &other, "b", 101, 1, NULL);
    RUN_UNTIL(f, refused(a) >= 2 && refused(b) >= 2); /* each says what differs */
    assert_int_equal(a->reached + b->reached, 0);
    assert_int_equal(transport_counters(a->t).accepted + transport_counters(b->t).accepted, 0);
}

static void test_name_twice(void **state)
{
    struct fixture *f = *state;
    struct member *a = open_member(f, 0, NULL), *b = open_member(f, 1, NULL);
    check_frames(f, a, b);
    RUN_UNTIL(f, transport_reached(b->t, 0));
    struct member *second = open_as(f, MOST, &f->list, "b", 555, 3, NULL);
    RUN_UNTIL(f, refused(a) >= 2);
    assert_int_equal(transport_id(a->t, 1), 101);
    assert_int_equal(second->reached, 0);
    close_member(second);

    second = open_as(f, MOST, &f->list, "a", 556, 3, NULL); /* a's own name */
    const uint64_t before = refused(b);
    RUN_UNTIL(f, refused(b) >= before + 1);
    assert_int_equal(transport_id(b->t, 0), 100);
    check_frames(f, a, b);
}

static int client(int place)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    char address[HA_ADDRESS_MAX];
    address_of(place, address);
    char *colon = strrchr(address, ':');
    to.sin_port = htons((uint16_t)atoi(colon + 1));
    *colon = '\0';
    assert_int_equal(inet_pton(AF_INET, address, &to.sin_addr), 1);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Garbage, changed handshakes and half ones reach nothing, and disturb nobody. */
static void test_garbage(void **state)
{
    struct fixture *f = *state;
    struct member *a = open_member(f, 0, NULL), *b = open_member(f, 1, NULL);
    check_frames(f, a, b);
    seeded_open("transport", 0);
    struct handshake handshake = {.version = HANDSHAKE_VERSION,
                                  .purpose = HANDSHAKE_RAFT,
                                  .id = 102,
                                  .members = ha_members_hash(&f->list),
                                  .name = "c"};
    static const uint8_t meant[] = {0, 3, 7, 8, 9, 11, 15, 24, 28, 31, 60, 104, 111};
    for (int i = 0; i < 60; i++) {
        uint8_t bytes[2 * HANDSHAKE_BYTES];
        const uint64_t accepted = transport_counters(a->t).accepted, before = refused(a);
        for (size_t k = 0; k < sizeof(bytes); k++)
            bytes[k] = (uint8_t)seeded_draw(256);
        const bool whole = i % 3 != 2;
        if (i % 3 == 1) { /* one byte changed */
            handshake_encode(&handshake, bytes);
            bytes[meant[seeded_draw(sizeof(meant))]] ^= (uint8_t)(1 + seeded_draw(255));
        }
        const int fd = client(0);
        const size_t len = whole ? sizeof(bytes) : seeded_draw(HANDSHAKE_BYTES);
        assert_int_equal(write(fd, bytes, len), (ssize_t)len);
        if (!whole)
            (void)close(fd);
        RUN_UNTIL(f, refused(a) > before);
        assert_int_equal(transport_counters(a->t).accepted, accepted);
        if (whole)
            (void)close(fd);
    }
    /* libraft's connection of a member that has none for frames waits. */
    uint8_t right[HANDSHAKE_BYTES];
    handshake_encode(&handshake, right);
    int fd = client(0);
    assert_int_equal(write(fd, right, sizeof(right)), sizeof(right));
    ssize_t n;
    while ((n = recv(fd, right, sizeof(right), MSG_DONTWAIT)) > 0 || (n < 0 && errno == EAGAIN))
        (void)uv_run(&f->loop, n > 0 ? UV_RUN_NOWAIT : UV_RUN_ONCE);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    (void)close(fd);

    /* Silent clients take a bounded number of places, and hold them for a bounded time. */
    int silent[40];
    const uint64_t before = refused(a);
    for (size_t i = 0; i < ARRAY_SIZE(silent); i++)
        silent[i] = client(0);
    RUN_UNTIL(f, refused(a) >= before + ARRAY_SIZE(silent));
    for (size_t i = 0; i < ARRAY_SIZE(silent); i++)
        (void)close(silent[i]);
    check_frames(f, a, b);

    /* A frame that is too long ends its connection alone. */
    handshake.purpose = HANDSHAKE_FRAMES;
    handshake_encode(&handshake, right);
    fd = client(0);
    assert_int_equal(write(fd, right, sizeof(right)), sizeof(right));
    const uint64_t then = refused(a);
    assert_int_equal(write(fd, "\xff\xff", 2), 2);
    RUN_UNTIL(f, refused(a) > then);
    (void)close(fd);
    check_frames(f, a, b);
}

/* --- handshakes and lists ----------------------------------------------------------------------------------------- */

static void test_handshakes(void **state)
{
    (void)state;
    struct handshake back;
    seeded_open("transport", 0);
    int good = 0;
    for (int i = 0; i < 20000; i++) {
        struct handshake handshake = {.version = HANDSHAKE_VERSION,
                                      .purpose = 1 + seeded_draw(2),
                                      .id = 1 + seeded_draw(1000),
                                      .members = seeded_draw(UINT32_MAX),
                                      .store_id = seeded_draw(UINT32_MAX),
                                      .name = "coordinator-1"};
        uint8_t bytes[HANDSHAKE_BYTES], again[HANDSHAKE_BYTES];
        handshake_encode(&handshake, bytes);
        for (uint32_t n = seeded_draw(4); n > 0; n--)
            bytes[seeded_draw(HANDSHAKE_BYTES)] = seeded_draw(2) ? 0 : (uint8_t)seeded_draw(256);
        if (handshake_decode(bytes, &back, NULL) != TITAN_OK || back.version != HANDSHAKE_VERSION)
            continue;
        handshake_encode(&back, again); /* what is taken has one meaning */
        assert_memory_equal(bytes, again, sizeof(bytes));
        good++;
    }
    assert_in_range(good, 4000, 19000);
}

static void test_what_differs(void **state)
{
    (void)state;
    struct ha_members list = {.n = 0};
    struct titan_error err;
    add(&list, "b", 1);
    add(&list, "a", 0);
    add(&list, "c", 2);
    const struct handshake own = {.version = HANDSHAKE_VERSION,
                                  .purpose = HANDSHAKE_RAFT,
                                  .id = 1,
                                  .members = ha_members_hash(&list),
                                  .store_id = 5,
                                  .name = "a"};
    struct handshake theirs = own;
    theirs.id = 2;
    memcpy(theirs.name, "b", 2);
    assert_int_equal(handshake_compare(&own, &list, &theirs, &err), TITAN_OK);
    theirs.store_id = 0; /* an empty disk */
    assert_int_equal(handshake_compare(&own, &list, &theirs, &err), TITAN_OK);

    const struct {
        struct handshake with;
        const char *why;
    } cases[] = {
        {{.version = 9}, "it speaks version 9 between coordinators, this one version 1"},
        {{.members = 1}, "its config has other members in [ha] ('b')"},
        {{.name = "d"}, "its name 'd' is not in members of [ha]"},
        {{.name = "a"}, "it has this member's own name 'a'"},
        {{.id = 1}, "'b' runs on a copy of this member's state directory"},
        {{.store_id = 6}, "'b' has another job store: 0000000000000006, this member has 0000000000000005"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct handshake h = theirs;
        const struct handshake *w = &cases[i].with;
        h.version = w->version ? w->version : h.version;
        h.members = w->members ? w->members : h.members;
        h.id = w->id ? w->id : h.id;
        h.store_id = w->store_id ? w->store_id : h.store_id;
        if (w->name[0])
            memcpy(h.name, w->name, sizeof(h.name));
        assert_int_equal(handshake_compare(&own, &list, &h, &err), TITAN_EINVAL);
        assert_string_equal(err.msg, cases[i].why);
    }
}

static void test_lists(void **state)
{
    (void)state;
    struct ha_members list = {.n = 0}, turned = {.n = 0};
    struct titan_error err;
    const struct {
        const char *text, *why;
    } wrong[] = {
        {"a", "'a' is not a member: write NAME=HOST:PORT"},
        {"=h:1", "'=h:1' is not a member: write NAME=HOST:PORT"},
        {"a=h", "'a=h' is not a member: write NAME=HOST:PORT"},
        {"a=h:0", "'a=h:0' is not a member: write NAME=HOST:PORT"},
        {"a=h:70000", "'a=h:70000' is not a member: write NAME=HOST:PORT"},
        {"a=unix:/x:1", "'a=unix:/x:1' is not a member: write NAME=HOST:PORT"},
        {"a b=h:1", "'a b' is not a name: letters, digits, '.', '_' and '-'"},
        {"m1=h:9", "the name 'm1' is given twice"},
        {"x=h:1", "the members 'm1' and 'x' have one address"},
    };
    assert_int_equal(ha_members_add(&list, "m1=h:1", &err), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        assert_int_equal(ha_members_add(&list, wrong[i].text, &err), TITAN_EINVAL);
        assert_string_equal(err.msg, wrong[i].why);
    }
    assert_int_equal(list.n, 1);
    assert_int_equal(ha_members_add(&list, "m0=[::1]:1", &err), TITAN_OK);
    assert_int_equal(ha_members_add(&turned, "m0=[::1]:1", &err), TITAN_OK);
    assert_true(ha_members_hash(&list) != ha_members_hash(&turned));
    assert_int_equal(ha_members_add(&turned, "m1=h:1", &err), TITAN_OK);
    assert_true(ha_members_hash(&list) == ha_members_hash(&turned));
    assert_int_equal(ha_members_find(&list, "m1"), 1);
    assert_int_equal(ha_members_find(&list, "m"), -1);
    for (int i = 2; i < HA_MEMBERS_MAX; i++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "m%d=h:%d", i, i);
        assert_int_equal(ha_members_add(&list, text, &err), TITAN_OK);
    }
    assert_int_equal(ha_members_add(&list, "m9=h:9", &err), TITAN_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_frames_pass, setup, teardown),
        cmocka_unit_test_setup_teardown(test_frames_pass_with_tls, setup, teardown),
        cmocka_unit_test_setup_teardown(test_raft, setup, teardown),
        cmocka_unit_test_setup_teardown(test_raft_with_tls, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_authority, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_name_twice, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage, setup, teardown),
        cmocka_unit_test(test_handshakes),
        cmocka_unit_test(test_what_differs),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
