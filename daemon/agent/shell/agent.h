/* SPDX-License-Identifier: Apache-2.0 */
/* agent.h - the node's half: starts workers, watches them, speaks to the coordinator for them.
 *
 * Workers run in their own process group with a clean environment and no inherited descriptors, each with a page of
 * shared memory (proto/worker_page.h) with a robust mutex that tells of its death within a millisecond at any size, a
 * log file bounded in size, and the agent's Unix socket to talk to. A worker goes on for its lease when its agent dies;
 * an agent that starts over the same folder adopts the workers it finds. */
#ifndef TITAN_DAEMON_AGENT_SHELL_AGENT_H
#define TITAN_DAEMON_AGENT_SHELL_AGENT_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "proto/rpc/tls.h"

struct agent;

struct agent_options {
    const char *state_dir;             /* run/ (socket, records) lives here; the caller holds its lock */
    const char *coordinator;           /* target as in rpc_client_open */
    const struct rpc_tls *tls;         /* to it, copied; NULL = none */
    bool renew;                        /* keep these files fresh */
    const char *node;                  /* unique name; NULL = host name */
    const char *address;               /* host other nodes' workers connect to; NULL = 127.0.0.1 */
    const char *worker;                /* path of titan-worker; NULL = beside this executable */
    const char *device;                /* "auto", "cpu", "cuda" */
    const char *spawnd;                /* titan-spawnd's socket: workers run as their jobs' users; NULL = as this one */
    const char *default_user;          /* with it, of jobs without a user of this node; NULL = these are not run */
    uint32_t slots;                    /* workers at a time; 0 = one per GPU, or 4 on a CPU node */
    uint32_t lease_ms;                 /* 0 = 30000 */
    uint64_t log_bytes_max;            /* per worker, kept as two halves; 0 = 64 MiB */
    uint64_t worker_memory;            /* bytes that one worker gets; 0 = any */
    uint32_t worker_cpus;              /* processors, in thousandths; 0 = any */
    uint32_t hang_floor_ms;            /* 0 = 300 */
    uint32_t away_ms, leader_lease_ms; /* until a coordinator says (agent_core.h) */
    const char *peer_listen;  /* HOST:PORT for other agents' datagrams; NULL = address, a free port; "" = none */
    const char *worker_ports; /* "30000-30999"; NULL = any */
    bool ephemeral;           /* its record may go when the node is gone */
    bool quiet_stop; /* do not report workers that end because agent_close stops them: the coordinator goes down
                        with us, and its jobs go on from their last checkpoint when it is back */
};

titan_status agent_open(uv_loop_t *loop, const struct agent_options *options, struct agent **ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* stop_workers: end them (checkpoint within grace_ms, then SIGKILL); otherwise they go on under their lease for the
 * next agent. done is called on the loop. */
void agent_close(struct agent *a, bool stop_workers, uint32_t grace_ms, void (*done)(void *), void *data);
/* Have the coordinator take the workers elsewhere, as a drain with this deadline does; agent_close() comes later. */
void agent_leave(struct agent *a, uint32_t deadline_ms);
uint32_t agent_workers(const struct agent *a);
bool agent_connected(const struct agent *a);

#endif
