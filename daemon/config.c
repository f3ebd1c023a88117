/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - defaults, config file, flags; see config.h. */
#include "daemon/config.h"

#include <errno.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/distance.h"
#include "base/file.h"
#include "base/listen.h"
#include "base/options.h"
#include "base/settings.h"
#include "base/toml.h"
#include "daemon/auth/join.h"

#define DEFAULT_GRACE_MS 10000
#define DEFAULT_HOOK_TIMEOUT_S 30
#define DEFAULT_NODE_CHECK_S 300
#define DEFAULT_QUARANTINE_CRASHES 3
#define DEFAULT_USER_PENDING_JOBS 10000 /* a tenth of the limit on all waiting jobs */
#define DEFAULT_ELECTION_MS 300
#define SOCKET_PATH_MAX 107 /* without its NUL */
#define ROOT_STATE_DIR "/var/lib/titan"

/* --- flags and roles ---------------------------------------------------------------------------------------------- */

static const struct option_spec options[] = {
    {"state-dir", 0, "DIR",
     "where everything is kept (default: /var/lib/titan as root, else $XDG_STATE_HOME/titan or ~/.local/state/titan)",
     WORD_FILE},
    {"config", 0, "FILE", "read settings from a TOML file; flags win over it", WORD_FILE},
    {"listen", 0, "ADDRESS",
     "HOST:PORT or unix:PATH to serve the API on, besides the Unix socket in the state directory; may be given several "
     "times (dev, coordinator). TCP is served with TLS: the files of [tls], or tls/{ca,cert,key}.pem in the state "
     "directory",
     WORD_NONE},
    {"allow-root", 0, NULL,
     "let root run jobs (dev, agent); without it titand refuses to, as what a run file names would be read and written "
     "as root",
     WORD_NONE},
    {"adopt-state", 0, NULL, "the state directory is a copy of another one that nothing will run on again", WORD_NONE},
    {"insecure", 0, NULL, "TCP without TLS: all that reach the address are let in (a network you trust)", WORD_NONE},
    {"coordinator", 0, "ADDRESS",
     "HOST:PORT or unix:PATH of the coordinator (agent); HOST:PORT,HOST:PORT where it may be at one of several",
     WORD_NONE},
    {"join", 0, "FILE",
     "become a node of the cluster with a file of `titanctl node join` (agent): a key is made here, its certificate "
     "goes into tls/ of the state directory; used once",
     WORD_FILE},
    {"node", 0, "NAME", "unique name of this node (default: its certificate's, else the host's)", WORD_NONE},
    {"address", 0, "HOST", "where other nodes reach this node's workers (default: 127.0.0.1)", WORD_NONE},
    {"slots", 0, "N", "workers at a time (default: one per GPU, or 4 without one)", WORD_NONE},
    {"device", 0, "NAME", "auto, cpu or cuda (default: auto)", WORD_NONE},
    {"worker", 0, "PATH", "the worker program (default: titan-worker beside titand)", WORD_FILE},
    {"lease-ms", 0, "N", "how long workers go on without an agent (default: 30000)", WORD_NONE},
    {"log-bytes-max", 0, "N", "bytes kept of each worker's output (default: 67108864)", WORD_NONE},
    {"grace-ms", 0, "N", "time workers have to write a checkpoint at shutdown (default: 10000)", WORD_NONE},
    {"stop-workers", 0, NULL, "stop workers at SIGTERM (default for dev)", WORD_NONE},
    {"keep-workers", 0, NULL, "leave workers to the next agent at SIGTERM (default for agent)", WORD_NONE},
    {"log-level", 0, "LEVEL", "error, warn, info or debug (default: info)", WORD_NONE},
    {"help", 'h', NULL, "say how it is used, with examples", WORD_NONE},
    {"version", 'V', NULL, "print titand's version", WORD_NONE},
    {NULL},
};

static const struct command dev = {
    .name = "dev", .summary = "agent and coordinator in one process: a laptop, a single machine", .arguments = ""};
static const struct command agent = {
    .name = "agent", .summary = "one per node: starts and watches the workers of this node", .arguments = ""};
static const struct command coordinator = {
    .name = "coordinator", .summary = "one per cluster: queue, membership, job store, API", .arguments = ""};
static const struct command *const roles[] = {
    [ROLE_DEV] = &dev, [ROLE_AGENT] = &agent, [ROLE_COORDINATOR] = &coordinator, NULL};
static const struct command_table titand = {.name = "titand", .noun = "role", .commands = roles, .options = options};

void config_help(struct buf *out)
{
    buf_puts(out, "usage: titand dev|agent|coordinator [OPTION]...\n\nroles\n");
    help_put_commands(&titand, out);
    buf_puts(out, "\noptions\n");
    help_put_options(options, out);
    buf_puts(out, "\nexamples\n"
                  "  titand dev --state-dir ~/titan                     everything on one machine\n"
                  "  titand coordinator --listen 10.0.0.1:7070          after `titanctl pki init --address 10.0.0.1`\n"
                  "  titand agent --join n2.join --address 10.0.0.2     with a file of `titanctl node join n2`\n");
}

const char *daemon_role_name(enum daemon_role role)
{
    titan_assert((size_t)role < ARRAY_SIZE(roles) - 1);
    return roles[role]->name;
}

