/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - defaults, config file, flags; see config.h. */
#include "daemon/config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
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
#include "base/toml.h"
#include "base/units.h"
#include "daemon/auth/join.h"

#define DEFAULT_GRACE_MS 10000
#define DEFAULT_QUARANTINE_CRASHES 3
#define DEFAULT_USER_PENDING_JOBS 10000 /* a tenth of what may wait in all */
#define SOCKET_PATH_MAX 107             /* without its NUL */
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

/* --- one value ---------------------------------------------------------------------------------------------------- */

enum value_type {
    VALUE_TEXT,
    VALUE_TARGETS,
    VALUE_U32,
    VALUE_U64,
    VALUE_BYTES,      /* "16GiB", or a number */
    VALUE_PROCESSORS, /* 3.5, kept in thousandths */
    VALUE_BOOL,
    VALUE_LEVEL,
    VALUE_LISTEN,
    VALUE_IDENTITIES,
    VALUE_ROOTS
};

/* Every setting that file or flags can give, once. */
struct setting {
    const char *section, *key;
    enum value_type type;
    size_t offset, size; /* size of the field of a text */
    uint64_t min, max;
};
#define TEXT(section, key, field)                                                                                      \
    {                                                                                                                  \
        section, key, VALUE_TEXT, offsetof(struct daemon_config, field), sizeof(((struct daemon_config *)0)->field),   \
            0, 0                                                                                                       \
    }
#define NUMBER(section, key, type, field, min, max)                                                                    \
    {                                                                                                                  \
        section, key, type, offsetof(struct daemon_config, field), 0, min, max                                         \
    }

