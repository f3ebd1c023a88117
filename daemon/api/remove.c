/* SPDX-License-Identifier: Apache-2.0 */
/* RemoveJob: removes the records of an ended job, then its directory. The directory may be large, or on a dead file
 * server. So a file thread deletes it, and the answer names what is left. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "daemon/api/api.h"
#include "daemon/coordinator/shell/disk_usage.h"
#include "state/job_removal.h"

struct removal {
    struct file_task task; /* must be first */
    struct coordinator *owner;
    struct rpc_call *call; /* NULL when the client has gone; the removal goes on */
    uint64_t job_id;
    char directory[PATH_MAX + 24];
    struct arena memory;
    struct auth_user user; /* the caller */
    struct event on_record, event;
    struct titan_error err; /* failure to remove the directory */
};

static struct removal *removal_of(struct file_task *k)
{
    return (struct removal *)(void *)k;
}

static void removal_free(struct file_task *k)
{
    arena_free(&removal_of(k)->memory);
    free(k);
}

static void answer(struct removal *r, const struct titan_error *err)
{
    Titan__V1__RemoveJobResponse reply = TITAN__V1__REMOVE_JOB_RESPONSE__INIT;
    struct rpc_call *call = TAKE(r->call);
    if (!call)
        return;
    rpc_call_set_data(call, NULL);
    if (err->status != TITAN_OK) {
        reply.directory_left = r->directory;
        reply.why = (char *)(uintptr_t)err->msg;
    }
    rpc_call_reply(call, &reply.base);
}

static void delete_directory(struct file_task *k)
{
    titan_assert(removal_of(k)->directory[0] == '/');
    (void)!dir_remove(removal_of(k)->directory, &removal_of(k)->err);
}

static void deleted(struct file_task *k)
{
    struct removal *r = removal_of(k);
    if (r->err.status == TITAN_OK)
        disk_usage_removed(r->owner, r->job_id);
    else
        disk_usage_changed(r->owner, r->job_id);
    answer(r, &r->err);
    removal_free(k);
}

static void given_up(struct file_task *k, bool started)
{
    struct titan_error err = {0};
    titan_fail(&err, TITAN_EAGAIN, "%s", started ? "it is still being deleted" : "its file system does not answer");
    answer(removal_of(k), &err);
    if (!started)
        removal_free(k);
}

static const struct file_calls calls = {
    .run = delete_directory, .done = deleted, .given_up = given_up, .free = removal_free};

static titan_status write_metrics(struct db *db, void *arg, struct titan_error *err)
{
    return job_remove_metrics(db, ((const struct removal *)arg)->job_id, err);
}

/* Metrics that could not be deleted belong to no job and do no harm. */
static void metrics_written(void *arg, const struct titan_error *ignored)
{
    struct removal *r = arg;
    (void)ignored;
    if (file_pool_add(r->owner->files, &r->task, &calls, sizeof(*r), &r->err) == TITAN_OK)
        return;
    answer(r, &r->err);
    removal_free(&r->task);
}

static titan_status write_removal(struct db *db, void *arg, struct titan_error *err)
{
    const struct removal *r = arg;
    TRY(job_remove(db, r->job_id, r->directory, &r->event, err));
    return r->owner->auth ? event_add(db, &r->on_record, err) : TITAN_OK;
}

static void refuse(struct removal *r, const struct titan_error *err)
{
    api_failed(r->owner, &r->user, POLICY_REMOVE_JOB, r->job_id, err);
    if (r->call) {
        rpc_call_set_data(r->call, NULL);
        rpc_call_fail(r->call, err);
    }
    removal_free(&r->task);
}

static void written(void *arg, const struct titan_error *err)
{
    struct removal *r = arg;
    struct coordinator *c = r->owner;
    if (err->status != TITAN_OK) {
        refuse(r, err);
        return;
    }
    job_cache_drop(c->jobs, r->job_id);
    if (!c->closing)
        api_watch_poke(c, r->job_id);
    store_write_metrics(c->store, write_metrics, r, metrics_written);
}

static void count_workers(const struct core_placement *p, void *data)
{
    *(uint32_t *)data += p->workers;
}

void api_remove_job(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct removal *r = calloc(1, sizeof(*r));
    struct titan_error err = {0};
    titan_assert(r);
    r->owner = data;
    r->call = call;
    r->job_id = ((const Titan__V1__RemoveJobRequest *)base)->job_id;
    (void)snprintf(r->directory, sizeof(r->directory), "%s/%llu", r->owner->jobs_dir, (unsigned long long)r->job_id);
    api_user(r->owner, call, &r->user);
    if (api_may(r->owner, &r->user, POLICY_REMOVE_JOB, r->job_id, &err) != TITAN_OK) { /* a refusal is on record */
        rpc_call_fail(call, &err);
        removal_free(&r->task);
        return;
    }
    uint32_t workers = 0;
    bool ended = false;
    titan_status status = shell_accepts(r->owner, &err);
    if (status == TITAN_OK)
        status = api_job_ended(r->owner, r->job_id, &ended, &err);
    core_placements(r->owner->core, r->job_id, count_workers, &workers);
    if (status == TITAN_OK && ended && workers)
        status = titan_fail(&err, TITAN_ECONFLICT, "workers of job %llu are being stopped still",
                            (unsigned long long)r->job_id);
    if (status != TITAN_OK) {
        refuse(r, &err);
        return;
    }
    r->task.user = api_user_key(&r->memory, &r->user);
    r->on_record = api_audit_event(&r->memory, &r->user, POLICY_REMOVE_JOB, r->job_id);
    r->event = (struct event){.job_id = r->job_id,
                              .at_ms = clock_wall_ms(),
                              .type = "job.removed",
                              .message = "removed",
                              .rank = -1,
                              .actor = r->user.actor};
    rpc_call_set_data(call, r);
    store_write(r->owner->store, write_removal, r, written);
}

void api_remove_job_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct removal *r = rpc_call_data(call);
    (void)cancelled;
    (void)data;
    if (r)
        r->call = NULL;
}
