/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - one line about a run's progress. A terminal redraws the line and shows events above it; elsewhere the
 * line is printed from time to time. */
#ifndef TITAN_CTL_PROGRESS_H
#define TITAN_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "titan/v1/titan.pb-c.h"

struct recipe;
struct progress {
    FILE *out;
    const struct recipe *recipe; /* tells which steps are evaluated; NULL: unknown */
    bool live, color, unicode;
    int width; /* columns of the terminal */
    Titan__V1__JobState state;
    uint64_t step, steps;
    uint64_t point_epoch, job_epoch; /* epoch of the newest point, and of the newest job status; 0: none yet */
    double loss;                     /* NaN before the first step */
    double validation_loss;          /* loss after validation_step; step 0: none yet */
    uint64_t validation_step;
    uint64_t seen_step; /* the newest step, and when progress_show() first saw it */
    int64_t seen_ms;
    bool evaluates;                         /* an evaluation seems to be under way: it delays the report of its step */
    double evaluation_ms;                   /* duration of the last evaluation seen; 0: unknown */
    double tokens_per_second, mfu, step_ms; /* step_ms is smoothed; 0 = unknown yet */
    uint64_t points;                        /* metric points seen */
    uint32_t workers;
    bool shown;           /* a live line is on the screen */
    uint64_t last_step;   /* step of the last plain line */
    bool last_evaluates;  /* the last plain line told of an evaluation */
    int64_t last_line_ms; /* time of the last plain line; 0 = none yet */
};

/* Initialises p for the stream `out`. The line is live on a terminal with cursor movement, and coloured unless NO_COLOR
 * is set. */
void progress_init(struct progress *p, FILE *out);
void progress_job(struct progress *p, const Titan__V1__Job *job);
void progress_point(struct progress *p, const Titan__V1__MetricPoint *point);
/* Writes the line, at most width columns if width is positive; no newline, and no escape sequences without color. */
void progress_text(const struct progress *p, int width, struct buf *out);
/* Draws or prints the output due at now_ms. last: prints the final state as a permanent line, due or not. */
void progress_show(struct progress *p, int64_t now_ms, bool last);
/* Prints a separate line above the live one. */
void progress_print(struct progress *p, const char *line);
/* Erases the live line. */
void progress_clear(struct progress *p);

#endif