static const struct setting settings[] = {
    TEXT("titand", "state_dir", state_dir),
    NUMBER("titand", "log_level", VALUE_LEVEL, log_level, 0, 0),
    NUMBER("coordinator", "listen", VALUE_LISTEN, listen, 0, 0),
    TEXT("coordinator", "agents_listen", agents_listen),
    NUMBER("coordinator", "insecure", VALUE_BOOL, insecure, 0, 0),
    NUMBER("coordinator", "jobs_as_users", VALUE_BOOL, paths.as_users, 0, 0),
    NUMBER("coordinator", "quarantine_crashes", VALUE_U32, quarantine_crashes, 0, 16),
    TEXT("storage", "jobs_dir", jobs_dir),
    {"agent", "coordinator", VALUE_TARGETS, offsetof(struct daemon_config, coordinator), RPC_TARGETS_TEXT, 0, 0},
    TEXT("agent", "node", node),
    TEXT("agent", "address", address),
    NUMBER("agent", "insecure", VALUE_BOOL, insecure, 0, 0),
    NUMBER("agent", "slots", VALUE_U32, slots, 1, 1024),
    TEXT("agent", "device", device),
    TEXT("agent", "worker", worker),
    TEXT("agent", "spawnd", spawnd),
    TEXT("agent", "default_user", default_user),
    NUMBER("agent", "lease_ms", VALUE_U32, lease_ms, 100, 86400000),
    NUMBER("agent", "log_bytes_max", VALUE_U64, log_bytes_max, 65536, UINT64_C(1) << 40),
    NUMBER("agent", "grace_ms", VALUE_U32, grace_ms, 0, 3600000),
    NUMBER("agent", "stop_workers", VALUE_BOOL, stop_workers, 0, 0),
    NUMBER("agent", "drain_on_term", VALUE_BOOL, drain_on_term, 0, 0),
    NUMBER("agent", "ephemeral", VALUE_BOOL, ephemeral, 0, 0),
    TEXT("agent", "join", join),
    NUMBER("agent", "allow_root", VALUE_BOOL, allow_root, 0, 0),
    TEXT("agent", "peer_listen", peer_listen),
    TEXT("agent", "worker_ports", worker_ports),
    NUMBER("agent", "worker_memory", VALUE_BYTES, worker_memory, 1 << 20, UINT64_C(1) << 60),
    NUMBER("agent", "worker_cpus", VALUE_PROCESSORS, worker_cpus, 10, 16384000),
    TEXT("tls", "ca", tls.ca),
    TEXT("tls", "certificate", tls.certificate),
    TEXT("tls", "key", tls.key),
    NUMBER("tls", "node_life_s", VALUE_U32, node_life_s, 3, 31536000),
    NUMBER("authorization", "admins", VALUE_IDENTITIES, auth.admins, 0, 0),
    NUMBER("authorization", "operators", VALUE_IDENTITIES, auth.operators, 0, 0),
    NUMBER("authorization", "private_jobs", VALUE_BOOL, auth.private_jobs, 0, 0),
    NUMBER("storage", "data_roots", VALUE_ROOTS, paths.data, 0, 0),
    NUMBER("storage", "checkpoint_roots", VALUE_ROOTS, paths.checkpoints, 0, 0),
    TEXT("audit", "head_file", head_file),
    NUMBER("limits", "connections", VALUE_U32, limits.connections, 16, 1000000),
    NUMBER("limits", "user_connections", VALUE_U32, limits.user_connections, 1, 1000000),
    NUMBER("limits", "peer_connections", VALUE_U32, limits.peer_connections, 1, 1000000),
    NUMBER("limits", "user_calls", VALUE_U32, limits.user_calls, 1, 1000000),
    NUMBER("limits", "memory_mb", VALUE_U32, limits.memory_mb, 16, 65536),
    NUMBER("limits", "user_pending_jobs", VALUE_U32, limits.user_pending_jobs, 0, 1000000),
    NUMBER("limits", "user_slots", VALUE_U32, limits.user_slots, 0, 1000000),
    NUMBER("limits", "user_submits_per_minute", VALUE_U32, limits.user_submits_per_minute, 0, 1000000),
    NUMBER("limits", "user_disk_mb", VALUE_U64, limits.user_disk_mb, 0, UINT64_C(1) << 40),
    TEXT("detection", "profile", profile),
    NUMBER("detection", "heartbeat_ms", VALUE_U32, detection.heartbeat_ms, 5, 60000),
    NUMBER("detection", "suspect_ms", VALUE_U32, detection.suspect_ms, 10, 600000),
    NUMBER("detection", "confirm_ms", VALUE_U32, detection.confirm_ms, 10, 600000),
    NUMBER("detection", "node_timeout_ms", VALUE_U32, detection.node_timeout_ms, 20, 3600000),
    NUMBER("detection", "reachable_ms", VALUE_U32, detection.reachable_ms, 20, 3600000),
    NUMBER("detection", "away_ms", VALUE_U32, detection.away_ms, 50, 3600000),
    NUMBER("detection", "leader_lease_ms", VALUE_U32, detection.leader_lease_ms, 0, UINT32_MAX),
    NUMBER("detection", "hang_floor_ms", VALUE_U32, detection.hang_floor_ms, 50, 3600000),
    /* Older names. */
    NUMBER("detection", "beat_ms", VALUE_U32, detection.heartbeat_ms, 5, 60000),
    NUMBER("detection", "delegate_lease_ms", VALUE_U32, detection.leader_lease_ms, 0, UINT32_MAX),
};

/* what: "--slots" or "FILE:12: agent.slots", for messages. */
static titan_status set_text(struct daemon_config *c, const struct setting *s, const char *text, const char *what,
                             struct titan_error *err)
{
    struct rpc_targets targets;
    titan_assert(s->type == VALUE_TEXT || s->type == VALUE_TARGETS || s->type == VALUE_LEVEL);
    if (s->type == VALUE_LEVEL) {
        if (log_level_parse(text, &c->log_level) == 0)
            return TITAN_OK;
        return titan_fail(err, TITAN_EINVAL, "%s: '%s' is not one of error, warn, info, debug", what, text);
    }
    char *field = (char *)c + s->offset;
    if (!*text)
        return titan_fail(err, TITAN_EINVAL, "%s: must not be empty", what);
    if ((size_t)snprintf(field, s->size, "%s", text) >= s->size)
        return titan_fail(err, TITAN_EINVAL, "%s: longer than %zu bytes", what, s->size - 1);
    if (s->type == VALUE_TARGETS && rpc_targets_parse(text, &targets, err) != TITAN_OK)
        return titan_error_wrap(err, "%s", what);
    return TITAN_OK;
}

