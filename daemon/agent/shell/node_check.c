/* SPDX-License-Identifier: Apache-2.0 */
/* node_check.c - see node_check.h. */
#include "daemon/agent/shell/node_check.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "base/version.h"
#include "daemon/agent/shell/reach.h"
#include "daemon/agent/shell/spawn_client.h"
#include "daemon/agent/shell/worker_cgroup.h"
#include "daemon/auth/certs.h"
#include "daemon/common/file_pool.h"
#include "daemon/common/jobs_dir.h"
#include "daemon/common/peers.h"
#include "proto/ranges.h"

#define AGAIN_MS 5000 /* interval of checks while jobs cannot have their folders here */
#define AT_ONCE 8     /* concurrent requests of operators */
#define SKEW_MS 1000
#define FILES_LEAST 4096
/* 1 day: a certificate with less time left ends soon; its renewal was due at two thirds of its life */
#define SOON_MS INT64_C(86400000)
#define LOOK_MS 3000 /* limit for one path, or connections to other nodes; below the coordinator's wait */
#define CONNECT_MS 2000
#define LISTEN_MS 15000 /* how long this node accepts connections; longer than the coordinator's check */
#define FINDINGS_MAX 20
#define TEXT_MAX 400
#define ROOTS_MAX 64
#define TARGETS_MAX 8 /* targets of one request; further targets are dropped */

struct finding {
    const char *what;
    bool wrong;
    char text[TEXT_MAX];
};

/* The repeated check that an acknowledgement asks for: can jobs have their folders here? */
struct placement {
    struct file_task task; /* must be the first member */
    struct node_checks *owner;
    char node[256], jobs_dir[PATH_MAX], token[JOBS_TOKEN_MAX];
    char problem[TEXT_MAX];
};

/* A part of an operator's request. It holds all data of its thread, because the thread may outlive the agent. */
enum look_kind { LOOK_NODE, LOOK_FOLDERS, LOOK_ROOT, LOOK_REACH };
struct look {
    struct file_task task; /* must be the first member */
    struct request *request;
    enum look_kind kind;
    size_t place; /* index in its request */
    char node[256], path[PATH_MAX];
    union {
        struct {
            char token[JOBS_TOKEN_MAX];
            bool by_users; /* workers run as their jobs' users */
        } jobs;            /* used by LOOK_FOLDERS */
        bool writes;       /* used by LOOK_ROOT */
        struct {
            struct reach_target list[TARGETS_MAX];
            size_t n;
        } reach;
        struct {
            char program[PATH_MAX], address[256], version[64];
            char spawnd[SPAWN_SOCKET_MAX];
            struct listen_ports ports;
            struct worker_limits limits;
            int64_t skew_ms; /* this node's clock against the coordinator's */
            bool peers, secure, listens;
            struct rpc_tls tls;
            void (*look)(const void *settings,
                         void (*found)(void *data, const char *what, bool wrong, const char *text), void *data);
            const void *settings;
        } of;
    };
    char mark[ROOT_MARK_MAX];
    int fd; /* listening socket; -1 = none */
    uint16_t port;
    struct finding findings[FINDINGS_MAX];
    size_t n_findings;
};

/* An operator's request. It is answered when all its looks have ended or were given up. */
struct request {
    struct node_checks *owner;
    uint64_t session, id;
    uint8_t listen[REACH_TOKEN_BYTES];
    size_t n, open;
    struct place {
        struct look *look;   /* NULL: the look was given up, and `lost` is its result */
        struct finding lost; /* the only finding of a look that was given up */
    } places[ROOTS_MAX + 2];
};

struct serving {
    struct serving *next;
    struct reach_listener *listener;
};

