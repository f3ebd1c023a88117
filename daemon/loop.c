/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c - titand from start to end: everything that happens is a callback of one libuv loop.
 *
 *   start:  lock the state directory, open the store, bind listeners (listeners.c), open the agent, send READY
 *   tick:   gRPC events, workers' sockets and pages, timers; the store's writer thread and gRPC's threads only post.
 *           A thread writes the log, so a slow reader of the log does not delay the loop
 *   drain:  (SIGTERM, SIGINT; a second signal ends the waits)
 *           1. the agent: workers move elsewhere (agent.drain_on_term). Then they write a checkpoint and end, or stay
 *              for the next agent. The pages over HTTP end behind it
 *           2. the server: no new calls; running calls have a short time to end
 *           3. the coordinator: commits accepted changes, closes the store
 *   SIGHUP: reload the log level, the lists of [authorization] and [[webhook]] from the config file */
#include "daemon/loop.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/resident.h"
#include "base/slice.h"
#include "base/slowest.h"
#include "base/version.h"
#include "daemon/agent/shell/agent.h"
#include "daemon/auth/certs.h"
#include "daemon/auth/enrolling.h"
#include "daemon/api/methods.h"
#include "daemon/config_look.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/listeners.h"
#include "daemon/pages.h"
#include "daemon/replicas.h"
#include "proto/rpc/server.h"

#define STATUS_BYTES 1024 /* size of the status line in systemctl status */
#define SERVER_GRACE_MS 200
#define HAND_OVER_GRACE_MS 20 /* another coordinator answers the rest */
#define USER_MESSAGE_MAX (512 << 10)
#define AGENTS_MEMORY (256u << 20) /* limit for messages of one address's sessions; many addresses get a part each */
#define READY_POLL_MS 1            /* dev: interval of checks whether agent and coordinator are connected */
#define READY_WAIT_MS 5000         /* ... limit of these checks */
#define JOIN_WAIT_MS 60000         /* how long a join waits for the coordinator */
#define TRIM_MS 5000               /* interval of attempts to return memory */
#define HOOKS_DIR "/etc/titan/hooks"
#define LEAVE_POLL_MS 20 /* interval of checks whether the workers are gone */
/* interval of reads, because a read is too expensive for each of 10,000 iterations a second */
#define CPU_READ_NS 1000000
#define SLOW_ITERATION_MS 1000 /* a longer iteration of the loop is logged */
#define STATUS_MS TRIM_MS      /* interval of checks whether the status line changed; both come in one iteration */

static const int handled_signals[] = {SIGTERM, SIGINT, SIGHUP};
enum { N_SIGNALS = ARRAY_SIZE(handled_signals) };

struct titand {
    const struct daemon_config *config;
    uv_loop_t loop;
    struct log log;
    int lock;
    struct coordinator *coordinator;    /* NULL in role agent */
    struct paths_options paths;         /* the coordinator's: the configured roots, and Titan's own folders */
    char heartbeats[32];                /* dev: address for its agent's heartbeats as datagrams; "" = none */
    struct rpc_server *server, *agents; /* agents: their server has its own socket, queue and thread */
    struct agent *agent;                /* NULL in role coordinator */
    struct pages *pages;                /* NULL without [http] listen */
    struct replicas *replicas;          /* NULL without [ha] */
    uv_signal_t signals[N_SIGNALS];
    uv_timer_t ready_timer, status_timer, watchdog_timer, trim_timer, leave_timer;
    uv_prepare_t prepare;
    uint64_t iteration_ns, iteration_idle_ns; /* end of the last iteration of the loop */
    /* the thread's CPU time, read at most CPU_READ_NS before the iteration's end */
    uint64_t cpu_ns, cpu_read_ns;
    int due_ms;         /* time from the iteration's end to the next timer; -1 = no timer, 0 = not known */
    uint64_t leaves_at; /* time of the first stop signal, in the loop's time */
    uint64_t started_at;
    bool serving;
    bool resident;        /* its pages stay in memory when memory is short */
    struct buf listening; /* addresses of clients, a line each */
    struct histogram lag; /* length of the loop's iterations */
    int stopping;         /* number of stop signals */
    char status[STATUS_BYTES];
};

