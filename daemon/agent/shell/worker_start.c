/* SPDX-License-Identifier: Apache-2.0 */
/* worker_start.c - see worker_start.h. */
#include "daemon/agent/shell/worker_start.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/recipe.h"
#include "daemon/agent/shell/job_folders.h"
#include "daemon/agent/shell/worker_logs.h"
#include "daemon/common/job_files.h"

static struct worker_start *start_of(struct file_task *k)
{
    return (struct worker_start *)(void *)k;
}

struct worker_start *worker_start_new(const char *recipe)
{
    struct worker_start *s = calloc(1, sizeof(*s));
    if (s && !(s->recipe = strdup(recipe)))
        free(TAKE(s));
    if (s)
        s->process = WORKER_PROCESS_NONE;
    return s;
}

/* The job's user number on this node. One name with two numbers means two users, because files on a file server have
 * numbers. TITAN_EAGAIN: the name service does not answer. */
static titan_status find_uid(const struct worker_start *s, uid_t *ret, struct titan_error *err)
{
    struct passwd entry, *found = NULL;
    char memory[16384];
    int rc = s->user[0] ? getpwnam_r(s->user, &entry, memory, sizeof(memory), &found) : 0;
    if (found && found->pw_uid == 0) /* invalid on every node, so it ends the job */
        return titan_fail(err, TITAN_EINVAL,
                          "node %s runs jobs as their users and none as root (agent.spawnd): submit as a user, or with "
                          "--for USER",
                          s->node);
    if (found && s->has_uid && found->pw_uid != s->uid)
        return titan_fail(err, TITAN_EPERM, "user %s is uid %u for the coordinator and uid %u on node %s", s->user,
                          s->uid, found->pw_uid, s->node);
    if (!found && s->has_uid)
        return titan_fail(err, rc ? TITAN_EAGAIN : TITAN_EPERM,
                          "user %s, uid %u for the coordinator, is not known on node %s%s%s", s->user, s->uid, s->node,
                          rc ? ": " : "", rc ? strerror(rc) : "");
    if (!found && s->default_user[0])
        rc = getpwnam_r(s->default_user, &entry, memory, sizeof(memory), &found);
    if (!found) {
        (void)titan_fail(err, rc ? TITAN_EAGAIN : TITAN_EPERM, "'%s' is no user of node %s%s%s",
                         s->default_user[0] ? s->default_user : s->user, s->node, rc ? ": " : "",
                         rc ? strerror(rc) : "");
        titan_error_hint(err, "make that user, or name one for jobs without one: agent.default_user of the node");
        return rc ? TITAN_EAGAIN : TITAN_EPERM;
    }
    *ret = found->pw_uid;
    return TITAN_OK;
}

/* Starts the worker as the agent's user; or through titan-spawnd as the job's user, who owns the folder and its
 * content. */
static titan_status start(struct worker_start *s, struct titan_error *err)
{
    const bool as_user = s->spawnd[0];
    struct worker_limits_held held = {.why = ""};
    struct cgroup_limits limits;
    uid_t uid = 0;
    _cleanup_free_ struct recipe *r = malloc(sizeof(*r));
    if (!r)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    recipe_init(r);
    TRY(failpoint("agent.start", err));
    TRY(recipe_parse(r, s->recipe, "recipe", err));
    const struct cgroup_limits asked = worker_limits_asked(r);
    if (asked.memory || asked.cpus || s->limits.site.memory || s->limits.site.cpus)
        worker_limits_look(s->spawnd, &held);
    TRY(worker_limits_choose(&s->limits, &asked, &held, s->node, &limits, err));
    /* the recipe's paths were not checked against the rights of this agent's user, who would open them here */
    if (!as_user && r->job.as_user) {
        (void)titan_fail(err, TITAN_EUNPLACEABLE,
                         "jobs run as their users (coordinator.jobs_as_users), and node %s has no titan-spawnd",
                         s->node);
        titan_error_hint(err, "start titan-spawnd on the node and name it: agent.spawnd");
        return TITAN_EUNPLACEABLE;
    }

    if (as_user)
        TRY(find_uid(s, &uid, err));
    TRY(as_user ? job_folder_make_for_user(s->directory, err) : job_folder_make(s->directory, err));
    TRY(job_folder_write_recipe(s->directory, s->recipe, err));
    if (as_user)
        TRY(job_folder_show_recipe(s->directory, err));
    if (!file_task_wanted(&s->task))
        return titan_fail(err, TITAN_ECANCELLED, "given up");
    _cleanup_fd_ int folder = open(s->directory, O_PATH | O_DIRECTORY | (as_user ? O_NOFOLLOW : 0) | O_CLOEXEC);
    if (folder < 0)
        return titan_fail_errno(err, "job directory '%s'", s->directory);

    /* This thread waits until the child has become the worker. So this thread opens the log, and not the child. */
    _cleanup_fd_ int logs = -1, log = -1;
    if (!as_user) {
        TRY(job_files_folder(s->directory, "logs", true, &logs, err));
        if (job_files_open(logs, strrchr(s->log, '/') + 1, O_WRONLY | O_CREAT | O_APPEND, &log, err) != TITAN_OK)
            return titan_error_wrap(err, "log '%s'", s->log);
    }
    /* the agent that adopts the process needs this record */
    TRY(job_folder_record(s->run_dir, s->job_id, s->directory, err));
    if (!as_user)
        logs_write_rank(s->directory, s->node, s->worker_id, -1);
    const struct worker_command command = {.program = s->program,
                                           .socket = s->socket,
                                           .page = s->page,
                                           .directory = s->directory,
                                           .host = s->host,
                                           .ports = s->ports[0] ? s->ports : NULL,
                                           .log = log,
                                           .folder = folder,
                                           .run = s->run,
                                           .job_id = s->job_id,
                                           .worker_id = s->worker_id,
                                           .cuda_devices = s->cuda[0] ? s->cuda : NULL,
                                           .spawnd = as_user ? s->spawnd : NULL,
                                           .uid = uid,
                                           .limits = limits};
    if (!file_task_wanted(&s->task))
        return titan_fail(err, TITAN_ECANCELLED, "given up");
    TRY(worker_process_start(&command, &s->process, err));
    if (as_user)
        logs_write_rank(s->directory, s->node, s->worker_id, -1); /* its folder now exists */
    return TITAN_OK;
}

void worker_start_run(struct file_task *k)
{
    struct worker_start *s = start_of(k);
    (void)!start(s, &s->err);
    titan_assert((s->err.status == TITAN_OK) == (s->process.pid > 0));
}

void worker_start_free(struct file_task *k)
{
    struct worker_start *s = start_of(k);
    worker_process_undo(&s->process);
    free(s->recipe);
    free(s);
}
