/* SPDX-License-Identifier: Apache-2.0 */
/* record_writer.h - writes the core's records (records.h) on a thread of the pool, one at a time. A failed write is
 * retried until it succeeds, because no later action may be carried out before it succeeds. */
#ifndef TITAN_DAEMON_AGENT_SHELL_RECORD_WRITER_H
#define TITAN_DAEMON_AGENT_SHELL_RECORD_WRITER_H

#include <uv.h>

#include "base/log.h"
#include "daemon/agent/agent_core.h"

struct record_writer;

/* written runs on the loop after each record. */
struct record_writer *record_writer_open(uv_loop_t *loop, const char *run_dir, const struct log *log,
                                         void (*written)(void *data), void *data);
/* record: an AGENT_RECORD_*, borrowed until written. No other record may be in progress. */
void record_writer_start(struct record_writer *w, const struct agent_action *record);
bool record_writer_busy(const struct record_writer *w);    /* a record is not yet on disk */
bool record_writer_fails(const struct record_writer *w);   /* a record is not yet on disk, and its last write failed */
bool record_writer_on_disk(const struct record_writer *w); /* a thread is writing */
/* Forgets a failed record; no thread may be writing. */
void record_writer_stop(struct record_writer *w);
/* Only after record_writer_stop. done runs on the loop. */
void record_writer_close(struct record_writer *w, void (*done)(void *), void *data);

#endif
