/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - small file helpers: whole reads and writes, durable replacement, folders. */
#ifndef TITAN_BASE_FILE_H
#define TITAN_BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"

/* Open a file that others may have made, for reading: a regular one, or TITAN_EINVAL says what it is. Neither a FIFO
 * nor a device is waited for. name: below the open folder `at`, or AT_FDCWD. flags: 0, or O_NOFOLLOW to refuse a link.
 */
titan_status file_open_regular(int at, const char *name, int flags, int *ret_fd,
                               struct titan_error *err) TITAN_MUST_USE;
/* Whole regular file into out (appended). TITAN_ELIMIT beyond max bytes. */
titan_status file_read(const char *path, size_t max, struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* The same below an open folder, with file_open_regular's flags. */
titan_status file_read_at(int at, const char *name, int flags, size_t max, struct buf *out,
                          struct titan_error *err) TITAN_MUST_USE;
/* The last bytes of an open file, `most` at most, into an empty buffer. *ret_whole: that is all of it. name: of it, for
 * the message. */
titan_status file_read_tail(int fd, const char *name, size_t most, struct buf *out, bool *ret_whole,
                            struct titan_error *err) TITAN_MUST_USE;
/* Replace path by data: temporary file, fsync, rename, fsync of the folder. */
titan_status file_replace(const char *path, const void *data, size_t len, struct titan_error *err) TITAN_MUST_USE;
titan_status file_replace_private(const char *path, const void *data, size_t len,
                                  struct titan_error *err) TITAN_MUST_USE; /* 0600 */
/* The same of a file that a person names: a device or pipe is written to, and behind a link the file is replaced. A
 * link of another user but root is refused (TITAN_EPERM): the folder may be that user's, and the link lead to any file.
 */
titan_status file_write(const char *path, const void *data, size_t len, struct titan_error *err) TITAN_MUST_USE;
/* file_replace() below the open folder `at`. */
titan_status file_replace_at(int at, const char *name, const void *data, size_t len,
                             struct titan_error *err) TITAN_MUST_USE;
/* That without waiting for the disk: whole for all that read it, and a loss of power may take it. */
titan_status file_place_at(int at, const char *name, const void *data, size_t len,
                           struct titan_error *err) TITAN_MUST_USE;
/* A new file of that mode in the open folder `at`, or AT_FDCWD, to read and write, under `name` and a random suffix;
 * out takes its name. */
titan_status file_make_temporary(int at, const char *name, mode_t mode, char out[PATH_MAX], int *ret_fd,
                                 struct titan_error *err) TITAN_MUST_USE;
/* From now on this process opens what a run file names only where no part of the path is a link: the path was checked
 * when it was submitted, and the submitting user may have put a link there since. For good; before there are threads.
 */
void file_refuse_links(void);
bool file_refuses_links(void);
/* open(2) of such a path: -1 and errno, ELOOP for a link that is refused. */
int file_open_named(const char *path, int flags);
/* file_read() of such a path. */
titan_status file_read_named(const char *path, size_t max, struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* mkdir -p with mode 0775, as far as the umask lets it. */
titan_status dir_make(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* The same of a path that a run file names: where links are refused, none on the way is followed. */
titan_status dir_make_named(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* rmdir(2) of such a path, where it is an empty folder. */
void dir_unmake_named(const char *path);
/* Open a folder below another, or AT_FDCWD; make: where it is missing, it is made. A link is refused. */
titan_status dir_open_at(int at, const char *name, bool make, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;
/* rm -r of a folder of ours, of all in it that can be removed: the first error says what stayed. Missing is fine. Does
 * not follow links. */
titan_status dir_remove(const char *path, struct titan_error *err) TITAN_MUST_USE;
titan_status dir_remove_at(int at, const char *name, struct titan_error *err) TITAN_MUST_USE;
/* All of it into an open file, in as many writes as it takes; errno where that fails. */
titan_status file_write_all(int fd, const void *data, size_t len) TITAN_MUST_USE;
/* At the end of an open file, in one write, whole or not at all: lines of two writers do not mix, and a full disk
 * leaves no part of one. The message does not name the file. */
titan_status file_append(int fd, const void *data, size_t len, struct titan_error *err) TITAN_MUST_USE;
/* The folder part of path: "." where there is none. */
void file_parent(const char *path, char out[PATH_MAX]);
titan_status dir_sync(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* Absolute path of the running executable's folder into out[cap]. */
titan_status file_self_dir(char *out, size_t cap, struct titan_error *err) TITAN_MUST_USE;

#endif
