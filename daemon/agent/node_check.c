/* SPDX-License-Identifier: Apache-2.0 */
/* node_check.c - see node_check.h. */
#include "daemon/agent/node_check.h"

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
#include "base/version.h"
#include "daemon/agent/worker_process.h"
#include "daemon/auth/certs.h"
#include "daemon/file_pool.h"
#include "daemon/jobs_dir.h"

#define AGAIN_MS 5000 /* while jobs cannot have their folders here */
#define AT_ONCE 8     /* of operators */
#define SKEW_MS 1000
#define FILES_LEAST 4096
#define SOON_MS INT64_C(86400000) /* renewed at two thirds of its life: a day before the end something is wrong */
#define FINDINGS_MAX 10
#define TEXT_MAX 400

struct finding {
    const char *what;
    bool wrong;
    char text[TEXT_MAX];
};

struct check {
    struct file_task task; /* first */
    struct node_checks *owner;
    uint64_t session; /* of owner's, when it was asked */
    uint64_t request_id;
    char jobs_dir[PATH_MAX], token[JOBS_TOKEN_MAX], version[64];
    int64_t skew_ms; /* ours against the coordinator's */
    char problem[TEXT_MAX];
    struct finding findings[FINDINGS_MAX];
    size_t n_findings;
};

/* Lives as long as a thread has a check, whatever becomes of the agent. */
struct node_checks {
    struct file_pool *files;
    atomic_int refs; /* checks, and the loop */
    char node[256], address[256], program[PATH_MAX];
    bool peers, sealed;
    struct rpc_tls tls;
    bool (*said)(const Titan__Internal__NodeChecked *answer, void *data);
    void *data;
    uv_timer_t again;
    uint64_t session;
    struct check *placement; /* of the welcome; NULL: none was asked in this session */
    bool looking;            /* ... and it is on its way */
    char last[TEXT_MAX];     /* ... what was said of it */
    int works;
    bool closing;
    void (*done)(void *);
    void *done_data;
};

static void found(struct check *k, const char *what, bool wrong, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void found(struct check *k, const char *what, bool wrong, const char *fmt, ...)
{
    va_list ap;
    struct finding *f = &k->findings[k->n_findings++];
    titan_assert(k->n_findings <= FINDINGS_MAX);
    f->what = what;
    f->wrong = wrong;
    va_start(ap, fmt);
    (void)vsnprintf(f->text, sizeof(f->text), fmt, ap);
    va_end(ap);
}

/* --- on the pool's thread ----------------------------------------------------------------------------------------- */

static void look_at_folders(struct check *k)
{
    struct titan_error err = {0};
    if (jobs_check(k->jobs_dir, k->token, k->owner->node, &err) != TITAN_OK)
        (void)snprintf(k->problem, sizeof(k->problem), "%.250s%s%.120s%s", err.msg, err.hint[0] ? " (" : "", err.hint,
                       err.hint[0] ? ")" : "");
}

static void look_at_cgroups(struct check *k)
{
    char home[PATH_MAX], probe[PATH_MAX + 32];
    if (!worker_process_home(home)) {
        found(k, "cgroup", true,
              "no cgroup of version 2 with cgroup.kill (Linux 5.14): workers are killed by group only");
        return;
    }
    (void)snprintf(probe, sizeof(probe), "%s/titan-probe-%d", home, (int)getpid());
    bool made = mkdir(probe, 0755) == 0;
    if (made)
        (void)rmdir(probe);
    found(k, "cgroup", !made,
          made ? "workers get cgroups in %s" : "cannot make cgroups in %s: the unit wants Delegate=yes", home);
}

static void look_at_limits(struct check *k)
{
    struct rlimit files = {0}, memory = {0};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)getrlimit(RLIMIT_MEMLOCK, &memory);
    found(k, "files", files.rlim_max < FILES_LEAST, "%llu descriptors (LimitNOFILE=)%s",
          (unsigned long long)files.rlim_max, files.rlim_max < FILES_LEAST ? ": 4096 or more are wanted" : "");
    if (memory.rlim_cur == RLIM_INFINITY)
        found(k, "memlock", false, "memory can be locked without limit");
    else
        found(k, "memlock", true,
              "%llu KiB can be locked (LimitMEMLOCK=): titand may be paged out, and RDMA needs more",
              (unsigned long long)memory.rlim_cur / 1024);
}

