/* SPDX-License-Identifier: Apache-2.0 */
/* CheckNodes: asks every node's agent what would not work, and looks at the coordinator's own settings and webhooks. If
 * a node does not answer in time, this is reported.
 *
 * Two rounds. First each node checks itself and sends its mark of each configured root, which the coordinator compares.
 * Then each node tries to reach the NEIGHBOURS nodes after it in the list: by a datagram, as agents do, and by a TCP
 * connection, as workers do. So n nodes try NEIGHBOURS * n pairs; up to NEIGHBOURS + 1 nodes try all pairs. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mac.h"
#include "base/version.h"
#include "daemon/api/api.h"
#include "daemon/coordinator/shell/webhooks.h"

#define WAIT_MS 5000
#define REACH_WAIT_MS 5000
#define PROBE_MS 1000 /* time for two tries, because the first may wait for a name and lose its datagrams */
#define REQUESTS_MAX 16
#define FINDINGS_MAX 128
#define NEIGHBOURS 8
#define TOKEN_BYTES 16
#define HERE_MAX 200        /* names listed in one text, at most */
#define OWN "(coordinator)" /* no node has this name */

struct checked_node {
    struct checked_node *next;
    Titan__V1__NodeCheck *message;
    const char *name, *address, *version;
    uint64_t session;
    bool waiting, absent; /* absent: no answer in the first round */
    bool reaches;         /* the node's agent knows the second round's question */
    uint32_t port;        /* port for TCP connections; 0 = none */
    uint8_t token[TOKEN_BYTES];
    char **marks; /* marks of the roots, in their order; NULL = none */
    char *pongs;  /* names of the nodes that answered its datagrams */
};

struct check_probe {
    struct check_probe *next;
    struct checked_node *from, *to;
    uint64_t id; /* 0 = over */
    uint32_t port;
    bool again;
};

struct check_request {
    struct check_request *next;
    struct coordinator *owner;
    struct rpc_call *call; /* NULL = over */
    uint64_t id;           /* id of the present round */
    bool reaching;         /* second round */
    struct arena memory;
    struct checked_node *own;     /* the coordinator itself, which no round asks */
    struct checked_node *nodes;   /* ordered by name */
    size_t n, waiting, elsewhere; /* elsewhere: nodes with an address that others reach */
    struct check_probe *probes;
    Titan__Internal__CheckRoot **roots;
    size_t n_roots;
    uv_timer_t timer;
};

