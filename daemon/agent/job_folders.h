/* SPDX-License-Identifier: Apache-2.0 */
/* job_folders.h - where the folders of jobs are: run/jobs/ID is a link to the folder, which the next agent of this node
 * follows. */
#ifndef TITAN_DAEMON_AGENT_JOB_FOLDERS_H
#define TITAN_DAEMON_AGENT_JOB_FOLDERS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* The job's recipe.toml, unless it is there already. */
/* Recipe, logs, metrics and checkpoints of a job are for their user only, also on a path that all may walk. A umask
 * that lets the group in and others not (the unit's) is left as it is. */
titan_status job_folder_make(const char *directory, struct titan_error *err) TITAN_MUST_USE;
titan_status job_folder_write_recipe(const char *directory, const char *recipe, struct titan_error *err) TITAN_MUST_USE;
titan_status job_folder_record(const char *run_dir, uint64_t job_id, const char *directory,
                               struct titan_error *err) TITAN_MUST_USE;
/* The folder of a job this node has run; false when there is none. */
bool job_folder_find(const char *run_dir, uint64_t job_id, char out[PATH_MAX]);
/* The link itself, which leads to that folder once the job's first worker is started here; false: too long a path. */
bool job_folder_link(const char *run_dir, uint64_t job_id, char out[PATH_MAX]);
/* Removes the links, and the records beside them, of jobs without a folder. */
void job_folders_sweep(const char *run_dir);

#endif
