/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - titanctl run: one run in the foreground, with a private titand. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/machine.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/dev_daemon.h"
#include "ctl/follow.h"
#include "ctl/output.h"
#include "ctl/report.h"
#include "ctl/run_file.h"
#include "ctl/submit.h"

static titan_status submit_and_follow(struct ctl *ctl, const struct args *args, const struct run_file *file,
                                      const struct dev_daemon *daemon, Titan__V1__GetJobResponse **ret_end,
                                      struct titan_error *err)
{
    struct submitted is;
    const struct submit_from from = {.folder = args_has(args, "fresh") ? TITAN__V1__CHECKPOINT_FOLDER__FRESH
                                                                       : TITAN__V1__CHECKPOINT_FOLDER__CONTINUE};
    TRY(submit_run(ctl, file, args, &from, &is, err));
    const struct follow_options options = {.server = ctl->server,
                                           .job_id = is.job,
                                           .progress = true,
                                           .recipe = &file->recipe,
                                           .cancel_on_interrupt = true,
                                           .patience_ms = 1000};
    const titan_status status = follow_job(&options, ret_end, err);
    if (status == TITAN_ECANCELLED) /* a second Ctrl-C came: the job's end was not awaited */
        titan_error_hint(err, "what it wrote is below %s",
                         *file->recipe.job.dump_folder ? file->recipe.job.dump_folder : daemon->state_dir);
    return status;
}

#define SLOTS_CPU 8

/* Chooses how many slots the private titand gets: as many as the requested workers, otherwise one per GPU, or a few on
 * CPUs. On CPUs it gets as many as the smallest mesh needs, if that is more. */
static titan_status choose_slots(const struct recipe *r, int64_t workers, int64_t *ret, struct titan_error *err)
{
    titan_assert(r->elastic.max_workers > 0 && workers >= 0);
    const int64_t gpus = strcmp(r->device.name, "cpu") == 0 ? 0 : machine_gpus();
    int64_t slots = workers > 0 ? workers : gpus > 0 ? gpus : MIN(r->elastic.max_workers, SLOTS_CPU);
    int64_t least = slots;
    while (least < r->elastic.max_workers && recipe_fit_world(r, least) == 0)
        least++;
    if (gpus > 0 && workers == 0 && least > slots)
        return titan_fail(err, TITAN_EUNPLACEABLE, "the run needs at least %lld workers; this machine has %lld GPU%s",
                          (long long)least, (long long)gpus, gpus == 1 ? "" : "s");
    *ret = MAX(slots, least);
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(run_file_clear) struct run_file file = {.text = BUF_INIT};
    int64_t workers, slots;
    TRY(args_int(args, "workers", (struct int_range){1, 1024}, 0, &workers, err));
    TRY(run_file_load(&file, &(struct run_source){.path = args->words[0]}, args, workers, true, err));
    TRY(choose_slots(&file.recipe, workers, &slots, err));
    const char *report = args_text(args, "report", NULL);
    if (report) { /* a bad path fails before the run, not hours later */
        char folder[PATH_MAX];
        struct stat is;
        file_parent(report, folder);
        if (stat(report, &is) == 0 && S_ISDIR(is.st_mode))
            return titan_fail(err, TITAN_EINVAL, "--report: %s is a folder", report);
        if (access(report, W_OK) != 0 && access(folder, W_OK | X_OK) != 0)
            return titan_fail_errno(err, "--report: cannot write to %s", folder);
    }

    struct dev_daemon daemon;
    _cleanup_message_ Titan__V1__GetJobResponse *end = NULL;
    titan_status status =
        dev_daemon_start(&daemon, args_text(args, "state-dir", NULL), file.recipe.device.name, slots, err);
    if (status == TITAN_OK)
        status = ctl_server(daemon.server, ctl->server, sizeof(ctl->server), err);
    if (status == TITAN_OK)
        status = submit_and_follow(ctl, args, &file, &daemon, &end, err);
    /* Ignores further Ctrl-C: cleaning up ends the private titand and removes its leftovers. */
    (void)signal(SIGINT, SIG_IGN);
    if (end && report) { /* written after any outcome; a failure to write does not change the outcome */
        _cleanup_(buf_free) struct buf page = BUF_INIT;
        struct titan_error why = {0};
        if (report_page_of(ctl, end->job->id, &page, &why) != TITAN_OK ||
            file_write(report, page.data, page.len, &why) != TITAN_OK)
            (void)fprintf(stderr, "titanctl: no report: %s\n", why.msg);
    }
    rpc_channel_close(TAKE(ctl->channel));
    /* Keeps the jobs' folders after a failure, because the logs in them explain it. */
    const bool explains = !end || end->job->state == TITAN__V1__JOB_STATE__FAILED;
    const bool stays = dev_daemon_stop(&daemon, explains);
    TRY(status);
    titan_assert(end);
    const Titan__V1__Job *job = end->job;
    if (!stays)
        *end->job->directory = '\0';
    if (ctl->json)
        (void)output_json(&job->base, true);
    else if (stays || *job->checkpoint)
        (void)printf("%s\n", stays ? job->directory : job->checkpoint);
    (void)fflush(stdout);
    if (job->state != TITAN__V1__JOB_STATE__CANCELLED) {
        status = follow_outcome(job, err);
        if (status != TITAN_OK && stays)
            titan_error_hint(err, "its logs are in %s/logs", job->directory);
        return status;
    }
    status = titan_fail(err, TITAN_ECANCELLED, "the run was stopped at step %llu", (unsigned long long)job->step);
    if (*job->checkpoint)
        titan_error_hint(err, "its last checkpoint is %s", job->checkpoint);
    return status;
}

const struct command command_run = {
    .name = "run",
    .summary = "train in the foreground, with a titand of its own",
    .arguments = "FILE",
    .text =
        "Starts `titand dev` over a folder, submits the run, shows progress, and ends with the run's exit code. A "
        "job's\nfolder with checkpoints or other products in it stays and is printed, as is that of a run that failed. "
        "All else is\nremoved, logs and metrics included, and the newest checkpoint is printed; --state-dir keeps all. "
        "Ctrl-C and SIGTERM\nstop the run with a last checkpoint (exit code 130), a second one does not wait for it; "
        "SIGUSR1 writes a checkpoint.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            {"workers", 'n', "N", "workers to train with (default: what the run file and the machine allow)",
             WORD_NONE},
            RUN_FILE_OPTIONS,
            FRESH_OPTION,
            {"state-dir", 0, "DIR", "where titand keeps its state (default: a new folder in $TMPDIR)", WORD_FILE},
            {"report", 0, "FILE", "write the page of `titanctl report` there when the run has ended", WORD_FILE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl run recipes/debug.toml --set training.dataset_path=/usr/include", "try a run file"},
            {"titanctl run run.toml -n 2 --state-dir ./state", "two workers; keep the job store"},
            {"titanctl run run.toml --report run.html", "curves, events and recipe for a browser, at the end"},
            {NULL}},
    .run = run,
};