/* --- settings ----------------------------------------------------------------------------------------------------- */

/* All settings of the config file and the flags. Each has one row. */
#define ROW(sec, key, kind, field)                                                                                     \
    .section = (sec), .name = (key), .type = (kind), .offset = offsetof(struct daemon_config, field),                  \
    .size = sizeof(((struct daemon_config *)0)->field)
#define TEXT(sec, key, field)                                                                                          \
    {                                                                                                                  \
        ROW(sec, key, KEY_STRING, field), .min = 1                                                                     \
    }
#define WORD(sec, key, kind, field, words)                                                                             \
    {                                                                                                                  \
        ROW(sec, key, kind, field), .choices = (words)                                                                 \
    }
#define NUMBER(sec, key, field, least, most)                                                                           \
    {                                                                                                                  \
        ROW(sec, key, KEY_INT, field), .min = (least), .max = (most)                                                   \
    }
#define SWITCH(sec, key, field)                                                                                        \
    {                                                                                                                  \
        ROW(sec, key, KEY_BOOL, field)                                                                                 \
    }
#define LIST(sec, key, field)                                                                                          \
    {                                                                                                                  \
        ROW(sec, key, KEY_LIST, field)                                                                                 \
    }

static const struct setting settings[] = {
    TEXT("titand", "state_dir", state_dir),
    WORD("titand", "log_level", KEY_WORD, log_level, "error|warn|info|debug"), /* as enum log_level */
    LIST("coordinator", "listen", listen),
    TEXT("coordinator", "agents_listen", agents_listen),
    SWITCH("coordinator", "insecure", insecure),
    SWITCH("coordinator", "jobs_as_users", paths.as_users),
    NUMBER("coordinator", "quarantine_crashes", quarantine_crashes, 0, 16),
    TEXT("storage", "jobs_dir", jobs_dir),
    TEXT("agent", "coordinator", coordinator),
    TEXT("agent", "node", node),
    TEXT("agent", "address", address),
    SWITCH("agent", "insecure", insecure),
    NUMBER("agent", "slots", slots, 1, 1024),
    TEXT("agent", "device", device),
    TEXT("agent", "worker", worker),
    TEXT("agent", "spawnd", spawnd),
    TEXT("agent", "default_user", default_user),
    NUMBER("agent", "lease_ms", lease_ms, 100, 86400000),
    NUMBER("agent", "log_bytes_max", log_bytes_max, 65536, 0x1p40),
    NUMBER("agent", "grace_ms", grace_ms, 0, 3600000),
    SWITCH("agent", "stop_workers", stop_workers),
    SWITCH("agent", "drain_on_term", drain_on_term),
    SWITCH("agent", "ephemeral", ephemeral),
    TEXT("agent", "join", join),
    SWITCH("agent", "allow_root", allow_root),
    TEXT("agent", "peer_listen", peer_listen),
    TEXT("agent", "worker_ports", worker_ports),
    TEXT("agent", "hooks_dir", hooks_dir),
    NUMBER("agent", "hook_timeout_s", hook_timeout_s, 1, 3600),
    NUMBER("agent", "node_check_s", node_check_s, 1, 86400),
    {ROW("agent", "worker_memory", KEY_BYTES, worker_memory), .min = 0x1p20, .max = 0x1p60},
    {ROW("agent", "worker_cpus", KEY_REAL, worker_cpus), .min = 0.01, .max = 16384, .unit = 1000},
    TEXT("tls", "ca", tls.ca),
    TEXT("tls", "certificate", tls.certificate),
    TEXT("tls", "key", tls.key),
    NUMBER("tls", "node_life_s", node_life_s, 3, 31536000),
    LIST("authorization", "admins", auth.admins),
    LIST("authorization", "operators", auth.operators),
    LIST("authorization", "metrics", auth.metrics),
    SWITCH("authorization", "private_jobs", auth.private_jobs),
    LIST("storage", "data_roots", paths.data),
    LIST("storage", "checkpoint_roots", paths.checkpoints),
    TEXT("audit", "head_file", head_file),
    TEXT("http", "listen", http.listen),
    SWITCH("http", "insecure", http.insecure),
    TEXT("ha", "name", ha.name),
    LIST("ha", "members", ha.members),
    TEXT("ha", "listen", ha.listen),
    NUMBER("ha", "election_ms", ha.election_ms, 50, 60000),
    NUMBER("limits", "connections", limits.connections, 16, 1000000),
    NUMBER("limits", "user_connections", limits.user_connections, 1, 1000000),
    NUMBER("limits", "peer_connections", limits.peer_connections, 1, 1000000),
    NUMBER("limits", "user_calls", limits.user_calls, 1, 1000000),
    NUMBER("limits", "memory_mb", limits.memory_mb, 16, 65536),
    NUMBER("limits", "user_pending_jobs", limits.user_pending_jobs, 0, 1000000),
    NUMBER("limits", "user_slots", limits.user_slots, 0, 1000000),
    NUMBER("limits", "user_submits_per_minute", limits.user_submits_per_minute, 0, 1000000),
    NUMBER("limits", "user_disk_mb", limits.user_disk_mb, 0, 0x1p40),
    WORD("detection", "profile", KEY_STRING, profile, "lan|wan"),
    NUMBER("detection", "heartbeat_ms", detection.heartbeat_ms, 5, 60000),
    NUMBER("detection", "idle_heartbeat_ms", detection.idle_heartbeat_ms, 5, 60000),
    NUMBER("detection", "suspect_ms", detection.suspect_ms, 10, 600000),
    NUMBER("detection", "confirm_ms", detection.confirm_ms, 10, 600000),
    NUMBER("detection", "node_timeout_ms", detection.node_timeout_ms, 20, 3600000),
    NUMBER("detection", "reachable_ms", detection.reachable_ms, 20, 3600000),
    NUMBER("detection", "away_ms", detection.away_ms, 50, 3600000),
    NUMBER("detection", "leader_lease_ms", detection.leader_lease_ms, 0, UINT32_MAX),
    NUMBER("detection", "hang_floor_ms", detection.hang_floor_ms, 50, 3600000),
    /* Older names. */
    NUMBER("detection", "beat_ms", detection.heartbeat_ms, 5, 60000),
    NUMBER("detection", "delegate_lease_ms", detection.leader_lease_ms, 0, UINT32_MAX),
};