/* --- drain -------------------------------------------------------------------------------------------------------- */

static void close_handles(struct titand *d)
{
    titan_assert(!d->agent && !d->pages && !d->coordinator && !d->server && !d->agents);
    for (int i = 0; i < N_SIGNALS; i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    uv_close((uv_handle_t *)&d->ready_timer, NULL);
    uv_close((uv_handle_t *)&d->status_timer, NULL);
    uv_close((uv_handle_t *)&d->watchdog_timer, NULL);
    uv_close((uv_handle_t *)&d->trim_timer, NULL);
    uv_close((uv_handle_t *)&d->leave_timer, NULL);
    uv_close((uv_handle_t *)&d->prepare, NULL);
}

static void on_replicas_closed(void *data)
{
    struct titand *d = data;
    d->replicas = NULL;
    close_handles(d);
}

static void on_coordinator_closed(void *data)
{
    struct titand *d = data;
    titan_assert(d->coordinator && !d->agent);
    d->coordinator = NULL;
    rpc_server_free(d->agents);
    rpc_server_free(d->server);
    d->server = d->agents = NULL;
    if (d->replicas) /* another coordinator takes over, now that the store is closed */
        replicas_close(d->replicas, on_replicas_closed, d);
    else
        close_handles(d); /* these are the last handles, so the loop ends */
}

static void on_server_down(void *data)
{
    struct titand *d = data;
    titan_assert(d->coordinator && !d->agent);
    coordinator_close(d->coordinator, on_coordinator_closed, d);
}

static void on_agents_down(void *data)
{
    struct titand *d = data;
    titan_assert(d->server && !d->agent);
    const int grace_ms = d->stopping == 1 ? SERVER_GRACE_MS : d->stopping ? 0 : HAND_OVER_GRACE_MS;
    rpc_server_shutdown(d->server, grace_ms, on_server_down, d);
}

static void on_pages_closed(void *data)
{
    struct titand *d = data;
    d->pages = NULL;
    if (d->serving)
        rpc_server_shutdown(d->agents, 0, on_agents_down, d);
    else if (d->coordinator)
        coordinator_close(d->coordinator, on_coordinator_closed, d);
    else if (d->replicas)
        replicas_close(d->replicas, on_replicas_closed, d);
    else
        close_handles(d);
}

static void on_agent_closed(void *data)
{
    struct titand *d = data;
    d->agent = NULL;
    if (d->pages)
        pages_close(d->pages, on_pages_closed, d);
    else
        on_pages_closed(d);
}

/* Other nodes have grace_ms to take over the workers. A worker without a place there has another grace_ms for its
 * checkpoint. */
static void on_leave_poll(uv_timer_t *timer)
{
    struct titand *d = timer->data;
    titan_assert(d->agent && d->stopping == 1);
    const uint64_t waited = uv_now(&d->loop) - d->leaves_at, grace_ms = d->config->grace_ms;
    /* Without a coordinator no one has asked the workers for a checkpoint. Nor has dev's coordinator if its store is
     * full. */
    const bool alone = waited >= grace_ms && (d->config->role == ROLE_DEV || !agent_connected(d->agent));
    if (agent_workers(d->agent) && waited < 2 * grace_ms && !alone)
        return;
    (void)uv_timer_stop(timer);
    agent_close(d->agent, true, alone ? d->config->grace_ms : 0, on_agent_closed, d);
}

/* --- tick --------------------------------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *handle, int signal)
{
    struct titand *d = handle->data;
    if (signal != SIGHUP) {
        d->stopping++;
        (void)uv_timer_stop(&d->ready_timer);
        if (d->stopping == 1) {
            tlog_info(&d->log, "stopping", "workers=%u stop_workers=%d", d->agent ? agent_workers(d->agent) : 0,
                      d->config->stop_workers);
            (void)notify("STOPPING=1");
            if (d->pages)
                pages_stopping(d->pages);
            if (d->replicas)
                replicas_stopping(d->replicas);
            if (d->server)
                rpc_server_set_serving(d->server, false);
        }
        (void)uv_timer_stop(&d->leave_timer);

        /* At SIGTERM with drain_on_term (Slurm, Kubernetes) the workers leave the node, and their ends count as no
         * crash. In `titand dev` jobs stop with a checkpoint at once, and are queued for the next start. */
        const bool dev = d->config->role == ROLE_DEV && d->config->stop_workers && d->agent && agent_workers(d->agent);
        if ((dev || (d->config->drain_on_term && d->config->role == ROLE_AGENT)) && d->agent && d->stopping == 1) {
            d->leaves_at = uv_now(&d->loop);
            (void)notify_printf("STATUS=draining\nEXTEND_TIMEOUT_USEC=%llu",
                                (2 * d->config->grace_ms + 10000) * 1000ULL);
            agent_leave(d->agent, dev ? 1 : d->config->grace_ms);
            (void)uv_timer_start(&d->leave_timer, on_leave_poll, LEAVE_POLL_MS, LEAVE_POLL_MS);
            return;
        }
        if (d->agent)
            agent_close(d->agent, d->config->stop_workers || d->config->drain_on_term,
                        d->stopping > 1 ? 0 : d->config->grace_ms, on_agent_closed, d);
        else if (d->stopping == 1)
            on_agent_closed(d);
        return;
    }
    struct titan_error err = {0};
    struct daemon_config fresh = *d->config;
    (void)notify("RELOADING=1");
    if (!d->config->file[0]) {
        tlog_info(&d->log, "nothing to reload: there is no config file", "%s", "");
    } else if (config_auth_default(&fresh.auth, &err) != TITAN_OK ||
               config_load(&fresh, d->config->file, &err) != TITAN_OK) {
        tlog_error(&d->log, "config file not reloaded", "reason=\"%s\"", err.msg);
    } else {
        log_set_level(fresh.log_level);
        if (d->coordinator && coordinator_reload(d->coordinator, &fresh.auth, &fresh.webhooks, &err) != TITAN_OK)
            tlog_error(&d->log, "endpoints for events not reloaded", "reason=\"%s\" hint=\"%s\"", err.msg, err.hint);
        if (d->pages)
            pages_reload(d->pages, &fresh.auth);
        tlog_info(&d->log, "config file reloaded", "log_level=%d", (int)fresh.log_level);
    }
    (void)notify("READY=1");
}

