/* SPDX-License-Identifier: Apache-2.0 */
/* record_writer.h - writes the core's records (records.h) on a thread of the pool, one at a time. A record that cannot
 * be written is tried again until it is, as no action behind it may be carried out before. */
#ifndef TITAN_DAEMON_AGENT_SHELL_RECORD_WRITER_H
#define TITAN_DAEMON_AGENT_SHELL_RECORD_WRITER_H

#include <uv.h>

#include "base/log.h"
#include "daemon/agent/agent_core.h"

struct record_writer;

/* written: on the loop, after each record. */
struct record_writer *record_writer_open(uv_loop_t *loop, const char *run_dir, const struct log *log,
                                         void (*written)(void *data), void *data);
/* An AGENT_RECORD_*, borrowed until written. No other may be under way. */
void record_writer_start(struct record_writer *w, const struct agent_action *record);
bool record_writer_busy(const struct record_writer *w);    /* a record is not on disk yet */
bool record_writer_fails(const struct record_writer *w);   /* ... and could not be written last time */
bool record_writer_on_disk(const struct record_writer *w); /* a thread writes right now */
/* Forgets a record that failed; no thread may be writing. */
void record_writer_stop(struct record_writer *w);
/* After a stop. done on the loop. */
void record_writer_close(struct record_writer *w, void (*done)(void *), void *data);

#endif
