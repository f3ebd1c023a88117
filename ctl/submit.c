/* SPDX-License-Identifier: Apache-2.0 */
/* submit.c - titanctl submit: hand a run to the server. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Where the run begins, and what is not as there. */
static void print_origin(const struct submit_from *from, const Titan__V1__SubmitResponse *reply)
{
    const unsigned long long id = reply->job_id, other = from->job;
    if (reply->resumes_step)
        (void)fprintf(stderr, "titanctl: job %llu resumes from the checkpoint of step %llu in %s\n", id,
                      (unsigned long long)reply->resumes_step, reply->resumes_folder);
    else if (from->resume)
        (void)fprintf(stderr, "titanctl: job %llu begins anew: job %llu has no checkpoint\n", id, other);
    else if (*reply->begins_from)
        (void)fprintf(stderr, "titanctl: job %llu begins from %s\n", id, reply->begins_from);
    for (size_t i = 0; i < reply->n_changes; i++)
        (void)fprintf(stderr, "titanctl: %s\n", reply->changes[i]);
    if (from->job && from->whole && reply->n_changes == 0 && !reply->existed)
        (void)fprintf(stderr, "titanctl: its keys are those of job %llu\n", other);
}

titan_status submit_run(struct ctl *ctl, const struct run_file *file, const struct args *args,
                        const struct submit_from *from, uint64_t *ret_job, bool *ret_existed, struct titan_error *err)
{
    static const struct submit_from none;
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    if (!from)
        from = &none;
    request.recipe = file->text.data;
    request.recipe_path = (char *)(uintptr_t)file->path;
    request.name = (char *)(uintptr_t)args_text(args, "name", "");
    request.idempotency_key = (char *)(uintptr_t)args_text(args, "idempotency-key", "");
    request.user = (char *)(uintptr_t)args_text(args, "for", "");
    request.resume_job = from->resume ? from->job : 0;
    request.folder = from->folder;
    _cleanup_message_ Titan__V1__SubmitResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("Submit"), &request.base, &titan__v1__submit_response__descriptor, &reply, err));
    *ret_job = reply->job_id;
    *ret_existed = reply->existed;
    output_fit(&reply->base);
    print_warnings(file, reply);
    print_origin(from, reply);
    return TITAN_OK;
}

