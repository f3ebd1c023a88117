/* SPDX-License-Identifier: Apache-2.0 */
/* replicas.c - see replicas.h. */
#include "daemon/replicas.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/slowest.h"
#include "base/version.h"
#include "daemon/api/methods.h"
#include "daemon/auth/policy.h"
#include "daemon/ha/replica.h"
#include "state/schema.h"
#include "titan/v1/titan.pb-c.h"

enum {
    HAND_OVER_MS = 2000, /* limit of a hand-over at the end */
    AGAIN_MS = 1000,
    ARGUMENTS_MAX = 64,
    COMMAND_MAX = 1 << 16,
};

struct replicas {
    const struct daemon_config *config;
    struct log log;
    const struct replica_plugin *plugin;
    struct replica *replica;
    struct coordinator_lead lead;
    uv_async_t async; /* the replica's thread has news */
    uv_timer_t timer;
    int64_t started_wall_ms;
    atomic_bool leads, over;     /* news */
    struct titan_error why;      /* set before `over` */
    struct rpc_server *follower; /* NULL: this member leads, or the process ends */
    struct rpc_method *methods;
    int first_socket, n_sockets; /* of the service manager */
    bool has_led, stopping, handing_over, closing, closed;
    int next; /* the member that is to lead next; -1: any */
    int handles;
    void (*on_leads)(void *data);
    void (*on_hand_over)(void *data);
    void *data;
    void (*done)(void *data);
    void *done_data;
};

/* --- the follower's socket ---------------------------------------------------------------------------------------- */

static void on_version(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    Titan__V1__VersionResponse reply = TITAN__V1__VERSION_RESPONSE__INIT;
    (void)request;
    reply.schema = SCHEMA_VERSION;
    reply.started_at_ms = ((const struct replicas *)data)->started_wall_ms;
    reply.version = (char *)(uintptr_t)titan_version;
    reply.api = (char *)"titan.v1";
    rpc_call_reply(call, &reply.base);
}

static titan_status refuse(struct rpc_call *call, const struct rpc_method *method, void *data, struct titan_error *err)
{
    struct replicas *r = data;
    struct replica_view v;
    (void)call;
    if (method->on_request == on_version)
        return TITAN_OK;
    r->plugin->view(r->replica, &v);
    if (v.leader >= 0 && v.leader != v.self)
        return titan_fail(err, TITAN_EUNREACHABLE, "the coordinator '%s' follows: '%s' leads", r->config->ha.name,
                          r->config->ha.members.at[v.leader].name);
    return titan_fail(err, TITAN_EUNREACHABLE, "the coordinator '%s' follows, and none leads now", r->config->ha.name);
}

/* Names the service manager's sockets again: for the coordinator that opens them here, or for a new start. */
static void sockets_name(const struct replicas *r)
{
    char text[16];
    if (r->n_sockets == 0)
        return;
    (void)snprintf(text, sizeof(text), "%d", (int)getpid());
    (void)setenv("LISTEN_PID", text, 1);
    (void)snprintf(text, sizeof(text), "%d", r->n_sockets);
    (void)setenv("LISTEN_FDS", text, 1);
}

static titan_status follower_open(struct replicas *r, uv_loop_t *loop, struct titan_error *err)
{
    size_t n;
    const struct rpc_method *all = api_methods(&n);
    r->methods = malloc(n * sizeof(*r->methods));
    if (!r->methods)
        return titan_fail(err, TITAN_ENOMEM, "ha: no memory");
    memcpy(r->methods, all, n * sizeof(*r->methods));
    for (size_t i = 0; i < n; i++)
        if (r->methods[i].needs == POLICY_VERSION)
            r->methods[i].on_request = on_version;
    const struct rpc_server_options options = {.methods = r->methods,
                                               .n_methods = n,
                                               .data = r,
                                               .socket_mode = config_is_service() ? 0666 : 0600,
                                               .authorize = refuse};
    TRY(rpc_server_open(loop, &options, &r->follower, err));
    bool local = false;
    r->n_sockets = notify_sockets(&r->first_socket);
    sockets_name(r);
    for (int fd = r->first_socket; fd < r->first_socket + r->n_sockets; fd++) {
        struct sockaddr a = {.sa_family = AF_UNSPEC};
        socklen_t len = sizeof(a);
        if (getsockname(fd, &a, &len) != 0 || a.sa_family != AF_UNIX)
            continue;
        TRY(rpc_server_adopt(r->follower, fd, err));
        local = true;
    }
    if (!local)
        TRY(rpc_server_listen(r->follower, r->config->listen[0], NULL, NULL, err));
    return rpc_server_start(r->follower, err);
}

/* --- starting anew ------------------------------------------------------------------------------------------------ */