/* Settings of one [[webhook]]. */
#define HOOK(key, kind, field)                                                                                         \
    .section = "webhook", .name = (key), .type = (kind), .offset = offsetof(struct webhook_options, field),            \
    .size = sizeof(((struct webhook_options *)0)->field)
static const struct setting webhook_settings[] = {
    {HOOK("name", KEY_STRING, name), .min = 1},
    {HOOK("url", KEY_STRING, url), .min = 1},
    {HOOK("secret_file", KEY_STRING, secret_file), .min = 1},
    {HOOK("ca", KEY_STRING, ca), .min = 1},
    {HOOK("events", KEY_LIST, events)},
    {HOOK("timeout_ms", KEY_INT, timeout_ms), .min = 100, .max = 60000},
};

/* HOST:PORT? */
static bool tcp_address(const char *address, unsigned long *ret_port)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    *ret_port = colon ? strtoul(colon + 1, &end, 10) : 0;
    return strncmp(address, "unix:", 5) != 0 && colon && colon > address && colon[1] && !*end && *ret_port <= 65535;
}

/* Adds to a list: addresses, folders or identities. */
static titan_status add_string(const struct setting_place *at, const struct setting *s, struct daemon_config *c,
                               const char *text, struct titan_error *err)
{
    void *const to = (char *)c + s->offset;
    unsigned long port;
    titan_assert(s->type == KEY_LIST && c->n_listen >= 0 && c->n_listen <= CONFIG_LISTEN_MAX);
    if (to == &c->ha.members) {
        const titan_status status = ha_members_add(to, text, err);
        return status == TITAN_OK ? status : setting_wrap(at, s, err);
    }
    if (to != c->listen) {
        const bool roots = to == &c->paths.data || to == &c->paths.checkpoints;
        const titan_status status = roots ? paths_add_root(to, text, err) : auth_list_add(to, text, err);
        return status == TITAN_OK ? status : setting_wrap(at, s, err);
    }
    if ((strncmp(text, "unix:", 5) != 0 || !text[5]) && !tcp_address(text, &port)) {
        (void)setting_fail(at, s, err, TITAN_EINVAL, ": '%s' is not an address", text);
        titan_error_hint(err, "write HOST:PORT or unix:PATH");
        return TITAN_EINVAL;
    }
    if (c->n_listen == CONFIG_LISTEN_MAX || strlen(text) >= CONFIG_TEXT_MAX)
        return setting_fail(at, s, err, TITAN_EINVAL, ": at most %d addresses of at most %d bytes", CONFIG_LISTEN_MAX,
                            CONFIG_TEXT_MAX - 1);
    (void)snprintf(c->listen[c->n_listen++], CONFIG_TEXT_MAX, "%s", text);
    return TITAN_OK;
}

static titan_status set_value(const struct setting_place *at, const struct setting *s, struct daemon_config *c,
                              const struct toml_value *v, struct titan_error *err)
{
    void *const field = (char *)c + s->offset;
    struct rpc_targets targets;
    unsigned long port;
    TRY(setting_check_type(at, s, v, err));
    if (s->type != KEY_LIST) {
        TRY(setting_set(at, s, v, field, err));
        if (field == c->coordinator && rpc_targets_parse(v->string, &targets, err) != TITAN_OK)
            return setting_wrap(at, s, err);
        if ((field == c->http.listen && !tcp_address(c->http.listen, &port)) ||
            (field == c->ha.listen && !tcp_address(c->ha.listen, &port))) {
            (void)setting_fail(at, s, err, TITAN_EINVAL, ": '%s' is not an address", v->string);
            titan_error_hint(err, "write HOST:PORT");
            return TITAN_EINVAL;
        }
        return TITAN_OK;
    }
    if (field == c->listen) /* a list replaces the previous list */
        c->n_listen = 0;
    else if (field == &c->ha.members)
        c->ha.members.n = 0;
    else if (field == &c->paths.data || field == &c->paths.checkpoints)
        ((struct paths_roots *)field)->n = 0;
    else
        ((struct auth_list *)field)->n = 0;
    for (const struct toml_value *item = v->first; item; item = item->next) {
        if (item->type != TOML_STRING)
            return setting_wrong_type(at, s, item, err);
        TRY(add_string(at, s, c, item->string, err));
    }
    return TITAN_OK;
}

