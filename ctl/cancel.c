/* SPDX-License-Identifier: Apache-2.0 */
/* cancel.c - titanctl cancel: asks jobs to stop. */
#include <stdio.h>

#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/follow.h"
#include "ctl/jobs.h"
#include "ctl/live_stream.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"

struct cancelling {
    struct ctl *ctl;
    const struct args *args;
    struct jobs jobs;
    bool searched;
    uint32_t grace_ms;
    size_t cancelled; /* number of cancelled jobs; their ids come first in jobs.ids */
    size_t others;    /* number of other users' jobs */
};

static void print_one(const struct ctl *ctl, uint64_t id, Titan__V1__JobState state, const char *reason)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (ctl->json) {
        struct json_writer w = {.out = &text};
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", id);
        json_put_string(&w, "state", ctl_state_name(state));
        if (reason)
            json_put_string(&w, "reason", reason);
        json_end_object(&w);
    } else {
        buf_printf(&text, "job %llu %s%s%s", (unsigned long long)id, ctl_state_name(state), reason ? ": " : "",
                   reason ? reason : "");
    }
    (void)output_line(&text);
}

static titan_status await_end(void *data, size_t i, struct titan_error *err)
{
    const struct cancelling *c = data;
    const uint64_t id = c->jobs.ids[i];
    titan_assert(i < c->cancelled);
    _cleanup_message_ Titan__V1__GetJobResponse *end = NULL;
    TRY(follow_job(&(struct follow_options){.server = c->ctl->server, .job_id = id, .patience_ms = PATIENT_FOR_EVER},
                   &end, err));
    output_fit(&end->base);
    print_one(c->ctl, id, end->job->state, end->job->reason);
    if (!args_has(c->args, "checkpoint"))
        return TITAN_OK;

    /* --checkpoint asks for a checkpoint of the last step. */
    Titan__V1__ListCheckpointsRequest request = TITAN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    _cleanup_message_ Titan__V1__ListCheckpointsResponse *saved = NULL;
    request.job_id = id;
    TRY(ctl_call(c->ctl, TITAN_METHOD("ListCheckpoints"), &request.base,
                 &titan__v1__list_checkpoints_response__descriptor, &saved, err));
    const uint64_t step = end->job->step;
    if (step == 0 || (saved->n_checkpoints && saved->checkpoints[0]->step == step))
        return TITAN_OK;
    return follow_outcome(end->job, err);
}

/* Cancels a job. Skips a job that was found by a search and has ended meanwhile or belongs to another user. */
static titan_status cancel_one(void *data, size_t i, struct titan_error *err)
{
    struct cancelling *c = data;
    Titan__V1__CancelJobRequest request = TITAN__V1__CANCEL_JOB_REQUEST__INIT;
    _cleanup_message_ Titan__V1__CancelJobResponse *reply = NULL;
    request.job_id = c->jobs.ids[i];
    request.reason = (char *)(uintptr_t)args_text(c->args, "reason", "");
    request.checkpoint = args_has(c->args, "checkpoint");
    request.grace_ms = c->grace_ms;
    const titan_status status = ctl_call(c->ctl, TITAN_METHOD("CancelJob"), &request.base,
                                         &titan__v1__cancel_job_response__descriptor, &reply, err);
    titan_assert(c->cancelled <= i);
    c->others += c->searched && status == TITAN_EPERM;
    if (status != TITAN_OK)
        return c->searched && (status == TITAN_ECONFLICT || status == TITAN_EPERM) ? TITAN_OK : status;
    if (!args_has(c->args, "wait"))
        print_one(c->ctl, request.job_id, reply->state, NULL);
    c->jobs.ids[c->cancelled++] = request.job_id;
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    const bool all = args_has(args, "all");
    struct cancelling c = {.ctl = with, .args = args, .searched = all || jobs_filtered(args)};
    struct titan_error late = {.status = TITAN_OK};
    double grace_s;
    if (!c.searched && args->n == 0)
        return titan_fail(err, TITAN_EINVAL, "cancel needs a JOB, or --all, --state, --name, --label, --user");
    TRY(args_real(args, "grace", (struct real_range){0.001, 3600}, 0, &grace_s, err));
    c.grace_ms = (uint32_t)(grace_s * 1000);
    titan_status status = jobs_chosen(c.ctl, args, all, JOBS_OPEN, &c.jobs, err);
    if (status == TITAN_OK && c.jobs.n == 0)
        (void)fputs("titanctl: there are none to cancel\n", stderr);
    if (status == TITAN_OK)
        status = outcomes(c.jobs.n, cancel_one, &c, "jobs are not cancelled", err);
    if (args_has(args, "wait") &&
        outcome_worse(outcomes(c.cancelled, await_end, &c, "jobs did not end as asked", &late), status)) {
        *err = late;
        status = late.status;
    }
    if (c.others)
        (void)fprintf(stderr, "titanctl: %zu jobs of other users were left alone\n", c.others);
    jobs_free(&c.jobs);
    return status;
}

const struct command command_cancel = {
    .name = "cancel",
    .summary = "stop jobs, with a last checkpoint if there is time for it",
    .arguments = "[JOB...]",
    .text =
        "Returns when the server has taken note; `titanctl wait` waits for the end, as does --wait, which prints the "
        "reason. A\njob that has ended already is an error (exit code 6), one that is being cancelled is not. Of "
        "several jobs all are tried,\nand the exit code is the worst.\n\nWith --all, or options that find jobs, those "
        "are cancelled that have not ended, and that one may cancel.",
    .min_args = 0,
    .max_args = ANY_NUMBER,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){
            {"reason", 0, "TEXT", "why; shown with the job", WORD_NONE},
            {"grace", 0, "SECONDS",
             "time for a last checkpoint before workers are killed (default 10, with --checkpoint 120)", WORD_NONE},
            {"checkpoint", 'c', NULL,
             "write one also if the run file asks for none; the job's reason says where it is, or why there is none",
             WORD_NONE},
            {"wait", 0, NULL, "until it has ended; 1 where --checkpoint wrote none of its last step", WORD_NONE},
            {"all", 'a', NULL, "all that have not ended", WORD_NONE},
            JOBS_FILTERS,
            {NULL}},
    .examples = (const struct example[]){{"titanctl cancel 12 13", "stop two jobs"},
                                         {"titanctl cancel 12 --reason 'wrong data' && titanctl wait 12",
                                          "stop a job and wait until it has"},
                                         {"titanctl cancel --label sweep=4f1c2a90", "stop a whole sweep"},
                                         {"titanctl cancel --all --state PENDING", "empty the queue"},
                                         {NULL}},
    .run = run,
};