/* Replaces the process by a new one with the same arguments: only that has no memory of its office. */
static void start_anew(struct replicas *r)
{
    struct buf command = BUF_INIT;
    char *arguments[ARGUMENTS_MAX + 1] = {NULL};
    size_t n = 0;
    sigset_t none;
    if (r->why.status == TITAN_OK)
        tlog_info(&r->log, "another coordinator leads, this one follows", "%s", "");
    else
        tlog_error(&r->log, "starting anew", "reason=\"%s\" hint=\"%s\"", r->why.msg, r->why.hint);
    log_flush(LOG_LAST_MS);
    if (r->stopping)
        _exit(0); /* the store is as a killed process leaves it */
    if (file_read("/proc/self/cmdline", COMMAND_MAX, &command, NULL) != TITAN_OK || command.len == 0)
        _exit(COORDINATOR_EXIT_STORE);
    for (size_t at = 0; at < command.len && n < ARGUMENTS_MAX; at += strlen(command.data + at) + 1)
        arguments[n++] = command.data + at;
    if (r->why.status != TITAN_OK)
        uv_sleep(AGAIN_MS); /* it may fail again */
    (void)close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    for (int fd = r->first_socket; fd < r->first_socket + r->n_sockets; fd++)
        (void)fcntl(fd, F_SETFD, 0);
    sockets_name(r);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execv("/proc/self/exe", arguments);
    _exit(COORDINATOR_EXIT_STORE); /* the service manager starts a new one */
}

static void on_lost(void *data, const struct titan_error *err)
{
    struct replicas *r = data;
    if (err->status != TITAN_ECANCELLED)
        r->why = *err;
    start_anew(r);
}

/* --- news of the replica's thread --------------------------------------------------------------------------------- */

static void on_leads(void *data, uint64_t term)
{
    struct replicas *r = data;
    r->lead.term = term;
    atomic_store(&r->leads, true);
    (void)uv_async_send(&r->async);
}

static void on_over(void *data, const struct titan_error *err)
{
    struct replicas *r = data;
    r->why = *err;
    atomic_store(&r->over, true);
    (void)uv_async_send(&r->async);
}

static void closed(struct replicas *r);

static void on_follower_down(void *data)
{
    struct replicas *r = data;
    rpc_server_free(TAKE(r->follower));
    if (r->closing)
        closed(r);
    else
        r->on_leads(r->data);
}

static void on_news(uv_async_t *async)
{
    HANDLER("ha.news");
    struct replicas *r = async->data;
    if (atomic_load(&r->over) && !r->closing)
        start_anew(r);
    if (atomic_load(&r->over) && r->closing)
        closed(r);
    if (atomic_load(&r->leads) && !r->has_led && !r->closing) {
        r->has_led = true;
        rpc_server_shutdown(r->follower, 0, on_follower_down, r);
    }
}

static bool may_answer(void *data)
{
    const struct replicas *r = data;
    return r->plugin->may_answer(r->replica);
}

static int members(void *data, struct coordinator_member ret[HA_MEMBERS_MAX])
{
    const struct replicas *r = data;
    const struct ha_members *all = &r->config->ha.members;
    struct replica_view v;
    r->plugin->view(r->replica, &v);
    for (int i = 0; i < all->n; i++) {
        ret[i].leads = i == v.leader;
        ret[i].reached = v.members[i].reached;
        ret[i].votes = v.members[i].role == REPLICA_VOTER;
        ret[i].lag = v.members[i].lag;
        memcpy(ret[i].name, all->at[i].name, sizeof(ret[i].name));
    }
    return all->n;
}

static void hand_over(void *data, int to)
{
    struct replicas *r = data;
    if (r->handing_over || r->stopping)
        return;
    r->handing_over = true;
    r->next = to;
    tlog_info(&r->log, "handing over", "to=%s", to >= 0 ? r->config->ha.members.at[to].name : "any");
    r->on_hand_over(r->data);
}

/* --- the plug-in -------------------------------------------------------------------------------------------------- */

