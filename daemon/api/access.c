/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's identity, its rights, and the audit record of its calls. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/slowest.h"
#include "daemon/api/api.h"
#include "daemon/coordinator/shell/enrol.h"
#include "proto/ranges.h"

#define REVIEW_LOOK_MAX_MS INT64_C(60000)

void api_user(const struct coordinator *c, const struct rpc_call *call, struct auth_user *ret)
{
    auth_resolve(c->auth, rpc_call_identity(call), clock_wall_ms(), ret);
}

const char *api_user_key(struct arena *memory, const struct auth_user *u)
{
    return u->uid != JOB_NO_ID ? arena_printf(memory, "uid:%lld", (long long)u->uid)
                               : arena_printf(memory, "user:%s", u->name);
}

/* --- on record ---------------------------------------------------------------------------------------------------- */

static struct event event_of(struct arena *memory, const struct audit_record *r)
{
    const char *method = policy_method_short(r->method);
    const char *ending = r->outcome == TITAN_OK ? "" : r->outcome == TITAN_EPERM ? " refused" : " failed";
    char times[32] = "";
    if (r->count > 1)
        (void)snprintf(times, sizeof(times), ", %u times", r->count);
    _cleanup_(buf_free) struct buf detail = BUF_INIT;
    struct json_writer w = {.out = &detail};
    json_begin_object(&w, NULL);
    json_put_string(&w, "method", method);
    json_put_string(&w, "outcome", titan_status_name(r->outcome));
    if (r->count > 1)
        json_put_uint(&w, "count", r->count);
    if (*r->why)
        json_put_string(&w, "why", r->why);
    json_end_object(&w);
    return (struct event){.job_id = r->job_id,
                          .at_ms = clock_wall_ms(),
                          .type = r->outcome == TITAN_OK      ? EVENT_AUDIT "ok"
                                  : r->outcome == TITAN_EPERM ? EVENT_AUDIT "refused"
                                                              : EVENT_AUDIT "failed",
                          .message =
                              arena_printf(memory, "%s%s%s%s%s", method, ending, times, *r->why ? ": " : "", r->why),
                          .rank = -1,
                          .node = "",
                          .actor = arena_strdup(memory, r->actor),
                          .detail = arena_strdup(memory, buf_failed(&detail) ? "{}" : detail.data)};
}

static void add_event(struct batch *out, const struct audit_record *r)
{
    struct change *k = batch_change(out, CHANGE_EVENT);
    k->has_event = true;
    k->event = event_of(&out->memory, r);
}

static struct audit_record record_of(const struct auth_user *u, unsigned method, uint64_t job_id)
{
    titan_assert(method < POLICY_METHODS);
    struct audit_record r = {.method = method, .job_id = job_id, .count = 1};
    (void)snprintf(r.actor, sizeof(r.actor), "%s", u->actor);
    return r;
}

struct event api_audit_event(struct arena *memory, const struct auth_user *u, unsigned method, uint64_t job_id)
{
    struct audit_record r = record_of(u, method, job_id);
    return event_of(memory, &r);
}

void api_audit(struct batch *out, const struct auth_user *u, unsigned method, uint64_t job_id)
{
    struct audit_record r = record_of(u, method, job_id);
    for (struct change *k = out->changes; k; k = k->next)
        if (k->has_event)
            k->event.actor = batch_strdup(out, u->actor); /* the caller is the actor of every event in the batch */
    add_event(out, &r);
}

void api_on_record(struct coordinator *c, const char *actor, unsigned method)
{
    struct audit_record r = {.method = method, .count = 1};
    struct batch batch;
    (void)snprintf(r.actor, sizeof(r.actor), "%s", actor);
    if (shell_accepts(c, NULL) != TITAN_OK)
        return;
    batch_init(&batch);
    add_event(&batch, &r);
    shell_commit(c, &batch, NULL, NULL);
}

static void add_counted(const struct audit_record *r, void *data)
{
    titan_assert(r->count > 0);
    add_event(data, r);
}

static void on_audit_timer(uv_timer_t *timer)
{
    api_audit_flush(timer->data, false);
}