static void look_at_certificate(struct check *k)
{
    struct titan_error err = {0};
    struct pki_certificate certificate;
    const int64_t now = clock_wall_ms();
    char until[32];
    if (!k->owner->sealed)
        return;
    if (certs_check(&k->owner->tls, now, &certificate, &err) != TITAN_OK)
        found(k, "certificate", true, "%.300s", err.msg);
    else
        found(k, "certificate", certificate.until_ms - now < SOON_MS, "%s, good until %s", certificate.name,
              clock_format(certificate.until_ms, until));
}

static void look(struct file_task *task)
{
    struct check *k = (struct check *)(void *)task;
    const struct node_checks *c = k->owner;
    k->n_findings = 0;
    k->problem[0] = '\0';
    look_at_folders(k);
    if (k->request_id == 0)
        return;
    found(k, "folders", k->problem[0] != '\0', "%s", k->problem[0] ? k->problem : k->jobs_dir);
    found(k, "clock", llabs(k->skew_ms) > SKEW_MS, "%+" PRId64 " ms against the coordinator's%s", k->skew_ms,
          llabs(k->skew_ms) > SKEW_MS ? ": times in events and logs mislead, certificates may not be valid" : "");
    bool same = !strcmp(k->version, titan_version);
    found(k, "version", !same, same ? "%s" : "%s, the coordinator's is %s", titan_version, k->version);
    bool runs = access(c->program, X_OK) == 0;
    found(k, "worker", !runs, "%s%s%s", c->program, runs ? "" : ": ", runs ? "" : strerror(errno));
    look_at_cgroups(k);
    look_at_limits(k);
    look_at_certificate(k);
    found(k, "peers", !c->peers, c->peers ? "a socket for other agents at %s" : "no socket for other agents at %s",
          c->address);
}

/* --- on the loop -------------------------------------------------------------------------------------------------- */

static bool say(struct node_checks *c, const struct check *k)
{
    Titan__Internal__NodeChecked answer = TITAN__INTERNAL__NODE_CHECKED__INIT;
    Titan__Internal__NodeFinding bodies[FINDINGS_MAX], *list[FINDINGS_MAX];
    answer.request_id = k->request_id;
    answer.problem = (char *)k->problem;
    for (size_t i = 0; i < k->n_findings; i++) {
        titan__internal__node_finding__init(&bodies[i]);
        bodies[i].what = (char *)k->findings[i].what;
        bodies[i].wrong = k->findings[i].wrong;
        bodies[i].text = (char *)k->findings[i].text;
        list[i] = &bodies[i];
    }
    answer.n_findings = k->n_findings;
    answer.findings = list;
    return c->said(&answer, c->data);
}

static void release(struct node_checks *c)
{
    if (atomic_fetch_sub(&c->refs, 1) == 1)
        free(c);
}

static void check_free(struct file_task *task)
{
    struct check *k = (struct check *)(void *)task;
    release(k->owner);
    free(k);
}

static struct check *check_new(struct node_checks *c, uint64_t request_id)
{
    struct check *k = calloc(1, sizeof(*k));
    if (!k)
        return NULL;
    atomic_fetch_add(&c->refs, 1);
    k->owner = c;
    k->session = c->session;
    k->request_id = request_id;
    k->task.key = k->jobs_dir;
    return k;
}

static void finish(struct node_checks *c)
{
    if (c->closing && c->works == 0 && c->done) {
        void (*done)(void *) = TAKE(c->done);
        void *data = c->done_data;
        if (c->placement)
            check_free(&TAKE(c->placement)->task);
        release(c);
        done(data);
    }
}

static void start(struct check *k);

static void on_again(uv_timer_t *timer)
{
    struct node_checks *c = timer->data;
    if (c->placement && !c->looking)
        start(c->placement);
}

/* With what was seen. k is freed, unless it is the one that is looked at again. */
static void tell(struct check *k)
{
    struct node_checks *c = k->owner;
    if (k->request_id != 0) {
        if (!c->closing && k->session == c->session)
            (void)say(c, k);
        check_free(&k->task);
        return;
    }
    if (k != c->placement) { /* another session has asked again */
        check_free(&k->task);
        if (c->placement && !c->closing)
            start(c->placement);
        return;
    }
    if (!c->closing && strcmp(c->last, k->problem) != 0 && say(c, k))
        memcpy(c->last, k->problem, sizeof(c->last));
    if (!c->closing && c->last[0])
        (void)uv_timer_start(&c->again, on_again, AGAIN_MS, 0);
}