/* Reports to the watchdog only while the loop and the store work, so systemd restarts a stuck daemon. */
static void on_watchdog(uv_timer_t *timer)
{
    struct titand *d = timer->data;
    if (!d->coordinator || coordinator_healthy(d->coordinator))
        (void)notify("WATCHDOG=1");
    else
        tlog_error(&d->log, "the store's writer does not answer, no sign of life for the watchdog", "%s", "");
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec cpu;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    return (uint64_t)cpu.tv_sec * 1000000000 + (uint64_t)cpu.tv_nsec;
}

/* Runs before each wait for events. Logs a slow iteration: its time, the delay of the wait before it, and its CPU time.
 * Little CPU time means a slow disk or no free CPU. slowest: the handler (base/slowest.h) with most of the time. */
static void on_iteration(uv_prepare_t *handle)
{
    struct titand *d = handle->data;
    const uint64_t now = uv_hrtime(), idle = uv_metrics_idle_time(&d->loop);
    const uint64_t waited_ms = (idle - d->iteration_idle_ns) / 1000000;
    const uint64_t busy_ms = (now - d->iteration_ns) / 1000000 - waited_ms;
    /* libuv also says 0 when it has yet to tell epoll of a descriptor; then the wait may be long, and nothing is late.
     */
    const uint64_t late_ms = d->due_ms > 0 && waited_ms > (uint64_t)d->due_ms ? waited_ms - (uint64_t)d->due_ms : 0;
    const struct slowest slowest = slowest_take();
    if (d->iteration_ns)
        histogram_add(&d->lag,
                      (double)(now - d->iteration_ns - (idle - d->iteration_idle_ns)) / 1e9 + (double)late_ms / 1e3);
    const bool slow = d->iteration_ns && busy_ms + late_ms >= SLOW_ITERATION_MS;
    if (slow)
        tlog_warn(&d->log, "an iteration of the event loop took long: nothing was answered meanwhile",
                  "ms=%" PRIu64 " woken_late_ms=%" PRIu64 " on_cpu_ms=%" PRIu64 " slowest=%s slowest_ms=%" PRId64,
                  busy_ms + late_ms, late_ms, (thread_cpu_ns() - d->cpu_ns) / 1000000, slowest.name,
                  slowest.ns / 1000000);
    d->iteration_ns = now;
    d->iteration_idle_ns = idle;
    if (slow || now - d->cpu_read_ns >= CPU_READ_NS) {
        d->cpu_read_ns = now;
        d->cpu_ns = thread_cpu_ns();
    }
    d->due_ms = uv_backend_timeout(&d->loop);
}