static titan_status set_number(struct daemon_config *c, const struct setting *s, int64_t value, const char *what,
                               struct titan_error *err)
{
    titan_assert((s->type == VALUE_U32 || s->type == VALUE_U64) && s->min <= s->max);
    if (value < 0 || (uint64_t)value < s->min || (uint64_t)value > s->max)
        return titan_fail(err, TITAN_EINVAL, "%s: %" PRId64 " is not between %" PRIu64 " and %" PRIu64, what, value,
                          s->min, s->max);
    char *field = (char *)c + s->offset;
    uint32_t narrow = (uint32_t)value;
    uint64_t wide = (uint64_t)value;
    memcpy(field, s->type == VALUE_U32 ? (void *)&narrow : (void *)&wide,
           s->type == VALUE_U32 ? sizeof(narrow) : sizeof(wide));
    return TITAN_OK;
}

/* HOST:PORT? */
static bool tcp_address(const char *address, unsigned long *ret_port)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    *ret_port = colon ? strtoul(colon + 1, &end, 10) : 0;
    return strncmp(address, "unix:", 5) != 0 && colon && colon > address && colon[1] && !*end && *ret_port <= 65535;
}

static titan_status add_listen(struct daemon_config *c, const char *address, const char *what, struct titan_error *err)
{
    titan_assert(c->n_listen >= 0 && c->n_listen <= CONFIG_LISTEN_MAX);
    bool unix_path = !strncmp(address, "unix:", 5) && address[5];
    unsigned long port;
    if (!unix_path && !tcp_address(address, &port)) {
        (void)titan_fail(err, TITAN_EINVAL, "%s: '%s' is not an address", what, address);
        titan_error_hint(err, "write HOST:PORT or unix:PATH");
        return TITAN_EINVAL;
    }
    if (c->n_listen == CONFIG_LISTEN_MAX || strlen(address) >= CONFIG_TEXT_MAX)
        return titan_fail(err, TITAN_EINVAL, "%s: at most %d addresses of at most %d bytes", what, CONFIG_LISTEN_MAX,
                          CONFIG_TEXT_MAX - 1);
    (void)snprintf(c->listen[c->n_listen++], CONFIG_TEXT_MAX, "%s", address);
    return TITAN_OK;
}

/* --- file --------------------------------------------------------------------------------------------------------- */

static titan_status wrong_type(const struct toml_value *v, const char *what, const char *wanted,
                               struct titan_error *err)
{
    return titan_fail(err, TITAN_EINVAL, "%s: expected %s, found %s", what, wanted, toml_type_name(v->type));
}

static titan_status add_string(struct daemon_config *c, const struct setting *s, const char *text, const char *what,
                               struct titan_error *err)
{
    void *const to = (char *)c + s->offset;
    if (s->type == VALUE_LISTEN)
        return add_listen(c, text, what, err);
    if ((s->type == VALUE_ROOTS ? paths_add_root(to, text, err) : auth_list_add(to, text, err)) != TITAN_OK)
        return titan_error_wrap(err, "%s", what);
    return TITAN_OK;
}

/* In place of those that were there. */
static titan_status load_strings(struct daemon_config *c, const struct setting *s, const struct toml_value *v,
                                 const char *what, struct titan_error *err)
{
    if (v->type != TOML_ARRAY)
        return wrong_type(v, what, "an array of strings", err);
    if (s->type == VALUE_LISTEN)
        c->n_listen = 0;
    else if (s->type == VALUE_ROOTS)
        ((struct paths_roots *)((char *)c + s->offset))->n = 0;
    else
        ((struct auth_list *)((char *)c + s->offset))->n = 0;
    for (const struct toml_value *item = v->first; item; item = item->next) {
        if (item->type != TOML_STRING)
            return wrong_type(item, what, "an array of strings", err);
        TRY(add_string(c, s, item->string, what, err));
    }
    return TITAN_OK;
}