struct node_checks {
    uv_loop_t *loop;
    char node[256], address[256], program[PATH_MAX];
    char spawnd[SPAWN_SOCKET_MAX];
    struct listen_ports ports;
    struct worker_limits limits;
    bool peers, secure;
    struct rpc_tls tls;
    void (*look)(const void *settings, void (*found)(void *data, const char *what, bool wrong, const char *text),
                 void *data);
    const void *settings;
    bool (*reported)(const Titan__Internal__NodeChecked *answer, void *data);
    void *data;
    uv_timer_t again;
    uint64_t session;
    struct placement *placement;            /* the check for the acknowledgement; NULL = none in this session */
    bool looking;                           /* a look at the placement is in progress */
    bool looked, unhooked;                  /* looked: in this session; unhooked: the hooks have not run yet */
    char folders[TEXT_MAX], hook[TEXT_MAX]; /* problems: of the folders, of the hooks */
    char last[TEXT_MAX];                    /* last report about both */
    struct site_hooks *hooks;               /* NULL = none */
    bool (*idle)(void *data);               /* of the hooks' options */
    void *idle_data;
    struct file_pool *files; /* the checks have their own pool, so that a hang blocks no worker's start */
    struct serving *serving;
    size_t requests;
    int works;
    bool closing;
    void (*done)(void *);
    void *done_data;
};

static void set_finding(struct finding *f, const char *what, bool wrong, const char *fmt, va_list ap)
{
    f->what = what;
    f->wrong = wrong;
    (void)vsnprintf(f->text, sizeof(f->text), fmt, ap);
    range_fit_text(f->text, sizeof(f->text));
}

