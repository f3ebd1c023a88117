/* SPDX-License-Identifier: Apache-2.0 */
/* CheckNodes: what would not work, asked of every node's agent. One that does not answer in time is told as such. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/version.h"
#include "daemon/api/api.h"

#define WAIT_MS 5000
#define REQUESTS_MAX 16
#define FINDINGS_MAX 64

struct checked_node {
    struct checked_node *next;
    Titan__V1__NodeCheck *message;
    uint64_t session;
    bool waiting;
};

struct check_request {
    struct check_request *next;
    struct coordinator *owner;
    struct rpc_call *call; /* NULL: over */
    uint64_t id;
    struct arena memory;
    struct checked_node *nodes, **nodes_tail;
    size_t n, waiting, elsewhere; /* nodes with an address that others reach */
    uv_timer_t timer;
};

static void found(struct check_request *r, struct checked_node *n, const char *what, bool wrong, const char *text)
{
    Titan__V1__NodeCheck *m = n->message;
    Titan__V1__Finding *f = arena_alloc(&r->memory, sizeof(*f));
    if (m->n_findings == FINDINGS_MAX)
        return;
    titan__v1__finding__init(f);
    f->what = arena_strdup(&r->memory, what);
    f->wrong = wrong;
    f->text = arena_strdup(&r->memory, text);
    m->findings[m->n_findings++] = f;
}

static bool is_loopback(const char *address)
{
    return !strncmp(address, "127.", 4) || !strcmp(address, "localhost") || !strcmp(address, "::1");
}

static void answer(struct check_request *r)
{
    Titan__V1__CheckNodesResponse reply = TITAN__V1__CHECK_NODES_RESPONSE__INIT;
    struct rpc_call *call = TAKE(r->call);
    if (!call)
        return;
    reply.nodes = arena_alloc(&r->memory, (r->n + 1) * sizeof(*reply.nodes));
    for (struct checked_node *n = r->nodes; n; n = n->next) {
        if (n->waiting)
            found(r, n, "session", true, "no answer within 5 s: a file server that does not answer, or an older agent");
        reply.nodes[reply.n_nodes++] = n->message;
    }
    rpc_call_reply(call, &reply.base);
}

static void on_timer(uv_timer_t *timer)
{
    answer(timer->data);
}

static void ask(struct check_request *r, struct checked_node *n)
{
    Titan__Internal__CheckNode body = TITAN__INTERNAL__CHECK_NODE__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    body.request_id = r->id;
    body.jobs_dir = r->owner->jobs_dir;
    body.token = r->owner->jobs_token;
    body.wall_ms = clock_wall_ms();
    body.version = (char *)(uintptr_t)titan_version;
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK;
    m.check = &body;
    n->waiting = true;
    r->waiting++;
    session_tell(r->owner, n->session, &m);
}

static void each_address(const struct core_node *node, void *data)
{
    struct check_request *r = data;
    r->elsewhere += node->connected && !is_loopback(node->address);
}

static void each_node(const struct core_node *node, void *data)
{
    struct check_request *r = data;
    struct checked_node *n = arena_alloc(&r->memory, sizeof(*n));
    *n = (struct checked_node){.message = arena_alloc(&r->memory, sizeof(*n->message))};
    titan__v1__node_check__init(n->message);
    n->message->node = arena_strdup(&r->memory, node->name);
    n->message->findings = arena_alloc(&r->memory, FINDINGS_MAX * sizeof(*n->message->findings));
    n->session = node->connected ? core_node_session(r->owner->core, node->name) : 0;
    *r->nodes_tail = n;
    r->nodes_tail = &n->next;
    r->n++;
    if (!n->session) {
        found(r, n, "session", true, "not connected");
        return;
    }
    bool alone = is_loopback(node->address) && r->elsewhere > 0;
    found(r, n, "address", alone,
          alone ? arena_printf(&r->memory, "%s: workers of other nodes cannot reach it (agent.address)", node->address)
                : node->address);
    if (r->owner->beats) /* it listens for them */
        found(r, n, "datagrams", !node->by_datagram,
              node->by_datagram
                  ? "beats arrive as datagrams"
                  : "beats arrive through the session only: UDP to the coordinator's port is closed or lossy");
    ask(r, n);
}

void api_check_nodes(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    struct titan_error err = {0};
    size_t open = 0;
    (void)base;
    for (const struct check_request *r = c->check_requests; r; r = r->next)
        open++;
    struct check_request *r = open < REQUESTS_MAX && !c->closing ? calloc(1, sizeof(*r)) : NULL;
    if (!r) {
        (void)titan_fail(&err, TITAN_ELIMIT, "%zu checks are under way already", open);
        rpc_call_fail(call, &err);
        return;
    }
    r->owner = c;
    r->call = call;
    r->id = ++c->next_check_request;
    r->nodes_tail = &r->nodes;
    (void)uv_timer_init(c->loop, &r->timer);
    r->timer.data = r;
    r->next = c->check_requests;
    c->check_requests = r;
    rpc_call_set_data(call, r);
    core_nodes(c->core, each_address, r);
    core_nodes(c->core, each_node, r);
    if (r->waiting == 0)
        answer(r);
    else
        (void)uv_timer_start(&r->timer, on_timer, WAIT_MS, 0);
}

bool api_node_checked(struct coordinator *c, uint64_t session, const Titan__Internal__NodeChecked *m)
{
    struct check_request *r = c->check_requests;
    if (m->request_id == 0)
        return false;
    while (r && r->id != m->request_id)
        r = r->next;
    struct checked_node *n = r && r->call ? r->nodes : NULL;
    while (n && (n->session != session || !n->waiting))
        n = n->next;
    if (!n)
        return true;
    for (size_t i = 0; i < m->n_findings; i++)
        found(r, n, m->findings[i]->what, m->findings[i]->wrong, m->findings[i]->text);
    n->waiting = false;
    if (--r->waiting == 0)
        answer(r);
    return true;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct check_request *r = handle->data;
    arena_free(&r->memory);
    free(r);
}

void api_check_nodes_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct coordinator *c = data;
    struct check_request *r = rpc_call_data(call);
    (void)cancelled;
    if (!r)
        return;
    r->call = NULL;
    for (struct check_request **at = &c->check_requests; *at; at = &(*at)->next) {
        if (*at == r) {
            *at = r->next;
            break;
        }
    }
    uv_close((uv_handle_t *)&r->timer, on_timer_closed);
}
