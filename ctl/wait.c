/* SPDX-License-Identifier: Apache-2.0 */
/* wait.c - titanctl wait and attach: wait for the end of jobs, without and with progress. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/follow.h"
#include "ctl/jobs.h"
#include "ctl/live_stream.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"

struct waiting {
    struct ctl *ctl;
    struct jobs jobs;
    bool progress;
    int64_t until_ms; /* monotonic clock; 0 = forever */
    int64_t patience_ms;
};

/* *ret: the job after its end. */
static titan_status await(const struct waiting *w, uint64_t id, Titan__V1__GetJobResponse **ret,
                          struct titan_error *err)
{
    _cleanup_message_ Titan__V1__GetJobResponse *now = NULL;
    const int64_t left = w->until_ms - clock_mono_ms();
    const titan_status status = ctl_job(w->ctl, id, &now, err);
    if (status != TITAN_OK && status != TITAN_EUNREACHABLE) /* the next call waits for a missing server */
        return status;
    if (now && ctl_state_final(now->job->state)) {
        *ret = TAKE(now);
        return TITAN_OK;
    }
    if (w->until_ms && left <= 0)
        return now ? titan_fail(err, TITAN_ETIMEDOUT, "job %llu is %s still", (unsigned long long)id,
                                ctl_state_name(now->job->state))
                   : status;
    return follow_job(&(struct follow_options){.server = w->ctl->server,
                                               .job_id = id,
                                               .progress = w->progress,
                                               .from_now = w->progress,
                                               .timeout_ms = w->until_ms ? (uint32_t)left : 0,
                                               .patience_ms = w->patience_ms},
                      ret, err);
}

static titan_status wait_for_one(void *data, size_t i, struct titan_error *err)
{
    const struct waiting *w = data;
    _cleanup_message_ Titan__V1__GetJobResponse *end = NULL;
    titan_assert(i < w->jobs.n);
    TRY(await(w, w->jobs.ids[i], &end, err));
    titan_assert(end && end->job);
    if (w->ctl->json)
        (void)output_json(&end->job->base, w->jobs.n == 1);
    return follow_outcome(end->job, err);
}

static titan_status wait_for(struct ctl *ctl, const struct args *args, bool progress, double timeout_s,
                             struct titan_error *err)
{
    struct waiting w = {.ctl = ctl,
                        .progress = progress,
                        .until_ms = timeout_s > 0 ? clock_mono_ms() + (int64_t)(timeout_s * 1000) : 0};
    TRY(live_stream_patience(args, &w.patience_ms, err));
    titan_status status = jobs_chosen(ctl, args, false, 0, &w.jobs, err);
    if (status == TITAN_OK && w.jobs.n == 0)
        (void)fputs("titanctl: there are none to wait for\n", stderr);
    if (status == TITAN_OK)
        status = outcomes(w.jobs.n, wait_for_one, &w, "jobs have not completed", err);
    jobs_free(&w.jobs);
    return status;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    double timeout_s;
    TRY(args_real(args, "timeout", (struct real_range){0.001, 4000000}, 0, &timeout_s, err));
    return wait_for(with, args, args_has(args, "follow"), timeout_s, err);
}

const struct command command_wait = {
    .name = "wait",
    .summary = "wait until jobs have ended",
    .arguments = "[JOB...]",
    .text = "Ends with 0 when all have completed, 1 when one has failed or was cancelled, 124 after the timeout. "
            "Jobs are named,\nor found by options: those that are there at the moment. All are waited for, also after "
            "one that has failed. A server\nthat is away meanwhile is waited for.",
    .min_args = 0,
    .max_args = ANY_NUMBER,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){
            {"timeout", 't', "SECONDS", "give up after so long (default: never)", WORD_NONE},
            {"follow", 'f', NULL, "show progress meanwhile, as attach does, of one job after the other", WORD_NONE},
            SERVER_GONE,
            JOBS_FILTERS,
            {NULL}},
    .examples = (const struct example[]){{"titanctl wait 12 --timeout 3600", "at most an hour"},
                                         {"titanctl wait 12 13 14", "until all three have ended"},
                                         {"titanctl wait --label sweep=4f1c2a90", "for the jobs of a sweep"},
                                         {NULL}},
    .run = run,
};

static titan_status attach(void *with, const struct args *args, struct titan_error *err)
{
    return wait_for(with, args, true, 0, err);
}

const struct command command_attach = {
    .name = "attach",
    .summary = "show a job's progress from now on, until it has ended",
    .arguments = "JOB",
    .text = "First how the job is now, then what titanctl submit --follow shows; what was before is in titanctl "
            "events. Ctrl-C\nleaves, the job goes on. Exit codes are those of titanctl wait.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){SERVER_GONE, {NULL}},
    .examples = (const struct example[]){{"titanctl attach 12", "watch a job that runs already"}, {NULL}},
    .run = attach,
};
