/* SPDX-License-Identifier: Apache-2.0 */
/* worker_tool.c - see worker_tool.h. */
#include "ctl/worker_tool.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

static titan_status checkpoint_of_step(struct ctl *ctl, uint64_t job, uint64_t step, char out[PATH_MAX],
                                       struct titan_error *err)
{
    titan_assert(job > 0);
    Titan__V1__ListCheckpointsRequest request = TITAN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    request.job_id = job;
    _cleanup_message_ Titan__V1__ListCheckpointsResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("ListCheckpoints"), &request.base, &titan__v1__list_checkpoints_response__descriptor,
                 &reply, err));
    for (size_t i = 0; i < reply->n_checkpoints; i++) {
        if (reply->checkpoints[i]->step == step) {
            (void)snprintf(out, PATH_MAX, "%s", reply->checkpoints[i]->path);
            return TITAN_OK;
        }
    }
    titan_status status = titan_fail(err, TITAN_ENOTFOUND, "job %llu has no checkpoint of step %llu",
                                     (unsigned long long)job, (unsigned long long)step);
    titan_error_hint(err, "titanctl checkpoints %llu lists them", (unsigned long long)job);
    return status;
}

static titan_status no_checkpoint(const Titan__V1__Job *job, struct titan_error *err)
{
    const char *how = job->state == TITAN__V1__JOB_STATE__CANCELLED   ? "was cancelled before its first checkpoint"
                      : job->state == TITAN__V1__JOB_STATE__FAILED    ? "failed before its first checkpoint"
                      : job->state == TITAN__V1__JOB_STATE__COMPLETED ? "wrote no checkpoint"
                                                                      : "has no checkpoint yet";
    return titan_fail(err, TITAN_ENOTFOUND, "job %llu %s", (unsigned long long)job->id, how);
}

titan_status checkpoint_resolve(struct ctl *ctl, const struct args *args, char out[PATH_MAX], struct titan_error *err)
{
    titan_assert(args->n >= 1);
    const char *word = args->words[0];
    int64_t step;
    TRY(args_int(args, "step", 0, INT64_MAX, -1, &step, err));
    if (strspn(word, "0123456789") != strlen(word)) {
        if (step >= 0)
            return titan_fail(err, TITAN_EINVAL, "--step goes with the number of a job, not with a path");
        if (access(word, R_OK) != 0)
            return titan_fail_errno(err, "checkpoint %s", word);
        (void)snprintf(out, PATH_MAX, "%s", word);
        return TITAN_OK;
    }
    uint64_t job;
    TRY(args_job(args, 0, &job, err));
    if (step >= 0)
        return checkpoint_of_step(ctl, job, (uint64_t)step, out, err);
    _cleanup_message_ Titan__V1__GetJobResponse *reply = NULL;
    TRY(ctl_job(ctl, job, &reply, err));
    if (!*reply->job->checkpoint)
        return no_checkpoint(reply->job, err);
    (void)snprintf(out, PATH_MAX, "%s", reply->job->checkpoint);
    return TITAN_OK;
}

titan_status worker_become(char *const *argv, struct titan_error *err)
{
    titan_assert(argv[0]);
    char dir[PATH_MAX], path[PATH_MAX + 16];
    TRY(file_self_dir(dir, sizeof(dir), err));
    (void)snprintf(path, sizeof(path), "%s/titan-worker", dir);
    (void)fflush(stdout);
    (void)execv(path, argv);
    return titan_fail_errno(err, "cannot start %s", path);
}
