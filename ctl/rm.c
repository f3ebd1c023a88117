/* SPDX-License-Identifier: Apache-2.0 */
/* rm.c - titanctl rm and gc: deletes finished jobs, and leftovers of titanctl run. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/vec.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/dev_daemon.h"
#include "ctl/jobs.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"
#include "ctl/submit.h"
#include "ctl/when.h"

#define OLD_MS (INT64_C(30) * 86400 * 1000)
#define STARTING_MS 60000 /* a younger folder may be of a starting run, which has no lock yet */

/* Prints "job 12" or "folder /tmp/titan-run-x1", which was deleted or, with dry, would be. folder NULL: prints the
 * job. */
static void print_one(const struct ctl *ctl, uint64_t id, const char *folder, bool dry)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (ctl->json) {
        struct json_writer w = {.out = &text};
        json_begin_object(&w, NULL);
        if (folder)
            json_put_string(&w, "folder", folder);
        else
            json_put_uint(&w, "job_id", id);
        json_put_bool(&w, "removed", !dry);
        json_end_object(&w);
    } else {
        if (folder)
            buf_printf(&text, "folder %s", folder);
        else
            buf_printf(&text, "job %llu", (unsigned long long)id);
        buf_puts(&text, dry ? " would be removed" : " removed");
    }
    (void)output_line(&text);
}

/* --- what the server would say ------------------------------------------------------------------------------------ */

/* A job that may need files in another job's directory. */
struct other_job {
    uint64_t id;
    char *checkpoint, *recipe; /* recipe: only of an unfinished job */
};
struct other_jobs {
    struct other_job *list;
    size_t n, cap;
    struct ctl *ctl;
    titan_status status;
    struct titan_error *err;
};

static bool add_other(const Titan__V1__Job *job, void *data)
{
    struct other_jobs *o = data;
    _cleanup_message_ Titan__V1__GetRecipeResponse *reply = NULL;
    if (!ctl_state_final(job->state)) {
        o->status = submit_recipe_of(o->ctl, job->id, &reply, o->err);
        /* the job was removed meanwhile, or is another user's */
        if (o->status == TITAN_ENOTFOUND || o->status == TITAN_EPERM)
            o->status = TITAN_OK;
    }
    if (o->status != TITAN_OK)
        return false;
    const struct other_job other = {
        .id = job->id, .checkpoint = strdup(job->checkpoint), .recipe = reply ? strdup(reply->recipe) : NULL};
    if (!other.checkpoint || (reply && !other.recipe) || !VEC_PUSH(o->list, o->n, o->cap, other)) {
        free(other.checkpoint);
        free(other.recipe);
        o->status = titan_fail(o->err, TITAN_ENOMEM, "out of memory");
    }
    return o->status == TITAN_OK;
}

/* Refuses what RemoveJob refuses, with the same texts. A job that can be removed counts as gone when later jobs are
 * checked. */
static titan_status check_removal(struct ctl *ctl, uint64_t id, struct other_jobs *others, struct titan_error *err)
{
    _cleanup_message_ Titan__V1__GetJobResponse *reply = NULL;
    char name[32] = "", below[PATH_MAX + 2];
    TRY(ctl_job(ctl, id, &reply, err));
    const Titan__V1__Job *job = reply->job;
    if (!ctl_state_final(job->state)) {
        const char *state = ctl_state_name(job->state);
        for (size_t i = 0; i < sizeof(name) - 1 && state[i]; i++)
            name[i] = (char)tolower((unsigned char)state[i]);
        titan_fail(err, TITAN_ECONFLICT, "job %llu is %s", (unsigned long long)id, name);
        titan_error_hint(err, "titanctl cancel stops it");
        return TITAN_ECONFLICT;
    }
    if (job->n_nodes)
        return titan_fail(err, TITAN_ECONFLICT, "workers of job %llu are being stopped still", (unsigned long long)id);
    if (!others->ctl) {
        struct jobs_search all = {.args = &(struct args){.n = 0}};
        others->ctl = ctl;
        others->err = err;
        TRY(jobs_each(ctl, &all, add_other, others, err));
        TRY(others->status);
    }
    (void)snprintf(below, sizeof(below), "%s/", job->directory);
    for (size_t i = 0; i < others->n; i++) {
        const struct other_job *o = &others->list[i];
        if (o->id == id || o->id == 0)
            continue;
        if (strncmp(o->checkpoint, below, strlen(below)) == 0 || (o->recipe && strstr(o->recipe, below)))
            return titan_fail(err, TITAN_ECONFLICT, "job %llu uses checkpoints of job %llu", (unsigned long long)o->id,
                              (unsigned long long)id);
    }
    for (size_t i = 0; i < others->n; i++)
        if (others->list[i].id == id)
            others->list[i].id = 0;
    return TITAN_OK;
}