/* In the program's folder, in lib/titan beside it, or in the folder that TITAN_PLUGIN_DIR names. */
static titan_status plugin_load(struct replicas *r, struct titan_error *err)
{
    static const char name[] = "libtitan-ha.so";
    char exe[PATH_MAX], path[PATH_MAX + 64];
    const ssize_t bytes = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    exe[MAX(bytes, 0)] = '\0';
    if (strrchr(exe, '/'))
        *strrchr(exe, '/') = '\0';
    const struct {
        const char *folder, *below;
    } places[] = {{getenv("TITAN_PLUGIN_DIR"), ""}, {exe, ""}, {exe, "/../lib/titan"}};
    void *library = NULL;
    bool found = false;
    for (size_t i = 0; i < ARRAY_SIZE(places) && !found; i++) {
        if (!places[i].folder || !*places[i].folder)
            continue;
        (void)snprintf(path, sizeof(path), "%s%s/%s", places[i].folder, places[i].below, name);
        found = access(path, R_OK) == 0;
    }
    if (found)
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    replica_plugin_fn fn = NULL;
    if (library)
        *(void **)&fn = dlsym(library, "titan_replica_plugin");
    r->plugin = fn ? fn() : NULL;
    if (r->plugin && r->plugin->abi == REPLICA_ABI)
        return TITAN_OK;
    if (!found)
        (void)titan_fail(err, TITAN_EUNSUPPORTED, "[ha] needs %s, which is not installed", name);
    else if (!library)
        (void)titan_fail(err, TITAN_EUNSUPPORTED, "[ha] needs %s, which cannot be loaded: %s", name, dlerror());
    else
        (void)titan_fail(err, TITAN_EUNSUPPORTED, "[ha] needs %s of this version", path);
    titan_error_hint(err, "install libraft (Debian: libraft2, to build: libraft-dev)");
    return TITAN_EUNSUPPORTED;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct replicas *r = handle->data;
    if (--r->handles > 0)
        return;
    void (*const done)(void *) = r->done;
    void *const data = r->done_data;
    free(r->methods);
    free(r);
    if (done)
        done(data);
}

static void handles_close(struct replicas *r)
{
    r->handles = 2;
    uv_close((uv_handle_t *)&r->async, on_handle_closed);
    uv_close((uv_handle_t *)&r->timer, on_handle_closed);
}

titan_status replicas_open(uv_loop_t *loop, const struct daemon_config *config, void (*leads)(void *data),
                           void (*hand_over_asked)(void *data), void *data, struct replicas **ret,
                           struct titan_error *err)
{
    struct replicas *r = calloc(1, sizeof(*r));
    const struct rpc_tls *tls = NULL;
    if (!r)
        return titan_fail(err, TITAN_ENOMEM, "ha: no memory");
    log_init(&r->log, "ha", "member=%s", config->ha.name);
    r->config = config;
    r->on_leads = leads;
    r->on_hand_over = hand_over_asked;
    r->next = -1;
    r->started_wall_ms = clock_wall_ms();
    r->data = data;
    titan_status status = plugin_load(r, err);
    if (status == TITAN_OK)
        status = config_transport(config, config->ha.listen, &tls, err);
    if (status != TITAN_OK) {
        free(r);
        return status;
    }
    (void)uv_async_init(loop, &r->async, on_news);
    (void)uv_timer_init(loop, &r->timer);
    r->async.data = r->timer.data = r;
    const struct replica_options options = {.state_dir = config->state_dir,
                                            .members = &config->ha.members,
                                            .name = config->ha.name,
                                            .listen = config->ha.listen,
                                            .tls = tls,
                                            .election_ms = config->ha.election_ms,
                                            .leads = on_leads,
                                            .over = on_over,
                                            .data = r};
    status = r->plugin->open(&options, &r->replica, err);
    if (status != TITAN_OK) {
        handles_close(r);
        return status;
    }
    status = follower_open(r, loop, err);
    if (status != TITAN_OK) {
        if (r->follower)
            rpc_server_free(TAKE(r->follower));
        closed(r);
        return status;
    }
    r->lead = (struct coordinator_lead){.log = {.append = r->plugin->append, .data = r->replica},
                                        .may_answer = may_answer,
                                        .hand_over = hand_over,
                                        .members = members,
                                        .lost = on_lost,
                                        .data = r};
    *ret = r;
    return TITAN_OK;
}

const struct coordinator_lead *replicas_lead(const struct replicas *r)
{
    titan_assert(atomic_load(&r->leads));
    return &r->lead;
}

/* The replica and the follower's socket end, in this order or the other. */
static void closed(struct replicas *r)
{
    if (r->closed)
        return;
    r->closed = true;
    (void)uv_timer_stop(&r->timer);
    if (r->handing_over && !r->stopping)
        start_anew(r);
    r->plugin->close(r->replica);
    handles_close(r);
}

static void on_late(uv_timer_t *timer)
{
    closed(timer->data);
}

void replicas_stopping(struct replicas *r)
{
    r->stopping = true;
}

void replicas_close(struct replicas *r, void (*done)(void *data), void *data)
{
    const bool serves = r->follower && r->has_led; /* it is on its way down */
    r->closing = true;
    r->done = done;
    r->done_data = data;
    if (serves)
        return;
    if (r->follower)
        rpc_server_shutdown(r->follower, 0, on_follower_down, r);
    else if (r->has_led && !atomic_load(&r->over)) {
        r->plugin->hand_over(r->replica, r->next);
        (void)uv_timer_start(&r->timer, on_late, HAND_OVER_MS, 0);
    } else {
        closed(r);
    }
}
