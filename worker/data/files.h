/* SPDX-License-Identifier: Apache-2.0 */
/* files.h - the files that a path of training data stands for. */
#ifndef TITAN_WORKER_DATA_FILES_H
#define TITAN_WORKER_DATA_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct data_file {
    char *path;
    uint64_t bytes;
    int64_t changed_ns; /* when, by its file system */
};

struct data_files {
    struct data_file *file; /* by the bytes of their paths */
    size_t n, cap;
    uint64_t bytes;                /* of all */
    uint64_t left_out;             /* files and folders that cannot be read */
    struct titan_error first_left; /* the first of them, and why */
};

/* Adds the regular files below root that are not empty, or root itself, sorted among themselves. Links below root are
 * not followed. TITAN_ENOTFOUND: root is not there; TITAN_EINVAL: it cannot be read. What cannot be read below it is
 * counted. */
titan_status data_files_add(struct data_files *files, const char *root, struct titan_error *err) TITAN_MUST_USE;
void data_files_clear(struct data_files *files);
/* Counts a file that was found and cannot be read. */
void data_files_leave_out(struct data_files *files, const char *path, int why);
/* Does the path end so? Also "a.json" in front of ".gz" or ".zst". */
bool data_file_is(const char *path, const char *suffix);
/* ".gz", ".zst" or "". */
const char *data_file_packing(const char *path);

#endif