/* --- one after the other ------------------------------------------------------------------------------------------ */

static int newest_first(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

struct removing {
    struct ctl *ctl;
    const struct jobs *jobs;
    bool searched, dry;
    struct other_jobs others;
    size_t kept; /* number of jobs of other users */
};

/* Removes a job. Skips a job that was found by a search and cannot be removed. */
static titan_status remove_one(void *data, size_t i, struct titan_error *err)
{
    struct removing *r = data;
    const uint64_t id = r->jobs->ids[i];
    Titan__V1__RemoveJobRequest request = TITAN__V1__REMOVE_JOB_REQUEST__INIT;
    _cleanup_message_ Titan__V1__RemoveJobResponse *reply = NULL;
    request.job_id = id;
    const titan_status status = r->dry ? check_removal(r->ctl, id, &r->others, err)
                                       : ctl_call(r->ctl, TITAN_METHOD("RemoveJob"), &request.base,
                                                  &titan__v1__remove_job_response__descriptor, &reply, err);
    if (status == TITAN_OK)
        print_one(r->ctl, id, NULL, r->dry);
    if (reply && *reply->directory_left) {
        output_fit(&reply->base);
        (void)fprintf(stderr, "titanctl: job %llu: %s is left: %s\n", (unsigned long long)id, reply->directory_left,
                      reply->why);
    }
    if (!r->searched || (status != TITAN_ECONFLICT && status != TITAN_EPERM))
        return status;
    r->kept += status == TITAN_EPERM;
    if (status == TITAN_ECONFLICT)
        (void)fprintf(stderr, "titanctl: job %llu stays: %s\n", (unsigned long long)id, err->msg);
    return TITAN_OK;
}

/* Removes the newest job first, because it may have continued from an older job. */
static titan_status remove_jobs(struct ctl *ctl, struct jobs *jobs, bool searched, bool dry, struct titan_error *err)
{
    struct removing r = {.ctl = ctl, .jobs = jobs, .searched = searched, .dry = dry};
    if (jobs->n)
        qsort(jobs->ids, jobs->n, sizeof(jobs->ids[0]), newest_first);
    const titan_status status = outcomes(jobs->n, remove_one, &r, "jobs are not removed", err);
    for (size_t i = 0; i < r.others.n; i++) {
        free(r.others.list[i].checkpoint);
        free(r.others.list[i].recipe);
    }
    free(r.others.list);
    if (r.kept)
        (void)fprintf(stderr, "titanctl: %zu jobs of other users were left alone\n", r.kept);
    return status;
}

static titan_status run_rm(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(jobs_free) struct jobs jobs = {0};
    TRY(jobs_chosen(ctl, args, false, JOBS_ENDED, &jobs, err));
    if (jobs.n == 0)
        (void)fputs("titanctl: there are none to remove\n", stderr);
    return remove_jobs(ctl, &jobs, args->n == 0, args_has(args, "dry-run"), err);
}

#define DRY_RUN                                                                                                        \
    {                                                                                                                  \
        "dry-run", 0, NULL, "say what would be removed or is refused, and remove nothing", WORD_NONE                   \
    }

const struct command command_rm = {
    .name = "rm",
    .summary = "delete jobs that have ended, with logs, metrics and checkpoints",
    .arguments = "[JOB...]",
    .text = "A job's directory is deleted and it is in no list any more; its events stay in the log. A folder of "
            "checkpoints that\nthe run file named elsewhere stays. A job that has not ended is refused (exit code 6). "
            "So is one while another job has\nits checkpoints in that directory, or has not ended and names one there.",
    .min_args = 0,
    .max_args = ANY_NUMBER,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){DRY_RUN, JOBS_FILTERS, {NULL}},
    .examples =
        (const struct example[]){{"titanctl rm 12 13", "two jobs"},
                                 {"titanctl rm --label sweep=4f1c2a90 --state FAILED", "those of a sweep that failed"},
                                 {NULL}},
    .run = run_rm,
};

