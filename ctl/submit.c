/* SPDX-License-Identifier: Apache-2.0 */
/* submit.c - titanctl submit: sends a run to the server. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/labels.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/follow.h"
#include "ctl/output.h"
#include "ctl/run_file.h"
#include "ctl/submit.h"
#include "ctl/sweep.h"
#include "ctl/when.h"

enum { NAME_BYTES = 128 }; /* limit of a name and of an idempotency key (titan.proto) */

/* Parts of a job besides its run file. */
struct submission {
    char *labels[LABELS_MAX + 1];
    size_t n_labels;
    struct buf name, key; /* "" = none */
};

static void submission_free(struct submission *s)
{
    buf_free(&s->name);
    buf_free(&s->key);
}

/* Composes name, labels and idempotency key, and checks them as the server does. The labels of --label come before the
 * sweep's labels. */
static titan_status compose(const struct args *args, const struct run_file *file, const struct submit_from *from,
                            struct submission *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf joined = BUF_INIT;
    const char *one, *key = args_text(args, "idempotency-key", ""), *described = file->recipe.job.description;
    size_t n = 0;
    for (int i = 0; n <= LABELS_MAX && (one = args_each(args, "label", i)); i++)
        ret->labels[n++] = (char *)(uintptr_t)one;
    for (size_t i = 0; n <= LABELS_MAX && from->labels && from->labels[i]; i++)
        ret->labels[n++] = (char *)(uintptr_t)from->labels[i];
    ret->n_labels = n;
    TRY(labels_join(ret->labels, n, "label", &joined, err));
    buf_puts(&ret->key, key);
    if (from->number) {
        buf_printf(&ret->name, "%s-%zu", args_text(args, "name", *described ? described : "run"), from->number);
        if (*key)
            buf_printf(&ret->key, "-%zu", from->number);
    } else {
        buf_puts(&ret->name, args_text(args, "name", ""));
    }
    if (buf_failed(&ret->name) || buf_failed(&ret->key))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    if (from->number && MAX(ret->name.len, ret->key.len) > NAME_BYTES)
        return titan_fail(err, TITAN_EINVAL, "with its number the %s has %zu bytes; at most %d are possible",
                          ret->name.len > NAME_BYTES ? "name" : "idempotency key", MAX(ret->name.len, ret->key.len),
                          NAME_BYTES);
    return TITAN_OK;
}

titan_status submit_run(struct ctl *ctl, const struct run_file *file, const struct args *args,
                        const struct submit_from *from, struct submitted *ret, struct titan_error *err)
{
    static const struct submit_from none;
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    _cleanup_(submission_free) struct submission with = {.name = BUF_INIT, .key = BUF_INIT};
    if (!from)
        from = &none;
    TRY(compose(args, file, from, &with, err));
    request.labels = with.labels;
    request.n_labels = with.n_labels;
    request.recipe = file->text.data;
    request.recipe_path = (char *)(uintptr_t)file->path;
    request.name = with.name.len ? with.name.data : (char *)(uintptr_t) "";
    request.idempotency_key = with.key.len ? with.key.data : (char *)(uintptr_t) "";
    request.user = (char *)(uintptr_t)args_text(args, "for", "");
    request.resume_job = from->resume ? from->job : 0;
    request.folder = from->folder;
    _cleanup_message_ Titan__V1__SubmitResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("Submit"), &request.base, &titan__v1__submit_response__descriptor, &reply, err));
    *ret = (struct submitted){.job = reply->job_id, .existed = reply->existed};
    output_fit(&reply->base);

    /* Warnings go to stderr, because stdout is for scripts. The local warnings come first: only this process sees
     * overridden keys. The server's other warnings follow. */
    if (from->number <= 1) {
        _cleanup_(buf_free) struct buf ours = BUF_INIT;
        recipe_warnings(&file->recipe, &ours);
        const char *known = ours.len && !buf_failed(&ours) ? ours.data : "";
        for (const char *at = known; *at; at += strcspn(at, "\n") + 1)
            (void)fprintf(stderr, "note: %.*s\n", (int)strcspn(at, "\n"), at);
        for (size_t i = 0; i < reply->n_warnings; i++)
            if (!strstr(known, reply->warnings[i]))
                (void)fprintf(stderr, "note: %s\n", reply->warnings[i]);
    }

    /* Prints where the run begins, and its differences from the job that it continues. */
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

