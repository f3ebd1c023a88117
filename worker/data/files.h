/* SPDX-License-Identifier: Apache-2.0 */
/* files.h - the files that a path of data stands for, and those that are left out.
 *
 * A path is a file, a folder, or a pattern (base/path_pattern.h). A folder gives the regular files below it, in the
 * order of the bytes of their paths. Symbolic links are followed, unless the process refuses them (base/file.h).
 *
 * A file is held out where its name, or that of a folder below the path, has the word "val", "valid" or "validation",
 * and where any of the path's files has the word "train", also "dev", "test" or "eval". Around a word are no letters.
 * They are not held out where the path asks for them: a file, a pattern with such a word, a folder with that very name.
 */
#ifndef TITAN_WORKER_DATA_FILES_H
#define TITAN_WORKER_DATA_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"

struct data_file {
    char *path;
    size_t name; /* place in the path: what follows the folder that was named; of a file that was named: its end */
    uint64_t bytes;
    int64_t changed_ns; /* when, by its file system */
    dev_t device;
    ino_t inode;
    bool linked; /* a link, or below one */
};

/* Why a file is left out. */
enum data_omission {
    OMITTED_UNREADABLE,
    OMITTED_BROKEN,   /* a link that leads nowhere, or back */
    OMITTED_LINK,     /* links are refused */
    OMITTED_TWICE,    /* a link to a file that is read under its own name */
    OMITTED_HELD_OUT, /* from training */
    OMITTED_TRAINING, /* from an evaluation */
    OMITTED_KIND,     /* not what the path is read as */
    OMITTED_BINARY,
    OMITTED_ENCODED, /* packed or UTF-16, beside too much text for a run to decode it */
    DATA_OMISSIONS
};

/* Which of a path's files are wanted: what is trained on; what is held out, or all where none is; all. */
enum data_split { SPLIT_TRAINING, SPLIT_HELD_OUT, SPLIT_ALL };

struct data_left_out {
    struct {
        uint64_t n;
        char first[384]; /* its path, cut where it is longer */
        int error;       /* errno of the first, or 0 */
    } by[DATA_OMISSIONS];
};

struct data_files {
    struct data_file *file; /* by the bytes of their paths */
    size_t n, cap;
    uint64_t bytes; /* of all */
    struct data_left_out left_out;
};

/* Adds the regular files that the path stands for and that are not empty, sorted among themselves. TITAN_ENOTFOUND: it
 * is not there, or the pattern matches nothing; TITAN_EINVAL: it cannot be read. What is found and cannot be read is
 * counted. */
titan_status data_files_add(struct data_files *files, const char *path, struct titan_error *err) TITAN_MUST_USE;
void data_files_clear(struct data_files *files);
/* Of the files from number `from` on, which the path stands for: takes out those of the other split, and links to files
 * that are there under their own names. */
void data_files_select(struct data_files *files, size_t from, const char *path, enum data_split split);
/* TITAN_EINVAL: no file is left, and why. */
titan_status data_files_none(const struct data_files *files, const char *path, struct titan_error *err) TITAN_MUST_USE;
/* Takes files from number `from` on out for which keep() is false. */
void data_files_filter(struct data_files *files, size_t from, enum data_omission why,
                       bool (*keep)(const struct data_file *file, const void *with), const void *with);
/* Counts a file that is no longer in the list, or never was. error: an errno, or 0. */
void data_leave_out(struct data_left_out *left_out, enum data_omission why, const char *path, int error);
void data_left_out_add(struct data_left_out *to, const struct data_left_out *from);
uint64_t data_left_out_count(const struct data_left_out *left_out);
/* "2 files held out by their names (first '/d/val.bin'), ..."; nothing where none is left out. */
void data_left_out_print(const struct data_left_out *left_out, struct buf *out);
/* Has the name the word, between characters that are no letters? In any case. */
bool data_name_has(const char *name, const char *word);
/* Does the path end so? Also "a.json" in front of ".gz" or ".zst". */
bool data_file_is(const char *path, const char *suffix);
/* ".gz", ".zst" or "". */
const char *data_file_packing(const char *path);

#endif