static void looked(struct file_task *task)
{
    struct check *k = (struct check *)(void *)task;
    struct node_checks *c = k->owner;
    titan_assert(c->works > 0 && (k->request_id != 0 || c->looking));
    c->works--;
    if (k->request_id == 0)
        c->looking = false;
    tell(k);
    finish(c);
}

/* A thread may have it still: what is told is a copy. */
static void given_up(struct file_task *task, bool started)
{
    struct check *k = (struct check *)(void *)task, *copy = check_new(k->owner, k->request_id);
    titan_assert(copy);
    copy->session = k->session;
    memcpy(copy->jobs_dir, k->jobs_dir, sizeof(copy->jobs_dir));
    memcpy(copy->token, k->token, sizeof(copy->token));
    memcpy(copy->version, k->version, sizeof(copy->version));
    copy->skew_ms = k->skew_ms;
    (void)snprintf(copy->problem, sizeof(copy->problem), "the jobs' folder '%.250s' has not answered for %u ms",
                   copy->jobs_dir, file_pool_deadline_ms(k->owner->files));
    if (k->request_id != 0)
        found(copy, "folders", true, "%s", copy->problem);
    if (k->owner->placement == k)
        k->owner->placement = copy;
    looked(&copy->task);
    if (!started)
        check_free(task);
}

static void start(struct check *k)
{
    static const struct file_calls calls = {.run = look, .done = looked, .given_up = given_up, .free = check_free};
    struct node_checks *c = k->owner;
    struct titan_error err = {0};
    titan_assert(!c->closing && (k->request_id != 0 || !c->looking));
    if (file_pool_add(c->files, &k->task, &calls, sizeof(*k), &err) == TITAN_OK) {
        c->works++;
        c->looking |= k->request_id == 0;
    } else {
        (void)snprintf(k->problem, sizeof(k->problem), "%.300s", err.msg);
        tell(k);
    }
}

void node_checks_ask(struct node_checks *c, const Titan__Internal__CheckNode *m)
{
    struct check *k = c->closing || c->works >= AT_ONCE ? NULL : check_new(c, m->request_id);
    if (!k)
        return;
    k->skew_ms = clock_wall_ms() - m->wall_ms;
    (void)snprintf(k->jobs_dir, sizeof(k->jobs_dir), "%s", m->jobs_dir);
    (void)snprintf(k->token, sizeof(k->token), "%s", m->token);
    (void)snprintf(k->version, sizeof(k->version), "%s", m->version);
    if (k->request_id != 0) {
        start(k);
        return;
    }
    node_checks_forget(c);
    k->session = c->session;
    c->placement = k;
    (void)snprintf(c->last, sizeof(c->last), "?"); /* whatever it is, it is news */
    if (!c->looking)
        start(k);
}

void node_checks_forget(struct node_checks *c)
{
    c->session++;
    (void)uv_timer_stop(&c->again);
    if (!c->looking && c->placement)
        check_free(&c->placement->task);
    c->placement = NULL; /* one that is on its way is freed when it comes back */
}

titan_status node_checks_open(uv_loop_t *loop, const struct node_checks_options *o,
                              bool (*said)(const Titan__Internal__NodeChecked *answer, void *data), void *data,
                              struct node_checks **ret, struct titan_error *err)
{
    struct node_checks *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    c->files = o->files;
    atomic_init(&c->refs, 1);
    c->said = said;
    c->data = data;
    c->peers = o->peers;
    c->sealed = o->tls != NULL;
    if (o->tls)
        c->tls = *o->tls;
    (void)snprintf(c->node, sizeof(c->node), "%s", o->node);
    (void)snprintf(c->address, sizeof(c->address), "%s", o->address);
    (void)snprintf(c->program, sizeof(c->program), "%s", o->program);
    (void)uv_timer_init(loop, &c->again);
    c->again.data = c;
    *ret = c;
    return TITAN_OK;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct node_checks *c = handle->data;
    c->works--;
    finish(c);
}

void node_checks_close(struct node_checks *c, void (*done)(void *), void *data)
{
    titan_assert(!c->closing);
    c->closing = true;
    c->done = done;
    c->done_data = data;
    c->works++;
    uv_close((uv_handle_t *)&c->again, on_timer_closed);
}