static void on_trim(uv_timer_t *timer)
{
    HANDLER("memory");
    struct titand *d = timer->data;
    resident_trim(d->resident);
}

static void on_status(uv_timer_t *timer)
{
    struct titand *d = timer->data;
    char status[STATUS_BYTES];
    if (d->agent)
        (void)snprintf(status, sizeof(status), "%s: %u workers, coordinator %s", daemon_role_name(d->config->role),
                       agent_workers(d->agent), agent_connected(d->agent) ? "connected" : "not reached");
    else { /* the first address is the Unix socket; the other addresses follow */
        const struct daemon_config *c = d->config;
        size_t len = (size_t)snprintf(status, STATUS_BYTES, "coordinator: serving on %s", c->listen[0]);
        if (d->replicas && !d->coordinator)
            len = (size_t)snprintf(status, STATUS_BYTES, "coordinator: follows another one");
        for (int i = 1; i < c->n_listen && (!d->replicas || d->coordinator) && len < STATUS_BYTES; i++)
            len += (size_t)snprintf(status + len, STATUS_BYTES - len, ", %s", c->listen[i]);
    }
    if (strcmp(status, d->status) != 0)
        (void)notify_printf("STATUS=%s", status);
    memcpy(d->status, status, sizeof(status));
}

static void on_ready_poll(uv_timer_t *timer)
{
    struct titand *d = timer->data;
    uint64_t waited = (uv_hrtime() - d->started_at) / 1000000;
    bool dev = d->coordinator && d->agent;
    if (dev && !agent_connected(d->agent) && waited < READY_WAIT_MS)
        return;
    (void)uv_timer_stop(timer);
    on_status(&d->status_timer);
    (void)notify_printf("READY=1\nMAINPID=%d", (int)getpid());
    for (char *p = d->listening.data; p && *p; p++)
        if (*p == '\n')
            *p = p[1] ? ',' : '\0';
    tlog_info(&d->log, "ready", "role=%s version=%s ms=%" PRIu64 " state_dir=\"%s\" resident=%s listen=%s",
              daemon_role_name(d->config->role), titan_version, waited, d->config->state_dir,
              d->resident ? "yes" : "no", d->listening.data ? d->listening.data : "-");
}

/* --- start -------------------------------------------------------------------------------------------------------- */
/* These functions log no failures, because main() prints one line for a failed start. */

