/* submit_load.c - how many durable submits a coordinator takes, and how long a status call waits meanwhile.
 *
 *   submit_load TARGET RECIPE CONNECTIONS IN_FLIGHT COUNT
 *
 * Sends COUNT Submit calls, IN_FLIGHT at a time spread over CONNECTIONS channels, and every millisecond a GetJob of the
 * first job on a channel of its own. Prints one JSON object. Every reply means the job is on disk. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    long count, sent, done, failed;
    _Atomic uint64_t first_job;
    int64_t started_ns, finished_ns;
    char first_error[384];
    /* The prober's. */
    struct rpc_channel *channel;
    _Atomic bool over;
    int64_t probes[PROBES_MAX];
    size_t nprobes;
};

static void send_one(struct load *l);

static void on_submitted(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct load *l = data;
    l->done++;
    if (err->status != TITAN_OK) {
        if (l->failed++ == 0)
            snprintf(l->first_error, sizeof l->first_error, "%s", err->msg);
    } else if (l->first_job == 0) {
        l->first_job = ((const Titan__V1__SubmitResponse *)reply)->job_id;
    }
    if (l->sent < l->count) {
        send_one(l);
    } else if (l->done == l->count) {
        l->finished_ns = clock_mono_ns();
        uv_stop(&l->loop);
    }
}

static void send_one(struct load *l)
{
    struct rpc_client *client = l->clients[l->sent % l->connections];
    l->sent++;
    rpc_client_call(client, "/titan.v1.Titan/Submit", &l->request.base, &titan__v1__submit_response__descriptor, 60000,
                    on_submitted, l);
}

static void *probe(void *data)
{
    struct load *l = data;
    const struct timespec pause = {.tv_nsec = 1000000};
    for (; !l->over && l->nprobes < PROBES_MAX; nanosleep(&pause, NULL)) {
        Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
        if ((request.job_id = l->first_job) == 0)
            continue;
        ProtobufCMessage *reply;
        int64_t begin = clock_mono_ns();
        if (rpc_channel_call(l->channel, "/titan.v1.Titan/GetJob", &request.base,
                             &titan__v1__get_job_response__descriptor, 10000, &reply, NULL) != TITAN_OK)
            continue;
        l->probes[l->nprobes++] = clock_mono_ns() - begin;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(const struct load *l, double p)
{
    if (l->nprobes == 0)
        return -1;
    return (double)l->probes[(size_t)(p * (double)(l->nprobes - 1))] / 1e6;
}

static int fail(const struct titan_error *err)
{
    fprintf(stderr, "submit_load: %s\n", err->msg);
    return titan_status_exit(err->status);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: submit_load TARGET RECIPE CONNECTIONS IN_FLIGHT COUNT\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    static struct load l;
    struct titan_error err = {0};
    struct buf recipe = BUF_INIT;
    l.connections = atoi(argv[3]);
    int in_flight = atoi(argv[4]);
    l.count = atol(argv[5]);
    if (l.connections < 1 || l.connections > CONNECTIONS_MAX || in_flight < 1 || l.count < in_flight) {
        fprintf(stderr, "submit_load: CONNECTIONS 1..%d, 1 <= IN_FLIGHT <= COUNT\n", CONNECTIONS_MAX);
        return 2;
    }
    if (file_read(argv[2], 1 << 20, &recipe, &err) != TITAN_OK)
        return fail(&err);
    if (uv_loop_init(&l.loop) != 0)
        return 1;
    for (int i = 0; i < l.connections; i++)
        if (rpc_client_open(&l.loop, argv[1], &l.clients[i], &err) != TITAN_OK)
            return fail(&err);
    if (rpc_channel_open(argv[1], &l.channel, &err) != TITAN_OK)
        return fail(&err);
    titan__v1__submit_request__init(&l.request);
    l.request.recipe = recipe.data;
    l.request.name = (char *)"load";
    pthread_t prober;
    if (pthread_create(&prober, NULL, probe, &l) != 0)
        return 1;

    l.started_ns = clock_mono_ns();
    for (int i = 0; i < in_flight; i++)
        send_one(&l);
    uv_run(&l.loop, UV_RUN_DEFAULT);
    l.over = true;
    pthread_join(prober, NULL);

    double seconds = (double)(l.finished_ns - l.started_ns) / 1e9;
    qsort(l.probes, l.nprobes, sizeof *l.probes, by_value);
    printf("{\"connections\": %d, \"in_flight\": %d, \"submits\": %ld, \"failed\": %ld, \"submits_per_second\": %.0f, "
           "\"status_calls\": %zu, \"status_p50_ms\": %.3f, \"status_p99_ms\": %.3f}\n",
           l.connections, in_flight, l.count, l.failed, (double)(l.count - l.failed) / seconds, l.nprobes,
           percentile_ms(&l, 0.5), percentile_ms(&l, 0.99));
    if (l.failed)
        fprintf(stderr, "submit_load: %ld failed, the first: %s\n", l.failed, l.first_error);
    /* The process ends here: the load's connections need no orderly end. */
    fflush(stdout);
    _exit(l.failed ? 1 : 0);
}
