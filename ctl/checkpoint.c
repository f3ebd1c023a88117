/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - titanctl checkpoint: requests a checkpoint of running jobs now. */
#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/jobs.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"

struct checkpointing {
    struct ctl *ctl;
    struct jobs jobs;
};

static titan_status checkpoint_one(void *data, size_t i, struct titan_error *err)
{
    const struct checkpointing *of = data;
    Titan__V1__CheckpointJobRequest request = TITAN__V1__CHECKPOINT_JOB_REQUEST__INIT;
    _cleanup_message_ Titan__V1__CheckpointJobResponse *reply = NULL;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    titan_assert(i < of->jobs.n);
    request.job_id = of->jobs.ids[i];
    TRY(ctl_call(of->ctl, TITAN_METHOD("CheckpointJob"), &request.base, &titan__v1__checkpoint_job_response__descriptor,
                 &reply, err));
    if (of->ctl->json)
        return output_json(&reply->base, false), TITAN_OK;
    buf_printf(&text, "job %llu writes a checkpoint after step %llu", (unsigned long long)request.job_id,
               (unsigned long long)reply->step);
    (void)output_line(&text);
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct checkpointing of = {.ctl = with};
    titan_status status = jobs_chosen(of.ctl, args, false, 0, &of.jobs, err);
    if (status == TITAN_OK)
        status = outcomes(of.jobs.n, checkpoint_one, &of, "jobs write no checkpoint", err);
    jobs_free(&of.jobs);
    return status;
}

const struct command command_checkpoint = {
    .name = "checkpoint",
    .summary = "have running jobs write a checkpoint now",
    .arguments = "JOB...",
    .text =
        "At the next step boundary, also when the run file asks for none. Returns when the command is on its way; the\n"
        "event checkpoint.committed tells that it is there.",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .word = WORD_JOB,
    .examples = (const struct example[]){{"titanctl checkpoint 12", "before something risky"}, {NULL}},
    .run = run,
};