static titan_status open_coordinator(struct titand *d, struct titan_error *err)
{
    titan_assert(d->config->role != ROLE_AGENT && !d->coordinator);
    const struct detection *t = &d->config->detection;
    struct auth_options auth = d->config->auth;
    auth.nodes_by_address = d->config->role == ROLE_COORDINATOR;
    auth.service = config_is_service();
    struct coordinator_options options = {.observer = &api_observer,
                                          .state_dir = d->config->state_dir,
                                          .jobs_dir = d->config->jobs_dir[0] ? d->config->jobs_dir : NULL,
                                          .head_file = d->config->head_file[0] ? d->config->head_file : NULL,
                                          .one_machine = d->config->role == ROLE_DEV,
                                          .webhooks = &d->config->webhooks,
                                          .look = config_look,
                                          .settings = d->config,
                                          .heartbeat_ms = t->heartbeat_ms,
                                          .idle_heartbeat_ms = t->idle_heartbeat_ms,
                                          .suspect_ms = t->suspect_ms,
                                          .confirm_ms = t->confirm_ms,
                                          .node_timeout_ms = t->node_timeout_ms,
                                          .reachable_ms = t->reachable_ms,
                                          .away_ms = t->away_ms,
                                          .leader_lease_ms = t->leader_lease_ms,
                                          .adopt_state = d->config->adopt_state,
                                          .paths = &d->paths,
                                          .auth = &auth,
                                          .node_life_s = d->config->node_life_s,
                                          .lead = d->replicas ? replicas_lead(d->replicas) : NULL,
                                          .user = {.pending_jobs = d->config->limits.user_pending_jobs,
                                                   .slots = d->config->limits.user_slots,
                                                   .submits_per_minute = d->config->limits.user_submits_per_minute,
                                                   .disk_bytes = d->config->limits.user_disk_mb << 20},
                                          .quarantine_crashes = d->config->quarantine_crashes
                                                                    ? d->config->quarantine_crashes
                                                                    : COORDINATOR_NO_QUARANTINE};
    size_t n = 0;
    d->paths = d->config->paths;
    TRY(coordinator_open(&d->loop, &options, &d->coordinator, err));
    TRY(paths_add_root(&d->paths.own, d->config->state_dir, err));
    if (options.jobs_dir)
        TRY(paths_add_root(&d->paths.own, options.jobs_dir, err));
    const struct rpc_tls *tls = NULL;
    for (int i = 0; i < d->config->n_listen && !tls; i++)
        TRY(config_transport(d->config, d->config->listen[i], &tls, err));
    if (!tls && d->config->http.listen[0])
        TRY(config_http_transport(d->config, &tls, err));
    if (tls)
        TRY(coordinator_identity(d->coordinator, tls, err));
    /* Under a service manager every user may connect, and roles limit what each user may do. All agents run as one
     * user. */
    const bool shared = config_is_service();
    struct rpc_server_options server_options = {.methods = api_methods(&n),
                                                .data = d->coordinator,
                                                .socket_mode = shared ? 0666 : 0600,
                                                .authorize = api_authorize,
                                                .check = api_check,
                                                .review = api_may_go_on,
                                                .review_connection = api_connection_may_go_on,
                                                .max_connections = d->config->limits.connections,
                                                .max_user_connections = d->config->limits.user_connections,
                                                .max_peer_connections = d->config->limits.peer_connections,
                                                .max_user_calls = d->config->limits.user_calls,
                                                .memory_bytes = (uint64_t)d->config->limits.memory_mb << 20,
                                                .max_user_message_bytes = USER_MESSAGE_MAX};
    server_options.n_methods = n;
    struct rpc_server_options agents_options = {.methods = api_agent_methods(&n),
                                                .data = d->coordinator,
                                                .socket_mode = shared ? 0660 : 0600,
                                                .authorize = api_authorize,
                                                .check = api_check,
                                                .review = api_may_go_on,
                                                .review_connection = api_connection_may_go_on,
                                                .max_connections = d->config->limits.connections,
                                                .max_peer_connections = d->config->limits.peer_connections,
                                                .memory_bytes = AGENTS_MEMORY,
                                                .certificates_only = true,
                                                .rests = true};
    agents_options.n_methods = n;
    TRY(rpc_server_open(&d->loop, &server_options, &d->server, err));
    TRY(rpc_server_open(&d->loop, &agents_options, &d->agents, err));
    const struct listeners listeners = {
        .config = d->config, .log = &d->log, .coordinator = d->coordinator, .server = d->server, .agents = d->agents};
    TRY(listeners_open(&listeners, &d->listening, err));
    d->serving = true; /* from here on the servers need a shutdown, not only a free */
    coordinator_served_by(d->coordinator, d->server);
    coordinator_served_by(d->coordinator, d->agents);
    TRY(rpc_server_start(d->server, err));
    TRY(rpc_server_start(d->agents, err));
    rpc_server_set_serving(d->server, true);
    return TITAN_OK;
}