/* section NULL: any; name NULL: any key of the section. */
static const struct setting *find(const char *section, const char *name)
{
    for (const struct setting *s = settings; s < settings + ARRAY_SIZE(settings); s++)
        if ((!section || strcmp(s->section, section) == 0) && (!name || strcmp(s->name, name) == 0))
            return s;
    return NULL;
}

/* Refuses an unknown section or key; the hint offers a similar name. */
static titan_status unknown(const struct setting_place *at, const char *section, const char *name,
                            struct titan_error *err)
{
    const char *known[ARRAY_SIZE(settings) + ARRAY_SIZE(webhook_settings)];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        const struct setting *s = i < ARRAY_SIZE(settings) ? &settings[i] : &webhook_settings[i - ARRAY_SIZE(settings)];
        if (!section || !strcmp(s->section, section))
            known[n++] = section ? s->name : s->section;
    }
    (void)setting_fail(at, NULL, err, TITAN_EINVAL, "unknown %s '%s%s%s'", section ? "key" : "section",
                       section ? section : "", section ? "." : "", name);
    const char *near = text_nearest(name, known, n);
    if (section && !strcmp(section, "agent") && !strcmp(name, "cluster_key"))
        titan_error_hint(err, "there is none any more, take the line out: the coordinator hands out keys by itself");
    else if (near)
        titan_error_hint(err, "did you mean '%s'?", near);
    return TITAN_EINVAL;
}

/* One [[webhook]]. */
static titan_status load_webhook(struct daemon_config *c, const struct toml_value *table, const char *path,
                                 struct titan_error *err)
{
    const struct setting_place head = {.path = path, .line = table->line, .daemon = true};
    if (c->webhooks.n == WEBHOOKS_MAX)
        return setting_fail(&head, NULL, err, TITAN_EINVAL, "there are more than %d endpoints in [[webhook]]",
                            WEBHOOKS_MAX);
    struct webhook_options *w = &c->webhooks.list[c->webhooks.n];
    for (const struct toml_value *v = table->first; v; v = v->next) {
        const struct setting_place at = {.path = path, .line = v->line, .daemon = true};
        const struct setting *s = webhook_settings;
        while (s < webhook_settings + ARRAY_SIZE(webhook_settings) && strcmp(s->name, v->key) != 0)
            s++;
        if (s == webhook_settings + ARRAY_SIZE(webhook_settings))
            return unknown(&at, "webhook", v->key, err);
        TRY(setting_check_type(&at, s, v, err));
        if (s->type != KEY_LIST) {
            TRY(setting_set(&at, s, v, (char *)w + s->offset, err));
            continue;
        }
        size_t len = 0;
        for (const struct toml_value *item = v->first; item; item = item->next) {
            if (item->type != TOML_STRING)
                return setting_wrong_type(&at, s, item, err);
            const int more = snprintf(w->events + len, sizeof(w->events) - len, "%s%s", len ? "," : "", item->string);
            if (!item->string[0] || strchr(item->string, ',') || (size_t)more >= sizeof(w->events) - len)
                return setting_fail(&at, s, err, TITAN_EINVAL, ": words without commas, %zu bytes in all",
                                    sizeof(w->events) - 1);
            len += (size_t)more;
        }
    }
    if (webhook_check(w, err) != TITAN_OK)
        return titan_error_wrap(err, "%s:%d: webhook", path, table->line);
    for (size_t i = 0; i < c->webhooks.n; i++)
        if (strcmp(c->webhooks.list[i].name, w->name) == 0)
            return setting_fail(&head, NULL, err, TITAN_EINVAL,
                                "webhook.name: there are two endpoints '%s': each has a name of its own", w->name);
    c->webhooks.n++;
    return TITAN_OK;
}

static titan_status load_section(struct daemon_config *c, const struct toml_value *section, const char *path,
                                 struct titan_error *err)
{
    const struct setting_place head = {.path = path, .line = section->line, .daemon = true};
    if (!strcmp(section->key, "webhook")) {
        if (section->type == TOML_TABLE)
            return load_webhook(c, section, path, err);
        for (const struct toml_value *item = section->type == TOML_ARRAY ? section->first : NULL; item;
             item = item->next) {
            if (item->type != TOML_TABLE)
                return setting_fail(&head, NULL, err, TITAN_EINVAL, "'webhook' must be a section");
            TRY(load_webhook(c, item, path, err));
        }
        return section->type == TOML_ARRAY
                   ? TITAN_OK
                   : setting_fail(&head, NULL, err, TITAN_EINVAL, "'webhook' must be a section");
    }
    if (!find(section->key, NULL))
        return unknown(&head, NULL, section->key, err);
    if (section->type != TOML_TABLE)
        return setting_fail(&head, NULL, err, TITAN_EINVAL, "'%s' must be a section", section->key);
    for (const struct toml_value *v = section->first; v; v = v->next) {
        const struct setting_place at = {.path = path, .line = v->line, .daemon = true};
        const struct setting *s = find(section->key, v->key);
        TRY(s ? set_value(&at, s, c, v, err) : unknown(&at, section->key, v->key, err));
    }
    return TITAN_OK;
}