static void found(struct look *k, const char *what, bool wrong, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void found(struct look *k, const char *what, bool wrong, const char *fmt, ...)
{
    va_list ap;
    titan_assert(k->n_findings < FINDINGS_MAX);
    va_start(ap, fmt);
    set_finding(&k->findings[k->n_findings++], what, wrong, fmt, ap);
    va_end(ap);
}

static const char *look_name(const struct look *k)
{
    switch (k->kind) {
    case LOOK_FOLDERS:
        return "folders";
    case LOOK_ROOT:
        return k->writes ? "checkpoint_root" : "data_root";
    case LOOK_REACH:
        return "tcp";
    case LOOK_NODE:
        break;
    }
    return "node";
}

/* --- on a thread -------------------------------------------------------------------------------------------------- */

static void describe(char text[TEXT_MAX], const struct titan_error *err)
{
    (void)snprintf(text, TEXT_MAX, "%.250s%s%.120s%s", err->msg, err->hint[0] ? " (" : "", err->hint,
                   err->hint[0] ? ")" : "");
    range_fit_text(text, TEXT_MAX);
}

static void found_setting(void *data, const char *what, bool wrong, const char *text)
{
    found(data, !strcmp(what, "http") ? "http" : "config", wrong, "%s", text);
}

static void look_at_node(struct look *k)
{
    struct titan_error err = {0};
    const long long skew = (long long)k->of.skew_ms;
    const bool far = llabs(skew) > SKEW_MS;
    found(k, "clock", far, "%+lld ms against the coordinator's%s", skew,
          far ? ": times in events and logs mislead, certificates may not be valid" : "");
    bool same = !strcmp(k->of.version, titan_version);
    found(k, "version", !same, same ? "%s" : "%s, the coordinator's is %s", titan_version, k->of.version);
    bool runs = access(k->of.program, X_OK) == 0;
    found(k, "worker", !runs, "%.250s%s%s", k->of.program, runs ? "" : ": ", runs ? "" : strerror(errno));

    /* Cgroups, users and limits of the workers. */
    char home[PATH_MAX], probe[PATH_MAX + 32];
    const bool can_make = !k->of.spawnd[0] && worker_cgroup_home(home); /* titan-spawnd makes its own cgroups */
    if (!k->of.spawnd[0] && !can_make)
        found(k, "cgroup", true,
              "no cgroup of version 2 with cgroup.kill (Linux 5.14): workers are killed by group only");
    if (can_make) {
        (void)snprintf(probe, sizeof(probe), "%s/titan-probe-%d", home, (int)getpid());
        bool made = mkdir(probe, 0755) == 0;
        if (made)
            (void)rmdir(probe);
        found(k, "cgroup", !made,
              made ? "workers get cgroups in %s" : "cannot make cgroups in %s: the unit wants Delegate=yes", home);
    }

    struct worker_limits_held held;
    char memory[UNITS_TEXT];
    const struct cgroup_limits *site = &k->of.limits.site;
    worker_limits_look(k->of.spawnd, &held);
    if (k->of.spawnd[0])
        found(k, "users", held.unknown, held.unknown ? "no job starts here: %s" : "workers are their jobs' users%s",
              held.unknown ? held.why : "");
    if (!held.unknown && worker_limits_unheld(&k->of.limits, &held))
        found(k, "limits", true, "agent.worker_memory and worker_cpus cannot be held: %s", held.why);
    else if (!held.unknown && held.why[0])
        found(k, "limits", false, "memory and processors of workers cannot be limited: %s", held.why);
    else if (!held.unknown && !site->memory && !site->cpus)
        found(k, "limits", false, "workers get what their jobs ask for ([resources]), else all there is");
    else if (!held.unknown)
        found(k, "limits", false, "a worker gets at most %s of memory and %g processors",
              format_bytes(site->memory ? site->memory : k->of.limits.machine.memory, memory),
              (site->cpus ? site->cpus : k->of.limits.machine.cpus) / 1000.0);

    struct rlimit files = {0}, locked = {0};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)getrlimit(RLIMIT_MEMLOCK, &locked);
    found(k, "files", files.rlim_max < FILES_LEAST, "%llu descriptors (LimitNOFILE=)%s",
          (unsigned long long)files.rlim_max, files.rlim_max < FILES_LEAST ? ": 4096 or more are wanted" : "");
    if (locked.rlim_cur == RLIM_INFINITY)
        found(k, "memlock", false, "memory can be locked without limit");
    else
        found(k, "memlock", true,
              "%llu KiB can be locked (LimitMEMLOCK=): titand may be paged out, and RDMA needs more",
              (unsigned long long)locked.rlim_cur / 1024);

    struct pki_certificate certificate;
    const int64_t now = clock_wall_ms();
    char until[32];
    if (k->of.secure && certs_check(&k->of.tls, now, &certificate, &err) != TITAN_OK)
        found(k, "certificate", true, "%.300s", err.msg);
    else if (k->of.secure)
        found(k, "certificate", certificate.until_ms - now < SOON_MS, "%s, good until %s", certificate.name,
              clock_format(certificate.until_ms, until));
    if (k->of.peers && !peers_address_is_here(k->of.address))
        found(k, "peers", true,
              "this machine does not have the address %s (agent.address): other nodes do not reach it", k->of.address);
    else
        found(k, "peers", !k->of.peers,
              k->of.peers ? "a socket for other agents at %s" : "no socket for other agents at %s", k->of.address);
    if (k->of.look)
        k->of.look(k->of.settings, found_setting, k);
    if (k->of.listens && reach_listen(k->of.address, &k->of.ports, &k->fd, &k->port, &err) != TITAN_OK)
        found(k, "tcp", true, "workers cannot listen here: %.200s", err.msg);
}