/* With TLS the join file is exchanged for the certificate. If the config does not name the coordinator or the node, the
 * join file names them, or an earlier start's copy of it. */
static titan_status identify_agent(struct titand *d, struct join_file *join, char node[PKI_NAME_MAX + 1],
                                   struct titan_error *err)
{
    const struct daemon_config *c = d->config;
    const struct rpc_tls *tls;
    const bool gone = c->join[0] && access(c->join, F_OK) != 0 && errno == ENOENT && certs_there(&c->tls);
    if (c->join[0] && !gone) {
        (void)notify_printf("STATUS=joining\nEXTEND_TIMEOUT_USEC=%llu", (JOIN_WAIT_MS + 30000) * 1000ULL);
        TRY(enrolling_join(c->join, &c->tls, JOIN_WAIT_MS, join, err));
    } else if (!c->coordinator[0] && enrolling_joined(&c->tls, join, err) != TITAN_OK) {
        (void)titan_fail(err, TITAN_EINVAL, "nothing here says where the coordinator is: %s", err->msg);
        titan_error_hint(err, "put coordinator = \"HOST:PORT\" into [agent] of the config, or join again");
        return TITAN_EINVAL;
    }
    if (gone)
        tlog_info(&d->log, "no join file: going on with the certificate that is there", "file=\"%s\"", c->join);
    TRY(config_transport(c, c->coordinator[0] ? c->coordinator : join->coordinator, &tls, err));
    if (!tls)
        return TITAN_OK;
    TRY(enrolling_name(tls, node, err));
    if (c->node[0] && strcmp(c->node, node) != 0)
        return titan_fail(err, TITAN_EPERM, "this node is to be %s, but its certificate is that of %s", c->node, node);
    return TITAN_OK;
}

