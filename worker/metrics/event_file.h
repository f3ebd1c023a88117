/* SPDX-License-Identifier: Apache-2.0 */
/* event_file.h - TensorBoard's event files: records of a length and an Event message, each with a masked CRC-32C
 * (tensorflow/core/util/event.proto, lib/io/record_writer.h). TensorBoard reads all files of a folder as one run, so
 * each process writes its own, and says with its first step from where on earlier files do not count any more. */
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

/* A new file below folder, which is made. After a failure there is none. */
titan_status event_file_open(struct event_file *f, const char *folder, struct titan_error *err) TITAN_MUST_USE;
void event_file_close(struct event_file *f);
/* One event with all of them. What cannot be written whole leaves nothing behind. */
titan_status event_file_add(struct event_file *f, uint64_t step, int64_t wall_ms, const struct event_scalar *scalars,
                            int n, struct titan_error *err) TITAN_MUST_USE;

#endif
