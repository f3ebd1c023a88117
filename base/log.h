/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - structured log lines.
 *
 * A line is time, level, subsystem, a sentence, and key=value pairs. To a terminal or file: logfmt on stderr
 *   2026-11-20T20:00:00.123Z info agent worker exited job=12 rank=2 signal=9
 * To journald (JOURNAL_STREAM names our stderr): the native protocol with PRIORITY, MESSAGE and TITAN_<KEY> fields.
 * A struct log travels with the thing it speaks for and adds that thing's pairs to each line. Thread-safe; a line is
 * one write(2). Secrets never go through here.
 *
 * A line is written by the caller until log_start_thread(), by a thread afterwards: a terminal that stands still, a
 * full pipe, a journal or a disk that does not answer holds up no event loop. */
#ifndef TITAN_BASE_LOG_H
#define TITAN_BASE_LOG_H

#include <stddef.h>

#include "base/error.h"

#define LOG_QUEUE_BYTES ((size_t)1 << 20) /* that wait for the thread; lines without room are counted, and told */
#define LOG_LAST_MS 1000                  /* for log_flush() before a process ends */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

struct log {
    const char *subsystem;
    char context[160]; /* "job=12 rank=2", appended to every line */
};

/* The process-wide level; lines above it cost one comparison. Safe to change at any time (SIGHUP reloads it). */
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* "error", "warn", "info", "debug" -> level; returns 0, or -1 for another word. */
int log_level_parse(const char *text, enum log_level *ret_level);
/* A log that speaks for one thing: context is a format of pairs (pairs.h). */
void log_init(struct log *log, const char *subsystem, const char *context_fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Once per process, before other threads log. A child of fork() has no such thread: only one that execs may follow. */
titan_status log_start_thread(struct titan_error *err) TITAN_MUST_USE;
/* Waits until all lines are written, but not longer: before the process ends. Without a thread there is nothing to do.
 */
void log_flush(unsigned timeout_ms);

/* sentence and log->subsystem are literals; the pairs that follow are one printf format: tlog_info(l, "worker exited",
 * "signal=%d", sig). Pass "" for no pairs. pairs.h says how values are quoted: "path=\"%s\"", "node=%s". */
#define tlog_error(log, sentence, ...) log_write((log), LOG_LEVEL_ERROR, (sentence), __VA_ARGS__)
#define tlog_warn(log, sentence, ...) log_write((log), LOG_LEVEL_WARN, (sentence), __VA_ARGS__)
#define tlog_info(log, sentence, ...) log_write((log), LOG_LEVEL_INFO, (sentence), __VA_ARGS__)
#define tlog_debug(log, sentence, ...) log_write((log), LOG_LEVEL_DEBUG, (sentence), __VA_ARGS__)
void log_write(const struct log *log, enum log_level level, const char *sentence, const char *pairs_fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