titan_status submit_and_show(struct ctl *ctl, const struct run_file *file, const struct args *args,
                             const struct submit_from *from, struct titan_error *err)
{
    struct submitted is;
    struct follow_options options = {.server = ctl->server, .progress = true, .recipe = &file->recipe};
    const char *patience = args_text(args, "wait-for-nodes", NULL);
    if (patience)
        TRY(when_duration(patience, &options.nodes_ms, err));
    TRY(live_stream_patience(args, &options.patience_ms, err));
    if (patience && !args_has(args, "follow"))
        return titan_fail(err, TITAN_EINVAL, "--wait-for-nodes goes with --follow");
    TRY(submit_run(ctl, file, args, from, &is, err));
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (ctl->json) {
        struct json_writer w = {.out = &text};
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", is.job);
        json_put_bool(&w, "existed", is.existed);
        json_end_object(&w);
    } else {
        buf_printf(&text, "%llu", (unsigned long long)is.job);
    }
    (void)output_line(&text);
    if (!args_has(args, "follow"))
        return TITAN_OK;

    options.job_id = is.job;
    _cleanup_message_ Titan__V1__GetJobResponse *end = NULL;
    TRY(follow_job(&options, &end, err));
    if (ctl->json)
        (void)output_json(&end->job->base, false);
    return follow_outcome(end->job, err);
}

#define FROM_KEYS 5

/* Loads a new run from the file. With --from the run begins from a job's checkpoint. With --from and no file, the run
 * uses that job's recipe, but has its own folder of checkpoints. The data is on the workers' machines, which may not
 * include this machine. */
static titan_status load(struct ctl *ctl, const struct args *args, const char *const *chosen, struct run_file *file,
                         struct submit_from *from, struct titan_error *err)
{
    char path[64], step_key[64], named[32];
    const char *text = args_text(args, "from", ""), *assignments[FROM_KEYS + SWEEP_KEYS_MAX + 1] = {
                                                        path, step_key, "checkpoint.initial_load_model_only=false"};
    size_t n = 3;
    struct titan_error refused = {0};
    if (!args_has(args, "from"))
        return run_file_load(file, &(struct run_source){.path = args->words[0], .assignments = chosen}, args, 0, false,
                             err);

    /* "12" or "12@500". */
    const char *at = strchr(text, '@');
    char *end = NULL;
    errno = 0;
    const unsigned long long job = *text >= '1' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    const bool is_job = job > 0 && job <= INT64_MAX && errno == 0 && (at ? end == at : !*end);
    const unsigned long long step = is_job && at && at[1] >= '0' && at[1] <= '9' ? strtoull(at + 1, &end, 10) : 0;
    if (!is_job || *end || (at && end == at + 1) || (at && end == at) || errno != 0 || step > 1000000000)
        return titan_fail(err, TITAN_EINVAL, "--from '%.64s': the number of a job, or JOB@STEP", text);
    from->job = job;
    (void)snprintf(path, sizeof(path), "checkpoint.initial_load_path=" RECIPE_JOB_PREFIX "%llu", job);
    (void)snprintf(step_key, sizeof(step_key), "checkpoint.load_step=%lld", at ? (long long)step : -1);
    (void)snprintf(named, sizeof(named), "job %llu", job);
    _cleanup_message_ Titan__V1__GetRecipeResponse *reply = NULL;
    const titan_status status = submit_recipe_of(ctl, from->job, &reply, &refused);
    from->whole = status == TITAN_OK;
    if (status != TITAN_OK && (args->n == 0 || status != TITAN_EPERM)) {
        *err = refused;
        return status;
    }
    if (args->n == 0) {
        assignments[n++] = "checkpoint.folder=checkpoint";
        assignments[n++] = "job.dump_folder=";
    }
    for (; *chosen; chosen++)
        assignments[n++] = *chosen;
    titan_assert(n <= FROM_KEYS + SWEEP_KEYS_MAX);
    if (args->n > 0)
        return run_file_load(file, &(struct run_source){.path = args->words[0], .assignments = assignments}, args, 0,
                             false, err);
    return run_file_load(file, &(struct run_source){named, reply->recipe, assignments}, args, 0, false, err);
}