static void found(struct check_request *r, struct checked_node *n, const char *what, bool wrong, const char *text)
{
    titan_assert(what && text && n->message && n->message->n_findings <= FINDINGS_MAX);
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

/* --- roots -------------------------------------------------------------------------------------------------------- */

static void add_roots(struct check_request *r, const struct paths_roots *roots, bool writes)
{
    for (size_t i = 0; i < roots->n; i++) {
        Titan__Internal__CheckRoot *root = arena_alloc(&r->memory, sizeof(*root));
        titan__internal__check_root__init(root);
        root->path = arena_strdup(&r->memory, roots->path[i]);
        root->writes = writes;
        r->roots[r->n_roots++] = root;
    }
}

/* --- the second round --------------------------------------------------------------------------------------------- */

static void send_probe(struct check_request *r, struct check_probe *p)
{
    struct coordinator *c = r->owner;
    Titan__Internal__ProbeNode body = TITAN__INTERNAL__PROBE_NODE__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    struct core_peer peer;
    p->id = CORE_PROBE_OTHERS | ++c->next_check_probe;
    if (!core_node_peer(c->core, p->to->name, p->id, &peer)) { /* the node has left meanwhile */
        p->id = 0;
        return;
    }
    p->port = peer.port;
    body.probe_id = p->id;
    body.node = (char *)(uintptr_t)p->to->name;
    body.address = arena_printf(&r->memory, "%s:%u", p->to->address, p->port);
    body.timeout_ms = PROBE_MS;
    if (peer.keyed)
        body.key = (ProtobufCBinaryData){MAC_BYTES, peer.key};
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PROBE;
    m.probe = &body;
    r->waiting++;
    session_post(c, p->from->session, &m);
}

static void probe_over(struct check_request *r, struct check_probe *p, bool reached)
{
    titan_assert(p->id && p->from != p->to);
    struct checked_node *n = p->from;
    p->id = 0;
    if (reached && strlen(n->pongs ? n->pongs : "") < HERE_MAX)
        n->pongs = arena_printf(&r->memory, "%s%s%.64s", n->pongs ? n->pongs : "", n->pongs ? ", " : "", p->to->name);
    if (!reached)
        found(r, n, "udp", true,
              arena_printf(&r->memory,
                           "node %s does not reach node %s at %s:%u (UDP, as agents do): no answer; open UDP between "
                           "nodes for that port (agent.peer_listen), or mend agent.address there",
                           n->name, p->to->name, p->to->address, p->port));
}

/* The node there[place] probes its neighbours; one message names all neighbours that listen. */
static void send_reach(struct check_request *r, struct checked_node *const *there, size_t n_there, size_t place)
{
    titan_assert(place < n_there);
    Titan__Internal__CheckNode body = TITAN__INTERNAL__CHECK_NODE__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    Titan__Internal__ReachNode nodes[NEIGHBOURS], *list[NEIGHBOURS];
    struct checked_node *n = there[place];
    for (size_t i = 1; i <= MIN(n_there - 1, (size_t)NEIGHBOURS); i++) {
        struct checked_node *o = there[(place + i) % n_there];
        struct core_peer peer;
        titan_assert(n != o && r->reaching);
        if (core_node_peer(r->owner->core, n->name, 0, &peer) && core_node_peer(r->owner->core, o->name, 0, &peer)) {
            /* if a key is missing, the finding "peers" reports the node */
            struct check_probe *p = arena_alloc(&r->memory, sizeof(*p));
            *p = (struct check_probe){.next = r->probes, .from = n, .to = o};
            r->probes = p;
            send_probe(r, p);
        }
        if (!o->port)
            continue;
        const bool v6 = strchr(o->address, ':') != NULL;
        Titan__Internal__ReachNode *to = list[body.n_reach] = &nodes[body.n_reach];
        titan__internal__reach_node__init(to);
        to->node = (char *)(uintptr_t)o->name;
        to->address = arena_printf(&r->memory, "%s%s%s:%u", v6 ? "[" : "", o->address, v6 ? "]" : "", o->port);
        to->token = (ProtobufCBinaryData){sizeof(o->token), o->token};
        body.n_reach++;
    }
    if (!n->reaches || body.n_reach == 0)
        return;
    body.request_id = r->id;
    body.reach = list;
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK;
    m.check = &body;
    n->waiting = true;
    r->waiting++;
    session_post(r->owner, n->session, &m);
}

static void on_timer(uv_timer_t *timer);

/* Ends the round: all nodes have answered, or the time is over. */
static void round_over(struct check_request *r)
{
    titan_assert(r->call);
    for (struct checked_node *n = r->nodes; n; n = n->next) {
        if (n->waiting && !r->reaching)
            found(r, n, "session", true, "no answer within 5 s: its agent is stopped, overloaded or an older one");
        else if (n->waiting)
            found(r, n, "tcp", true, "no answer within 5 s to whether it reaches other nodes");
        n->absent |= n->waiting;
        n->waiting = false;
    }
    (void)uv_timer_stop(&r->timer);
    if (!r->reaching) {
        /* Compares every node with the first by name that has a mark of the root. */
        for (size_t i = 0; i < r->n_roots; i++) {
            const struct checked_node *first = NULL;
            const Titan__Internal__CheckRoot *root = r->roots[i];
            for (struct checked_node *n = r->nodes; n; n = n->next) {
                if (!n->marks || !n->marks[i])
                    continue;
                if (!first)
                    first = n;
                else if (strcmp(n->marks[i], first->marks[i]) != 0)
                    found(r, n, root->writes ? "checkpoint_root" : "data_root", true,
                          arena_printf(&r->memory,
                                       root->writes
                                           ? "%.500s is another folder than on node %s: mount the same one on both"
                                           : "%.500s has other names in it than on node %s: mount the same one on "
                                             "both, or copy it whole",
                                       root->path, first->name));
            }
        }

        r->reaching = true;
        r->id = ++r->owner->next_check_request;
        r->waiting = 0;
        struct checked_node **there = arena_alloc(&r->memory, (r->n + 1) * sizeof(struct checked_node *));
        size_t n_there = 0;
        for (struct checked_node *n = r->nodes; n; n = n->next)
            if (n->session && !n->absent)
                there[n_there++] = n;
        for (size_t i = 0; i < n_there; i++)
            send_reach(r, there, n_there, i);
        if (r->waiting > 0) {
            (void)uv_timer_start(&r->timer, on_timer, REACH_WAIT_MS, 0);
            return;
        }
    }
    for (struct check_probe *p = r->probes; p; p = p->next)
        if (p->id)
            probe_over(r, p, false);
    for (struct checked_node *n = r->nodes; n; n = n->next)
        if (n->pongs)
            found(r, n, "udp", false, arena_printf(&r->memory, "reaches %s as agents do", n->pongs));
    Titan__V1__CheckNodesResponse reply = TITAN__V1__CHECK_NODES_RESPONSE__INIT;
    reply.nodes = arena_alloc(&r->memory, (r->n + 1) * sizeof(*reply.nodes));
    if (r->own->message->n_findings > 0)
        reply.nodes[reply.n_nodes++] = r->own->message;
    for (struct checked_node *n = r->nodes; n; n = n->next)
        reply.nodes[reply.n_nodes++] = n->message;
    struct rpc_call *call = TAKE(r->call);
    if (call)
        rpc_call_reply(call, &reply.base);
}

static void on_timer(uv_timer_t *timer)
{
    struct check_request *r = timer->data;
    if (r->call)
        round_over(r);
}

static void answered(struct check_request *r)
{
    titan_assert(r->waiting > 0);
    if (--r->waiting == 0)
        round_over(r);
}

/* --- the first round ---------------------------------------------------------------------------------------------- */

static void each_address(const struct core_node *node, void *data)
{
    struct check_request *r = data;
    r->elsewhere += node->connected && !is_loopback(node->address);
}

static struct checked_node *checked_node_new(struct check_request *r, const char *name)
{
    struct checked_node *n = arena_alloc(&r->memory, sizeof(*n));
    *n = (struct checked_node){.message = arena_alloc(&r->memory, sizeof(*n->message)),
                               .name = arena_strdup(&r->memory, name)};
    titan__v1__node_check__init(n->message);
    n->message->node = arena_strdup(&r->memory, name);
    n->message->findings = arena_alloc(&r->memory, FINDINGS_MAX * sizeof(*n->message->findings));
    return n;
}

static void each_node(const struct core_node *node, void *data)
{
    struct check_request *r = data;
    struct checked_node *n = checked_node_new(r, node->name);
    n->address = arena_strdup(&r->memory, node->address);
    n->version = arena_strdup(&r->memory, node->version);
    n->session = node->connected ? core_node_session(r->owner->core, node->name) : 0;
    struct checked_node **at = &r->nodes; /* sorted by name, so that each check compares with the same node */
    while (*at && strcmp((*at)->name, n->name) < 0)
        at = &(*at)->next;
    n->next = *at;
    *at = n;
    r->n++;
    if (!n->session) {
        found(r, n, "session", true, "not connected");
        return;
    }
    bool alone = is_loopback(node->address) && r->elsewhere > 0;
    found(r, n, "address", alone,
          alone ? arena_printf(&r->memory, "%s: workers of other nodes cannot reach it (agent.address)", node->address)
                : node->address);
    /* Where the coordinator listens for datagrams, an agent on another machine should send its heartbeats as
     * datagrams. */
    if (r->owner->heartbeat_sockets && !session_is_local(r->owner, n->session))
        found(r, n, "datagrams", !node->by_datagram,
              node->by_datagram
                  ? "heartbeats arrive as datagrams"
                  : "heartbeats arrive through the session only: UDP to the coordinator's port is closed or lossy");

    Titan__Internal__CheckNode body = TITAN__INTERNAL__CHECK_NODE__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    body.request_id = r->id;
    body.jobs_dir = r->owner->jobs_dir;
    body.token = r->owner->jobs_token;
    body.wall_ms = clock_wall_ms();
    body.version = (char *)(uintptr_t)titan_version;
    body.roots = r->roots;
    body.n_roots = r->n_roots;
    if (getrandom(n->token, sizeof(n->token), 0) == (ssize_t)sizeof(n->token))
        body.listen = (ProtobufCBinaryData){sizeof(n->token), n->token};
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK;
    m.check = &body;
    n->waiting = true;
    r->waiting++;
    session_post(r->owner, n->session, &m);
}

static void found_here(void *data, const char *what, bool wrong, const char *text)
{
    struct check_request *r = data;
    found(r, r->own, what, wrong, text);
}

static void each_webhook(const struct webhook_state *s, void *data)
{
    struct check_request *r = data;
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf secret = BUF_INIT;
    const struct webhook_options *o = s->options;
    char place[256];
    const bool readable = webhook_secret(o, &secret, &err) == TITAN_OK;
    webhook_place(o, place);
    if (secret.data)
        mac_wipe(secret.data, secret.len);
    if (!readable)
        found(r, r->own, "webhook", true, arena_printf(&r->memory, "%s, %s: %s", o->name, place, err.msg));
    else if (s->failed > 0)
        found(r, r->own, "webhook", true,
              arena_printf(&r->memory, "%s, %s: %u tries in a row have failed, and an event waits for %.0f s: %s",
                           o->name, place, s->failed, s->lag_s, s->trouble));
    else
        found(r, r->own, "webhook", s->passed_over > 0,
              arena_printf(&r->memory, "%s, %s: %llu events sent since the start, %llu passed over%s%s", o->name, place,
                           (unsigned long long)s->delivered, (unsigned long long)s->passed_over,
                           s->passed_over ? ": " : "", s->passed_over ? s->trouble : ""));
}

void api_check_nodes(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    const struct paths_options *paths = c->options.paths;
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
    r->roots = arena_alloc(&r->memory, 2 * PATHS_ROOTS_MAX * sizeof(*r->roots));
    if (paths) {
        add_roots(r, &paths->data, false);
        add_roots(r, &paths->checkpoints, true);
    }
    (void)uv_timer_init(c->loop, &r->timer);
    r->timer.data = r;
    r->next = c->check_requests;
    c->check_requests = r;
    rpc_call_set_data(call, r);
    r->own = checked_node_new(r, OWN);
    if (c->options.look)
        c->options.look(c->options.settings, found_here, r);
    webhooks_each(c, each_webhook, r);
    core_nodes(c->core, each_address, r);
    core_nodes(c->core, each_node, r);
    if (r->waiting == 0)
        round_over(r);
    else
        (void)uv_timer_start(&r->timer, on_timer, WAIT_MS, 0);
}

/* --- what agents say ---------------------------------------------------------------------------------------------- */

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
    if (!r->reaching) {
        /* The marks of requested roots only, each once. */
        n->marks = arena_alloc(&r->memory, (r->n_roots + 1) * sizeof(*n->marks));
        for (size_t i = 0; i < r->n_roots; i++) {
            n->marks[i] = NULL;
            for (size_t k = 0; k < m->n_roots && !n->marks[i]; k++)
                if (!strcmp(m->roots[k]->path, r->roots[i]->path) && m->roots[k]->mark[0])
                    n->marks[i] = arena_strdup(&r->memory, m->roots[k]->mark);
        }
        n->reaches = m->reaches;
        n->port = m->port;
        if (!n->reaches)
            found(
                r, n, "older", false,
                arena_printf(&r->memory,
                             "version %s does not look at storage.data_roots and checkpoint_roots, nor at TCP between "
                             "nodes",
                             n->version));
    }
    n->waiting = false;
    answered(r);
    return true;
}

/* Probes an unreached node once more. */
void api_probed(struct coordinator *c, uint64_t session, const Titan__Internal__ProbeResult *m)
{
    for (struct check_request *r = c->check_requests; r; r = r->next) {
        struct check_probe *p = r->call ? r->probes : NULL;
        while (p && p->id != m->probe_id)
            p = p->next;
        if (!p)
            continue;
        if (p->from->session != session)
            return;
        if (m->reached || p->again) {
            probe_over(r, p, m->reached);
        } else {
            p->again = true;
            send_probe(r, p);
        }
        answered(r);
        return;
    }
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