void api_audit_flush(struct coordinator *c, bool all)
{
    struct batch batch;
    int64_t now = clock_wall_ms();
    batch_init(&batch);
    int64_t next = audit_flush(c->audit, now, all, add_counted, &batch);
    if (next && !all)
        uv_timer_start(&c->audit_timer, on_audit_timer, (uint64_t)(next - now) + 1, 0);
    if (shell_accepts(c, NULL) == TITAN_OK)
        shell_commit(c, &batch, NULL, NULL);
    else
        batch_free(&batch);
}

/* Is the failure the caller's doing, or an attempt in vain? A lack of disk or memory is neither, and its record could
 * not be stored anyway. */
static bool of_caller(titan_status status)
{
    switch (status) {
    case TITAN_EPERM:
    case TITAN_EINVAL:
    case TITAN_ENOTFOUND:
    case TITAN_EEXIST:
    case TITAN_ECONFLICT:
    case TITAN_EUNPLACEABLE:
    case TITAN_EUNSUPPORTED:
    case TITAN_ELIMIT:
    case TITAN_EAGAIN:
        return true;
    default:
        return false;
    }
}

void api_failed(struct coordinator *c, const struct auth_user *u, unsigned method, uint64_t job_id,
                const struct titan_error *err)
{
    bool audited = err->status == TITAN_EPERM || (policy_audits(method) && of_caller(err->status));
    struct titan_error closed = {0};
    if (!c->auth || !audited || shell_accepts(c, &closed) != TITAN_OK)
        return; /* calls fail because the store accepts no write now */
    struct audit_record r = record_of(u, method, job_id);
    r.outcome = err->status;
    (void)snprintf(r.why, sizeof(r.why), "%.*s", (int)sizeof(r.why) - 1, err->msg);
    api_audit_flush(c, false);
    if (audit_failed(c->audit, &r, clock_wall_ms())) {
        struct batch batch;
        batch_init(&batch);
        add_event(&batch, &r);
        shell_commit(c, &batch, NULL, NULL);
        api_audit_flush(c, false); /* sets the time of the next count */
    }
}

void api_session_refused(struct coordinator *c, const struct rpc_call *call, const struct titan_error *why)
{
    struct auth_user u;
    api_user(c, call, &u);
    api_failed(c, &u, POLICY_SESSION, 0, why);
}

/* --- may it? ------------------------------------------------------------------------------------------------------ */

static void on_review_timer(uv_timer_t *timer)
{
    HANDLER("review");
    api_review(timer->data);
}

/* Sets the timer to review_at_ms, at most REVIEW_LOOK_MAX_MS ahead, since the wall clock may be set. */
static void set_review_timer(struct coordinator *c, int64_t now_ms)
{
    const int64_t wait = MIN(MAX(c->review_at_ms - now_ms, INT64_C(1)), REVIEW_LOOK_MAX_MS);
    if (!c->closing)
        (void)uv_timer_start(&c->review_timer, on_review_timer, (uint64_t)wait, 0);
}

static void note_end(struct coordinator *c, const struct rpc_identity *identity, int64_t now_ms)
{
    const int64_t until = identity->until_ms;
    if (until == 0 || (c->review_at_ms && c->review_at_ms <= until))
        return;
    c->review_at_ms = until;
    set_review_timer(c, now_ms);
}

titan_status api_admit(struct coordinator *c, const struct rpc_identity *identity, unsigned method,
                       struct auth_user *ret, struct titan_error *err)
{
    const int64_t now = clock_wall_ms();
    auth_resolve(c->auth, identity, now, ret);
    if (method != POLICY_VERSION && !shell_may_answer(c))
        return titan_fail(err, TITAN_EUNREACHABLE, "another coordinator may lead by now");
    TRY(enrol_admits(c->enrol, identity, now, err));
    if (c->auth)
        TRY(auth_admits(c->auth, identity, now, err));
    if (policy_look_up(method, ret->roles) == POLICY_NO)
        return titan_fail(err, TITAN_EPERM, "not permitted: %s is for %s; you are %s", policy_method_short(method),
                          policy_needs(method), ret->actor);
    note_end(c, identity, now);
    return TITAN_OK;
}