static void look(struct file_task *task)
{
    struct look *k = (struct look *)(void *)task;
    if (k->kind == LOOK_NODE) {
        look_at_node(k);
        return;
    }
    if (k->kind == LOOK_REACH) { /* connects to other nodes as workers do */
        char reached[TEXT_MAX - 40] = "";
        reach_try(k->reach.list, k->reach.n, CONNECT_MS);
        for (size_t i = 0; i < k->reach.n; i++) {
            const struct reach_target *t = &k->reach.list[i];
            const size_t len = strlen(reached);
            if (t->problem[0])
                found(k, "tcp", true,
                      "node %s does not reach node %s at %s (TCP, as workers do): %s; open TCP between nodes for the "
                      "ports of net.ipv4.ip_local_port_range, or mend agent.address there",
                      k->node, t->node, t->address, t->problem);
            else
                (void)snprintf(reached + len, sizeof(reached) - len, "%s%s", len ? ", " : "", t->node);
        }
        if (reached[0])
            found(k, "tcp", false, "reaches %s as workers do", reached);
        return;
    }
    struct titan_error err = {0};
    char why[TEXT_MAX];
    titan_status status = k->kind == LOOK_ROOT ? jobs_dir_check_root(k->path, k->writes, k->node, k->mark, &err)
                                               : jobs_check(k->path, k->jobs.token, k->node, &err);
    describe(why, &err);
    if (status != TITAN_OK)
        found(k, look_name(k), true, "%s", why);
    else if (k->kind == LOOK_ROOT)
        found(k, look_name(k), false, "%.300s: %s", k->path, k->writes ? "can be written" : "can be read");
    else
        found(k, look_name(k), false, "%.300s", k->path);
    const bool by_users = k->kind == LOOK_FOLDERS && status == TITAN_OK && k->jobs.by_users;
    bool open_to_all = true;
    for (size_t len = 1; by_users && open_to_all && len;
         len = k->path[len] ? len + 1 + strcspn(k->path + len + 1, "/") : 0) {
        char part[PATH_MAX];
        struct stat st;
        (void)snprintf(part, sizeof(part), "%.*s", (int)len, k->path);
        open_to_all = stat(part, &st) != 0 || st.st_mode & S_IXOTH;
        if (!open_to_all)
            found(k, "users", true,
                  "workers that are their jobs' users do not get to %.300s: %.300s lacks x for all users (chmod o+x)",
                  k->path, part);
    }
}

static void look_at_placement(struct file_task *task)
{
    struct placement *p = (struct placement *)(void *)task;
    struct titan_error err = {0};
    p->problem[0] = '\0';
    if (jobs_check(p->jobs_dir, p->token, p->node, &err) != TITAN_OK)
        describe(p->problem, &err);
}

