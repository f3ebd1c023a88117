/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - one line that says how a run is doing. On a terminal it is drawn over again and events are printed above
 * it; elsewhere it is printed as a line of its own from time to time. */
#ifndef TITAN_CTL_PROGRESS_H
#define TITAN_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "titan/v1/titan.pb-c.h"

struct progress {
    FILE *out;
    bool live, color, unicode;
    int width; /* columns of the terminal */
    Titan__V1__JobState state;
    uint64_t step, steps;
    uint64_t point_epoch, job_epoch; /* of the newest point, and of the newest answer about the job; 0: none yet */
    double loss;                     /* NaN before the first step */
    double validation_loss;          /* after this step, 0: none yet */
    uint64_t validation_step;
    double tokens_per_second, mfu, step_ms; /* step_ms is smoothed; 0 = not known yet */
    uint64_t points;                        /* metric points seen */
    uint32_t workers;
    bool shown;           /* a live line is on the screen */
    uint64_t last_step;   /* of the last plain line */
    int64_t last_line_ms; /* when it was printed; 0 = none yet */
};

/* For a stream: live on a terminal that can move its cursor, colour unless NO_COLOR says otherwise. */
void progress_init(struct progress *p, FILE *out);
void progress_job(struct progress *p, const Titan__V1__Job *job);
void progress_point(struct progress *p, const Titan__V1__MetricPoint *point);
/* The line itself, at most width columns when that is positive; no newline, no escape sequences without color. */
void progress_text(const struct progress *p, int width, struct buf *out);
/* Draw or print what is due at now_ms. last: whatever is due, as a line that stays; so the end state. */
void progress_show(struct progress *p, int64_t now_ms, bool last);
/* A line of its own, above the live one. */
void progress_print(struct progress *p, const char *line);
/* Wipe the live line away. */
void progress_clear(struct progress *p);

#endif
