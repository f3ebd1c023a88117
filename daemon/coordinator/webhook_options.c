/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/webhook_options.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"

#define SECRET_LEAST 16
#define SECRET_MOST 4096
#define TIMEOUT_MS 10000

/* Words for events that people are told of. docs/operations.md has the same table. */
static const struct group {
    const char *name, *types; /* types: with commas between and around */
} groups[] = {
    {"jobs", ",job.state,job.refused,job.preempted,job.unknown,"},
    {"losses", ",worker.lost,worker.exited,worker.stalled,worker.device_failed,recovery.finished,"},
    {"nodes", ",node.ready,node.lost,node.removed,node.quarantined,node.released,node.unfit,node.fit,slot.quarantined,"
              "slot.released,"},
    {"checkpoints", ",checkpoint.failed,"},
    {"store", ",store.restored,store.settled,coordinator.fenced,"},
};

static const struct group *find_group(const char *word, size_t len)
{
    for (const struct group *g = groups; g < groups + ARRAY_SIZE(groups); g++)
        if (strlen(g->name) == len && strncmp(g->name, word, len) == 0)
            return g;
    return NULL;
}

static titan_status check_events(struct webhook_options *w, struct titan_error *err)
{
    for (const char *p = w->events; *p;) {
        const size_t len = strcspn(p, ",");
        const bool type = strspn(p, "abcdefghijklmnopqrstuvwxyz_.*") >= len && memchr(p, '.', len);
        const bool all = len == 1 && *p == '*', audit = len >= 5 && strncmp(p, "audit", 5) == 0;
        if (audit || (!type && !all && !find_group(p, len))) {
            (void)titan_fail(err, TITAN_EINVAL, "events: '%.*s' is no kind of events%s", (int)MIN(len, (size_t)64), p,
                             audit ? " that is sent: titanctl audit has them" : "");
            titan_error_hint(err, "write jobs, losses, nodes, checkpoints, store, a type as \"job.state\", \"job.*\" "
                                  "or \"*\"");
            return TITAN_EINVAL;
        }
        p += len + (p[len] == ',');
    }
    return TITAN_OK;
}

titan_status webhook_check(struct webhook_options *w, struct titan_error *err)
{
    if (!w->name[0])
        (void)snprintf(w->name, sizeof(w->name), "webhook");
    if (!w->events[0])
        (void)snprintf(w->events, sizeof(w->events), "%s", WEBHOOK_EVENTS_DEFAULT);
    w->timeout_ms = w->timeout_ms ? w->timeout_ms : TIMEOUT_MS;
    if (strspn(w->name, "abcdefghijklmnopqrstuvwxyz0123456789-_") != strlen(w->name))
        return titan_fail(err, TITAN_EINVAL, "name: '%s' has other characters than a-z, 0-9, '-' and '_'", w->name);
    const size_t scheme = !strncmp(w->url, "https://", 8) ? 8 : !strncmp(w->url, "http://", 7) ? 7 : 0;
    const char *const host = w->url + scheme;
    const size_t len = strcspn(host, "/?#");
    if (!w->url[0])
        return titan_fail(err, TITAN_EINVAL, "url: it is missing");
    for (const char *p = w->url; *p; p++)
        if (*p <= ' ' || *p > '~')
            return titan_fail(err, TITAN_EINVAL, "url: it has a blank, or a byte that a URL cannot have");
    if (!scheme || !len || *host == ':') {
        (void)titan_fail(err, TITAN_EINVAL, "url: it is no http:// or https:// URL with a host");
        titan_error_hint(err, "write https://HOST[:PORT]/PATH");
        return TITAN_EINVAL;
    }
    if (memchr(host, '@', len))
        return titan_fail(err, TITAN_EINVAL, "url: it names a user; the signature proves who sends");
    if (!w->secret_file[0]) {
        (void)titan_fail(err, TITAN_EINVAL, "secret_file: it is missing");
        titan_error_hint(err, "make one with: openssl rand -hex 32 > FILE; chmod 640 FILE; chgrp titan FILE");
        return TITAN_EINVAL;
    }
    if (w->secret_file[0] != '/' || (w->ca[0] && w->ca[0] != '/'))
        return titan_fail(err, TITAN_EINVAL, "%s: it is no absolute path",
                          w->secret_file[0] != '/' ? "secret_file" : "ca");
    return check_events(w, err);
}

/* Group "losses" wants an end of a worker only if the end counts as a loss. */
static bool is_loss(const struct event *e)
{
    struct json *detail = NULL;
    if (strcmp(e->type, "worker.exited") != 0)
        return true;
    if (!e->detail || json_parse(e->detail, strlen(e->detail), &detail, NULL) != TITAN_OK)
        return false;
    const struct json *counted = json_get(detail, "counted");
    const bool loss = counted && counted->type == JSON_BOOL && counted->boolean;
    json_free(detail);
    return loss;
}

bool webhook_wants(const struct webhook_options *w, const struct event *e)
{
    char around[96];
    if (snprintf(around, sizeof(around), ",%s,", e->type) >= (int)sizeof(around))
        return false;
    for (const char *p = w->events; *p;) {
        const size_t len = strcspn(p, ",");
        const struct group *g = find_group(p, len);
        const size_t fixed = len && p[len - 1] == '*' ? len - 1 : len;
        if (g ? strstr(g->types, around) && is_loss(e)
              : strncmp(e->type, p, fixed) == 0 && (fixed < len || strlen(e->type) == len))
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

titan_status webhook_secret(const struct webhook_options *w, struct buf *ret, struct titan_error *err)
{
    struct stat st;
    if (stat(w->secret_file, &st) == 0 && (st.st_mode & S_IROTH)) {
        (void)titan_fail(err, TITAN_EPERM, "secret_file '%s': every user may read it", w->secret_file);
        titan_error_hint(err, "chmod 640 it, with titand's group");
        return TITAN_EPERM;
    }
    TRY(file_read(w->secret_file, SECRET_MOST, ret, err));
    while (ret->len > 0 && (ret->data[ret->len - 1] == '\n' || ret->data[ret->len - 1] == '\r'))
        ret->data[--ret->len] = '\0';
    if (ret->len < SECRET_LEAST)
        return titan_fail(err, TITAN_EINVAL, "secret_file '%s': %zu bytes, but a secret has at least %d",
                          w->secret_file, ret->len, SECRET_LEAST);
    return TITAN_OK;
}

void webhook_place(const struct webhook_options *w, char out[256])
{
    const char *const host = strstr(w->url, "://");
    titan_assert(host);
    (void)snprintf(out, 256, "%.*s", (int)((size_t)(host + 3 - w->url) + strcspn(host + 3, "/?#")), w->url);
}