titan_status api_authorize(struct rpc_call *call, const struct rpc_method *method, void *data, struct titan_error *err)
{
    struct coordinator *c = data;
    const char *header = rpc_call_metadata(call, "authorization");
    const struct rpc_identity transport = *rpc_call_identity(call);
    struct rpc_identity identity = transport;
    struct auth_user u = {.roles = 0};
    titan_status status = TITAN_OK;
    if (header && c->auth) {
        const int64_t now = clock_wall_ms();
        status = enrol_admits(c->enrol, &transport, now, err); /* a token does not make up for a revoked certificate */
        if (status == TITAN_OK)
            status = auth_bearer(c->auth, header, &transport, now, &identity, err);
        if (identity.kind == RPC_ID_NONE)
            identity = transport;
    }
    if (status == TITAN_OK)
        status = api_admit(c, &identity, method->needs, &u, err);
    else
        auth_resolve(c->auth, &identity, clock_wall_ms(), &u);
    identity.roles = u.roles;
    rpc_call_set_identity(call, &identity);
    if (status != TITAN_OK)
        api_failed(c, &u, method->needs, 0, err);
    return status;
}

titan_status api_check(struct rpc_call *call, const struct rpc_method *method, const ProtobufCMessage *request,
                       void *data, struct titan_error *err)
{
    struct coordinator *c = data;
    struct auth_user u;
    titan_status status = api_admit(c, rpc_call_identity(call), method->needs, &u, err);
    if (status == TITAN_OK && !method->on_message) /* streams check each of their messages */
        status = range_check(request, err);
    if (status != TITAN_OK)
        api_failed(c, &u, method->needs, 0, err);
    return status;
}

titan_status api_may_go_on(struct rpc_call *call, const struct rpc_method *method, void *data, struct titan_error *err)
{
    struct coordinator *c = data;
    const struct rpc_identity *identity = rpc_call_identity(call);
    struct auth_user u;
    if (method->needs == POLICY_SESSION && session_takes_last_words(call))
        return TITAN_OK;
    TRY(api_admit(c, identity, method->needs, &u, err));
    if ((u.roles & identity->roles) == identity->roles)
        return TITAN_OK;
    return titan_fail(err, TITAN_EPERM, "a role of %s was taken away since %s began", u.actor,
                      policy_method_short(method->needs));
}

bool api_connection_may_go_on(const struct rpc_identity *identity, void *data)
{
    struct coordinator *c = data;
    const int64_t now = clock_wall_ms();
    if (enrol_admits(c->enrol, identity, now, NULL) != TITAN_OK)
        return false;
    note_end(c, identity, now);
    return true;
}

void api_review(struct coordinator *c)
{
    c->review_at_ms = 0;
    if (failpoint("api.review", NULL) != TITAN_OK)
        return; /* an open call stays open, to test the checks when a message arrives */
    for (size_t i = 0; i < ARRAY_SIZE(c->servers) && c->servers[i] && !c->closing; i++)
        rpc_server_review(c->servers[i]);
    if (c->review_at_ms)
        set_review_timer(c, clock_wall_ms());
}

struct owner_check {
    const struct auth_user *user;
    bool owns;
    char owner[sizeof(((struct auth_user *)0)->name)];
};

static void with_owner(const struct job *job, void *data)
{
    struct owner_check *check = data;
    check->owns = job_owned_by(job, &(struct job_owner){check->user->uid, check->user->name});
    (void)snprintf(check->owner, sizeof(check->owner), "%s", job->user);
}

bool api_sees_all(const struct coordinator *c, const struct auth_user *u, unsigned method)
{
    enum policy_cell cell = policy_look_up(method, u->roles);
    return cell == POLICY_YES || (cell == POLICY_VIEW && !auth_private_jobs(c->auth));
}

titan_status api_may(struct coordinator *c, const struct auth_user *u, unsigned method, uint64_t job_id,
                     struct titan_error *err)
{
    struct owner_check check = {.user = u};
    if (api_sees_all(c, u, method))
        return TITAN_OK;
    TRY(job_cache_get(c->jobs, store_reader(c->store), job_id, with_owner, &check, err));
    if (check.owns)
        return TITAN_OK;
    struct titan_error why = {0};
    titan_fail(&why, TITAN_EPERM, "not permitted: job %llu is %s's; %s is for its owner or an operator; you are %s",
               (unsigned long long)job_id, *check.owner ? check.owner : "no user", policy_method_short(method),
               u->actor);
    api_failed(c, u, method, job_id, &why);
    if (auth_private_jobs(c->auth))
        return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)job_id);
    if (err)
        *err = why;
    return TITAN_EPERM;
}