titan_status config_load(struct daemon_config *c, const char *path, struct titan_error *err)
{
    struct buf text = BUF_INIT;
    struct toml_value *root = NULL;
    memset(&c->webhooks, 0, sizeof(c->webhooks)); /* of another file, or of this one before */
    titan_status status = file_read(path, CONFIG_FILE_MAX, &text, err);
    if (status ==
        /* "not found" is for jobs, nodes and checkpoints; a unit that exits with this status is restarted */
        TITAN_ENOTFOUND) {
        status = TITAN_EINVAL;
        if (err)
            err->status = status;
    }
    if (status == TITAN_OK)
        status = toml_parse(text.data ? text.data : "", text.len, path, &root, err);
    for (const struct toml_value *v = root ? root->first : NULL; v && status == TITAN_OK; v = v->next)
        status = load_section(c, v, path, err);
    toml_free(root);
    buf_free(&text);
    return status;
}

/* A flag has the name of a setting, with '-' in place of '_'. */
static titan_status flags_apply(const struct args *args, struct daemon_config *c, struct titan_error *err)
{
    if (args_has(args, "listen"))
        c->n_listen = 0; /* flags replace the file's list */
    for (const struct given *g = args->given; g < args->given + args->n_given; g++) {
        char what[64], key[64];
        const struct setting_place at = {.path = what, .flag = true, .daemon = true};
        (void)snprintf(what, sizeof(what), "--%s", g->spec->name);
        (void)snprintf(key, sizeof(key), "%s", g->spec->name);
        for (char *dash = key; (dash = strchr(dash, '-'));)
            *dash = '_';
        const bool adopt = !strcmp(key, "adopt_state"), stop = !strcmp(key, "stop_workers");
        const bool keep = !strcmp(key, "keep_workers");
        c->adopt_state |= adopt;
        c->stop_workers = stop || (c->stop_workers && !keep);
        if (adopt || stop || keep || !strcmp(key, "config"))
            continue;
        const struct setting *s = find(NULL, key);
        titan_assert(s != NULL); /* every other flag belongs to a setting */
        struct toml_value v = {.type = TOML_STRING, .string = (char *)(uintptr_t)g->value};
        if (s->type == KEY_LIST) {
            TRY(add_string(&at, s, c, g->value, err));
            continue;
        }
        if (s->type == KEY_BOOL)
            v = (struct toml_value){.type = TOML_BOOL, .boolean = true};
        if (s->type == KEY_INT) {
            v.type = TOML_INT;
            if (!args_read_int(g->value, &v.integer))
                return setting_fail(&at, s, err, TITAN_EINVAL, ": '%s' is not a number", g->value);
        }
        TRY(set_value(&at, s, c, &v, err));
    }
    return TITAN_OK;
}

/* --- detection ---------------------------------------------------------------------------------------------------- */

static const struct detection lan = {.heartbeat_ms = 50,
                                     .idle_heartbeat_ms = 3000,
                                     .suspect_ms = 250,
                                     .confirm_ms = 150,
                                     .node_timeout_ms = 2000,
                                     .reachable_ms = 5000,
                                     .away_ms = 1000,
                                     .leader_lease_ms = 600000,
                                     .hang_floor_ms = 300},
                              wan = {.heartbeat_ms = 500,
                                     .idle_heartbeat_ms = 3000,
                                     .suspect_ms = 2500,
                                     .confirm_ms = 1500,
                                     .node_timeout_ms = 10000,
                                     .reachable_ms = 30000,
                                     .away_ms = 10000,
                                     .leader_lease_ms = 600000,
                                     .hang_floor_ms = 1000};

/* Takes unset values from the profile, then checks the values against each other. */
static titan_status resolve_detection(struct daemon_config *c, struct titan_error *err)
{
    struct detection *d = &c->detection;
    uint32_t own[sizeof(*d) / sizeof(uint32_t)], usual[ARRAY_SIZE(own)];
    memcpy(own, d, sizeof(own));
    memcpy(usual, strcmp(c->profile, "wan") == 0 ? &wan : &lan, sizeof(usual));
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        own[i] = own[i] ? own[i] : usual[i];
    memcpy(d, own, sizeof(own));
    if (d->suspect_ms < 2 * d->heartbeat_ms) {
        (void)titan_fail(err, TITAN_EINVAL, "detection.suspect_ms: %u, but agents send a heartbeat every %u ms",
                         d->suspect_ms, d->heartbeat_ms);
        titan_error_hint(err, "one late heartbeat would make a node suspect: at least two heartbeats, better five");
        return TITAN_EINVAL;
    }
    if (d->leader_lease_ms && d->leader_lease_ms < 2 * d->away_ms)
        return titan_fail(err, TITAN_EINVAL, "detection.leader_lease_ms: %u is less than twice away_ms, %u",
                          d->leader_lease_ms, d->away_ms);
    return TITAN_OK;
}

/* --- several coordinators ----------------------------------------------------------------------------------------- */

