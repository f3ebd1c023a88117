/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - titanctl checkpoint: have running jobs write one now. */
#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    titan_assert(args->n >= 1);
    struct ctl *ctl = with;
    for (int i = 0; i < args->n; i++) {
        Titan__V1__CheckpointJobRequest request = TITAN__V1__CHECKPOINT_JOB_REQUEST__INIT;
        _cleanup_message_ Titan__V1__CheckpointJobResponse *reply = NULL;
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        TRY(args_job(args, i, &request.job_id, err));
        TRY(ctl_call(ctl, TITAN_METHOD("CheckpointJob"), &request.base, &titan__v1__checkpoint_job_response__descriptor,
                     &reply, err));
        if (ctl->json) {
            (void)output_json(&reply->base, false);
            continue;
        }
        buf_printf(&text, "job %llu writes a checkpoint after step %llu", (unsigned long long)request.job_id,
                   (unsigned long long)reply->step);
        (void)output_line(&text);
    }
    return TITAN_OK;
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