/* Frees a look whose answer is sent or no longer needed. */
static void look_free(struct file_task *task)
{
    struct look *k = (struct look *)(void *)task;
    if (k->fd >= 0)
        (void)close(k->fd);
    free(k);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void finish(struct node_checks *c)
{
    if (c->closing && c->works == 0 && c->done) {
        void (*done)(void *) = TAKE(c->done);
        void *data = c->done_data;
        free(c->placement);
        free(c);
        done(data);
    }
}

static void on_listener_closed(struct reach_listener *l, void *data)
{
    struct node_checks *c = data;
    struct serving **at = &c->serving;
    while ((*at)->listener != l)
        at = &(*at)->next;
    struct serving *s = *at;
    *at = s->next;
    free(s);
    c->works--;
    finish(c);
}

static void answer(struct request *r)
{
    struct node_checks *c = r->owner;
    Titan__Internal__NodeChecked m = TITAN__INTERNAL__NODE_CHECKED__INIT;
    Titan__Internal__NodeFinding bodies[ROOTS_MAX], *list[ROOTS_MAX];
    Titan__Internal__RootMark marks[ROOTS_MAX], *mark_list[ROOTS_MAX];
    m.request_id = r->id;
    m.findings = list;
    m.roots = mark_list;
    m.reaches = true;
    for (size_t i = 0; i < r->n; i++) {
        struct look *k = r->places[i].look;
        const struct finding *f = k ? k->findings : &r->places[i].lost;
        for (size_t n = k ? k->n_findings : 1; n > 0 && m.n_findings < ROOTS_MAX; n--, f++) {
            Titan__Internal__NodeFinding *b = &bodies[m.n_findings];
            titan__internal__node_finding__init(b);
            b->what = (char *)(uintptr_t)f->what;
            b->wrong = f->wrong;
            b->text = (char *)(uintptr_t)f->text;
            list[m.n_findings++] = b;
        }
        if (k && k->kind == LOOK_ROOT && m.n_roots < ROOTS_MAX) {
            Titan__Internal__RootMark *mark = &marks[m.n_roots];
            titan__internal__root_mark__init(mark);
            mark->path = k->path;
            mark->mark = k->mark;
            mark_list[m.n_roots++] = mark;
        }
        /* Lets other nodes connect for LISTEN_MS; port 0 = no port could be opened. */
        const bool serves = k && k->kind == LOOK_NODE && k->fd >= 0 && !c->closing && r->session == c->session;
        struct serving *s = serves ? calloc(1, sizeof(*s)) : NULL;
        if (s && (s->listener = reach_serve(c->loop, TAKE_FD(k->fd), r->listen, LISTEN_MS, on_listener_closed, c))) {
            s->next = c->serving;
            c->serving = s;
            c->works++;
            m.port = k->port;
        } else {
            free(s);
        }
    }
    if (!c->closing && r->session == c->session)
        (void)c->reported(&m, c->data);
    for (size_t i = 0; i < r->n; i++)
        if (r->places[i].look)
            look_free(&r->places[i].look->task);
    free(r);
    c->requests--;
    c->works--;
    finish(c);
}

/* --- looks of a request ------------------------------------------------------------------------------------------- */

static void checked(struct file_task *task)
{
    struct look *k = (struct look *)(void *)task;
    struct request *r = k->request;
    r->places[k->place].look = k;
    if (--r->open == 0)
        answer(r);
}

static void lost(const struct look *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void lost(const struct look *k, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_finding(&k->request->places[k->place].lost, look_name(k), true, fmt, ap);
    va_end(ap);
}

static void given_up(struct file_task *task, bool started)
{
    struct look *k = (struct look *)(void *)task;
    struct request *r = k->request;
    if (k->kind == LOOK_FOLDERS || k->kind == LOOK_ROOT)
        lost(k, "%.250s does not answer within %d s: is its file server there?", k->path, LOOK_MS / 1000);
    else
        lost(k, "not through within %d s: names of nodes are looked up too slowly, or file servers do not answer",
             LOOK_MS / 1000);
    if (!started)
        look_free(&k->task);
    if (--r->open == 0)
        answer(r);
}

static struct look *add_look(struct request *r, enum look_kind kind, const char *path)
{
    struct look *k = r->n < ARRAY_SIZE(r->places) ? calloc(1, sizeof(*k)) : NULL;
    if (!k)
        return NULL;
    k->request = r;
    k->kind = kind;
    k->place = r->n++;
    k->fd = -1;
    (void)snprintf(k->node, sizeof(k->node), "%s", r->owner->node);
    (void)snprintf(k->path, sizeof(k->path), "%s", path);
    k->task.key = path[0] ? k->path : NULL;
    r->open++;
    return k;
}

static void start_look(struct look *k)
{
    static const struct file_calls calls = {.run = look, .done = checked, .given_up = given_up, .free = look_free};
    struct request *r = k->request;
    struct titan_error err = {0};
    if (file_pool_add(r->owner->files, &k->task, &calls, sizeof(*k), &err) == TITAN_OK)
        return;
    lost(k, "%.100s not looked at: %.200s", k->path, err.msg);
    look_free(&k->task);
    r->open--;
}

/* --- the acknowledgement's ---------------------------------------------------------------------------------------- */

static void start(struct placement *p);

static void on_again(uv_timer_t *timer)
{
    struct node_checks *c = timer->data;
    if (c->placement && !c->looking)
        start(c->placement);
}

/* Reports a new result, once folders and hooks are known. */
static void report(struct node_checks *c)
{
    Titan__Internal__NodeChecked answer = TITAN__INTERNAL__NODE_CHECKED__INIT;
    answer.problem = c->folders[0] ? c->folders : c->hook;
    if (!c->closing && c->placement && c->looked && !c->unhooked && strcmp(c->last, answer.problem) != 0 &&
        c->reported(&answer, c->data))
        (void)snprintf(c->last, sizeof(c->last), "%s", answer.problem);
    if (!c->closing && c->placement && c->looked && (c->folders[0] || strcmp(c->last, answer.problem) != 0))
        (void)uv_timer_start(&c->again, on_again, AGAIN_MS, 0);
}

static void on_hooked(const char *problem, void *data)
{
    struct node_checks *c = data;
    c->unhooked = false;
    (void)snprintf(c->hook, sizeof(c->hook), "%s", problem);
    report(c);
}

static bool may_hook(void *data)
{
    const struct node_checks *c = data;
    return c->idle(c->idle_data);
}

/* Takes a result. Frees p unless it is reused for the next look. */
static void placement_checked(struct file_task *task)
{
    struct placement *p = (struct placement *)(void *)task;
    struct node_checks *c = p->owner;
    titan_assert(c->works > 0 && c->looking);
    c->works--;
    c->looking = false;
    if (p != c->placement) { /* another session has asked since */
        free(p);
        if (c->placement && !c->closing)
            start(c->placement);
        finish(c);
        return;
    }
    memcpy(c->folders, p->problem, sizeof(c->folders));
    c->looked = true;
    report(c);
    finish(c);
}

static struct placement *placement_new(struct node_checks *c, const char *jobs_dir, const char *token)
{
    struct placement *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->owner = c;
    p->task.key = p->jobs_dir;
    (void)snprintf(p->node, sizeof(p->node), "%s", c->node);
    (void)snprintf(p->jobs_dir, sizeof(p->jobs_dir), "%s", jobs_dir);
    (void)snprintf(p->token, sizeof(p->token), "%s", token);
    return p;
}

/* The thread of a started look still uses p. So a new struct replaces p for the report and the next look. */
static void placement_given_up(struct file_task *task, bool started)
{
    struct placement *p = (struct placement *)(void *)task, *other = p;
    struct node_checks *c = p->owner;
    if (started) {
        other = placement_new(c, p->jobs_dir, p->token);
        titan_assert(other);
        if (c->placement == p)
            c->placement = other;
    }
    (void)snprintf(other->problem, sizeof(other->problem), "the jobs' folder '%.250s' does not answer within %d s",
                   other->jobs_dir, LOOK_MS / 1000);
    placement_checked(&other->task);
}

static void start(struct placement *p)
{
    static const struct file_calls calls = {
        .run = look_at_placement, .done = placement_checked, .given_up = placement_given_up};
    struct node_checks *c = p->owner;
    struct titan_error err = {0};
    titan_assert(!c->closing && !c->looking);
    c->works++;
    c->looking = true;
    if (file_pool_add(c->files, &p->task, &calls, sizeof(*p), &err) != TITAN_OK) {
        describe(p->problem, &err);
        placement_checked(&p->task);
    }
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

void node_checks_ask(struct node_checks *c, const Titan__Internal__CheckNode *m)
{
    if (c->closing)
        return;
    if (m->request_id == 0) { /* the acknowledgement asks, not an operator */
        struct placement *p = placement_new(c, m->jobs_dir, m->token);
        if (!p)
            return;
        node_checks_forget(c);
        c->placement = p;
        c->looked = false;
        (void)snprintf(c->last, sizeof(c->last), "?"); /* so the next result counts as new */
        if (!c->looking)
            start(p);
        return;
    }
    struct request *r = c->requests < AT_ONCE ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return;
    r->owner = c;
    r->session = c->session;
    r->id = m->request_id;
    if (m->listen.len == REACH_TOKEN_BYTES)
        memcpy(r->listen, m->listen.data, sizeof(r->listen));
    c->requests++;
    c->works++;
    r->open = 1; /* holds the request until all looks are started */

    /* Looks at the nodes that the request names. If the request names no node, looks at all parts of this node. */
    struct look *k = m->n_reach > 0 ? add_look(r, LOOK_REACH, "") : NULL;
    for (size_t i = 0; k && i < m->n_reach && k->reach.n < TARGETS_MAX; i++) {
        struct reach_target *t = &k->reach.list[k->reach.n++];
        (void)snprintf(t->node, sizeof(t->node), "%s", m->reach[i]->node);
        (void)snprintf(t->address, sizeof(t->address), "%s", m->reach[i]->address);
        memcpy(t->token, m->reach[i]->token.data, sizeof(t->token)); /* range_check() has checked the length */
    }
    if (k)
        start_look(k);

    if (m->n_reach == 0 && (k = add_look(r, LOOK_FOLDERS, m->jobs_dir))) {
        (void)snprintf(k->jobs.token, sizeof(k->jobs.token), "%s", m->token);
        k->jobs.by_users = c->spawnd[0];
        start_look(k);
    }
    if (m->n_reach == 0 && (k = add_look(r, LOOK_NODE, ""))) {
        k->of.skew_ms = clock_wall_ms() - m->wall_ms;
        k->of.peers = c->peers;
        k->of.secure = c->secure;
        k->of.tls = c->tls;
        k->of.look = c->look;
        k->of.settings = c->settings;
        k->of.listens = m->listen.len == REACH_TOKEN_BYTES;
        (void)snprintf(k->of.program, sizeof(k->of.program), "%s", c->program);
        (void)snprintf(k->of.address, sizeof(k->of.address), "%s", c->address);
        k->of.ports = c->ports;
        k->of.limits = c->limits;
        (void)snprintf(k->of.spawnd, sizeof(k->of.spawnd), "%s", c->spawnd);
        (void)snprintf(k->of.version, sizeof(k->of.version), "%s", m->version);
        start_look(k);
    }
    for (size_t i = 0; m->n_reach == 0 && i < m->n_roots; i++) {
        if ((k = add_look(r, LOOK_ROOT, m->roots[i]->path))) {
            k->writes = m->roots[i]->writes;
            start_look(k);
        }
    }

    if (--r->open == 0)
        answer(r);
}

void node_checks_forget(struct node_checks *c)
{
    c->session++;
    (void)uv_timer_stop(&c->again);
    if (!c->looking)
        free(c->placement);
    c->placement = NULL; /* a look in progress is freed when it ends */
}

titan_status node_checks_open(uv_loop_t *loop, const struct node_checks_options *o,
                              bool (*reported)(const Titan__Internal__NodeChecked *answer, void *data), void *data,
                              struct node_checks **ret, struct titan_error *err)
{
    struct node_checks *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    titan_status status = file_pool_open(loop, LOOK_MS, &c->files, err);
    if (status == TITAN_OK && o->hooks) {
        struct site_hooks_options hooks = *o->hooks;
        c->unhooked = true;
        c->idle = hooks.idle;
        c->idle_data = hooks.data;
        hooks.idle = may_hook;
        hooks.checked = on_hooked;
        hooks.data = c;
        status = site_hooks_open(loop, &hooks, &c->hooks, err);
        if (status != TITAN_OK)
            file_pool_close(c->files, NULL, NULL);
    }
    if (status != TITAN_OK) {
        free(c);
        return status;
    }
    c->loop = loop;
    c->reported = reported;
    c->data = data;
    c->peers = o->peers;
    c->secure = o->tls != NULL;
    c->look = o->look;
    c->settings = o->settings;
    if (o->tls)
        c->tls = *o->tls;
    (void)snprintf(c->node, sizeof(c->node), "%s", o->node);
    (void)snprintf(c->address, sizeof(c->address), "%s", o->address);
    c->ports = o->ports;
    c->limits = o->limits;
    (void)snprintf(c->spawnd, sizeof(c->spawnd), "%s", o->spawnd ? o->spawnd : "");
    (void)snprintf(c->program, sizeof(c->program), "%s", o->program);
    (void)uv_timer_init(loop, &c->again);
    c->again.data = c;
    *ret = c;
    return TITAN_OK;
}

static void on_part_closed(struct node_checks *c)
{
    c->works--;
    finish(c);
}

static void on_timer_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

static void on_pool_closed(void *data)
{
    on_part_closed(data);
}

void node_checks_close(struct node_checks *c, void (*done)(void *), void *data)
{
    titan_assert(!c->closing);
    c->closing = true;
    c->done = done;
    c->done_data = data;
    c->works += 3;
    for (const struct serving *s = c->serving; s; s = s->next)
        reach_end(s->listener);
    uv_close((uv_handle_t *)&c->again, on_timer_closed);
    site_hooks_close(c->hooks, on_pool_closed, c);
    file_pool_close(c->files, on_pool_closed, c); /* answers of abandoned looks go nowhere */
}
