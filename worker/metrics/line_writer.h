/* SPDX-License-Identifier: Apache-2.0 */
/* line_writer.h - appends lines to a file on a thread, so an unresponsive disk or file server delays no step.
 *
 * Each writer of a file holds the file's lock (flock) until it closes. The next writer's lines wait up to 10 s, so the
 * lines of a writer delayed by a disk come first.
 *
 * While the file accepts lines, a line is put only after the previous one is written: a process killed between two
 * steps loses one line at most. If the file takes no line for LINE_WRITER_WAIT_MS, callers do not wait again until it
 * has taken all lines; meanwhile lines beyond LINE_WRITER_BYTES are lost. */
#ifndef TITAN_WORKER_METRICS_LINE_WRITER_H
#define TITAN_WORKER_METRICS_LINE_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define LINE_WRITER_WAIT_MS 200
#define LINE_WRITER_BYTES ((size_t)4 << 20)

struct line_writer;

/* Takes fd over, also for reading the file back; NULL: fd is closed. */
struct line_writer *line_writer_open(int fd, struct titan_error *err) TITAN_MUST_USE;
/* Waits for the lines put, at most a second; if the thread still waits for the disk, it writes the rest and closes the
 * file later. NULL is fine. */
void line_writer_close(struct line_writer *w);
/* Copies the line. False: the file accepts no lines now, or has not yet accepted the previous one. */
bool line_writer_put(struct line_writer *w, const char *line, size_t len);
/* Waits until all lines put are in the file, at most LINE_WRITER_WAIT_MS. */
bool line_writer_wait(struct line_writer *w);

#endif