static titan_status open_agent(struct titand *d, struct titan_error *err)
{
    titan_assert(d->config->role != ROLE_COORDINATOR && !d->agent);
    const struct daemon_config *c = d->config;
    bool dev = c->role == ROLE_DEV;
    char node[PKI_NAME_MAX + 1] = "";
    const struct rpc_tls *tls;
    _cleanup_(join_free) struct join_file join = {.ca = BUF_INIT};
    if (!dev)
        TRY(identify_agent(d, &join, node, err));
    const char *coordinator = dev                 ? c->agents
                              : c->coordinator[0] ? c->coordinator
                              : join.agents[0]    ? join.agents
                                                  : join.coordinator;
    TRY(config_transport(c, coordinator, &tls, err));
    if (!dev && !c->address[0] && config_address_off_host(coordinator))
        tlog_warn(&d->log, "workers of other nodes cannot reach this node's at 127.0.0.1: give --address", "%s", "");
    struct agent_options options = {.state_dir = c->state_dir,
                                    .coordinator = coordinator,
                                    .tls = tls,
                                    .renew = c->tls_own,
                                    .node = node[0]      ? node
                                            : c->node[0] ? c->node
                                                         : NULL,
                                    .address = c->address[0] ? c->address : NULL,
                                    .worker = c->worker[0] ? c->worker : NULL,
                                    .device = c->device[0] ? c->device : NULL,
                                    .spawnd = c->spawnd[0] ? c->spawnd : NULL,
                                    .default_user = c->default_user[0] ? c->default_user : NULL,
                                    .slots = c->slots,
                                    .lease_ms = c->lease_ms,
                                    .log_bytes_max = c->log_bytes_max,
                                    .worker_memory = c->worker_memory,
                                    .worker_cpus = c->worker_cpus,
                                    .hang_floor_ms = c->detection.hang_floor_ms,
                                    .away_ms = c->detection.away_ms,
                                    .leader_lease_ms = c->detection.leader_lease_ms,
                                    /* in dev mode there are no other agents */
                                    .peer_listen = dev                 ? ""
                                                   : c->peer_listen[0] ? c->peer_listen
                                                                       : NULL,
                                    .worker_ports = c->worker_ports[0] ? c->worker_ports : NULL,
                                    .ephemeral = c->ephemeral,
                                    .hooks_dir = c->hooks_dir[0] ? c->hooks_dir
                                                 : dev           ? NULL
                                                                 : HOOKS_DIR,
                                    .hook_timeout_ms = c->hook_timeout_s * 1000,
                                    .node_check_ms = c->node_check_s * 1000,
                                    .look = dev ? NULL : config_look, /* dev: the coordinator looks */
                                    .settings = c,
                                    .quiet_stop = dev};
    return agent_open(&d->loop, &options, &d->agent, err);
}

static titan_status open_pages(struct titand *d, struct titan_error *err)
{
    const struct pages_of of = {.coordinator = d->coordinator, .server = d->server, .agent = d->agent, .lag = &d->lag};
    return d->config->http.listen[0] ? pages_open(&d->loop, d->config, &of, &d->pages, err) : TITAN_OK;
}

/* Of several coordinators, this one leads from now on: it opens the store as after a restart. */
static void on_leads(void *data)
{
    struct titand *d = data;
    struct titan_error err = {0};
    titan_status status = open_coordinator(d, &err);
    if (status == TITAN_OK)
        status = open_pages(d, &err);
    if (status != TITAN_OK)
        replicas_lead(d->replicas)->lost(replicas_lead(d->replicas)->data, &err);
    tlog_info(&d->log, "serves as the coordinator that leads", "term=%" PRIu64, replicas_lead(d->replicas)->term);
}

/* The coordinator closes as at SIGTERM; the process then starts anew as one that follows. */
static void on_hand_over(void *data)
{
    struct titand *d = data;
    if (d->stopping)
        return;
    if (d->pages)
        pages_stopping(d->pages);
    rpc_server_set_serving(d->server, false);
    on_agent_closed(d);
}