/* --- gc ----------------------------------------------------------------------------------------------------------- */

struct old_jobs {
    struct jobs jobs;
    int64_t before_ms;
    bool failed; /* out of memory */
};

static bool add_old(const Titan__V1__Job *job, void *data)
{
    struct old_jobs *old = data;
    if (job->finished_at_ms > old->before_ms)
        return true;
    old->failed = !VEC_PUSH(old->jobs.ids, old->jobs.n, old->jobs.cap, job->id);
    return !old->failed;
}

static titan_status run_gc(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    const char *older = args_text(args, "older-than", NULL);
    const bool dry = args_has(args, "dry-run");
    const int64_t now_ms = clock_wall_ms();
    int64_t age_ms = OLD_MS;
    if (older)
        TRY(when_duration(older, &age_ms, err));
    if (older && age_ms > 0 && strspn(older, "0123456789.") == strlen(older)) /* 30 may be meant as days */
        return titan_fail(err, TITAN_EINVAL, "--older-than %.32s: of what? %.32ss, %.32sm, %.32sh or %.32sd", older,
                          older, older, older, older);
    if (!jobs_filtered(args)) {
        /* Removes what ended private runs have left. */
        const int64_t before_ms = now_ms - MAX(age_ms, (int64_t)STARTING_MS);
        char folder[PATH_MAX];
        dev_daemon_folders(folder, sizeof(folder));
        DIR *dir = opendir(folder);
        titan_status status = dir ? TITAN_OK : titan_fail_errno(err, "%s", folder);
        for (const struct dirent *e; status == TITAN_OK && (e = readdir(dir));) {
            char path[PATH_MAX], lock[PATH_MAX];
            struct stat st;
            _cleanup_fd_ int fd = -1;
            /* A leftover is this user's folder, unchanged since before_ms, and without a titand's lock. */
            if (strncmp(e->d_name, DEV_DAEMON_FOLDER, strlen(DEV_DAEMON_FOLDER)) != 0 ||
                snprintf(path, sizeof(path), "%s/%s", folder, e->d_name) >= (int)sizeof(path) ||
                lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
                (int64_t)st.st_mtim.tv_sec * 1000 > before_ms ||
                snprintf(lock, sizeof(lock), "%s/lock", path) >= (int)sizeof(lock) ||
                (access(lock, F_OK) == 0 && lock_dir(path, &fd, NULL) != TITAN_OK))
                continue;
            close_fd(&fd);
            if (!dry)
                status = dir_remove(path, err);
            if (status == TITAN_OK)
                print_one(ctl, 0, path, dry);
        }
        if (dir)
            (void)closedir(dir);
        TRY(status);
    }
    if (args_has(args, "runs"))
        return TITAN_OK;

    struct old_jobs old = {.before_ms = now_ms - age_ms};
    struct jobs_search ended = {.args = args, .among = JOBS_ENDED};
    titan_status status = jobs_each(ctl, &ended, add_old, &old, err);
    if (status == TITAN_OK && old.failed)
        status = titan_fail(err, TITAN_ENOMEM, "out of memory");
    if (status == TITAN_OK)
        status = remove_jobs(ctl, &old.jobs, true, dry, err);
    jobs_free(&old.jobs);
    return status;
}

const struct command command_gc = {
    .name = "gc",
    .summary = "delete old jobs, and folders that titanctl run has left behind",
    .arguments = "",
    .text = "Jobs that ended longer ago than --older-than are deleted as by titanctl rm, but for those that others go "
            "on from. With\nfilters only such jobs; without them, folders of titanctl run in $TMPDIR, too, with the "
            "jobs in them: those of this\nuser that nothing has changed for so long, and at least for a minute.",
    .min_args = 0,
    .max_args = 0,
    .options =
        (const struct option_spec[]){{"older-than", 0, "AGE", "90s, 30m, 2h, 1d, ... (default 30d)", WORD_NONE},
                                     DRY_RUN,
                                     {"runs", 0, NULL, "only folders of titanctl run; no server is asked", WORD_NONE},
                                     JOBS_FILTERS,
                                     {NULL}},
    .examples = (const struct example[]){{"titanctl gc --dry-run", "what is older than 30 days"},
                                         {"titanctl gc --older-than 7d --user alice", "jobs of one user"},
                                         {NULL}},
    .run = run_gc,
};
