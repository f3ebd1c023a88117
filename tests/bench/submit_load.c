/* SPDX-License-Identifier: Apache-2.0 */
/* submit_load.c - how many durable submits a coordinator takes, how long they and a status call wait meanwhile.
 *
 *   submit_load TARGET RECIPE CONNECTIONS IN_FLIGHT COUNT [RATE]
 *
 * Sends COUNT Submit calls spread over CONNECTIONS channels, IN_FLIGHT at a time, or with RATE as many a second however
 * many are in flight, each timed from when it was due; another process asks every
 * millisecond for the first job. (In the same process its answers would wait for the load's own threads.) Prints one
 * JSON object. Every reply means the job is on disk. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "proto/rpc/client.h"
#include "titan/v1/titan.pb-c.h"

enum { CONNECTIONS_MAX = 256, PROBES_MAX = 1 << 16 };

struct load {
    uv_loop_t loop;
    struct rpc_client *clients[CONNECTIONS_MAX];
    int connections;
    Titan__V1__SubmitRequest request;
    long count, sent, done, failed, rate; /* rate 0 = as fast as answers come */
    uv_timer_t timer;
    _Atomic uint64_t first_job;
    int64_t started_ns, finished_ns, *took_ns; /* took_ns: of each submit */
    char first_error[384];
    _Atomic bool over;
    int64_t probes[PROBES_MAX]; /* the prober's */
    _Atomic size_t nprobes;
};

struct sent {
    struct load *load;
    int64_t at_ns;
};

static void send_one(struct load *l, int64_t due_ns);

static void on_submitted(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct sent *s = data;
    struct load *l = s->load;
    l->took_ns[l->done++] = clock_mono_ns() - s->at_ns;
    free(s);
    if (err->status != TITAN_OK) {
        if (l->failed++ == 0)
            snprintf(l->first_error, sizeof l->first_error, "%s", err->msg);
    } else if (l->first_job == 0) {
        l->first_job = ((const Titan__V1__SubmitResponse *)reply)->job_id;
    }
    if (l->rate == 0 && l->sent < l->count) {
        send_one(l, clock_mono_ns());
    } else if (l->done == l->count) {
        l->finished_ns = clock_mono_ns();
        uv_stop(&l->loop);
    }
}

static void send_one(struct load *l, int64_t due_ns)
{
    struct rpc_client *client = l->clients[l->sent % l->connections];
    struct sent *s = malloc(sizeof *s);
    if (!s)
        abort();
    *s = (struct sent){l, due_ns};
    l->sent++;
    rpc_client_call(client,
                    &(struct rpc_request){"/titan.v1.Titan/Submit", &l->request.base,
                                          &titan__v1__submit_response__descriptor, 60000},
                    on_submitted, s);
}

static void send_due(uv_timer_t *timer)
{
    struct load *l = timer->data;
    for (; l->sent < l->count;) {
        const int64_t due = l->started_ns + l->sent * 1000000000 / l->rate;
        if (due > clock_mono_ns())
            return;
        send_one(l, due);
    }
    uv_timer_stop(timer);
}