static titan_status load_bytes(struct daemon_config *c, const struct setting *s, const struct toml_value *v,
                               const char *what, struct titan_error *err)
{
    char low[UNITS_TEXT], high[UNITS_TEXT];
    uint64_t bytes = v->type == TOML_INT && v->integer > 0 ? (uint64_t)v->integer : 0;
    titan_assert(s->type == VALUE_BYTES && s->min > 0);
    if (v->type != TOML_INT && v->type != TOML_STRING)
        return wrong_type(v, what, "bytes such as \"16GiB\"", err);
    if (v->type == TOML_STRING && !units_parse_bytes(v->string, &bytes))
        return titan_fail(err, TITAN_EINVAL, "%s: '%s' is not bytes with a unit, such as \"16GiB\"", what, v->string);
    if (bytes < s->min || bytes > s->max)
        return titan_fail(err, TITAN_EINVAL, "%s: not between %s and %s", what, format_exact_bytes(s->min, low),
                          format_exact_bytes(s->max, high));
    memcpy((char *)c + s->offset, &bytes, sizeof(bytes));
    return TITAN_OK;
}

static titan_status load_processors(struct daemon_config *c, const struct setting *s, const struct toml_value *v,
                                    const char *what, struct titan_error *err)
{
    titan_assert(s->type == VALUE_PROCESSORS);
    if (v->type != TOML_INT && v->type != TOML_FLOAT)
        return wrong_type(v, what, "a number", err);
    const double number = v->type == TOML_INT ? (double)v->integer : v->real;
    if (!(number * 1000 >= (double)s->min && number * 1000 <= (double)s->max))
        return titan_fail(err, TITAN_EINVAL, "%s: %g is not between %g and %g", what, number, (double)s->min / 1000,
                          (double)s->max / 1000);
    const uint32_t thousandths = (uint32_t)lround(number * 1000);
    memcpy((char *)c + s->offset, &thousandths, sizeof(thousandths));
    return TITAN_OK;
}

static titan_status load_value(struct daemon_config *c, const struct setting *s, const struct toml_value *v,
                               const char *what, struct titan_error *err)
{
    switch (s->type) {
    case VALUE_LISTEN:
    case VALUE_IDENTITIES:
    case VALUE_ROOTS:
        return load_strings(c, s, v, what, err);
    case VALUE_BOOL:
        if (v->type != TOML_BOOL)
            return wrong_type(v, what, "true or false", err);
        *(bool *)((char *)c + s->offset) = v->boolean;
        return TITAN_OK;
    case VALUE_U32:
    case VALUE_U64:
        if (v->type != TOML_INT)
            return wrong_type(v, what, "an integer", err);
        return set_number(c, s, v->integer, what, err);
    case VALUE_BYTES:
        return load_bytes(c, s, v, what, err);
    case VALUE_PROCESSORS:
        return load_processors(c, s, v, what, err);
    default:
        if (v->type != TOML_STRING)
            return wrong_type(v, what, "a string", err);
        return set_text(c, s, v->string, what, err);
    }
}

/* Unknown names are refused; a name near to it is offered. */
static titan_status unknown(const char *path, int line, const char *section, const char *name, struct titan_error *err)
{
    titan_assert(line > 0 && name);
    const char *known[ARRAY_SIZE(settings)];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        if (!section || !strcmp(settings[i].section, section))
            known[n++] = section ? settings[i].key : settings[i].section;
    (void)titan_fail(err, TITAN_EINVAL, "%s:%d: unknown %s '%s%s%s'", path, line, section ? "key" : "section",
                     section ? section : "", section ? "." : "", name);
    const char *near = text_nearest(name, known, n);
    if (section && !strcmp(section, "agent") && !strcmp(name, "cluster_key"))
        titan_error_hint(err, "there is none any more, take the line out: the coordinator hands out keys by itself");
    else if (near)
        titan_error_hint(err, "did you mean '%s'?", near);
    return TITAN_EINVAL;
}

