/* SPDX-License-Identifier: Apache-2.0 */
/* pages.c - see pages.h. */
#include "daemon/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/slowest.h"
#include "base/version.h"
#include "daemon/api/methods.h"
#include "daemon/auth/identity.h"
#include "daemon/auth/pki.h"
#include "daemon/common/exposition.h"
#include "daemon/page_api.h"
#include "proto/http/http_server.h"

#define PLAIN "text/plain; charset=utf-8"
#define CERTIFICATES_MS 10000 /* interval of looks at the certificates' files */
/* A browser's page holds a stream of events and, for a while, up to five connections more. */
#define CONNECTIONS_MAX 512
#define PEER_CONNECTIONS_MAX 256

enum page { PAGE_HEALTH, PAGE_READINESS, PAGE_METRICS, PAGE_FILE, PAGE_API, PAGE_OTHER, PAGES };
static const char *const page_paths[PAGES] = {"/healthz", "/readyz", "/metrics", "/", PAGE_API_PATH, "other"};

/* The codes that are counted. */
enum { CODES = 9 };
static const unsigned codes[CODES] = {200, 304, 400, 401, 403, 404, 429, 500, 503};

/* The assembler includes the page's files, so no source is generated from them. chart.* is drawn with by titanctl's
 * report, too. */