static void probe(struct load *l, const char *target)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    struct rpc_channel *channel = NULL;
    if (rpc_channel_open(target, NULL, &channel, NULL) != TITAN_OK)
        return;
    for (; !l->over && l->nprobes < PROBES_MAX; nanosleep(&pause, NULL)) {
        Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
        if ((request.job_id = l->first_job) == 0)
            continue;
        ProtobufCMessage *reply;
        int64_t begin = clock_mono_ns();
        if (rpc_channel_call(channel,
                             &(struct rpc_request){"/titan.v1.Titan/GetJob", &request.base,
                                                   &titan__v1__get_job_response__descriptor, 10000},
                             &reply, NULL) != TITAN_OK)
            continue;
        l->probes[l->nprobes++] = clock_mono_ns() - begin;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(const int64_t *sorted, size_t n, double p)
{
    return n ? (double)sorted[(size_t)(p * (double)(n - 1))] / 1e6 : -1;
}

static int fail(struct load *l, const struct titan_error *err)
{
    l->over = true; /* the prober ends */
    fprintf(stderr, "submit_load: %s\n", err->msg);
    return titan_status_exit(err->status);
}

int main(int argc, char **argv)
{
    if (argc != 6 && argc != 7) {
        fprintf(stderr, "usage: submit_load TARGET RECIPE CONNECTIONS IN_FLIGHT COUNT [RATE]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct load *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct titan_error err = {0};
    struct buf recipe = BUF_INIT;
    if (l == MAP_FAILED)
        return 1;
    l->connections = atoi(argv[3]);
    int in_flight = atoi(argv[4]);
    l->count = atol(argv[5]);
    l->rate = argc == 7 ? atol(argv[6]) : 0;
    if (l->rate < 0 || l->connections < 1 || l->connections > CONNECTIONS_MAX || in_flight < 1 ||
        l->count < in_flight) {
        fprintf(stderr, "submit_load: CONNECTIONS 1..%d, 1 <= IN_FLIGHT <= COUNT, RATE >= 0\n", CONNECTIONS_MAX);
        return 2;
    }
    pid_t prober = fork(); /* before gRPC has threads */
    if (prober == 0) {
        probe(l, argv[1]);
        _exit(0);
    }
    if (prober < 0 || !(l->took_ns = calloc((size_t)l->count, sizeof *l->took_ns)))
        return 1;
    if (file_read(argv[2], 1 << 20, &recipe, &err) != TITAN_OK)
        return fail(l, &err);
    if (uv_loop_init(&l->loop) != 0)
        return 1;
    for (int i = 0; i < l->connections; i++)
        if (rpc_client_open(&l->loop, argv[1], NULL, &l->clients[i], &err) != TITAN_OK)
            return fail(l, &err);
    titan__v1__submit_request__init(&l->request);
    l->request.recipe = recipe.data;
    l->request.name = (char *)"load";

    l->started_ns = clock_mono_ns();
    uv_timer_init(&l->loop, &l->timer);
    l->timer.data = l;
    if (l->rate)
        uv_timer_start(&l->timer, send_due, 0, 1);
    for (int i = 0; i < in_flight && !l->rate; i++)
        send_one(l, clock_mono_ns());
    uv_run(&l->loop, UV_RUN_DEFAULT);
    l->over = true;
    waitpid(prober, NULL, 0);

    double seconds = (double)(l->finished_ns - l->started_ns) / 1e9;
    qsort(l->probes, l->nprobes, sizeof *l->probes, by_value);
    qsort(l->took_ns, (size_t)l->done, sizeof *l->took_ns, by_value);
    printf("{\"connections\": %d, \"in_flight\": %d, \"rate\": %ld, \"submits\": %ld, \"failed\": %ld, "
           "\"submits_per_second\": %.0f, "
           "\"submit_p50_ms\": %.3f, \"submit_p99_ms\": %.3f, "
           "\"status_calls\": %zu, \"status_p50_ms\": %.3f, \"status_p99_ms\": %.3f}\n",
           l->connections, in_flight, l->rate, l->count, l->failed, (double)(l->count - l->failed) / seconds,
           percentile_ms(l->took_ns, (size_t)l->done, 0.5), percentile_ms(l->took_ns, (size_t)l->done, 0.99),
           (size_t)l->nprobes, percentile_ms(l->probes, l->nprobes, 0.5), percentile_ms(l->probes, l->nprobes, 0.99));
    if (l->failed)
        fprintf(stderr, "submit_load: %ld failed, the first: %s\n", l->failed, l->first_error);
    /* The process ends here: the load's connections need no orderly end. */
    fflush(stdout);
    _exit(l->failed ? 1 : 0);
}
