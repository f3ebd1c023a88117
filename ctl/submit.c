/* SPDX-License-Identifier: Apache-2.0 */
/* submit.c - titanctl submit: hand a run to the server. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/follow.h"
#include "ctl/output.h"
#include "ctl/run_file.h"
#include "ctl/submit.h"

/* Lines on stderr, as what a script reads from stdout stays as it is. Ours first: overridden keys are sent as they came
 * out, so the server may know of fewer; then what only the server knows. */
static void print_warnings(const struct run_file *file, const Titan__V1__SubmitResponse *reply)
{
    _cleanup_(buf_free) struct buf ours = BUF_INIT;
    recipe_warnings(&file->recipe, &ours);
    const char *known = ours.len && !buf_failed(&ours) ? ours.data : "";
    for (const char *at = known; *at; at += strcspn(at, "\n") + 1)
        (void)fprintf(stderr, "note: %.*s\n", (int)strcspn(at, "\n"), at);
    for (size_t i = 0; i < reply->n_warnings; i++)
        if (!strstr(known, reply->warnings[i]))
            (void)fprintf(stderr, "note: %s\n", reply->warnings[i]);
}

titan_status submit_run(struct ctl *ctl, const struct run_file *file, const struct args *args, uint64_t *ret_job,
                        bool *ret_existed, struct titan_error *err)
{
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    request.recipe = file->text.data;
    request.recipe_path = (char *)(uintptr_t)file->path;
    request.name = (char *)(uintptr_t)args_text(args, "name", "");
    request.idempotency_key = (char *)(uintptr_t)args_text(args, "idempotency-key", "");
    request.user = (char *)(uintptr_t)args_text(args, "for", "");
    _cleanup_message_ Titan__V1__SubmitResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("Submit"), &request.base, &titan__v1__submit_response__descriptor, &reply, err));
    *ret_job = reply->job_id;
    *ret_existed = reply->existed;
    output_fit(&reply->base);
    print_warnings(file, reply);
    if (reply->resumes_step)
        (void)fprintf(stderr, "titanctl: job %llu resumes from the checkpoint of step %llu in %s\n",
                      (unsigned long long)reply->job_id, (unsigned long long)reply->resumes_step,
                      reply->resumes_folder);
    return TITAN_OK;
}

static void print_id(const struct ctl *ctl, uint64_t id, bool existed)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (ctl->json) {
        struct json_writer w = {.out = &text};
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", id);
        json_put_bool(&w, "existed", existed);
        json_end_object(&w);
    } else {
        buf_printf(&text, "%llu", (unsigned long long)id);
    }
    (void)output_line(&text);
}

/* What only another node can give: said at submit, as a client that does not follow would not see it later. */
static void print_unplaceable(struct ctl *ctl, uint64_t id)
{
    Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
    _cleanup_message_ Titan__V1__GetJobResponse *reply = NULL;
    struct titan_error ignored = {0};
    request.job_id = id;
    if (ctl_call(ctl, TITAN_METHOD("GetJob"), &request.base, &titan__v1__get_job_response__descriptor, &reply,
                 &ignored) != TITAN_OK ||
        !reply->job || reply->job->state != TITAN__V1__JOB_STATE__PENDING)
        return;
    if (strncmp(reply->job->reason, "waiting: no node has", 20) == 0 ||
        strncmp(reply->job->reason, "waiting for nodes", 17) == 0) {
        output_fit(&reply->base);
        (void)fprintf(stderr, "note: job %llu stays in the queue until nodes are added: %s\n", (unsigned long long)id,
                      reply->job->reason);
    }
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    titan_assert(args->n == 1);
    struct ctl *ctl = with;
    _cleanup_(run_file_clear) struct run_file file = {.text = BUF_INIT};
    /* The data is where the workers are, which may be no machine of ours. */
    TRY(run_file_load(&file, args->words[0], args, 0, false, err));
    uint64_t id;
    bool existed;
    TRY(submit_run(ctl, &file, args, &id, &existed, err));
    print_id(ctl, id, existed);
    print_unplaceable(ctl, id);
    if (!args_has(args, "follow"))
        return TITAN_OK;

    const struct follow_options options = {.server = ctl->server, .job_id = id, .progress = true};
    _cleanup_message_ Titan__V1__GetJobResponse *end = NULL;
    TRY(follow_job(&options, &end, err));
    if (ctl->json)
        (void)output_json(&end->job->base, false);
    return follow_outcome(end->job, err);
}

const struct command command_submit = {
    .name = "submit",
    .summary = "queue a run and print its number",
    .arguments = "FILE",
    .text = "FILE is a run file (TOML, see docs/recipes.md), or - for standard input. It is checked before it is sent. "
            "The\nnumber is printed when the job is on the server's disk. With an idempotency key a repeated submit "
            "gives the first\none's number instead of a second job.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            RUN_FILE_OPTIONS,
            {"idempotency-key", 0, "KEY", "any text of yours, at most 128 bytes, that names this submit", WORD_NONE},
            {"priority", 'p', "N", "-1000 to 1000, as job.priority: higher comes first, and lower gives way",
             WORD_NONE},
            {"for", 0, "USER", "the job is to be this user's, not one's own (operators)", WORD_NONE},
            {"follow", 'f', NULL, "stay and show progress until the job has ended; Ctrl-C leaves, the job goes on",
             WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl submit recipes/debug.toml --set training.dataset_path=/usr/include", "queue a small run"},
            {"titanctl submit run.toml --idempotency-key nightly-2026-11-20 --follow", "at most once, and watch it"},
            {"job=$(titanctl submit run.toml) && titanctl wait $job", "in a script"},
            {NULL}},
    .run = run,
};
