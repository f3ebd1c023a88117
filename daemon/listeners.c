/* SPDX-License-Identifier: Apache-2.0 */
/* listeners.c - see listeners.h. */
#include "daemon/listeners.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/file.h"
#include "base/notify.h"

#define AGENTS_LINE (CONFIG_TEXT_MAX + 16)

/* "unix:PATH" or "HOST:PORT" of a socket that the service manager has opened. */
static bool socket_address(int fd, char out[CONFIG_TEXT_MAX])
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    char host[64], port[16];
    if (getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        return false;
    if (a.ss_family == AF_UNIX)
        return snprintf(out, CONFIG_TEXT_MAX, "unix:%.107s", ((struct sockaddr_un *)&a)->sun_path) < CONFIG_TEXT_MAX;
    if (getnameinfo((struct sockaddr *)&a, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return false;
    return snprintf(out, CONFIG_TEXT_MAX, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port) < CONFIG_TEXT_MAX;
}

/* Receives heartbeats as datagrams at an address where sessions connect. Only for TCP, and only if the coordinator has
 * its own process. */
static titan_status listen_for_heartbeats(const struct listeners *l, const char *address, struct titan_error *err)
{
    if (!strncmp(address, "unix:", 5) || l->config->role != ROLE_COORDINATOR)
        return TITAN_OK;
    titan_status status = coordinator_listen(l->coordinator, address, err);
    if (status == TITAN_EINVAL)
        return status;
    if (status != TITAN_OK)
        tlog_warn(l->log, "heartbeats come in sessions only: a lossy link delays them", "reason=\"%s\"", err->msg);
    return TITAN_OK;
}

/* Opens the agents' listeners, which have a queue and a port of their own. Agents that joined before this port existed
 * keep the clients' address. out: the port's address as a line; "" = no port. */
static titan_status listen_for_agents(const struct listeners *l, char out[AGENTS_LINE], struct titan_error *err)
{
    titan_assert(l->config->agents[0]);
    const char *address = l->config->agents_listen;
    const struct rpc_tls *tls;
    char text[CONFIG_TEXT_MAX + 12];
    int port = 0;
    out[0] = '\0';
    TRY(rpc_server_listen(l->agents, l->config->agents, NULL, NULL, err));
    if (!address[0])
        return TITAN_OK;
    TRY(config_transport(l->config, address, &tls, err));
    if (rpc_server_listen(l->agents, address, tls, &port, err) != TITAN_OK) {
        titan_error_hint(err, CONFIG_AGENTS_HINT);
        return err->status;
    }
    (void)snprintf(text, sizeof(text), "%.*s:%d", (int)(strrchr(address, ':') - address), address, port);
    if (tls)
        coordinator_serves_tls(l->coordinator, text, true);
    TRY(listen_for_heartbeats(l, text, err));
    (void)snprintf(out, AGENTS_LINE, "%s\n", text);
    return TITAN_OK;
}

titan_status listeners_open(const struct listeners *l, struct buf *ret_addresses, struct titan_error *err)
{
    titan_assert(ret_addresses->len == 0);
    char path[PATH_MAX + 32], agents[AGENTS_LINE];

    /* The service manager's sockets outlive the daemon: clients that connect while there is no daemon wait instead of
     * being refused. */
    int first, n = notify_sockets(&first);
    for (int fd = first; fd < first + n; fd++) {
        char address[CONFIG_TEXT_MAX];
        if (!socket_address(fd, address))
            return titan_fail(err, TITAN_EINVAL, "descriptor %d of the service manager is no socket we can serve", fd);
        if (!l->config->insecure && strncmp(address, "unix:", 5) != 0) {
            (void)titan_fail(err, TITAN_EINVAL, "refusing the service manager's socket on %s: it cannot have TLS",
                             address);
            titan_error_hint(err, "take it out of the socket unit and put it into listen of [coordinator]");
            return TITAN_EINVAL;
        }
        TRY(rpc_server_adopt(l->server, fd, err));
        TRY(listen_for_heartbeats(l, address, err));
        buf_printf(ret_addresses, "%s\n", address);
    }

    /* Then the configured addresses. */
    const struct daemon_config *c = l->config;
    for (int i = 0; i < c->n_listen; i++) {
        const char *address = c->listen[i];
        const struct rpc_tls *tls;
        int port = 0;
        bool listed = false; /* the service manager has opened this address */
        for (const char *p = ret_addresses->data; p && *p && !listed; p = strchr(p, '\n') + 1)
            listed = !strncmp(p, address, strlen(address)) && p[strlen(address)] == '\n';
        if (listed)
            continue;
        TRY(config_transport(c, address, &tls, err));
        TRY(rpc_server_listen(l->server, address, tls, &port, err));
        char text[CONFIG_TEXT_MAX + 16];
        if (!strncmp(address, "unix:", 5))
            (void)snprintf(text, sizeof(text), "%s", address);
        else
            (void)snprintf(text, sizeof(text), "%.*s:%d", (int)(strrchr(address, ':') - address), address, port);
        if (tls)
            coordinator_serves_tls(l->coordinator, text, false);
        TRY(listen_for_heartbeats(l, text, err));
        buf_printf(ret_addresses, "%s\n", text);
        tlog_debug(l->log, "listening", "address=%s", address);
    }

    (void)snprintf(path, sizeof(path), "%s/run/listen", l->config->state_dir);
    TRY(file_replace(path, ret_addresses->data, ret_addresses->len, err));
    TRY(listen_for_agents(l, agents, err));
    (void)snprintf(path, sizeof(path), "%s/run/listen-agents", l->config->state_dir);
    return file_replace(path, agents, strlen(agents), err);
}
