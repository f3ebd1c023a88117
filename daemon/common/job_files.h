/* SPDX-License-Identifier: Apache-2.0 */
/* job_files.h - files in a job's folder, opened by titand. With titan-spawnd the folder is its user's, so its content
 * is untrusted. So no link in it is followed, only folders and files with one name are opened, and no open blocks on
 * them. The folder may be on a file server, so use a thread of the file pool (file_pool.h). */
#ifndef TITAN_DAEMON_COMMON_JOB_FILES_H
#define TITAN_DAEMON_COMMON_JOB_FILES_H

#include <stdbool.h>

#include "base/error.h"

/* Opens a folder below dir, which is a job's folder or the folder of all jobs. make: creates the last part if it is
 * missing. dir itself may be behind a link. TITAN_ENOTFOUND: the folder does not exist; TITAN_EINVAL: it is no folder,
 * or a part of the path is a link. */
titan_status job_files_folder(const char *dir, const char *name, bool make, int *ret_fd,
                              struct titan_error *err) TITAN_MUST_USE;
/* Opens a file in an open folder. flags: of open(2); O_CREAT makes the file (0644). TITAN_EINVAL: it is a link, a
 * folder, a FIFO, a device, or a file with a second name. */
titan_status job_files_open(int folder, const char *name, int flags, int *ret_fd,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
