/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/worker_tool.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/folder_owner.h"
#include "ctl/args.h"

static titan_status no_checkpoint_at(const char *path, struct titan_error *err)
{
    const titan_status status = titan_fail_errno(err, "checkpoint %s", path);
    if (err)
        err->sys_errno = 0; /* the checkpoint is missing, not a file */
    return status;
}

static void close_folder(DIR **dir)
{
    if (*dir)
        (void)closedir(*dir);
}

/* Is path a checkpoint or a folder of checkpoints? *ret_ms: when its newest checkpoint was written. */
static bool has_checkpoint(const char *path, int64_t *ret_ms)
{
    char inside[PATH_MAX + 48];
    uint64_t step = 0;
    bool any = false;
    struct stat st;
    (void)snprintf(inside, sizeof(inside), "%s/manifest.json", path);
    if (stat(inside, &st) != 0) {
        if (folder_newest_step(path, &step, &any, NULL) != TITAN_OK || !any)
            return false;
        (void)snprintf(inside, sizeof(inside), "%s/" CHECKPOINT_NAME, path, step);
        if (stat(inside, &st) != 0)
            return false;
    }
    *ret_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    return true;
}

/* Refuses a folder without checkpoints. The error tells what the folder is, or where the newest checkpoint below it is.
 * A folder that cannot be read is left to the worker program. hf: Hugging Face weights are accepted, too. */
static titan_status check_folder(const char *path, bool hf, struct titan_error *err)
{
    static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json"};
    char below[PATH_MAX], newest[PATH_MAX] = "";
    int64_t ms, newest_ms = -1;
    _cleanup_(close_folder) DIR *dir = opendir(path);
    if (!dir || has_checkpoint(path, &ms))
        return TITAN_OK;
    for (size_t i = 0; i < ARRAY_SIZE(weights); i++) {
        if (faccessat(dirfd(dir), weights[i], F_OK, 0) != 0)
            continue;
        if (hf)
            return TITAN_OK;
        (void)titan_fail(err, TITAN_EINVAL, "'%s' is a Hugging Face folder, not a checkpoint", path);
        titan_error_hint(err, "titanctl convert makes a checkpoint of it");
        return TITAN_EINVAL;
    }
    for (const struct dirent *e; (e = readdir(dir));) {
        static const char *const places[] = {"", "/checkpoint"}; /* a folder of checkpoints; a job's folder */
        for (size_t i = 0; i < ARRAY_SIZE(places) && e->d_name[0] != '.'; i++) {
            if (snprintf(below, sizeof(below), "%s/%s%s", path, e->d_name, places[i]) >= (int)sizeof(below) ||
                !has_checkpoint(below, &ms) || ms <= newest_ms)
                continue;
            newest_ms = ms;
            memcpy(newest, below, sizeof(newest));
        }
    }
    (void)titan_fail(err, TITAN_ENOTFOUND, "'%s' holds no checkpoint%s%s", path,
                     *newest ? "; the newest below it is in " : "", newest);
    return TITAN_ENOTFOUND;
}

