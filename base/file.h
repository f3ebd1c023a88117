/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - small file helpers: whole reads and writes, durable replacement, folders. */
#ifndef TITAN_BASE_FILE_H
#define TITAN_BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"

/* Opens a file that other users may have made, for reading. If it is not a regular file, TITAN_EINVAL names its type.
 * The call never blocks on a FIFO or device. name: below the open folder `at`, or AT_FDCWD. flags: 0, or O_NOFOLLOW to
 * refuse a link. */
titan_status file_open_regular(int at, const char *name, int flags, int *ret_fd,
                               struct titan_error *err) TITAN_MUST_USE;
/* Appends a whole regular file to out. TITAN_ELIMIT: the file has more than max bytes. */
titan_status file_read(const char *path, size_t max, struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* file_read() below an open folder, with the flags of file_open_regular(). */
titan_status file_read_at(int at, const char *name, int flags, size_t max, struct buf *out,
                          struct titan_error *err) TITAN_MUST_USE;
/* Reads the last bytes of an open file, at most `most`, into an empty buffer. *ret_whole: the buffer has the whole
 * file. name: the file's name for messages. */
titan_status file_read_tail(int fd, const char *name, size_t most, struct buf *out, bool *ret_whole,
                            struct titan_error *err) TITAN_MUST_USE;
/* Replaces path by data: temporary file, fsync, rename, fsync of the folder. */
titan_status file_replace(const char *path, const void *data, size_t len, struct titan_error *err) TITAN_MUST_USE;
titan_status file_replace_private(const char *path, const void *data, size_t len,
                                  struct titan_error *err) TITAN_MUST_USE; /* mode 0600 */
/* file_replace() for a file that a person names. A device or pipe is written directly. The target of a link is
 * replaced. A link of another user except root is refused (TITAN_EPERM): that user may own the folder, and the link may
 * lead to any file. */
titan_status file_write(const char *path, const void *data, size_t len, struct titan_error *err) TITAN_MUST_USE;
/* file_replace() below the open folder `at`. */
titan_status file_replace_at(int at, const char *name, const void *data, size_t len,
                             struct titan_error *err) TITAN_MUST_USE;
/* file_replace_at() without waiting for the disk. Readers always see a whole file; a power loss may lose the new
 * content. */
titan_status file_place_at(int at, const char *name, const void *data, size_t len,
                           struct titan_error *err) TITAN_MUST_USE;
/* Creates a file with this mode in the open folder `at`, or AT_FDCWD, for reading and writing. out receives its name:
 * `name` and a random suffix. */
titan_status file_make_temporary(int at, const char *name, mode_t mode, char out[PATH_MAX], int *ret_fd,
                                 struct titan_error *err) TITAN_MUST_USE;
/* From now on this process refuses links in any part of a path from a run file. The path was checked at submit time,
 * and the submitting user may have added a link since then. Permanent; call before threads start. */
void file_refuse_links(void);
bool file_refuses_links(void);
/* open(2) of a path from a run file: -1 and errno; ELOOP: a link was refused. */
int file_open_named(const char *path, int flags);
/* file_read() of a path from a run file. */
titan_status file_read_named(const char *path, size_t max, struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* mkdir -p with mode 0775 under the umask. */
titan_status dir_make(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* dir_make() for a path from a run file. When links are refused, every link in the path is refused. */
titan_status dir_make_named(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* rmdir(2) of a path from a run file; does nothing unless the folder is empty. */
void dir_unmake_named(const char *path);
/* Opens a folder below another, or AT_FDCWD; make: a missing folder is created. A link is refused. */
titan_status dir_open_at(int at, const char *name, bool make, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;
/* rm -r of a folder of Titan's. Removes as much as possible; the first error names what stayed. A missing folder is no
 * error. Links are not followed. */
titan_status dir_remove(const char *path, struct titan_error *err) TITAN_MUST_USE;
titan_status dir_remove_at(int at, const char *name, struct titan_error *err) TITAN_MUST_USE;
/* Writes all bytes to an open file, in as many writes as needed; errno on failure. */
titan_status file_write_all(int fd, const void *data, size_t len) TITAN_MUST_USE;
/* Appends to an open file in one write, completely or not at all: lines of two writers never mix, and a full disk
 * leaves no partial line. The message does not name the file. */
titan_status file_append(int fd, const void *data, size_t len, struct titan_error *err) TITAN_MUST_USE;
/* The folder part of path; "." when path has no folder. */
void file_parent(const char *path, char out[PATH_MAX]);
titan_status dir_sync(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* Writes the absolute path of the running executable's folder into out[cap]. */
titan_status file_self_dir(char *out, size_t cap, struct titan_error *err) TITAN_MUST_USE;

#endif
