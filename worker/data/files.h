/* SPDX-License-Identifier: Apache-2.0 */
/* files.h - the files that a data path stands for, and the files left out.
 *
 * A path is a file, a folder, or a pattern (base/path_pattern.h). A folder stands for the regular files below it, in
 * the byte order of their paths. Symbolic links are followed, unless the process refuses them (base/file.h).
 *
 * A file is held out if its name, or a folder's name below the path, has the word "val", "valid" or "validation". If
 * any of the path's files has the word "train", the words "dev", "test" and "eval" also count. A word has no letters
 * around it. A path gets held-out files if it asks for them: if it is a file, a pattern with such a word, or a folder
 * whose whole name is such a word. */
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
    size_t name; /* offset in path where the name begins: after the named folder; for a named file, the path's end */
    uint64_t bytes;
    int64_t changed_ns; /* modification time in its file system */
    dev_t device;
    ino_t inode;
    bool linked; /* a link, or below a link */
};

/* Why a file was left out. */
enum data_omission {
    OMITTED_UNREADABLE,
    OMITTED_BROKEN,   /* a dangling or cyclic link */
    OMITTED_LINK,     /* links are refused */
    OMITTED_TWICE,    /* a link to a file that is read by its own name */
    OMITTED_HELD_OUT, /* held out from training */
    OMITTED_TRAINING, /* training data, left out of an evaluation */
    OMITTED_KIND,     /* not of the kind that this path's files are read as */
    OMITTED_BINARY,
    OMITTED_ENCODED, /* packed or UTF-16, and the path has too much text for a run to decode */
    DATA_OMISSIONS
};

/* The wanted files of a path. SPLIT_TRAINING: files that are not held out. SPLIT_HELD_OUT: held-out files, or all files
 * if no file is held out. SPLIT_ALL: all files. */
enum data_split { SPLIT_TRAINING, SPLIT_HELD_OUT, SPLIT_ALL };

struct data_left_out {
    struct {
        uint64_t n;
        char first[384]; /* path of the first file, maybe truncated */
        int error;       /* errno of the first file, or 0 */
    } by[DATA_OMISSIONS];
};

struct data_files {
    struct data_file *file; /* in byte order of their paths */
    size_t n, cap;
    uint64_t bytes; /* sum over all files */
    struct data_left_out left_out;
};

/* Adds the path's regular, non-empty files in sorted order, behind the present files. TITAN_ENOTFOUND: no such path, or
 * the pattern matches nothing; TITAN_EINVAL: the path cannot be read. Unreadable files below the path are counted. */
titan_status data_files_add(struct data_files *files, const char *path, struct titan_error *err) TITAN_MUST_USE;
void data_files_clear(struct data_files *files);
/* Removes some of the path's files, which are the files from number `from` on: files of the other split, and links to
 * files that are listed by their own names. */
void data_files_select(struct data_files *files, size_t from, const char *path, enum data_split split);
/* TITAN_EINVAL with the reasons: no file is left. */
titan_status data_files_none(const struct data_files *files, const char *path, struct titan_error *err) TITAN_MUST_USE;
/* Removes the files from number `from` on for which keep() is false. */
void data_files_filter(struct data_files *files, size_t from, enum data_omission why,
                       bool (*keep)(const struct data_file *file, const void *with), const void *with);
/* Counts a file that is no longer in the list, or never was. error: an errno, or 0. */
void data_leave_out(struct data_left_out *left_out, enum data_omission why, const char *path, int error);
void data_left_out_add(struct data_left_out *to, const struct data_left_out *from);
uint64_t data_left_out_count(const struct data_left_out *left_out);
/* "2 files held out by their names (first '/d/val.bin'), ..."; empty if no file is left out. */
void data_left_out_print(const struct data_left_out *left_out, struct buf *out);
/* Does the name have the word, between non-letters? Ignores case. */
bool data_name_has(const char *name, const char *word);
/* Does the path end in `suffix`, perhaps followed by ".gz" or ".zst"? */
bool data_file_is(const char *path, const char *suffix);
/* ".gz", ".zst" or "". */
const char *data_file_packing(const char *path);

#endif
