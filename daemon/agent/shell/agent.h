/* SPDX-License-Identifier: Apache-2.0 */
/* agent.h - the node's agent: starts workers, watches them, speaks to the coordinator for them.
 *
 * A worker runs in its own process group with a clean environment and no inherited descriptors. It has a page of shared
 * memory (proto/worker_page.h), a log file bounded in size, and the agent's Unix socket. The page's robust mutex shows
 * its death within a millisecond at any size. When its agent dies, a worker runs on until its lease ends. The next
 * agent over the same folder adopts the workers there. */
#ifndef TITAN_DAEMON_AGENT_SHELL_AGENT_H
#define TITAN_DAEMON_AGENT_SHELL_AGENT_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "proto/rpc/tls.h"

struct agent;

struct agent_options {
    const char *state_dir;     /* holds run/ (socket, records); the caller holds its lock */
    const char *coordinator;   /* target as in rpc_client_open */
    const struct rpc_tls *tls; /* TLS files for the coordinator, copied; NULL = none */
    bool renew;                /* renew the files of tls */
    const char *node;          /* unique name; NULL = host name */
    const char *address;       /* host for other nodes' workers; NULL = 127.0.0.1 */
    const char *worker;        /* path of titan-worker; NULL = beside this executable */
    const char *device;        /* "auto", "cpu", "cuda" */
    const char *spawnd;        /* titan-spawnd's socket: workers run as their jobs' users; NULL = as the agent's
                                * user */
    /* with spawnd: the user for jobs whose own user this node does not have; NULL = refuse such jobs */
    const char *default_user;
    uint32_t slots;                    /* concurrent workers; 0 = one per GPU, or 4 on a CPU node */
    uint32_t lease_ms;                 /* 0 = 30000 */
    uint64_t log_bytes_max;            /* per worker, kept as two halves; 0 = 64 MiB */
    uint64_t worker_memory;            /* bytes per worker; 0 = any */
    uint32_t worker_cpus;              /* processors per worker, in thousandths; 0 = any */
    uint32_t hang_floor_ms;            /* 0 = 300 */
    uint32_t away_ms, leader_lease_ms; /* valid until a coordinator gives its own values (agent_core.h) */
    const char *peer_listen;  /* HOST:PORT for other agents' datagrams; NULL = address and a free port; "" = none */
    const char *worker_ports; /* "30000-30999"; NULL = any */
    /* Looks at the daemon's own settings for an operator's check, on any thread; NULL = none. */
    void (*look)(const void *settings, void (*found)(void *data, const char *what, bool wrong, const char *text),
                 void *data);
    const void *settings;
    const char *hooks_dir;                   /* absolute: the site's hooks (site_hooks.h); NULL = none */
    uint32_t hook_timeout_ms, node_check_ms; /* for one hook; between two runs of all */
    bool ephemeral;                          /* the coordinator may delete the node's record when the node is gone */
    /* Do not report workers that agent_close() stops, because the coordinator stops too. Its jobs later resume from
     * their last checkpoint. */
    bool quiet_stop;
};

titan_status agent_open(uv_loop_t *loop, const struct agent_options *options, struct agent **ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* With stop_workers, ends the workers: each writes a checkpoint within grace_ms, then gets SIGKILL. Otherwise the
 * workers run on under their lease for the next agent. done runs on the loop. */
void agent_close(struct agent *a, bool stop_workers, uint32_t grace_ms, void (*done)(void *), void *data);
/* Asks the coordinator to move the workers elsewhere, like a drain with this deadline; agent_close() comes later. */
void agent_leave(struct agent *a, uint32_t deadline_ms);
uint32_t agent_workers(const struct agent *a);
bool agent_connected(const struct agent *a);
/* Puts the metrics of this node's agent and workers, from memory and /proc. */
struct exposition;
void agent_scrape(const struct agent *a, struct exposition *e);

#endif