/* Checks job from.number of the sweep, and submits it if `send` is true. */
static titan_status sweep_job(struct ctl *ctl, const struct args *args, const struct sweep *sweep, bool send,
                              struct submit_from from, struct titan_error *err)
{
    const char *chosen[SWEEP_KEYS_MAX + 1], *labels[SWEEP_KEYS_MAX + 3];
    char id[32], number[32];
    _cleanup_(run_file_clear) struct run_file file = {.text = BUF_INIT};
    size_t n = 0;
    sweep_choose(sweep, from.number - 1, chosen);
    (void)snprintf(id, sizeof(id), "sweep=%s", sweep->id);
    (void)snprintf(number, sizeof(number), "sweep.number=%zu", from.number);
    while (chosen[n]) {
        labels[n] = chosen[n];
        n++;
    }
    labels[n++] = id;
    labels[n++] = number;
    labels[n] = NULL;
    from.labels = labels;
    _cleanup_(submission_free) struct submission with = {.name = BUF_INIT, .key = BUF_INIT};
    titan_status status = load(ctl, args, chosen, &file, &from, err);
    if (status == TITAN_OK && send)
        status = submit_and_show(ctl, &file, args, &from, err);
    else if (status == TITAN_OK)
        status = compose(args, &file, &from, &with, err);
    if (status != TITAN_OK && err)
        titan_error_wrap(err, "job %zu of %zu of the sweep", from.number, sweep->jobs);
    return status;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    static const char *const nothing[] = {NULL};
    struct ctl *ctl = with;
    _cleanup_(run_file_clear) struct run_file file = {.text = BUF_INIT};
    _cleanup_(sweep_free) struct sweep sweep = {.jobs = 0};
    const bool begins = args_has(args, "from");
    struct submit_from from = {.folder = args_has(args, "fresh") ? TITAN__V1__CHECKPOINT_FOLDER__FRESH
                                         : begins                ? TITAN__V1__CHECKPOINT_FOLDER__EMPTY
                                                                 : TITAN__V1__CHECKPOINT_FOLDER__CONTINUE};
    if (!begins && args->n == 0)
        return titan_fail(err, TITAN_EINVAL, "submit needs a FILE, or --from JOB");
    TRY(sweep_parse(args, &sweep, err));
    if (!sweep.jobs) {
        TRY(load(ctl, args, nothing, &file, &from, err));
        return submit_and_show(ctl, &file, args, &from, err);
    }

    /* Checks all jobs of a sweep before sending the first. */
    if (args_has(args, "follow"))
        return titan_fail(err, TITAN_EINVAL, "--follow watches one job; titanctl wait waits for those of a --sweep");
    if (args->n > 0 && strcmp(args->words[0], "-") == 0)
        return titan_fail(err, TITAN_EINVAL, "--sweep needs a FILE: standard input is read once only");
    for (from.number = 1; from.number <= sweep.jobs; from.number++)
        TRY(sweep_job(ctl, args, &sweep, false, from, err));
    titan_status status = TITAN_OK;
    size_t sent = 0;
    while (sent < sweep.jobs && status == TITAN_OK) {
        from.number = sent + 1;
        status = sweep_job(ctl, args, &sweep, true, from, err);
        sent += status == TITAN_OK;
    }
    if (sent > 0)
        (void)fprintf(stderr, "titanctl: %zu of %zu jobs are queued, with the label sweep=%s\n", sent, sweep.jobs,
                      sweep.id);
    return status;
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
        "job as it\nwas there is titanctl resume.\n\nWith --sweep all jobs are checked before the first is queued; a "
        "number is added to each one's name, and it is\nlabelled with its values, with sweep.number, and with sweep, "
        "which is the same for all.",
    .min_args = 0,
    .max_args = 1,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            RUN_FILE_OPTIONS,
            {"from", 0, "JOB[@STEP]", "begin from that job's newest checkpoint, or that of STEP", WORD_JOB},
            FRESH_OPTION,
            SUBMIT_OPTIONS,
            {"sweep", 0, "KEY=V1,V2,...", "a job for each value; repeated for other keys: for each combination",
             WORD_NONE},
            {"for", 0, "USER", "the job is to be this user's, not one's own (operators)", WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl submit recipes/debug.toml --set training.dataset_path=/usr/include", "queue a small run"},
            {"titanctl submit run.toml --idempotency-key nightly-2026-11-20 --follow", "at most once, and watch it"},
            {"titanctl submit --from 12@500 --set optimizer.lr=1e-4", "from step 500 of job 12, with another rate"},
            {"titanctl submit run.toml --sweep optimizer.lr=1e-4,3e-4 --sweep training.seed=1,2", "four jobs"},
            {"job=$(titanctl submit run.toml) && titanctl wait $job", "in a script"},
            {NULL}},
    .run = run,
};
