/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_frames.h - messages between an agent and titan-spawnd: one frame per packet of a SEQPACKET Unix socket, with
 * descriptors. A frame is a struct of numbers in the machine's byte order; in a start the strings follow.
 *
 *   start   descriptors of SPAWN_FDS ──► started, with the process's pidfd; or refused, with the reason
 *   signal                           ──► done, or refused
 *   ask                              ──► end: whether the worker runs, and how it ended
 *   limits                           ──► held: the limits that workers can have, and why not all
 *
 * A connection has one request at a time. Worker numbers are the coordinator's, and are never reused. */
#ifndef TITAN_DAEMON_SPAWN_SPAWN_FRAMES_H
#define TITAN_DAEMON_SPAWN_SPAWN_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define SPAWN_VERSION 1
#define SPAWN_FRAME_MAX 65536
#define SPAWN_ENV_MAX 128
#define SPAWN_TEXT 288

enum spawn_kind {
    SPAWN_START = 1,
    SPAWN_SIGNAL,
    SPAWN_ASK,
    SPAWN_LIMITS,
    SPAWN_STARTED = 16,
    SPAWN_DONE,
    SPAWN_END,
    SPAWN_REFUSED,
    SPAWN_HELD
};

/* Descriptors of a start, in this order; without a flight recorder the last is missing. */
enum spawn_fd {
    SPAWN_FOLDER, /* the job's folder, O_PATH */
    SPAWN_DOOR,   /* the folder of the agent's socket, O_PATH: others cannot walk there */
    SPAWN_PAGE,
    SPAWN_FLIGHT,
    SPAWN_FDS
};

struct spawn_request {
    uint32_t kind;
    uint64_t worker_id, job_id; /* 0 in a limits request */
    /* Start only. */
    uid_t uid;
    uint64_t memory;  /* bytes; 0 = no limit */
    uint32_t cpus;    /* in thousandths; 0 = no limit */
    const char *page; /* the page's path, by which the agent finds the worker again */
    const char *host;
    const char *directory; /* the job's folder */
    const char *run;
    const char *ports;              /* ports that the worker may listen at; "" = any */
    const char *env[SPAWN_ENV_MAX]; /* NAME=VALUE */
    size_t n_env;
    /* Signal only: SIGKILL or SIGTERM. */
    int signal;
    /* Ask only: after the answer titan-spawnd may forget an ended worker. */
    bool forget;
};

enum { SPAWN_HELD_MEMORY = 1, SPAWN_HELD_CPUS = 2 };
enum spawn_state { SPAWN_UNKNOWN, SPAWN_RUNNING, SPAWN_ENDING, SPAWN_ENDED };

struct spawn_reply {
    uint32_t version, kind; /* enum spawn_kind */
    uint64_t worker_id, job_id;
    uint32_t state; /* enum spawn_state */
    uint32_t uid;
    int32_t pid;
    /* End: code -1 = a signal ended the worker; then signal 0 = unknown. Refusal: code is its titan_status. */
    int32_t code, signal;
    uint32_t held;                   /* SPAWN_HELD_*: limits that workers can have */
    uint64_t oom_kills, limit, peak; /* memory of its cgroup; 0 = unknown */
    char text[SPAWN_TEXT];           /* why refused or limited, NUL-terminated */
};

/* Parses a request of one packet with n_fds descriptors. Strings of *ret point into data. TITAN_EINVAL names the fault:
 * sizes, numbers, environment names (no LD_*), paths that are not absolute. */
titan_status spawn_request_parse(const void *data, size_t len, size_t n_fds, struct spawn_request *ret,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Packs a request. Returns its length; 0 = it does not fit into cap bytes. */
size_t spawn_request_pack(const struct spawn_request *r, void *out, size_t cap);
/* TITAN_ECORRUPT: not a reply, or a reply to another request. */
titan_status spawn_reply_check(const struct spawn_reply *reply, size_t len, uint64_t worker_id,
                               struct titan_error *err) TITAN_MUST_USE;
/* May a worker have this NAME=VALUE? No allowed variable names a path, so the worker loads and writes nothing by it. */
bool spawn_env_allowed(const char *entry);

/* Descriptors of a packet. */
struct spawn_fds {
    size_t n;
    int fd[SPAWN_FDS];
};
/* Receives one packet; the caller owns *ret_fds. TITAN_EPEER: the other side has closed; TITAN_EAGAIN: no packet
 * yet. */
titan_status spawn_receive(int socket, void *out, size_t cap, size_t *ret_len, struct spawn_fds *ret_fds,
                           struct titan_error *err) TITAN_MUST_USE;
titan_status spawn_send(int socket, const void *data, size_t len, const struct spawn_fds *fds,
                        struct titan_error *err) TITAN_MUST_USE;

#endif
