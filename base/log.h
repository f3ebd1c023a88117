/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - structured log lines.
 *
 * A line is time, level, subsystem, a sentence, and key=value pairs. To a terminal or file: logfmt on stderr
 *   2026-11-20T20:00:00.123Z info agent worker exited job=12 rank=2 signal=9
 * To journald (JOURNAL_STREAM names stderr): the native protocol with PRIORITY, MESSAGE and TITAN_<KEY> fields.
 * A struct log belongs to one object and adds the object's pairs to each line. Thread-safe; a line is one write(2).
 * Secrets are never logged.
 *
 * Before log_start_thread() the caller writes each line; afterwards a thread writes them. A stopped terminal, a full
 * pipe, or an unresponsive journal or disk then blocks no event loop. */
#ifndef TITAN_BASE_LOG_H
#define TITAN_BASE_LOG_H

#include <stddef.h>

#include "base/error.h"

#define LOG_QUEUE_BYTES ((size_t)1 << 20) /* limit of waiting bytes; lines beyond it are counted and reported */
#define LOG_LAST_MS 1000                  /* timeout of log_flush() before a process ends */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

struct log {
    const char *subsystem;
    char context[160]; /* "job=12 rank=2", appended to every line */
};

/* The process-wide level; a suppressed line costs one comparison. Any thread may change it at any time (SIGHUP reloads
 * it). */
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* Initialises the log of one object; context is a format of pairs (pairs.h). */
void log_init(struct log *log, const char *subsystem, const char *context_fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Call once per process, before other threads log. A child of fork() has no log thread; the child must exec. */
titan_status log_start_thread(struct titan_error *err) TITAN_MUST_USE;
/* Waits until all lines are written, at most timeout_ms; call before the process ends. Without a thread the call does
 * nothing. */
void log_flush(unsigned timeout_ms);

/* sentence and log->subsystem are literals; the pairs that follow are one printf format: tlog_info(l, "worker exited",
 * "signal=%d", sig). Pass "" for no pairs. pairs.h defines the quoting of values: "path=\"%s\"", "node=%s". */
#define tlog_error(log, sentence, ...) log_write((log), LOG_LEVEL_ERROR, (sentence), __VA_ARGS__)
#define tlog_warn(log, sentence, ...) log_write((log), LOG_LEVEL_WARN, (sentence), __VA_ARGS__)
#define tlog_info(log, sentence, ...) log_write((log), LOG_LEVEL_INFO, (sentence), __VA_ARGS__)
#define tlog_debug(log, sentence, ...) log_write((log), LOG_LEVEL_DEBUG, (sentence), __VA_ARGS__)
void log_write(const struct log *log, enum log_level level, const char *sentence, const char *pairs_fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