static titan_status claim_state_dir(struct titand *d, struct titan_error *err)
{
    titan_assert(d->lock < 0 && d->config->state_dir[0] == '/');
    char run[PATH_MAX];
    struct stat st;
    /* Workers open the paths that run files name. Without titan-spawnd they run as the daemon's user. */
    if (d->config->role != ROLE_COORDINATOR && geteuid() == 0 && !d->config->allow_root) {
        (void)titan_fail(err, TITAN_EPERM,
                         "refusing to run jobs as root: what their run files name would be opened as root");
        titan_error_hint(
            err, "use another user, or give --allow-root (agent.allow_root = true) where all users are trusted");
        return TITAN_EPERM;
    }
    if (snprintf(run, sizeof(run), "%s/run", d->config->state_dir) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory is too long");
    TRY(lock_dir(d->config->state_dir, &d->lock, err));
    /* No other user may read the recipes, the logs and the store. */
    if (stat(d->config->state_dir, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 07077) &&
        chmod(d->config->state_dir, 0700) != 0)
        return titan_fail_errno(err, "state directory '%s' cannot be made 0700", d->config->state_dir);
    return dir_make(run, err);
}

titan_status daemon_run(const struct daemon_config *config, struct titan_error *err)
{
    struct titand d = {.config = config, .lock = -1, .started_at = uv_hrtime()};
    log_init(&d.log, "titand", "%s", "");
    d.resident = resident_set();
    /* Raises the limit of descriptors to the hard limit. A shell's soft limit is for programs that use select(). */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }

    /* gRPC's default polls all connections on any free thread. So a client whose headers take seconds to parse delays
     * all other clients. With poll() each queue polls only its own connections. So poll() protects agents that have
     * their own queue: in dev, or with an own port. poll() costs more with each connection, so with many connections
     * the polls are rarer (proto/rpc/common.c). Agents over the clients' port would gain nothing (measured: as many new
     * sessions), and their heartbeats are datagrams. */
    if (config->role == ROLE_DEV || config->agents_listen[0])
        (void)setenv("GRPC_POLL_STRATEGY", "poll", 0);
    /* Workers compute on the same processors. Threads that pass work to the loop inherit this slice. */
    slice_set(SLICE_SHORT_NS);
    TRY(log_start_thread(err));
    TRY(claim_state_dir(&d, err));
    if (uv_loop_init(&d.loop) != 0) {
        (void)close(d.lock);
        return titan_fail(err, TITAN_EIO, "cannot create the event loop");
    }
    (void)uv_loop_configure(&d.loop, UV_METRICS_IDLE_TIME);
    uv_timer_t *const timers[] = {&d.ready_timer, &d.status_timer, &d.watchdog_timer, &d.trim_timer, &d.leave_timer};
    for (size_t i = 0; i < ARRAY_SIZE(timers); i++) {
        (void)uv_timer_init(&d.loop, timers[i]);
        timers[i]->data = &d;
    }
    (void)uv_prepare_init(&d.loop, &d.prepare);
    d.prepare.data = &d;
    for (int i = 0; i < N_SIGNALS; i++) {
        (void)uv_signal_init(&d.loop, &d.signals[i]);
        d.signals[i].data = &d;
        (void)uv_signal_start(&d.signals[i], on_signal, handled_signals[i]);
    }

    titan_status status = TITAN_OK;
    if (config->ha.name[0])
        status = replicas_open(&d.loop, config, on_leads, on_hand_over, &d, &d.replicas, err);
    else if (config->role != ROLE_AGENT)
        status = open_coordinator(&d, err);
    if (status == TITAN_OK && config->role != ROLE_COORDINATOR)
        status = open_agent(&d, err);
    if (status == TITAN_OK && !d.replicas)
        status = open_pages(&d, err);
    if (status == TITAN_OK) {
        uint64_t watchdog_ms = notify_watchdog_us() / 2000;
        (void)uv_prepare_start(&d.prepare, on_iteration);
        (void)uv_timer_start(&d.ready_timer, on_ready_poll, 0, READY_POLL_MS);
        (void)uv_timer_start(&d.trim_timer, on_trim, 0, TRIM_MS);
        if (watchdog_ms)
            (void)uv_timer_start(&d.watchdog_timer, on_watchdog, 0, watchdog_ms);
        if (getenv("NOTIFY_SOCKET"))
            (void)uv_timer_start(&d.status_timer, on_status, STATUS_MS, STATUS_MS);
    } else if (d.agent) { /* closes what is open, in the order of a drain */
        agent_close(d.agent, false, 0, on_agent_closed, &d);
    } else {
        on_agent_closed(&d);
    }
    (void)uv_run(&d.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&d.loop);
    (void)close(d.lock);
    buf_free(&d.listening);
    if (status == TITAN_OK)
        tlog_info(&d.log, "stopped", "%s", "");
    log_flush(LOG_LAST_MS);
    return status;
}