titan_status checkpoint_resolve(struct ctl *ctl, const struct args *args, char out[PATH_MAX], struct titan_error *err)
{
    char name[PATH_MAX], *end;
    const char *word = args->words[0], *at = strrchr(word, '@');
    int64_t step = -1, given;
    TRY(args_int(args, "step", (struct int_range){0, INT64_MAX}, -1, &given, err));
    if ((size_t)snprintf(name, PATH_MAX, "%s", word) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "checkpoint: the path is too long");
    if (at && at != word && access(word, F_OK) != 0) { /* NAME@STEP, unless a file has that name */
        errno = 0;
        step = strtoll(at + 1, &end, 10);
        if (at[1] < '0' || at[1] > '9' || *end != '\0' || errno != 0)
            return titan_fail(err, TITAN_EINVAL, "'%.64s': behind the @ comes the number of a step", word);
        name[at - word] = '\0';
    }
    const bool job = strspn(name, "0123456789") == strlen(name);
    if (given >= 0 && (!job || step >= 0))
        return titan_fail(err, TITAN_EINVAL, "--step goes with the number of a job, not with a path");
    step = MAX(step, given);
    if (job) {
        uint64_t id;
        TRY(args_job_of(name, &id, err));
        if (step >= 0) {
            Titan__V1__ListCheckpointsRequest request = TITAN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
            _cleanup_message_ Titan__V1__ListCheckpointsResponse *list = NULL;
            request.job_id = id;
            TRY(ctl_call(ctl, TITAN_METHOD("ListCheckpoints"), &request.base,
                         &titan__v1__list_checkpoints_response__descriptor, &list, err));
            for (size_t i = 0; i < list->n_checkpoints; i++)
                if (list->checkpoints[i]->step == (uint64_t)step) {
                    (void)snprintf(out, PATH_MAX, "%s", list->checkpoints[i]->path);
                    return TITAN_OK;
                }
            titan_status status = titan_fail(err, TITAN_ENOTFOUND, "job %llu has no checkpoint of step %lld",
                                             (unsigned long long)id, (long long)step);
            titan_error_hint(err, "titanctl checkpoints %llu lists them", (unsigned long long)id);
            return status;
        }
        _cleanup_message_ Titan__V1__GetJobResponse *reply = NULL;
        TRY(ctl_job(ctl, id, &reply, err));
        if (!*reply->job->checkpoint) {
            const char *how = reply->job->state == TITAN__V1__JOB_STATE__CANCELLED
                                  ? "was cancelled before its first checkpoint"
                              : reply->job->state == TITAN__V1__JOB_STATE__FAILED ? "failed before its first checkpoint"
                              : reply->job->state == TITAN__V1__JOB_STATE__COMPLETED ? "wrote no checkpoint"
                                                                                     : "has no checkpoint yet";
            return titan_fail(err, TITAN_ENOTFOUND, "job %llu %s", (unsigned long long)reply->job->id, how);
        }
        (void)snprintf(out, PATH_MAX, "%s", reply->job->checkpoint);
        return TITAN_OK;
    }

    /* A job's folder has its checkpoints in checkpoint/. */
    char inside[PATH_MAX], behind[40] = "";
    if (step >= 0)
        (void)snprintf(behind, sizeof(behind), "/" CHECKPOINT_NAME, (uint64_t)step);
    if (access(name, R_OK) != 0)
        return no_checkpoint_at(name, err);
    if ((size_t)snprintf(inside, sizeof(inside), "%s/checkpoint", name) >= sizeof(inside) - sizeof(behind))
        return titan_fail(err, TITAN_EINVAL, "checkpoint: the path is too long");
    (void)snprintf(out, PATH_MAX, "%s%s", access(inside, R_OK) == 0 ? inside : name, behind);
    if (access(out, R_OK) != 0)
        return no_checkpoint_at(out, err);
    return check_folder(out, args->command && strcmp(args->command->name, "convert") == 0, err);
}

titan_status worker_become(char *const *argv, struct titan_error *err)
{
    titan_assert(argv[0]);
    char dir[PATH_MAX], path[PATH_MAX + 16];
    TRY(file_self_dir(dir, sizeof(dir), err));
    (void)snprintf(path, sizeof(path), "%s/titan-worker", dir);
    (void)fflush(stdout);
    (void)execv(path, argv);
    return titan_fail_errno(err, "cannot start %s", path);
}

titan_status worker_do(const struct ctl *ctl, const struct args *args, char *const *words, int n, const char *json,
                       struct titan_error *err)
{
    titan_assert(n >= 1);
    _cleanup_free_ char **argv = calloc((size_t)n + 2 * (size_t)args->n_given + 6, sizeof(*argv));
    _cleanup_free_ char(*names)[24] = calloc((size_t)args->n_given + 1, sizeof(*names));
    int to = 0;
    if (!argv || !names)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    argv[to++] = "titanctl"; /* messages carry this name */
    argv[to++] = (char *)(uintptr_t)args->command->name;
    for (int i = 0; i < args->n_given; i++) {
        const struct given *given = &args->given[i];
        for (const struct option_spec *own = args->command->options; own->name; own++) {
            if (own != given->spec || strcmp(own->name, "step") == 0)
                continue;
            (void)snprintf(names[i], sizeof(names[i]), "--%s", own->name);
            argv[to++] = names[i];
            if (given->value)
                argv[to++] = (char *)(uintptr_t)given->value;
        }
    }
    if (json && ctl->json)
        argv[to++] = (char *)(uintptr_t)json;
    argv[to++] = "--";
    for (int i = 0; i < n; i++)
        argv[to++] = words[i];
    return worker_become(argv, err);
}
