/* SPDX-License-Identifier: Apache-2.0 */
/* job_folders.h - where the folders of jobs are: run/jobs/ID is a link to the folder, which the next agent of this node
 * follows. run/ is this machine's own, the folders may be on a file server: what opens one is for a thread of the
 * file pool (daemon/common/file_pool.h). */
#ifndef TITAN_DAEMON_AGENT_SHELL_JOB_FOLDERS_H
#define TITAN_DAEMON_AGENT_SHELL_JOB_FOLDERS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* The job's folder, for its user only, also on a path that all may walk: it holds recipe, logs, metrics and
 * checkpoints. A umask that lets the group in and others not (the unit's) is left as it is. Opens the folder. */
titan_status job_folder_make(const char *directory, struct titan_error *err) TITAN_MUST_USE;
/* The same where titan-spawnd gives it to the job's user: the agent's group stays, and may read and write, in folders
 * that are made below, too. One that is a user's already is left as it is. */
titan_status job_folder_make_for_user(const char *directory, struct titan_error *err) TITAN_MUST_USE;
/* The job's user may read the recipe there, which the agent has written. */
titan_status job_folder_show_recipe(const char *directory, struct titan_error *err) TITAN_MUST_USE;
/* The job's recipe.toml, unless it is there already. Opens the folder. */
titan_status job_folder_write_recipe(const char *directory, const char *recipe, struct titan_error *err) TITAN_MUST_USE;
titan_status job_folder_record(const char *run_dir, uint64_t job_id, const char *directory,
                               struct titan_error *err) TITAN_MUST_USE;
/* The folder of a job this node has run; false when there is none. */
bool job_folder_find(const char *run_dir, uint64_t job_id, char out[PATH_MAX]);
/* The link itself, which leads to that folder once the job's first worker is started here; false: too long a path. */
bool job_folder_link(const char *run_dir, uint64_t job_id, char out[PATH_MAX]);
/* Names in run/jobs that are left of jobs without a folder: links, and the records beside them. Opens the folders. */
struct job_leftovers {
    char (*names)[NAME_MAX + 1];
    size_t n, cap;
};
void job_leftovers_find(const char *run_dir, struct job_leftovers *ret);
/* Removes those names, except of jobs for which in_use returns true. */
void job_leftovers_remove(const struct job_leftovers *list, const char *run_dir,
                          bool (*in_use)(uint64_t job_id, void *data), void *data);

#endif
