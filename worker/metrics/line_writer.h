/* SPDX-License-Identifier: Apache-2.0 */
/* line_writer.h - appends lines to a file on a thread, so an unresponsive disk or file server delays no step.
 *
 * Each writer of a file holds the file's lock (flock) until it closes. The next writer waits up to 10 s for the lock.
 * So the lines of an earlier writer that a disk delays come first.
 *
 * While the file accepts lines, a line is put only after the previous line is written. So a process that is killed
 * between two steps loses at most one line. If the file takes no line for LINE_WRITER_WAIT_MS, callers do not wait
 * again until the file has taken all lines. Meanwhile, lines beyond LINE_WRITER_BYTES are lost. */
#ifndef TITAN_WORKER_METRICS_LINE_WRITER_H
#define TITAN_WORKER_METRICS_LINE_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define LINE_WRITER_WAIT_MS 200
#define LINE_WRITER_BYTES ((size_t)4 << 20)

struct line_writer;

/* Takes fd over. fd must also be open for reading. If it returns NULL, fd is closed. */
struct line_writer *line_writer_open(int fd, struct titan_error *err) TITAN_MUST_USE;
/* Waits until all lines are written, at most a second. If the thread then still waits for the disk, it writes the rest
 * and closes the file later. NULL is fine. */
void line_writer_close(struct line_writer *w);
/* Copies the line. False: the file accepts no lines now, or has not yet accepted the previous line. */
bool line_writer_put(struct line_writer *w, const char *line, size_t len);
/* Waits until all lines are in the file, at most LINE_WRITER_WAIT_MS. */
bool line_writer_wait(struct line_writer *w);

#endif
