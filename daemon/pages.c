/* SPDX-License-Identifier: Apache-2.0 */
/* pages.c - see pages.h. */
#include "daemon/pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "proto/http/http_server.h"

#define PLAIN "text/plain; charset=utf-8"

struct pages {
    const struct daemon_config *config;
    struct pages_of of;
    struct http_server *server;
    bool stopping;
    void (*done)(void *);
    void *done_data;
};

static void say(struct http_answer *a, unsigned status, const char *text)
{
    struct buf b = BUF_INIT;
    buf_printf(&b, "%s\n", text);
    a->status = status;
    a->body = http_body_new(&b, PLAIN);
}

static void show_health(const struct pages *p, struct http_answer *a)
{
    const bool healthy = !p->of.coordinator || coordinator_healthy(p->of.coordinator);
    say(a, healthy ? 200 : 503, healthy ? "ok" : "the store's writer does not answer");
}

static void show_readiness(const struct pages *p, struct http_answer *a)
{
    struct titan_error why = {0};
    if (p->stopping)
        say(a, 503, "stopping");
    else if (p->of.coordinator && coordinator_ready(p->of.coordinator, &why) != TITAN_OK)
        say(a, 503, why.msg);
    else if (p->of.agent && !agent_connected(p->of.agent))
        say(a, 503, "the coordinator is not reached");
    else
        say(a, 200, "ready");
}

static void on_request(const struct http_request *r, struct http_answer *a, void *data)
{
    const struct pages *p = data;
    if (strcmp(r->path, "/healthz") == 0)
        show_health(p, a);
    else if (strcmp(r->path, "/readyz") == 0)
        show_readiness(p, a);
    else
        say(a, 404, "there is no such page");
}

static void on_server_closed(void *data)
{
    struct pages *p = data;
    if (p->done)
        p->done(p->done_data);
    free(p);
}

titan_status pages_open(uv_loop_t *loop, const struct daemon_config *config, const struct pages_of *of,
                        struct pages **ret, struct titan_error *err)
{
    const char *address = config->http.listen;
    const struct rpc_tls *tls;
    char path[PATH_MAX + 32], text[CONFIG_TEXT_MAX + 16];
    int port = 0;
    TRY(config_http_transport(config, &tls, err));
    struct pages *p = calloc(1, sizeof(*p));
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the pages");
    p->config = config;
    p->of = *of;
    const struct http_server_options options = {.answer = on_request, .data = p};
    titan_status status = http_server_open(loop, &options, &p->server, err);
    if (status != TITAN_OK) {
        free(p);
        return status;
    }
    status = http_server_listen(p->server, address, tls, &port, err);
    if (status == TITAN_EEXIST)
        titan_error_hint(err, "choose another with listen in [http] of the config, or stop it");
    if (status == TITAN_OK) {
        const int len =
            snprintf(text, sizeof(text), "%.*s:%d\n", (int)(strrchr(address, ':') - address), address, port);
        (void)snprintf(path, sizeof(path), "%s/run/listen-http", config->state_dir);
        status = file_replace(path, text, (size_t)len, err);
    }
    if (status != TITAN_OK) {
        http_server_close(p->server, on_server_closed, p);
        return status;
    }
    *ret = p;
    return TITAN_OK;
}

void pages_stopping(struct pages *p)
{
    p->stopping = true;
}

void pages_close(struct pages *p, void (*done)(void *), void *data)
{
    static const struct log log = {.subsystem = "http"};
    const struct http_counters n = http_server_counters(p->server);
    p->done = done;
    p->done_data = data;
    tlog_debug(&log, "closing",
               "connections=%" PRIu64 " open=%u beyond_limit=%" PRIu64 " late=%" PRIu64 " malformed=%" PRIu64
               " handshakes=%" PRIu64,
               n.connections, n.open, n.beyond_limit, n.late, n.malformed, n.handshakes);
    http_server_close(p->server, on_server_closed, p);
}
