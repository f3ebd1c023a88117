/* SPDX-License-Identifier: Apache-2.0 */
/* start_latency.c - how long from starting titand until it has answered a call.
 *
 *   start_latency TITAND STATE_DIR ROUNDS
 *
 * Starts `TITAND dev` over STATE_DIR, connects as soon as its socket listens, asks for the version, stops it. Prints
 * one JSON object with the sorted milliseconds. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/rpc/client.h"
#include "titan/v1/titan.pb-c.h"

extern char **environ;

static bool listens(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Milliseconds of one start, or -1. */
static double round_ms(const char *titand, const char *dir)
{
    char socket_path[100], target[128];
    snprintf(socket_path, sizeof socket_path, "%s/titan.sock", dir);
    snprintf(target, sizeof target, "unix:%s", socket_path);
    unlink(socket_path);
    char *argv[] = {(char *)titand,  (char *)"dev", (char *)"--state-dir", (char *)dir, (char *)"--log-level",
                    (char *)"error", NULL};
    pid_t pid;
    int64_t begin = clock_mono_ns();
    (void)setenv("TITAN_ALLOW_ROOT", "1", 0);
    if (posix_spawn(&pid, titand, NULL, NULL, argv, environ) != 0)
        return -1;
    const struct timespec nap = {.tv_nsec = 200000};
    while (!listens(socket_path) && clock_mono_ns() - begin < INT64_C(10000000000))
        nanosleep(&nap, NULL);

    struct rpc_channel *channel = NULL;
    ProtobufCMessage *reply = NULL;
    struct titan_error err = {0};
    Titan__V1__VersionRequest request = TITAN__V1__VERSION_REQUEST__INIT;
    titan_status status = rpc_channel_open(target, NULL, &channel, &err);
    if (status == TITAN_OK)
        status = rpc_channel_call(channel,
                                  &(struct rpc_request){"/titan.v1.Titan/Version", &request.base,
                                                        &titan__v1__version_response__descriptor, 10000},
                                  &reply, &err);
    double ms = (double)(clock_mono_ns() - begin) / 1e6;
    if (status != TITAN_OK)
        fprintf(stderr, "start_latency: %s\n", err.msg);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    rpc_channel_close(channel);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    return status == TITAN_OK ? ms : -1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int rounds = argc == 4 ? atoi(argv[3]) : 0;
    if (rounds < 1 || rounds > 1000) {
        fprintf(stderr, "usage: start_latency TITAND STATE_DIR ROUNDS\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    double *ms = calloc((size_t)rounds, sizeof *ms);
    if (ms == NULL)
        return 1;
    for (int i = 0; i < rounds; i++)
        if ((ms[i] = round_ms(argv[1], argv[2])) < 0)
            return 1;
    qsort(ms, (size_t)rounds, sizeof *ms, by_value);
    printf("{\"rounds\": %d, \"min_ms\": %.1f, \"median_ms\": %.1f, \"max_ms\": %.1f}\n", rounds, ms[0], ms[rounds / 2],
           ms[rounds - 1]);
    free(ms);
    return 0;
}