static titan_status load_section(struct daemon_config *c, const struct toml_value *section, const char *path,
                                 struct titan_error *err)
{
    bool known = false;
    for (size_t i = 0; i < ARRAY_SIZE(settings) && !known; i++)
        known = !strcmp(settings[i].section, section->key);
    if (!known)
        return unknown(path, section->line, NULL, section->key, err);
    if (section->type != TOML_TABLE)
        return titan_fail(err, TITAN_EINVAL, "%s:%d: '%s' must be a section", path, section->line, section->key);
    for (const struct toml_value *v = section->first; v; v = v->next) {
        const struct setting *found = NULL;
        char what[PATH_MAX + 128];
        for (size_t i = 0; i < ARRAY_SIZE(settings) && !found; i++)
            if (!strcmp(settings[i].section, section->key) && !strcmp(settings[i].key, v->key))
                found = &settings[i];
        if (!found)
            return unknown(path, v->line, section->key, v->key, err);
        (void)snprintf(what, sizeof(what), "%s:%d: %s.%s", path, v->line, section->key, v->key);
        TRY(load_value(c, found, v, what, err));
    }
    return TITAN_OK;
}

titan_status config_load(struct daemon_config *c, const char *path, struct titan_error *err)
{
    struct buf text = BUF_INIT;
    struct toml_value *root = NULL;
    titan_status status = file_read(path, CONFIG_FILE_MAX, &text, err);
    if (status ==
        TITAN_ENOTFOUND) { /* "not found" is for jobs, nodes and checkpoints; a unit that gets it starts again */
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

/* --- flags -------------------------------------------------------------------------------------------------------- */

/* A flag with the name of a setting, '-' for '_'. */
static titan_status flag_set(struct daemon_config *c, const struct given *given, struct titan_error *err)
{
    const struct setting *s = NULL;
    char key[64], what[64];
    (void)snprintf(key, sizeof(key), "%s", given->spec->name);
    for (char *dash = key; (dash = strchr(dash, '-'));)
        *dash = '_';
    (void)snprintf(what, sizeof(what), "--%s", given->spec->name);
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        if (!strcmp(settings[i].key, key))
            s = &settings[i];
    titan_assert(s != NULL);
    switch (s->type) {
    case VALUE_BOOL:
        *(bool *)((char *)c + s->offset) = true;
        return TITAN_OK;
    case VALUE_LISTEN:
        return add_listen(c, given->value, what, err);
    case VALUE_U32:
    case VALUE_U64: {
        char *end;
        errno = 0;
        long long value = strtoll(given->value, &end, 10);
        if (errno || end == given->value || *end)
            return titan_fail(err, TITAN_EINVAL, "%s: '%s' is not a number", what, given->value);
        return set_number(c, s, value, what, err);
    }
    default:
        return set_text(c, s, given->value, what, err);
    }
}

static titan_status flags_apply(const struct args *args, struct daemon_config *c, struct titan_error *err)
{
    if (args_has(args, "listen"))
        c->n_listen = 0; /* flags replace the file's list */
    for (int i = 0; i < args->n_given; i++) {
        const char *name = args->given[i].spec->name;
        if (!strcmp(name, "adopt-state"))
            c->adopt_state = true;
        else if (!strcmp(name, "stop-workers") || !strcmp(name, "keep-workers"))
            c->stop_workers = name[0] == 's';
        else if (strcmp(name, "config") != 0)
            TRY(flag_set(c, &args->given[i], err));
    }
    return TITAN_OK;
}

/* --- detection ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    struct detection d;
} profiles[] = {
    {"lan",
     {.heartbeat_ms = 50,
      .suspect_ms = 250,
      .confirm_ms = 150,
      .node_timeout_ms = 2000,
      .reachable_ms = 5000,
      .away_ms = 1000,
      .leader_lease_ms = 600000,
      .hang_floor_ms = 300}},
    {"wan",
     {.heartbeat_ms = 500,
      .suspect_ms = 2500,
      .confirm_ms = 1500,
      .node_timeout_ms = 10000,
      .reachable_ms = 30000,
      .away_ms = 10000,
      .leader_lease_ms = 600000,
      .hang_floor_ms = 1000}},
};

/* What is not set is the profile's; and the times are in an order that makes sense. */
static titan_status resolve_detection(struct daemon_config *c, struct titan_error *err)
{
    const struct detection *p = NULL;
    struct detection *d = &c->detection;
    for (size_t i = 0; i < ARRAY_SIZE(profiles); i++)
        if (!strcmp(c->profile[0] ? c->profile : "lan", profiles[i].name))
            p = &profiles[i].d;
    if (!p)
        return titan_fail(err, TITAN_EINVAL, "detection.profile: '%s' is not one of lan, wan", c->profile);
#define OR_PROFILE(field) d->field = d->field ? d->field : p->field
    OR_PROFILE(heartbeat_ms);
    OR_PROFILE(suspect_ms);
    OR_PROFILE(confirm_ms);
    OR_PROFILE(node_timeout_ms);
    OR_PROFILE(reachable_ms);
    OR_PROFILE(away_ms);
    OR_PROFILE(leader_lease_ms);
    OR_PROFILE(hang_floor_ms);
#undef OR_PROFILE
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

/* tls/NAME of the state directory, unless the file says where. */
static titan_status default_tls_file(const struct daemon_config *c, const char *name, char out[PATH_MAX],
                                     struct titan_error *err)
{
    titan_assert(c->state_dir[0] == '/');
    if (!out[0] && snprintf(out, PATH_MAX, "%s/tls/%s", c->state_dir, name) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory is too long");
    return TITAN_OK;
}

/* Agents have a port of their own where there is TLS: unless the file says another, the one after the first of listen.
 */
static titan_status resolve_agents_listen(struct daemon_config *c, struct titan_error *err)
{
    titan_assert(c->n_listen >= 0);
    unsigned long port;
    const char *given = c->agents_listen;
    if (c->role != ROLE_COORDINATOR || !strcmp(given, "off")) {
        c->agents_listen[0] = '\0';
        return TITAN_OK;
    }
    if (given[0] && !tcp_address(given, &port)) {
        (void)titan_fail(err, TITAN_EINVAL, "coordinator.agents_listen: '%s' is not an address", given);
        titan_error_hint(err, "write HOST:PORT, or off");
        return TITAN_EINVAL;
    }
    for (int i = 0; i < c->n_listen && !given[0] && !c->insecure; i++)
        if (tcp_address(c->listen[i], &port) && port > 0 && port < 65535)
            (void)snprintf(c->agents_listen, sizeof(c->agents_listen), "%.*s:%lu",
                           (int)(strrchr(c->listen[i], ':') - c->listen[i]), c->listen[i], port + 1);
    return TITAN_OK;
}

static titan_status resolve_transport(struct daemon_config *c, struct titan_error *err)
{
    const struct rpc_tls *tls;
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
    TRY(resolve_agents_listen(c, err));
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

/* Workers reach their agent at a socket in run/, clients their coordinator at one in the folder itself or systemd's. */
static titan_status check_sockets_fit(const struct daemon_config *c, struct titan_error *err)
{
    const char *name = c->role != ROLE_COORDINATOR ? "/run/agent.sock" : runtime_directory() ? "" : "/agents.sock";
    const size_t most = SOCKET_PATH_MAX - strlen(name), len = strlen(c->state_dir);
    if (len <= most)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EINVAL,
                     "state directory '%.128s' is too long for a socket in it: %zu bytes, at most %zu", c->state_dir,
                     len, most);
    titan_error_hint(err, "a socket's path has at most %d bytes, and this one ends in %s", SOCKET_PATH_MAX, name);
    return TITAN_EINVAL;
}

/* The Unix socket comes first, always. */
static titan_status default_listen(struct daemon_config *c, struct titan_error *err)
{
    if (c->role == ROLE_AGENT)
        return TITAN_OK;
    const char *runtime = runtime_directory();
    const char *folder = runtime ? runtime : c->state_dir;
    int len = (int)strcspn(folder, runtime ? ":" : "");
    char path[CONFIG_TEXT_MAX];
    int n = snprintf(path, sizeof(path), "unix:%.*s/titan.sock", len, folder);
    int agents = snprintf(c->agents, sizeof(c->agents), "unix:%.*s/agents.sock", len, folder);
    if (n >= (int)sizeof(path) || agents - 5 > SOCKET_PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "RUNTIME_DIRECTORY '%.128s' is too long for a socket in it", folder);
    if (c->n_listen == CONFIG_LISTEN_MAX)
        return titan_fail(err, TITAN_EINVAL, "at most %d addresses to listen on", CONFIG_LISTEN_MAX - 1);
    titan_assert(c->n_listen < CONFIG_LISTEN_MAX);
    memmove(c->listen[1], c->listen[0], (size_t)c->n_listen++ * sizeof(c->listen[0]));
    (void)snprintf(c->listen[0], sizeof(c->listen[0]), "%s", path);
    return TITAN_OK;
}

static bool address_taken(const char *address)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    char host[CONFIG_TEXT_MAX];
    const char *port = strrchr(address, ':');
    struct addrinfo *found = NULL;
    if (!strncmp(address, "unix:", 5) || !port)
        return false;
    bool brackets = address[0] == '[';
    (void)snprintf(host, sizeof(host), "%.*s", (int)(port - address) - 2 * brackets, address + brackets);
    if (getaddrinfo(host, port + 1, &hints, &found) != 0)
        return false; /* the server will say it */
    _cleanup_fd_ int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    bool taken = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                 bind(fd, found->ai_addr, found->ai_addrlen) < 0 && errno == EADDRINUSE;
    freeaddrinfo(found);
    return taken;
}

/* A start that is refused for a taken port is to leave no state directory behind. */
static titan_status check_listen_free(const struct daemon_config *c, struct titan_error *err)
{
    titan_assert(c->role != ROLE_AGENT);
    const char *taken = NULL;
    for (int i = 0; i < c->n_listen && !taken; i++)
        taken = address_taken(c->listen[i]) ? c->listen[i] : NULL;
    const bool agents = !taken && address_taken(c->agents_listen);
    if (!taken && !agents)
        return TITAN_OK;
    taken = agents ? c->agents_listen : taken;
    char owner[LISTEN_OWNER];
    listen_owner((unsigned)strtoul(strrchr(taken, ':') + 1, NULL, 10), owner);
    (void)titan_fail(err, TITAN_EEXIST, "address %s is in use by %s", taken, owner);
    titan_error_hint(err, agents ? CONFIG_AGENTS_HINT : "choose another with --listen HOST:PORT, or stop it");
    return TITAN_EEXIST;
}

/* An earlier start has kept where the coordinator is. */
static bool has_joined(const struct daemon_config *c)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof(path), "%s/tls/" JOIN_PLACE_FILE, c->state_dir) < PATH_MAX && access(path, F_OK) == 0;
}

static titan_status resolve(struct daemon_config *c, bool stop_given, struct titan_error *err)
{
    char path[PATH_MAX];
    if (!c->state_dir[0])
        TRY(default_state_dir(c->state_dir, err));
    if (c->role == ROLE_AGENT && !c->coordinator[0] && !c->join[0] && !has_joined(c)) {
        (void)titan_fail(err, TITAN_EINVAL, "an agent needs the address of its coordinator");
        titan_error_hint(err, "give --join FILE, or --coordinator HOST:PORT, or coordinator in [agent] of the config");
        return TITAN_EINVAL;
    }
    if (c->role == ROLE_DEV && !stop_given)
        c->stop_workers = true;
    if (c->jobs_dir[0] && c->jobs_dir[0] != '/')
        return titan_fail(err, TITAN_EINVAL, "storage.jobs_dir: '%s' is not an absolute path", c->jobs_dir);
    if (c->head_file[0] && c->head_file[0] != '/')
        return titan_fail(err, TITAN_EINVAL, "audit.head_file: '%s' is not an absolute path", c->head_file);
    TRY(resolve_detection(c, err));
    const bool made = access(c->state_dir, F_OK) < 0;
    const bool fresh = made && c->role != ROLE_AGENT && !getenv("LISTEN_FDS");
    TRY(dir_make(c->state_dir, err));
    if (!realpath(c->state_dir, path))
        return titan_fail_errno(err, "cannot use state directory '%s'", c->state_dir);
    titan_assert(path[0] == '/');
    memcpy(c->state_dir, path, sizeof(path));
    if (check_sockets_fit(c, err) != TITAN_OK) {
        if (made)
            (void)rmdir(c->state_dir);
        return TITAN_EINVAL;
    }
    TRY(resolve_transport(c, err));
    if (fresh && check_listen_free(c, err) != TITAN_OK) {
        (void)rmdir(c->state_dir);
        return TITAN_EEXIST;
    }
    return default_listen(c, err);
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
