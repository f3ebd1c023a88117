/* SPDX-License-Identifier: Apache-2.0 */
/* wait.c - titanctl wait: until a job has ended. */
#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/follow.h"
#include "ctl/output.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    titan_assert(args->n == 1);
    struct ctl *ctl = with;
    uint64_t id;
    double timeout_s;
    TRY(args_job(args, 0, &id, err));
    TRY(args_real(args, "timeout", 0.001, 4000000, 0, &timeout_s, err));
    /* Fails at once for a job or a server that is not there; only later losses of the server are waited out. */
    _cleanup_message_ Titan__V1__GetJobResponse *now = NULL, *end = NULL;
    TRY(ctl_job(ctl, id, &now, err));
    const struct follow_options options = {.server = ctl->server,
                                           .job_id = id,
                                           .progress = args_has(args, "follow"),
                                           .timeout_ms = (uint32_t)(timeout_s * 1000)};
    if (ctl_state_final(now->job->state))
        end = TAKE(now);
    else
        TRY(follow_job(&options, &end, err));
    if (ctl->json)
        (void)output_json(&end->job->base, true);
    return follow_outcome(end->job, err);
}

const struct command command_wait = {
    .name = "wait",
    .summary = "wait until a job has ended",
    .arguments = "JOB",
    .text =
        "Ends with 0 when the job completed, 1 when it failed or was cancelled, 124 after the timeout. A server that\n"
        "restarts in between is waited for.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){{"timeout", 't', "SECONDS", "give up after so long (default: never)", WORD_NONE},
                                     {"follow", 'f', NULL, "show progress meanwhile", WORD_NONE},
                                     {NULL}},
    .examples = (const struct example[]){{"titanctl wait 12 --timeout 3600", "at most an hour"},
                                         {"titanctl wait 12 --follow", "watch a job that runs already"},
                                         {NULL}},
    .run = run,
};