#define INCLUDED(file) ".incbin \"" file "\"\n"
#define ASSET(symbol, files)                                                                                           \
    __asm__(".pushsection .rodata\n" #symbol ":\n" files #symbol "_end:\n.byte 0\n.popsection\n");                     \
    extern const char symbol[] __attribute__((visibility("hidden")));                                                  \
    extern const char symbol##_end[] __attribute__((visibility("hidden")))
ASSET(page_html, INCLUDED("daemon/page/index.html"));
ASSET(page_script, INCLUDED("daemon/page/chart.js") INCLUDED("daemon/page/titan.js"));
ASSET(page_style, INCLUDED("daemon/page/chart.css") INCLUDED("daemon/page/titan.css"));

enum { FILES = 3 };
static const struct {
    const char *path, *type, *text, *end;
} files[FILES] = {{"/", "text/html; charset=utf-8", page_html, page_html_end},
                  {"/titan.js", "text/javascript; charset=utf-8", page_script, page_script_end},
                  {"/titan.css", "text/css; charset=utf-8", page_style, page_style_end}};
/* All that the page shows comes from here. It is in no frame of another page. */
#define FILES_POLICY "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

struct pages {
    const struct daemon_config *config;
    struct pages_of of;
    struct http_server *server;
    struct auth *auth;    /* without a coordinator, whose rights count where there is one */
    struct page_api *api; /* with a coordinator */
    struct http_body *files[FILES], *unchanged[FILES];
    char tags[FILES][24];
    uint64_t requests[PAGES][CODES];
    struct http_body *shared[EXPOSITION_FORMATS]; /* the last scrapes; NULL = none */
    int64_t shared_ms[EXPOSITION_FORMATS];
    struct pki_certificate certificates[2]; /* ours, the CA's; kind and name unset: none */
    int64_t looked_ms;                      /* 0 = never */
    int64_t started_ms;
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

/* --- metrics ------------------------------------------------------------------------------------------------------ */

static void look_at_certificates(struct pages *p)
{
    const char *const paths[] = {p->config->tls.certificate, p->config->tls.ca};
    const int64_t now_ms = clock_mono_ms();
    if (p->looked_ms && now_ms - p->looked_ms < CERTIFICATES_MS)
        return;
    p->looked_ms = now_ms;
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        p->certificates[i] = (struct pki_certificate){.kind = PKI_NONE};
        if (paths[i][0] && file_read(paths[i], PKI_PEM_MAX, &text, NULL) == TITAN_OK)
            (void)!pki_read(text.data ? text.data : "", text.len, &p->certificates[i], NULL);
    }
}

static void put_process(struct pages *p, struct exposition *e)
{
    struct rusage use;
    unsigned long long pages = 0;
    _cleanup_file_ FILE *f = fopen("/proc/self/statm", "re");
    PUT(e, titan_build_info, 1, titan_version, daemon_role_name(p->config->role));
    PUT(e, process_start_time_seconds, (double)p->started_ms / 1000);
    if (getrusage(RUSAGE_SELF, &use) == 0)
        PUT(e, process_cpu_seconds_total,
            (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
    if (f && fscanf(f, "%*s %llu", &pages) == 1)
        PUT(e, process_resident_memory_bytes, (double)pages * (double)sysconf(_SC_PAGESIZE));
    PUT_HISTOGRAM(e, titan_loop_lag_seconds, p->of.lag);
    look_at_certificates(p);
    for (size_t i = 0; i < ARRAY_SIZE(p->certificates); i++) {
        const struct pki_certificate *c = &p->certificates[i];
        const char *name = c->ca ? "ca" : *c->uri ? c->uri : "own";
        if (c->until_ms > 0)
            PUT(e, titan_certificate_expiry_timestamp_seconds, (double)c->until_ms / 1000, name);
    }
}

static void put_http(const struct pages *p, struct exposition *e)
{
    const struct http_counters n = http_server_counters(p->server);
    for (size_t page = 0; page < PAGES; page++)
        for (size_t i = 0; i < CODES; i++) {
            char code[8];
            (void)snprintf(code, sizeof(code), "%u", codes[i]);
            if (p->requests[page][i] > 0)
                PUT(e, titan_http_requests_total, (double)p->requests[page][i], page_paths[page], code);
        }
    PUT(e, titan_http_connections, n.open);
    PUT(e, titan_http_refused_total, (double)n.beyond_limit, "limit");
    PUT(e, titan_http_refused_total, (double)n.late, "late");
    PUT(e, titan_http_refused_total, (double)n.malformed, "malformed");
    PUT(e, titan_http_refused_total, (double)n.handshakes, "tls");
}

/* May the client scrape? An agent knows neither tokens nor revocations. */
static titan_status may_scrape(const struct pages *p, const struct http_request *r, bool *ret_known,
                               struct titan_error *err)
{
    const struct rpc_identity *id = r->identity;
    struct auth_user u;
    if (p->of.coordinator)
        return api_may_scrape(p->of.coordinator, id, r->authorization, ret_known, err);
    const int64_t now_ms = clock_wall_ms();
    *ret_known = id->kind != RPC_ID_NONE;
    if (*ret_known && now_ms >= id->until_ms)
        return titan_fail(err, TITAN_EPERM, "the certificate of %s has expired", id->name);
    auth_resolve(p->auth, id, now_ms, &u);
    return policy_scrapes(u.roles) ? TITAN_OK
                                   : titan_fail(err, TITAN_EPERM,
                                                "not permitted: metrics are for whom [authorization] of "
                                                "this agent lists; you are %s",
                                                u.actor);
}

static void show_metrics(struct pages *p, const struct http_request *r, struct http_answer *a)
{
    const enum exposition_format format = exposition_format(r->accept);
    const int64_t now_ms = clock_mono_ms();
    struct titan_error why = {0};
    bool known = false;
    if (may_scrape(p, r, &known, &why) != TITAN_OK) {
        say(a, known ? 403 : 401, why.msg);
        return;
    }
    if (!p->shared[format] || now_ms - p->shared_ms[format] >= PAGES_SHARED_MS) {
        HANDLER("http.metrics");
        struct buf text = BUF_INIT;
        struct exposition e = {.out = &text, .format = format};
        put_process(p, &e);
        put_http(p, &e);
        if (p->of.coordinator)
            api_scrape(p->of.coordinator, &e);
        if (p->of.agent)
            agent_scrape(p->of.agent, &e);
        exposition_end(&e);
        http_body_unref(p->shared[format]);
        p->shared[format] = http_body_new(&text, exposition_type(format));
        p->shared_ms[format] = now_ms;
    }
    a->status = 200;
    a->body = p->shared[format] ? http_body_ref(p->shared[format]) : NULL;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void count(struct pages *p, enum page page, unsigned status)
{
    size_t i = 0;
    while (i < CODES - 1 && codes[i] != status)
        i++;
    p->requests[page][i]++;
}

static void on_api_answered(unsigned status, void *data)
{
    count(data, PAGE_API, status);
}

static void show_file(struct pages *p, size_t i, const struct http_request *r, struct http_answer *a)
{
    const bool has_it = r->if_none_match && strstr(r->if_none_match, p->tags[i]);
    a->status = has_it ? 304 : 200;
    a->body = http_body_ref(has_it ? p->unchanged[i] : p->files[i]);
}

/* False: out of memory. */
static bool make_files(struct pages *p)
{
    for (size_t i = 0; i < FILES; i++) {
        const size_t len = (size_t)(files[i].end - files[i].text);
        (void)snprintf(p->tags[i], sizeof(p->tags[i]), "\"%016llx\"",
                       (unsigned long long)hash_bytes(HASH_INIT, files[i].text, len));
        struct http_body **const bodies[] = {&p->files[i], &p->unchanged[i]};
        for (size_t k = 0; k < ARRAY_SIZE(bodies); k++) {
            struct http_body *const body = http_body_static(files[i].text, k == 0 ? len : 0, files[i].type);
            *bodies[k] = body;
            if (!body || !http_body_header(body, "ETag", p->tags[i]) ||
                !http_body_header(body, "Cache-Control", "no-cache") ||
                !http_body_header(body, "Content-Security-Policy", FILES_POLICY) ||
                !http_body_header(body, "Referrer-Policy", "no-referrer"))
                return false;
        }
    }
    return true;
}

static void on_request(const struct http_request *r, struct http_answer *a, void *data)
{
    struct pages *p = data;
    enum page page = PAGE_HEALTH;
    size_t file = 0;
    while (page < PAGE_FILE && strcmp(r->path, page_paths[page]) != 0)
        page++;
    while (file < FILES && strcmp(r->path, files[file].path) != 0)
        file++;
    if (p->api && strncmp(r->path, PAGE_API_PATH, strlen(PAGE_API_PATH)) == 0) {
        page_api_answer(p->api, r, a); /* it counts its answers */
        return;
    }
    if (page == PAGE_HEALTH) {
        show_health(p, a);
    } else if (page == PAGE_READINESS) {
        show_readiness(p, a);
    } else if (page == PAGE_METRICS) {
        show_metrics(p, r, a);
    } else if (p->api && file < FILES) {
        show_file(p, file, r, a);
    } else {
        page = PAGE_OTHER;
        say(a, 404, "there is no such page");
    }
    count(p, page, a->body ? a->status : 500);
}

static void pages_free(struct pages *p)
{
    for (size_t i = 0; i < EXPOSITION_FORMATS; i++)
        http_body_unref(p->shared[i]);
    for (size_t i = 0; i < FILES; i++) {
        http_body_unref(p->files[i]);
        http_body_unref(p->unchanged[i]);
    }
    auth_free(p->auth);
    free(p);
}

static void on_api_closed(void *data)
{
    struct pages *p = data;
    if (p->done)
        p->done(p->done_data);
    pages_free(p);
}

static void on_server_closed(void *data)
{
    struct pages *p = data;
    if (p->api)
        page_api_close(p->api, on_api_closed, p);
    else
        on_api_closed(p);
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
    p->started_ms = clock_wall_ms();
    if (!of->coordinator)
        p->auth = auth_new(&config->auth);
    const struct http_server_options options = {.max_connections = CONNECTIONS_MAX,
                                                .max_peer_connections = PEER_CONNECTIONS_MAX,
                                                .answer = on_request,
                                                .data = p};
    titan_status status = make_files(p) ? http_server_open(loop, &options, &p->server, err)
                                        : titan_fail(err, TITAN_ENOMEM, "no memory for the pages");
    if (status != TITAN_OK) {
        pages_free(p);
        return status;
    }
    if (of->coordinator && !(p->api = page_api_new(loop, of->coordinator, of->server, on_api_answered, p)))
        status = titan_fail(err, TITAN_ENOMEM, "no memory for the pages");
    if (status == TITAN_OK)
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

void pages_reload(struct pages *p, const struct auth_options *auth)
{
    if (p->auth)
        auth_reload(p->auth, auth);
}

void pages_stopping(struct pages *p)
{
    p->stopping = true;
}

void pages_close(struct pages *p, void (*done)(void *), void *data)
{
    p->done = done;
    p->done_data = data;
    http_server_close(p->server, on_server_closed, p);
}
