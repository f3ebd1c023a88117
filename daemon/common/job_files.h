/* SPDX-License-Identifier: Apache-2.0 */
/* job_files.h - files in the folder of a job, opened by titand. With titan-spawnd that folder is its user's, and what
 * is there may be anything: no link in it is followed, nothing is opened but folders and files of one name, and no open
 * blocks. The folder may be on a file server: for a thread of the file pool (file_pool.h). */
#ifndef TITAN_DAEMON_COMMON_JOB_FILES_H
#define TITAN_DAEMON_COMMON_JOB_FILES_H

#include <stdbool.h>

#include "base/error.h"

/* A folder below dir, the job's own or that of all jobs; make: its last part is made where it is missing. dir itself
 * may be behind a link. TITAN_ENOTFOUND: it is not there; TITAN_EINVAL: something else is, or a part of it is a link.
 */
titan_status job_files_folder(const char *dir, const char *name, bool make, int *ret_fd,
                              struct titan_error *err) TITAN_MUST_USE;
/* A file in an open folder; flags of open(2), which make it where O_CREAT says so (0644). TITAN_EINVAL: it is a link, a
 * folder, a FIFO, a device, or a file that has another name as well. */
titan_status job_files_open(int folder, const char *name, int flags, int *ret_fd,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
