/* SPDX-License-Identifier: Apache-2.0 */
/* cancel.c - titanctl cancel: ask jobs to stop. */
#include <stdio.h>

#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/jobs.h"
#include "ctl/output.h"

static titan_status cancel_one(struct ctl *ctl, uint64_t id, const struct args *args, uint32_t grace_ms,
                               Titan__V1__JobState *ret_state, struct titan_error *err)
{
    titan_assert(id > 0);
    Titan__V1__CancelJobRequest request = TITAN__V1__CANCEL_JOB_REQUEST__INIT;
    request.job_id = id;
    request.reason = (char *)(uintptr_t)args_text(args, "reason", "");
    request.checkpoint = args_has(args, "checkpoint");
    request.grace_ms = grace_ms;
    _cleanup_message_ Titan__V1__CancelJobResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("CancelJob"), &request.base, &titan__v1__cancel_job_response__descriptor, &reply,
                 err));
    *ret_state = reply->state;
    return TITAN_OK;
}

static void print_one(const struct ctl *ctl, uint64_t id, Titan__V1__JobState state)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (ctl->json) {
        struct json_writer w = {.out = &text};
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", id);
        json_put_string(&w, "state", ctl_state_name(state));
        json_end_object(&w);
    } else {
        buf_printf(&text, "job %llu %s", (unsigned long long)id, ctl_state_name(state));
    }
    (void)output_line(&text);
}

/* Where they were searched for, one that has ended meanwhile, or is another user's, is passed over. */
static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    double grace_s;
    size_t others = 0;
    _cleanup_(jobs_free) struct jobs jobs = {0};
    const bool all = args_has(args, "all"), searched = all || jobs_filtered(args);
    if (!searched && args->n == 0)
        return titan_fail(err, TITAN_EINVAL, "cancel needs a JOB, or --all, --state, --name, --label, --user");
    TRY(args_real(args, "grace", 0.001, 3600, 0, &grace_s, err));
    TRY(jobs_chosen(ctl, args, all, JOBS_OPEN, &jobs, err));
    for (size_t i = 0; i < jobs.n; i++) {
        Titan__V1__JobState state;
        const titan_status status = cancel_one(ctl, jobs.ids[i], args, (uint32_t)(grace_s * 1000), &state, err);
        if (status == TITAN_OK)
            print_one(ctl, jobs.ids[i], state);
        else if (!searched || (status != TITAN_ECONFLICT && status != TITAN_EPERM))
            return status;
        others += status == TITAN_EPERM;
    }
    if (others)
        (void)fprintf(stderr, "titanctl: %zu jobs of other users were left alone\n", others);
    else if (searched && jobs.n == 0)
        (void)fputs("titanctl: there are none to cancel\n", stderr);
    return TITAN_OK;
}

const struct command command_cancel = {
    .name = "cancel",
    .summary = "stop jobs, with a last checkpoint if there is time for it",
    .arguments = "[JOB...]",
    .text =
        "Returns when the server has taken note; `titanctl wait` waits for the end. A job that has ended already is "
        "an\nerror (exit code 6), one that is being cancelled is not. With several jobs it stops at the first "
        "error.\n\nWith --all, or options that find jobs, those are cancelled that have not ended, and that one may "
        "cancel.",
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
