/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"

#define FORMING_S 240 /* no test waits for this */
#define HANGS_S 300

/* --- a device with streams only ----------------------------------------------------------------------------------- */

struct call {
    struct call *next;
    titan_status (*fn)(void *arg, struct titan_error *err);
    void *arg;
};
struct stream {
    bool threaded, stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct call *first, **last;
    bool running;
    struct titan_error failure;
};

static void run_call(struct stream *s, const struct call *c)
{
    struct titan_error err = {0};
    if (s->failure.status != TITAN_OK)
        return; /* skipped */
    titan_status status = c->fn(c->arg, &err);
    if (status != TITAN_OK) {
        err.status = status;
        s->failure = err;
    }
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->stop)
            (void)pthread_cond_wait(&s->changed, &s->lock);
        if (!s->first)
            break;
        struct call *c = s->first;
        s->first = c->next;
        if (!s->first)
            s->last = &s->first;
        s->running = true;
        (void)pthread_mutex_unlock(&s->lock);
        run_call(s, c);
        free(c);
        (void)pthread_mutex_lock(&s->lock);
        s->running = false;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

static titan_status stream_call(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                                struct titan_error *err)
{
    (void)err;
    struct call *c = calloc(1, sizeof(*c));
    titan_assert(c);
    c->fn = fn;
    c->arg = arg;
    if (!s->threaded) {
        run_call(s, c);
        free(c);
        return TITAN_OK;
    }
    (void)pthread_mutex_lock(&s->lock);
    *s->last = c;
    s->last = &c->next;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    return TITAN_OK;
}

static titan_status stream_sync(struct stream *s, struct titan_error *err)
{
    (void)pthread_mutex_lock(&s->lock);
    while (s->first || s->running)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
    if (err && s->failure.status != TITAN_OK)
        *err = s->failure;
    return s->failure.status;
}

static void stream_start(struct stream *s, bool threaded)
{
    *s = (struct stream){.threaded = threaded};
    s->last = &s->first;
    titan_assert(pthread_mutex_init(&s->lock, NULL) == 0 && pthread_cond_init(&s->changed, NULL) == 0);
    if (threaded)
        titan_assert(pthread_create(&s->thread, NULL, stream_main, s) == 0);
}

static void stream_end(struct stream *s)
{
    if (s->threaded) {
        (void)pthread_mutex_lock(&s->lock);
        s->stop = true;
        (void)pthread_cond_broadcast(&s->changed);
        (void)pthread_mutex_unlock(&s->lock);
        (void)pthread_join(s->thread, NULL);
    }
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
}

struct stream *rank_stream_open(void)
{
    struct stream *s = malloc(sizeof(*s));
    titan_assert(s);
    stream_start(s, true);
    return s;
}

void rank_stream_close(struct stream *s)
{
    stream_end(s);
    free(s);
}

static const struct device_ops stream_ops = {.stream_call = stream_call, .stream_sync = stream_sync};

titan_status rank_sync(struct rank_context *ctx)
{
    return stream_sync(ctx->stream, NULL);
}

double rank_ms(void)
{
    return (double)clock_mono_ns() / 1e6;
}

/* --- members ------------------------------------------------------------------------------------------------------ */

void ranks_init(struct ranks *r, const struct comm_ops *ops, int world, enum ranks_stream stream)
{
    struct titan_error err = {0};
    titan_assert(world <= RANKS_MAX);
    *r = (struct ranks){.ops = ops, .world = world, .stream = stream};
    r->config = (struct comm_config){.epoch = 7, .world = world, .listener = -1, .memfd = -1};
    r->config.timeout_ms = (uint32_t)patience_ms(FORMING_S);
    memset(r->config.id, 0x5a, sizeof(r->config.id));
    r->config.key = (const unsigned char *)"thirty-two bytes that are known.";
    if (ops == &comm_shm)
        titan_assert(comm_shm_segment(world, &r->config.memfd, &err) == TITAN_OK);
    for (int i = 0; i < world; i++) {
        r->listeners[i] = -1;
        if (ops != &comm_tcp)
            continue;
        int port;
        titan_assert(comm_listen("127.0.0.1", NULL, &r->listeners[i], &port, &err) == TITAN_OK);
        (void)snprintf(r->addresses[i], sizeof(r->addresses[i]), "127.0.0.1:%d", port);
        r->address_list[i] = r->addresses[i];
    }
    r->config.addresses = r->address_list;
}

static void run_rank(struct ranks *r, int rank, bool open_first, rank_fn fn, void *arg)
{
    struct titan_error err = {0};
    struct stream stream;
    struct device_handle device = {.ops = &stream_ops, .info = {.name = "streams", .host_memory = true}};
    struct rank_context ctx = {.rank = rank, .world = r->world, .ops = r->ops, .device = &stream_ops, .arg = arg};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)alarm((unsigned)patience_ms(HANGS_S) / 1000);
    for (int i = 0; i < r->world; i++)
        if (i != rank && r->listeners[i] >= 0)
            (void)close(r->listeners[i]);
    stream_start(&stream, r->stream == RANKS_THREAD);
    ctx.stream = &stream;
    ctx.config = r->config;
    ctx.config.rank = rank;
    ctx.config.device = &device;
    ctx.config.listener = r->listeners[rank];
    if (open_first && r->ops->open(&ctx.config, NULL, &ctx.comm, &err) != TITAN_OK) {
        fprintf(stderr, "# rank %d: open: %s\n", rank, err.msg);
        _exit(2);
    }
    fn(&ctx);
    r->ops->close(ctx.comm);
    stream_end(&stream);
    exit(0); /* not _exit: leaks are looked for */
}

void ranks_start(struct ranks *r, bool open_first, rank_fn fn, void *arg)
{
    for (int i = 0; i < r->world; i++) {
        r->pids[i] = child_fork();
        titan_assert(r->pids[i] >= 0);
        if (r->pids[i] == 0)
            run_rank(r, i, open_first, fn, arg);
    }
}

int ranks_wait(struct ranks *r, int rank)
{
    int status = 0;
    if (r->pids[rank] <= 0)
        return 0;
    while (waitpid(r->pids[rank], &status, 0) < 0 && errno == EINTR)
        ;
    r->pids[rank] = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int ranks_join(struct ranks *r)
{
    int failed = 0;
    for (int i = 0; i < r->world; i++) {
        int code = ranks_wait(r, i);
        if (code != 0)
            fprintf(stderr, "# rank %d of %d (%s) ended with %d\n", i, r->world, r->ops->name, code);
        failed += code != 0;
    }
    return failed;
}

void ranks_free(struct ranks *r)
{
    for (int i = 0; i < r->world; i++)
        if (r->listeners[i] >= 0)
            (void)close(r->listeners[i]);
    if (r->config.memfd >= 0)
        (void)close(r->config.memfd);
}