static titan_status resolve_ha(struct daemon_config *c, struct titan_error *err)
{
    const struct ha_members *m = &c->ha.members;
    if (!c->ha.name[0] && m->n == 0 && !c->ha.listen[0] && !c->ha.election_ms)
        return TITAN_OK;
    const int self = ha_members_find(m, c->ha.name);
    if (c->role != ROLE_COORDINATOR)
        return titan_fail(err, TITAN_EINVAL, "[ha] is for coordinators");
    if (!c->ha.name[0] || m->n == 0)
        return titan_fail(err, TITAN_EINVAL, "[ha] needs name and members");
    if (m->n < 3 || m->n % 2 == 0) {
        (void)titan_fail(err, TITAN_EINVAL, "ha.members: %d members, but a majority needs an odd number, three or more",
                         m->n);
        titan_error_hint(err, "three go on without one of them, five without two");
        return TITAN_EINVAL;
    }
    if (self < 0)
        return titan_fail(err, TITAN_EINVAL, "ha.name: '%s' is not in ha.members", c->ha.name);
    if (!c->jobs_dir[0]) {
        (void)titan_fail(err, TITAN_EINVAL, "[ha] needs storage.jobs_dir");
        titan_error_hint(err, "a folder that all coordinators and nodes share");
        return TITAN_EINVAL;
    }
    if (!c->ha.listen[0])
        memcpy(c->ha.listen, m->at[self].address, sizeof(m->at[self].address));
    c->ha.election_ms = c->ha.election_ms ? c->ha.election_ms : DEFAULT_ELECTION_MS;
    if (c->detection.away_ms < 10 * c->ha.election_ms) {
        (void)titan_fail(err, TITAN_EINVAL, "detection.away_ms: %u is less than ten times ha.election_ms, %u",
                         c->detection.away_ms, c->ha.election_ms);
        titan_error_hint(err, "nodes would decide by themselves before the next coordinator leads");
        return TITAN_EINVAL;
    }
    return TITAN_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static titan_status default_state_dir(char out[PATH_MAX], struct titan_error *err)
{
    const char *given = getenv("STATE_DIRECTORY"); /* from systemd: StateDirectory= */
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (given && *given)
        n = snprintf(out, PATH_MAX, "%.*s", (int)strcspn(given, ":"), given);
    else if (geteuid() == 0)
        n = snprintf(out, PATH_MAX, "%s", ROOT_STATE_DIR);
    else if (xdg && *xdg == '/')
        n = snprintf(out, PATH_MAX, "%s/titan", xdg);
    else if (home && *home == '/')
        n = snprintf(out, PATH_MAX, "%s/.local/state/titan", home);
    else
        return titan_fail(err, TITAN_EINVAL, "no state directory: neither --state-dir nor $HOME is set");
    return n < PATH_MAX ? TITAN_OK : titan_fail(err, TITAN_EINVAL, "state directory is too long");
}

bool config_address_off_host(const char *address)
{
    static const char *const local[] = {"unix:", "127.", "localhost:", "[::1]:"};
    for (size_t i = 0; i < ARRAY_SIZE(local); i++)
        if (!strncmp(address, local[i], strlen(local[i])))
            return false;
    return true;
}

titan_status config_transport(const struct daemon_config *c, const char *address, const struct rpc_tls **ret,
                              struct titan_error *err)
{
    *ret = NULL;
    if (!strncmp(address, "unix:", 5) || c->insecure)
        return TITAN_OK;
    if (access(c->tls.certificate, F_OK) == 0) {
        *ret = &c->tls;
        return TITAN_OK;
    }
    bool serves = c->role != ROLE_AGENT;
    (void)titan_fail(err, TITAN_EINVAL, "refusing %s %s without TLS: there is no certificate '%s'",
                     serves ? "to listen on" : "the coordinator at", address, c->tls.certificate);
    titan_error_hint(err, "%s, or give --insecure on a network you trust",
                     serves ? "make one with: titanctl pki init"
                            : "let the node join: titanctl node join NAME, titand agent --join");
    return TITAN_EINVAL;
}

titan_status config_http_transport(const struct daemon_config *c, const struct rpc_tls **ret, struct titan_error *err)
{
    const char *address = c->http.listen;
    *ret = c->http.insecure ? NULL : &c->tls;
    titan_assert(address[0]);
    if (c->http.insecure && config_address_off_host(address)) {
        (void)titan_fail(err, TITAN_EINVAL, "refusing to serve HTTP on %s without TLS: other hosts may reach it",
                         address);
        titan_error_hint(err, "take 127.0.0.1, or take insecure out of [http]: the daemon's certificate is used then");
        return TITAN_EINVAL;
    }
    if (c->http.insecure || access(c->tls.certificate, F_OK) == 0)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EINVAL, "refusing to serve HTTP on %s without TLS: there is no certificate '%s'",
                     address, c->tls.certificate);
    titan_error_hint(err, "make one with: titanctl pki init, or give a loopback address and insecure = true in [http]");
    return TITAN_EINVAL;
}

