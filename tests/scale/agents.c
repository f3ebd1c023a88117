/* SPDX-License-Identifier: Apache-2.0 */
/* agents - very many simulated agents, each with a connection of its own to a real coordinator, in one thread.
 *
 *   agents HOST PORT COUNT [PKI]
 *
 * PKI: the folder of the cluster's CA (ca.pem, ca.key). With it every connection is TLS, with a certificate for its
 * node.
 *
 * Speaks HTTP/2 and gRPC by hand: a thousand of gRPC's own clients would cost more than what is measured. Each agent
 * (node "s0001" ...) registers, heartbeats as it is told to (by datagrams of one socket for all, and in its stream),
 * starts workers that exist in name only, forms, leaves and pauses epochs at once, and answers probes of others with
 * the truth. Rank 0 of a job says a step of progress twice a second.
 *
 * Commands on stdin, one a line: "kill N" - N agents that live fall silent at once, their connections stay open;
 * "revive" - they come back as fresh starts; "loss P" - of a datagram between two agents, for their answers to probes;
 * "stats"; "quit". Answers and whatever happens are JSON lines on stdout. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "base/buf.h"
#include "base/clock.h"
#include "daemon/auth/certs.h"
#include "daemon/common/proof.h"
#include "titan/internal/agent.pb-c.h"

#define AGENTS_MAX 20000
#define WORKERS_MAX 4  /* of an agent */
#define DENIALS_MAX 64 /* probes on their way */
#define JOBS_MAX 64
#define RETRY_MS 200
#define PROGRESS_MS 500
#define PINGS 3
#define DATAGRAMS (UINT32_MAX - 1) /* in place of an agent's number, of their socket */

enum { FRAME_DATA, FRAME_HEADERS, FRAME_RST = 3, FRAME_SETTINGS = 4, FRAME_PING = 6, FRAME_GOAWAY, FRAME_WINDOW };

struct sim_worker {
    uint64_t id, job, epoch;
    uint32_t rank, world;
    bool training;
};

/* A probe without an answer: told when its time is over. */
struct sim_denial {
    int64_t at_ms; /* 0 = none */
    uint64_t id;
    char node[16];
};

struct sim_agent {
    int fd;
    SSL *ssl; /* NULL = plain text */
    X509 *certificate;
    bool dead, up, greeted, registered; /* up: TCP; greeted: and TLS, the stream is open */
    struct proof_keys keys;             /* of the session */
    char name[16];
    uint64_t incarnation, heartbeats;
    int64_t next_heartbeat_ms, stream_heartbeat_ms, retry_ms;
    int64_t answered_ms; /* by a datagram, last */
    uint32_t heartbeat_ms, away_ms;
    int64_t window_all, window_stream, window_initial; /* what we may still send */
    struct buf in, message, out;
    struct sim_worker workers[WORKERS_MAX];
    struct sim_denial denials[DENIALS_MAX];
    uint32_t n_workers;
};

struct sim_job {
    uint64_t id, step;
    int64_t next_ms;
};

static struct {
    struct sockaddr_in to;
    int epoll, datagrams;
    SSL_CTX *tls; /* NULL = plain text */
    EVP_PKEY *key;
    uint32_t n_agents;
    struct sim_agent *agents;
    struct sim_job jobs[JOBS_MAX];
    uint64_t term, sent, received, connects, datagrams_sent, datagrams_answered;
    uint64_t random;
    double loss;
    int64_t now;
} sim = {.random = 88172645463325252u};

static uint64_t draw(void)
{
    sim.random ^= sim.random << 13;
    sim.random ^= sim.random >> 7;
    return sim.random ^= sim.random << 17;
}