titan_status submit_recipe_of(struct ctl *ctl, uint64_t job, Titan__V1__GetRecipeResponse **ret,
                              struct titan_error *err)
{
    Titan__V1__GetRecipeRequest request = TITAN__V1__GET_RECIPE_REQUEST__INIT;
    request.job_id = job;
    return ctl_call(ctl, TITAN_METHOD("GetRecipe"), &request.base, &titan__v1__get_recipe_response__descriptor, ret,
                    err);
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

titan_status submit_and_show(struct ctl *ctl, const struct run_file *file, const struct args *args,
                             const struct submit_from *from, struct titan_error *err)
{
    uint64_t id;
    bool existed;
    TRY(submit_run(ctl, file, args, from, &id, &existed, err));
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

/* "12" or "12@500". */
static titan_status parse_from(const char *text, uint64_t *ret_job, int64_t *ret_step, struct titan_error *err)
{
    const char *at = strchr(text, '@');
    char *end = NULL;
    errno = 0;
    const unsigned long long job = *text >= '1' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    const bool named = job > 0 && job <= INT64_MAX && errno == 0 && (at ? end == at : !*end);
    const unsigned long long step = named && at && at[1] >= '0' && at[1] <= '9' ? strtoull(at + 1, &end, 10) : 0;
    if (!named || *end || (at && end == at + 1) || (at && end == at) || errno != 0 || step > 1000000000)
        return titan_fail(err, TITAN_EINVAL, "--from '%.64s': the number of a job, or JOB@STEP", text);
    *ret_job = job;
    *ret_step = at ? (int64_t)step : -1;
    return TITAN_OK;
}

#define FROM_KEYS 5

/* A new run from a job's checkpoint: of the file, or of that job's own recipe, then with checkpoints in its own folder.
 */
static titan_status load_from(struct ctl *ctl, const struct args *args, const char *text, struct run_file *file,
                              struct submit_from *from, struct titan_error *err)
{
    char path[64], step_key[64], named[32];
    int64_t step;
    const char *assignments[FROM_KEYS + 1] = {path, step_key, "checkpoint.initial_load_model_only=false"};
    struct titan_error refused = {0};
    TRY(parse_from(text, &from->job, &step, err));
    (void)snprintf(path, sizeof(path), "checkpoint.initial_load_path=" RECIPE_JOB_PREFIX "%llu",
                   (unsigned long long)from->job);
    (void)snprintf(step_key, sizeof(step_key), "checkpoint.load_step=%lld", (long long)step);
    (void)snprintf(named, sizeof(named), "job %llu", (unsigned long long)from->job);
    _cleanup_message_ Titan__V1__GetRecipeResponse *reply = NULL;
    const titan_status status = submit_recipe_of(ctl, from->job, &reply, &refused);
    from->whole = status == TITAN_OK;
    if (status != TITAN_OK && (args->n == 0 || status != TITAN_EPERM)) {
        *err = refused;
        return status;
    }
    if (args->n > 0)
        return run_file_load(file, &(struct run_source){.path = args->words[0], .assignments = assignments}, args, 0,
                             false, err);
    assignments[3] = "checkpoint.folder=checkpoint";
    assignments[4] = "job.dump_folder=";
    return run_file_load(file, &(struct run_source){named, reply->recipe, assignments}, args, 0, false, err);
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(run_file_clear) struct run_file file = {.text = BUF_INIT};
    const char *text = args_text(args, "from", NULL);
    struct submit_from from = {0};
    if (!text && args->n == 0)
        return titan_fail(err, TITAN_EINVAL, "submit needs a FILE, or --from JOB");
    /* The data is where the workers are, which may be no machine of ours. */
    if (text)
        TRY(load_from(ctl, args, text, &file, &from, err));
    else
        TRY(run_file_load(&file, &(struct run_source){.path = args->words[0]}, args, 0, false, err));
    from.folder = args_has(args, "fresh") ? TITAN__V1__CHECKPOINT_FOLDER__FRESH
                  : text                  ? TITAN__V1__CHECKPOINT_FOLDER__EMPTY
                                          : TITAN__V1__CHECKPOINT_FOLDER__CONTINUE;
    return submit_and_show(ctl, &file, args, &from, err);
}

const struct command command_submit = {
    .name = "submit",
    .summary = "queue a run and print its number",
    .arguments = "[FILE]",
    .text =
        "FILE is a run file (TOML, see docs/recipes.md), or - for standard input. It is checked before it is sent. "
        "The\n"
        "number is printed when the job is on the server's disk. With an idempotency key a repeated submit gives the "
        "first\none's number instead of a second job.\n\n"
        "With --from the run begins from a checkpoint of another job, weights, optimizer and step, and the keys that "
        "differ\nfrom that job's are printed; --set checkpoint.initial_load_model_only=true takes the weights alone, "
        "at "
        "step 0.\nWithout FILE it is that job's own run file, with checkpoints in the new job's folder. To go on with "
        "a "
        "job as it\nwas there is titanctl resume.",
    .min_args = 0,
    .max_args = 1,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            RUN_FILE_OPTIONS,
            {"from", 0, "JOB[@STEP]", "begin from that job's newest checkpoint, or that of STEP", WORD_JOB},
            {"fresh", 0, NULL,
             "where a run has had the folder of checkpoints, take a new one beside it: FOLDER-2, FOLDER-3, ...",
             WORD_NONE},
            SUBMIT_OPTIONS,
            {"for", 0, "USER", "the job is to be this user's, not one's own (operators)", WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl submit recipes/debug.toml --set training.dataset_path=/usr/include", "queue a small run"},
            {"titanctl submit run.toml --idempotency-key nightly-2026-11-20 --follow", "at most once, and watch it"},
            {"titanctl submit --from 12@500 --set optimizer.lr=1e-4", "from step 500 of job 12, with another rate"},
            {"job=$(titanctl submit run.toml) && titanctl wait $job", "in a script"},
            {NULL}},
    .run = run,
};