/* If the path is empty, sets it to tls/NAME in the state directory. */
static titan_status default_tls_file(const struct daemon_config *c, const char *name, char out[PATH_MAX],
                                     struct titan_error *err)
{
    titan_assert(c->state_dir[0] == '/');
    if (!out[0] && snprintf(out, PATH_MAX, "%s/tls/%s", c->state_dir, name) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory is too long");
    return TITAN_OK;
}

static titan_status resolve_transport(struct daemon_config *c, struct titan_error *err)
{
    const struct rpc_tls *tls;
    unsigned long port;
    c->tls_own = !c->tls.ca[0] && !c->tls.certificate[0] && !c->tls.key[0];
    if (c->join[0] && (c->role != ROLE_AGENT || !c->tls_own))
        return titan_fail(err, TITAN_EINVAL,
                          c->tls_own ? "--join is for agents"
                                     : "--join: [tls] names other files than the state directory's");
    TRY(default_tls_file(c, "ca.pem", c->tls.ca, err));
    TRY(default_tls_file(c, "cert.pem", c->tls.certificate, err));
    TRY(default_tls_file(c, "key.pem", c->tls.key, err));
    if (c->role == ROLE_AGENT && c->n_listen)
        return titan_fail(err, TITAN_EINVAL, "an agent does not listen (%s)", c->listen[0]);
    for (int i = 0; i < c->n_listen; i++)
        TRY(config_transport(c, c->listen[i], &tls, err));
    if (c->http.listen[0] && (c->http.insecure || !c->join[0])) /* a join brings the certificate */
        TRY(config_http_transport(c, &tls, err));

    /* With TLS agents have their own port. If the file does not set their address, it is the first TCP address of
     * `listen`, with the next port. */
    if (c->role != ROLE_COORDINATOR || !strcmp(c->agents_listen, "off")) {
        c->agents_listen[0] = '\0';
        return TITAN_OK;
    }
    if (c->agents_listen[0] && !tcp_address(c->agents_listen, &port)) {
        (void)titan_fail(err, TITAN_EINVAL, "coordinator.agents_listen: '%s' is not an address", c->agents_listen);
        titan_error_hint(err, "write HOST:PORT, or off");
        return TITAN_EINVAL;
    }
    for (int i = 0; i < c->n_listen && !c->agents_listen[0] && !c->insecure; i++)
        if (tcp_address(c->listen[i], &port) && port > 0 && port < 65535)
            (void)snprintf(c->agents_listen, sizeof(c->agents_listen), "%.*s:%lu",
                           (int)(strrchr(c->listen[i], ':') - c->listen[i]), c->listen[i], port + 1);
    return c->agents_listen[0] ? config_transport(c, c->agents_listen, &tls, err) : TITAN_OK;
}

static const char *runtime_directory(void)
{
    const char *folder = getenv("RUNTIME_DIRECTORY");
    return folder && *folder ? folder : NULL;
}

bool config_is_service(void)
{
    return runtime_directory() != NULL;
}

titan_status config_address_free(const char *address, struct titan_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    char host[CONFIG_TEXT_MAX], owner[LISTEN_OWNER];
    const char *port = strrchr(address, ':');
    struct addrinfo *found = NULL;
    titan_assert(port);
    const bool brackets = address[0] == '[';
    (void)snprintf(host, sizeof(host), "%.*s", (int)(port - address) - 2 * brackets, address + brackets);
    if (getaddrinfo(host, port + 1, &hints, &found) != 0)
        return titan_fail(err, TITAN_EINVAL, "address %s: no such host", address);
    _cleanup_fd_ int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    const bool bound = fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
                       bind(fd, found->ai_addr, found->ai_addrlen) == 0;
    const int why = errno;
    freeaddrinfo(found);
    if (bound || (why != EADDRINUSE && why != EADDRNOTAVAIL))
        return TITAN_OK; /* the server reports other errors later */
    if (why == EADDRNOTAVAIL)
        return titan_fail(err, TITAN_EINVAL, "address %s: this machine does not have it", address);
    listen_owner((unsigned)strtoul(port + 1, NULL, 10), owner);
    return titan_fail(err, TITAN_EEXIST, "address %s is in use by %s", address, owner);
}

/* Fails if a port is taken, early enough that the refused start leaves no state directory behind. */
static titan_status check_listen_free(const struct daemon_config *c, struct titan_error *err)
{
    titan_assert(c->role != ROLE_AGENT);
    for (int i = 0; i <= c->n_listen; i++) {
        const bool agents = i == c->n_listen;
        const char *address = agents ? c->agents_listen : c->listen[i];
        if (!strncmp(address, "unix:", 5) || !address[0] || config_address_free(address, err) != TITAN_EEXIST)
            continue; /* the server reports other errors later */
        titan_error_hint(err, agents ? CONFIG_AGENTS_HINT : "choose another with --listen HOST:PORT, or stop it");
        return TITAN_EEXIST;
    }
    return TITAN_OK;
}

static titan_status resolve(struct daemon_config *c, bool stop_given, struct titan_error *err)
{
    char path[PATH_MAX];
    if (!c->state_dir[0])
        TRY(default_state_dir(c->state_dir, err));
    /* An earlier start that joined has stored the coordinator's address. */
    const bool joined =
        snprintf(path, sizeof(path), "%s/tls/" JOIN_PLACE_FILE, c->state_dir) < PATH_MAX && access(path, F_OK) == 0;
    if (c->role == ROLE_AGENT && !c->coordinator[0] && !c->join[0] && !joined) {
        (void)titan_fail(err, TITAN_EINVAL, "an agent needs the address of its coordinator");
        titan_error_hint(err, "give --join FILE, or --coordinator HOST:PORT, or coordinator in [agent] of the config");
        return TITAN_EINVAL;
    }
    if (c->role == ROLE_DEV && !stop_given)
        c->stop_workers = true;
    if (c->jobs_dir[0] && c->jobs_dir[0] != '/')
        return titan_fail(err, TITAN_EINVAL, "storage.jobs_dir: '%s' is not an absolute path", c->jobs_dir);
    if (c->hooks_dir[0] && c->hooks_dir[0] != '/')
        return titan_fail(err, TITAN_EINVAL, "agent.hooks_dir: '%s' is not an absolute path", c->hooks_dir);
    if (c->head_file[0] && c->head_file[0] != '/')
        return titan_fail(err, TITAN_EINVAL, "audit.head_file: '%s' is not an absolute path", c->head_file);
    TRY(resolve_detection(c, err));
    TRY(resolve_ha(c, err));
    const bool made = access(c->state_dir, F_OK) < 0;
    const bool fresh = made && c->role != ROLE_AGENT && !getenv("LISTEN_FDS");
    TRY(dir_make(c->state_dir, err));
    if (!realpath(c->state_dir, path))
        return titan_fail_errno(err, "cannot use state directory '%s'", c->state_dir);
    titan_assert(path[0] == '/');
    memcpy(c->state_dir, path, sizeof(path));

    /* The agent's socket for workers lies in run/. The coordinator's socket lies in the state directory or in systemd's
     * runtime directory. */
    const char *name = c->role != ROLE_COORDINATOR ? "/run/agent.sock" : runtime_directory() ? "" : "/agents.sock";
    const size_t most = SOCKET_PATH_MAX - strlen(name), len = strlen(c->state_dir);
    if (len > most) {
        (void)titan_fail(err, TITAN_EINVAL,
                         "state directory '%.128s' is too long for a socket in it: %zu bytes, at most %zu",
                         c->state_dir, len, most);
        titan_error_hint(err, "a socket's path has at most %d bytes, and this one ends in %s", SOCKET_PATH_MAX, name);
        if (made)
            (void)rmdir(c->state_dir);
        return TITAN_EINVAL;
    }
    TRY(resolve_transport(c, err));
    if (fresh && check_listen_free(c, err) != TITAN_OK) {
        (void)rmdir(c->state_dir);
        return TITAN_EEXIST;
    }

    /* Puts the Unix socket before all other addresses. */
    if (c->role == ROLE_AGENT)
        return TITAN_OK;
    const char *runtime = runtime_directory();
    const char *folder = runtime ? runtime : c->state_dir;
    int length = (int)strcspn(folder, runtime ? ":" : "");
    char first[CONFIG_TEXT_MAX];
    int n = snprintf(first, sizeof(first), "unix:%.*s/titan.sock", length, folder);
    int agents = snprintf(c->agents, sizeof(c->agents), "unix:%.*s/agents.sock", length, folder);
    if (n >= (int)sizeof(first) || agents - 5 > SOCKET_PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "RUNTIME_DIRECTORY '%.128s' is too long for a socket in it", folder);
    if (c->n_listen == CONFIG_LISTEN_MAX)
        return titan_fail(err, TITAN_EINVAL, "at most %d addresses to listen on", CONFIG_LISTEN_MAX - 1);
    titan_assert(c->n_listen < CONFIG_LISTEN_MAX);
    memmove(c->listen[1], c->listen[0], (size_t)c->n_listen++ * sizeof(c->listen[0]));
    (void)snprintf(c->listen[0], sizeof(c->listen[0]), "%s", first);
    return TITAN_OK;
}

titan_status config_auth_default(struct auth_options *ret, struct titan_error *err)
{
    *ret = (struct auth_options){.private_jobs = false};
    TRY(auth_list_add(&ret->admins, "uid:0", err));
    return auth_list_add(&ret->admins, "group:titan-admin", err);
}

titan_status config_parse(int argc, char **argv, struct daemon_config *ret, struct titan_error *err)
{
    struct daemon_config *c = ret;
    *c = (struct daemon_config){.log_level = LOG_LEVEL_INFO,
                                .grace_ms = DEFAULT_GRACE_MS,
                                .hook_timeout_s = DEFAULT_HOOK_TIMEOUT_S,
                                .node_check_s = DEFAULT_NODE_CHECK_S,
                                .quarantine_crashes = DEFAULT_QUARANTINE_CRASHES,
                                .limits.user_pending_jobs = DEFAULT_USER_PENDING_JOBS};
    const char *allow_root = getenv("TITAN_ALLOW_ROOT");
    c->allow_root = allow_root && !strcmp(allow_root, "1");
    TRY(config_auth_default(&c->auth, err));
    struct args args;
    c->help = argc > 1 && !strcmp(argv[1], "help");
    if (c->help)
        return TITAN_OK;
    TRY(args_parse(&titand, argc, argv, &args, err));
    c->help = args_has(&args, "help");
    c->version = args_has(&args, "version");
    if (c->help || c->version)
        return TITAN_OK;
    if (!args.command)
        return titan_fail(err, TITAN_EINVAL, "no role given: dev, agent or coordinator (titand --help)");
    while (roles[c->role] != args.command)
        c->role++;
    const char *file = args_text(&args, "config", "");
    if ((size_t)snprintf(c->file, sizeof(c->file), "%s", file) >= sizeof(c->file))
        return titan_fail(err, TITAN_EINVAL, "--config: longer than %zu bytes", sizeof(c->file) - 1);
    if (c->file[0])
        TRY(config_load(c, c->file, err));
    TRY(flags_apply(&args, c, err));
    return resolve(c, args_has(&args, "stop-workers") || args_has(&args, "keep-workers"), err);
}
