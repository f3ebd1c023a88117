/* SPDX-License-Identifier: Apache-2.0 */
/* event_file.h - TensorBoard's event files: records of a length and an Event message, each with a masked CRC-32C
 * (tensorflow/core/util/event.proto, lib/io/record_writer.h). TensorBoard reads all files of a folder as one run, so
 * each process writes its own file. From the first step of a file on, earlier files do not count. */
#ifndef TITAN_WORKER_METRICS_EVENT_FILE_H
#define TITAN_WORKER_METRICS_EVENT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct event_file {
    int fd;       /* -1: closed */
    bool started; /* the first step is written */
};

struct event_scalar {
    const char *tag;
    double value;
};

/* Makes `folder`, and a new file in it. After a failure there is no new file. */
titan_status event_file_open(struct event_file *f, const char *folder, struct titan_error *err) TITAN_MUST_USE;
void event_file_close(struct event_file *f);
/* Writes one event with all scalars. If a write is cut off, its part is removed from the file. */
titan_status event_file_add(struct event_file *f, uint64_t step, int64_t wall_ms, const struct event_scalar *scalars,
                            int n, struct titan_error *err) TITAN_MUST_USE;

#endif