static void die(const char *what)
{
    fprintf(stderr, "agents: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void put_bytes(struct buf *b, const void *bytes, size_t n)
{
    if (buf_append(b, bytes, n) != TITAN_OK)
        die("a buffer is full");
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

static void put_frame(struct sim_agent *a, uint8_t type, uint8_t flags, uint32_t stream, const void *bytes, size_t n)
{
    const uint8_t head[9] = {
        (uint8_t)(n >> 16),      (uint8_t)(n >> 8),      (uint8_t)n,     type, flags, (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    put_bytes(&a->out, head, sizeof(head));
    put_bytes(&a->out, bytes, n);
}

static void put_u32(uint8_t *at, uint32_t v)
{
    at[0] = (uint8_t)(v >> 24);
    at[1] = (uint8_t)(v >> 16);
    at[2] = (uint8_t)(v >> 8);
    at[3] = (uint8_t)v;
}

static uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A header field without indexing: the name by its number in HPACK's static table. */
static void put_field(struct buf *b, uint32_t name, const char *value)
{
    const uint8_t wide[2] = {0x0f, (uint8_t)(name - 15)}, narrow = (uint8_t)name, len = (uint8_t)strlen(value);
    if (name >= 15)
        put_bytes(b, wide, 2);
    else
        put_bytes(b, &narrow, 1);
    put_bytes(b, &len, 1);
    put_bytes(b, value, len);
}

static void open_stream(struct sim_agent *a)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    uint8_t settings[6] = {0, 4}, window[4];
    struct buf headers = BUF_INIT;
    put_bytes(&a->out, preface, sizeof(preface) - 1);
    put_u32(settings + 2, 0x7fffffff); /* they may send as much as they like */
    put_frame(a, FRAME_SETTINGS, 0, 0, settings, sizeof(settings));
    put_u32(window, 0x7fffffff - 65535);
    put_frame(a, FRAME_WINDOW, 0, 0, window, sizeof(window));
    put_bytes(&headers, "\x83\x86", 2); /* POST, http */
    put_field(&headers, 4, "/titan.internal.Coordinator/Session");
    put_field(&headers, 1, "coordinator");
    put_field(&headers, 31, "application/grpc");
    put_bytes(&headers, "\x00\x02te\x08trailers", 13);
    put_frame(a, FRAME_HEADERS, 4, 1, headers.data, headers.len);
    buf_free(&headers);
}

static ssize_t put_some(struct sim_agent *a)
{
    return a->ssl ? SSL_write(a->ssl, a->out.data, (int)MIN(a->out.len, 1u << 20))
                  : send(a->fd, a->out.data, a->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void flush(struct sim_agent *a)
{
    while (a->out.len && a->fd >= 0 && a->greeted) {
        const ssize_t n = put_some(a);
        if (n <= 0)
            return;
        buf_consume(&a->out, (size_t)n);
    }
}

static void send_message(struct sim_agent *a, Titan__Internal__AgentMessage *m)
{
    uint8_t small[1024];
    m->term = sim.term;
    const size_t n = titan__internal__agent_message__get_packed_size(m);
    uint8_t *bytes = n + 5 <= sizeof(small) ? small : malloc(n + 5);
    if (!bytes)
        die("memory");
    bytes[0] = 0;
    put_u32(bytes + 1, (uint32_t)n);
    titan__internal__agent_message__pack(m, bytes + 5);
    /* A heartbeat that finds no room is one heartbeat less; nothing else is as frequent. */
    if (a->window_all >= (int64_t)n + 5 && a->window_stream >= (int64_t)n + 5) {
        put_frame(a, FRAME_DATA, 0, 1, bytes, n + 5);
        a->window_all -= (int64_t)n + 5;
        a->window_stream -= (int64_t)n + 5;
        sim.sent++;
    }
    if (bytes != small)
        free(bytes);
}

#define MESSAGE(name) TITAN__INTERNAL__##name##__INIT
#define SEND(a, KIND, field, value)                                                                                    \
    do {                                                                                                               \
        Titan__Internal__AgentMessage m_ = MESSAGE(AGENT_MESSAGE);                                                     \
        m_.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND;                                                    \
        m_.field = (value);                                                                                            \
        send_message(a, &m_);                                                                                          \
    } while (0)

/* --- what an agent and its workers do ----------------------------------------------------------------------------- */

static struct sim_job *job_of(uint64_t id)
{
    for (int i = 0; i < JOBS_MAX; i++) {
        if (!sim.jobs[i].id)
            sim.jobs[i].id = id;
        if (sim.jobs[i].id == id)
            return &sim.jobs[i];
    }
    fprintf(stderr, "agents: more than %d jobs\n", JOBS_MAX);
    exit(1);
}

static struct sim_worker *worker_of(struct sim_agent *a, uint64_t id)
{
    for (uint32_t i = 0; i < a->n_workers; i++)
        if (a->workers[i].id == id)
            return &a->workers[i];
    return NULL;
}

static const char *worker_address(const struct sim_agent *a)
{
    static char text[32];
    const uint32_t n = (uint32_t)(a - sim.agents);
    snprintf(text, sizeof(text), "10.%u.%u.%u:4000", n >> 16, n >> 8 & 255, n & 255);
    return text;
}

static void say_registration(struct sim_agent *a)
{
    Titan__Internal__AgentRegistration registration = MESSAGE(AGENT_REGISTRATION);
    Titan__Internal__LiveWorker live[WORKERS_MAX], *list[WORKERS_MAX];
    char address[32];
    snprintf(address, sizeof(address), "%s", worker_address(a));
    for (uint32_t i = 0; i < a->n_workers; i++) {
        const struct sim_worker *w = &a->workers[i];
        live[i] = (Titan__Internal__LiveWorker)MESSAGE(LIVE_WORKER);
        live[i].job_id = w->job;
        live[i].worker_id = w->id;
        live[i].epoch = w->epoch;
        live[i].rank = w->rank;
        live[i].step = job_of(w->job)->step;
        live[i].state = w->training ? 2 : 0;
        live[i].address = address;
        list[i] = &live[i];
    }
    registration.node = a->name;
    registration.slots = 1;
    registration.device = (char *)"cpu";
    registration.address = (char *)"127.0.0.1";
    registration.version = (char *)"simulated";
    registration.memory_bytes = UINT64_C(1) << 34;
    registration.workers = list;
    registration.n_workers = a->n_workers;
    registration.incarnation = a->incarnation;
    registration.seen_term = sim.term;
    registration.peer_port = 7071;
    registration.proves = true;
    SEND(a, REGISTRATION, registration, &registration);
}

static void say_progress(struct sim_agent *a, const struct sim_worker *w, uint64_t step)
{
    Titan__Internal__WorkerProgress p = MESSAGE(WORKER_PROGRESS);
    p.job_id = w->job;
    p.worker_id = w->id;
    p.epoch = w->epoch;
    p.step = step;
    p.loss = 3;
    p.step_ms = PROGRESS_MS;
    p.world_size = w->world;
    p.at_ms = clock_wall_ms();
    SEND(a, PROGRESS, progress, &p);
}

static void say_quiesced(struct sim_agent *a, struct sim_worker *w, bool paused)
{
    Titan__Internal__WorkerQuiesced q = MESSAGE(WORKER_QUIESCED);
    q.job_id = w->job;
    q.worker_id = w->id;
    q.epoch = q.installed_epoch = w->epoch;
    q.last_step = job_of(w->job)->step;
    q.paused = paused;
    w->training = false;
    SEND(a, WORKER_QUIESCED, worker_quiesced, &q);
}

static void start_workers(struct sim_agent *a, const Titan__Internal__StartWorkers *m)
{
    for (size_t i = 0; i < m->n_worker_ids && a->n_workers < WORKERS_MAX; i++) {
        struct sim_worker *w = &a->workers[a->n_workers++];
        *w = (struct sim_worker){.id = m->worker_ids[i], .job = m->job_id};
        Titan__Internal__WorkerStarted started = MESSAGE(WORKER_STARTED);
        started.job_id = w->job;
        started.worker_id = w->id;
        started.pid = 1000000 + (int64_t)w->id;
        SEND(a, WORKER_STARTED, worker_started, &started);
        Titan__Internal__WorkerReady ready = MESSAGE(WORKER_READY);
        ready.job_id = w->job;
        ready.worker_id = w->id;
        ready.address = (char *)(uintptr_t)worker_address(a);
        SEND(a, WORKER_READY, worker_ready, &ready);
    }
}

static void form_epoch(struct sim_agent *a, const Titan__Internal__FormEpoch *m)
{
    struct sim_job *j = job_of(m->job_id);
    for (uint32_t r = 0; r < m->n_members; r++) {
        struct sim_worker *w = worker_of(a, m->members[r]->worker_id);
        if (!w || w->epoch >= m->epoch)
            continue;
        *w = (struct sim_worker){w->id, w->job, m->epoch, r, (uint32_t)m->n_members, true};
        if (r > 0)
            continue;
        Titan__Internal__StateReady ready = MESSAGE(STATE_READY);
        ready.job_id = w->job;
        ready.worker_id = w->id;
        ready.epoch = w->epoch;
        ready.recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_BUDDY;
        ready.step = j->step;
        SEND(a, STATE_READY, state_ready, &ready);
        say_progress(a, w, ++j->step);
        j->next_ms = sim.now + PROGRESS_MS;
    }
}

static void stop_worker(struct sim_agent *a, struct sim_worker *w)
{
    Titan__Internal__WorkerExited e = MESSAGE(WORKER_EXITED);
    e.job_id = w->job;
    e.worker_id = w->id;
    e.reason = (char *)"";
    e.last_step = job_of(w->job)->step;
    SEND(a, WORKER_EXITED, worker_exited, &e);
    *w = a->workers[--a->n_workers];
}

static void say_probe(struct sim_agent *a, uint64_t id, char *node, bool reached)
{
    Titan__Internal__ProbeResult r = MESSAGE(PROBE_RESULT);
    r.probe_id = id;
    r.node = node;
    r.reached = reached;
    SEND(a, PROBE_RESULT, probe_result, &r);
}

/* One of as many as an agent sends (daemon/agent/core/probes.c), there and back. */
static bool ping_is_answered(void)
{
    for (int i = 0; i < PINGS; i++)
        if ((double)(draw() >> 11) * 0x1p-53 < (1 - sim.loss) * (1 - sim.loss))
            return true;
    return false;
}

static void answer_probe(struct sim_agent *a, const Titan__Internal__ProbeNode *m)
{
    const uint32_t n = (uint32_t)strtoul(m->node + 1, NULL, 10) - 1;
    if (n < sim.n_agents && !sim.agents[n].dead && ping_is_answered()) {
        say_probe(a, m->probe_id, m->node, true);
        return;
    }
    for (uint32_t i = 0; i < DENIALS_MAX; i++) {
        struct sim_denial *d = &a->denials[i];
        if (d->at_ms)
            continue;
        *d = (struct sim_denial){.at_ms = sim.now + m->timeout_ms, .id = m->probe_id};
        snprintf(d->node, sizeof(d->node), "%s", m->node);
        return;
    }
}

static void deny_probes(struct sim_agent *a)
{
    for (uint32_t i = 0; i < DENIALS_MAX; i++) {
        struct sim_denial *d = &a->denials[i];
        if (d->at_ms && d->at_ms <= sim.now) {
            say_probe(a, d->id, d->node, false);
            d->at_ms = 0;
        }
    }
}

static void each_of_job(struct sim_agent *a, uint64_t job, uint64_t epoch, bool paused)
{
    for (uint32_t i = 0; i < a->n_workers; i++)
        if (a->workers[i].job == job && a->workers[i].epoch <= epoch && a->workers[i].training)
            say_quiesced(a, &a->workers[i], paused);
}

/* Unpacked. A large message is the order to form an epoch, which is the same for all: it is unpacked once. */
static Titan__Internal__CoordinatorMessage *unpack(const uint8_t *bytes, size_t n, bool *ret_kept)
{
    static Titan__Internal__CoordinatorMessage *kept;
    static struct buf kept_bytes;
    *ret_kept = n > 4096;
    if (*ret_kept && n == kept_bytes.len && !memcmp(bytes, kept_bytes.data, n))
        return kept;
    Titan__Internal__CoordinatorMessage *m = titan__internal__coordinator_message__unpack(NULL, n, bytes);
    if (!m) {
        fprintf(stderr, "agents: a message that is none\n");
        exit(1);
    }
    if (*ret_kept) {
        if (kept)
            titan__internal__coordinator_message__free_unpacked(kept, NULL);
        kept = m;
        buf_clear(&kept_bytes);
        put_bytes(&kept_bytes, bytes, n);
    }
    return m;
}

static void on_message(struct sim_agent *a, const uint8_t *bytes, size_t n)
{
    bool kept;
    Titan__Internal__CoordinatorMessage *m = unpack(bytes, n, &kept);
    sim.received++;
    if (m->term > sim.term)
        sim.term = m->term;
    switch (m->kind_case) {
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK:
        a->registered = true;
        sim.term = m->ack->term > sim.term ? m->ack->term : sim.term;
        a->heartbeat_ms = m->ack->heartbeat_ms * 3 / 4 ? m->ack->heartbeat_ms * 3 / 4 : 1;
        a->away_ms = m->ack->away_ms;
        a->keys.n = 0;
        if (m->ack->key.len == MAC_BYTES)
            proof_add_key(&a->keys, m->ack->key.data);
        a->next_heartbeat_ms = a->stream_heartbeat_ms = sim.now + (int64_t)(draw() % a->heartbeat_ms);
        a->answered_ms = sim.now;
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START:
        start_workers(a, m->start);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM:
        form_epoch(a, m->form);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE:
        each_of_job(a, m->revoke->job_id, m->revoke->epoch, false);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE:
        each_of_job(a, m->pause->job_id, m->pause->epoch, true);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP:
        for (uint32_t i = a->n_workers; i-- > 0;) {
            bool named = m->stop->n_worker_ids == 0 && a->workers[i].job == m->stop->job_id;
            for (size_t k = 0; k < m->stop->n_worker_ids; k++)
                named |= m->stop->worker_ids[k] == a->workers[i].id;
            if (named)
                stop_worker(a, &a->workers[i]);
        }
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PROBE:
        answer_probe(a, m->probe);
        break;
    default:
        break;
    }
    if (!kept)
        titan__internal__coordinator_message__free_unpacked(m, NULL);
}

/* --- the connection ----------------------------------------------------------------------------------------------- */

static void disconnect(struct sim_agent *a)
{
    SSL_free(a->ssl);
    if (a->fd >= 0)
        close(a->fd);
    a->fd = -1;
    a->ssl = NULL;
    a->up = a->greeted = a->registered = false;
    buf_clear(&a->in);
    buf_clear(&a->out);
    buf_clear(&a->message);
    a->retry_ms = sim.now + 1 + (int64_t)(draw() % RETRY_MS);
}

static void connect_agent(struct sim_agent *a)
{
    a->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (a->fd < 0)
        die("socket");
    setsockopt(a->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (connect(a->fd, (struct sockaddr *)&sim.to, sizeof(sim.to)) != 0 && errno != EINPROGRESS) {
        disconnect(a);
        return;
    }
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = (uint32_t)(a - sim.agents)};
    if (epoll_ctl(sim.epoll, EPOLL_CTL_ADD, a->fd, &e) != 0)
        die("epoll");
    a->window_all = a->window_stream = a->window_initial = 65535;
}

static void on_connected(struct sim_agent *a)
{
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        disconnect(a);
        return;
    }
    a->up = true;
    if (!sim.tls)
        return;
    a->ssl = SSL_new(sim.tls);
    if (!a->ssl || SSL_set_fd(a->ssl, a->fd) != 1 || SSL_use_certificate(a->ssl, a->certificate) != 1 ||
        SSL_use_PrivateKey(a->ssl, sim.key) != 1)
        die("a TLS connection");
    SSL_set_connect_state(a->ssl);
}

/* The handshake as far as it goes now, then the stream. */
static void greet(struct sim_agent *a)
{
    const int done = a->ssl ? SSL_do_handshake(a->ssl) : 1;
    if (done != 1) {
        const int why = SSL_get_error(a->ssl, done);
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
            disconnect(a);
        ERR_clear_error();
        return;
    }
    a->greeted = true;
    sim.connects++;
    open_stream(a);
    say_registration(a);
}

/* > 0 bytes, 0 at the end of the connection, -1 when there are none now. */
static ssize_t get_some(struct sim_agent *a, char *bytes, size_t cap)
{
    if (!a->ssl) {
        const ssize_t n = recv(a->fd, bytes, cap, MSG_DONTWAIT);
        return n < 0 && errno != EAGAIN && errno != EINTR ? 0 : n;
    }
    const int n = SSL_read(a->ssl, bytes, (int)cap);
    if (n > 0)
        return n;
    const int why = SSL_get_error(a->ssl, n);
    ERR_clear_error();
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? -1 : 0;
}

static void on_settings(struct sim_agent *a, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i + 6 <= n; i += 6)
        if (bytes[i] == 0 && bytes[i + 1] == 4) {
            a->window_stream += (int64_t)get_u32(bytes + i + 2) - a->window_initial;
            a->window_initial = get_u32(bytes + i + 2);
        }
    put_frame(a, FRAME_SETTINGS, 1, 0, "", 0);
}

static void on_data(struct sim_agent *a, const uint8_t *bytes, size_t n)
{
    put_bytes(&a->message, bytes, n);
    size_t at = 0;
    while (a->message.len - at >= 5) {
        const uint8_t *head = (const uint8_t *)a->message.data + at;
        const size_t len = get_u32(head + 1);
        if (a->message.len - at < 5 + len)
            break;
        on_message(a, head + 5, len);
        at += 5 + len;
    }
    buf_consume(&a->message, at);
}

/* false when the stream or the connection is over. */
static bool on_frame(struct sim_agent *a, uint8_t type, uint8_t flags, uint32_t stream, const uint8_t *bytes, size_t n)
{
    switch (type) {
    case FRAME_DATA:
        on_data(a, bytes, n);
        return !(flags & 1);
    case FRAME_HEADERS:
        return !(flags & 1);
    case FRAME_SETTINGS:
        if (!(flags & 1))
            on_settings(a, bytes, n);
        return true;
    case FRAME_PING:
        if (!(flags & 1))
            put_frame(a, FRAME_PING, 1, 0, bytes, n);
        return true;
    case FRAME_WINDOW:
        *(stream ? &a->window_stream : &a->window_all) += get_u32(bytes) & 0x7fffffff;
        return true;
    default:
        return type != FRAME_RST && type != FRAME_GOAWAY;
    }
}

static void read_agent(struct sim_agent *a)
{
    char chunk[65536];
    ssize_t n;
    while ((n = get_some(a, chunk, sizeof(chunk))) > 0)
        put_bytes(&a->in, chunk, (size_t)n);
    size_t at = 0;
    bool good = true;
    while (good && a->in.len - at >= 9) {
        const uint8_t *f = (const uint8_t *)a->in.data + at;
        const size_t len = (size_t)f[0] << 16 | (size_t)f[1] << 8 | f[2];
        if (a->in.len - at < 9 + len)
            break;
        good = on_frame(a, f[3], f[4], get_u32(f + 5) & 0x7fffffff, f + 9, len);
        at += 9 + len;
    }
    buf_consume(&a->in, at);
    if (n == 0 || !good)
        disconnect(a);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* The number says which node's heartbeat was answered. */
static void send_datagram(const struct sim_agent *a)
{
    uint8_t bytes[512], proofs[PROOF_KEYS_MAX * MAC_BYTES];
    Titan__Internal__PeerHeartbeat b = MESSAGE(PEER_HEARTBEAT);
    Titan__Internal__PeerMessage m = MESSAGE(PEER_MESSAGE);
    b.incarnation = a->incarnation;
    b.number = (uint64_t)(a - sim.agents) << 40 | a->heartbeats;
    b.hears = sim.now - a->answered_ms < a->away_ms;
    m.from = (char *)(uintptr_t)a->name;
    m.term = sim.term;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT;
    m.heartbeat = &b;
    proof_make(&m, &a->keys, proofs);
    const size_t n = titan__internal__peer_message__pack(&m, bytes);
    sim.datagrams_sent += send(sim.datagrams, bytes, n, MSG_DONTWAIT) == (ssize_t)n;
}

static void read_datagrams(void)
{
    uint8_t bytes[512];
    ssize_t n;
    while ((n = recv(sim.datagrams, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
        Titan__Internal__PeerMessage *m = titan__internal__peer_message__unpack(NULL, (size_t)n, bytes);
        const bool answer = m && m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT_ANSWER;
        const uint64_t at = answer ? m->heartbeat_answer->number >> 40 : UINT64_MAX;
        if (at < sim.n_agents && !sim.agents[at].dead) {
            sim.agents[at].answered_ms = sim.now;
            sim.datagrams_answered++;
        }
        if (m)
            titan__internal__peer_message__free_unpacked(m, NULL);
    }
}

static void heartbeat(struct sim_agent *a)
{
    Titan__Internal__AgentHeartbeat b = MESSAGE(AGENT_HEARTBEAT);
    a->heartbeats++;
    send_datagram(a);
    if (sim.now >= a->stream_heartbeat_ms || sim.now - a->answered_ms >= 4 * (int64_t)a->heartbeat_ms) {
        b.slots_used = a->n_workers;
        b.number = a->heartbeats;
        SEND(a, HEARTBEAT, heartbeat, &b);
        a->stream_heartbeat_ms = sim.now + a->away_ms / 4;
    }
    a->next_heartbeat_ms += a->heartbeat_ms;
    if (a->next_heartbeat_ms <= sim.now)
        a->next_heartbeat_ms = sim.now + a->heartbeat_ms;
}

static void progress(struct sim_agent *a)
{
    for (uint32_t i = 0; i < a->n_workers; i++) {
        struct sim_worker *w = &a->workers[i];
        struct sim_job *j = job_of(w->job);
        if (w->rank != 0 || !w->training || j->next_ms > sim.now)
            continue;
        j->next_ms = sim.now + PROGRESS_MS;
        say_progress(a, w, ++j->step);
    }
}

static void turn(void)
{
    for (uint32_t i = 0; i < sim.n_agents; i++) {
        struct sim_agent *a = &sim.agents[i];
        if (a->dead)
            continue;
        if (a->fd < 0 && a->retry_ms <= sim.now)
            connect_agent(a);
        if (!a->registered)
            continue;
        if (a->next_heartbeat_ms <= sim.now)
            heartbeat(a);
        progress(a);
        deny_probes(a);
        if (a->out.len)
            flush(a);
    }
}

static void kill_some(uint32_t n)
{
    uint32_t left = n;
    for (uint32_t tries = 0; left && tries < 100 * sim.n_agents; tries++) {
        struct sim_agent *a = &sim.agents[draw() % sim.n_agents];
        if (a->dead)
            continue;
        a->dead = true;
        left--;
    }
    printf("{\"killed\": %u, \"at_ms\": %lld}\n", n - left, (long long)clock_wall_ms());
}

static void revive(void)
{
    for (uint32_t i = 0; i < sim.n_agents; i++) {
        struct sim_agent *a = &sim.agents[i];
        if (!a->dead)
            continue;
        disconnect(a);
        a->dead = false;
        a->n_workers = 0;
        a->incarnation = draw();
    }
    printf("{\"revived\": true}\n");
}

static void lose(double loss)
{
    sim.loss = loss;
    printf("{\"loss\": %g}\n", loss);
}

static void stats(void)
{
    uint32_t registered = 0, training = 0;
    for (uint32_t i = 0; i < sim.n_agents; i++) {
        registered += sim.agents[i].registered && !sim.agents[i].dead;
        for (uint32_t k = 0; k < sim.agents[i].n_workers; k++)
            training += sim.agents[i].workers[k].training && !sim.agents[i].dead;
    }
    printf("{\"registered\": %u, \"training\": %u, \"sent\": %llu, \"received\": %llu, \"connects\": %llu, "
           "\"heartbeat_ms\": "
           "%u, \"datagrams\": %llu, \"answered\": %llu}\n",
           registered, training, (unsigned long long)sim.sent, (unsigned long long)sim.received,
           (unsigned long long)sim.connects, sim.agents[0].heartbeat_ms, (unsigned long long)sim.datagrams_sent,
           (unsigned long long)sim.datagrams_answered);
}

static bool command(void)
{
    char text[256];
    const ssize_t n = read(STDIN_FILENO, text, sizeof(text) - 1);
    if (n <= 0)
        return false;
    text[n] = 0;
    if (!strncmp(text, "kill ", 5))
        kill_some((uint32_t)strtoul(text + 5, NULL, 10));
    else if (!strncmp(text, "revive", 6))
        revive();
    else if (!strncmp(text, "loss ", 5))
        lose(strtod(text + 5, NULL));
    else if (!strncmp(text, "stats", 5))
        stats();
    else
        return false;
    fflush(stdout);
    return true;
}

static void serve(void)
{
    for (;;) {
        struct epoll_event events[256];
        const int n = epoll_wait(sim.epoll, events, 256, 1);
        sim.now = clock_mono_ns() / 1000000;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u32 == DATAGRAMS) {
                read_datagrams();
                continue;
            }
            if (events[i].data.u32 == UINT32_MAX) {
                if (!command())
                    return;
                continue;
            }
            struct sim_agent *a = &sim.agents[events[i].data.u32];
            if (a->dead || a->fd < 0)
                continue;
            if (!a->up && events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
                on_connected(a);
            if (a->up && !a->greeted)
                greet(a);
            if (a->greeted && events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                read_agent(a);
            flush(a);
        }
        turn();
    }
}

static void refuse(const struct titan_error *err)
{
    fprintf(stderr, "agents: %s\n", err->msg);
    exit(1);
}

static void *pem_of(const struct buf *text, bool key)
{
    BIO *bio = BIO_new_mem_buf(text->data, (int)text->len);
    void *ret = !bio  ? NULL
                : key ? (void *)PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL)
                      : (void *)PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    if (!ret)
        die("a certificate or key");
    return ret;
}

/* A certificate for each node, all of one key: making keys is not what is measured. */
static void open_tls(const char *pki)
{
    struct titan_error err = {0};
    struct authority ca;
    struct buf key = BUF_INIT, request = BUF_INIT, certificate = BUF_INIT;
    const int64_t now = clock_wall_ms();
    if (authority_load(pki, &ca, &err) != TITAN_OK || pki_key_make(&key, &err) != TITAN_OK ||
        pki_request_make(&key, "spiffe://titan/node/any", &request, &err) != TITAN_OK)
        refuse(&err);
    for (uint32_t i = 0; i < sim.n_agents; i++) {
        const struct pki_spec spec = {.kind = PKI_NODE,
                                      .name = sim.agents[i].name,
                                      .from_ms = pki_begin_ms(now, CERTS_NODE_LIFE_MS),
                                      .until_ms = now + CERTS_NODE_LIFE_MS};
        buf_clear(&certificate);
        if (pki_issue(&(struct pki_issuer){&ca.certificate, &ca.key}, request.data, request.len, &spec, &certificate,
                      &err) != TITAN_OK)
            refuse(&err);
        sim.agents[i].certificate = pem_of(&certificate, false);
    }
    sim.key = pem_of(&key, true);
    X509 *root = pem_of(&ca.certificate, false);
    sim.tls = SSL_CTX_new(TLS_client_method());
    if (!sim.tls || SSL_CTX_set_alpn_protos(sim.tls, (const uint8_t *)"\x02h2", 3) != 0 ||
        X509_STORE_add_cert(SSL_CTX_get_cert_store(sim.tls), root) != 1)
        die("TLS");
    SSL_CTX_set_verify(sim.tls, SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_mode(sim.tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
    X509_free(root);
    authority_free(&ca);
    buf_free(&key);
    buf_free(&request);
    buf_free(&certificate);
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: agents HOST PORT COUNT [PKI]\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* TLS writes without MSG_NOSIGNAL */
    sim.to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    sim.n_agents = (uint32_t)atoi(argv[3]);
    if (inet_pton(AF_INET, argv[1], &sim.to.sin_addr) != 1 || sim.n_agents < 1 || sim.n_agents > AGENTS_MAX) {
        fprintf(stderr, "agents: HOST is an IPv4 address, COUNT 1..%d\n", AGENTS_MAX);
        return 2;
    }
    sim.epoll = epoll_create1(EPOLL_CLOEXEC);
    sim.agents = calloc(sim.n_agents, sizeof(*sim.agents));
    if (sim.epoll < 0 || !sim.agents)
        die("start");
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    epoll_ctl(sim.epoll, EPOLL_CTL_ADD, STDIN_FILENO, &e);
    sim.datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (sim.datagrams < 0 || connect(sim.datagrams, (struct sockaddr *)&sim.to, sizeof(sim.to)) != 0)
        die("a socket for datagrams");
    e.data.u32 = DATAGRAMS;
    epoll_ctl(sim.epoll, EPOLL_CTL_ADD, sim.datagrams, &e);
    sim.now = clock_mono_ns() / 1000000;
    for (uint32_t i = 0; i < sim.n_agents; i++) {
        sim.agents[i].fd = -1;
        sim.agents[i].incarnation = draw();
        snprintf(sim.agents[i].name, sizeof(sim.agents[i].name), "s%04u", i + 1);
        sim.agents[i].retry_ms = sim.now + i / 4; /* not all in one instant */
    }
    if (argc == 5)
        open_tls(argv[4]);
    serve();
    return 0;
}
