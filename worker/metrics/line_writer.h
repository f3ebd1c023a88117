/* SPDX-License-Identifier: Apache-2.0 */
/* line_writer.h - appends lines to a file on a thread, so that a disk or a file server that does not answer holds up no
 * step.
 *
 * Of several writers of one file each holds its lock (flock) until it is closed: the next one's lines wait for 10 s, so
 * that those of a writer that a disk has held up come first.
 *
 * As long as the file takes them, a line is put only when the one before it is written: what is killed between two
 * steps has lost one line at most. A file that has not taken a line for LINE_WRITER_WAIT_MS is not waited for until it
 * has taken all; lines beyond LINE_WRITER_BYTES are lost then. */
#ifndef TITAN_WORKER_METRICS_LINE_WRITER_H
#define TITAN_WORKER_METRICS_LINE_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define LINE_WRITER_WAIT_MS 200
#define LINE_WRITER_BYTES ((size_t)4 << 20)

struct line_writer;

/* fd is the writer's from here on, also for reading what is written; NULL: fd is closed. */
struct line_writer *line_writer_open(int fd, struct titan_error *err) TITAN_MUST_USE;
/* Waits for what is put, not longer than a second; a thread that then still waits for the disk writes the rest, and
 * closes the file, later. NULL is fine. */
void line_writer_close(struct line_writer *w);
/* A copy is made. False: the file does not take lines for now, or has not taken the one before. */
bool line_writer_put(struct line_writer *w, const char *line, size_t len);
/* All that was put is in the file: waits for it, not longer than LINE_WRITER_WAIT_MS. */
bool line_writer_wait(struct line_writer *w);

#endif
