/* SPDX-License-Identifier: Apache-2.0 */
/* job_folders.h - where jobs' folders are. run/jobs/ID is a link to the folder; the next agent of this node follows it.
 * run/ is local to this machine. A folder may be on a file server. So a function that opens a folder runs on a thread
 * of the file pool (daemon/common/file_pool.h). */
#ifndef TITAN_DAEMON_AGENT_SHELL_JOB_FOLDERS_H
#define TITAN_DAEMON_AGENT_SHELL_JOB_FOLDERS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Makes and opens the job's folder for recipe, logs, metrics and checkpoints. Only its user has access, also below a
 * public path. If the umask admits the group and no others, as the unit's does, the group has access too. */
titan_status job_folder_make(const char *directory, struct titan_error *err) TITAN_MUST_USE;
/* Makes the folder for titan-spawnd to give to the job's user: the agent's group keeps read and write access, also in
 * folders below. A folder that a user already owns stays as it is. */
titan_status job_folder_make_for_user(const char *directory, struct titan_error *err) TITAN_MUST_USE;
/* Lets the job's user read the recipe there, which the agent wrote. */
titan_status job_folder_show_recipe(const char *directory, struct titan_error *err) TITAN_MUST_USE;
/* Writes the job's recipe.toml if it is missing. Opens the folder. */
titan_status job_folder_write_recipe(const char *directory, const char *recipe, struct titan_error *err) TITAN_MUST_USE;
titan_status job_folder_record(const char *run_dir, uint64_t job_id, const char *directory,
                               struct titan_error *err) TITAN_MUST_USE;
/* Finds the folder of a job that ran on this node; false = none. */
bool job_folder_find(const char *run_dir, uint64_t job_id, char out[PATH_MAX]);
/* Gives the path of the link itself, which exists once the job's first worker starts here. Returns false if the path is
 * too long. */
bool job_folder_link(const char *run_dir, uint64_t job_id, char out[PATH_MAX]);
/* Lists the names in run/jobs that belong to jobs without a folder: links, and the records beside them. Opens the
 * folders. */
struct job_leftovers {
    char (*names)[NAME_MAX + 1];
    size_t n, cap;
};
void job_leftovers_find(const char *run_dir, struct job_leftovers *ret);
/* Removes the names of list, except for jobs where in_use returns true. */
void job_leftovers_remove(const struct job_leftovers *list, const char *run_dir,
                          bool (*in_use)(uint64_t job_id, void *data), void *data);

#endif
