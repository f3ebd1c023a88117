/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/node_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "daemon/coordinator/records/core_record.h"
#include "daemon/coordinator/records/refusals.h"

static size_t name_bucket(const char *name)
{
    return hash_index(hash_text(HASH_INIT, name), CORE_BUCKETS);
}

struct noderec *core_find_node(const struct core *c, const char *name)
{
    struct noderec *n = c->names[name_bucket(name)];
    while (n && strcmp(n->name, name) != 0)
        n = n->hash_next;
    return n;
}

struct noderec *core_find_session(const struct core *c, uint64_t session)
{
    struct noderec *n = c->sessions[session % CORE_BUCKETS];
    while (n && n->session != session)
        n = n->session_next;
    return n;
}

void core_set_session(struct core *c, struct noderec *n, uint64_t session)
{
    titan_assert(!session || !core_find_session(c, session));
    if (n->session) {
        struct noderec **at = &c->sessions[n->session % CORE_BUCKETS];
        while (*at != n)
            at = &(*at)->session_next;
        *at = n->session_next;
    }
    c->connected += (session != 0) - (n->session != 0);
    n->session = session;
    n->slack_ms = n->called_mono = 0;
    if (session) {
        n->awaited = false;
        n->session_next = c->sessions[session % CORE_BUCKETS];
        c->sessions[session % CORE_BUCKETS] = n;
    }
}

struct noderec *core_add_node(struct core *c, const char *name, enum node_state state)
{
    struct noderec *n = core_alloc(sizeof(*n)), **bucket = &c->names[name_bucket(name)];
    n->name = core_strdup(name);
    n->state = state;
    n->device = core_strdup("");
    n->address = core_strdup("");
    n->version = core_strdup("");
    n->identity = core_strdup("");
    n->policy.reason = core_strdup("");
    n->policy.quarantine_reason = core_strdup("");
    n->drain_at = INT64_MAX;
    *(c->last_node ? &c->last_node->next : &c->nodes) = n; /* in order of arrival */
    c->last_node = n;
    n->hash_next = *bucket;
    *bucket = n;
    return n;
}

void node_free(struct noderec *n)
{
    free(n->name);
    free(n->device);
    free(n->address);
    free(n->version);
    free(n->unfit);
    if (n->gpus)
        titan__internal__node_gpus__free_unpacked(n->gpus, NULL);
    free(n->identity);
    free((char *)(uintptr_t)n->policy.reason);
    free((char *)(uintptr_t)n->policy.quarantine_reason);
    free(n);
}

static void unlink_node(struct noderec **at, const struct noderec *n, bool by_hash)
{
    while (*at != n)
        at = by_hash ? &(*at)->hash_next : &(*at)->next;
    *at = by_hash ? n->hash_next : n->next;
}

void core_drop_node(struct core *c, struct noderec *n)
{
    titan_assert(!n->session && n->used == 0);
    refusals_lift(c, n);
    unlink_node(&c->names[name_bucket(n->name)], n, true);
    unlink_node(&c->nodes, n, false);
    c->last_node = c->nodes;
    while (c->last_node && c->last_node->next)
        c->last_node = c->last_node->next;
    node_free(n);
}

uint32_t node_idle_ms(const struct core *c, const struct noderec *n)
{
    return n->steady_at ? 0 : c->options.idle_heartbeat_ms; /* a returned node has to prove its link first */
}

void node_awaited(struct core *c, struct noderec *n, struct core_time now)
{
    n->seen_mono = now.mono_ms + c->options.adopt_ms - 2 * (int64_t)c->options.node_timeout_ms;
    n->stream_mono = n->seen_mono;
    n->answered_mono = now.mono_ms; /* an earlier coordinator may have answered until now */
    n->awaited = true;
}

void node_is(struct noderec *n, const struct node *is)
{
    n->slots = is->slots;
    core_set_string(&n->device, is->device);
    core_set_string(&n->address, is->address);
    core_set_string(&n->version, is->version);
    n->memory_bytes = is->memory_bytes;
    n->incarnation = is->incarnation;
    memcpy(n->installation, is->installation, sizeof(n->installation));
    n->ephemeral = is->ephemeral;
    n->peer_port = is->peer_port;
}

void node_take_policy(struct noderec *n, const struct node_policy *is)
{
    free((char *)(uintptr_t)n->policy.reason);
    free((char *)(uintptr_t)n->policy.quarantine_reason);
    n->policy = *is;
    n->policy.name = NULL;
    n->policy.reason = core_strdup(is->reason);
    n->policy.quarantine_reason = core_strdup(is->quarantine_reason);
}

struct noderec *core_expect_node(struct core *c, const char *name)
{
    struct noderec *n = core_find_node(c, name);
    if (n)
        return n;
    n = core_add_node(c, name, NODE_READY);
    node_awaited(c, n, c->now);
    return n;
}

bool node_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 253 && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

bool node_leaves(const struct noderec *n)
{
    return n->leaving && n->leaving == n->incarnation;
}

bool node_empties(const struct noderec *n)
{
    return n->policy.draining || n->in_window || node_leaves(n);
}

bool node_unfit(const struct noderec *n)
{
    return n->silent || (n->unfit && n->unfit[0]);
}

const char *node_unfit_words(const struct noderec *n)
{
    return n->silent ? "it does not answer that it starts a worker" : n->unfit;
}

bool node_accepts(const struct noderec *n)
{
    return n->state == NODE_READY && n->session && !node_empties(n) && !n->quarantine_end && !n->steady_at &&
           !node_unfit(n) && !n->unchecked;
}
